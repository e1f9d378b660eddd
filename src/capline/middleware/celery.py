"""Celery tasks that go in slots of their own, on all workers together.

    @app.task(bind=True)
    @limited_task(limiter, "psp", subject=lambda order: order["provider"])
    def pay(self, order): ...

A task whose slot is further away than `early` is sent back with `retry(countdown=...)`, and sleeps the rest when it
returns. These retries are not counted: `self.request.retries` and `max_retries` count the task's own, each of which
takes a slot of its own.
"""

import functools
from collections.abc import Callable
from typing import Any, Unpack

from capline.limiter.limiter import Limiter
from capline.middleware.slots.tasks import TaskSlots, Terms
from capline.model.errors import InvalidTypeError


def limited_task(
    limiter: Limiter | Callable[[], Limiter], policy: str, **terms: Unpack[Terms]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run the task in a slot of `policy`; see `TaskSlots` for the arguments. Put it below `@app.task(bind=True)`.

    With `acks_late`, a task that was delivered twice may have run: if its slot is missed, that slot stays used, and it
    takes another.
    Called directly, without a worker, the task waits for its slot where it is.
    """
    slots = TaskSlots(limiter, policy, **terms)

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*arguments: Any, **options: Any) -> Any:
            task: Any = arguments[0] if arguments else None
            if not hasattr(task, "request") or not hasattr(task, "retry"):
                raise InvalidTypeError(f"{function.__qualname__}: write @app.task(bind=True) above @limited_task")
            request: Any = task.request
            if request.called_directly or request.is_eager:
                slots.go(arguments[1:], options)
                return function(*arguments, **options)
            # Unless acknowledged late, a task that was begun is not delivered again.
            delivery: dict[str, Any] = request.delivery_info or {}
            redelivered = bool(task.acks_late and delivery.get("redelivered"))
            key = f"{request.id}:{request.retries}"
            wait = slots.wait(key, arguments[1:], options, may_have_run=redelivered)
            if wait:
                request.retries -= 1  # `retry` adds it again: this one is not the task's own
                raise task.retry(countdown=wait, max_retries=request.retries + 1)
            return function(*arguments, **options)

        return run

    return around
