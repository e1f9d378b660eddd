"""Stores and ledgers that can only be read: a file system mounted read-only, and an account without the right to write.

The mounts are real, in a mount namespace of its own; that needs root and the right to mount. So does another account.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults.test_campaign_full_disk import UNSHARE, why_no_mounts
from tests.kit.campaign_store import RUN, put
from tests.profiles import first

from capline import Limiter, Policy
from capline.campaign import Ledger
from capline.campaign.store.database import take_lock
from capline.campaign.store.records import Input
from capline.config.configuration import Configuration

ROOT = Path(__file__).parents[2]

POLICIES = [Policy("promo", ["3/day"], channels={"push": ["2/day"]}), Policy("psp", ["5/day"], reservations=True)]
SUBJECTS = ["ann", "bob", *range(40)]
NOBODY = 65534
MOUNTED = 'mount --bind "$1" "$2" && mount -o "remount,ro,bind" "$2" && shift 2 && exec "$@"'
COPIED = 'mount -t tmpfs none "$2" && cp -a "$1/." "$2" && mount -o remount,ro "$2" && shift 2 && exec "$@"'
READS = """
import fcntl, os, sys
from capline import Limiter, Policy, StoreError
from capline.limiter.arguments.records import PastHit
policies = [
    Policy("promo", ["3/day"], channels={"push": ["2/day"]}),
    Policy("psp", ["5/day"], reservations=True),
    Policy("other", ["1/day"]),
]
def reader():
    return Limiter(f"lmdb://{sys.argv[1]}", policies, create=False)
def told(verb, *args, **named):
    try:
        return verb(*args, **named)
    except StoreError as error:
        print(error)
if len(sys.argv) > 2:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other accounts may enter, with a store."""
    path = Path(tempfile.mkdtemp(prefix="capline-", dir="/tmp"))
    path.chmod(0o755)
    (path / "ro").mkdir()
    with Limiter(f"lmdb://{path}/store", POLICIES) as limiter:
        for subject in SUBJECTS:
            limiter.decide("promo", subject, channel="push")
        hit = limiter.decide("promo", "dan").hit
        limiter.decide("promo", "ann")
        assert limiter.reserve("psp", "ann", ttl=0.001).allowed
        assert limiter.reserve("psp", "ann", ttl=3600).allowed
    (path / "store").chmod(0o755)
    (path / "hit").write_text(f"HIT = {hit}\n")
    yield path
    shutil.rmtree(path)


def run_there(place: Path, script: str, mount: str = MOUNTED) -> str:
    """What a script prints with the store of this place mounted read-only beside it."""
    if why_no_mounts():
        pytest.skip(why_no_mounts())
    return printed(
        [
            UNSHARE,
            "--mount",
            "sh",
            "-c",
            mount,
            "sh",
            place / "store",
            place / "ro",
            *python(place, script),
            place / "ro",
        ]
    )


def run_as_nobody(place: Path, script: str) -> str:
    """What a script prints as an account that does not own the store."""
    if os.geteuid():
        pytest.skip("only root may become another account")
    return printed([*python(place, script), place / "store", str(NOBODY)])


def python(place: Path, script: str) -> list[str]:
    return [sys.executable, "-c", READS + (place / "hit").read_text() + script]


def printed(command: Sequence[str | Path]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


LOOKS = """
with reader() as limiter:
    print(limiter.usage("promo", "ann")[0].remaining, limiter.usage("psp", "ann")[0].remaining)
    print(limiter.peek("promo", "bob").remaining, limiter.peek("other", "ann").allowed)
    print(limiter.peek_many("promo", list(range(40))).remaining.sum(), limiter.explain("promo", "ann").limits[0].used)
    print(len(list(limiter.export())), limiter.stats()["logs"])
"""
WRITES = """
with reader() as limiter:
    told(limiter.decide, "promo", "ann")
    told(limiter.decide, "promo", "cid", channel="push", id="x")
    told(limiter.decide_many, "promo", [1, 2])
    told(limiter.refund, "promo", "dan", HIT)
    told(limiter.erase, "ann")
    told(limiter.load, [PastHit("promo", "ann", HIT - 1)])
    told(limiter.charge, "promo", "ann", 1)
    told(limiter.schedule, "promo", "ann")
    told(limiter.reserve, "psp", "ann", ttl=1)
told(Limiter, f"lmdb://{sys.argv[1]}", policies)
"""
LOOKED = "1 4\n1 True\n40 2\n86 87\n"
NOTHING = ", so it can only be read; nothing was recorded"
RIGHTS = (
    "name a directory that can be written; an account writes data.mdb and lock.mdb, and one that only looks reads "
    "data.mdb and writes lock.mdb"
)
FILES = ["data.mdb", "lock.mdb"]
CHECKS = """
from pathlib import Path
from capline.store.local.lmdb.check import check_store
from capline.store.local.lmdb.compact import compact_store
report = told(check_store, Path(sys.argv[1]))
if report:
    print(report.faults_found)
