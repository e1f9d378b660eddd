"""Decides segments by rules over events: DuckDB groups the events of each user, within a bound of memory.

Events are read and checked here and handed to it batch by batch; what its memory does not hold it keeps in a folder.
One row comes back for each user: which rules hold, a bit each.

Cost: 100M events of 10M users: see decision 3. Memory: 1 GiB for the engine, and the bitmaps.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capline.model.errors import SegmentError
from capline.segment.build import table
from capline.segment.build.events import Events, read_events
from capline.segment.build.rules import ANY, Condition, Rules
from capline.segment.build.source import Paths, Rows, TextRows, expand, read_ids
from capline.segment.dictionary.idfile import Group
from capline.segment.sets.idset import set_type

_MEMORY = "1GiB"
_BATCH_ROWS = 1 << 17


class RuleBuild:
    """Rows (id, segment) out of events; what was seen on the way is known once they have been read."""

    def __init__(
        self,
        rules: Rules,
        events: Paths,
        at_us: int,
        *,
        kind: str = "uint32",
        users: Paths | None = None,
        drop_duplicates: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        self._rules, self._paths, self._users = rules, events, users
        self._kind, self._at_us, self._distinct = kind, at_us, drop_duplicates
        self._progress = progress
        self.told: list[str] = []
        """What a person should know before trusting the sizes, a line each."""
        self.events = self.later = self.used = self.users = 0
        self.met: NDArray[np.int64] = np.zeros(len(rules.rules), np.int64)
        """How many users meet each rule, whether or not an earlier one has them."""
        self.taken = np.zeros_like(self.met)
        """How many users each rule gets."""

    @property
    def names(self) -> list[str]:
        """The segments, in order."""
        return self._rules.names

    def facts(self) -> dict[str, object]:
        """What was read, and how many users each rule alone would have; in plain numbers."""
        met = dict(zip(self.names, self.met.tolist(), strict=True))
        return {
            "at_us": self._at_us,
            "events": self.events,
            "later": self.later,
            "duplicates": self.events - self.later - self.used,
            "users": self.users,
            "in_none": self.users - int(self.taken.sum()),
            "meet": met,
            "told": self.told,
        }

    def rows(self, folder: str | Path) -> Iterator[Rows | TextRows]:
        """The rows of users in a segment, each user once; the engine keeps in the folder what it cannot in memory."""
        failed: list[BaseException] = []
        text = self._kind == "text"
        schema = table.schema_of(id="large_string" if text else self._kind, at="int64", event="int32", value="int64")
        duckdb = _duckdb()
        settings = {
            "memory_limit": _MEMORY,
            "temp_directory": str(folder),
            "preserve_insertion_order": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
        with duckdb.connect(config=settings) as engine:
            engine.register("events", table.batch_reader(schema, self._batches(schema, failed)))
            try:
                for batch in engine.sql(self._query()).to_arrow_reader(_BATCH_ROWS):
                    yield self._decided(batch)
            except Exception as error:
                if failed:
                    raise failed[0] from None
                if not isinstance(error, duckdb.Error):
                    raise
                first = str(error).partition("\n")[0]
                raise SegmentError(f"the engine of rules could not group the events: {first}") from None
        self._tell()

    def _batches(self, schema: Any, failed: list[BaseException]) -> Iterator[Any]:
        """The events as Arrow's batches; users without events come with an event before all others."""
        try:
            for ids in self._known():
                none = np.zeros(len(ids), np.int64)
                yield table.record_batch(
                    {"id": ids, "at": none - 1, "event": none.astype(np.int32), "value": none}, schema
                )
            codes = self._rules.events()
            for batch in read_events(
                self._paths, self._rules.columns, codes, self._kind, self.told.append, every=self._distinct
            ):
                self.events += len(batch.at_us)
                if self._progress is not None:
                    self._progress(self.events)
                yield table.record_batch(dict(zip(schema.names, self._until(batch), strict=True)), schema)
        except BaseException as error:
            failed.append(error)
            raise

    def _known(self) -> Iterator[Any]:
        if self._users is not None:
            for path in expand(self._users):
                column = self._rules.columns.id
                for ids, _ in read_ids(path, column, (), text=self._kind == "text", kind=self._kind):
                    yield ids

    def _until(self, batch: Events) -> Events:
        """Without the events that come later than the instant asked for."""
        later = batch.at_us > self._at_us
        count = int(np.count_nonzero(later))
        if not count:
            return batch
        self.later += count
        kept = np.flatnonzero(~later)
        return Events(batch.ids.take(kept), batch.at_us[kept], batch.codes[kept], batch.values[kept])

    def _query(self) -> str:
        bits = [
            f"(CASE WHEN {' AND '.join(sorted(map(self._holds, rule.conditions)))} THEN {1 << place} ELSE 0 END)"
            for place, rule in enumerate(self._rules.rules)
        ]
        source = "(SELECT DISTINCT * FROM events)" if self._distinct else "events"
        counted = 'count(*) FILTER (WHERE "at" >= 0)'
        return f"SELECT id, {counted} AS events, ({' + '.join(bits)})::UBIGINT AS met FROM {source} GROUP BY id"  # noqa: S608  # nosec B608

    def _holds(self, condition: Condition) -> str:
        """One condition on a user's events; all that is in it are numbers."""
        measure, event, span_us, at_least, number = condition
        after = None if span_us is None else self._at_us - span_us
        which = ['"at" >= 0']
        if event != ANY:
            which.append(f"event = {self._rules.events()[event]}")
        if measure in ("first", "last"):
            found = f'{"min" if measure == "first" else "max"}("at") FILTER (WHERE {" AND ".join(which)})'
            return f"coalesce({found} {'<=' if at_least else '>'} {after}, false)"
        if after is not None:
            which.append(f'"at" > {after}')
        found = "count(*)" if measure == "count" else "sum(value)"
        found = f"coalesce({found} FILTER (WHERE {' AND '.join(which)}), 0)"
        return f"{found} {'>=' if at_least else '<'} {number}"

    def _decided(self, batch: Any) -> Rows | TextRows:
        met: NDArray[np.uint64] = batch.column("met").to_numpy(zero_copy_only=False)
        self.users += len(met)
        self.used += int(batch.column("events").to_numpy(zero_copy_only=False).sum())
        places = np.uint64(1) << np.arange(len(self.met), dtype=np.uint64)
        self.met += np.array([np.count_nonzero(met & place) for place in places])
        kept = np.flatnonzero(met)
        first = met[kept] & (~met[kept] + np.uint64(1))  # the lowest bit
        codes = np.searchsorted(places, first)
        self.taken += np.bincount(codes, minlength=len(self.met))
        names, ids = tuple(self._rules.names), batch.column("id").take(kept)
        if self._kind == "text":
            return TextRows([Group(*each) for each in table.by_length(table.plain_text(ids))], codes, names)
        return Rows(ids.to_numpy(zero_copy_only=False).astype(set_type(self._kind).dtype, copy=False), codes, names)

    def _tell(self) -> None:
        if self.used < self.events - self.later:
            self.told.append(f"{self.events - self.later - self.used:,} duplicated events are not used")
        if self.later:
            self.told.append(f"{self.later:,} of {self.events:,} events are later than --at; not used")
        for rule, met, taken in zip(self._rules.rules, self.met.tolist(), self.taken.tolist(), strict=True):
            if not met:
                self.told.append(f"segment {rule.segment!r}: nobody meets its rule")
            elif met == self.users:
                self.told.append(
                    f"segment {rule.segment!r}: everybody meets its rule, so nobody is left for later ones"
                )
            elif not taken:
                self.told.append(f"segment {rule.segment!r}: all {met:,} who meet its rule are in earlier segments")


def _duckdb() -> Any:
    try:
        return import_module("duckdb")
    except ModuleNotFoundError:
        raise SegmentError('rules over events need duckdb: pip install "capline[rules]"') from None
