"""dramatiq actors that go in slots of their own, on all workers together.

    @dramatiq.actor
    @limited_actor(limiter, "psp", subject=lambda order: order["provider"])
    def pay(order): ...

A message whose slot is further away than `early` is sent back with a delay, and sleeps the rest when it returns. These
retries are not counted. The broker needs the middleware `dramatiq.middleware.CurrentMessage`.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, Unpack

from capline.middleware.slots.tasks import TaskSlots, Terms
from capline.model.errors import CaplineError

try:
    from dramatiq import Retry
    from dramatiq.middleware import CurrentMessage
except ImportError as error:
    raise CaplineError("capline.middleware.dramatiq needs dramatiq: pip install dramatiq") from error

from capline.limiter.limiter import Limiter

_P = ParamSpec("_P")
_T = TypeVar("_T")


def limited_actor(
    limiter: Limiter | Callable[[], Limiter], policy: str, **terms: Unpack[Terms]
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Run the actor in a slot of `policy`; see `TaskSlots` for the arguments. Put it below `@dramatiq.actor`.

    A message may be delivered twice without saying so: a slot that is missed stays used, and another is taken. Called
    directly, without a worker, the actor waits for its slot where it is.
    """
    slots = TaskSlots(limiter, policy, **terms)

    def around(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(function)
        def run(*arguments: _P.args, **options: _P.kwargs) -> _T:
            message: Any = CurrentMessage.get_current_message()
            if message is None:
                slots.go(arguments, options)
                return function(*arguments, **options)
            tried = message.options.get("retries", 0)
            wait = slots.wait(f"{message.message_id}:{tried}", arguments, options, may_have_run=True)
            if wait:
                message.options["retries"] = tried - 1  # dramatiq adds it again: this one is not the actor's own
                raise Retry(delay=round(wait * 1000))
            return function(*arguments, **options)

        return run

    return around
