"""Refusals that count (`count_denied`): an id that was allowed outlives them."""

import pytest

from capline.model.errors import IdConflictError
from capline.testing.setting import DAY, SECOND, StoreSetting


class DeniedLaw(StoreSetting):
    """The checks."""

    @pytest.mark.parametrize(("cost", "hammered"), [(2, 40), (9, 8)])
    @pytest.mark.parametrize("algorithm", ["sliding_log", "bucketed"])
    def test_an_id_is_known_however_many_refusals_were_counted(self, algorithm: str, cost: int, hammered: int) -> None:
        limiter = self.one("3/10s", "8/day", count_denied=True, algorithm=algorithm)
        first = limiter.decide("p", "s", 2, id="m1")
        assert first.allowed
        for _ in range(hammered):
            self.clock.advance_us(7000)
            assert not limiter.decide("p", "s", cost)
        retried = limiter.decide("p", "s", 2, id="m1")
        assert (retried.allowed, retried.hit) == (True, first.hit)
        with pytest.raises(IdConflictError):
            limiter.decide("p", "s", 1, id="m1")
        hits = limiter.explain("p", "s", ids=["m1"]).hits
        assert (hits[0].stamp_us, hits[0].units, hits[0].id) == (first.hit, 2, "m1")
        assert len(hits) <= 1 + 2 * 8 + 1, "a hammered log stays short"
        assert limiter.refund("p", "s", first.hit, 2)
        assert not limiter.refund("p", "s", first.hit, 2)
        assert not limiter.decide("p", "s", 2, id="m1"), "given back, its id is new, and the door is shut"

    def test_several_ids_are_known_and_the_rest_is_forgotten(self) -> None:
        limiter = self.one("6/10s", count_denied=True)
        ids = ["a", None, "b", None, "c"]
        allowed = {id: limiter.decide("p", "s", id=id) for id in ids}
        assert limiter.decide("p", "s")
        for _ in range(60):
            self.clock.advance_us(1000)
            assert not limiter.decide("p", "s")
        for id in ("a", "b", "c"):
            assert limiter.decide("p", "s", id=id).hit == allowed[id].hit
        hits = limiter.explain("p", "s", ids=["a", "b", "c"]).hits
        assert [hit.id for hit in hits[:6]] == ["a", None, "b", None, "c", None]
        assert len(hits) <= 6 + 13, "of the refusals the newest 12 units and a hit"
        self.clock.advance_us(10 * SECOND + 1)
        assert limiter.decide("p", "s", 6), "what an id keeps counts no longer than its window"
        self.clock.advance_us(DAY)
        assert limiter.decide("p", "s", id="a").hit != allowed["a"].hit

    @pytest.mark.parametrize("many", [9, 70, 200])
    @pytest.mark.parametrize("algorithm", ["sliding_log", "bucketed"])
    def test_what_was_allowed_outlives_a_quota_that_was_smaller_for_a_while(self, algorithm: str, many: int) -> None:
        policy = self.policy("p", ["3/day"], count_denied=True, algorithm=algorithm)
        limiter = self.limiter(policy, config="memory://")
        limiter.override("p", "s", ["300/day"])
        for _ in range(many):
            self.clock.advance_us(10 * SECOND)
            assert limiter.decide("p", "s")
        limiter.override("p", "s", None)
        for _ in range(4 * many):
            self.clock.advance_us(10 * SECOND)
            assert not limiter.decide("p", "s")
        limiter.override("p", "s", ["300/day"])
        used = limiter.usage("p", "s")[0].used
        assert many < used <= 5 * many, "each hit, and some of the refusals"
        assert len(limiter.explain("p", "s").hits) <= 2.5 * many + 60, "a hammered log stays short"
        self.clock.advance_us(DAY)
        assert limiter.usage("p", "s")[0].used == 0

    def test_an_id_is_known_in_a_long_log(self) -> None:
        limiter = self.one("150/10s", "900/day", count_denied=True)
        first = limiter.decide("p", "s", id="old")
        many = [limiter.decide("p", "s", id=f"m{i}" if i % 3 == 0 else None) for i in range(149)]
        for _ in range(20):
            self.clock.advance_us(1000)
            assert not limiter.decide_many("p", ["s"] * 100).allowed.any()
        assert limiter.decide("p", "s", id="old").hit == first.hit
        assert all(limiter.decide("p", "s", id=f"m{i}").hit == many[i].hit for i in range(0, 149, 3))
        assert len(limiter.explain("p", "s").hits) < 4 * 900
        self.clock.advance_us(DAY + SECOND)
        assert limiter.decide("p", "s", 150)
