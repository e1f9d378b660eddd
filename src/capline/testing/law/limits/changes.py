"""What a change of a policy's algorithm keeps of what was used."""

from __future__ import annotations

import pytest

from capline.model.attempt import Attempt
from capline.testing.setting import SECOND, StoreSetting

__all__ = ["ChangeLaw"]

each_counter = pytest.mark.parametrize("algorithm", ["sliding_counter", "fixed_window", "gcra"])


class ChangeLaw(StoreSetting):
    """The checks."""

    @each_counter
    @pytest.mark.parametrize("before", ["sliding_log", "bucketed"])
    def test_numbers_begin_with_what_the_hits_before_add_up_to(self, before: str, algorithm: str) -> None:
        limiter = self.one("10/hour", algorithm=before)
        assert limiter.decide("p", "s", 4, id="x")
        assert limiter.decide("p", "s", 6)
        limiter.use([self.policy("p", ["10/hour", "11/day"], algorithm=algorithm)])
        assert [one.used for one in limiter.usage("p", "s")] == [10, 10]
        assert not limiter.decide("p", "s")
        assert not limiter.decide_all([Attempt("p", "s")])
        assert not limiter.decide_many("p", ["s"]).allowed.any()
        assert limiter.decide("p", "s", 4, id="x"), "its first answer"
        limiter.use([self.policy("p", ["12/hour"], algorithm=algorithm)])
        assert sum(bool(limiter.decide("p", "s")) for _ in range(5)) == 2
        assert limiter.decide("p", "other", 12)

    @each_counter
    def test_what_is_out_of_a_window_is_not_carried_into_it(self, algorithm: str) -> None:
        limiter = self.one("100/day")
        assert limiter.decide("p", "s", 50)
        self.at(3600)
        assert limiter.decide("p", "s", 2)
        limiter.use([self.policy("p", ["3/hour", "60/day"], algorithm=algorithm)])
        assert [one.used for one in limiter.usage("p", "s")] == [2, 52]
        assert sum(bool(limiter.decide("p", "s")) for _ in range(3)) == 1

    @each_counter
    def test_a_carried_hit_is_given_back_once_and_takes_nothing_else(self, algorithm: str) -> None:
        limiter = self.one("3/hour")
        hits = [limiter.decide("p", "s").hit for _ in range(3)]
        limiter.use([self.policy("p", ["3/hour"], algorithm=algorithm)])
        assert [limiter.refund("p", "s", hits[0]) for _ in range(2)] == [True, False]
        assert limiter.usage("p", "s")[0].used == 2
        assert limiter.decide("p", "s")
        assert [limiter.refund("p", "s", hits[1]) for _ in range(2)] == [True, False]
        assert sum(bool(limiter.decide("p", "s")) for _ in range(4)) == 1

    @each_counter
    def test_policies_that_share_a_log_keep_each_its_own_numbers(self, algorithm: str) -> None:
        limiter = self.limiter(
            self.policy("h", ["2/hour"], algorithm=algorithm, log="both"),
            self.policy("d", ["3/day"], algorithm=algorithm, log="both"),
        )
        assert all(limiter.decide(name, "s", id=f"{i}") for i, name in enumerate("hhddd"))
        self.clock.advance_us(SECOND)
        assert not any(limiter.decide(name, "s") for name in "hd")

    def test_numbers_of_another_algorithm_are_never_damage(self) -> None:
        """A level takes the last of a counter's sums for its own: given back, it does not move before the others."""
        limiter = self.one("6/30us", "9/60us")
        assert limiter.decide("p", "s")
        hit = limiter.decide("p", "s", 2).hit
        self.clock.advance_us(1)
        assert limiter.charge("p", "s", 9)
        limiter.use([self.policy("p", ["6/30us", "9/60us"], algorithm="sliding_counter")])
        assert limiter.schedule("p", "s").wait_us
        limiter.use([self.policy("p", ["6/30us", "9/60us"], algorithm="gcra")])
        assert limiter.refund("p", "s", hit)
        assert limiter.schedule("p", "s")
        assert len(limiter.usage("p", "s")) == 2
