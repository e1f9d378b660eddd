"""Receipts in a process that lives long: those that have expired go on the way, a few at a time."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from capline import Limiter, ManualClock, Policy
from capline.store.local.memory import MemoryStore

MANY = 400


def test_receipts_that_expired_go_as_new_ones_come() -> None:
    clock = ManualClock(1_000_000)
    with Limiter("memory://", [Policy("p", ["3/s"])], clock=clock) as limiter:
        store = limiter._store
        assert isinstance(store, MemoryStore)
        for number in range(MANY):
            assert limiter.decide_many("p", [1], receipt=f"r{number}").allowed.all()
            clock.advance_us(1_000_000)
        assert len(store._receipts) < MANY / 20


def test_a_receipt_that_has_not_expired_stays() -> None:
    clock = ManualClock(1_000_000)
    with Limiter("memory://", [Policy("p", ["3/day"])], clock=clock) as limiter:
        first = limiter.decide_many("p", [1], receipt="first")
        for number in range(MANY):
            limiter.decide_many("p", [number + 2], receipt=f"r{number}")
        again = limiter.decide_many("p", [1], receipt="first")
        assert again.hit.tolist() == first.hit.tolist()
