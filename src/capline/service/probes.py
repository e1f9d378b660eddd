"""Health checks: is the process alive, and can it decide?

`/readyz` tries whether the store would record a new log, so it says what a decision would meet: where an outage is
answered with `allow`, the service is ready in one too, since a balancer that took all instances out would refuse
everybody.
"""

import asyncio
from http import HTTPStatus
from typing import NotRequired, TypedDict

from capline.limiter.aio import AsyncLimiter
from capline.limiter.policies.segments import SegmentSource
from capline.model.errors import StoreDamagedError, StoreError, StoreUnavailableError
from capline.service.http.app import Reply, Request, Route
from capline.service.http.problems import Problem
from capline.service.verbs.configuration import configuration_state
from capline.service.verbs.segments import figures

READY_WITHIN_S = 5.0
"""Longer than a store's usual deadline."""

OK = b'{"status":"ok"}'


class SegmentsServed(TypedDict):
    """The version, seconds since it was built and since it was known to be the newest, and what is wrong."""

    version: str | None
    age: float | None
    behind: float | None
    error: str | None


class Alive(TypedDict):
    """The process answers."""

    status: str


class Ready(Alive):
    """The store answers, and what else is to be known."""

    store: NotRequired[str]
    configuration: NotRequired[str]
    missing_segments: NotRequired[dict[str, list[str]]]
    segments: NotRequired[SegmentsServed]


def probes(
    limiter: AsyncLimiter,
    segments: SegmentSource | None = None,
    *,
    allows: bool = False,
    draining: asyncio.Event | None = None,
) -> dict[str, Route]:
    """`/healthz` and `/readyz`; `allows` says that an outage of the store lets everything pass.

    Once `draining` is set it is unready. Old segments do not make it so: the last good ones serve, and it says how old.
    """

    async def alive(_request: Request) -> Reply:
        """The process answers."""
        return Reply(OK)

    async def ready(_request: Request) -> Reply:
        """Decisions are answered: by the store, or in an outage by `on_store_error` allow."""
        if draining is not None and draining.is_set():
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "it is told to end; ask another instance")
        state: dict[str, object] = {}
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                await limiter.try_write()
        except (TimeoutError, StoreError) as error:
            why = str(error) or f"the store did not answer within {READY_WITHIN_S:g} s"
            if isinstance(error, StoreDamagedError) or not allows:
                raise error if isinstance(error, StoreError) else StoreUnavailableError(why) from None
            state["store"] = why
        state |= configuration_state(limiter)
        if segments is not None:
            state["segments"] = figures(segments)
        return Reply({"status": "ok", **state} if state else OK)

    return {
        "/healthz": Route({"GET": alive}, roles=(), gives={"GET": Alive}),
        "/readyz": Route({"GET": ready}, roles=(), gives={"GET": Ready}),
    }
