"""The time of several subjects in one attempt: each part is judged, trimmed, stamped and looked up at its own."""

from __future__ import annotations

from typing import Any

import pytest

from capline.model.attempt import Attempt
from capline.model.errors import IdConflictError
from capline.testing.setting import SECOND, START_US, StoreSetting, each_algorithm


class JointTimeLaw(StoreSetting):
    """The checks."""

    def subject(self, number: int) -> str | int:
        """Subjects of these are in one slot, and so decided in one step on every store."""
        return number if self.layout == "bucket" else f"{{s}}:{number}"

    def part(self, policy: str, number: int = 0, cost: int = 1, id: str | None = None, **names: Any) -> Attempt:
        """An attempt on one of the subjects."""
        return Attempt(policy, self.subject(number), cost, id, **names)

    def two(self, *limits: str, **options: Any) -> Any:
        """A limiter of two policies, "a" and "b", under the same limits."""
        return self.limiter(*(self.policy(name, list(limits), **options) for name in ("a", "b")))

    def test_a_known_part_does_not_move_the_time_of_the_others(self) -> None:
        limiter = self.two("3/10min")
        for _ in range(2):
            assert limiter.decide("b", self.subject(0))
        self.at(650)
        assert limiter.decide("a", self.subject(0), id="i")
        self.at(300)
        joint = limiter.decide_all([self.part("a", id="i"), self.part("b")])
        assert (joint.allowed, joint.remaining, joint.binds) == (True, 0, 1)
        assert joint.hits == (START_US + 650 * SECOND, START_US + 300 * SECOND)
        assert [limiter.decide("b", self.subject(0)).allowed for _ in range(2)] == [False, False]
        assert len(limiter.explain("b", self.subject(0)).hits) == 3

    def test_an_id_is_looked_up_at_the_time_of_its_own_log(self) -> None:
        limiter = self.two("3/10min")
        first = limiter.decide("a", self.subject(0), id="i")
        self.at(650)
        second = limiter.decide("b", self.subject(0), id="k")
        self.at(300)
        joint = limiter.decide_all([self.part("a", id="i"), self.part("b", id="k")])
        assert (joint.allowed, joint.hits, joint.binds) == (True, (first.hit, second.hit), 0)
        assert limiter.peek("a", self.subject(0)).remaining == 1
        with pytest.raises(IdConflictError):
            limiter.decide_all([self.part("a", cost=2, id="i"), self.part("b", id="k")])

    def test_a_burst_in_one_part_does_not_move_the_time_of_another(self) -> None:
        limiter = self.limiter(self.policy("a", ["1000/10s"]), self.policy("b", ["3/10s"]))
        for _ in range(2):
            assert limiter.decide("b", self.subject(0))
        self.clock.advance_us(10 * SECOND - 20)
        for _ in range(100):
            assert limiter.decide("a", self.subject(0))
        assert limiter.decide("a", self.subject(0), id="i")
        joint = limiter.decide_all([self.part("a", id="i"), self.part("b")])
        assert (joint.allowed, joint.hits[1]) == (True, START_US + 10 * SECOND - 20)
        assert [limiter.decide("b", self.subject(0)).allowed for _ in range(2)] == [False, False]

    def test_a_part_that_is_ahead_of_the_clock_leaves_a_new_one_its_time(self) -> None:
        limiter = self.two("3/10min")
        for _ in range(2):
            assert limiter.decide("b", self.subject(0))
        self.at(650)
        assert limiter.decide("a", self.subject(0))
        self.at(300)
        parts = [self.part("a"), self.part("b")]
        looked = limiter.peek_all(parts)
        joint = limiter.decide_all(parts)
        assert (looked.allowed, looked.remaining, looked.binds) == (joint.allowed, joint.remaining, joint.binds)
        assert joint.hits == (START_US + 650 * SECOND + 1, START_US + 300 * SECOND)
        assert (joint.remaining, joint.binds) == (0, 1)
        refused = limiter.decide_all(parts)
        assert (refused.allowed, refused.binds, refused.retry_after) == (False, 1, 300.0)
        self.at(600 - 1e-6)
        assert not limiter.decide_all(parts)
        assert limiter.refund_all(parts, joint.hits) == 2
        assert limiter.decide_all(parts)

    def test_a_part_that_is_ahead_is_waited_for_until_its_own_time_has_room(self) -> None:
        limiter = self.limiter(self.policy("a", ["1/10s"]), self.policy("b", ["5/10s"]))
        parts = [self.part("a"), self.part("b")]
        self.at(50)
        assert limiter.decide("a", self.subject(0))
        self.at(20)
        refused = limiter.decide_all(parts)
        assert (refused.retry_after, refused.binds, refused.remaining) == (40.0, 0, 0)
        self.clock.advance_us(refused.retry_after_us - 1)
        assert not limiter.decide_all(parts)
        self.clock.advance_us(1)
        assert limiter.decide_all(parts).hits == (START_US + 60 * SECOND, START_US + 60 * SECOND)

    def test_a_part_with_slots_ahead_holds_all_and_moves_none(self) -> None:
        limiter = self.limiter(self.policy("a", ["3/10s"]), self.policy("b", ["2/10s"]))
        parts = [self.part("b"), self.part("a")]
        assert limiter.decide("b", self.subject(0))
        assert limiter.schedule("a", self.subject(0), not_before=30).wait == 30.0
        refused = limiter.decide_all(parts)
        assert (refused.allowed, refused.retry_after, refused.binds) == (False, 30.0, 1)
        assert str(refused.limit) == "3/10s"
        assert refused.remaining == 1, "of the part that has the least"
        self.at(30)
        joint = limiter.decide_all(parts)
        assert joint.hits == (START_US + 30 * SECOND, START_US + 30 * SECOND + 1)

    def test_quiet_hours_are_asked_of_each_part_at_its_own_time(self) -> None:
        quiet = "not between 22:00 and 08:00"
        limiter = self.limiter(self.policy("a", [quiet, "5/h"]), self.policy("b", ["5/h"]))
        parts = [self.part("b"), self.part("a")]
        self.when("2024-05-06 21:59:50", "UTC")
        assert limiter.decide("a", self.subject(0))
        early = self.clock.now_us()
        self.when("2024-05-06 22:00:30", "UTC")
        assert limiter.decide("b", self.subject(0))
        self.clock.advance_us(early - self.clock.now_us())
        assert limiter.decide_all(parts), "b is ahead, in the night; a, which keeps quiet, is not"
        self.when("2024-05-06 22:00:30", "UTC")
        refused = limiter.decide_all(parts)
        assert (refused.allowed, refused.binds, str(refused.limit)) == (False, 1, quiet)
        assert refused.retry_after == 10 * 3600 - 30

    @each_algorithm
    def test_a_joint_attempt_is_its_parts_at_the_same_instant(self, algorithm: str) -> None:
        limiter = self.limiter(
            *(
                self.policy(f"{kind}{name}", limits, algorithm=chosen)
                for kind in ("joint", "alone")
                for name, limits, chosen in (
                    ("1", ["4/10s"], algorithm),
                    ("2", ["3/10s", "9/60s"], "sliding_log"),
                    ("3", ["30/20s"], "sliding_log"),
                )
            )
        )
        met: set[bool] = set()
        for turn, step in enumerate((0, 0, 1, -3, 9, 0, -8, 11, 0, 0, 2, -6, 14, 0, 0, -9, 1, 20, 0, 3)):
            self.clock.advance_us(step * SECOND)
            if turn % 3 == 1:
                for kind in ("joint", "alone"):
                    limiter.decide(f"{kind}3", self.subject(3), 1 + turn % 4)
            cost = 1 + turn % 2
            parts, alone = (
                [self.part(f"{kind}{number}", number, cost) for number in (1, 2, 3)] for kind in ("joint", "alone")
            )
            looked = [limiter.peek(part.policy, part.subject, part.cost) for part in alone]
            joint = limiter.decide_all(parts)
            assert joint.allowed == all(looked), turn
            met.add(joint.allowed)
            if joint:
                each = [limiter.decide(part.policy, part.subject, part.cost) for part in alone]
                assert joint.hits == tuple(answer.hit for answer in each)
                assert joint.remaining == min(answer.remaining for answer in each)
                assert joint.reset_after_us == max(answer.reset_after_us for answer in each)
            else:
                assert joint.retry_after_us == max(answer.retry_after_us for answer in looked)
                assert joint.reset_after_us <= max(answer.reset_after_us for answer in looked)
        assert met == {True, False}

    def test_of_parts_that_are_alike_the_first_is_named(self) -> None:
        limits = {"a": "3/10s", "b": "3/11s", "c": "3/12s"}
        limiter = self.limiter(*(self.policy(name, [own, "3/20s"]) for name, own in limits.items()))

        def ask(cost: int = 1, *ids: str) -> Any:
            names = ids or (None, None, None)
            return limiter.decide_all(
                [self.part(name, cost=cost, id=own) for name, own in zip(("a", "b", "c"), names, strict=True)]
            )

        for answer in (ask(), ask(1, "x", "y", "z")):
            assert (answer.allowed, answer.binds, str(answer.limit)) == (True, 0, "3/10s")
        again = ask(1, "x", "y", "z")
        assert (again.allowed, again.binds, str(again.limit), again.remaining) == (True, 0, "3/10s", 1)
        partly = ask(1, "x", "v", "w")
        assert (partly.allowed, partly.binds, partly.remaining) == (True, 1, 0)
        refused = ask()
        assert (refused.allowed, refused.binds, refused.retry_after) == (False, 1, pytest.approx(20, abs=1e-5))
        never = ask(4)
        assert (never.allowed, never.binds, never.retry_after_us, str(never.limit)) == (False, 0, None, "3/10s")

    def test_of_parts_in_several_slots_the_first_is_named(self) -> None:
        limiter = self.one("5/10s")
        subjects = (0, 100, 1) if self.layout == "bucket" else ("{x}:1", "{y}:1", "{x}:2")
        for subject, cost in zip(subjects, (2, 3, 3), strict=True):
            assert limiter.decide("p", subject, cost)
        parts = [Attempt("p", subject) for subject in subjects]
        looked = limiter.peek_all(parts)
        assert (looked.allowed, looked.remaining, looked.binds) == (True, 1, 1)
        taken = limiter.decide_all(parts)
        assert (taken.allowed, taken.remaining, taken.binds) == (True, 1, 1)
        assert len(set(taken.hits)) == 1
        refused = limiter.peek_all([Attempt("p", subject, 2) for subject in subjects])
        assert (refused.allowed, refused.remaining, refused.binds) == (False, 1, 1)

    def test_a_part_that_is_known_in_another_slot_names_no_limit(self) -> None:
        limiter = self.one("5/10s")
        subjects = (0, 100) if self.layout == "bucket" else ("{x}:1", "{y}:1")
        first = limiter.decide("p", subjects[0], 4, id="i")
        joint = limiter.decide_all([Attempt("p", subjects[0], 4, "i"), Attempt("p", subjects[1])])
        assert (joint.allowed, joint.hits[0], joint.remaining, joint.binds) == (True, first.hit, 4, 1)

    def test_a_part_on_a_channel_has_one_stamp_in_both_of_its_logs(self) -> None:
        limiter = self.limiter(
            self.policy("a", ["5/10min"], channels={"push": ["2/10min"]}), self.policy("b", ["5/10min"])
        )
        self.at(650)
        assert limiter.decide("b", self.subject(0))
        self.at(300)
        parts = [self.part("b"), self.part("a", channel="push")]
        joint = limiter.decide_all(parts)
        assert joint.hits == (START_US + 650 * SECOND + 1, START_US + 300 * SECOND)
        assert limiter.decide_all(parts)
        refused = limiter.decide_all(parts)
        assert (refused.allowed, refused.binds, str(refused.limit)) == (False, 1, "2/10min")
        assert limiter.refund_all(parts, joint.hits) == 2
        assert limiter.decide("a", self.subject(0), channel="push")
