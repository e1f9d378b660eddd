import math
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Thread

import msgspec
import numpy as np
import pytest
from tests.kit.campaign_store import FACTS, RUN, claimed, fill, put, rows_of

from capline.campaign.ledger import Ledger, default_directory
from capline.campaign.senders.protocol import TRANSIENT, Outcomes
from capline.campaign.store.protocol import Change, UnreadableRunError
from capline.campaign.store.records import VERSION, Claimed, Input, StoredRun
from capline.campaign.store.rows import FAILED, PENDING, REFUSED, RETRY, BatchRows
from capline.campaign.store.sqlite_store import SqliteCampaignStore
from capline.model.clock import SystemClock
from capline.model.errors import CampaignError

INPUTS = (Input("audience", "aaaa", "9 ids"), Input("snapshot", "ssss", "day-1"))
STORE = Input("store identity", "1", "made 1")


def batch(number: int = 0) -> BatchRows:
    return BatchRows(
        number,
        1_000_000,
        ("1/day", "2/week"),
        np.array([1, 2, 3, 4, 4_294_967_295], np.uint32),
        np.array([0, 0, 0, 1, 1], np.uint16),
        np.array([0, 0, 0, 1, -1], np.int16),
        np.array([7, 7, 7, -1, -1], np.int64),
        np.array([0, 0, 0, 5, -1], np.int64),
        np.array([PENDING, PENDING, PENDING, REFUSED, REFUSED], np.uint8),
        np.zeros(5, np.uint8),
        np.zeros(5, np.uint8),
    )


