"""`capline store check` and `compact`: what is whole is called whole, what is damaged is found."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from tests.kit.forked import run
from tests.profiles import size, sized

from capline import Limiter, ManualClock, Policy, StoreDamagedError, StoreError, StoreFullError, StoreVersionError
from capline.model.errors import NoStoreError
from capline.store.local.lmdb import compact as lmdb_compact
from capline.store.local.lmdb.check import check_store
from capline.store.local.lmdb.compact import compact_store
from capline.store.local.lmdb.files import DATABASES
from capline.store.local.lmdb.pages import HEAD, NODE

POLICIES = [
    Policy("p", ["3/day", "10/week"]),
    Policy("long", ["1000/day"]),
    Policy("counter", ["9/day"], algorithm="sliding_counter"),
    Policy("bucketed", ["9/day"], algorithm="bucketed"),
    Policy("gcra", ["9/day"], algorithm="gcra"),
]
PAGE = 4096
USER = "import sys, capline; limiter = capline.Limiter(sys.argv[1]); print(1, flush=True); input()"


def opened(path: Path) -> Limiter:
    return Limiter(f"lmdb://{path}", POLICIES, clock=ManualClock(10**15))


def fill(path: Path) -> None:
    """Logs of every kind, in pages of every kind."""
    clock = ManualClock(10**15)
    with Limiter(f"lmdb://{path}", POLICIES, clock=clock) as limiter:
        limiter.decide_many("p", range(1, 4000))
        limiter.decide_many("p", [f"user:{n}" for n in range(1000)], receipt="batch")
        limiter.decide("p", "x" * 450)
        for n in range(300):
            limiter.decide("long", "unit")
            limiter.decide("long", "mixed", 1 + n % 3, id=f"id {n}")
            clock.advance_us(1000)
        for policy in ("counter", "bucketed", "gcra"):
            assert limiter.decide(policy, 7, 2).allowed
        with Limiter(f"lmdb://{path}?forms=next", POLICIES, clock=clock) as next_forms:
            for policy in ("counter", "gcra"):
                assert next_forms.decide(policy, 8, 2).allowed
            for _ in range(100):
                next_forms.schedule("p", 8)
            next_forms.charge("p", 8, 1)  # in a page, which has one hit more than others
        slot = limiter.schedule("p", 2, max_wait=1e6)
        assert limiter.refund("p", 2, slot.hit)
        for subject in range(1, 4000, 3):
            limiter.erase(subject)


def capline(*words: str) -> subprocess.CompletedProcess[str]:
    return run("store", *words, env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"})


# --- check ------------------------------------------------------------------------------------------------------------


def test_a_store_that_is_whole_is_called_whole(tmp_path: Path) -> None:
    fill(tmp_path)
    before = (tmp_path / "data.mdb").read_bytes()
    report = check_store(tmp_path)
    assert (report.faults, report.receipts, report.lost_pages) == ([], 1, 0)
    with opened(tmp_path) as limiter:
        assert report.logs == limiter.stats()["logs"]
    assert report.sealed_pages > 10
    assert (tmp_path / "data.mdb").read_bytes() == before
    done = capline("check", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("every page and value is whole\n")


def test_it_may_run_beside_those_who_decide(tmp_path: Path) -> None:
    script = f"""
from capline import Limiter, Policy
limiter = Limiter("lmdb://{tmp_path}", [Policy("p", ["1000000000/day"])])
print("up", flush=True)
n = 0
while True:
    limiter.decide("p", n % 1000)
    n += 1
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=-1, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "up\n"
        try:
            assert [fault for _ in range(20) for fault in check_store(tmp_path).faults] == []
        finally:
            writer.kill()


@pytest.mark.parametrize("what", ["nothing", "directory", "empty file"])
def test_where_there_is_no_store_none_is_made(tmp_path: Path, what: str) -> None:
    if what != "nothing":
        (tmp_path / "none").mkdir()
    if what == "empty file":
        (tmp_path / "none" / "data.mdb").touch()
    before = list(tmp_path.rglob("*"))
    for work in (check_store, compact_store):
        with pytest.raises(NoStoreError):
            work(tmp_path / "none")
    assert list(tmp_path.rglob("*")) == before


