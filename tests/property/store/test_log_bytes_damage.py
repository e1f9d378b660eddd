"""Logs read back from the embedded store, damaged in any way: an error of their subject, and never an admission."""

from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.profiles import size

from capline import Limiter, ManualClock, Policy, StoreDamagedError, StoreError, StoreVersionError
from capline.store.local import log_bytes as packed
from capline.store.local.log import ColumnLog

POLICY = Policy("p", ["3/day"])
KEY = b"\0\0\0\1tsomebody"
FULL, ELSE = "full", "else"


@st.composite
def values(draw: st.DrawFn) -> bytes:
    """A packed log of some hits, of either form."""
    log, stamp = ColumnLog(), 0
    for _ in range(draw(st.integers(1, 12))):
        stamp += draw(st.integers(1, 10**9))
        log.record(stamp, draw(st.integers(1, 10**6)), stamp, draw(st.integers(0, 2**63)))
    return draw(st.sampled_from([packed.pack_log(log, KEY), packed.pack_unit_log(log.stamps, KEY)]))


def read_any(value: bytes, key: bytes = KEY) -> None:
    if packed.read_plain(value, key) is None:
        packed.unpack_log(*packed.read_words(value, key))


@given(st.binary(max_size=200))
@example(b"")
def test_bytes_that_nobody_packed_are_no_log(data: bytes) -> None:
    with pytest.raises(StoreError):
        read_any(data)


@given(values(), st.data())
def test_a_log_that_was_changed_is_no_log(value: bytes, data: st.DataObject) -> None:
    read_any(value)
    at = data.draw(st.integers(0, len(value)))
    instead, length = data.draw(st.binary(max_size=12)), data.draw(st.integers(0, 12))
    broken = value[:at] + instead + value[at + length :]
    if broken != value:
        with pytest.raises(StoreError):
            read_any(broken)


@given(values(), st.integers(0, len(KEY) * 8 - 1))
def test_a_log_under_another_key_is_no_log(value: bytes, bit: int) -> None:
    other = bytearray(KEY)
    other[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StoreDamagedError):
        read_any(value, bytes(other))


@given(st.binary(max_size=40), st.integers(0, 319))
def test_a_sealed_value_is_read_under_its_key_only_and_only_unchanged(value: bytes, bit: int) -> None:
    sealed = packed.seal(KEY, value)
    assert packed.unseal(KEY, sealed) == value
    broken = bytearray(sealed)
    broken[bit // 8 % len(sealed)] ^= 1 << bit % 8
    for key, found in ((KEY, bytes(broken)), (KEY + b"x", sealed), (KEY, sealed[:3])):
        with pytest.raises(StoreDamagedError):
            packed.unseal(key, found)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which one subject is at its limit."""
    path = tmp_path_factory.mktemp("store")
    with opened(path) as limiter:
        assert all(limiter.decide("p", FULL) for _ in range(3))
    return path


def opened(path: Path) -> Limiter:
    return Limiter(f"lmdb://{path}", [POLICY], clock=ManualClock(10**15))


@settings(max_examples=size(8, 40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_in_the_store_itself_a_damaged_log_admits_nothing_and_others_go_on(place: Path, data: st.DataObject) -> None:
    with lmdb.open(str(place), max_dbs=8) as env, env.begin(write=True) as txn:
        logs = env.open_db(b"logs", txn)
        rows = [(bytes(key), bytes(value)) for key, value in txn.cursor(logs) if FULL.encode() in bytes(key)]
        [(key, value)] = rows
        at, instead = data.draw(st.integers(0, len(value))), data.draw(st.binary(max_size=9))
        broken = value[:at] + instead + value[at + data.draw(st.integers(0, 9)) :]
        txn.put(key, broken, db=logs)
    try:
        with opened(place) as limiter:
            if broken == value:
                assert not limiter.decide("p", FULL)
            else:
                for _ in range(2):
                    with pytest.raises((StoreDamagedError, StoreVersionError)):
                        limiter.decide("p", FULL)
                answers = limiter.decide_many("p", [FULL])
                assert isinstance(answers.errors[0], (StoreDamagedError, StoreVersionError))
            assert limiter.peek("p", ELSE)
    finally:
        with lmdb.open(str(place), max_dbs=8) as env, env.begin(write=True) as txn:
            txn.put(key, value, db=env.open_db(b"logs", txn))
