"""Many at once equal the same one by one: batches, columns, receipts, long logs."""

import numpy as np
import pytest

from capline.limiter.limiter import Limiter
from capline.model.attempt import Attempt
from capline.model.errors import CaplineError, IdConflictError
from capline.testing.setting import DAY, StoreSetting


class ManyLaw(StoreSetting):
    """The checks."""

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
        single = [
            other.decide(attempt.policy, attempt.subject, attempt.cost, attempt.id, segment=attempt.segment)
            for attempt in attempts
        ]
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
        assert many.allowed.tolist() == [answer.allowed for answer in single]
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
        assert limiter.peek_many("p", range(10)).allowed.tolist() == [row not in (5, 7, 9) for row in range(10)]

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