if told(compact_store, Path(sys.argv[1]), Path(sys.argv[1]) / "../copy"):
    print("copied")
"""


@pytest.mark.parametrize("mount", first(1, [MOUNTED, COPIED]), ids=["bind", "tmpfs"])
@pytest.mark.parametrize("lock", first(1, ["no lock", "lock"]))
def test_a_store_on_a_read_only_file_system_is_read(place: Path, mount: str, lock: str) -> None:
    if lock == "no lock":
        (place / "store" / "lock.mdb").unlink()
    assert run_there(place, LOOKS, mount) == LOOKED
    lines = run_there(place, WRITES, mount).splitlines()
    assert lines[:-1] == [f"{place}/ro/data.mdb: Read-only file system{NOTHING}"] * 9
    assert lines[-1] == f"{place}/ro/data.mdb: Read-only file system; {RIGHTS}"


def test_nobody_can_write_what_is_read_without_a_lock(place: Path) -> None:
    """The mount for reading has the same file as the one for writing, and LMDB has no readers' table for it."""
    script = """
from capline.store.local.lmdb.environment import open_environment
from pathlib import Path
def taken(how):
    with open(f"{sys.argv[1]}/../store/data.mdb", "rb") as file:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
environment = open_environment(Path(sys.argv[1]), "relaxed", create=False)
print(taken(fcntl.LOCK_EX), environment.run(lambda txn: taken(fcntl.LOCK_SH)), taken(fcntl.LOCK_EX))
"""
    assert run_there(place, script) == "True False True\n"
    with Limiter(f"lmdb://{place}/store", POLICIES) as limiter:
        limiter.decide("promo", "cid")
        refused = (
            "another process has it open for writing, and nothing keeps it from reusing what is read on a read-only"
        )
        for looks in ("told(reader)", CHECKS):
            said = run_there(place, looks).splitlines()
            assert said
            assert all(line.startswith(f"{place}/ro: {refused} file system; ") for line in said)


def test_readers_take_turns_and_see_what_was_written_in_between(place: Path) -> None:
    script = '''
import subprocess
WRITE = """
import sys
from capline import Limiter, Policy
Limiter(sys.argv[1], [Policy(sys.argv[2], ["3/day"])]).decide(sys.argv[2], "eve")
"""
def write(policy):
    subprocess.run([sys.executable, "-c", WRITE, f"lmdb://{sys.argv[1]}/../store", policy], check=True)
with reader() as limiter:
    print(limiter.peek("promo", "eve").remaining, limiter.peek("other", "eve").allowed)
    write("promo")
    print(limiter.peek("promo", "eve").remaining)
    write("other")
    told(limiter.peek, "other", "eve")
with reader() as limiter:
    print(limiter.peek("other", "eve").allowed)
'''
    assert run_there(place, script).splitlines() == [
        "2 True",
        "1",
        f"{place}/ro: logs were begun there since it was opened to read; open it again",
        "False",
    ]


def test_a_store_on_a_read_only_file_system_is_checked_and_copied(place: Path) -> None:
    assert run_there(place, CHECKS) == "0\ncopied\n"
    with Limiter(f"lmdb://{place}/copy", POLICIES) as limiter:
        assert limiter.usage("promo", "ann")[0].remaining == 1


@pytest.mark.parametrize(
    ("data", "lock", "said"),
    [
        (0o600, 0o666, "data.mdb: Permission denied"),
        (0o644, 0o644, "lock.mdb: Permission denied"),
        (0o666, 0o644, "lock.mdb: Permission denied"),
        (0o644, None, "lock.mdb: No such file or directory"),
    ],
)
def test_another_account_is_told_which_file_needs_the_permission(
    place: Path, data: int, lock: int | None, said: str
) -> None:
    (place / "store" / "data.mdb").chmod(data)
    if lock is None:
        (place / "store" / "lock.mdb").unlink()
    else:
        (place / "store" / "lock.mdb").chmod(lock)
    assert run_as_nobody(place, "told(reader)") == f"{place}/store/{said}; {RIGHTS}\n"
    assert sorted(path.name for path in (place / "store").iterdir()) == (["data.mdb"] if lock is None else FILES)


@pytest.mark.parametrize("use", first(1, ["beside its owner", "alone"]))
def test_another_account_reads_where_it_may_write_the_lock_file(place: Path, use: str) -> None:
    (place / "store" / "data.mdb").chmod(0o644)
    (place / "store" / "lock.mdb").chmod(0o666)
    with ExitStack() as stack:
        if use != "alone":
            stack.enter_context(Limiter(f"lmdb://{place}/store", POLICIES)).peek("promo", "ann")
        assert run_as_nobody(place, LOOKS) == LOOKED
        lines = run_as_nobody(place, WRITES).splitlines()
    assert lines[:-1] == [f"{place}/store/data.mdb: Permission denied{NOTHING}"] * 9
    assert lines[-1] == f"{place}/store/data.mdb: Permission denied; {RIGHTS}"


