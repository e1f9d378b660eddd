"""The numbers of a policy on a store of this machine: all rows of a subject in one value beside its logs.

    words   last stamp of the log of hits beside them    row, row, ...
    row     number of the reader's algorithm << 8 | kind    window_us    quota    carried    carried_us + 1
            number of words that follow                     the words of a log of this kind (`log_bytes`)

Such is the value where bytes are kept. Where it is missing, each limit has a log, as older releases have them: their
sums become rows, in the step that removes these logs, once the store is told to begin the next forms (`forms=next`).

The rule: what a step takes over after a change is worked out on logs of its own, and kept by the step if it may write,
whatever it answers. So a look changes nothing stored.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from capline.model.clock import LATEST_US
from capline.model.errors import StoreDamagedError
from capline.model.limit import Limit
from capline.store.local.log import ColumnLog
from capline.store.local.log_bytes import NUMBERS, log_words, pack_words, unpack_log
from capline.window.carry import NumberRow, carry_hits, carry_numbers, rows_of, take_over
from capline.window.counters import CounterReader, FixedReader, LevelReader, counter_of, level_of
from capline.window.limit_reader import LimitReader
from capline.window.log import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capline.model.subject import Subject
    from capline.store.local.transaction import LocalRule, LogTransaction, StoredLog
    from capline.window.bound_log import BoundLog
    from capline.window.merge import Row

_ALGORITHMS: dict[type[LimitReader], int] = {CounterReader: 3, LevelReader: 4, FixedReader: 5}
_READERS: dict[int, Callable[[Limit], LimitReader]] = {3: counter_of, 4: level_of, 5: FixedReader}
_HEAD_WORDS = 6
MOST_SUMS = 64
"""Of more sums in a row those go that no number counts: a limit of a second beside one of a day has one each second."""


class StoredNumbers(msgspec.Struct, gc=False):
    """The value: what a store asks of any log, and the rows; `fresh` if the subject had none before.

    `known` are the readers that these rows were found to be of: one list for each rule. They are kept as long as the
    hits beside them, of which the last was at `beside_us`: without rows these would be carried over once more.
    """

    rows: Sequence[NumberRow]
    fresh: bool = False
    known: Sequence[LimitReader] = ()
    beside_us: int = 0

    @property
    def high_water_us(self) -> int:
        """The latest instant that any row has seen."""
        rows = self.rows
        return rows[0].log.high_water_us if len(rows) == 1 else max([row.log.high_water_us for row in rows])

    def last_us(self) -> int:
        """The last stamp of any row, or of the hits beside them."""
        return max([self.beside_us, *(row.log.last_us() for row in self.rows)])

    def recorded(self, first_us: int = 0, last_us: int = LATEST_US) -> Iterator[Row]:
        """What all rows have, as (stamp, units, fingerprint)."""
        for row in self.rows:
            yield from cast("StoredLog", row.log).recorded(first_us, last_us)


def pack_numbers(numbers: StoredNumbers, key: bytes) -> bytes:
    """The rows as their key's value."""
    words = array("Q", (numbers.beside_us,))
    for row in numbers.rows:
        limit, (kind, of_log) = row.reader.limit, log_words(row.log)  # pyright: ignore[reportArgumentType] - `OpenNumbers` made it
        words.extend((_ALGORITHMS[type(row.reader)] << 8 | kind, limit.window_us, limit.quota))
        words.extend((row.carried, row.carried_us - NEVER, len(of_log)))
        words.extend(of_log)
    return pack_words(NUMBERS, words, key)


def unpack_numbers(words: array[int]) -> StoredNumbers:
    """The rows that `pack_numbers` wrote; raises `StoreDamagedError`."""
    rows: list[NumberRow] = []
    at = 1
    try:
        while at < len(words) or not rows:
            head, window_us, quota, carried, since, count = words[at : at + _HEAD_WORDS]
            reader, at = _READERS[head >> 8](Limit(quota, window_us)), at + _HEAD_WORDS + count
            log, _ = unpack_log(head & 255, words[at - count : at])
            rows.append(NumberRow(reader, log, carried, since + NEVER))
    except (KeyError, ValueError):
        raise StoreDamagedError("stored numbers are damaged; nothing is decided on them and they are left") from None
    return StoredNumbers(rows, beside_us=words[0])


class OpenNumbers:
    """The numbers of one subject, within a transaction; nothing for a rule that has none and had none."""

    __slots__ = ("_before", "_compiled", "_ref", "_rows", "_subject", "_took", "_transaction")

    def __init__(self, transaction: LogTransaction, compiled: LocalRule, subject: Subject, place: int = 0) -> None:
        self._transaction, self._compiled, self._subject = transaction, compiled, subject
        self._took, self._before = False, compiled.before.get(place, ())
        self._ref = ref = compiled.left.get(place, None if place else compiled.numbers)
        stored = None if ref is None else transaction.load(ref, subject)
        if isinstance(stored, StoredNumbers):
            self._rows: Sequence[NumberRow] = stored.rows
        else:
            found = [(one.readers[0], transaction.stored(one, subject)) for one in self._before]
            self._rows = [NumberRow(reader, log) for reader, log in found if log is not None]

    def take_over(self, logs: Sequence[BoundLog], now_us: int, *, carries: bool) -> None:
        """Bind these logs, the policy's own first, to the rows, or to what they take over.

        Where each number has a log of its own these take over from hits if this step `carries`.
        """
        own, begins = logs[0], self._compiled.begins
        for bound in logs[1:] if own.log_limits.keeps == "ids" and (self._rows or begins) else ():
            if not isinstance(bound.log, ColumnLog):  # in pages, which go with the log that a row takes the place of
                bound.log = ColumnLog.copy_of(cast("StoredLog", bound.log))
        if own.log_limits.keeps != "ids":
            if self._rows:
                carry_numbers(self._rows, own, now_us, ColumnLog.copy_of)  # pyright: ignore[reportArgumentType] - it came from `load`
                self._took = True
        elif self._rows:
            self._took = take_over(self._rows, logs, now_us, ColumnLog)
        elif carries or begins:
            self._took = carry_hits(logs, now_us, ColumnLog)

    def save(self, logs: Sequence[BoundLog]) -> Sequence[BoundLog]:
        """Keep the rows if one was changed or took over, or no rows where hits took over; the logs still to be kept.

        The log of a limit whose sums are in a row from now on is removed.
        """
        compiled, own, ref = self._compiled, logs[0], self._ref
        if own.log_limits.keeps != "ids":
            if self._took:
                own.changed = True
                self._transaction.remove_all((*self._before, *(() if ref is None else (ref,))), self._subject)
            return logs
        if ref is None or not (self._rows or compiled.begins):
            return logs
        if self._took or any(bound.changed for bound in logs[1:]):
            for bound in logs[1:]:
                if len(cast("ColumnLog", bound.log)) > MOST_SUMS:
                    bound.log.trim(bound.log.high_water_us - 2 * bound.readers[0].limit.window_us)
            rows = StoredNumbers(rows_of(self._rows, logs), not self._rows, beside_us=max(0, own.log.last_us()))
            self._transaction.save(ref, self._subject, cast("StoredLog", rows))
            before = [row.reader for row in self._rows]
            for former, bound in zip(compiled.refs[1:], logs[1:], strict=True):
                if bound.readers[0] not in before:
                    self._transaction.remove(former, self._subject)
        return logs[:1]
