"""The conformance suite: what every store must do, told in examples. Random histories are the state machine's part.

Each check is a method; `conformance(url)` makes a pytest class of them for one store. Time is a `ManualClock`, so no
check sleeps, but for the few that run real threads and processes.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from capline.limiter.limiter import Limiter
from capline.limiter.records import LogRecord, PastHit
from capline.model.attempt import Attempt
from capline.model.clock import SystemClock
from capline.model.errors import CaplineError, IdConflictError, LimitExceeded, StoreError, UnknownNameError
from capline.model.policy import Policy
from capline.testing.gauges import GaugeConformance
from capline.testing.setting import DAY, POPULATION, SECOND, START_US, Awaited

if TYPE_CHECKING:
    from collections.abc import Callable

    from capline.limiter.aio import AsyncLimiter
    from capline.model.decision import Decision

__all__ = ["Awaited", "StoreConformance", "conformance"]


def conformance(
    url: str | Callable[[], str], *, asynchronous: bool = False, layout: str = "subject"
) -> type[StoreConformance]:
    """A test class that holds the store at this URL to the law; `{tmp}` becomes an empty directory for each test.

    A function in place of the URL is called by each test: it may start the server at the first. `asynchronous` asks
    through `AsyncLimiter` instead; every policy has this `layout`. A store whose URL names a file or a server is also
    asked by several processes at once; one that lives in a process is not. Each test has a namespace of its own, so
    that one server may serve them all.
    """
    members = {"store_url": staticmethod(url_of(url)), "asynchronous": asynchronous, "layout": layout}
    return type("Conformance", (StoreConformance,), members)


def url_of(url: str | Callable[[], str]) -> Callable[[], str]:
    """The URL as a function that gives it."""
    return url if callable(url) else lambda: url


class StoreConformance(GaugeConformance):
    """The checks. A subclass names the store."""

    # --- the rule ---------------------------------------------------------------------------------------------

    def test_ten_per_two_seconds(self) -> None:
        limiter = self.one("10/2s")
        for i in range(5):
            self.at(i / 8)
            assert limiter.decide("p", "s")
        self.at(1.3)
        assert all(limiter.decide("p", "s") for _ in range(5))
        self.at(1.4)
        eleventh = limiter.decide("p", "s")
        assert not eleventh
        assert eleventh.retry_after == pytest.approx(0.6)

    def test_a_cost_above_the_quota_is_refused_for_ever(self) -> None:
        decision = self.one("10/2s").decide("p", "s", 11)
        assert (decision.allowed, decision.retry_after_us, decision.remaining, decision.hit) == (False, None, 10, None)

    def test_two_per_minute(self) -> None:
        limiter = self.one("2/min")
        assert limiter.decide("p", "s")
        self.at(10)
        assert limiter.decide("p", "s")
        self.at(20)
        refused = limiter.decide("p", "s")
        assert (refused.allowed, refused.remaining, refused.retry_after) == (False, 0, 40.0)
        assert refused.reset_after == 50.0

    def test_two_limits_hold_together_and_a_refusal_burns_neither(self) -> None:
        limiter = self.one("1/s", "2/min")
        assert [bool(limiter.decide("p", "s")) for _ in range(2)] == [True, False]
        self.at(1)
        assert limiter.decide("p", "s")

    def test_three_limits(self) -> None:
        limiter = self.one("2/s", "10/min", "20/h")
        for second in range(10):
            self.at(second)
            assert limiter.decide("p", "s")
        self.at(10)
        refused = limiter.decide("p", "s")
        assert (refused.allowed, refused.remaining, refused.retry_after, str(refused.limit)) == (
            False,
            0,
            50.0,
            "10/minute",
        )

    def test_a_hit_exactly_as_old_as_the_window_is_out(self) -> None:
        limiter = self.one("2/10s")
        verdicts: list[bool] = []
        for second in (0, 1, 9, 10):
            self.at(second)
            verdicts.append(bool(limiter.decide("p", "s")))
        assert verdicts == [True, True, False, True]

    def test_a_full_window_frees_at_once(self) -> None:
        limiter = self.one("3/10s")
        assert [bool(limiter.decide("p", "s")) for _ in range(3)] == [True] * 3
        self.at(9)
        assert [bool(limiter.decide("p", "s")) for _ in range(2)] == [False] * 2
        self.at(10)
        assert [bool(limiter.decide("p", "s")) for _ in range(4)] == [True, True, True, False]

    def test_refused_one_microsecond_before_retry_after_and_allowed_at_it(self) -> None:
        limiter = self.one("5/10s", "8/min")
        for seconds, cost in ((0, 2), (1, 2), (3, 1), (11.5, 2)):
            self.at(seconds)
            assert limiter.decide("p", "s", cost)
        for cost in (1, 2, 3, 5):
            refused = limiter.peek("p", "s", cost)
            if refused:
                continue
            self.clock.advance_us(refused.retry_after_us - 1)
            assert not limiter.peek("p", "s", cost)
            self.clock.advance_us(1)
            assert limiter.peek("p", "s", cost)
            self.at(11.5)

    def test_two_hits_in_one_instant_are_two_hits(self) -> None:
        limiter = self.one("3/day")
        decisions = [limiter.decide("p", "s") for _ in range(4)]
        assert [decision.remaining for decision in decisions] == [2, 1, 0, 0]
        stamps = [decision.hit for decision in decisions[:3]]
        assert stamps == sorted(set(stamps))

    def test_a_quota_of_zero_always_refuses(self) -> None:
        decision = self.one("0/day").decide("p", "s")
        assert (decision.allowed, decision.retry_after_us, decision.remaining) == (False, None, 0)

    def test_a_cost_of_a_million_writes_no_million_entries(self) -> None:
        limiter = self.one("1000000/2s")
        assert limiter.decide("p", "s", 999_999)
        assert limiter.decide("p", "s").remaining == 0
        assert not limiter.decide("p", "s")
        assert [hit.units for hit in limiter.explain("p", "s").hits] == [999_999, 1]
        self.at(2)
        assert limiter.decide("p", "s", 1_000_000 - 1)

    def test_what_a_decision_says(self) -> None:
        limiter = self.one("3/day", "4/week")
        first = limiter.decide("p", "s")
        assert (first.remaining, first.retry_after_us, str(first.limit)) == (2, 0, "3/day")
        assert (first.reset_after_us, first.hit, first.origin) == (7 * DAY, START_US, "store")
        self.clock.advance_us(DAY)
        second = limiter.decide("p", "s", 3)
        assert (second.remaining, str(second.limit)) == (0, "3/day")
        third = limiter.decide("p", "s")
        assert (third.allowed, str(third.limit), third.retry_after_us) == (False, "4/week", 6 * DAY)

    def test_subjects_and_policies_do_not_meet(self) -> None:
        limiter = self.limiter(self.policy("a", ["1/day"]), self.policy("b", ["1/day"]))
        for policy in ("a", "b"):
            for subject in (
                "42",
                42,
                "4",
                "2",
                0,
                2**64 - 1,
                "é",
                "e\u0301",
                "{x}",
                "}{",
                "a\0b",
                "x" * 512,
                "x" * 511 + "y",
            ):
                assert limiter.decide(policy, subject), (policy, subject)
                assert not limiter.decide(policy, subject)

    # --- the clock --------------------------------------------------------------------------------------------

    def test_a_clock_that_steps_back_gives_no_room(self) -> None:
        limiter = self.one("2/10s")
        self.at(100)
        first, second = limiter.decide("p", "s"), limiter.decide("p", "s")
        self.at(0)
        refused = limiter.decide("p", "s")
        assert (refused.allowed, refused.retry_after) == (False, 110.0)
        self.at(110)
        third = limiter.decide("p", "s")
        assert third
        assert first.hit < second.hit < third.hit

    def test_retry_after_holds_when_the_clock_has_stepped_back(self) -> None:
        limiter = self.one("1/10s")
        self.at(50)
        assert limiter.decide("p", "s")
        self.at(20)
        refused = limiter.decide("p", "s")
        self.clock.advance_us(refused.retry_after_us - 1)
        assert not limiter.decide("p", "s")
        self.clock.advance_us(1)
        assert limiter.decide("p", "s")

    # --- segments, channels, changed limits -------------------------------------------------------------------

    def test_a_subject_that_changes_segment_keeps_its_history(self) -> None:
        limiter = self.one("1/day", by_segment={"active": ["3/day"], "idle": ["1/week"]})
        assert limiter.decide("p", 1, segment="active")
        assert limiter.decide("p", 1, segment="active")
        assert not limiter.decide("p", 1)
        self.at(2 * 86_400)
        assert limiter.decide("p", 1)
        assert not limiter.decide("p", 1, segment="idle")

    def test_a_changed_limit_finds_a_true_history(self) -> None:
        limiter = self.limiter(self.policy("p", ["1/day"], by_segment={"other": ["9/week"]}))
        for day in range(3):
            self.at(day * 86_400)
            assert limiter.decide("p", "s")
        limiter.use([self.policy("p", ["4/week"])])
        assert limiter.decide("p", "s").remaining == 0
        assert not limiter.decide("p", "s")
        limiter.use([self.policy("p", ["2/week"])])
        assert limiter.decide("p", "s").remaining == 0
        limiter.use([self.policy("p", ["6/week"])])
        assert limiter.decide("p", "s").remaining == 1

    def test_channels_and_the_overall_limit_are_one_step(self) -> None:
        limiter = self.one("3/day", channels={"push": ["2/day"], "email": ["1/day", "4/week"]})
        assert limiter.decide("p", "s", channel="push")
        assert limiter.decide("p", "s", channel="email")
        refused = limiter.decide("p", "s", channel="email")
        assert (refused.allowed, str(refused.limit)) == (False, "1/day")
        assert limiter.peek("p", "s", channel="push").remaining == 0
        assert limiter.decide("p", "s", channel="push")
        assert str(limiter.decide("p", "s", channel="push").limit) == "3/day"
        assert not limiter.decide("p", "s")

    def test_a_refund_on_a_channel_gives_back_both(self) -> None:
        limiter = self.one("2/day", channels={"push": ["1/day"], "email": ["2/day"]})
        hit = limiter.decide("p", "s", channel="push").hit
        assert limiter.decide("p", "s", channel="email")
        assert limiter.refund("p", "s", hit) is True
        assert limiter.decide("p", "s", channel="push")
        assert not limiter.decide("p", "s", channel="email")

    def test_policies_that_share_a_log_count_each_others_hits(self) -> None:
        limiter = self.limiter(self.policy("a", ["2/day"], log="all"), self.policy("b", ["3/week"], log="all"))
        assert limiter.decide("a", "s")
        assert limiter.decide("b", "s")
        assert not limiter.decide("a", "s")
        self.at(2 * 86_400)
        assert limiter.decide("b", "s")
        assert not limiter.decide("b", "s")

    # --- refund, id, peek, erase ------------------------------------------------------------------------------

    def test_a_refund_gives_back_exactly_that_hit_once(self) -> None:
        limiter = self.one("3/day")
        hits = [limiter.decide("p", "s").hit for _ in range(3)]
        assert [limiter.refund("p", "s", hits[1]) for _ in range(2)] == [True, False]
        again = limiter.decide("p", "s")
        assert again
        assert again.hit not in hits
        assert limiter.refund("p", "s", hits[1]) is False
        assert limiter.refund("p", "s", 12345) is False
        assert limiter.refund("p", "s", None) is False
        assert limiter.refund("p", "stranger", hits[0]) is False
        assert not limiter.decide("p", "s")

    def test_a_refund_of_the_newest_hit_never_frees_its_stamp_for_another(self) -> None:
        limiter = self.one("1/day")
        first = limiter.decide("p", "s").hit
        assert limiter.refund("p", "s", first)
        second = limiter.decide("p", "s").hit
        assert second != first
        assert limiter.refund("p", "s", first) is False
        assert not limiter.decide("p", "s")

    def test_a_refund_of_a_cost_gives_back_all_of_it(self) -> None:
        limiter = self.one("10/day")
        hit = limiter.decide("p", "s", 7).hit
        assert not limiter.decide("p", "s", 4)
        assert limiter.refund("p", "s", hit)
        assert limiter.decide("p", "s", 10)

    def test_a_hit_out_of_every_window_is_not_refunded(self) -> None:
        limiter = self.one("1/day")
        hit = limiter.decide("p", "s").hit
        self.clock.advance_us(DAY - 1)
        assert limiter.refund("p", "s", hit) is True
        hit = limiter.decide("p", "s").hit
        self.clock.advance_us(DAY)
        assert limiter.refund("p", "s", hit) is False

    def test_the_same_id_is_one_consumption(self) -> None:
        limiter = self.one("2/day")
        first = limiter.decide("p", "s", id="m1")
        assert limiter.decide("p", "s").remaining == 0
        assert limiter.decide("p", "s", id="m1") == first
        assert limiter.peek("p", "s", id="m1").hit == first.hit
        assert not limiter.decide("p", "s", id="m2")
        self.clock.advance_us(DAY)
        renewed = limiter.decide("p", "s", id="m1")
        assert renewed
        assert renewed.hit != first.hit

    def test_the_same_id_with_another_cost_is_an_error(self) -> None:
        limiter = self.one("9/day")
        limiter.decide("p", "s", 2, id="m1")
        with pytest.raises(IdConflictError):
            limiter.decide("p", "s", 3, id="m1")
        assert limiter.peek("p", "s").remaining == 6

    def test_a_refunded_id_is_free_again(self) -> None:
        limiter = self.one("1/day")
        first = limiter.decide("p", "s", id="m1").hit
        assert limiter.refund("p", "s", first)
        again = limiter.decide("p", "s", id="m1")
        assert again
        assert again.hit != first

    def test_a_retry_does_not_count_what_has_left_every_window(self) -> None:
        limiter = self.one("9/day")
        limiter.decide("p", "s")
        self.at(10)
        first = limiter.decide("p", "s", id="m1")
        assert first.remaining == 7
        self.at(86_405)
        retried = limiter.decide("p", "s", id="m1")
        assert (retried.hit, retried.remaining) == (first.hit, 8)

    def test_peek_and_refusals_change_nothing(self) -> None:
        limiter = self.one("2/10s", "3/min")
        limiter.decide("p", "s")
        before = limiter.explain("p", "s")
        for _ in range(5):
            assert limiter.peek("p", "s").remaining == 0
            assert not limiter.decide("p", "s", 2)
        assert limiter.explain("p", "s") == before
        peeked = limiter.peek("p", "s")
        decided = limiter.decide("p", "s")
        assert peeked.hit is None
        assert _but_hit(peeked) == _but_hit(decided)

    def test_erase_forgets_a_subject_in_every_policy(self) -> None:
        limiter = self.limiter(self.policy("a", ["1/day"]), self.policy("b", ["1/day"], channels={"push": ["1/day"]}))
        limiter.decide("a", "s")
        limiter.decide("b", "s", channel="push")
        limiter.decide("a", "other")
        assert limiter.erase("s") == 3
        assert limiter.erase("s") == 0
        assert limiter.decide("a", "s")
        assert limiter.decide("b", "s", channel="push")
        assert not limiter.decide("a", "other")

    def test_explain_tells_what_counts_and_when_it_frees(self) -> None:
        limiter = self.one("3/min", "4/h")
        limiter.decide("p", "s", 2)
        self.at(90)
        limiter.decide("p", "s")
        why = limiter.explain("p", "s")
        assert [(str(state.limit), state.used, state.remaining) for state in why.limits] == [
            ("3/minute", 1, 2),
            ("4/hour", 3, 1),
        ]
        assert why.limits[1].frees == ((START_US + 3600 * SECOND, 2), (START_US + 3690 * SECOND, 1))
        assert [(hit.stamp_us - START_US, hit.units) for hit in why.hits] == [(0, 2), (90 * SECOND, 1)]

    def test_sweep_removes_what_is_out_of_every_window_and_nothing_else(self) -> None:
        limiter = self.one("2/day", "3/week")
        for subject in range(50):
            limiter.decide("p", subject)
        self.at(86_400)
        for subject in range(10):
            limiter.decide("p", subject)
        self.clock.advance_us(6 * DAY - 1)
        assert limiter.sweep() == 0
        assert len(limiter.explain("p", 40).hits) == 1
        self.clock.advance_us(1)
        assert limiter.sweep() == 40
        assert limiter.peek("p", 5).remaining == 1
        assert len(limiter.explain("p", 40).hits) == 0

    def test_explain_names_the_limit_that_binds_and_the_ids_that_it_is_given(self) -> None:
        limiter = self.one("3/min", "4/h", channels={"push": ["1/h"]})
        limiter.decide("p", "s", id="campaign/7")
        limiter.decide("p", "s", id="m1", channel="push")
        limiter.decide("p", "s")
        why = limiter.explain("p", "s", ids=["m1", "never", "campaign/7"])
        assert [hit.id for hit in why.hits] == ["campaign/7", "m1", None]
        assert [hit.id for hit in limiter.explain("p", "s").hits] == [None] * 3
        assert [(str(state.limit), state.binds) for state in why.limits] == [("3/minute", True), ("4/hour", False)]
        on_push = limiter.explain("p", "s", channel="push")
        assert [str(state.limit) for state in on_push.limits if state.binds] == ["1/hour"]
        assert str(on_push.decision.limit) == "1/hour"

    # --- logs -------------------------------------------------------------------------------------------------

    def exported(self, limiter: Any) -> list[tuple[str, str, list[tuple[int, int, int]]]]:
        """Every log, in an order of its own: name, subject, hits."""
        return sorted((one.log, repr(one.subject), [*one.hits]) for one in limiter.export())

    def test_an_export_that_is_loaded_elsewhere_is_the_same_log_and_loaded_twice_still(self) -> None:
        policy = self.policy("p", ["5/h"], channels={"push": ["3/h"]}, log="shared")
        limiter = self.limiter(policy)
        subjects = ["42", 42, 0, 2**64 - 1, "é", "{x}", "}{", "%7D", "%257D", "a\0b", "'", "#1", "x" * 400]
        for i, subject in enumerate(subjects):
            self.at(i)
            first = limiter.decide("p", subject, 1 + i % 3, id=f"m{i}" if i % 2 else None)
            limiter.decide("p", subject, channel="push")
            if i % 4 == 0:
                limiter.refund("p", subject, first.hit)
        other = self.limiter(policy, namespace=f"{self.namespace}-2")
        before = self.exported(limiter)
        assert len(before) == 2 * len(subjects)
        hits = sum(len(one[2]) for one in before)
        loaded = other.load(limiter.export())
        assert (loaded.records, loaded.added, loaded.known) == (len(before), hits, 0)
        again = other.load(limiter.export())
        assert (again.added, again.known, again.old, again.ahead, again.failed) == (0, hits, 0, 0, 0)
        assert self.exported(other) == before
        for i, subject in enumerate(subjects):
            for channel in (None, "push"):
                assert other.peek("p", subject, channel=channel) == limiter.peek("p", subject, channel=channel)
            if i % 2:
                assert other.decide("p", subject, 1 + i % 3, id=f"m{i}") == limiter.decide(
                    "p", subject, 1 + i % 3, id=f"m{i}"
                )

    def test_hits_of_the_past_count_as_if_recorded_then(self) -> None:
        limiter = self.one("3/min", "5/h")
        self.at(3600)
        limiter.decide("p", "s")
        past = [(5, 2), (3580, 1), (3599, 1), (0, 1)]
        loaded = limiter.load([PastHit("p", "s", START_US + second * SECOND, cost) for second, cost in past])
        assert (loaded.records, loaded.added, loaded.old) == (4, 3, 1)
        assert [(hit.stamp_us // SECOND - START_US // SECOND, hit.units) for hit in limiter.explain("p", "s").hits] == [
            (5, 2),
            (3580, 1),
            (3599, 1),
            (3600, 1),
        ]
        refused = limiter.decide("p", "s")
        assert (refused.allowed, str(refused.limit), refused.retry_after) == (False, "3/minute", 40.0)
        self.at(3640)
        allowed = limiter.decide("p", "s")
        assert (allowed.allowed, allowed.remaining, str(allowed.limit)) == (True, 0, "3/minute")
        self.at(3700)
        assert limiter.decide("p", "s").remaining == 0
        refused = limiter.decide("p", "s")
        assert (str(refused.limit), refused.retry_after) == ("5/hour", 3580.0 + 3600 - 3700)

    def test_what_is_known_old_or_ahead_is_left_out(self) -> None:
        limiter = self.one("9/min")
        self.at(100)
        now = self.clock.now_us()
        limiter.decide("p", "s", 2, id="a")
        back = limiter.decide("p", "s")
        limiter.refund("p", "s", back.hit)

        def load(*hits: PastHit) -> tuple[int, int, int, int]:
            loaded = limiter.load(hits)
            return loaded.added, loaded.known, loaded.old, loaded.ahead

        assert load(PastHit("p", "s", back.hit - 60 * SECOND)) == (0, 0, 1, 0)
        assert load(PastHit("p", "s", back.hit + SECOND + 1)) == (0, 0, 0, 1)
        assert load(PastHit("p", "s", back.hit - 60 * SECOND + 1)) == (1, 0, 0, 0)
        assert load(PastHit("p", "s", now - 5, 7, id="a")) == (0, 1, 0, 0)
        assert load(PastHit("p", "s", now, 2)) == (0, 1, 0, 0)
        assert load(PastHit("p", "s", back.hit)) == (0, 1, 0, 0)
        # Another hit of the same instant goes behind what stands there, and is known there.
        assert load(PastHit("p", "s", now, 3)) == (1, 0, 0, 0)
        assert load(PastHit("p", "s", now, 3)) == (0, 1, 0, 0)
        assert load(PastHit("p", "s", now - 9, id="b"), PastHit("p", "s", now - 8, id="b")) == (1, 1, 0, 0)
        assert [(hit.stamp_us - now, hit.units) for hit in limiter.explain("p", "s").hits] == [
            (-9, 1),
            (0, 2),
            (1, 0),
            (2, 3),
        ]

    def test_hits_with_ids_are_two_though_they_have_one_stamp(self) -> None:
        limiter = self.one("9/min", channels={"push": ["9/min"]})
        now = self.clock.now_us()
        sent = [PastHit("p", "s", now - 5, channel="push", id=name) for name in ("a", "b", "a", "c")]
        for added, known in ((3, 1), (0, 4)):
            loaded = limiter.load(sent)
            assert (loaded.added, loaded.known) == (added, known)
        for state in limiter.explain("p", "s", channel="push").limits:
            assert [at_us - now - 60 * SECOND for at_us, _ in state.frees] == [-5, -4, -3]
        twice = LogRecord("p", "t", [(now - 9, 1, 7), (now - 5, 1, 7), (now - 5, 1, 8)])
        for added, known in ((2, 1), (0, 3)):
            loaded = limiter.load([twice])
            assert (loaded.added, loaded.known) == (added, known)
        assert limiter.decide("p", "s", id="b", channel="push").hit in (now - 5, now - 4, now - 3)
        assert limiter.refund("p", "s", now - 4) is True
        assert [state.used for state in limiter.explain("p", "s", channel="push").limits] == [2, 2]

    def test_a_long_log_is_exported_in_parts_and_merged_anywhere(self) -> None:
        policy = self.policy("p", ["5000/h"])
        limiter, other = self.limiter(policy), self.limiter(policy, namespace=f"{self.namespace}-2")
        times = list(range(0, 5200, 2))
        random.Random(4).shuffle(times)  # noqa: S311 - an order, not a secret
        self.at(3000)

        def record(seconds: list[int]) -> LogRecord:
            return LogRecord("p", "s", [(START_US + at * SECOND // 2 + at, 1 + at % 5 // 4, 0) for at in seconds])

        parts = [record(times[first : first + 650]) for first in range(0, len(times), 650)]
        assert limiter.load(parts).added == len(times)
        [*records] = limiter.export()
        assert [len(one.hits) for one in records] == [1000, 1000, 600]
        assert [hit for one in records for hit in one.hits] == [*record(sorted(times)).hits]
        assert other.load(records).added == len(times)
        assert other.load(reversed(records)).known == len(times)
        assert self.exported(other) == self.exported(limiter)
        more = [(START_US + 2700 * SECOND + at, 1, 0) for at in range(500)]
        assert [one.load([LogRecord("p", "s", more)]).added for one in (limiter, other)] == [500, 500]
        assert other.decide("p", "s") == limiter.decide("p", "s")
        assert other.peek("p", "s", 2000) == limiter.peek("p", "s", 2000)

    def test_every_log_of_many_is_exported(self) -> None:
        limiter = self.limiter(self.policy("p", ["5/h"]), self.policy("q", ["5/h"]))
        subjects = [*range(700), *(f"user:{i}" for i in range(700))]
        limiter.decide_many("p", subjects)
        limiter.decide("q", "s")
        assert {one.subject for one in limiter.export(["p"])} == set(subjects)
        assert [one.log for one in limiter.export(["q"])] == ["q"]
        self.at(3600)
        assert list(limiter.export()) == []

    def test_a_record_that_is_wrong_says_which_and_why(self) -> None:
        limiter = self.one("5/h", channels={"push": ["1/h"]})
        good = PastHit("p", "s", START_US)
        for bad, said in (
            (PastHit("nope", "s", START_US), "no policy 'nope'; there are: p"),
            (PastHit("p", "", START_US), "a subject is 1 to 512 bytes"),
            (PastHit("p", "s", START_US, 0), "a cost is 1 to"),
            (PastHit("p", "s", START_US, channel="sms"), "has no channel 'sms'; it has: push"),
            (PastHit("p", "s", -1), "no hit has this stamp"),
            (LogRecord("p/sms", "s", [(START_US, 1, 0)]), "no policy has a log 'p/sms'; there are: p, p/push"),
            (LogRecord("p", "s", []), "1 to 1000 hits, not 0"),
            (LogRecord("p", "s", [(START_US, 1, 0)], keyed=True), "give the limiter the subject_key"),
        ):
            with pytest.raises(CaplineError, match=r"^record 2: ") as told:
                limiter.load([good, bad])
            assert said in str(told.value)

    # --- slots ------------------------------------------------------------------------------------------------

    def test_each_waiter_gets_its_own_slot_in_order(self) -> None:
        limiter = self.one("2/10s")
        waits = [limiter.schedule("p", "s").wait_us for _ in range(6)]
        assert waits == sorted(waits)
        assert waits[0] == 0
        assert [round(wait / SECOND) for wait in waits] == [0, 0, 10, 10, 20, 20]
        stamps = [hit.stamp_us for hit in limiter.explain("p", "s").hits]
        assert all(later - earlier >= 10 * SECOND for earlier, later in zip(stamps, stamps[2:], strict=False))

    def test_nobody_jumps_the_queue(self) -> None:
        limiter = self.one("1/10s")
        limiter.schedule("p", "s")
        limiter.schedule("p", "s")
        self.at(10 - 1e-6)
        assert not limiter.decide("p", "s")
        assert limiter.decide("p", "s").retry_after_us == 10 * SECOND + 1
        self.at(20)
        assert limiter.decide("p", "s")

    def test_a_wait_that_is_too_long_takes_nothing(self) -> None:
        limiter = self.one("1/10s")
        limiter.decide("p", "s")
        late = limiter.schedule("p", "s", max_wait=9.999999)
        assert (late.allowed, late.hit, late.retry_after) == (False, None, 10.0)
        assert limiter.schedule("p", "s", max_wait=10).wait == 10.0

    def test_a_wait_of_a_microsecond_is_a_wait(self) -> None:
        limiter = self.one("5/10s")
        assert limiter.schedule("p", "s", max_wait=0).wait_us == 0
        late = limiter.schedule("p", "s", max_wait=0)
        assert (late.allowed, late.hit, late.retry_after_us, late.remaining) == (False, None, 1, 4)
        assert [limiter.schedule("p", "s", max_wait=2e-6).wait_us for _ in range(3)] == [1, 2, 0]
        assert len(limiter.explain("p", "s").hits) == 3

    def test_a_slot_is_no_earlier_than_asked_and_nobody_is_given_one_before_it(self) -> None:
        limiter = self.one("3/10s")
        limiter.decide("p", "s")
        later = limiter.schedule("p", "s", not_before=60)
        assert (later.allowed, later.wait, later.remaining) == (True, 60.0, 2)
        assert [limiter.schedule("p", "s").wait_us - 60 * SECOND for _ in range(3)] == [1, 2, 10 * SECOND]
        assert limiter.decide("p", "s").retry_after == pytest.approx(70, abs=1e-5)
        assert limiter.schedule("p", "s", not_before=5).wait_us == 70 * SECOND + 1
        assert limiter.refund("p", "s", later.hit)
        self.at(59)
        assert limiter.schedule("p", "s", not_before=100).wait_us == 100 * SECOND

    def test_a_slot_that_must_come_later_than_the_longest_wait_takes_nothing(self) -> None:
        limiter = self.one("2/10s")
        late = limiter.schedule("p", "s", max_wait=9.999999, not_before=10)
        assert (late.allowed, late.hit, late.retry_after) == (False, None, 10.0)
        assert limiter.schedule("p", "s", max_wait=10, not_before=10).wait == 10.0
        # The same again is behind it: where one unit holds the log back already, no second one is spent.
        assert not limiter.schedule("p", "s", max_wait=10, not_before=10)
        assert len(limiter.explain("p", "s").hits) == 1

    def test_a_slot_far_beyond_every_window_is_a_hit_like_any_other_when_its_time_comes(self) -> None:
        limiter = self.one("2/10s")
        limiter.decide("p", "s")
        far = limiter.schedule("p", "s", not_before=40 * 86_400)
        assert far.wait_us == 40 * DAY
        given_back = limiter.schedule("p", "s", not_before=80 * 86_400)
        assert limiter.refund("p", "s", given_back.hit)
        assert not limiter.decide("p", "s")
        self.at(40 * 86_400)
        assert [limiter.decide("p", "s").allowed for _ in range(2)] == [True, False]
        assert [(hit.stamp_us - START_US - 40 * DAY, hit.units) for hit in limiter.explain("p", "s").hits][:2] == [
            (0, 1),
            (1, 1),
        ]

    @pytest.mark.parametrize("wrong", [-1, float("nan"), "soon"])
    def test_a_slot_is_not_before_a_number_of_seconds_from_0_on(self, wrong: Any) -> None:
        with pytest.raises(CaplineError, match="not_before is a number of seconds"):
            self.one("2/10s").schedule("p", "s", not_before=wrong)

    def test_a_slot_given_back_is_taken_by_the_next(self) -> None:
        limiter = self.one("1/10s")
        limiter.decide("p", "s")
        slot = limiter.schedule("p", "s")
        assert limiter.refund("p", "s", slot.hit)
        next_slot = limiter.schedule("p", "s")
        assert next_slot.wait_us - slot.wait_us in (0, 1)
        assert next_slot.hit != slot.hit

    def test_acquire_past_its_timeout_raises_and_takes_nothing(self) -> None:
        limiter = self.one("1/h")
        limiter.decide("p", "s")
        if self.asynchronous:
            with pytest.raises(LimitExceeded):
                limiter.run(_acquired(limiter.inner))
        else:
            with pytest.raises(LimitExceeded, match="1/hour"), limiter.acquire("p", "s", timeout=1):
                pass
        assert len(limiter.explain("p", "s").hits) == 1

    # --- many -------------------------------------------------------------------------------------------------

    def test_a_batch_equals_the_same_attempts_one_by_one(self) -> None:
        attempts = [
            Attempt("p", subject, cost, id=id, segment=segment)
            for subject in ("a", "b", 7)
            for cost, id, segment in (
                (1, None, None),
                (2, "x", "new"),
                (1, None, "new"),
                (2, "x", None),
                (9, None, None),
            )
        ]
        policy = self.policy("p", ["3/day", "5/week"], by_segment={"new": ["4/day"]})
        batched = self.limiter(policy).decide_batch(attempts)
        other = Limiter("memory://", policies=[policy], clock=self.clock)
        single = [other.decide(one.policy, one.subject, one.cost, one.id, segment=one.segment) for one in attempts]
        assert batched == single

    def test_one_bad_item_fails_no_other(self) -> None:
        limiter = self.one("1/day")
        answers = limiter.decide_batch(
            [Attempt("p", "a"), Attempt("p", ""), Attempt("?", "a"), Attempt("p", "b", 0), Attempt("p", "b")]
        )
        assert [isinstance(answer, CaplineError) for answer in answers] == [False, True, True, True, False]
        assert answers[0].allowed
        assert answers[4].allowed

    def test_columns_equal_single_decisions(self) -> None:
        policy = self.policy("p", ["2/day", "3/week"], by_segment={"new": ["1/day"], "vip": ["5/day"]})
        limiter = self.limiter(policy)
        ids = [5, 3, 5, 5, 9, 3, 2**32]
        points = [0, 1, 0, 0, 2, 1, 0]
        subjects, codes = np.array(ids, dtype=np.uint64), np.array(points)
        names: list[str | None] = [None, "new", "vip"]
        many = limiter.decide_many("p", subjects, segment=names, codes=codes)
        other = Limiter("memory://", policies=[policy], clock=self.clock)
        single = [other.decide("p", s, segment=names[c]) for s, c in zip(ids, points, strict=True)]
        assert list(many) == single
        assert many.allowed.dtype == np.bool_
        assert many.allowed.tolist() == [one.allowed for one in single]
        peeked = limiter.peek_many("p", subjects, segment=names, codes=codes)
        assert list(peeked) == [other.peek("p", s, segment=names[c]) for s, c in zip(ids, points, strict=True)]

    def test_a_bad_subject_among_many_is_its_own_error(self) -> None:
        many = self.one("1/day").decide_many("p", ["a", "", "b", "\ud800", "a"])
        assert many.allowed.tolist() == [True, False, True, False, False]
        assert sorted(many.errors) == [1, 3]
        assert many.errors[3].args[0].startswith("subject")

    def test_a_receipt_makes_a_batch_safe_to_repeat(self) -> None:
        limiter = self.one("2/day")
        first = limiter.decide_many("p", range(100), receipt="r/1")
        limiter.decide_many("p", range(50))
        again = limiter.decide_many("p", range(100), receipt="r/1")
        assert list(again) == list(first)
        assert limiter.peek_many("p", range(100)).allowed.sum() == 50
        for other in (range(99), range(1, 101)):
            with pytest.raises(IdConflictError):
                limiter.decide_many("p", other, receipt="r/1")
        self.clock.advance_us(DAY)
        assert list(limiter.decide_many("p", range(100), receipt="r/1")) != list(first)

    def test_to_a_receipt_a_list_and_an_array_of_the_same_ids_are_one_batch(self) -> None:
        limiter = self.one("1/day", by_segment={"new": ["2/day"]})
        ids, points, names = [7, 1, 7, 2**40], [0, 1, 1, 0], [None, "new"]
        first = limiter.decide_many("p", ids, segment=names, codes=points, receipt="r")
        for kind in (np.int64, np.uint64):
            again = limiter.decide_many(
                "p", np.array(ids, kind), segment=names, codes=np.array(points, np.uint8), receipt="r"
            )
            assert list(again) == list(first)
        assert limiter.decide_many("p", np.array([3, 4], np.int32), receipt="s").allowed.all()
        assert list(limiter.decide_many("p", [3, 4], receipt="s")) == list(
            limiter.decide_many("p", np.array([3, 4], np.uint16), receipt="s")
        )
        with pytest.raises(IdConflictError):
            limiter.decide_many("p", np.array(ids), segment=names, codes=1 - np.array(points), receipt="r")

    def test_a_negative_id_in_an_array_is_its_own_error(self) -> None:
        limiter = self.one("1/day", by_segment={"new": ["2/day"]})
        ids, points = np.array([5, -1, 5, -(2**63), 6]), np.array([0, 0, 1, 1, 0])
        many = limiter.decide_many("p", ids, segment=[None, "new"], codes=points)
        assert many.allowed.tolist() == [True, False, True, False, True]
        assert sorted(many.errors) == [1, 3]
        assert limiter.explain("p", 5).decision.allowed is False

    def test_more_rows_than_go_in_one_step(self) -> None:
        limiter = self.one("2/day", "3/week", by_segment={"new": ["1/day"]})
        ids = np.arange(20_000) % 9_999
        many = limiter.decide_many("p", ids)
        assert np.flatnonzero(~many.allowed).tolist() == [19_998, 19_999]
        assert len(many) == len(many.hit) == len(many.retry_after_us) == 20_000
        late = np.arange(20_000, 40_000)
        limiter.decide_many("p", late)
        codes = (late >= 39_000).astype(np.uint16)
        again = limiter.decide_many("p", late, segment=[None, "new"], codes=codes)
        assert again.allowed.tolist() == (codes == 0).tolist()

    def test_many_refunds(self) -> None:
        limiter = self.one("1/day")
        many = limiter.decide_many("p", range(10))
        assert limiter.refund_many("p", range(0, 10, 2), many.hit[::2]).tolist() == [True] * 5
        assert limiter.refund_many("p", range(4), many.hit[:4]).tolist() == [False, True, False, True]
        assert limiter.peek_many("p", range(10)).allowed.tolist() == [
            True,
            True,
            True,
            True,
            True,
            False,
            True,
            False,
            True,
            False,
        ]

    def test_a_long_log_is_as_exact_as_a_short_one(self) -> None:
        limiter = self.one("1000/min", "700/10s")
        for second in (0, 5, 12):
            self.at(second)
            limiter.decide_many("p", ["s"] * 400)
        assert limiter.peek("p", "s").remaining == 0
        assert limiter.peek("p", "s").retry_after == 48.0
        assert len(limiter.explain("p", "s").hits) == 1000
        hit = limiter.explain("p", "s").hits[3].stamp_us
        assert [limiter.refund("p", "s", hit) for _ in range(2)] == [True, False]
        assert [bool(limiter.decide("p", "s")) for _ in range(2)] == [True, False]
        self.at(60.001)
        assert limiter.peek("p", "s").remaining == 1000 - 601 - 1
        self.at(200)
        assert limiter.sweep() == 1
        assert limiter.decide("p", "s").remaining == 699

    # --- bad input --------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("subject", ["", "\ud800", "x" * 513, -1, 2**64, None, 1.0, True, b"x", ["x"]])
    def test_a_subject_that_cannot_be_one(self, subject: Any) -> None:
        with pytest.raises(CaplineError) as caught:
            self.one("1/day").decide("p", subject)
        assert isinstance(caught.value, ValueError | TypeError)

    @pytest.mark.parametrize("cost", [0, -1, 1.0, float("nan"), True, "1", None, 2**53, 10**18])
    def test_a_cost_that_cannot_be_one(self, cost: Any) -> None:
        limiter = self.one("1/day")
        with pytest.raises(CaplineError) as caught:
            limiter.decide("p", "s", cost)
        assert isinstance(caught.value, ValueError | TypeError)
        assert limiter.decide("p", "s")

    @pytest.mark.parametrize(
        "names",
        [
            {"policy": "?"},
            {"policy": ["p"]},
            {"segment": "?"},
            {"channel": "?"},
            {"channel": ""},
            {"id": ""},
            {"id": 5},
            {"id": "x" * 513},
        ],
    )
    def test_a_name_that_nobody_defined(self, names: dict[str, Any]) -> None:
        limiter = self.one("1/day", by_segment={"new": ["1/day"]})
        policy = names.get("policy", "p")
        with pytest.raises(CaplineError):
            limiter.decide(policy, "s", **{name: value for name, value in names.items() if name != "policy"})
        assert limiter.peek("p", "s").remaining == 0

    def test_an_unknown_name_lists_the_known_ones(self) -> None:
        with pytest.raises(UnknownNameError, match="it has: active, new"):
            self.one("1/day", by_segment={"new": ["1/day"], "active": ["1/day"]}).decide("p", "s", segment="actve")

    def test_a_closed_limiter_says_so(self) -> None:
        limiter = self.one("1/day")
        limiter.decide("p", "s")
        limiter.close()
        limiter.close()
        if not self.url.startswith("memory:"):
            with pytest.raises(StoreError, match="closed"):
                limiter.decide("p", "s")

    # --- at once ----------------------------------------------------------------------------------------------

    def test_a_hundred_who_ask_at_once_get_exactly_five(self) -> None:
        """A hundred threads; of an asynchronous limiter, a hundred tasks on one loop."""
        limiter = self.limiter(self.policy("p", ["5/min"]))
        decisions = _at_once(limiter, askers=100, times=1)
        assert (len(decisions), sum(decision.allowed for decision in decisions)) == (100, 5)

    def test_askers_that_interleave_finely_get_exactly_the_quota_each_hit_its_own_stamp(self) -> None:
        limiter = self.limiter(self.policy("p", ["3000/h"]), clock=SystemClock())
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            decisions = _at_once(limiter, askers=4, times=1000)
        finally:
            sys.setswitchinterval(before)
        stamps = [decision.hit for decision in decisions if decision.hit is not None]
        assert (len(decisions), len(stamps), len(set(stamps))) == (4000, 3000, 3000)

    def test_four_processes_get_exactly_the_quota(self) -> None:
        if self.url.startswith("memory:"):
            return  # a memory store is one process's own
        self.one("50/h")
        context = multiprocessing.get_context("spawn")
        with context.Pool(4) as pool:
            asked = (self.url, self.namespace, self.layout, self.asynchronous, 100)
            counts = pool.starmap(_ask_from_another_process, [asked] * 4)
        assert sum(counts) == 50


async def _acquired(limiter: AsyncLimiter) -> None:
    async with limiter.acquire("p", "s", timeout=1):
        pass


def _but_hit(decision: Decision) -> tuple[object, ...]:
    return decision.allowed, decision.limit, decision.remaining, decision.retry_after_us, decision.reset_after_us


def _at_once(limiter: Any, askers: int, times: int) -> list[Decision]:
    """What so many askers at once, each so many times, are told."""
    if isinstance(limiter, Awaited):
        return limiter.run(_tasks_at_once(limiter.inner, askers, times))
    decisions: list[Decision] = []
    gate = threading.Barrier(askers)

    def ask() -> None:
        gate.wait()
        decisions.extend([limiter.decide("p", "s") for _ in range(times)])

    threads = [threading.Thread(target=ask) for _ in range(askers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return decisions


async def _tasks_at_once(limiter: AsyncLimiter, askers: int, times: int) -> list[Decision]:
    async def ask() -> list[Decision]:
        decisions: list[Decision] = []
        for _ in range(times):
            decisions.append(await limiter.decide("p", "s"))
            await asyncio.sleep(0)
        return decisions

    told = await asyncio.gather(*(ask() for _ in range(askers)))
    return [decision for decisions in told for decision in decisions]


def _ask_from_another_process(url: str, namespace: str, layout: str, asynchronous: bool, times: int) -> int:
    policy = Policy("p", ["50/h"], layout=layout, population=POPULATION)
    limiter: Any = (Awaited if asynchronous else Limiter)(url, policies=[policy], namespace=namespace)
    try:
        return sum(bool(limiter.decide("p", "s")) for _ in range(times))
    finally:
        limiter.close()