# --- the ledger of a campaign -----------------------------------------------------------------------------------------

LEDGER = """
from pathlib import Path
from capline.campaign import Ledger
from capline.campaign.report import report_of
from capline.model.errors import CampaignError
try:
    print(len(Ledger.begun_inputs(Path(sys.argv[1]))))
    with Ledger.read(Path(sys.argv[1])) as ledger:
        print(ledger.facts.campaign, ledger.is_frozen, report_of(ledger).state)
except CampaignError as error:
    print(error)
"""
KILLED = """
import os, sys
from tests.faults.test_read_only import begun
begun(sys.argv[1])
os._exit(0)
"""


def begun(directory: str | Path) -> Ledger:
    """A run that has decided something; left open."""
    ledger = Ledger.begin(Path(directory), replace(RUN, inputs=(Input("policies", "d", "policies.yaml"),)))
    put(ledger.store, 0, 1, 2)
    ledger.freeze_inputs(Input("store", "s", "memory://"))
    return ledger


@contextmanager
def run_of(place: Path, state: str) -> Generator[None]:
    """A run in this state, in place of the store, which everybody may read."""
    shutil.rmtree(place / "store")
    if state == "killed":
        subprocess.run([sys.executable, "-c", KILLED, place / "store"], check=True, cwd=ROOT)
        (place / "store" / "ledger.sqlite-shm").unlink()
        assert (place / "store" / "ledger.sqlite-wal").stat().st_size
        open_to_all(place)
        yield
    else:
        with begun(place / "store") as ledger:
            if state == "stopped":
                ledger.close()
            open_to_all(place)
            yield


def open_to_all(place: Path) -> None:
    (place / "store").chmod(0o755)
    for path in (place / "store").iterdir():
        path.chmod(0o644)


@pytest.mark.parametrize("state", first(1, ["killed", "stopped", "running"]))
@pytest.mark.parametrize("who", [run_there, run_as_nobody])
def test_a_ledger_that_can_only_be_read_is_read(place: Path, state: str, who: Callable[[Path, str], str]) -> None:
    """Also what is only in the write-ahead log of a run that was killed: SQLite's immutable files are without it."""
    with run_of(place, state):
        said = "running" if state == "running" else "stopped"
        assert who(place, LEDGER) == f"1\nsale True {said}\n"


@pytest.mark.parametrize("file", first(1, ["ledger.sqlite-lock", "ledger.sqlite", ""]))
def test_another_account_is_told_which_file_of_the_ledger_it_cannot_read(place: Path, file: str) -> None:
    with run_of(place, "stopped"):
        (place / "store" / file).chmod(0o600)
        shown = f"{place}/store/{file or 'ledger.sqlite'}"
        assert run_as_nobody(place, LEDGER) == (
            f"{shown}: Permission denied; let this account read what is in {place}/store\n"
        )


def test_another_account_does_not_say_that_nobody_is_in_the_run(place: Path) -> None:
    with run_of(place, "running"):
        (place / "store" / "ledger.sqlite-lock").chmod(0o600)
        assert run_as_nobody(place, LEDGER).splitlines() == [
            "1",
            f"{place}/store/ledger.sqlite-lock: Permission denied; let this account read what is in {place}/store",
        ]


def test_a_reader_without_sqlite_s_files_keeps_a_run_out_while_it_copies(place: Path) -> None:
    """Between its taking the lock and its opening the file, nothing else shows that a run begins."""
    with run_of(place, "stopped"):
        lock = take_lock(place / "store" / "ledger.sqlite", shared=False)
        try:
            said = run_there(place, LEDGER)
        finally:
            os.close(lock)
        assert said == f"{place}/ro: a process begins or ends this run just now; try again\n"


# --- a configuration store --------------------------------------------------------------------------------------------

CONFIGURED = """
from capline.config.configuration import Configuration
with Configuration(f"lmdb://{sys.argv[1]}", namespace="n", create=False) as configuration:
    print(sorted(configuration.policies))
    told(configuration.set_policies, [Policy("b", ["1/day"])])
with Limiter("memory://", [Policy("a", ["5/day"])], namespace="n", config=f"lmdb://{sys.argv[1]}") as limiter:
    print(limiter.peek("a", "ann").remaining)
"""


def test_a_configuration_on_a_read_only_file_system_is_read(place: Path) -> None:
    shutil.rmtree(place / "store")
    with Configuration(f"lmdb://{place}/store", namespace="n") as configuration:
        configuration.set_policies([Policy("a", ["3/day"])])
        configuration.override("a", "ann", ["9/day"])
    policies, refused, remaining = run_there(place, CONFIGURED).splitlines()
    assert (policies, remaining) == ("['a']", "8")
    assert refused.startswith(f"{place}/ro/config/n: Cannot start write transaction with read-only environment.")
    assert refused.endswith("nothing was changed")
