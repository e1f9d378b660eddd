import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from capline.campaign.ledger.inputs import Input
from capline.campaign.ledger.ledger import Ledger, RunFacts, default_directory
from capline.campaign.ledger.rows import DELIVERED, FAILED, PENDING, REFUNDED, REFUSED, RETRY, BatchRows
from capline.campaign.senders.protocol import PERMANENT, TRANSIENT, Outcomes
from capline.model.errors import CampaignError

FACTS = RunFacts("sale", "promo", None, 1, 5, ((None, 3), ("new", 2)), 1_000_000)
INPUTS = (Input("audience", "aaaa", "5 ids"), Input("snapshot", "ssss", "day-1"))
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


def begin(directory: Path, inputs: tuple[Input, ...] = INPUTS) -> Ledger:
    return Ledger.begin(directory, FACTS, inputs)


def same(a: BatchRows, b: BatchRows) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        if name not in ("number", "at_us", "limits", "reasons")
        else getattr(a, name) == getattr(b, name)
        for name in BatchRows.__slots__
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as ledger:
        run_id = ledger.facts.run_id
        rows = batch()
        ledger.add(rows)
        found = ledger.batch(0)
        assert found is not None
        assert same(found, rows)
        assert (ledger.next_batch(), ledger.done_rows()) == (0, 0)
        outcomes = Outcomes.delivered(3)
        outcomes.fail(1, PERMANENT, "HTTP 410")
        due = rows.due()
        rows.take_outcomes(due, outcomes, 3, rows.hand_over(due))
        ledger.save(rows, 5_000)
    with begin(tmp_path / "run") as ledger:
        assert ledger.facts == replace(FACTS, run_id=run_id)
        found = ledger.batch(0)
        assert found is not None
        assert same(found, rows)
        assert found.state.tolist() == [DELIVERED, FAILED, DELIVERED, REFUSED, REFUSED]
        assert not found.is_done
        found.state[1] = REFUNDED
        ledger.save(found, 9_000)
        assert (ledger.next_batch(), ledger.done_rows(), ledger.elapsed_us) == (1, 5, 9_000)
        assert not ledger.is_finished
        ledger.finish(10_000)
        assert (ledger.is_finished, ledger.elapsed_us) == (True, 10_000)


def test_a_transient_failure_is_final_after_the_last_attempt() -> None:
    rows = batch()
    for attempt in range(1, 4):
        due = rows.due()
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
    assert same(
        BatchRows.unpack(0, 1_000_000, 5, rows.limits, rows.pack_decided(), rows.pack_outcome(), rows.reasons), rows
    )


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    with begin(tmp_path / "run"), pytest.raises(CampaignError, match="another process is in this run"):
        begin(tmp_path / "run")
    begin(tmp_path / "run").close()


def test_looking_takes_nothing_from_the_one_who_runs(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as ledger:
        with Ledger.read(tmp_path / "run") as looking:
            assert looking.is_running
            ledger.add(batch())
            assert looking.batch(0) is not None
            with pytest.raises(CampaignError, match="readonly"):
                looking.add(batch(1))
        ledger.add(batch(1))
    with Ledger.read(tmp_path / "run") as looking:
        assert not looking.is_running
        assert [rows.number for rows in looking.batches()] == [0, 1]


def test_other_inputs_are_refused_by_name_once_something_may_be_decided(tmp_path: Path) -> None:
    other = (replace(INPUTS[0], digest="bbbb"), replace(INPUTS[1], digest="tttt", shown="day-2"))
    with begin(tmp_path / "run") as ledger:
        run_id = ledger.facts.run_id
    with begin(tmp_path / "run", other) as ledger:
        assert ledger.facts.run_id == run_id
        assert not ledger.is_frozen
        ledger.freeze_inputs(STORE)
    with pytest.raises(
        CampaignError, match=r"begun with another audience, another snapshot \(was day-2, is day-1\); put it back"
    ):
        begin(tmp_path / "run")
    with begin(tmp_path / "run", other) as ledger:
        assert ledger.is_frozen
        ledger.freeze_inputs(STORE)
        with pytest.raises(CampaignError, match=r"begun with another store identity \(was made 1, is made 2\)"):
            ledger.freeze_inputs(replace(STORE, digest="2", shown="made 2"))


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
        (data,) = db.execute("SELECT decided FROM batch").fetchone()
        db.execute("UPDATE batch SET decided = ?", (data[:20] + bytes([data[20] ^ 1]) + data[21:],))
    db.close()


def _overwrite(path: Path) -> None:
    path.write_bytes(b"something else entirely" * 100)


def _other_version(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_flip, "the ledger is damaged at batch 0; restore it from a copy"),
        (_other_version, "a ledger of version 99, this capline reads 2"),
        (_overwrite, "not a database"),
    ],
)
def test_a_damaged_ledger_is_refused(tmp_path: Path, damage: Callable[[Path], object], said: str) -> None:
    with begin(tmp_path / "run") as ledger:
        ledger.add(batch())
    damage(tmp_path / "run" / "ledger.sqlite")
    with pytest.raises(CampaignError, match=said), begin(tmp_path / "run") as ledger:
        ledger.batch(0)
