"""Reservations: hits that end by themselves unless they are committed."""

from collections.abc import Callable
from typing import Any

import pytest

from capline.model.attempt import Attempt
from capline.model.errors import InvalidValueError, UnknownNameError
from capline.testing.examples import examples
from capline.testing.setting import SECOND, START_US, StoreSetting


class ReservationLaw(StoreSetting):
    """The checks."""

    vars().update(
        examples("""
        test_a_committed_reservation_is_an_ordinary_hit_at_its_old_stamp: 2/min | reservations=True
            a = reserve 2 ttl=30; 29.999999: commit $a -> yes; 59.999999: commit $a -> yes; usage -> used 2
            decide -> after 0.000001; 60: usage -> used 0; commit $a -> no
        test_a_reservation_that_ended_cannot_be_committed: 1/h | reservations=True
            a = reserve ttl=30; 30: commit $a -> no no; b = decide -> yes; commit $a -> no; decide -> no
            commit $b -> yes
            commit 12345 -> no; commit none -> no; commit of=stranger $b -> no
        test_a_cancelled_reservation_is_given_back_once: 2/h | reservations=True
            a = reserve 2 ttl=30; decide -> no; cancel $a -> yes no; commit $a -> no; decide 2 -> yes
            31: usage -> used 2
            b = reserve of=t ttl=1; cancel $b -> no; 33: cancel of=t $b -> no
        test_a_committed_hit_can_be_given_back_and_settled: 9/h | reservations=True
            a = reserve 3 ttl=30; b = reserve 3 ttl=30; commit $a -> yes; commit $b -> yes; settle $a 5 -> yes
            refund $b -> yes; 31: usage -> used 5; commit $b -> no
        test_a_settled_reservation_stays_one: 9/h | reservations=True
            a = reserve of=a 4 ttl=30; b = reserve of=b 4 ttl=30; c = reserve of=c 4 ttl=30
            settle of=a $a 1 -> yes; settle of=b $b 20 -> yes; settle of=c $c 0 -> yes
            usage of=a -> used 1; usage of=b -> used 20; usage of=c -> used 0; commit of=b $b -> yes
            commit of=c $c -> no
            30: usage of=a -> used 0; usage of=b -> used 20; usage of=c -> used 0
            settle of=a $a 2 -> no; refund of=a $a -> no
        test_the_same_id_is_one_reservation_until_it_ends: 2/h | reservations=True
            a = reserve id=job ttl=30 -> left 1; 10: reserve id=job ttl=500 -> yes, hit $a, left 1
            decide id=job -> hit $a
            usage -> used 1; reserve 2 id=job -> raises IdConflictError; 30: usage -> used 0
            reserve id=job ttl=30 -> yes, new; c = decide id=sent; reserve id=sent ttl=1 -> hit $c; 61: usage -> used 1
        test_policies_that_share_a_log_share_its_reservations: 2/h | policy.q=2/h | log=both | reservations=True
            a = reserve 2 ttl=30; decide on=q -> no; commit on=q $a -> yes; 30: decide on=q -> no
        test_a_slot_is_taken_as_if_the_reservation_stayed: 1/min | reservations=True
            a = reserve ttl=10; decide -> after 60; b = schedule -> wait 60; 10: decide -> no; commit $a -> no
            refund $b -> yes; decide -> yes
        test_a_time_that_steps_back_ends_nothing_twice: 2/h | reservations=True
            a = reserve ttl=30; 30: usage -> used 0; 20: usage -> used 1; commit $a -> yes; b = reserve of=t ttl=30
            50: decide of=t -> yes; 20: commit of=t $b -> no; usage of=t -> used 1
        test_a_refused_reservation_reserves_nothing: 2/h, 3/day | reservations=True
            a = decide; reserve 2 ttl=30 -> no, hit none, by 2/hour; 31: usage -> used 1+1; refund $a -> yes
        test_calendar_limits_take_reservations: 2/calendar-day | zone=Europe/Berlin | reservations=True
            when 2026-03-01T23:59 Europe/Berlin; reserve 2 ttl=30 -> yes; decide -> no; later 30; decide 2 -> yes
        test_a_refund_is_the_channel_s_also_while_the_policy_has_it_not: 9/day | channels.push=1/day
            a = decide channel=push; b = decide of=t channel=push; decide channel=push -> no
            use 9/day channels.mail=5/day
            refund $a -> yes; settle of=t $b 3 -> yes; use 9/day channels.push=1/day; usage channel=push -> used 0+0
            usage of=t channel=push -> used 3+3; decide channel=push -> yes no
        test_what_ended_stays_so_while_channels_come_and_go: 9/day | reservations=True | channels.push=1/day
            reserve channel=push ttl=10 -> yes; 20: use 9/day reservations=True; reserve ttl=10 -> yes
            40: decide -> yes
            use 9/day reservations=True channels.push=1/day; usage channel=push -> used 1+0; decide channel=push -> yes
        test_erase_and_sweep_forget_reservations: 2/h | reservations=True
            a = reserve ttl=30; erase -> gives 1 0; commit $a -> no; 1: b = reserve ttl=86400; 3600: commit $b -> yes
            3601: sweep -> yes; commit $b -> no; usage -> used 0
        """)
    )

    def reserving(self, *limits: str, **options: Any) -> Any:
        """A limiter of one policy with reservations."""
        return self.one(*limits, reservations=True, **options)

    def test_a_reservation_is_answered_and_counts_as_a_hit_does(self) -> None:
        reserving, deciding = self.reserving("3/10s", "5/min"), self.limiter(self.policy("q", ["3/10s", "5/min"]))
        for cost in (1, 2, 1):
            mine, theirs = reserving.reserve("p", "s", cost, ttl=5), deciding.decide("q", "s", cost)
            assert mine.as_dict() == theirs.as_dict()
            assert [state.remaining for state in mine.limits] == [state.remaining for state in theirs.limits]
        assert reserving.peek("p", "s").as_dict() == deciding.peek("q", "s").as_dict()

    def test_a_reservation_ends_to_the_microsecond_in_every_verb_that_looks(self) -> None:
        limiter = self.reserving("2/h")
        verbs = "decide", "peek", "look", "usage", "schedule", "explain", "batch", "many", "peek_many", "joint"
        for verb in verbs:
            assert limiter.reserve("p", verb, 2, ttl=30)
        self.clock.advance_us(30 * SECOND - 1)
        assert [verb for verb in verbs if _has_room(limiter, verb)] == []
        self.clock.advance_us(1)
        assert [verb for verb in verbs if not _has_room(limiter, verb)] == []

    def test_each_of_many_ends_in_its_own_time(self) -> None:
        limiter = self.reserving("40/h")
        spans = [7, 3, 90, 12, 3, 55, 1, 30]
        hits = [limiter.reserve("p", "s", ttl=span).hit for span in spans]
        assert len(set(hits)) == len(hits)
        assert limiter.commit("p", "s", hits[3])
        for second in (0.5, 2, 4, 8, 13, 31, 56, 91):
            self.at(second)
            live = sum(span > second for i, span in enumerate(spans) if i != 3)
            assert self.used(limiter) == [1 + live]
            assert limiter.reserve("p", "s", ttl=0.1), "a hit that is recorded takes those that ended along"

    def test_hundreds_of_reservations_on_a_long_log(self) -> None:
        limiter = self.reserving("1000/h")
        for _ in range(150):
            assert limiter.decide("p", "s")
        hits = [limiter.reserve("p", "s", ttl=20 + 20 * (i % 2)).hit for i in range(200)]
        assert all(limiter.commit("p", "s", hit) for hit in hits[::10])
        assert self.used(limiter) == [350]
        self.at(21)
        assert self.used(limiter) == [270]
        assert limiter.decide("p", "s", 730)
        assert not limiter.decide("p", "s")
        assert [limiter.commit("p", "s", hit) for hit in (hits[0], hits[2], hits[3])] == [True, False, True]
        self.at(41)
        assert self.used(limiter) == [150 + 20 + 730 + 1]
        assert limiter.reserve("p", "s", 99)
        self.at(3600)
        assert limiter.reserve("p", "s")

    @pytest.mark.parametrize("others", [0, 200], ids=["short", "long"])
    def test_a_reservation_is_the_channel_s_too(self, others: int) -> None:
        limiter = self.reserving("999/h", channels={"push": ["2/h"], "mail": ["2/h"]})
        for _ in range(others):
            assert limiter.decide("p", "s")
        kept = limiter.reserve("p", "s", channel="push", ttl=10).hit
        assert limiter.reserve("p", "s", channel="push", ttl=20)
        assert not limiter.decide("p", "s", channel="push")
        assert limiter.commit("p", "s", kept)
        for second in (20, 30, 40):
            self.at(second)
            assert limiter.reserve("p", "s", channel="mail", ttl=1), (
                "recorded on another channel, with what ended on this"
            )
            self.at(second + 1)
            assert self.used(limiter, channel="push") == [others + 1, 1]
        assert limiter.decide("p", "s", channel="push")
        assert not limiter.decide("p", "s", channel="push")
        assert self.used(limiter) == [others + 2]

    def test_a_process_that_does_not_know_a_channel_gives_back_and_erases_what_is_on_it(self) -> None:
        if self.url.startswith("memory:"):
            pytest.skip("one process")
        without = self.one("9/day")
        assert not without.refund("p", "s", START_US), "its rule is made before there is the channel"
        limiter = self.one("9/day", channels={"push": ["1/day"]})
        hit, settled = (limiter.decide("p", subject, channel="push").hit for subject in "st")
        assert limiter.decide("p", "erased", channel="push")
        assert without.refund("p", "s", hit)
        assert without.settle("p", "t", settled, 3)
        assert without.erase("erased")
        assert [self.used(limiter, subject, channel="push") for subject in ("s", "t", "erased")] == [
            [0, 0],
            [3, 3],
            [0, 0],
        ]

    @pytest.mark.parametrize(
        "then", [{}, {"count_denied": True}, {"algorithm": "bucketed"}], ids=["hits", "refusals", "sums"]
    )
    def test_who_gives_up_reservations_revives_none(self, then: dict[str, Any]) -> None:
        limiter = self.reserving("9/day")
        for subject in ("s", "t", "kept"):
            assert limiter.reserve("p", subject, 2, ttl=10)
        assert limiter.decide("p", "t")
        committed = limiter.reserve("p", "kept", ttl=10).hit
        pending = limiter.reserve("p", "pending", ttl=100)
        assert limiter.commit("p", "kept", committed)
        self.at(20)
        limiter.use([self.policy("p", ["9/day"], **then)])
        assert [self.used(limiter, name) for name in ("s", "t", "kept", "pending")] == [[0], [1], [1], [1]]
        assert [hit.units for hit in limiter.explain("p", "s").hits] in ([0], [])
        assert limiter.decide("p", "s", 9)
        assert limiter.decide("p", "t", 8)
        assert not limiter.refund("p", "kept", committed - 1)
        self.at(99)
        assert limiter.decide("p", "kept")
        assert self.used(limiter, "pending") == [1]
        self.at(100)
        assert self.used(limiter, "pending") == [0]
        assert limiter.refund("p", "pending", pending.hit) is False
        limiter.use([self.policy("p", ["9/day"], reservations=True)])
        assert [self.used(limiter, name) for name in ("s", "t", "kept", "pending")] == [[9], [9], [2], [0]]

    @pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
    @pytest.mark.parametrize("others", [0, 100], ids=["short", "long"])
    def test_a_process_whose_policy_has_none_ends_those_of_another(self, others: int, first: bool) -> None:
        """Whichever of the two began first; memory is no other process's."""
        if self.url.startswith("memory:"):
            pytest.skip("one process")
        without, limiter = self.one("102/h", "109/day"), self.reserving("102/h", "109/day")
        for other in (without, limiter) if first else (limiter, without):
            assert other.decide("p", "before")
        for subject in ("s", "many", "cost", "joint", "kept"):
            assert not others or limiter.decide_many("p", [subject] * others).allowed.all()
            hit = limiter.reserve("p", subject, ttl=10).hit
        self.at(5)
        assert limiter.commit("p", "kept", hit)
        assert without.decide("p", "s")
        assert self.used(without) == [others + 2, others + 2]
        self.at(10.001)
        left = 102 - others
        assert self.used(without, "cost") == [others, others]
        assert without.decide("p", "cost", left)
        assert not without.decide("p", "cost")
        assert [without.decide("p", "s").allowed for _ in range(left)] == [True] * (left - 1) + [False]
        assert without.decide_many("p", ["many"] * (left + 1)).allowed.tolist() == [True] * left + [False]
        assert without.decide_all([Attempt("p", "joint", left)])
        assert self.used(without, "kept") == [others + 1, others + 1]
        self.at(11)
        assert self.used(limiter) == [102, 102], "nor do they come back"
        assert self.used(limiter, "cost") == [102, 102]

    def test_a_batch_and_a_joint_attempt_see_what_ended_of_each_subject(self) -> None:
        limiter = self.limiter(self.policy("p", ["1/h"], reservations=True), self.policy("q", ["1/h"]))
        for subject in range(20):
            assert limiter.reserve("p", subject, ttl=10 if subject % 2 else 30)
        self.at(10)
        assert limiter.decide_many("p", range(20)).allowed.tolist() == [bool(subject % 2) for subject in range(20)]
        self.at(30)
        parts = [Attempt("p", "{x}"), Attempt("q", "{x}")]
        reserved = limiter.reserve("p", "{x}", ttl=5).hit
        assert not limiter.decide_all(parts)
        self.at(35)
        assert limiter.decide_all(parts)
        assert not limiter.cancel("p", "{x}", reserved)
        rows = limiter.decide_batch([Attempt("p", 2), Attempt("p", 2), Attempt("q", 2)])
        assert [bool(row) for row in rows] == [True, False, True]

    def test_what_cannot_be_reserved_says_so(self) -> None:
        limiter = self.limiter(self.policy("p", ["1/h"], reservations=True), self.policy("q", ["1/h"]))
        for verb in (limiter.commit, limiter.cancel):
            with pytest.raises(InvalidValueError, match="'q' has no reservations; give it reservations=True"):
                verb("q", "s", 1)
        with pytest.raises(InvalidValueError, match="'q' has no reservations"):
            limiter.reserve("q", "s")
        with pytest.raises(UnknownNameError):
            limiter.reserve("r", "s")
        for ttl in (0, -1, 86_400.1, float("nan"), "1"):
            with pytest.raises((InvalidValueError, TypeError), match="ttl is"):
                limiter.reserve("p", "s", ttl=ttl)
        assert limiter.reserve("p", "s", ttl=86_400)


def _has_room(limiter: Any, verb: str) -> bool:
    """Whether this verb finds room for both units of the subject of its name."""
    ways: dict[str, Callable[[], object]] = {
        "decide": lambda: limiter.decide("p", verb, 2),
        "peek": lambda: limiter.peek("p", verb, 2),
        "look": lambda: limiter.peek("p", verb, 0).remaining,
        "usage": lambda: not limiter.usage("p", verb)[0].used,
        "schedule": lambda: limiter.schedule("p", verb, 2, max_wait=0),
        "explain": lambda: not any(hit.units for hit in limiter.explain("p", verb).hits),
        "batch": lambda: limiter.decide_batch([Attempt("p", verb, 2)])[0],
        "many": lambda: limiter.decide_many("p", [verb], cost=2).allowed[0],
        "peek_many": lambda: limiter.peek_many("p", [verb], cost=2).allowed[0],
        "joint": lambda: limiter.decide_all([Attempt("p", verb, 2)]).allowed,
    }
    return bool(ways[verb]())
