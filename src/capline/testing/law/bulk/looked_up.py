"""A segment that is looked up answers as one that the caller names, in every verb."""

from typing import Any

import numpy as np
import pytest

from capline.limiter.limiter import Limiter
from capline.model.attempt import Attempt
from capline.model.errors import InvalidValueError
from capline.testing.setting import StoreSetting

NAMED: dict[int, str | None] = {1: "new", 2: "active", 3: None, 4: None, 2**32 - 1: "active"}
"""Subjects and what binds them; 3 is in a segment that the policy does not list."""


class LookedUpLaw(StoreSetting):
    """The checks."""

    def looking_up(self, **options: Any) -> tuple[Any, Limiter]:
        """A limiter that looks segments up, and a reference that is told them."""
        from capline.segment import IdSet, Snapshot  # noqa: PLC0415 - roaring is an extra, which other laws do without

        policies = [
            self.policy("p", ["4/day"], by_segment={"new": ["1/day"], "active": ["2/day", "3/week"]}),
            self.policy("q", ["2/day"]),
        ]
        sets = {"active": IdSet([2, 2**32 - 1]), "lapsed": IdSet([3]), "new": IdSet([1]), "vip": IdSet([4])}
        segments = Snapshot(sets, "monday", overlapping=["vip"])
        limiter = self.limiter(*policies, segments=segments, **options)
        return limiter, Limiter("memory://", policies=policies, clock=self.clock)

    @pytest.mark.parametrize("options", [{}, {"deny_cache": 100}, {"subject_key": b"k" * 16}], ids=str)
    def test_one_by_one(self, options: dict[str, Any]) -> None:
        limiter, told = self.looking_up(**options)
        for subject, name in NAMED.items():
            for _ in range(3):
                assert limiter.peek("p", subject) == told.peek("p", subject, segment=name)
                assert limiter.decide("p", subject).limit == told.decide("p", subject, segment=name).limit
            answer, known = limiter.decide("p", subject, 2, id="m"), told.decide("p", subject, 2, "m", segment=name)
            assert (answer.allowed, answer.limit, answer.remaining) == (known.allowed, known.limit, known.remaining)
            why = limiter.explain("p", subject)
            assert [state.limit for state in why.limits] == [
                state.limit for state in told.explain("p", subject, segment=name).limits
            ]
            slot, same = limiter.schedule("p", subject), told.schedule("p", subject, segment=name)
            assert (slot.allowed, slot.limit, slot.wait) == (same.allowed, same.limit, same.wait)
            assert limiter.refund("p", subject, slot.hit) == told.refund("p", subject, same.hit)

    def test_in_batches(self) -> None:
        limiter, told = self.looking_up()
        ids = [*NAMED, *NAMED, 1]
        attempts = [Attempt("p", subject) for subject in ids]
        named = [Attempt("p", subject, segment=NAMED[subject]) for subject in ids]
        assert limiter.decide_batch(attempts) == told.decide_batch(named)
        names = [NAMED[subject] for subject in ids]
        for subjects in (ids, np.array(ids, np.uint64), np.array(ids, np.int64)):
            assert list(limiter.decide_many("p", subjects)) == list(told.decide_many("p", subjects, segment=names))
            assert list(limiter.peek_many("p", subjects)) == list(told.peek_many("p", subjects, segment=names))
        together = [Attempt("p", 2), Attempt("q", "acme")]
        same = told.peek_all([Attempt("p", 2, segment="active"), Attempt("q", "acme")])
        assert limiter.peek_all(together).allowed is same.allowed is False
        assert limiter.decide_all(together).limit == same.limit

    def test_a_name_that_is_given_is_not_looked_up(self) -> None:
        limiter, told = self.looking_up()
        assert limiter.decide("p", 1, segment="active") == told.decide("p", 1, segment="active")
        assert limiter.decide("p", "ann", segment="new") == told.decide("p", "ann", segment="new")
        points = [0, 1, 1, 0]
        many = limiter.decide_many("p", [1, 1, 2, 2], segment=["active", None], codes=points)
        names = ["active", "new", "active", "active"]
        assert list(many) == list(told.decide_many("p", [1, 1, 2, 2], segment=names))

    def test_a_subject_that_can_be_in_no_segment_is_an_error_of_its_own(self) -> None:
        limiter, _ = self.looking_up()
        for subject in ("ann", 2**32):
            with pytest.raises(InvalidValueError, match="name its segment"):
                limiter.decide("p", subject)
        many = limiter.decide_many("p", ["ann", 1, -1, 2**32, 2])
        assert many.allowed.tolist() == [False, True, False, False, True]
        assert sorted(many.errors) == [0, 2, 3]
        many = limiter.peek_many("p", np.array([2**63, 4], np.uint64))
        assert (list(many.errors), many.allowed.tolist()) == ([0], [False, True])
        assert limiter.decide("q", "ann")  # a policy that does not differ looks nothing up

    def test_a_receipt_answers_again(self) -> None:
        limiter, _ = self.looking_up()
        first = limiter.decide_many("p", [1, 2, 3], receipt="r")
        assert list(limiter.decide_many("p", [1, 2, 3], receipt="r")) == list(first)

    def test_a_receipt_answers_again_after_the_segments_have_changed(self) -> None:
        """The caller named none: whoever it was that they were, the batch is the same."""
        from capline.segment import FixedSegments, IdSet, Snapshot  # noqa: PLC0415 - as above

        source = FixedSegments(Snapshot({"new": IdSet([1]), "active": IdSet([2])}, "monday"))
        policy = self.policy("p", ["4/day"], by_segment={"new": ["1/day"], "active": ["2/day", "3/week"]})
        limiter = self.limiter(policy, segments=source)
        first = list(limiter.decide_many("p", [1, 2, 3], receipt="r"))
        source.current = Snapshot({"new": IdSet([2, 3]), "active": IdSet([1])}, "tuesday")
        assert list(limiter.decide_many("p", [1, 2, 3], receipt="r")) == first
        assert limiter.peek("p", 1, segment="active").remaining == 0
