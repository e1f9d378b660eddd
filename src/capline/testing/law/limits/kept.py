"""Units that must stay free: judged with the cost, never recorded, under every algorithm, by every verb that asks."""

from typing import Any

import pytest

from capline.model.attempt import Attempt
from capline.model.errors import CaplineError, IdConflictError, InvalidValueError
from capline.testing.examples import examples
from capline.testing.setting import SECOND, StoreSetting, each_algorithm

_BAD: tuple[Any, ...] = (-1, True, 1.5, "2", None, [1], [1, 1, 1], [1, -1], [1, "x"], 1 << 53)


class KeptLaw(StoreSetting):
    """The checks."""

    vars().update(
        examples("""
        test_an_id_that_is_known_gets_its_first_answer_whatever_it_asks_to_keep: 3/10s | algorithm=*
            decide id=x keep_free=3 -> no; a = decide id=x keep_free=2 -> yes; decide id=x keep_free=3 -> yes, hit $a
            decide 2 id=x keep_free=0 -> raises IdConflictError; usage -> used 1
        test_a_reserved_unit_is_used_and_one_that_ended_is_free: 3/min | reservations=True
            reserve ttl=5 -> yes; decide keep_free=2 -> no; decide keep_free=1 -> yes; 5: decide keep_free=1 -> yes
        """)
    )

    @each_algorithm
    @pytest.mark.parametrize("limits", [["5/10s"], ["5/10s", "8/min"], ["200/10s", "300/min"]])
    def test_it_is_judged_as_the_cost_and_more_and_recorded_as_the_cost(
        self, algorithm: str, limits: list[str]
    ) -> None:
        limiter, refused = self.one(*limits, algorithm=algorithm), 0
        large = limits[0].startswith("200")
        if large:  # a log that a server keeps in its long form
            assert limiter.decide_many("p", ["s"] * 170).allowed.all()
        for step in range(24):
            self.clock.advance_us(SECOND * (step % 3) + step)
            cost, kept = (1, 1, 2, 3)[step % 4], (1, 3, 0, 2, 5)[step % 5] * (25 if large else 1)
            look, before = limiter.peek("p", "s", cost + kept), self.used(limiter)
            assert limiter.peek("p", "s", cost, keep_free=kept).allowed == look.allowed
            decision = limiter.decide("p", "s", cost, keep_free=kept)
            assert (decision.allowed, decision.retry_after_us) == (look.allowed, look.retry_after_us), step
            assert decision.remaining == look.remaining + kept * look.allowed
            assert (decision.hit is None) == (not look.allowed)
            assert [state.remaining for state in decision.limits] == [
                state.remaining + kept * look.allowed for state in look.limits
            ]
            assert self.used(limiter) == [used + cost * look.allowed for used in before]
            refused += not decision.allowed
        assert 24 > refused > 1

    def test_it_asks_as_much_of_each_limit_or_another_number_of_each(self) -> None:
        limiter = self.one("3/10s", "not between 01:00 and 02:00", "6/min", channels={"push": ["4/20s"]})
        for subject, kept in enumerate((2, [2, 0, 0], [2, 0, 5])):
            assert limiter.decide("p", subject, keep_free=kept)
        for kept, binds in ((3, "3/10s"), ([0, 0, 6], "6/minute"), ([3, 0, 6], "3/10s")):
            refused = limiter.decide("p", "s", keep_free=kept)
            assert (str(refused.limit), refused.retry_after_us, refused.remaining) == (binds, None, 3)
        for kept, allowed in (([2, 0, 5, 3], True), ([0, 0, 0, 3], False), ([1, 0, 4, 2], True), (1, False)):
            decision = limiter.decide("p", "s", keep_free=kept, channel="push")
            assert decision.allowed == allowed, kept
        assert self.used(limiter, channel="push") == [2, 0, 2, 2]

    def test_numbers_are_kept_by_the_places_of_their_limits(self) -> None:
        limiter = self.one("6/min", "not between 01:00 and 02:00", "3/10s", algorithm="gcra")
        assert str(limiter.decide("p", "s", keep_free=[0, 0, 3]).limit) == "3/10s"
        assert str(limiter.decide("p", "s", keep_free=[6, 0, 0]).limit) == "6/minute"
        assert limiter.decide("p", "s", keep_free=[5, 0, 2])

    @pytest.mark.parametrize("options", [{}, {"algorithm": "bucketed", "granularity": "1s"}])
    def test_a_refusal_that_it_caused_alone_counts_not_and_any_other_does(self, options: dict[str, str]) -> None:
        limiter = self.one("3/10s", count_denied=True, **options)
        assert limiter.decide("p", "s", keep_free=2)
        assert not limiter.decide("p", "s", keep_free=2)
        assert self.used(limiter) == [1]
        assert limiter.decide("p", "s", 2)
        for _ in range(2):
            assert not limiter.decide("p", "s", keep_free=1)
        assert self.used(limiter) == [5]

    def test_no_deny_cache_has_what_it_refused(self) -> None:
        limiter = self.limiter(self.policy("p", ["3/10s"]), deny_cache=10)
        assert not limiter.decide("p", "s", keep_free=3)
        assert [limiter.decide("p", "s", cost).origin for cost in (3, 1, 1)] == ["store", "store", "deny-cache"]
        assert not limiter.decide("p", "s", keep_free=1)

    @each_algorithm
    def test_rows_keep_what_each_of_them_asks(self, algorithm: str) -> None:
        limiter, alone = (
            self.limiter(self.policy("p", ["3/10s", "8/min"], algorithm=algorithm), namespace=f"{self.namespace}{way}")
            for way in "ab"
        )
        subjects: list[str | int] = ["a", "b", 7, "a", "b", 7]
        for kept in (1, [0, 1, 2, 3, 2, 1], [[2, 0], [0, 7], [0, 8], [3, 3], [0, 7], [0, 0]], [[2, 0]]):
            self.clock.advance_us(4 * SECOND)
            each: Any = [kept] * 6 if isinstance(kept, int) else kept * 6 if len(kept) == 1 else kept
            for verb in ("peek", "decide"):
                many = [*getattr(limiter, f"{verb}_many")("p", subjects, keep_free=kept)]
                rows = zip(subjects, each, strict=True)
                assert many == [getattr(alone, verb)("p", subject, keep_free=one) for subject, one in rows], (
                    verb,
                    kept,
                )

    def test_rows_keep_it_under_their_segments_and_overrides(self) -> None:
        limiter = self.limiter(
            self.policy("p", ["3/10s"], by_segment={"new": ["2/10s", "9/min"]}), config=f"lmdb://{self.tmp}/config"
        )
        if not self.asynchronous:
            limiter.override("p", "own", ["5/10s"])
            assert [limiter.decide("p", "own", keep_free=kept).allowed for kept in (5, 4)] == [False, True]
        many = limiter.decide_many("p", [*"abcd"], segment=[None, "new"], codes=[0, 1, 0, 1], keep_free=[2, 2, 3, 1])
        assert many.allowed.tolist() == [True, False, False, True]
        kept = [[2, 0], [1, 9], [3, 0], [1, 8]]
        many = limiter.decide_many("p", [*"efgh"], segment=[None, "new"], codes=[0, 1, 0, 1], keep_free=kept)
        assert many.allowed.tolist() == [True, False, False, True]
        with pytest.raises(InvalidValueError, match="1 limits here"):
            limiter.decide("p", "e", keep_free=[1, 1])

    def test_a_receipt_is_of_what_was_to_stay_free_too(self) -> None:
        limiter = self.one("3/10s")
        first = [*limiter.decide_many("p", ["a", "b"], keep_free=[1, 3], receipt="r")]
        assert [decision.allowed for decision in first] == [True, False]
        assert [*limiter.decide_many("p", ["a", "b"], keep_free=[1, 3], receipt="r")] == first
        for other in ({}, {"keep_free": 1}, {"keep_free": [3, 1]}):
            with pytest.raises(IdConflictError):
                limiter.decide_many("p", ["a", "b"], receipt="r", **other)
        same = [*limiter.decide_many("p", ["c", "d"], receipt="s")]
        assert [*limiter.decide_many("p", ["c", "d"], keep_free=[0, 0], receipt="s")] == same
        assert self.used(limiter, "c") == [1]

    @each_algorithm
    def test_parts_of_one_attempt_keep_what_each_of_them_asks(self, algorithm: str) -> None:
        limiter = self.limiter(self.policy("p", ["3/10s"], algorithm=algorithm), self.policy("q", ["9/10s"]))
        for kept, allowed in ((3, False), (2, True), (2, False), (1, True)):
            parts = [Attempt("q", 7), Attempt("p", 8, keep_free=kept)]
            assert limiter.peek_all(parts).allowed == allowed
            joint = limiter.decide_all(parts)
            assert (joint.allowed, joint.binds, len(joint.hits)) == (allowed, 1, 2 * allowed)
        rows = limiter.decide_batch([Attempt("q", 7, keep_free=7), Attempt("p", 8, keep_free=[1]), Attempt("p", 9, 3)])
        assert [row.allowed for row in rows] == [False, False, True]

    @pytest.mark.parametrize("bad", _BAD)
    def test_what_is_no_number_of_units_is_one_clear_line(self, bad: Any) -> None:
        limiter = self.one("3/10s", "8/min")
        for verb in (limiter.decide, limiter.peek):
            with pytest.raises(CaplineError, match="keep_free") as error:
                verb("p", "s", keep_free=bad)
            assert "\n" not in str(error.value)
        with pytest.raises(CaplineError, match="keep_free"):
            limiter.decide_many("p", ["s"] * 4, keep_free=bad)
        [row] = limiter.decide_batch([Attempt("p", "s", keep_free=bad)])
        assert "keep_free" in str(row)
        with pytest.raises(CaplineError, match="quiet hours"):
            self.one("3/10s", "not between 01:00 and 02:00").decide("p", "s", keep_free=[1, 1])
