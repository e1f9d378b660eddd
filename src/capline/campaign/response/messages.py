"""The outcomes of campaigns as columns, a row for each recipient of each run.

They come from files that `capline campaign outcomes` wrote, or from the runs themselves. Memory: some 100 bytes a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from capline.campaign.outcomes import columns_of_outcomes
from capline.model.errors import SegmentError
from capline.segment.build import table
from capline.segment.build.events import Batch

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from capline.campaign.outcomes import Tables
    from capline.segment.build.inputs import Input

SENT, NOT_KNOWN, TRIED, HELD_OUT, OTHER, REFUSED, HELD = range(7)
"""`TRIED`: allowed, but not sent after all. `OTHER` could not be sent: excluded, or held out and over a limit."""
_STATES = {
    "sent": SENT,
    "not known": NOT_KNOWN,
    "failed": TRIED,
    "under way": TRIED,
    "held out": HELD_OUT,
    "refused": REFUSED,
    "held": HELD,
    "excluded": OTHER,
}
COLUMNS = ("id", "segment", "outcome", "limit", "until", "given_back", "decided", "hit_us", "key")
_GUARDED = "^'(\\s*[=+\\-@\uff0b\uff0d\uff1d\uff20]|[\\t\\r])"
"""Cells of CSV as `csv_cells` writes them."""


class Messages(NamedTuple):
    """Columns of one length; names by their codes, -1 for none."""

    people: NDArray[np.int64]
    campaigns: NDArray[np.int64]
    segments: NDArray[np.int64]
    limits: NDArray[np.int64]
    state: NDArray[np.int8]
    at_us: NDArray[np.int64]
    """When it was decided."""
    hit_us: NDArray[np.int64]
    """The stamp of a hit that was not given back; -1 if there is none."""
    until_us: NDArray[np.int64]
    """When a refused one would fit; else when it was decided."""
    keys: Any
    ids: Any
    """The recipients by their codes, as text; like `keys` as Arrow has it."""
    campaign_names: list[str]
    segment_names: list[str]
    limit_names: list[str]


class Timeline:
    """Some rows by recipient and instant."""

    def __init__(self, people: NDArray[np.int64], at_us: NDArray[np.int64], rows: NDArray[np.integer[Any]]) -> None:
        self.rows = rows[np.lexsort((at_us[rows], people[rows]))]
        """These rows in order."""
        # One number for both would overflow, so an instant stands for the count of those up to it.
        self._instants = np.unique(at_us[rows])
        self._places = self._place(people[self.rows], at_us[self.rows])

    def _place(self, people: NDArray[np.int64], at_us: NDArray[np.int64]) -> NDArray[np.int64]:
        return people * (len(self._instants) + 1) + np.searchsorted(self._instants, at_us, "right")

    def upto(self, people: NDArray[np.int64], at_us: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many of the ordered rows come before those of each recipient, or are theirs up to the instant."""
        return np.searchsorted(self._places, self._place(people, at_us), "right")


def messages_of_files(paths: Iterable[Input]) -> Iterable[Any]:
    """The outcomes in these files, batch by batch."""
    for path in paths:
        with table.read_columns(path, COLUMNS) as batches:
            for batch in batches:
                yield _part(batch, path)


def messages_of_tables(tables: Tables, place: Path) -> Iterable[Any]:
    """The outcomes of a run; `place` names it in errors."""
    row = 1
    for some in columns_of_outcomes(tables):
        arrays = tuple(some.column(name).combine_chunks() for name in COLUMNS)
        yield _part(table.TableColumns(arrays, row, is_text=False), place)
        row += len(some)


