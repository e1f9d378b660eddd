"""Envoy's messages in and out: `ShouldRateLimit` of the request and response of `envoy.service.ratelimit.v3`.

The rule: the same bytes are the same request. Its plan, and a response in which all that stays is filled in, are kept
by these bytes until the configuration changes; what is decided is not kept. Envoy asks the same of a route again and
again, and reading a message costs more than deciding it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capline.model.errors import InvalidValueError
from capline.service.envoy.messages import OK, OVER_LIMIT, UNIT_NAMES, UNIT_NUMBERS, DecodeError, rls
from capline.service.envoy.plan import Ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.service.envoy.plan import Plan, Status
    from capline.service.envoy.ratelimit import RateLimit

__all__ = ["Asked", "Service"]

MOST_KEPT = 4096
LONGEST_KEPT_BYTES = 512
"""Requests that are kept, past which all go, and how long one may be: some 10 MB."""


class Asked:
    """One request: its plan, and its response but for what is decided."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._response = rls.RateLimitResponse(statuses=[_constant(status) for status in plan.statuses])
        self._parts: list[tuple[int, Any, Any]] = []
        for part in plan.parts:
            status = self._response.statuses[part.place]
            status.current_limit.name = part.rule.name
            status.current_limit.requests_per_unit = part.rule.quota
            status.current_limit.unit = UNIT_NUMBERS[part.rule.unit]
            status.duration_until_reset.SetInParent()
            self._parts.append((part.place, status, status.duration_until_reset))

    def response(self, statuses: Sequence[Status], *, over: bool) -> Any:
        """The response; it is written over by the next one."""
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
        self._kept: dict[bytes, Asked] = {}
        self._changes = ratelimit.changes

    async def answer(self, data: bytes) -> bytes:
        """The response to a request, both as bytes.

        Raises `InvalidValueError` for a request that can have no answer, `StoreError` in an outage.
        """
        asked = self._kept.get(data) if self._changes == self._ratelimit.changes else None
        if asked is None:
            asked = self._asked(data)
        over, statuses = await self._ratelimit.decide(asked.plan)
        return asked.response(statuses, over=over).SerializeToString()

    async def answer_message(self, request: Any) -> Any:
        """The response to a request; raises as `answer`."""
        asked = self._of(request)
        over, statuses = await self._ratelimit.decide(asked.plan)
        return asked.response(statuses, over=over)

    def _asked(self, data: bytes) -> Asked:
        try:
            request = rls.RateLimitRequest.FromString(data)
        except DecodeError:
            raise InvalidValueError("the message is not a RateLimitRequest") from None
        asked = self._of(request)
        if self._changes != self._ratelimit.changes or len(self._kept) >= MOST_KEPT:
            self._kept.clear()
            self._changes = self._ratelimit.changes
        if len(data) <= LONGEST_KEPT_BYTES:
            self._kept[data] = asked
        return asked

    def _of(self, request: Any) -> Asked:
        addend: int = request.hits_addend or 1
        asks = [_ask(descriptor, addend) for descriptor in request.descriptors]
        return Asked(self._ratelimit.plan(request.domain, asks))


def _ask(descriptor: Any, addend: int) -> Ask:
    entries = tuple([(entry.key, entry.value) for entry in descriptor.entries])
    own: bool = descriptor.HasField("hits_addend")
    limit = None
    if descriptor.HasField("limit"):
        limit = descriptor.limit.requests_per_unit, UNIT_NAMES.get(descriptor.limit.unit, "")
    return Ask(entries, descriptor.hits_addend.value if own else addend, own, limit)


def _constant(status: Status) -> Any:
    return rls.RateLimitResponse.DescriptorStatus(code=OK, limit_remaining=status.remaining)
