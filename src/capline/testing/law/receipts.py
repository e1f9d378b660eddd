"""Receipts: in one namespace a receipt names one batch, whatever the policy, on every store alike."""

from __future__ import annotations

from typing import Any

import pytest

from capline.model.errors import IdConflictError
from capline.testing.setting import DAY, StoreSetting

__all__ = ["ReceiptLaw"]


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
        asked: dict[str, Any] = {"subjects": ["s", "t"], "receipt": "r"}
        first = limiter.decide_many("p", **asked)
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
                limiter.decide_many("p", **{**asked, **other})
        assert list(limiter.decide_many("p", **asked, zone="UTC")) == list(first), "the policy's own zone"
        assert limiter.peek("p", "s").remaining == 9 - 2

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
