"""The embedded store where things go wrong: damage, other versions, full disks, killed writers, forks, growing maps."""

import errno
import os
import random
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tests.profiles import size, sized

from capline import (
    CaplineError,
    InvalidValueError,
    Limiter,
    ManualClock,
    Policy,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreVersionError,
)
from capline.limiter.policies.rules import Rules
from capline.model.errors import StoreUnavailableError
from capline.model.limit import Limit
from capline.store.local import log_bytes as packed
from capline.store.local.lmdb import environment as lmdb_env
from capline.store.local.lmdb import files as lmdb_checks
from capline.store.local.log import ColumnLog
from capline.store.local.numbers import StoredNumbers, pack_numbers, unpack_numbers
from capline.store.protocol import Operation
from capline.window.carry import NumberRow
from capline.window.counters import FixedReader, level_of

POLICY = Policy("p", ["5/day", "9/week"])
KEY = b"\0\0\0\1tsomebody"


def opened(path: Path, options: str = "", policy: Policy = POLICY) -> Limiter:
    return Limiter(f"lmdb://{path}{options}", [policy], clock=ManualClock(10**15))


def filled(path: Path) -> Path:
    with opened(path) as limiter:
        limiter.decide_many("p", range(2000))
    return path / "data.mdb"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The directories that were synced, by inode, in order."""
    found: list[int] = []
    sync = os.fsync

    def fsync(fd: int) -> None:
        sync(fd)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            found.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def set_meta(path: Path, key: bytes, value: bytes) -> None:
    with lmdb.open(str(path), max_dbs=8) as env, env.begin(write=True) as txn:
        txn.put(key, value, db=env.open_db(b"meta", txn))


# --- names ----------------------------------------------------------------------------------------------------------


def test_with_full_durability_every_name_that_leads_to_the_file_is_synced_before_it_is_used(
    tmp_path: Path, synced: list[int]
) -> None:
    directory = tmp_path / "made" / "too"
    with opened(directory, "?durability=full"):
        assert {path.stat().st_ino for path in (directory, directory.parent, tmp_path)} == set(synced)


def test_whoever_finds_the_file_syncs_its_name_as_its_maker_may_have_been_killed(
    tmp_path: Path, synced: list[int]
) -> None:
    filled(tmp_path / "store")
    assert not synced, "relaxed durability leaves it to the kernel"
    with opened(tmp_path / "store", "?durability=full"):
        assert {path.stat().st_ino for path in (tmp_path / "store", tmp_path)} == set(synced)


@pytest.mark.parametrize(("code", "opens"), [(errno.EIO, False), (errno.EINVAL, True)])
def test_a_directory_that_cannot_be_synced_is_an_error_unless_no_directory_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, opens: bool
) -> None:
    def fsync(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    if opens:
        with opened(tmp_path, "?durability=full") as limiter:
            assert limiter.decide("p", 1)
    else:
        with pytest.raises(StoreError, match="cannot be synced"):
            opened(tmp_path, "?durability=full")
        with opened(tmp_path) as limiter:
            assert limiter.decide("p", 1), "nothing is left open"


@pytest.mark.parametrize("made", [False, True])
def test_a_directory_above_that_may_only_be_passed_through_is_its_owners_unless_it_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    store, open_file = tmp_path / "store", os.open
    if not made:
        store.mkdir()

    def refuse(path: str | Path, flags: int, mode: int = 0o777, **more: int) -> int:
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_file(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", refuse)
    if made:
        with pytest.raises(StoreError, match="let it be read"):
            opened(store, "?durability=full")
    else:
        with opened(store, "?durability=full") as limiter:
            assert limiter.decide("p", 1)


# --- damage and versions ------------------------------------------------------------------------------------------


def test_decisions_outlive_the_process_that_made_them(tmp_path: Path) -> None:
    filled(tmp_path)
    with opened(tmp_path) as limiter:
        assert limiter.peek("p", 7).remaining == 3


@pytest.mark.parametrize("content", [b"x", b"not a database" * 1000, bytes(8192)])
def test_a_file_that_is_not_ours_is_refused_and_not_touched(tmp_path: Path, content: bytes) -> None:
    data = tmp_path / "data.mdb"
    data.write_bytes(content)
    with pytest.raises(StoreDamagedError, match="left as it is"):
        opened(tmp_path)
    assert data.read_bytes() == content


def test_another_programs_lmdb_file_is_refused_and_not_touched(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 20) as env, env.begin(write=True) as txn:
        txn.put(b"theirs", b"1")
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(StoreVersionError, match="something else"):
        opened(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == before


def test_a_store_of_another_version_is_refused_and_not_touched(tmp_path: Path) -> None:
    data = filled(tmp_path)
    set_meta(tmp_path, b"format", b"capline lmdb 1")
    before = data.read_bytes()
    with pytest.raises(StoreVersionError, match=r"capline lmdb 1.*capline export"):
        opened(tmp_path)
    assert data.read_bytes() == before


def test_an_lmdb_data_version_of_another_kind_is_refused(tmp_path: Path) -> None:
    data = filled(tmp_path)
    with data.open("r+b") as file:
        for page in (0, 4096):
            file.seek(page + 20)
            file.write((2).to_bytes(4, "little"))
    with pytest.raises(StoreVersionError, match="data version 2"):
        opened(tmp_path)


@pytest.mark.parametrize("keep", [0.02, 0.3, 0.0001])
def test_a_file_that_was_cut_off_is_refused_before_it_is_mapped(tmp_path: Path, keep: float) -> None:
    data = filled(tmp_path)
    last_page = lmdb_checks.META.unpack(data.read_bytes()[: lmdb_checks.META.size])[5]
    os.truncate(data, int((last_page + 1) * 4096 * keep))
    with pytest.raises(StoreDamagedError, match=r"cut off|too short"):
        opened(tmp_path)


def test_a_damaged_value_is_an_error_and_never_an_admission(tmp_path: Path) -> None:
    filled(tmp_path)
    log = ColumnLog()
    log.record(10**15, 1, 10**15)
    with lmdb.open(str(tmp_path), max_dbs=8) as env, env.begin(write=True) as txn:
        logs = env.open_db(b"logs", txn)
        for key, value in list(txn.cursor(logs)):
            assert value == packed.pack_log(log, key)
            txn.put(key, value[:9] + bytes([value[9] ^ 1]) + value[10:], db=logs)
    with opened(tmp_path) as limiter:
        assert {limiter_answer(limiter, subject) for subject in range(2000)} == {"damaged"}
        assert limiter_answer(limiter, 2000) == "allowed"
        answers = limiter.decide_many("p", range(2001))
        assert [*answers.errors] == [*range(2000)]
        assert "nothing is decided on it" in str(answers.errors[0])
        assert answers.allowed.sum() == 1


def test_a_log_that_turns_up_under_another_key_is_an_error(tmp_path: Path) -> None:
    filled(tmp_path)
    with lmdb.open(str(tmp_path), max_dbs=8) as env, env.begin(write=True) as txn:
        logs = env.open_db(b"logs", txn)
        for key, value in list(txn.cursor(logs)):
            if key.endswith((7).to_bytes(8)):
                txn.put(key[:-1] + b"\x08", value, db=logs)
    with opened(tmp_path) as limiter:
        assert [limiter_answer(limiter, subject) for subject in (7, 8, 9)] == ["allowed", "damaged", "allowed"]


@pytest.mark.parametrize("table", [b"meta", b"receipts"])
def test_a_damaged_note_of_the_store_itself_is_an_error(tmp_path: Path, table: bytes) -> None:
    with opened(tmp_path) as limiter:
        limiter.decide_many("p", range(10), receipt="r")
    with lmdb.open(str(tmp_path), max_dbs=8) as env, env.begin(write=True) as txn:
        found = env.open_db(table, txn)
        for key, value in list(txn.cursor(found)):
            if key != b"format":
                txn.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=found)

    def ask() -> None:
        with opened(tmp_path) as limiter:
            assert limiter.sweep() == 0
            limiter.decide_many("p", range(10), receipt="r")

    with pytest.raises(StoreDamagedError, match="checksum"):
        ask()
    with opened(tmp_path, policy=Policy("other", ["1/day"])) as limiter:
        assert limiter.sweep() == 0
        assert limiter.decide("other", 1)


@pytest.mark.parametrize("tail", [b"", b"i", b"i123456789", b"t\xff", b"x", b"h12"])
def test_a_key_that_names_no_subject_is_reported_by_an_export_and_left_out(tmp_path: Path, tail: bytes) -> None:
    filled(tmp_path)
    with lmdb.open(str(tmp_path), max_dbs=8) as env, env.begin(write=True) as txn:
        logs = env.open_db(b"logs", txn)
        prefix = next(iter(txn.cursor(logs)))[0][:4]
        txn.put(prefix + tail, b"x", db=logs)
    faults: list[CaplineError] = []
    with opened(tmp_path) as limiter:
        assert len(list(limiter.export(on_fault=faults.append))) == 2000
    assert len(faults) == 1


def limiter_answer(limiter: Limiter, subject: int) -> str:
    try:
        return "allowed" if limiter.decide("p", subject) else "refused"
    except StoreDamagedError:
        return "damaged"


def test_every_single_flipped_bit_of_a_packed_log_is_noticed() -> None:
    log = ColumnLog()
    for stamp, units, fingerprint in ((5, 1, 0), (9, 7, 12345), (20, 2, 0)):
        log.record(stamp, units, stamp, fingerprint)
    numbers = StoredNumbers([NumberRow(FixedReader(Limit(5, 10)), log, 3, 20), NumberRow(level_of(Limit(5, 10)), log)])
    for value in (packed.pack_log(log, KEY), packed.pack_unit_log(log.stamps, KEY), pack_numbers(numbers, KEY)):
        for bit in range(len(value) * 8):
            broken = bytearray(value)
            broken[bit // 8] ^= 1 << bit % 8
            for read in (read_any_log, read_short_way):
                with pytest.raises(StoreError):
                    read(bytes(broken))
        for length in range(len(value)):
            with pytest.raises(StoreError):
                read_any_log(value[:length])


def read_any_log(value: bytes) -> None:
    kind, words = packed.read_words(value, KEY)
    if kind == packed.NUMBERS:
        unpack_numbers(words)
    else:
        packed.unpack_log(kind, words)


def read_short_way(value: bytes) -> None:
    """Read as the stores do: the usual kind at once, another kind as what it is."""
    if packed.read_plain(value, KEY) is None:
        read_any_log(value)


# --- room -----------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_map_that_fills_up_grows_and_others_follow(tmp_path: Path) -> None:
    with opened(tmp_path) as limiter:
        first_bytes = (tmp_path / "data.mdb").stat().st_size
        script = f"from capline import *; l = Limiter('lmdb://{tmp_path}', [Policy('p', ['5/day', '9/week'])]); "
        script += "print(l.peek('p', 's').allowed, flush=True); input(); print(l.peek('p', 599_999).remaining)"
        other = subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True)
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert limiter.decide_many("p", range(600_000)).allowed.all()
        assert (tmp_path / "data.mdb").stat().st_size >= 2 * first_bytes
        assert other.communicate("\n", timeout=60)[0] == "4\n"


def test_a_largest_size_is_kept_and_nothing_is_recorded_past_it(tmp_path: Path) -> None:
    most_bytes, subjects = 1 << 24, 500_000
    with opened(tmp_path, f"?max_bytes={most_bytes}") as limiter:
        with pytest.raises(StoreFullError, match="largest size"):
            limiter.decide_many("p", range(subjects))
        decided = limiter.peek_many("p", range(subjects)).remaining
        full = int((decided == 3).sum())
        assert 0 < full < subjects
        assert (decided[:full] == 3).all()
        assert (tmp_path / "data.mdb").stat().st_size <= most_bytes


def test_a_full_disk_is_one_clear_error_and_the_store_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the kernel refuse the file's growth as a full disk does, and needs no mount."""
    subjects = 500_000
    script = f"""
import resource, signal
from capline import Limiter, Policy, StoreFullError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limiter = Limiter("lmdb://{tmp_path}", [Policy("p", ["5/day", "9/week"])])
resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, resource.RLIM_INFINITY))
try:
    limiter.decide_many("p", range({subjects}))
except StoreFullError as error:
    print("full:", error)
held = limiter.peek_many("p", range({subjects})).remaining
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(int((held == 3).sum()) > 0, bool(limiter.decide_many("p", range({subjects - 1000}, {subjects})).allowed.all()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("full:")
    assert "nothing was recorded" in first
    assert second == "True True"


def test_the_room_of_the_map_is_allocated_so_that_a_full_disk_cannot_be_a_sigbus(tmp_path: Path) -> None:
    stat = filled(tmp_path).stat()
    assert stat.st_blocks * 512 >= stat.st_size


# --- processes and threads ------------------------------------------------------------------------------------------

HAMMER = """
import sys
from capline import Limiter, Policy
limiter = Limiter("lmdb://" + sys.argv[1], [Policy("p", ["10000000/day"])])
print("ready", flush=True)
while True:
    print(limiter.decide("p", "s").hit, flush=True)
