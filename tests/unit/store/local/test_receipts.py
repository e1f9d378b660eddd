"""Receipts in a store that lives long: those that have expired go on the way, a few at a time.

A nightly batch has a receipt each night, and perhaps never a new subject.
"""

# pyright: reportPrivateUsage=false

import zlib
from pathlib import Path

import pytest

from capline import IdConflictError, Limiter, ManualClock, Policy
from capline.store.local.lmdb.check import check_store
from capline.store.local.memory import MemoryStore

MANY = 400


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_receipts_that_expired_go_as_new_ones_come(kind: str, tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    with Limiter(url_of(kind, tmp_path), [Policy("p", ["3/s"])], clock=clock) as limiter:
        for number in range(MANY):
            assert limiter.decide_many("p", [1], receipt=f"r{number}").allowed.all()
            clock.advance_us(1_000_000)
        store = limiter._store
    kept = len(store._receipts) if isinstance(store, MemoryStore) else check_store(tmp_path).receipts
    assert kept < MANY / 20


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_a_receipt_that_has_not_expired_stays(kind: str, tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    with Limiter(url_of(kind, tmp_path), [Policy("p", ["3/day"])], clock=clock) as limiter:
        first = limiter.decide_many("p", [1], receipt="first")
        for number in range(MANY):
            limiter.decide_many("p", [number + 2], receipt=f"r{number}")
        again = limiter.decide_many("p", [1], receipt="first")
        assert again.hit.tolist() == first.hit.tolist()


def test_both_releases_read_what_either_wrote() -> None:
    """What stands behind the columns is the new one's: the other reads up to it, and neither counts twice."""
    with Limiter("memory://", [Policy("p", ["3/day"])], clock=ManualClock(1_000_000)) as limiter:
        store = limiter._store
        assert isinstance(store, MemoryStore)
        first = list(limiter.decide_many("p", [1, 2, 1], receipt="r"))
        [(name, (expires_us, value))] = store._receipts.items()
        columns = zlib.decompressobj()
        assert zlib.decompress(value[16:]) == columns.decompress(value[16:]), "as the previous release does"
        assert columns.unused_data
        store._receipts[name] = expires_us, value[: -len(columns.unused_data)]
        assert list(limiter.decide_many("p", [1, 2, 1], receipt="r")) == first
        limiter.use([Policy("p", ["4/day"])])
        with pytest.raises(IdConflictError):
            limiter.decide_many("p", [1, 2, 1], receipt="r")
        store._receipts[name] = expires_us, value
        assert list(limiter.decide_many("p", [1, 2, 1], receipt="r")) == first


def url_of(kind: str, directory: Path) -> str:
    return f"lmdb://{directory}" if kind == "lmdb" else "memory://"
