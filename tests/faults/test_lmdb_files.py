"""The files of the embedded store in other hands: no files at all, removed, replaced, looked at before they exist."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from capline import InvalidValueError, Limiter, ManualClock, Policy, StoreDamagedError, StoreError
from capline.model.errors import NoStoreError
from capline.store.local.lmdb import environment as lmdb_env
from capline.store.local.lmdb import lock as lmdb_guard
from capline.store.local.lmdb.lock import StoreLock
from capline.store.open import lmdb_path, open_async_store, open_store

POLICY = Policy("p", ["1000000/day"])


def opened(path: Path, *, create: bool = True) -> Limiter:
    return Limiter(f"lmdb://{path}", [POLICY], clock=ManualClock(10**15), create=create)


def elsewhere(path: Path) -> subprocess.CompletedProcess[str]:
    """Open the store in another process, and decide."""
    script = (
        f"from capline import *; print(Limiter('lmdb://{path}', [Policy('p', ['1000000/day'])]).decide('p', 1).hit)"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


# --- no files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb"])
@pytest.mark.parametrize("kind", ["fifo", "device", "directory"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(StoreDamagedError, match=f"{name}: not a regular file"):
        opened(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


# --- looking makes nothing --------------------------------------------------------------------------------------------


def test_a_store_that_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    for opener in (open_store, open_async_store):
        with pytest.raises(NoStoreError, match="there is no store at"):
            opener(f"lmdb://{tmp_path}/below/store", create=False)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "data.mdb").touch()
    for name in ("below", "empty"):
        with pytest.raises(NoStoreError):
            opened(tmp_path / name, create=False)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["data.mdb", "empty"]


def test_what_is_left_of_a_store_that_found_no_room_is_none(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path), map_size=1 << 20).close()  # its head, and no table yet
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(NoStoreError, match="there is no store at"):
        opened(tmp_path, create=False)
    assert (tmp_path / "data.mdb").read_bytes() == before
    with opened(tmp_path) as limiter:
        assert limiter.decide("p", 1)


def test_a_store_that_is_there_is_opened_without_making_one(tmp_path: Path) -> None:
    with opened(tmp_path) as limiter:
        assert limiter.decide("p", 1)
    with opened(tmp_path, create=False) as limiter:
        assert limiter.peek("p", 1).remaining == 1_000_000 - 2


def test_a_store_in_memory_is_always_new() -> None:
    with Limiter("memory://", [POLICY], create=False) as limiter:
        assert limiter.decide("p", 1)
        assert limiter.stats() == {}


# --- where a URL leads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["lmdb:/x", "lmdb:x", "LMDB:/x", "lmdb:", "memory:", "lmdb:///~/x", "lmdb:///x#1", "lmdb:///x%00"]
)
def test_a_url_that_would_lead_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(InvalidValueError, match="store URL"):
        Limiter(url, [POLICY])


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert lmdb_path("lmdb://~/x/y?durability=full") == tmp_path / "x" / "y"
    assert str(lmdb_path("lmdb://x/~")) == "x/~"
    with pytest.raises(InvalidValueError, match="~nobody-here has no home directory"):
        lmdb_path("lmdb://~nobody-here/x")


# --- files that go while they are open ------------------------------------------------------------------------------


def test_nobody_opens_a_store_in_use_whose_lock_was_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as limiter:
        assert limiter.decide("p", 1)
        (tmp_path / "lock.mdb").unlink()
        done = elsewhere(tmp_path)
        assert "lock.mdb was removed while other processes use it; end them all" in done.stderr
        assert not (tmp_path / "lock.mdb").exists(), "a new lock beside the old one would let two write at once"
        with caplog.at_level(logging.WARNING, "capline"):
            assert all(limiter.decide("p", subject) for subject in range(2 * lmdb_env.LOOK_EVERY))
        assert [record.message.endswith("no further process can open the store") for record in caplog.records] == [True]
    assert elsewhere(tmp_path).returncode == 0, "it is as if it had never been, once nobody uses it"


@pytest.mark.parametrize(
    ("name", "said"), [("lock.mdb", "others may write at once"), ("data.mdb", "start this process")]
)
def test_a_file_that_is_replaced_while_it_is_open_is_noticed(tmp_path: Path, name: str, said: str) -> None:
    with opened(tmp_path) as limiter:
        shutil.copyfile(tmp_path / name, tmp_path / "copy")
        (tmp_path / "copy").rename(tmp_path / name)

        def ask() -> None:
            for subject in range(2 * lmdb_env.LOOK_EVERY):
                limiter.decide("p", subject)

        with pytest.raises(StoreError, match=said):
            ask()
        with pytest.raises(StoreError, match=said):
            limiter.decide("p", 1)


def test_a_process_that_is_stopped_while_it_opens_the_store_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data.mdb").touch()
    lock = StoreLock(tmp_path)
    assert lock.alone
    monkeypatch.setattr(lmdb_guard, "OTHERS_OPEN_S", 0.05)
    with pytest.raises(StoreError, match="opening or compacting"):
        opened(tmp_path)
    lock.leave()
    with opened(tmp_path) as limiter:
        assert limiter.decide("p", 1)


def test_a_child_after_a_fork_holds_nothing_of_its_parents(tmp_path: Path) -> None:
    read, write = os.pipe()
    began, begin = os.pipe()
    limiter = opened(tmp_path)
    child = os.fork()
    if not child:
        os.close(write)
        os.write(begin, b"x")
        os.read(read, 1)  # until the parent is done
        os._exit(0)
    os.close(read)
    os.read(began, 1)  # it has let go of what it inherited
    os.close(began)
    os.close(begin)
    limiter.close()
    lock = StoreLock(tmp_path)
    assert lock.alone
    lock.leave()
    os.close(write)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