"""


@sized
def test_no_acknowledged_decision_is_lost_by_kill_9(tmp_path: Path) -> None:
    random.seed(7)
    acknowledged: set[int] = set()
    for _ in range(rounds := size(2, 3, 6)):
        writers = [
            subprocess.Popen([sys.executable, "-c", HAMMER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        heard: list[list[str]] = [[], []]
        wanted = random.randint(20, 300)
        enough = [threading.Event(), threading.Event()]
        readers = [
            threading.Thread(target=hear, args=(writer, words, wanted, event))
            for writer, words, event in zip(writers, heard, enough, strict=True)
        ]
        for reader in readers:
            reader.start()
        assert all(event.wait(30) for event in enough)
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        for reader in readers:
            reader.join()
        stamps = [int(word) for words in heard for word in words if word != "ready"]
        assert len(stamps) >= 2 * (wanted - 1)
        assert not acknowledged & set(stamps)
        acknowledged |= set(stamps)
        with Limiter(f"lmdb://{tmp_path}", [Policy("p", ["10000000/day"])]) as limiter:
            kept = [hit.stamp_us for hit in limiter.explain("p", "s").hits]
            assert acknowledged <= set(kept)
            assert kept == sorted(set(kept))
            # A writer may have been killed between recording and answering, once each time.
            assert len(kept) - len(acknowledged) <= 2 * rounds


def hear(writer: subprocess.Popen[str], words: list[str], wanted: int, enough: threading.Event) -> None:
    """Take whole lines until the writer is gone; a line that the kill cut short was never an answer."""
    if writer.stdout is None:
        return
    for line in writer.stdout:
        if line.endswith("\n"):
            words.append(line[:-1])
        if len(words) >= wanted:
            enough.set()
    writer.stdout.close()


def test_a_child_after_a_fork_opens_the_store_anew_and_both_stay_exact(tmp_path: Path) -> None:
    with Limiter(f"lmdb://{tmp_path}", [Policy("p", ["1000/day"])]) as limiter:
        assert limiter.decide("p", "s")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                # What the parent had mapped is closed in the child before anything is asked of it.
                dropped = all(environment._env is None for environment in lmdb_env._open.values())  # pyright: ignore[reportPrivateUsage] - what a child inherits is nobody else's to see
                status = 0 if dropped and all(limiter.decide("p", "s") for _ in range(300)) else 2
            finally:
                os._exit(status)
        assert all(limiter.decide("p", "s") for _ in range(300))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert limiter.peek("p", "s").remaining == 1000 - 601 - 1


@sized
def test_a_fork_while_another_thread_decides_leaves_both_processes_at_work(tmp_path: Path) -> None:
    with Limiter(f"lmdb://{tmp_path}", [Policy("p", ["1000000000/day"])]) as limiter:
        enough = threading.Event()
        counts: list[int] = [0]

        def ask() -> None:
            while not enough.is_set():
                counts[0] += bool(limiter.decide("p", "s"))

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            for _ in range(forks := size(6, 10, 20)):
                child = os.fork()
                if child == 0:
                    signal.alarm(20)  # a child that hangs is ended, and fails the test
                    os._exit(0 if limiter.decide("p", "child") else 2)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            enough.set()
            thread.join()
        assert 1_000_000_000 - limiter.peek("p", "s").remaining - 1 == counts[0]
        assert 1_000_000_000 - limiter.peek("p", "child").remaining - 1 == forks


def test_limiters_of_one_file_share_it_within_a_process(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    assert one.decide("p", "s").remaining == 4
    assert other.decide("p", "s").remaining == 3
    one.close()
    assert other.decide("p", "s").remaining == 2
    with pytest.raises(InvalidValueError, match="durability"):
        opened(tmp_path, "?durability=full")
    other.close()
    with opened(tmp_path, "?durability=full") as again:
        assert again.decide("p", "s").remaining == 1


@pytest.mark.parametrize(("first", "second"), [("", "?max_bytes=20000000"), ("?max_bytes=20000000", "")])
def test_limiters_of_one_file_in_a_process_agree_on_its_largest_size(tmp_path: Path, first: str, second: str) -> None:
    with opened(tmp_path, first) as one:
        with pytest.raises(InvalidValueError, match="max_bytes"):
            opened(tmp_path, second)
        with opened(tmp_path, first) as other:
            assert one.decide("p", "s").remaining == 4
            assert other.decide("p", "s").remaining == 3
    opened(tmp_path, second).close()


def test_a_call_that_waited_while_the_last_limiter_closed_opens_nothing(tmp_path: Path) -> None:
    """A thread may have gone past the limiter's own check, and past the store's, before the file was closed."""
    limiter = opened(tmp_path, "")
    store: Any = limiter._store  # pyright: ignore[reportPrivateUsage] - what a thread has in hand
    environment, compiled = store._environment, store.compiled(Rules([POLICY]).rule("p", None, None))
    assert descriptors_below(tmp_path)
    limiter.close()
    for call in (environment.stats, lambda: store.step(Operation("decide", compiled, "s")), store.stats):
        with pytest.raises(StoreClosedError):
            call()
    assert not descriptors_below(tmp_path)


def descriptors_below(directory: Path) -> list[Path]:
    return [one for one in Path("/proc/self/fd").iterdir() if one.resolve().is_relative_to(directory)]


def test_threads_that_make_a_map_grow_lose_nothing(tmp_path: Path) -> None:
    each = 15_000
    with opened(tmp_path) as limiter:
        first_bytes = (tmp_path / "data.mdb").stat().st_size
        counts: list[int] = []

        def ask(first: int) -> None:
            counts.append(int(limiter.decide_many("p", long_subjects(first, first + each)).allowed.sum()))

        threads = [threading.Thread(target=ask, args=(n * each,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts == [each] * 4
        assert (limiter.peek_many("p", long_subjects(0, 4 * each)).remaining == 3).all()
        assert (tmp_path / "data.mdb").stat().st_size > first_bytes


def long_subjects(first: int, end: int) -> list[str]:
    """They fill a map sooner than numbers do."""
    return [f"{number:0300}" for number in range(first, end)]


# --- what a URL may be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory",
        "memory://x",
        "memory://?a=b",
        "lmdb://",
        "postgres://x",
        "lmdb:///x?durability=fast",
        "lmdb:///x?durability",
        "lmdb:///x?max_bytes=1",
        "lmdb:///x?max_bytes=-5",
        "lmdb:///x?a=b",
    ],
)
def test_a_url_that_names_no_store_says_the_fix(url: str) -> None:
    with pytest.raises(InvalidValueError, match="store URL"):
        Limiter(url, [POLICY])


def test_a_path_that_cannot_be_a_directory_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="directory"):
        Limiter(f"lmdb://{tmp_path}/file/store", [POLICY])


def test_a_relative_path_is_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Limiter("lmdb://below/here", [POLICY]) as limiter:
        assert limiter.decide("p", "s")
    assert (tmp_path / "below/here/data.mdb").exists()


# --- an outage is the caller's choice, and never looks like a refusal ---------------------------------------------


@pytest.mark.parametrize(("choice", "allowed"), [("allow", True), ("deny", False)])
def test_the_choice_for_an_outage_is_marked_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str, allowed: bool
) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailableError("the disk is away")

    limiter = Limiter(f"lmdb://{tmp_path}", [POLICY], on_store_error=choice)
    monkeypatch.setattr(lmdb_env.Environment, "run", away)
    answers = [limiter.decide("p", "s"), limiter.decide("p", "s", 2, id="x"), limiter.peek("p", "s")]
    answers += list(limiter.decide_many("p", [1, 2, 3]))
    for decision in answers:
        assert (decision.allowed, decision.origin, decision.limit, decision.hit) == (allowed, "fallback", None, None)
    with pytest.raises(InvalidValueError, match="on_store_error"):
        Limiter("memory://", [POLICY], on_store_error="shrug")
