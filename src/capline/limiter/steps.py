"""A verb is said once: a generator that yields each call of the store, and is told the answer.

    decision = yield self._store.step(...)

The blocking limiter's store has answered, or raised inside the generator, before the `yield`: the answer is sent
straight back. The awaited limiter's store returns an awaitable, which is awaited outside: its answer is sent in, its
error thrown in, where the verb's own `try` finds it.
"""

from collections.abc import Callable, Coroutine, Generator
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, TypeVar

V = TypeVar("V")
T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
Wanted = TypeVar("Wanted")

Steps = Generator[Any, Any, T]
"""The calls of a verb, one after the other; its return value is the verb's answer."""


def run(steps: Steps[T]) -> T:
    """The answer of a verb whose calls have been made where it yields."""
    try:
        answer = next(steps)
        while True:
            answer = steps.send(answer)
    except StopIteration as done:
        return done.value


async def run_awaited(steps: Steps[T]) -> T:
    """The answer of a verb that yields what is to be awaited."""
    try:
        call = next(steps)
        while True:
            try:
                answer = await call
            except BaseException as error:  # noqa: BLE001 - the verb judges it, a cancellation too
                call = steps.throw(error)
            else:
                call = steps.send(answer)
    except StopIteration as done:
        return done.value


def blocking(verb: Callable[Concatenate[V, P], Steps[T]]) -> Callable[Concatenate[V, P], T]:
    """The verb as a method that blocks."""

    def call(self: V, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(verb(self, *args, **kwargs))

    named_as(call, verb)
    return call


def awaited(verb: Callable[Concatenate[V, P], Steps[T]]) -> Callable[Concatenate[V, P], Coroutine[Any, Any, T]]:
    """The verb as a coroutine."""

    async def call(self: V, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await run_awaited(verb(self, *args, **kwargs))

    named_as(call, verb)
    return call


def acquiring(slot: Callable[[Wanted], R], verb: Callable[Concatenate[V, P], Wanted]) -> Callable[Concatenate[V, P], R]:
    """The verb as a method that returns a block, a `slot`, which begins once the slot is there."""

    def call(self: V, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return slot(verb(self, *args, **kwargs))

    named_as(call, verb, slot.__name__)
    return call


def named_as(call: Any, verb: Any, returned: str = "") -> None:
    """Name, describe and sign the method as its verb, which returns the answer by steps: `Steps[bool]`, bool.

    One that returns what is `Wanted` returns `returned` of it: `AcquiredSlot[Decision]`.
    """
    signed = FunctionType(verb.__code__, verb.__globals__, verb.__name__.removeprefix("_"), verb.__defaults__)
    signed.__kwdefaults__ = verb.__kwdefaults__
    returns = verb.__annotations__["return"]
    returns = returns.replace("Wanted", returned) if returned else returns.removeprefix("Steps[").removesuffix("]")
    signed.__annotations__ = {**verb.__annotations__, "return": returns}
    call.__name__, call.__doc__, call.__module__ = signed.__name__, verb.__doc__, verb.__module__
    call.__qualname__ = verb.__qualname__.replace("._", ".")
    call.__annotations__, call.__wrapped__ = signed.__annotations__, signed
