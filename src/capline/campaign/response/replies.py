"""Events that came back, joined with messages.

    by key                   where the file has the column: the message of that key
    by recipient and time    else: the messages of this recipient that were decided within the attribution window,
                             in (t - window, t]; the last of them has the event, the others only saw it

Memory: 4 million events at a time, and for each kind of event 5 bytes a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from capline.campaign.response.messages import HELD_OUT, NOT_KNOWN, SENT, TRIED, Timeline, places, text_of
from capline.model.errors import SegmentError
from capline.segment.build import table
from capline.segment.build.events import Batch
from capline.segment.build.source import Paths, expand

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from capline.campaign.response.messages import Messages

MOST_KINDS = 20
_GATHERED = 4_000_000


class EventColumns(NamedTuple):
    """The columns of events by name."""

    id: str = "id"
    time: str = "time"
    event: str = "event"
    key: str = "key"


class Kind:
    """What messages got of one kind of event."""

    def __init__(self, messages: int) -> None:
        self.direct = np.zeros(messages, np.bool_)
        """Which messages have an event: by their key, or as the last before it."""
        self._changes = np.zeros(messages + 1, np.int32)
        self.by_key = False
        """Whether any came by key; then nobody can say what the held out did."""

    def see(self, low: NDArray[np.int64], high: NDArray[np.int64]) -> None:
        """Note that these ranges of ordered rows were followed by an event."""
        np.add.at(self._changes, low, 1)
        np.subtract.at(self._changes, high, 1)

    def followed(self, line: Timeline) -> NDArray[np.bool_]:
        """Which messages an event followed within the attribution window, whatever came between."""
        found = np.zeros(len(self.direct), np.bool_)
        found[line.rows] = np.cumsum(self._changes[:-1])[: len(line.rows)] > 0
        return found


class Replies:
    """All events, as they are read."""

    def __init__(self, messages: Messages, within_us: int, opt_out: str | None = None) -> None:
        self._messages, self._within_us, self._opt_out = messages, within_us, opt_out
        self.kinds: dict[str, Kind] = {}
        self.events = self.never_sent = self.outside = 0
        """All; of a message that was never sent; of a recipient, but too early or too late for any message."""
        self.opted_out: set[str] = set()
        """The recipients with an event of the kind that opts out."""
        self.told: list[str] = []
        could = np.flatnonzero(np.isin(messages.state, (SENT, NOT_KNOWN, TRIED, HELD_OUT)))
        self.line = Timeline(messages.people, messages.at_us, could)
        self._sent = Timeline(messages.people, messages.at_us, np.flatnonzero(messages.state == SENT))
        reached = np.isin(messages.state, (SENT, NOT_KNOWN))
        self._arrived = np.append(reached, False)
        counted = reached | (messages.state == HELD_OUT)
        self._reached = np.append(np.bincount(messages.people[counted], minlength=len(messages.ids)) > 0, False)

    def read(self, paths: Paths, columns: EventColumns, progress: Callable[[int], object]) -> None:
        """Join the events of these files; `SegmentError` for what is wrong with one."""
        for path in expand(paths):
            by_key = columns.key in table.names(path)
            for who, at_us, codes, names in self._gathered(path, columns, by_key):
                if len(names) > MOST_KINDS:
                    raise SegmentError(
                        f"{path}: {len(names)} kinds of events, at most {MOST_KINDS}; "
                        f"is {columns.event!r} the right column?"
                    )
                join = self._by_key if by_key else self._by_recipient
                self.events += len(who)
                join(who, at_us, codes, list(names))
                progress(self.events)
        if not self.events:
            raise SegmentError(f"{', '.join(map(str, expand(paths)))}: no events")

    def _gathered(self, path: Any, columns: EventColumns, by_key: bool) -> Iterable[tuple[Any, ...]]:
        """The key or the recipient, the instant and the kind's code of some million events."""
        pa: Any = import_module("pyarrow")
        wanted = (columns.key,) if by_key else (columns.id, columns.time)
        names = {name: code for code, name in enumerate(self.kinds, start=1)}
        waiting: list[tuple[Any, ...]] = []
        count, zoneless = 0, False

        def all_of() -> tuple[Any, ...]:
            who = pa.chunked_array([each[0] for each in waiting])
            at_us, codes = (np.concatenate([each[place] for each in waiting]) for place in (1, 2))
            waiting.clear()
            return who, at_us, codes - 1, names

        with table.read_columns(path, (*wanted, columns.event)) as batches:
            for batch in batches:
                rows, at_us = Batch(batch, path), np.zeros(len(batch.arrays[0]), np.int64)
                if not by_key:
                    at_us, without = rows.times(1, columns.time)
                    zoneless |= without
                codes = rows.codes(len(wanted), columns.event, names, every=True)
                waiting.append((text_of(batch.arrays[0], path, wanted[0]), at_us, codes))
                count += len(at_us)
                if count >= _GATHERED:
                    yield all_of()
                    count = 0
        if waiting:
            yield all_of()
        if zoneless:
            self.told.append(f"{path}: times without a zone are read as UTC")

    def _kind(self, name: str) -> Kind:
        return self.kinds.setdefault(name, Kind(len(self._messages.state)))

    def _by_key(self, keys: Any, _at_us: Any, codes: NDArray[np.int32], names: list[str]) -> None:
        row = places(keys, self._messages.keys)
        arrived = self._arrived[row]
        self.never_sent += int(np.count_nonzero(~arrived))
        for code, name in enumerate(names):
            some = codes == code
            kind = self._kind(name)
            kind.by_key |= bool(some.any())
            kind.direct[row[some & arrived]] = True
            if name == self._opt_out:
                found = row[some & (row >= 0)]
                self.opted_out.update(self._messages.ids.take(self._messages.people[found]).to_pylist())
                if len(found) < np.count_nonzero(some):
                    lost = int(np.count_nonzero(some)) - len(found)
                    self.told.append(f"{lost:,} events {name!r} have keys of no message: nobody is opted out by them")

    def _by_recipient(self, ids: Any, at_us: NDArray[np.int64], codes: NDArray[np.int32], names: list[str]) -> None:
        person = places(ids, self._messages.ids)
        reached = self._reached[person]
        self.never_sent += int(np.count_nonzero(~reached))
        low, high = (self.line.upto(person, at) for at in (at_us - self._within_us, at_us))
        first, last = (self._sent.upto(person, at) for at in (at_us - self._within_us, at_us))
        self.outside += int(np.count_nonzero(reached & (low >= high)))
        for code, name in enumerate(names):
            some = codes == code
            kind = self._kind(name)
            seen, direct = some & (person >= 0) & (low < high), some & (person >= 0) & (first < last)
            kind.see(low[seen], high[seen])
            kind.direct[self._sent.rows[last[direct] - 1]] = True
            if name == self._opt_out:
                self.opted_out.update(ids.filter(some).to_pylist())