def test_a_store_that_this_process_has_open_and_one_of_another_format_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(StoreError, match="open in this process"):
        check_store(tmp_path)
    with lmdb.open(str(tmp_path), max_dbs=8) as env, env.begin(write=True) as txn:
        txn.put(b"format", b"capline lmdb 1", db=env.open_db(b"meta", txn))
    with pytest.raises(StoreVersionError, match="capline lmdb 1"):
        check_store(tmp_path)


Change = dict[bytes, bytes | None]


def change(path: Path, table: bytes, how: Callable[[bytes, bytes], Change]) -> None:
    """Put what `how` says for the entry in the middle of a table; None removes it."""
    with lmdb.open(str(path), max_dbs=8) as env, env.begin(write=True) as txn:
        found = env.open_db(table, txn)
        rows = [(bytes(key), bytes(value)) for key, value in txn.cursor(found)]
        for key, value in how(*rows[len(rows) // 2]).items():
            if value is None:
                txn.delete(key, db=found)
            else:
                txn.put(key, value, db=found)


def change_value(key: bytes, value: bytes) -> Change:
    return {key: value[:-1] + bytes([value[-1] ^ 64])}


def change_key(key: bytes, value: bytes) -> Change:
    return {key: None, key[:-1] + bytes([key[-1] ^ 1]): value}


def cut_value(key: bytes, value: bytes) -> Change:
    return {key: value[:-8]}


def add_stray(key: bytes, value: bytes) -> Change:
    return {b"stray" + key: value}


def remove(key: bytes, _: bytes) -> Change:
    return {key: None}


@pytest.mark.parametrize("table", DATABASES)
@pytest.mark.parametrize("how", [change_value, change_key, cut_value, add_stray])
def test_every_value_and_key_that_was_changed_is_found(
    tmp_path: Path, table: bytes, how: Callable[[bytes, bytes], Change]
) -> None:
    fill(tmp_path)
    change(tmp_path, table, how)
    report = check_store(tmp_path)
    assert report.faults_found
    assert report.faults[0].startswith(f"table {table.decode()}, ") or table == b"meta"


def test_a_page_of_a_long_log_that_is_gone_is_found_and_named(tmp_path: Path) -> None:
    fill(tmp_path)
    change(tmp_path, b"pages", remove)
    [fault] = check_store(tmp_path).faults
    assert "log 'capline:long' of" in fault
    assert "missing" in fault


def pages_of(path: Path, flags: int) -> list[int]:
    content = (path / "data.mdb").read_bytes()
    heads = {at // PAGE: HEAD.unpack_from(content, at) for at in range(2 * PAGE, len(content), PAGE)}
    return [number for number, head in heads.items() if head[0] == number and head[2] == flags]


def poke(path: Path, at: int, bits: bytes) -> None:
    with (path / "data.mdb").open("r+b") as file:
        file.seek(at)
        was = file.read(len(bits))
        file.seek(at)
        file.write(bytes(a ^ b for a, b in zip(was, bits, strict=True)))


PAGE_DAMAGE = {
    "number": (0, b"\x01", "its head is that of page"),
    "kind": (10, b"\x03", "its head is that of page"),
    "end of pointers": (12, b"\x02", ""),
    "begin of nodes": (14, b"\x00\xf0", "holds no nodes"),
    "pointer": (16, b"\x00\xf0", "lie outside"),
}


@sized
@pytest.mark.parametrize("kind", [1, 2], ids=["branch", "leaf"])
@pytest.mark.parametrize("what", PAGE_DAMAGE)
def test_a_broken_page_is_found(tmp_path: Path, kind: int, what: str) -> None:
    fill(tmp_path)
    compact_store(tmp_path)  # so that every page is used
    whole = (tmp_path / "data.mdb").read_bytes()
    at, bits, said = PAGE_DAMAGE[what]
    found: list[str] = []
    for number in pages_of(tmp_path, kind)[: size(10, 15, 40)]:
        poke(tmp_path, number * PAGE + at, bits)
        faults = check_store(tmp_path).faults
        assert faults, number
        found += faults
        (tmp_path / "data.mdb").write_bytes(whole)
    assert any(said in fault for fault in found), found[:5]


def test_a_branch_that_leads_elsewhere_is_found(tmp_path: Path) -> None:
    fill(tmp_path)
    number = max(pages_of(tmp_path, 1))
    content = (tmp_path / "data.mdb").read_bytes()
    first = int.from_bytes(content[number * PAGE + HEAD.size :][:2], "little")
    poke(tmp_path, number * PAGE + first, b"\x01")
    assert len(content[first : first + NODE.size]) == NODE.size
    assert any("names page" in fault or "its head is" in fault for fault in check_store(tmp_path).faults)


def test_heads_that_do_not_fit_together_are_found(tmp_path: Path) -> None:
    fill(tmp_path)
    poke(tmp_path, PAGE + 16 + 24 + 2 * 48 + 8, b"\x08")
    assert any("heads" in fault for fault in check_store(tmp_path).faults)


def test_what_is_damaged_is_reported_and_exits_1(tmp_path: Path) -> None:
    fill(tmp_path)
    change(tmp_path, b"logs", change_value)
    done = capline("check", f"lmdb://{tmp_path}", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["faults_found"] == 1
    assert "its checksum does not match" in report["faults"][0]
    done = capline("check", str(tmp_path))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "1 fault(s) found")
    poke(tmp_path, 16, b"\x01")
    done = capline("check", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "1 fault(s) found\n")
    assert "its head is damaged" in done.stderr


@pytest.mark.parametrize("store", ["memory://", "redis://:secret@x/0", "lmdb:/x", "memory:", "/does/not/exist"])
def test_what_is_no_embedded_store_exits_2(store: str) -> None:
    done = capline("check", store)
    assert (done.returncode, done.stdout) == (2, "")
    assert "secret" not in done.stderr


# --- compact ----------------------------------------------------------------------------------------------------------


def content(path: Path) -> dict[bytes, list[tuple[bytes, bytes]]]:
    with lmdb.open(str(path), readonly=True, max_dbs=8) as env:
        found: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for name in DATABASES:
            table = env.open_db(name, create=False)
            with env.begin(db=table) as txn:
                found[name] = [(bytes(key), bytes(value)) for key, value in txn.cursor()]
        return found


def test_a_compacted_store_is_smaller_and_holds_the_same(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "data.mdb").chmod(0o640)
    before = content(tmp_path)
    done = compact_store(tmp_path)
    assert done.after_bytes < done.before_bytes == 16 << 20
    assert content(tmp_path) == before
    assert (tmp_path / "data.mdb").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.mdb", "lock.mdb"]
    assert check_store(tmp_path).faults == []
    with opened(tmp_path) as limiter:
        assert limiter.decide("p", 2)
    assert check_store(tmp_path).faults == []


def test_a_store_in_use_is_compacted_only_into_a_new_directory(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    inside = content(tmp_path / "store")
    with subprocess.Popen(
        [sys.executable, "-c", USER, f"lmdb://{tmp_path}/store"], stdin=-1, stdout=-1, text=True
    ) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "1\n"
        done = capline("compact", f"{tmp_path}/store")
        assert done.returncode == 2
        assert "another process has it open" in done.stderr
        done = capline("compact", f"{tmp_path}/store", "--to", f"{tmp_path}/copy", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["path"] == f"{tmp_path}/copy"
        user.communicate("\n", timeout=60)
    assert content(tmp_path / "copy") == inside
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "copy" / "data.mdb").stat().st_mode & 0o777 == 0o600
    with pytest.raises(StoreError, match="holds a store already"):
        compact_store(tmp_path / "store", tmp_path / "copy")


def test_a_damaged_store_is_not_compacted(tmp_path: Path) -> None:
    fill(tmp_path)
    change(tmp_path, b"logs", change_value)
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(StoreDamagedError, match="nothing was changed"):
        compact_store(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == before


def test_a_copy_that_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    before = (tmp_path / "data.mdb").read_bytes()

    def no_room(*_: object) -> None:
        raise lmdb.DiskError("No space left on device")

    monkeypatch.setattr(lmdb_compact.os, "fsync", no_room)
    with pytest.raises(StoreFullError, match="no room"):
        compact_store(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.mdb", "lock.mdb"]
