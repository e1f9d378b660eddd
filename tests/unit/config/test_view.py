"""What one process knows: the cache, its bound, and reads that cross a change."""

# pyright: reportPrivateUsage=false
# Races and crashes are made by hand.

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capline import ManualClock, Policy
from capline.config import view as view_of
from capline.config.cache import OverrideCache
from capline.config.configuration import Configuration
from capline.config.records import PAST_OVERRIDES, name_of, read_past
from capline.model.errors import (
    InvalidTypeError,
    NoStoreError,
    PolicyError,
    StoreClosedError,
    StoreDamagedError,
    StoreUnavailableError,
)

NOW_US = 1_800_000_000_000_000


@pytest.fixture
def one() -> Iterator[Configuration]:
    with Configuration("memory://", clock=ManualClock(NOW_US), cached=8) as configuration:
        configuration.set_policies([Policy("promo", ["3/day"])])
        yield configuration


def limits(configuration: Configuration, subject: Any) -> str | None:
    own = configuration.view.own("promo", subject)
    return None if own is None else ", ".join(str(limit) for limit in own.limits)


def test_the_cache_is_bounded_and_right(one: Configuration) -> None:
    one.override_many("promo", {number: [f"{number + 1}/day"] for number in range(0, 40, 2)})
    for _ in range(2):
        for number in range(40):
            assert limits(one, number) == (None if number % 2 else f"{number + 1}/day")
            recent = one.view.recent("promo")
            assert len(recent.young) + len(recent.old) <= 8


def test_what_is_asked_often_stays() -> None:
    cache = OverrideCache(8)
    for number in range(100):
        cache.put("promo", "often", None)
        cache.put("promo", number, None)
    recent = cache.of("promo")
    assert "often" in recent.young or "often" in recent.old
    cache.forget("promo", "often")
    assert "often" not in recent.young
    assert "often" not in recent.old


