"""Receipts: in one namespace a receipt names one batch, whatever the policy, on every store alike."""

from typing import Any

import pytest

from capline.model.errors import IdConflictError, UnknownNameError
from capline.model.policy import Policy
from capline.testing.setting import DAY, POPULATION, StoreSetting


class ReceiptLaw(StoreSetting):
    """The checks."""

    @pytest.mark.parametrize("same_log", [True, False])
    def test_a_receipt_that_comes_with_another_policy_is_a_conflict(self, same_log: bool) -> None:
        log = {"log": "common"} if same_log else {}
        limiter = self.limiter(self.policy("a", ["2/day"], **log), self.policy("b", ["2/day"], **log))
        first = limiter.decide_many("a", ["s", "t"], receipt="r")
        with pytest.raises(IdConflictError, match="receipt 'r' was given for another batch"):
            limiter.decide_many("b", ["s", "t"], receipt="r")
        assert limiter.peek("b", "s").remaining == (0 if same_log else 1), "and nothing was consumed"
        assert list(limiter.decide_many("a", ["s", "t"], receipt="r")) == list(first)

    def test_a_receipt_that_comes_with_another_question_is_a_conflict(self) -> None:
        limiter = self.one(
            "9/calendar-day", by_segment={"new": ["8/calendar-day"]}, channels={"push": ["5/day"]}, zone="UTC"
        )
        batch: dict[str, Any] = {"subjects": ["s", "t"], "receipt": "r"}
        first = limiter.decide_many("p", **batch)
        others: list[dict[str, Any]] = [
            {"zone": "Asia/Tokyo"},
            {"segment": "new"},
            {"cost": 2},
            {"channel": "push"},
            {"subjects": ["t", "s"]},
            {"subjects": ["s"]},
            {"segment": [None, "new"]},
            {"segment": ["new", None]},
        ]
        for other in others:
            with pytest.raises(IdConflictError):
                limiter.decide_many("p", **{**batch, **other})
        assert list(limiter.decide_many("p", **batch, zone="UTC")) == list(first), "the policy's own zone"
        assert limiter.peek("p", "s").remaining == 9 - 2

    def test_the_first_answers_come_back_whatever_was_changed_in_between(self) -> None:
        """Overrides, quotas, windows, channels, algorithms, layouts: a receipt covers what the caller passed."""
        before = self.policy("p", ["2/day"], by_segment={"new": ["1/day"]})
        limiter = self.limiter(before, config="memory://")
        limiter.override("p", "t", ["3/day"])
        batch: dict[str, Any] = {"subjects": ["s", "t", "s", "u", "s"], "segment": [None, None, None, "new", None]}
        first = list(limiter.decide_many("p", **batch, receipt="r"))
        assert [answer.allowed for answer in first] == [True, True, True, True, False]
        changes: list[dict[str, Any]] = [
            {"limits": ["9/day"]},
            {"limits": ["2/day"], "by_segment": {"new": ["4/hour", "5/day"], "old": ["1/day"]}},
            {"limits": ["300/hour", "4/calendar-day"], "zone": "Asia/Tokyo"},
            {"limits": ["2/day"], "population": 9_000},
            {"limits": ["2/day"], "layout": "bucket" if self.layout == "subject" else "subject"},
            {"limits": ["2/day"], "count_denied": True},
            {"limits": ["7/hour"], "algorithm": "bucketed"},
            {"limits": ["7/hour", "8/day"], "log": "other"},
        ]
        options: dict[str, Any] = {"by_segment": {"new": ["1/day"]}}
        options |= {"layout": self.layout, "population": POPULATION}
        for change in changes:
            limiter.use([Policy("p", **(options | change))])
            assert list(limiter.decide_many("p", **batch, receipt="r")) == first, change
            with pytest.raises(IdConflictError):
                limiter.decide_many("p", **{**batch, "segment": None}, receipt="r")
        limiter.use([before])
        for limits in (["1/day"], ["400/week"], None):
            limiter.override("p", "s", limits)
            assert list(limiter.decide_many("p", **batch, receipt="r")) == first
        used = [limiter.usage("p", subject)[0].used for subject in ("s", "t", "u")]
        assert used == [2, 1, 1], "and nothing was counted twice"

    def test_a_policy_that_is_gone_answers_again_once_it_is_back(self) -> None:
        policy = self.policy("p", ["2/day"])
        limiter = self.limiter(policy)
        first = list(limiter.decide_many("p", ["s"], receipt="r"))
        limiter.use([self.policy("q", ["2/day"])])
        with pytest.raises(UnknownNameError):
            limiter.decide_many("p", ["s"], receipt="r")
        limiter.use([policy])
        assert list(limiter.decide_many("p", ["s"], receipt="r")) == first

    def test_namespaces_have_receipts_of_their_own(self) -> None:
        policy = self.policy("p", ["2/day"])
        here, there = self.limiter(policy), self.limiter(policy, namespace=f"{self.namespace}-2")
        for limiter in (here, there):
            assert limiter.decide_many("p", ["s"], receipt="r").remaining.tolist() == [1]
        assert there.decide_many("p", ["s"], receipt="r").remaining.tolist() == [1]
        with pytest.raises(IdConflictError):
            there.decide_many("p", ["t"], receipt="r")

    def test_a_receipt_can_be_given_again_once_it_has_expired(self) -> None:
        limiter = self.limiter(self.policy("a", ["2/day"]), self.policy("b", ["2/week"]))
        limiter.decide_many("a", ["s"], receipt="r")
        self.clock.advance_us(DAY - 1)
        with pytest.raises(IdConflictError):
            limiter.decide_many("b", ["s"], receipt="r")
        self.clock.advance_us(1)
        assert limiter.decide_many("b", ["s"], receipt="r").remaining.tolist() == [1]
        self.clock.advance_us(DAY)
        with pytest.raises(IdConflictError):
            limiter.decide_many("a", ["s"], receipt="r")

    def test_a_receipt_is_no_log(self) -> None:
        limiter = self.limiter(self.policy("receipt", ["2/day"]), self.policy("p", ["2/day"]))
        limiter.decide_many("p", [1, 2], receipt="r")
        limiter.decide_many("receipt", [1], receipt="q")
        assert sorted((record.log, record.subject) for record in limiter.export()) == [
            ("p", 1),
            ("p", 2),
            ("receipt", 1),
        ]
        limiter.sweep()
        assert limiter.decide_many("p", [1, 2], receipt="r").remaining.tolist() == [1, 1]