TAKES_ALL_LOCKS = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)  # where SQLite's readers lock
"""


def begin(directory: Path, run: StoredRun = RUN) -> Ledger:
    return Ledger.begin(directory, run)


def same(a: BatchRows, b: BatchRows) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        if name not in ("number", "at_us", "limits", "reasons")
        else getattr(a, name) == getattr(b, name)
        for name in BatchRows.__slots__
    )


def test_a_transient_failure_is_final_after_the_last_attempt() -> None:
    rows = batch()
    for attempt in range(1, 4):
        due = rows.todo("send")
        outcomes = Outcomes(np.full(due.size, TRANSIENT, np.uint8), dict.fromkeys(range(due.size), "HTTP 503"))
        rows.take_outcomes(due, outcomes, 3, rows.hand_over(due))
        assert rows.state[:3].tolist() == [RETRY if attempt < 3 else FAILED] * 3
        assert rows.attempts[:3].tolist() == [attempt] * 3
    assert rows.reasons == ["HTTP 503"]


def test_reasons_without_end_are_kept_within_bounds() -> None:
    rows = batch()
    for number in range(400):
        outcomes = Outcomes(np.array([TRANSIENT], np.uint8), {0: f"no such address: {number}\n{'x' * 500}"})
        rows.take_outcomes(np.array([0]), outcomes, 1000, np.array([False]))
    assert len(rows.reasons) == 255
    assert rows.reasons[-1] == "other reasons"
    assert rows.attempts[0] == 255
    assert same(BatchRows.unpack(0, *rows.pack(decided=True)), rows)


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as ledger:
        ledger.freeze_inputs(STORE)
        put(ledger.store, 0, 1, 2)
        held = claimed(ledger.store, "run")
        assert ledger.store.record(held, rows_of(held), decided=True)
    with begin(tmp_path / "run", replace(RUN, facts=replace(FACTS, run_id="another"))) as ledger:
        assert ledger.facts == FACTS
        again = claimed(ledger.store, "run")
        steps = again.steps()
        assert steps is not None
        assert (again.number, steps.state.tolist()) == (0, [PENDING] * 3)
        assert [rows.number for rows in ledger.batches_of(2)] == [0]
        assert not list(ledger.batches_of(5))


def test_a_run_that_says_how_long_it_is_kept_leaves_no_bytes(tmp_path: Path) -> None:
    kept, forever = (tmp_path / name for name in ("kept", "forever"))
    for directory, keep_us in ((kept, 1), (forever, None)):
        with begin(directory, replace(RUN, keep_us=keep_us)) as ledger:
            put(ledger.store, 0, 1, 2)
            for _ in range(3):
                held = claimed(ledger.store, "run")
                rows = rows_of(held, REFUSED)
                rows.reasons.append("ann@x.org")
                assert ledger.store.record(held, rows, decided=True)
        with sqlite3.connect(directory / "ledger.sqlite") as db:
            db.execute("UPDATE run SET last_us = 1, due_us = 1")
        db.close()
        assert b"ann@x.org" in (directory / "ledger.sqlite").read_bytes()
    with pytest.raises(CampaignError, match="was kept as long as it says"):
        Ledger.read(kept)
    assert not any(b"ann@x.org" in file.read_bytes() for file in kept.iterdir())
    with Ledger.read(forever) as ledger:
        assert len([*ledger.batches()]) == 3


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    with begin(tmp_path / "run"), pytest.raises(CampaignError, match="another process is in this run"):
        begin(tmp_path / "run")
    begin(tmp_path / "run").close()


def test_looking_takes_nothing_from_the_one_who_runs(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as ledger:
        put(ledger.store, 0, 1, 2)
        with Ledger.read(tmp_path / "run") as looking:
            assert looking.state().is_worked_on
            held = claimed(ledger.store, "run", lease_s=0)
            assert ledger.store.record(held, rows_of(held), decided=True)
            assert [rows.number for rows in looking.batches()] == [0]
            with pytest.raises(CampaignError, match="readonly"):
                looking.change("pause", "ann")
    with Ledger.read(tmp_path / "run") as looking:
        assert not looking.state().is_worked_on
        assert [rows.number for rows in looking.batches()] == [0]


def test_who_opens_the_file_beside_another_of_its_process_takes_no_lock_from_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with SqliteCampaignStore(path, alone=False) as store:
        store.state("sale")
        SqliteCampaignStore(path, alone=False).close()
        tried = subprocess.run(
            [sys.executable, "-c", TAKES_ALL_LOCKS, path], check=False, capture_output=True, text=True
        )
        assert "BlockingIOError" in tried.stderr, "nothing holds it"


class LockedClock:
    """Says at each reading whether the store held the file's lock meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held: list[bool] = []

    def now_us(self) -> int:
        with closing(sqlite3.connect(self.path, timeout=0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                self.held.append(True)
            else:
                self.held.append(False)
        return SystemClock().now_us()


VERBS: dict[str, Callable[[SqliteCampaignStore, Claimed], object]] = {
    "begin": lambda store, _held: store.begin(replace(RUN, facts=replace(FACTS, campaign="other"))),
    "steer": lambda store, _held: store.steer("sale", "pause", by="ann"),
    "put": lambda store, _held: put(store, 0),
    "claim": lambda store, _held: store.claim("sale", "a", 60),
    "record": lambda store, held: store.record(held, rows_of(held), decided=True),
    "release": lambda store, held: store.release(held, "give_back", wait_s=1),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_change_has_the_time_at_which_it_had_the_file_however_long_it_waited(tmp_path: Path, verb: str) -> None:
    clock = LockedClock(tmp_path / "campaigns.sqlite")
    with SqliteCampaignStore(clock.path, clock=clock) as store:
        store.begin(RUN)
        put(store, 0, 1, 2)
        held = claimed(store, "a")
        clock.held.clear()
        VERBS[verb](store, held)
        assert clock.held[-1]


def test_who_opens_a_file_that_another_process_makes_just_now_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "campaigns.sqlite"
    opened: list[str] = []

    def open_it() -> None:
        with SqliteCampaignStore(path, alone=False) as store:
            opened.extend(["opened", *store.page("", 1)])

    with closing(sqlite3.connect(path, isolation_level=None)) as maker:
        maker.execute("BEGIN IMMEDIATE")
        opening = Thread(target=open_it)
        opening.start()
        opening.join(0.3)
        assert opening.is_alive()
        maker.execute("COMMIT")
        opening.join()
    assert opened == ["opened"]


def test_other_inputs_are_refused_by_name_once_something_may_be_decided(tmp_path: Path) -> None:
    first = replace(RUN, inputs=INPUTS)
    inputs = (replace(INPUTS[0], digest="bbbb"), replace(INPUTS[1], digest="tttt", shown="day-2"))
    other = replace(RUN, inputs=inputs, facts=replace(FACTS, run_id="another"))
    with begin(tmp_path / "run", first) as ledger:
        run_id = ledger.facts.run_id
    with begin(tmp_path / "run", other) as ledger:
        assert ledger.facts.run_id == run_id
        assert not ledger.is_frozen
        ledger.freeze_inputs(STORE)
    with pytest.raises(
        CampaignError, match=r"begun with another audience, another snapshot \(was day-2, is day-1\); put it back"
    ):
        begin(tmp_path / "run", first)
    with begin(tmp_path / "run", other) as ledger:
        assert ledger.is_frozen
        ledger.freeze_inputs(STORE)
        with pytest.raises(CampaignError, match=r"begun with another store identity \(was made 1, is made 2\)"):
            ledger.freeze_inputs(replace(STORE, digest="2", shown="made 2"))


@pytest.mark.parametrize("told", ["pause", "cancel"])
def test_what_it_was_told_before_anything_was_decided_holds_for_other_inputs(tmp_path: Path, told: Change) -> None:
    with begin(tmp_path / "run") as ledger:
        ledger.change(told, "ann")
    other = replace(RUN, inputs=INPUTS, facts=replace(FACTS, campaign="other", run_id="another"), batches=1)
    with begin(tmp_path / "run", other) as ledger:
        state = ledger.state()
        assert (ledger.name, ledger.facts.run_id, state.batches) == ("other", FACTS.run_id, 1)
        assert (math.isinf(state.due_us), state.cancelled) == (told == "pause", told == "cancel")


def test_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match="no ledger here"):
        Ledger.read(tmp_path)
    assert default_directory(tmp_path / "summer.yaml") == tmp_path / "summer.run"


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CampaignError, match="the ledger cannot be kept here: not a directory"):
        begin(tmp_path / "file" / "run")


def _flip(path: Path) -> None:
    with sqlite3.connect(path) as db:
        (data,) = db.execute("SELECT decided FROM batch WHERE number = 0").fetchone()
        db.execute("UPDATE batch SET decided = ? WHERE number = 0", (data[:-6] + bytes([data[-6] ^ 1]) + data[-5:],))
    db.close()


def _overwrite(path: Path) -> None:
    path.write_bytes(b"something else entirely" * 100)


def _other_version(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 4")
    db.close()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_flip, "the ledger is damaged at batch 0; restore it from a copy"),
        (
            _other_version,
            "a ledger of version 4, this capline reads 7; .*finish the run with the capline that",
        ),
        (_overwrite, "not a database"),
    ],
)
def test_a_damaged_ledger_is_refused(tmp_path: Path, damage: Callable[[Path], object], said: str) -> None:
    with begin(tmp_path / "run") as ledger:
        ledger.freeze_inputs(STORE)
        put(ledger.store, 0, 1, 2)
        held = claimed(ledger.store, "run")
        ledger.store.record(held, rows_of(held), decided=True)
    damage(tmp_path / "run" / "ledger.sqlite")
    with pytest.raises(CampaignError, match=said), begin(tmp_path / "run") as ledger:
        list(ledger.batches())


