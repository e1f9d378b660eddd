"""Decide, peek, refund and wait, as a user writes it."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from typing import assert_type

from capline import Decision, Joint, Limit, Limiter, LimitExceeded, LimitStatus, ManualClock, Policy

clock = ManualClock(1_700_000_000_000_000)
limiter = Limiter("memory://", policies=[Policy("promo", ["3/day", Limit(10, 604_800_000_000)])], clock=clock)

decision = limiter.decide("promo", "user:42", cost=1, id=None)
assert_type(decision, Decision)
assert_type(decision.limit, Limit | None)
assert_type(decision.retry_after, float | None)
assert_type(decision.hit, int | None)
if decision:
    assert_type(limiter.refund("promo", "user:42", decision.hit), bool)
for state in decision.limits:
    assert_type(state, LimitStatus)
    assert_type(state.limit, Limit)
    assert_type(state.frees_in, float | None)
    assert_type(state.whole_in, float)
assert_type(decision.headers("draft-11"), dict[str, str])
assert_type(decision.headers(), dict[str, str])


def wrong() -> None:
    """What a checker refuses."""
    limiter.decide("promo", 3.5)  # pyright: ignore[reportArgumentType] - a subject is text or a whole number
    limiter.decide("promo", "user:42", id=7)  # pyright: ignore[reportArgumentType] - an id is text
    decision.headers("draft-12")  # pyright: ignore[reportArgumentType] - there is no such form
    decision.allowed = True  # pyright: ignore[reportAttributeAccessIssue] - it is frozen


try:
    with limiter.acquire("promo", "user:42", 3, timeout=0) as slot:
        assert_type(slot, Decision)
except LimitExceeded as refused:
    assert_type(refused.decision, Decision | Joint)
    assert_type(refused.decision.retry_after, float | None)
