"""The time of several subjects in one attempt: each part is judged, trimmed, stamped and looked up at its own."""

from typing import Any

from capline.model.attempt import Attempt
from capline.testing.examples import examples
from capline.testing.setting import SECOND, START_US, StoreSetting, each_algorithm

_TIMES = """
test_a_known_part_does_not_move_the_time_of_the_others: 3/10min | policy.b=3/10min
    decide x2 on=b -> yes; 650: decide id=i -> yes
    300: decide_all p:1:i b:1 -> yes, left 0, binds 1, stamp 650.0+300.0; decide on=b -> no no
    explain on=b -> hits 3
test_an_id_is_looked_up_at_the_time_of_its_own_log: 3/10min | policy.b=3/10min
    decide id=i -> yes; 650: decide on=b id=k -> yes
    300: decide_all p:1:i b:1:k -> yes, binds 0, stamp 0.0+650.0
    peek -> left 1; decide_all p:2:i b:1:k -> raises IdConflictError
test_a_burst_in_one_part_does_not_move_the_time_of_another: 1000/10s | policy.b=3/10s
    decide x2 on=b -> yes; 9.99998: decide x100 -> yes; decide id=i -> yes
    decide_all p:1:i b:1 -> yes, stamp 10.00008+9.99998; decide on=b -> no no
test_a_part_that_is_ahead_of_the_clock_leaves_a_new_one_its_time: 3/10min | policy.b=3/10min
    decide x2 on=b -> yes; 650: decide -> yes; 300: peek_all p:1 b:1 -> yes, left 0, binds 1
    a = decide_all p:1 b:1 -> yes, left 0, binds 1, stamp 650.000001+300.0
    decide_all p:1 b:1 -> no, binds 1, after 300; 599.999999: decide_all p:1 b:1 -> no
    refund_all p:1 b:1 $a -> gives 2; decide_all p:1 b:1 -> yes
test_a_part_that_is_ahead_is_waited_for_until_its_own_time_has_room: 1/10s | policy.b=5/10s
    50: decide -> yes; 20: decide_all p:1 b:1 -> no, after 40, binds 0, left 0
    59.999999: decide_all p:1 b:1 -> no
    60: decide_all p:1 b:1 -> yes, stamp 60.0+60.0
test_a_part_with_slots_ahead_holds_all_and_moves_none: 3/10s | policy.b=2/10s
    decide on=b -> yes; schedule not_before=30 -> wait 30
    decide_all b:1 p:1 -> no, after 30, binds 1, left 1, by 3/10s
    30: decide_all b:1 p:1 -> yes, stamp 30.0+30.000001
test_quiet_hours_are_asked_of_each_part_at_its_own_time: not between 22:00 and 08:00, 5/h | policy.b=5/h
    when 2024-05-06T21:59:50 UTC; decide -> yes; when 2024-05-06T22:00:30 UTC; decide on=b -> yes
    later -40; decide_all b:1 p:1 -> yes; later 40
    decide_all b:1 p:1 -> no, after 35970, binds 1, by not between 22:00 and 08:00
test_of_parts_that_are_alike_the_first_is_named: 3/10s, 3/20s | policy.b=3/11s,3/20s | policy.c=3/12s,3/20s
    decide_all p:1 b:1 c:1 -> yes, binds 0, by 3/10s; decide_all p:1:x b:1:y c:1:z -> yes yes, binds 0 0, by 3/10s
    decide_all p:1:x b:1:y c:1:z -> left 1; decide_all p:1:x b:1:v c:1:w -> yes, left 0, binds 1
    decide_all p:1 b:1 c:1 -> no, binds 1, after 20; decide_all p:4 b:4 c:4 -> no, binds 0, after never, by 3/10s
"""


class JointTimeLaw(StoreSetting):
    """The checks."""

    vars().update(examples(_TIMES) | examples(_TIMES, several=True))

    def part(self, policy: str, number: int = 0, cost: int = 1, id: str | None = None, **names: Any) -> Attempt:
        """An attempt on one of the subjects."""
        return Attempt(policy, self.subject(number), cost, id, **names)

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