def test_a_look_takes_as_many_steps_beside_hundreds_of_pending_campaigns(tmp_path: Path) -> None:
    with SqliteCampaignStore(tmp_path / "campaigns.sqlite") as store:

        def steps() -> int:
            counted: list[None] = []
            store._db.set_progress_handler(lambda: counted.append(None), 1)  # pyright: ignore[reportPrivateUsage]
            assert store.look(1).campaigns == ["sale"]
            store._db.set_progress_handler(None, 1)  # pyright: ignore[reportPrivateUsage]
            return len(counted)

        store.begin(RUN)
        put(store, 0, 1, 2)
        counts: list[int] = []
        for pending in (2, 200):
            for number in range(pending):
                run = replace(
                    RUN, facts=replace(FACTS, campaign=f"pending-{number}"), priority=(50, 90)[number % 2], batches=1
                )
                store.begin(run)
                store.steer(run.facts.campaign, due_us=4_000_000_000_000_000)
                fill(store, run, [(0, 3, b"", 0, None)])
            counts.append(steps())
        assert counts[1] <= counts[0] + 10


@pytest.mark.parametrize("made", [b"", None])
def test_a_run_that_was_killed_as_its_ledger_was_made_begins(tmp_path: Path, made: bytes | None) -> None:
    file = tmp_path / "ledger.sqlite"
    if made is None:
        with closing(sqlite3.connect(file)) as opened:
            opened.execute("PRAGMA journal_mode = WAL")
    else:
        file.write_bytes(made)
    assert Ledger.begun_inputs(tmp_path) == ()


def test_a_run_of_another_version_is_named_so(tmp_path: Path) -> None:
    with SqliteCampaignStore(tmp_path / "ledger.sqlite") as store:
        store.begin(RUN)
        for version, said in (("1", "begun by another version of capline"), (VERSION, "is damaged; begin it anew")):
            fields = msgspec.msgpack.encode({"version": version})
            with sqlite3.connect(store.path) as db:
                db.execute("UPDATE run SET fields = ?", (fields,))
            with pytest.raises(UnreadableRunError, match=said):
                store.find("sale")
