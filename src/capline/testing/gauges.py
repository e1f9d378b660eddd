"""Conformance beyond the sliding log of rolling windows: calendars, quiet hours, other algorithms, joint attempts."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from capline.model.attempt import Attempt
from capline.model.clock import ManualClock
from capline.model.errors import CaplineError, IdConflictError, InvalidValueError, PolicyError, UnknownNameError
from capline.testing.setting import DAY, SECOND, START_US, StoreSetting

__all__ = ["GaugeConformance"]

HOUR = 3600 * SECOND
ALGORITHMS = ("sliding_log", "bucketed", "sliding_counter", "gcra")
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


class GaugeConformance(StoreSetting):
    """The checks; `capline.testing.conformance` adds them to a store's."""

    def when(self, local: str, zone: str) -> None:
        """Set the clock to this local time, the earlier one where it comes twice."""
        at = datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone))
        self.clock.advance_us(round(at.timestamp()) * SECOND - self.clock.now_us())

    # --- calendar limits --------------------------------------------------------------------------------------

    def test_a_calendar_day_begins_at_midnight_where_the_subject_is(self) -> None:
        limiter = self.one("3/calendar-day", zone="Asia/Singapore")
        self.when("2024-05-06 23:59:59", "Asia/Singapore")
        assert [bool(limiter.decide("p", "s")) for _ in range(4)] == [True, True, True, False]
        refused = limiter.decide("p", "s")
        assert (refused.retry_after, refused.reset_after, refused.remaining) == (1.0, 1.0, 0)
        assert str(refused.limit) == "3/calendar-day"
        elsewhere = limiter.decide("p", "other", zone="Europe/Berlin")
        assert elsewhere.reset_after == 6 * 3600 + 1
        self.clock.advance_us(SECOND - 1)
        assert not limiter.decide("p", "s")
        self.clock.advance_us(1)
        assert [bool(limiter.decide("p", "s")) for _ in range(4)] == [True, True, True, False]

    @pytest.mark.parametrize(
        ("zone", "local", "hours"),
        [
            ("Europe/Berlin", "2024-03-31 00:00", 23),
            ("Europe/Berlin", "2024-10-27 00:00", 25),
            ("America/Sao_Paulo", "2018-11-04 01:00", 23),  # midnight itself is skipped
            ("America/Sao_Paulo", "2018-02-17 00:00", 25),  # the hour before midnight comes twice
            ("Pacific/Apia", "2011-12-29 00:00", 24),  # the next day is skipped
            ("Australia/Lord_Howe", "2024-04-07 00:00", 24.5),
            ("Asia/Kathmandu", "2024-04-07 00:00", 24),
            ("America/Havana", "2024-11-03 00:00", 25),  # midnight strikes twice
        ],
    )
    def test_a_calendar_day_is_as_long_as_it_is(self, zone: str, local: str, hours: float) -> None:
        limiter = self.one("2/calendar-day", zone=zone)
        self.when(local, zone)
        assert limiter.decide("p", "s").reset_after == hours * 3600
        self.clock.advance_us(round(hours * HOUR) - 1000)
        assert limiter.decide("p", "s")
        assert limiter.decide("p", "s").retry_after_us == 1000
        self.clock.advance_us(1000)
        assert limiter.decide("p", "s", 2)

    def test_a_calendar_week_begins_on_monday_beside_a_rolling_limit_on_the_same_log(self) -> None:
        limiter = self.one("4/calendar-week", "2/24h", zone="Europe/Berlin")
        self.when("2024-05-03 12:00", "Europe/Berlin")  # a Friday
        assert [bool(limiter.decide("p", "s")) for _ in range(3)] == [True, True, False]
        self.clock.advance_us(DAY)
        assert [bool(limiter.decide("p", "s")) for _ in range(2)] == [True, True]
        refused = limiter.decide("p", "s")
        assert str(refused.limit) == "4/calendar-week"
        self.clock.advance_us(refused.retry_after_us - 1)
        assert not limiter.peek("p", "s")
        self.clock.advance_us(1)
        assert self.clock.now_us() == datetime(2024, 5, 6, tzinfo=ZoneInfo("Europe/Berlin")).timestamp() * SECOND
        assert [bool(limiter.decide("p", "s")) for _ in range(3)] == [True, True, False]

    def test_slots_of_a_calendar_limit_are_taken_on_days_to_come(self) -> None:
        limiter = self.one("2/calendar-day", zone="Europe/Berlin")
        self.when("2024-03-30 12:00", "Europe/Berlin")
        waits = [round(limiter.schedule("p", "s").wait) for _ in range(6)]
        assert waits == [0, 0, 12 * 3600, 12 * 3600, 35 * 3600, 35 * 3600]
        assert not limiter.decide("p", "s")

    def test_a_segment_may_have_a_calendar_limit_over_the_history_of_a_rolling_one(self) -> None:
        limiter = self.one("5/24h", zone="UTC", by_segment={"new": ["2/calendar-day"]})
        self.when("2024-05-06 23:00", "UTC")
        assert limiter.decide("p", "s")
        assert limiter.decide("p", "s")
        assert limiter.decide("p", "s", segment="new").retry_after == 3600.0
        assert limiter.decide("p", "s").remaining == 2

    def test_rows_of_a_batch_have_zones(self) -> None:
        limiter = self.one("1/calendar-day", zone="UTC", by_segment={"vip": ["2/calendar-day"]})
        self.when("2024-05-06 20:00", "UTC")
        zones, segments = [None, "Asia/Tokyo", "America/New_York"], [None, "vip", None]
        subjects, codes = [f"s{i}" for i in range(6)], np.array([0, 1, 2, 0, 1, 2])
        answers = limiter.decide_many("p", subjects, segment=segments, zone=zones, codes=codes)
        assert answers.allowed.all()
        hours = (answers.reset_after_us / HOUR).tolist()
        assert hours == [4.0, 19.0, 8.0, 4.0, 19.0, 8.0]
        assert answers.remaining.tolist() == [0, 1, 0, 0, 1, 0]
        again = limiter.peek_many("p", subjects, zone="Asia/Tokyo")
        assert again.retry_after_us.tolist() == [19 * HOUR] * 6
        one_by_one = limiter.decide_batch([Attempt("p", one, zone="Asia/Tokyo") for one in subjects])
        assert [one.retry_after_us for one in one_by_one] == [19 * HOUR] * 6

    def test_a_zone_that_nobody_knows_is_an_error_that_says_so(self) -> None:
        limiter = self.one("1/calendar-day")
        with pytest.raises(UnknownNameError, match="no time zone 'Mars/Olympus'; use a name of the IANA database"):
            limiter.decide("p", "s", zone="Mars/Olympus")
        assert isinstance(limiter.decide_batch([Attempt("p", "s", zone="Mars/Olympus")])[0], UnknownNameError)
        assert limiter.peek("p", "s")

    # --- gaps and quiet hours ---------------------------------------------------------------------------------

    def test_a_minimum_gap(self) -> None:
        limiter = self.one("gap 30 minutes", "3/day")
        assert limiter.decide("p", "s")
        self.at(29 * 60)
        assert limiter.decide("p", "s").retry_after == 60.0
        self.at(30 * 60)
        assert limiter.decide("p", "s")

    def test_quiet_hours_refuse_with_the_instant_when_it_may_go(self) -> None:
        limiter = self.one("not between 22:00 and 08:00", "3/day", zone="Asia/Singapore")
        self.when("2024-05-06 21:59:59", "Asia/Singapore")
        assert limiter.decide("p", "s")
        self.clock.advance_us(SECOND)
        refused = limiter.decide("p", "s")
        assert (refused.allowed, refused.retry_after, refused.remaining) == (False, 36_000.0, 0)
        assert str(refused.limit) == "not between 22:00 and 08:00"
        assert limiter.decide("p", "s", zone="Europe/Berlin"), "it is four in the afternoon there"
        self.clock.advance_us(10 * HOUR - 1)
        assert limiter.peek("p", "s").retry_after_us == 1
        self.clock.advance_us(1)
        assert limiter.decide("p", "s")

    def test_what_frees_in_quiet_hours_is_put_off_until_they_end(self) -> None:
        limiter = self.one("not between 22:00 and 08:00", "1/24h", zone="UTC")
        self.when("2024-05-06 08:00", "UTC")
        assert limiter.decide("p", "s")
        self.when("2024-05-06 12:00", "UTC")
        refused = limiter.decide("p", "s")
        assert (refused.retry_after, str(refused.limit)) == (20 * 3600.0, "1/day")
        later = self.one("not between 22:00 and 08:00", "1/12h", zone="UTC")
        assert later.decide("p", "t")
        refused = later.decide("p", "t")
        assert (refused.retry_after, str(refused.limit)) == (20 * 3600.0, "1/12h"), (
            "it is put off, but not refused by them"
        )
        assert later.schedule("p", "t").wait == 20 * 3600.0
        assert later.schedule("p", "t", max_wait=3600).retry_after == 32 * 3600.0 - 12 * 3600.0 + 12 * 3600.0

    def test_quiet_hours_where_clocks_change(self) -> None:
        limiter = self.one("not between 01:30 and 02:30", zone="Europe/Berlin")
        self.when("2024-03-31 01:30", "Europe/Berlin")  # at 2 it is 3
        assert limiter.decide("p", "s").retry_after == 30 * 60.0
        self.when("2024-10-27 01:30", "Europe/Berlin")  # at 3 it is 2 again
        assert limiter.decide("p", "s").retry_after == 3600.0
        self.clock.advance_us(HOUR)
        assert limiter.decide("p", "s")
        self.clock.advance_us(HOUR // 2)
        assert limiter.decide("p", "s").retry_after == 30 * 60.0

    def test_quiet_hours_that_leave_no_room_refuse_for_ever(self) -> None:
        limiter = self.one("not between 08:00 and 20:00", "not between 19:00 and 09:00", "9/day")
        assert limiter.decide("p", "s").retry_after_us is None
        assert limiter.schedule("p", "s").retry_after_us is None

    def test_quiet_hours_alone_leave_the_rest_of_the_day(self) -> None:
        limiter = self.one("not between 22:00 and 08:00")
        self.when("2024-05-06 12:00", "UTC")
        assert limiter.decide("p", "s").remaining > 1 << 50
        assert len(limiter.explain("p", "s").hits) == 1

    # --- refusals that count ----------------------------------------------------------------------------------

    @pytest.mark.parametrize(("count_denied", "allowed"), [(False, 3), (True, 1)])
    def test_what_is_refused_may_keep_the_door_shut(self, count_denied: bool, allowed: int) -> None:
        limiter = self.one("3/10s", count_denied=count_denied)
        assert all(limiter.decide("p", "s") for _ in range(3))
        self.at(9)
        assert not limiter.decide("p", "s")
        assert not limiter.decide("p", "s")
        self.at(10)
        assert sum(bool(limiter.decide("p", "s")) for _ in range(3)) == allowed

    def test_a_refusal_that_counts_is_in_its_own_answer(self) -> None:
        limiter = self.one("1/10s", count_denied=True)
        assert limiter.decide("p", "s")
        self.at(9)
        assert limiter.peek("p", "s").retry_after == 1.0
        assert limiter.decide("p", "s").retry_after == 10.0
        self.at(19 - 1e-6)
        assert limiter.peek("p", "s").retry_after_us == 1
        self.at(19)
        assert limiter.decide("p", "s")

    def test_only_decide_counts_its_refusals(self) -> None:
        limiter = self.one("1/10s", count_denied=True)
        assert limiter.decide("p", "s")
        self.at(5)
        assert not limiter.peek("p", "s")
        assert not limiter.schedule("p", "s", max_wait=1)
        assert not limiter.decide_all([Attempt("p", "s")])
        self.at(10)
        assert limiter.peek("p", "s")
        answers = limiter.decide_many("p", ["s"] * 4)
        assert answers.allowed.tolist() == [True, False, False, False]
        assert len(limiter.explain("p", "s").hits) == 3, "of a hammered log the newest 2 units and a hit are kept"

    def test_hammering_leaves_a_short_log_and_a_large_cost_no_larger_one(self) -> None:
        limiter = self.one("3/10s", count_denied=True)
        for _ in range(50):
            self.clock.advance_us(1000)
            limiter.decide("p", "s")
        limiter.decide("p", "s", (1 << 53) - 1)
        hits = limiter.explain("p", "s").hits
        assert len(hits) <= 8
        assert sum(hit.units for hit in hits) <= 12
        self.clock.advance_us(10 * SECOND + 1)
        assert limiter.decide("p", "s", 3)

    def test_a_slot_is_not_lost_to_a_refusal_that_counts(self) -> None:
        limiter = self.one("2/10s", count_denied=True)
        assert limiter.decide("p", "s", 2)
        slot = limiter.schedule("p", "s", not_before=30)
        assert not limiter.decide("p", "s")
        assert limiter.refund("p", "s", slot.hit)

    # --- other algorithms -------------------------------------------------------------------------------------

    @each_algorithm
    def test_a_quota_at_once_and_no_more_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.one("5/10s", algorithm=algorithm)
        decisions = [limiter.decide("p", "s") for _ in range(6)]
        assert [one.remaining for one in decisions] == [4, 3, 2, 1, 0, 0]
        assert [bool(one) for one in decisions] == [True] * 5 + [False]
        assert len({one.hit for one in decisions}) == 6
        never = limiter.decide("p", "s", 6)
        assert (never.allowed, never.retry_after_us) == (False, None)

    @each_algorithm
    def test_refused_until_retry_after_and_allowed_at_it_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.one("7/11s", "20/100s", algorithm=algorithm)
        for step in range(60):
            self.clock.advance_us(300_007)
            cost = 1 + step % 3
            refused = limiter.peek("p", "s", cost)
            if refused.allowed:
                assert limiter.decide("p", "s", cost).remaining == refused.remaining
                continue
            self.clock.advance_us(refused.retry_after_us - 1)
            assert not limiter.peek("p", "s", cost)
            self.clock.advance_us(1)
            assert limiter.decide("p", "s", cost)

    @each_algorithm
    def test_an_empty_log_after_reset_after_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.one("5/10s", algorithm=algorithm)
        for cost in (1, 3):
            decision = limiter.decide("p", "s", cost)
            self.clock.advance_us(700_000)
        assert decision.reset_after_us is not None
        self.clock.advance_us(decision.reset_after_us - 700_000)
        assert limiter.peek("p", "s", 5)
        assert limiter.peek("p", "s").reset_after_us == limiter.peek("p", "fresh").reset_after_us

    @each_algorithm
    def test_an_id_is_one_consumption_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.one("5/10s", algorithm=algorithm)
        assert limiter.decide("p", "s")
        first = limiter.decide("p", "s", 2, id="x")
        again = limiter.decide("p", "s", 2, id="x")
        assert (again.allowed, again.hit, again.remaining) == (True, first.hit, 2)
        assert limiter.decide("p", "s", 2)
        with pytest.raises(IdConflictError):
            limiter.decide("p", "s", 1, id="x")
        assert limiter.refund("p", "s", first.hit)
        assert not limiter.refund("p", "s", first.hit), "once"
        assert limiter.decide("p", "s", 2, id="x").hit != first.hit
        assert not limiter.decide("p", "s")

    @each_algorithm
    def test_a_refund_gives_its_units_back_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.one("5/10s", algorithm=algorithm)
        assert limiter.decide("p", "s", 2)
        hit = limiter.decide("p", "s", 3).hit
        assert not limiter.decide("p", "s")
        assert limiter.refund("p", "s", hit, 3)
        assert limiter.decide("p", "s", 3).remaining == 0
        assert not limiter.refund("p", "s", START_US - 100 * SECOND)

    @each_algorithm
    def test_slots_are_taken_in_order_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.one("2/10s", algorithm=algorithm)
        slots = [limiter.schedule("p", "s") for _ in range(6)]
        waits = [slot.wait_us for slot in slots]
        assert waits == sorted(waits)
        assert waits[0] == 0
        assert waits[-1] >= 15 * SECOND
        assert not limiter.decide("p", "s"), "nobody jumps the queue"
        assert limiter.schedule("p", "s", max_wait=1).allowed is False
        if algorithm != "sliding_log":
            return
        assert limiter.refund("p", "s", slots[-1].hit)

    @each_algorithm
    def test_a_clock_that_steps_back_gives_no_room_under_any_algorithm(self, algorithm: str) -> None:
        limiter = self.one("3/10s", algorithm=algorithm)
        assert limiter.decide("p", "s", 3)
        self.at(-7200)
        assert not limiter.decide("p", "s")
        self.at(0)
        assert not limiter.decide("p", "s")

    @each_algorithm
    def test_a_batch_equals_one_by_one_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.limiter(*(self.policy(name, ["3/10s"], algorithm=algorithm) for name in ("one", "many")))
        for step in range(4):
            subjects = [f"s{i * (step + 1) % 5}" for i in range(30)]
            singles = [limiter.decide("one", subject) for subject in subjects]
            answers = limiter.decide_many("many", subjects)
            assert answers.allowed.tolist() == [one.allowed for one in singles]
            assert answers.remaining.tolist() == [one.remaining for one in singles]
            self.clock.advance_us(4 * SECOND + 1)

    @each_algorithm
    def test_erase_and_sweep_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.one("3/10s", algorithm=algorithm)
        assert limiter.decide("p", "s", 3, id="x")
        assert limiter.erase("s") > 0
        assert limiter.decide("p", "s", 3, id="x")
        self.clock.advance_us(60 * SECOND)
        limiter.sweep()
        assert limiter.decide("p", "s", 3, id="x")

    def test_a_bucketed_log_errs_only_towards_refusing(self) -> None:
        exact, bucketed = (
            self.one("20/60s"),
            self.limiter(self.policy("b", ["20/60s"], algorithm="bucketed", granularity="5s")),
        )
        refused = 0
        for step in range(200):
            self.clock.advance_us(1_700_003 + step % 7 * 10_001)
            coarse = bucketed.decide("b", "s")
            refused += not coarse
            if coarse:
                assert exact.decide("p", "s"), "what the sums let in, the log does"
        assert 30 < refused < 120
        assert len(bucketed.explain("b", "s").hits) <= 13

    def test_a_day_in_minutes_is_1440_sums(self) -> None:
        limiter = self.one("100000/day", algorithm="bucketed", granularity="1min")
        for _ in range(300):
            self.clock.advance_us(20 * SECOND)
            assert limiter.decide("p", "s", 7)
        assert len(limiter.explain("p", "s").hits) == 101

    def test_two_weighted_windows(self) -> None:
        limiter = self.one("10/10s", algorithm="sliding_counter")
        assert START_US % (10 * SECOND) == 0
        self.at(4)
        assert limiter.decide("p", "s", 10)
        self.at(15)
        half = limiter.peek("p", "s")
        assert (half.allowed, half.remaining) == (True, 4)
        assert limiter.decide("p", "s", 5)
        refused = limiter.decide("p", "s", 3)
        assert refused.retry_after_us == pytest.approx(3 * SECOND, abs=20)
        assert limiter.decide("p", "s").retry_after_us == pytest.approx(SECOND, abs=20)
        self.at(20)
        assert limiter.peek("p", "s").remaining == 4, "of this window none, of the one before all 5"

    def test_gcra_spaces_out_what_comes_after_a_burst(self) -> None:
        limiter = self.one("10/10s", algorithm="gcra")
        assert limiter.decide("p", "s", 10).reset_after == 10.0
        for _ in range(5):
            refused = limiter.decide("p", "s")
            assert refused.retry_after == 1.0
            self.clock.advance_us(SECOND)
            assert limiter.decide("p", "s").remaining == 0
        waits = [limiter.schedule("p", "s").wait for _ in range(3)]
        assert waits == [1.0, 2.0, 3.0]

    def test_limits_of_gcra_that_do_not_divide_are_exact(self) -> None:
        limiter = self.one("7/11us", algorithm="gcra")
        assert limiter.decide("p", "s", 7)
        self.clock.advance_us(1)
        assert not limiter.decide("p", "s"), "a unit takes 11/7 of a microsecond"
        self.clock.advance_us(1)
        assert limiter.decide("p", "s")
        self.clock.advance_us(9)
        assert limiter.peek("p", "s").remaining == 5

    @pytest.mark.parametrize("algorithm", ALGORITHMS[1:])
    def test_a_log_that_has_not_every_hit_is_not_exported(self, algorithm: str) -> None:
        limiter = self.limiter(self.policy("p", ["3/10s"], algorithm=algorithm), self.policy("q", ["3/10s"]))
        assert limiter.decide("p", "s")
        assert limiter.decide("q", "s")
        with pytest.raises(PolicyError, match="does not keep every hit"):
            list(limiter.export(["p"]))
        assert [record.log for record in limiter.export()] == ["q"]

    @each_algorithm
    def test_explain_tells_what_is_left_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.one("5/10s", "8/60s", algorithm=algorithm)
        assert limiter.decide("p", "s", 3, id="x")
        why = limiter.explain("p", "s", ids=["x"])
        assert [(str(one.limit), one.used, one.remaining) for one in why.limits] == [
            ("5/10s", 3, 2),
            ("8/minute", 3, 5),
        ]
        assert [one.binds for one in why.limits] == [True, False]
        assert [(hit.units, hit.id) for hit in why.hits] == [(3, "x")]

    # --- several subjects in one attempt ----------------------------------------------------------------------

    def joint(self) -> Any:
        """A user, a campaign, a tenant."""
        return self.limiter(
            self.policy("user", ["2/day"]), self.policy("campaign", ["5/day"]), self.policy("tenant", ["8/h"])
        )

    def test_all_or_nothing(self) -> None:
        limiter = self.joint()

        def ask(user: str, cost: int = 1) -> Any:
            parts = [Attempt("user", user, cost), Attempt("campaign", "c", cost), Attempt("tenant", "t", cost)]
            return limiter.decide_all(parts)

        first = ask("a", 2)
        assert (first.allowed, first.remaining, str(first.limit), first.binds) == (True, 0, "2/day", 0)
        assert len(first.hits) == 3
        refused = ask("a")
        assert (refused.allowed, refused.hits, str(refused.limit), refused.binds) == (False, (), "2/day", 0)
        assert refused.retry_after == 86_400.0
        assert limiter.peek("campaign", "c").remaining == 2, "the refusal took nothing from the campaign"
        assert ask("b", 2)
        refused = ask("c", 2)
        assert (str(refused.limit), refused.binds) == ("5/day", 1)
        assert limiter.peek("user", "c").remaining == 1
        assert limiter.peek("tenant", "t").remaining == 3
        assert ask("c")
        assert limiter.decide_all([Attempt("user", "d", 3), Attempt("tenant", "t")]).retry_after_us is None

    def test_a_joint_attempt_is_looked_at_and_given_back(self) -> None:
        limiter = self.joint()
        parts = [Attempt("user", 7, 2), Attempt("campaign", "c", 4)]
        looked = limiter.peek_all(parts)
        assert (looked.allowed, looked.hits) == (True, ())
        taken = limiter.decide_all(parts)
        assert taken.remaining == looked.remaining == 0
        assert not limiter.peek_all(parts)
        assert limiter.refund_all(parts, taken.hits) == 2
        assert limiter.refund_all(parts, taken.hits) == 0
        assert limiter.decide_all(parts)

    def test_ids_make_a_joint_attempt_one_consumption(self) -> None:
        limiter = self.joint()
        parts = [Attempt("user", "a", id="x"), Attempt("campaign", "c", id="x")]
        first = limiter.decide_all(parts)
        again = limiter.decide_all(parts)
        assert (again.allowed, again.hits) == (True, first.hits)
        assert limiter.peek("campaign", "c").remaining == 3
        assert limiter.refund("user", "a", first.hits[0])
        anew = limiter.decide_all(parts)
        assert anew.hits[1] == first.hits[1], "of the campaign it is the same one still"
        assert anew.hits[0] != first.hits[0]
        with pytest.raises(IdConflictError):
            limiter.decide_all([Attempt("user", "a", 2, id="x"), Attempt("tenant", "t")])
        assert limiter.peek("tenant", "t").remaining == 7

    def test_a_joint_attempt_waits_for_all_of_its_parts(self) -> None:
        limiter = self.limiter(
            self.policy("quick", ["1/10s"]),
            self.policy("slow", ["1/60s"]),
            self.policy("night", ["not between 22:00 and 08:00"]),
        )
        self.when("2024-05-06 21:59:30", "UTC")
        assert limiter.decide_all([Attempt("quick", "s"), Attempt("slow", "s")])
        refused = limiter.decide_all([Attempt("quick", "s"), Attempt("slow", "s")])
        assert (refused.retry_after, refused.binds) == (60.0, 1)
        refused = limiter.decide_all([Attempt("quick", "s"), Attempt("night", "s")])
        assert refused.retry_after == 10.0
        refused = limiter.decide_all([Attempt("slow", "s"), Attempt("night", "s")])
        assert (refused.retry_after, refused.binds) == (36_030.0, 0), "the minute is over at night"

    @each_algorithm
    def test_a_joint_attempt_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.limiter(self.policy("p", ["3/10s"], algorithm=algorithm), self.policy("q", ["2/10s"]))
        parts = [Attempt("p", "s"), Attempt("q", "s")]
        assert [bool(limiter.decide_all(parts)) for _ in range(3)] == [True, True, False]
        assert limiter.peek("p", "s").remaining == 0
        assert limiter.decide("p", "s")

    def test_many_subjects_in_one_attempt(self) -> None:
        limiter = self.one("2/10s")
        parts = [Attempt("p", number) for number in range(16)]
        assert [bool(limiter.decide_all(parts)) for _ in range(3)] == [True, True, False]
        assert limiter.decide("p", 16)

    def test_what_cannot_be_one_attempt(self) -> None:
        limiter = self.joint()
        for wrong in (
            [],
            [Attempt("user", number) for number in range(17)],
            [Attempt("user", "a"), Attempt("user", "a")],
        ):
            with pytest.raises(InvalidValueError):
                limiter.decide_all(wrong)
        with pytest.raises(CaplineError):
            limiter.decide_all([Attempt("user", "a"), Attempt("nobody", "a")])
        with pytest.raises(CaplineError):
            limiter.refund_all([Attempt("user", "a")], [])
        assert limiter.peek("user", "a").remaining == 1

    def test_clocks_of_callers_do_not_part_a_joint_attempt(self) -> None:
        limiter = self.joint()
        behind = self.limiter(
            self.policy("user", ["2/day"]),
            self.policy("campaign", ["5/day"]),
            clock=ManualClock(START_US - 60 * SECOND),
        )
        assert limiter.decide("campaign", "c")
        if self.url == "memory://":
            return
        joint = behind.decide_all([Attempt("user", "a"), Attempt("campaign", "c")])
        assert joint.hits[1] == START_US + 1
        # Slots of a cluster are asked one after the other, each at a time of its own.
        own = {START_US - 60 * SECOND} if "+cluster" in self.url else set[int]()
        assert joint.hits[0] in {START_US + 1, *own}
