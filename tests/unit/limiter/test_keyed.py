"""With a subject key no store ever sees a subject: every verb says its keyed hash instead."""

import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kit.limiter import behind_a_door, close

from capline import (
    AsyncLimiter,
    Attempt,
    InvalidTypeError,
    InvalidValueError,
    Limiter,
    LimitExceeded,
    ManualClock,
    Policy,
)

KEY = b"0123456789abcdef0123456789abcdef"
POLICY = Policy("p", ["3/day"], channels={"push": ["2/day"]})


def known_as(subject: str | int, key: bytes = KEY) -> str:
    """By the form that the documents give, on its own."""
    named = b"i" + subject.to_bytes(8, "big") if isinstance(subject, int) else b"t" + subject.encode()
    return "h" + hmac.new(key, named, hashlib.sha256).hexdigest()[:32]


@pytest.fixture(params=[(False, 0), (False, 9), (True, 0), (True, 9)], ids=str)
def setting(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    asynchronous, most = request.param
    limiter, door = behind_a_door(
        POLICY, asynchronous=asynchronous, clock=ManualClock(10**15), subject_key=KEY, deny_cache=most
    )
    yield limiter, door
    close(limiter)


def test_every_verb_says_the_hash_and_only_that(setting: tuple[Any, Any]) -> None:
    limiter, door = setting
    hit = limiter.decide("p", "user:42").hit
    assert limiter.refund("p", "user:42", limiter.decide("p", "user:42").hit)
    limiter.decide("p", "user:42", 2, id="x", channel="push")
    limiter.peek("p", "user:42")
    limiter.schedule("p", "user:42")
    assert limiter.refund("p", "user:42", hit)
    limiter.explain("p", "user:42")
    assert limiter.erase("user:42") == 2
    assert set(door.subjects) == {known_as("user:42")}
    door.subjects.clear()
    many = limiter.decide_many("p", np.array([42, 43]))
    limiter.peek_many("p", [42, 43])
    assert limiter.refund_many("p", [42, 43], many.hit).all()
    assert set(door.subjects) == {known_as(42), known_as(43)}
    limiter.decide_batch([Attempt("p", 42), Attempt("p", 43)])
    logs = door.store._tables["capline:p"].logs
    assert set(logs) == {known_as(42), known_as(43)}


def test_the_verbs_mean_one_subject(setting: tuple[Any, Any]) -> None:
    limiter, _ = setting
    limiter.decide("p", 7)
    limiter.decide_many("p", np.array([7, 2**40], np.uint64))
    [third, fourth] = limiter.decide_batch([Attempt("p", 7), Attempt("p", 7)])
    assert (bool(third), bool(fourth)) == (True, False)
    assert not limiter.decide("p", 7)
    assert limiter.decide("p", "7")
    assert len(limiter.explain("p", 7).hits) == 3


def test_what_comes_back_shows_the_callers_own_subject(setting: tuple[Any, Any]) -> None:
    limiter, _ = setting
    limiter.decide_many("p", ["user:42"] * 3)
    assert limiter.explain("p", "user:42").subject == "user:42"
    with pytest.raises(ValueError, match="512"):
        limiter.decide("p", "x" * 513)
    many = limiter.decide_many("p", ["a", "", -1])
    assert "512" in str(many.errors[1])
    assert "-1" in str(many.errors[2])


def test_a_refused_wait_shows_the_callers_own_subject() -> None:
    with Limiter("memory://", [Policy("p", ["1/day"])], subject_key=KEY) as limiter:
        limiter.decide("p", "user:42")
        with pytest.raises(LimitExceeded, match="'user:42'"), limiter.acquire("p", "user:42", timeout=0):
            pass


def test_another_key_is_another_subject(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}"
    for key, remaining in ((KEY, 2), (b"x" * 16, 2), (None, 2), (KEY, 1)):
        with Limiter(url, [POLICY], subject_key=key) as limiter:
            assert limiter.decide("p", 42).remaining == remaining
    assert b"user" not in (tmp_path / "data.mdb").read_bytes()


def test_who_rotates_the_key_begins_with_empty_logs_and_without_overrides(tmp_path: Path) -> None:
    """What the former key's hash had is found by that key alone, until it has aged."""
    config, url = f"lmdb://{tmp_path}/config", f"lmdb://{tmp_path}/store"
    before = Limiter(url, [POLICY], config=config, subject_key=KEY)
    with before, Limiter(url, [POLICY], config=config, subject_key=b"y" * 32) as after:
        before.override("p", "u", ["1/day"])
        first = before.decide("p", "u", id="x")
        assert first.remaining == 0
        assert after.decide("p", "u", id="x").remaining == 2
        assert not after.refund("p", "u", first.hit)
        assert after.erase("u") == 1
        assert not before.decide("p", "u")
        after.override("p", "u", ["5/day"])
        assert (before.usage("p", "u")[0].limit.quota, after.usage("p", "u")[0].limit.quota) == (1, 5)


@pytest.mark.parametrize("key", [b"", b"x" * 15, b"x" * 1025, "x" * 32, 5, bytearray(32)])
def test_a_key_that_cannot_be_one_is_refused_and_not_shown(key: Any) -> None:
    for kind in (Limiter, AsyncLimiter):
        with pytest.raises((InvalidValueError, InvalidTypeError), match="subject_key is") as caught:
            kind("memory://", [POLICY], subject_key=key)
        assert "xx" not in str(caught.value)


def test_the_key_is_in_no_attribute() -> None:
    with Limiter("memory://", [POLICY], subject_key=KEY) as limiter:
        assert not any(isinstance(value, bytes) for value in vars(limiter).values())
        assert KEY.decode() not in repr(limiter) + repr(vars(limiter))
