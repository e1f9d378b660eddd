"""The caller's clock: checked when it is given and each time it is read; and the last instant, which is one for all."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from capline.limiter.arguments.records import LogRecord
from capline.limiter.limiter import Limiter
from capline.model.attempt import Attempt
from capline.model.clock import LATEST_US
from capline.model.errors import CaplineError
from capline.testing.law.verbs.inputs import VERBS
from capline.testing.setting import DAY, SECOND, START_US, StoreSetting

LONGEST = "3660 days"

WITHOUT_CLOCK = {"decide_batch of none", "export", "erase", "sweep"}


class Shown:
    """A clock of the caller's own."""

    def __init__(self, now_us: Any) -> None:
        self.shown = now_us

    def now_us(self) -> Any:
        return self.shown


class ClockLaw(StoreSetting):
    """The checks."""

    def test_what_is_no_clock_is_refused_when_it_is_given(self) -> None:
        wrong: list[Any] = [time.time, time.time_ns, Shown, START_US, "now", object(), datetime.now(tz=UTC)]
        for clock in wrong:
            with pytest.raises(CaplineError, match=r"object with now_us\(\)") as caught:
                self.limiter(self.policy("p", ["1/day"]), clock=clock)
            assert isinstance(caught.value, TypeError)
            assert "\n" not in str(caught.value)

    def test_a_clock_that_shows_no_microsecond_is_refused_before_anything_is_recorded(self) -> None:
        clock = Shown(None)
        limiter = self.limiter(self.policy("p", ["2/10s"]), clock=clock)
        for kind, shown in (
            *((ValueError, wrong) for wrong in (START_US * 1000, -1, LATEST_US, 10**30)),
            *((TypeError, wrong) for wrong in (START_US / 1e6, float(START_US), None, "0")),
        ):
            clock.shown = shown
            for name in VERBS.keys() - WITHOUT_CLOCK:
                with pytest.raises(CaplineError, match="clock says") as caught:
                    VERBS[name](limiter)
                assert isinstance(caught.value, kind)
                assert "\n" not in str(caught.value)
        clock.shown = START_US
        assert limiter.explain("p", "s").hits == ()
        assert [limiter.decide("p", "s").remaining for _ in range(2)] == [1, 0]

    def test_a_refusal_of_the_clock_is_no_outage(self) -> None:
        clock = Shown(START_US * 1000)
        limiter = Limiter("memory://", [self.policy("p", ["1/day"])], clock=clock, on_store_error="allow")
        with pytest.raises(CaplineError, match="nanoseconds"):
            limiter.decide("p", "s")

    def test_slots_end_with_the_last_instant_and_what_was_taken_can_be_read(self) -> None:
        limiter = self.one(f"1/{LONGEST}")
        slots = [limiter.schedule("p", "s") for _ in range(30)]
        taken = [slot for slot in slots if slot.allowed]
        span_us = 3660 * DAY
        assert len(taken) == -(-(LATEST_US - START_US) // span_us)
        assert [slot.hit for slot in taken] == [START_US + i * span_us for i in range(len(taken))]
        for late in slots[len(taken) :]:
            assert (late.hit, late.retry_after_us) == (None, None)
            assert str(late.limit) == f"1/{LONGEST}"
        assert len(limiter.explain("p", "s").hits) == len(taken)
        assert not limiter.schedule("p", "s", max_wait=1e9)
        assert not limiter.decide("p", "s")
        assert limiter.refund("p", "s", taken[-1].hit)
        assert limiter.schedule("p", "s").hit == taken[-1].hit + 1

    def test_slots_end_with_the_last_instant_among_slots_of_any_cost(self) -> None:
        limiter = self.one(f"3/{LONGEST}")
        taken = [slot for slot in (limiter.schedule("p", "s", 1 + i % 3) for i in range(90)) if slot.allowed]
        assert 30 < len(taken) < 90
        assert max(slot.hit for slot in taken) < LATEST_US
        assert limiter.schedule("p", "s").retry_after_us is None
        assert [hit.stamp_us for hit in limiter.explain("p", "s").hits] == [slot.hit for slot in taken]

    @pytest.mark.parametrize("count_denied", [False, True])
    def test_the_last_microsecond_holds_one_hit(self, count_denied: bool) -> None:
        limiter = self.one("9/min", "20/day", count_denied=count_denied)
        self.clock.advance_us(LATEST_US - 2 - START_US)
        answers = [limiter.decide("p", "s") for _ in range(3)]
        assert [answer.hit for answer in answers] == [LATEST_US - 2, LATEST_US - 1, None]
        assert (answers[2].retry_after_us, answers[2].remaining, str(answers[2].limit)) == (None, 7, "9/minute")
        self.clock.advance_us(1)
        assert limiter.decide("p", "s", 2).retry_after_us is None
        assert not limiter.decide_all([Attempt("p", "s")])
        assert limiter.decide_many("p", ["s", "t", "s"]).allowed.tolist() == [False, True, False]
        assert [hit.stamp_us for hit in limiter.explain("p", "s").hits] == [LATEST_US - 2, LATEST_US - 1]

    def test_a_long_log_ends_with_the_last_instant(self) -> None:
        limiter = self.one("180/day", "400/week")
        self.clock.advance_us(LATEST_US - 150 - START_US)
        assert limiter.decide_many("p", ["s"] * 140).allowed.all()
        singles = [limiter.decide("p", "s") for _ in range(20)]
        assert [answer.hit for answer in singles if answer] == list(range(LATEST_US - 10, LATEST_US))
        assert {(answer.retry_after_us, answer.remaining) for answer in singles[10:]} == {(None, 30)}
        assert limiter.schedule("p", "s").retry_after_us is None
        assert len(limiter.explain("p", "s").hits) == 150

    def test_what_would_fit_after_the_last_instant_never_does(self) -> None:
        limiter = self.one("2/day")
        self.clock.advance_us(LATEST_US - 1000 - START_US)
        assert limiter.decide("p", "s")
        assert limiter.decide("p", "s")
        for refused in (limiter.decide("p", "s"), limiter.peek("p", "s", 2), limiter.schedule("p", "s")):
            assert (refused.allowed, refused.hit, refused.retry_after_us) == (False, None, None)

    def test_a_hit_of_the_past_is_of_an_instant_before_the_last(self) -> None:
        limiter = self.one("2/day")
        for stamp_us in (LATEST_US, -1):
            with pytest.raises(CaplineError, match="record 1"):
                limiter.load([LogRecord("p", "s", [(stamp_us, 1, 0)])])
        assert limiter.load([LogRecord("p", "s", [(LATEST_US - 1, 1, 0), (START_US - SECOND, 1, 0)])]).ahead == 1
        assert len(limiter.explain("p", "s").hits) == 1
