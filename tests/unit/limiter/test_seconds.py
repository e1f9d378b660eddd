"""Seconds at the edge are microseconds inside, and the same ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capline import CaplineError, Limiter, ManualClock, Policy
from capline.limiter.arguments.checks import seconds_us

MOST_US = 10**15


@given(st.integers(0, MOST_US))
def test_microseconds_shown_in_seconds_are_those_microseconds(time_us: int) -> None:
    assert seconds_us(time_us / 1e6, "max_wait") == time_us


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, 2e9])
def test_more_than_a_billion_seconds_are_a_billion(seconds: float) -> None:
    assert seconds_us(seconds, "max_wait") == MOST_US


@pytest.mark.parametrize("seconds", [float("nan"), -1e-9, -1, "1", None])
def test_what_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(CaplineError, match="max_wait is a number of seconds"):
        seconds_us(seconds, "max_wait")


def test_who_waits_as_long_as_the_answer_says_gets_the_slot() -> None:
    clock = ManualClock(10**15)
    with Limiter("memory://", [Policy("p", ["1/s"])], clock=clock) as limiter:
        assert limiter.decide("p", "s")
        clock.advance_us(1_000_000 - 514_871)
        refused = limiter.schedule("p", "s", max_wait=0.5)
        assert refused.retry_after_us == 514_871
        assert limiter.schedule("p", "s", max_wait=refused.retry_after).wait_us == 514_871


def test_a_slot_is_no_earlier_than_it_is_wanted() -> None:
    with Limiter("memory://", [Policy("p", ["1/s"])], clock=ManualClock(10**15)) as limiter:
        assert limiter.schedule("p", "s", not_before=0.514871).wait_us == 514_871
