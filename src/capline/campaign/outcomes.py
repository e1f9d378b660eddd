"""Outcomes: what became of one recipient, or of all as a file, by a run's ledger.

    sent           the sender has it
    refused        by which limit, and until when (None: for ever) if nothing else is recorded
    failed         why; `given_back` tells whether the hit is refunded yet (a resumed run does so)
    not known      perhaps accepted, and why that is unclear: the hit stays
    excluded       opted out, or otherwise excluded, before it was sent; a hit that was there is given back
    held           by which limit, and until when it waits at least
    held out       in the holdout; by which limit it would have been refused, if so
    under way      decided, but none of these yet; also those to be retried

A row that is retried has the outcome of its last batch. Cost: finding one recipient unpacks one batch; a file is
written with one batch in memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from capline.campaign.csv_cells import csv_cell
from capline.campaign.senders.protocol import message_key
from capline.campaign.store.rows import EXCLUDED, FATES, HELD, HELD_OUT, REFUNDED, REFUSED, RETRIED
from capline.model.errors import CampaignError, CampaignNotFoundError, InvalidValueError
from capline.model.subject import LARGEST_ID
from capline.segment.files import replacing
from capline.store.columns import NEVER_US
from capline.support.instant import instant_text
from capline.support.private import private_opener

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from capline.campaign.ledger import Ledger
    from capline.campaign.store.records import RunFacts
    from capline.campaign.store.rows import BatchRows
    from capline.model.subject import Subject

Tables = Callable[[Callable[[str], Any], Callable[[str], str]], Iterable[Any]]
"""The outcomes as tables of the schema for a kind of ids; a text is written as the second function returns it."""

_ID = re.compile(r"[0-9]{1,20}")
OUTCOMES = (*dict.fromkeys(fate.outcome for fate in FATES),)
_OF_STATE = np.array([OUTCOMES.index(fate.outcome) for fate in FATES], np.int8)


class Outcome(msgspec.Struct, frozen=True):
    """What became of one recipient. Instants are in microseconds since 1970, and as text in UTC.

    `key` is the message's; `hit_us` is the stamp of its hit, None if it was refused.
    """

    campaign: str
    run: str
    subject: int | str
    segment: str | None
    outcome: str
    reason: str | None
    limit: str | None
    until_us: int | None
    until: str | None
    given_back: bool
    attempts: int
    decided_us: int
    decided: str
    hit_us: int | None
    key: str


def outcome_of(ledger: Ledger, subject: Subject) -> Outcome | None:
    """What became of a subject; None if it was not decided (yet)."""
    for rows in ledger.batches_of(subject):
        for row in np.flatnonzero(rows.ids == subject).tolist():
            return outcome_at(ledger.facts, rows, row)
    return None


def recipients_outcome(ledger: Ledger, recipient: str) -> Outcome:
    """What became of the recipient of this id; `CampaignNotFoundError` where it was not decided (yet)."""
    text = ledger.facts.ids == "text"
    if not text and not (_ID.fullmatch(recipient) and int(recipient) <= LARGEST_ID):
        raise InvalidValueError(
            f"recipient {recipient!r}: this campaign's ids are whole numbers from 0 to {LARGEST_ID}"
        )
    found = outcome_of(ledger, recipient if text else int(recipient))
    if found is None:
        end = "is not in its audience" if ledger.is_finished else "was not decided yet, or is not in its audience"
        raise CampaignNotFoundError(f"{ledger.place}: {recipient} {end}")
    return found


def outcome_at(facts: RunFacts, rows: BatchRows, row: int) -> Outcome:
    """What became of the subject of a row."""
    state, retry_us, hit_us = int(rows.state[row]), int(rows.retry_us[row]), int(rows.hit[row])
    refused = _names_limit(rows, slice(row, row + 1)).item()
    until_us = rows.at_us + retry_us if refused and retry_us != NEVER_US else None
    subject = rows.ids[row : row + 1].tolist()[0]
    return Outcome(
        facts.campaign,
        facts.run_id,
        subject,
        facts.segments[int(rows.codes[row])][0],
        OUTCOMES[int(_OF_STATE[state])],
        rows.reasons[int(rows.reason[row]) - 1] if rows.reason[row] else None,
        rows.limits[int(rows.limit[row])] if refused else None,
        until_us,
        None if until_us is None else instant_text(until_us),
        state in (REFUNDED, RETRIED) or (state == EXCLUDED and hit_us >= 0),
        int(rows.attempts[row]),
        rows.at_us,
        instant_text(rows.at_us),
        None if hit_us < 0 else hit_us,
        message_key(facts.campaign, facts.run_id, subject),
    )


def _names_limit(rows: BatchRows, some: Any) -> NDArray[np.bool_]:
    """Which of these rows have a limit that refused or holds them, or would have refused one that is held out."""
    return np.isin(rows.state[some], (REFUSED, HELD, HELD_OUT)) & (rows.limit[some] >= 0)


def export_outcomes(tables: Tables, path: Path) -> int:
    """Write outcomes as Parquet or CSV, by the file's suffix; returns how many.

    The file has a row for each decided recipient and appears when it is complete. CSV holds no formulas (`csv_cells`).
    Raises `CampaignError` for another suffix, and if the file cannot be written.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise CampaignError(f"{path}: the name of an outcomes file ends in .parquet or .csv")
    try:
        with replacing(path, private_opener) as target:
            return write_outcomes(tables, target, csv=path.suffix == ".csv")
    except OSError as error:
        raise CampaignError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from None


