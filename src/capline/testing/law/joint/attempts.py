"""Several subjects in one attempt: all or nothing."""

from typing import Any

import pytest

from capline.model.attempt import Attempt
from capline.model.clock import ManualClock
from capline.model.errors import CaplineError, IdConflictError, InvalidValueError
from capline.testing.examples import examples
from capline.testing.setting import SECOND, START_US, StoreSetting, each_algorithm

HOUR = 3600 * SECOND


class JointLaw(StoreSetting):
    """The checks."""

    vars().update(
        examples("""
        test_a_joint_attempt_waits_for_all_of_its_parts: 1/10s | policy.slow=1/60s
            | policy.night=not between 22:00 and 08:00
            when 2024-05-06T21:59:30 UTC; decide_all p:1 slow:1 -> yes; decide_all p:1 slow:1 -> no, after 60, binds 1
            decide_all p:1 night:1 -> no, after 10; decide_all slow:1 night:1 -> no, after 36030, binds 0
        test_a_retry_names_the_part_that_had_least_left: 9/day | policy.b=3/day | policy.c=3/day
            decide_all p:1 b:1 c:1 id=x -> left 2 2, binds 1 1, by 3/day
            peek_all p:1 b:1 c:1 id=x -> left 2, binds 1, by 3/day
        """)
    )

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

    def test_limits_may_come_with_an_attempt(self) -> None:
        limiter = self.joint()
        parts = [
            Attempt("user", "a"),
            Attempt("route", "a", 2, limits=["5/min", "9/h"]),
            Attempt("route", "a", limits=["3/s"]),
        ]
        taken = limiter.decide_all(parts)
        assert (taken.remaining, str(taken.limit), taken.binds, [len(states) for states in taken.limits]) == (
            1,
            "2/day",
            0,
            [1, 2, 1],
        )
        assert limiter.decide_all(parts)
        refused = limiter.decide_all(parts[1:])
        assert (refused.allowed, str(refused.limit), refused.binds) == (False, "5/minute", 0)
        assert limiter.peek("route", "a", limits=["3/s"]).remaining == 0, "the refusal took nothing"
        assert limiter.peek_all(parts[2:]).remaining == 0
        assert limiter.refund_all(parts, taken.hits) == 3
        first, other, wrong = limiter.decide_batch([parts[1], parts[2], Attempt("user", "a", limits=["1/s"])])
        assert (first.remaining, other.remaining) == (1, 1)
        assert isinstance(wrong, InvalidValueError), "a policy that is defined keeps its limits"
        with pytest.raises(InvalidValueError, match="on the same log"):
            limiter.decide_all([parts[2], parts[2]])

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
        again = limiter.decide_all(parts)
        assert again.hits[1] == first.hits[1], "of the campaign it is the same one still"
        assert again.hits[0] != first.hits[0]
        with pytest.raises(IdConflictError):
            limiter.decide_all([Attempt("user", "a", 2, id="x"), Attempt("tenant", "t")])
        assert limiter.peek("tenant", "t").remaining == 7

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

    def test_each_part_is_stamped_at_the_time_of_its_own_log(self) -> None:
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
        assert joint.hits == (START_US - 60 * SECOND, START_US + 1)
