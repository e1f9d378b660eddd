"""What a person sees of capline's values in a shell, a log, a failed test."""

import pytest

from capline import AsyncLimiter, Limit, Limiter, ManualClock, Policy, SystemClock


@pytest.mark.parametrize("text", ["3/day", "1/250ms", "3/calendar-day", "not between 22:00 and 08:00"])
def test_a_limit_shows_as_it_is_written_and_reads_back(text: str) -> None:
    limit = Limit.parse(text)
    assert repr(limit) == f"Limit.parse({text!r})"
    assert eval(repr(limit)) == limit  # noqa: S307 - our own text


def test_a_decision_and_a_policy_show_limits_as_they_are_written() -> None:
    policy = Policy("p", ["3/day"])
    decision = Limiter("memory://", [policy]).decide("p", "s")
    assert "limit=Limit.parse('3/day'), remaining=2" in repr(decision)
    assert repr(decision.limits[0]).startswith("LimitStatus(limit=Limit.parse('3/day'), remaining=2, frees_in_us=")
    assert "limits=(Limit.parse('3/day'),)" in repr(policy)


def test_a_clock_shows_its_time() -> None:
    clock = ManualClock(start_us=5)
    clock.advance_us(7)
    assert repr(clock) == "ManualClock(start_us=12)"
    assert repr(SystemClock()) == "SystemClock()"


def test_a_limiter_shows_its_store_and_its_policies() -> None:
    with Limiter("memory://", [Policy("promo", ["3/day"])], namespace="shop") as limiter:
        assert repr(limiter) == "<Limiter memory://, namespace shop, policies promo>"
    assert repr(Limiter("memory://")) == "<Limiter memory://, namespace capline, policies none>"
    many = [Policy(f"p{number}", ["3/day"]) for number in range(9)]
    shown = "<AsyncLimiter memory://, namespace capline, policies p0, p1, p2, p3, p4 and 4 more>"
    assert repr(AsyncLimiter("memory://", many)) == shown


def test_a_limiter_never_shows_a_password() -> None:
    with Limiter("redis://ann:secret@127.0.0.1:1/0", []) as limiter:
        assert repr(limiter) == "<Limiter redis://ann:***@127.0.0.1:1/0, namespace capline, policies none>"


def test_columns_show_their_counts_and_no_rows() -> None:
    many = Limiter("memory://", [Policy("p", ["2/day"])]).decide_many("p", ["a", "a", "a", ""])
    assert repr(many) == "<Decisions of 4 rows: 2 allowed, 1 refused, 1 without an answer>"