def write_outcomes(tables: Tables, target: Any, *, csv: bool) -> int:
    """The same, to an open file."""
    schema_of = _schema_of(csv=csv)

    def opened(schema: Any) -> Any:
        if csv:
            return import_module("pyarrow.csv").CSVWriter(target, schema)
        return import_module("pyarrow.parquet").ParquetWriter(target, schema)

    count = 0
    with ExitStack() as stack:
        writer: Any = None
        for table in tables(schema_of, csv_cell if csv else str):
            writer = writer or stack.enter_context(opened(table.schema))
            writer.write_table(table)
            count += len(table)
        if writer is None:
            opened(schema_of("uint32")).close()
    return count


def _schema_of(*, csv: bool) -> Callable[[str], Any]:
    # pyarrow ships no types: imported by name it is Any.
    pa: Any = import_module("pyarrow")
    texts = pa.string() if csv else pa.dictionary(pa.int16(), pa.string())
    instant = pa.timestamp("us", tz="UTC")

    def schema_of(ids: str) -> Any:
        return pa.schema(
            {
                "id": pa.string() if ids == "text" else pa.type_for_alias(ids),
                "segment": texts,
                "outcome": texts,
                "reason": texts,
                "limit": texts,
                "until": instant,
                "given_back": pa.bool_(),
                "attempts": pa.uint8(),
                "decided": instant,
                "hit_us": pa.int64(),
                "key": pa.string(),
            }
        )

    return schema_of


def columns_of_outcomes(tables: Tables) -> Iterable[Any]:
    """The outcomes as the tables that a Parquet file of them would have."""
    return tables(_schema_of(csv=False), str)


def tables_of(facts: RunFacts, batches: Iterable[BatchRows]) -> Tables:
    """The outcomes of these batches, one after the other."""
    return lambda schema_of, cell: (_table(facts, rows, schema_of(facts.ids), cell) for rows in batches)


def _table(facts: RunFacts, rows: BatchRows, schema: Any, cell: Callable[[str], str]) -> Any:
    pa: Any = import_module("pyarrow")
    last = np.flatnonzero(rows.state != RETRIED)
    state, hits = rows.state[last], rows.hit[last]
    refused = _names_limit(rows, last)
    limits = np.where(refused, rows.limit[last], -1)
    fits = refused & (rows.retry_us[last] != NEVER_US)
    ids = rows.ids[last]
    columns = {
        "id": pa.array([cell(text) for text in ids] if facts.ids == "text" else ids),
        "segment": _texts(pa, rows.codes[last], [cell(name or "") for name, _ in facts.segments]),
        "outcome": _texts(pa, _OF_STATE[state], OUTCOMES),
        "reason": _texts(pa, rows.reason[last].astype(np.int16) - 1, [cell(reason) for reason in rows.reasons]),
        "limit": _texts(pa, limits, [cell(limit) for limit in rows.limits]),
        "until": pa.array(rows.at_us + rows.retry_us[last], mask=~fits),
        "given_back": pa.array((state == REFUNDED) | ((state == EXCLUDED) & (hits >= 0))),
        "attempts": pa.array(rows.attempts[last]),
        "decided": pa.array(np.full(len(last), rows.at_us, np.int64)),
        "hit_us": pa.array(hits, mask=hits < 0),
        "key": pa.array(
            [cell(message_key(facts.campaign, facts.run_id, subject)) for subject in ids.tolist()], pa.string()
        ),
    }
    return pa.table({name: column.cast(schema.field(name).type) for name, column in columns.items()}, schema=schema)


def _texts(pa: Any, codes: Any, texts: Any) -> Any:
    """A column of texts by index; null where it is below 0."""
    numbers = pa.array(codes.astype(np.int16), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(numbers, pa.array(list(texts), pa.string()))
