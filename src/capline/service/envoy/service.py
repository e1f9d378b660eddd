"""Envoy's messages in and out: `ShouldRateLimit` of the request and response of `envoy.service.ratelimit.v3`.

The rule: the same bytes are the same request. Its plan is cached by these bytes until the configuration changes;
decisions are not cached. Envoy repeats its request for a route, and parsing a message costs more than deciding it. So
does building one: a prefilled response serves all requests under the same rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capline.model.errors import InvalidValueError
from capline.service.envoy.messages import OK, OVER_LIMIT, UNIT_NAMES, UNIT_NUMBERS, DecodeError, rls
from capline.service.envoy.plan import Descriptor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.service.envoy.plan import Plan, Status
    from capline.service.envoy.ratelimit import RateLimit

__all__ = ["Response", "Service"]

MOST_KEPT = 4096
LONGEST_KEPT_BYTES = 512
"""The most requests in the cache, which is then cleared, and the longest one: some 5 MB. As many responses."""


class Response:
    """A prefilled response, without what is decided: for all plans with the same rules at the same places."""

    def __init__(self, plan: Plan) -> None:
        self._response = rls.RateLimitResponse(statuses=[_constant(status) for status in plan.statuses])
        self._parts: list[tuple[int, Any, Any]] = []
        for part in plan.parts:
            status = self._response.statuses[part.place]
            status.current_limit.name = part.rule.name
            status.current_limit.requests_per_unit = part.rule.quota
            status.current_limit.unit = UNIT_NUMBERS[part.rule.unit]
            status.duration_until_reset.SetInParent()
            self._parts.append((part.place, status, status.duration_until_reset))

    def of(self, statuses: Sequence[Status], *, over: bool) -> Any:
        """The response; the next call overwrites it, so use it before anything is awaited."""
        response = self._response
        response.overall_code = OVER_LIMIT if over else OK
        for place, message, duration in self._parts:
            status = statuses[place]
            message.code = OVER_LIMIT if status.over else OK
            message.limit_remaining = status.remaining
            duration.seconds, us = divmod(status.reset_us, 1_000_000)
            duration.nanos = us * 1000
        return response


class Service:
    """Answers messages by what `ratelimit` decides."""

    def __init__(self, ratelimit: RateLimit) -> None:
        self._ratelimit = ratelimit
        self._kept: dict[bytes, tuple[Plan, Response]] = {}
        self._responses: dict[object, Response] = {}
        self._changes = ratelimit.changes

    async def answer(self, data: bytes) -> bytes:
        """The response to a request, both as bytes.

        Raises `InvalidValueError` for a request that can have no answer, `StoreError` in an outage.
        """
        planned = self._kept.get(data) if self._changes == self._ratelimit.changes else None
        if planned is None:
            planned = self._planned(data)
        plan, response = planned
        over, statuses = await self._ratelimit.decide(plan)
        return response.of(statuses, over=over).SerializeToString()

    async def answer_message(self, request: Any) -> Any:
        """The response to a request; raises as `answer`."""
        plan, response = self._of(request)
        over, statuses = await self._ratelimit.decide(plan)
        return response.of(statuses, over=over)

    def _planned(self, data: bytes) -> tuple[Plan, Response]:
        try:
            request = rls.RateLimitRequest.FromString(data)
        except DecodeError:
            raise InvalidValueError("the message is not a RateLimitRequest") from None
        planned = self._of(request)
        if self._changes != self._ratelimit.changes or len(self._kept) >= MOST_KEPT:
            self._kept.clear()
            self._changes = self._ratelimit.changes
        if len(data) <= LONGEST_KEPT_BYTES:
            self._kept[data] = planned
        return planned

    def _of(self, request: Any) -> tuple[Plan, Response]:
        addend: int = request.hits_addend or 1
        descriptors = [_descriptor(descriptor, addend) for descriptor in request.descriptors]
        plan = self._ratelimit.plan(request.domain, descriptors)
        response = self._responses.get(plan.form)
        if response is None:
            if len(self._responses) >= MOST_KEPT:
                self._responses.clear()
            response = self._responses[plan.form] = Response(plan)
        return plan, response


def _descriptor(descriptor: Any, addend: int) -> Descriptor:
    entries = tuple([(entry.key, entry.value) for entry in descriptor.entries])
    own: bool = descriptor.HasField("hits_addend")
    limit = None
    if descriptor.HasField("limit"):
        limit = descriptor.limit.requests_per_unit, UNIT_NAMES.get(descriptor.limit.unit, "")
    return Descriptor(entries, descriptor.hits_addend.value if own else addend, own, limit)


def _constant(status: Status) -> Any:
    return rls.RateLimitResponse.DescriptorStatus(code=OK, limit_remaining=status.remaining)
