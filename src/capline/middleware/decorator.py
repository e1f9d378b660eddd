"""`limited`: any function, sync or async, called in a slot of its own."""

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, Required, TypedDict, TypeVar, Unpack, overload

from capline.limiter.aio import AsyncLimiter
from capline.limiter.arguments.checks import seconds_us
from capline.limiter.limiter import Limiter
from capline.middleware.slots.threaded import acquired
from capline.model.attempt import check_cost
from capline.model.errors import InvalidTypeError
from capline.model.subject import Subject, check_subject

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Terms(TypedDict, total=False):
    """What `limited` takes beside its limiter and policy."""

    subject: Required[Subject | Callable[..., Subject]]
    cost: int | Callable[..., int]
    timeout: float | None
    slack: float | None


class _Kept(Protocol):
    """The decorator that a `Limiter` gives: the function stays sync or async."""

    def __call__(self, function: Callable[_P, _T], /) -> Callable[_P, _T]: ...


class _Awaited(Protocol):
    """The decorator that an `AsyncLimiter` gives: the function becomes one that is awaited."""

    @overload
    def __call__(self, function: Callable[_P, Coroutine[Any, Any, _T]], /) -> Callable[_P, Coroutine[Any, Any, _T]]: ...
    @overload
    def __call__(self, function: Callable[_P, _T], /) -> Callable[_P, Coroutine[Any, Any, _T]]: ...


@overload
def limited(limiter: Limiter, policy: str, **terms: Unpack[Terms]) -> _Kept: ...


@overload
def limited(limiter: AsyncLimiter, policy: str, **terms: Unpack[Terms]) -> _Awaited: ...


def limited(
    limiter: Limiter | AsyncLimiter,
    policy: str,
    *,
    subject: Subject | Callable[..., Subject],
    cost: int | Callable[..., int] = 1,
    timeout: float | None = None,
    slack: float | None = None,
) -> Any:
    """Call the function in a slot of `policy`: `acquire` around each call.

    `subject` and `cost` are values, or functions of the call's own arguments. A slot that is more than `timeout`
    seconds away is not taken: `LimitExceeded` is raised and the function is not called. A call that wakes up more than
    `slack` seconds after its slot, as on a busy host, gives it back and takes another (None: however late). Either
    limiter takes either kind of function: an `async def` waits without blocking its loop, under a `Limiter` too; a
    plain function under an `AsyncLimiter` has to be awaited. A generator is refused, as calling it does nothing yet.

    >>> from capline import Limiter, Policy
    >>> limiter = Limiter("memory://", policies=[Policy("psp", ["100/s"])])
    >>> @limited(limiter, "psp", subject=lambda payment: payment["provider"], timeout=30)
    ... def pay(payment):
    ...     return f"paid {payment['amount']}"
    >>> pay({"provider": "adyen", "amount": 5})
    'paid 5'
    """
    fixed_subject = None if callable(subject) else check_subject(subject)
    fixed_cost = 0 if callable(cost) else check_cost(cost)
    for seconds, what in ((timeout, "timeout"), (slack, "slack")):
        if seconds is not None:
            seconds_us(seconds, what)

    def arguments_of(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[str, Subject, int]:
        who = subject(*arguments, **options) if callable(subject) else fixed_subject
        units = cost(*arguments, **options) if callable(cost) else fixed_cost
        return policy, who, units  # pyright: ignore[reportReturnType] - fixed where it is no function

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            name = getattr(function, "__qualname__", repr(function))
            raise InvalidTypeError(f"{name} is a generator: limit what it calls, or use acquire inside it")
        is_async = inspect.iscoroutinefunction(function)
        if not is_async and isinstance(limiter, Limiter):
            plain = limiter

            @functools.wraps(function)
            def called(*arguments: Any, **options: Any) -> Any:
                with plain.acquire(*arguments_of(arguments, options), timeout=timeout, slack=slack):
                    return function(*arguments, **options)

            return called
        # A Limiter asks its store in a thread, so that the loop goes on.
        acquire = limiter.acquire if isinstance(limiter, AsyncLimiter) else functools.partial(acquired, limiter)

        @functools.wraps(function)
        async def awaited(*arguments: Any, **options: Any) -> Any:
            async with acquire(*arguments_of(arguments, options), timeout=timeout, slack=slack):
                answer = function(*arguments, **options)
                return await answer if is_async else answer

        return awaited

    return around