def test_each_subject_is_read_once(one: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    get = one._backend.get

    def counted(table: str, names: Sequence[bytes]) -> list[bytes | None]:
        asked.extend(names)
        return get(table, names)

    monkeypatch.setattr(one._backend, "get", counted)
    for _ in range(3):
        one.view.owns("promo", ["u", "v"])
    assert asked == [b"promo\0u", b"promo\0v"]


def test_a_row_that_was_read_before_a_change_is_not_cached_after_it(
    one: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.override("promo", "u", ["5/day"])
    get = one._backend.get

    def crossed(table: str, names: Any) -> Any:
        rows = get(table, names)
        monkeypatch.undo()
        one.override("promo", "u", ["6/day"])
        return rows

    monkeypatch.setattr(one._backend, "get", crossed)
    assert limits(one, "u") == "5/day"  # it was read before
    assert limits(one, "u") == "6/day"


def test_a_change_that_was_heard_of_needs_the_store_no_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = ManualClock(NOW_US)
    with (
        Configuration(f"lmdb://{tmp_path}", clock=clock) as one,
        Configuration(f"lmdb://{tmp_path}", clock=clock) as two,
    ):
        one.set_policies([Policy("promo", ["3/day"])])
        one.override("promo", "u", ["5/day"])
        two.refresh()
        assert limits(two, "u") == "5/day"
        one.override("promo", "u", ["9/day"], effective_at="2030-01-01T00:00Z")
        two.refresh()

        def away(*_: object) -> Any:
            raise StoreUnavailableError("away")

        monkeypatch.setattr(two.view, "_backend", SimpleNamespace(get=away, head=away))
        with pytest.raises(StoreUnavailableError):
            two.refresh()
        assert limits(two, "u") == "5/day"
        clock.advance(10 * 366 * 86_400)
        assert limits(two, "u") == "9/day"


def test_who_polls_finishes_what_a_killed_writer_left(one: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    def refused(*_: object) -> None:
        raise view_of.StoreError("NOPERM")

    monkeypatch.setattr(one._backend, "put", killed)
    with pytest.raises(KeyboardInterrupt):
        one.override("promo", "u", ["5/day"])
    monkeypatch.undo()
    one.refresh()
    assert len(one._backend.head(0).pending) == 1
    assert limits(one, "u") == "5/day"
    monkeypatch.setattr(view_of, "LATE_S", -1.0)
    with monkeypatch.context() as reader:
        reader.setattr(one._backend, "put", refused)
        one.refresh()
    assert len(one._backend.head(0).pending) == 1
    assert limits(one, "u") == "5/day"
    one.refresh()
    assert one._backend.head(0).pending == []
    assert limits(one, "u") == "5/day"


def test_an_outage_after_the_commit_is_no_failure(one: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise view_of.StoreError("away")

    monkeypatch.setattr(one._backend, "put", away)
    assert one.override("promo", "u", ["5/day"]) == 2
    monkeypatch.undo()
    assert limits(one, "u") == "5/day"


@pytest.mark.parametrize("wrong", [b"", b"\0\0\0\0\1", b"\0\0\0\0\1\xff", b"\0\0\0\0\1\x93\1\2\3", b"\0\0\0\0\1\x90"])
def test_a_damaged_row_is_said_and_allows_nothing(one: Configuration, wrong: bytes) -> None:
    one._backend._table.put(b"o\0promo\0u", wrong)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - of memory
    with pytest.raises(StoreDamagedError):
        one.view.own("promo", "u")


def test_a_policy_that_cannot_be_used_leaves_the_last_good_ones(one: Configuration) -> None:
    one._backend.commit(1, b"token", *bad_policy())
    with pytest.raises(StoreDamagedError, match="a policy that cannot be used"):
        one.refresh()
    assert list(one.policies) == ["promo"]
    assert one.stats()["up"] == 0


@pytest.mark.parametrize("wrong", [b"", b"\xff", b"\x93\1\2\xa13", b"\x81\1\2"])
def test_damaged_totals_are_said(one: Configuration, wrong: bytes) -> None:
    one.override("promo", "u", ["5/day"])
    one._backend._table.put(b"t\0promo", wrong)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - of memory
    with pytest.raises(StoreDamagedError):
        one.override("promo", "v", ["5/day"])
    with pytest.raises(StoreDamagedError):
        view_of.View(one._backend, None, 8).poll()


def bad_policy() -> tuple[bytes, bytes, dict[str, bytes]]:
    from capline.config.records import Commit, Entry, Name, commit_bytes, entry_bytes, pending_bytes  # noqa: PLC0415

    row = entry_bytes(Entry(2, NOW_US, "x", {"limits": ["many"]}))
    commit = Commit(2, NOW_US, "x", "set", b"token", [Name("promo")], {})
    return commit_bytes(commit), pending_bytes(2, [("p", b"promo", row)]), {}


def test_versions_past_the_last_are_kept_no_longer(one: Configuration) -> None:
    for number in range(1, 21):
        one.override("promo", "u", [f"{number}/day"])
    kept = read_past(one._backend.get(PAST_OVERRIDES, [name_of("promo", "u")])[0])
    assert [entry.value for entry in kept] == [[f"{number}/day"] for number in range(4, 20)]
    assert len(one.override_versions("promo", "u")) == 17


def test_equal_overrides_are_one_object_while_a_cached_subject_has_one(one: Configuration) -> None:
    one.override_many("promo", {number: [f"{number + 1}/day"] for number in range(20)} | {"u": ["20/day"]})
    for number in range(20):
        assert limits(one, number) == f"{number + 1}/day"
        assert len(one.view._kinds) <= 8
    assert one.view.own("promo", "u") is one.view.own("promo", 19)


def test_what_names_no_configuration(tmp_path: Path) -> None:
    for url, error in (
        ("lmdb://x?a=b", ValueError),
        ("http://x", ValueError),
        (7, InvalidTypeError),
        (f"lmdb://{tmp_path}/none", NoStoreError),
    ):
        with pytest.raises(error):
            Configuration(url, create=False)  # pyright: ignore[reportArgumentType] - wrong ones too
    with pytest.raises(PolicyError):
        Configuration("memory://", namespace="a b")
    assert not (tmp_path / "none").exists()


def test_a_closed_one_says_so(tmp_path: Path) -> None:
    closed = Configuration(f"lmdb://{tmp_path}")
    closed.close()
    closed.close()
    with pytest.raises(StoreClosedError):
        closed.refresh()


def test_the_file_is_private(tmp_path: Path) -> None:
    with Configuration(f"lmdb://{tmp_path}"):
        path = tmp_path / "config" / "capline" / "data.mdb"
        assert path.stat().st_mode & 0o077 == 0
