"""Envoy's messages in and out: `ShouldRateLimit` of the request and response of `envoy.service.ratelimit.v3`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capline.service.envoy.messages import OK, OVER_LIMIT, UNIT_NAMES, UNIT_NUMBERS, rls
from capline.service.envoy.ratelimit import Ask, Status

if TYPE_CHECKING:
    from capline.service.envoy.ratelimit import RateLimit

__all__ = ["answer"]


async def answer(ratelimit: RateLimit, request: Any) -> Any:
    """The response to a request; raises as `RateLimit.ask`."""
    addend: int = request.hits_addend or 1
    asks = [_ask(descriptor, addend) for descriptor in request.descriptors]
    over, statuses = await ratelimit.ask(request.domain, asks)
    return rls.RateLimitResponse(
        overall_code=OVER_LIMIT if over else OK, statuses=[_message(status) for status in statuses]
    )


def _ask(descriptor: Any, addend: int) -> Ask:
    entries = tuple([(entry.key, entry.value) for entry in descriptor.entries])
    own: bool = descriptor.HasField("hits_addend")
    limit = None
    if descriptor.HasField("limit"):
        limit = descriptor.limit.requests_per_unit, UNIT_NAMES.get(descriptor.limit.unit, "")
    return Ask(entries, descriptor.hits_addend.value if own else addend, own, limit)


def _message(status: Status) -> Any:
    code = OVER_LIMIT if status.over else OK
    rule = status.rule
    if rule is None or rule.unlimited:
        return rls.RateLimitResponse.DescriptorStatus(code=code, limit_remaining=status.remaining)
    seconds, us = divmod(status.reset_us, 1_000_000)
    return rls.RateLimitResponse.DescriptorStatus(
        code=code,
        current_limit={"name": rule.name, "requests_per_unit": rule.quota, "unit": UNIT_NUMBERS[rule.unit]},
        limit_remaining=status.remaining,
        duration_until_reset={"seconds": seconds, "nanos": us * 1000},
    )