def gathered(parts: Iterable[Any]) -> Messages:
    """All of these in one table; `SegmentError` if they are empty."""
    compute: Any = import_module("pyarrow.compute")
    found = [part for part in parts if len(part[0])]
    if not found:
        raise SegmentError("no outcomes; name campaigns of which something was decided")
    pa: Any = import_module("pyarrow")
    texts = [pa.chunked_array([part[place] for part in found]) for place in range(5)]
    keys = texts.pop()
    twice = len(keys) - compute.count_distinct(keys).as_py()
    if twice:
        raise SegmentError(f"{twice:,} messages come twice, as {_twice(keys)}; name each campaign once")
    ids, campaigns, segments, limits = map(compute.unique, texts)
    people, *codes = map(places, texts, (ids, campaigns, segments, limits))
    numbers = (np.concatenate([part[place] for part in found]) for place in range(5, 9))
    names = (each.to_pylist() for each in (campaigns, segments, limits))
    return Messages._make([people, *codes, *numbers, keys.combine_chunks(), ids, *names])


def _twice(keys: Any) -> str:
    seen: set[str] = set()
    return next(key for key in keys.to_pylist() if key in seen or seen.add(key))


def places(values: Any, among: Any) -> NDArray[np.int64]:
    """The place of each value among these; -1 if it is not one of them."""
    compute: Any = import_module("pyarrow.compute")
    return compute.fill_null(compute.index_in(values, among), -1).to_numpy().astype(np.int64)


def text_of(column: Any, path: object, name: str) -> Any:
    """A column of texts or whole numbers as text, null as empty."""
    pa: Any = import_module("pyarrow")
    if not (table.is_text(column) or table.is_integer(column) or pa.types.is_null(column.type)):
        raise SegmentError(f"{path}: column {name!r} holds {column.type}; store text or whole numbers")
    compute: Any = import_module("pyarrow.compute")
    return compute.fill_null(column.cast(pa.large_string()), "")


def _part(batch: table.TableColumns, path: Any) -> tuple[Any, ...]:
    pa: Any = import_module("pyarrow")
    compute: Any = import_module("pyarrow.compute")
    columns = dict(zip(COLUMNS, batch.arrays, strict=True))
    texts = {name: text_of(columns[name], path, name) for name in ("id", "segment", "outcome", "limit", "key")}
    if batch.is_text:
        texts = {name: compute.replace_substring_regex(text, _GUARDED, "\\1") for name, text in texts.items()}
    words = texts["outcome"].dictionary_encode()
    named = words.dictionary.to_pylist()
    unknown = next((word for word in named if word not in _STATES), None)
    if unknown is not None:
        raise SegmentError(f"{path}: {unknown[:40]!r} is not an outcome; name files that 'campaign outcomes' wrote")
    state = np.array([_STATES[word] for word in named], np.int8)[words.indices.to_numpy()]
    limited = compute.not_equal(texts["limit"], "").to_numpy(zero_copy_only=False)
    state[(state == HELD_OUT) & limited] = OTHER
    hits, given = (
        columns["hit_us"].cast(pa.large_string()) if batch.is_text else columns["hit_us"],
        columns["given_back"],
    )
    try:
        if batch.is_text:
            hits = compute.if_else(compute.equal(hits, ""), "-1", hits)
        hit_us = compute.fill_null(hits.cast(pa.int64()), -1).to_numpy().copy()
        given = compute.fill_null((given.cast(pa.string()) if batch.is_text else given).cast(pa.bool_()), False)
    except pa.ArrowException as error:
        raise SegmentError(f"{path}: hit_us or given_back is not what 'campaign outcomes' wrote: {error}") from None
    back = given.to_numpy(zero_copy_only=False)
    state[(state == OTHER) & back] = TRIED  # opted out between the decision and the sending
    hit_us[back] = -1
    campaigns = compute.replace_substring_regex(texts["key"], "/.*$", "")
    decided, until = columns["decided"], columns["until"]
    if batch.is_text:
        decided, until = decided.cast(pa.large_string()), until.cast(pa.large_string())
        until = compute.if_else(compute.equal(until, ""), None, until)
    times = Batch(table.TableColumns((decided, compute.coalesce(until, decided)), batch.first_row, batch.is_text), path)
    at_us, until_us = times.times(0, "decided")[0], times.times(1, "until")[0]
    return texts["id"], campaigns, texts["segment"], texts["limit"], texts["key"], state, at_us, hit_us, until_us
