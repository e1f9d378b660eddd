"""`lmdb:///path`: durable logs in one file, shared by every process and thread of the machine. The default store.

    table     key                                              value
    meta      "format"                                         which layout this is
              "begun"                                          u64 when the store was made (us), u64 drawn then
              "log:" + name                                    u32 number of that log, u64 longest window on it (us)
    logs      u32 log, subject                                 a packed log (`log_bytes`), or the head of a paged one,
                                                               or all numbers of a policy (`numbers`)
    pages     u32 log, subject, u32 page                       sealed pages of long logs (`log_pages`)
    receipts  16-byte hash of the receipt's name               u64 expiry, then the answers

    Every value but "format" carries a checksum of itself and its key: logs and pages in their heads, the others before
    the value (`seal`).

    subject   "i" + u64 for an integer; "t" + UTF-8 for text; "h" + 32-byte hash for text longer than 400 bytes

Numbers in keys are big-endian, so integer subjects lie in their order: a campaign in the order of ids walks the file.
A decision is one write transaction, so exact among processes; LMDB's lock is robust, so a killed process blocks nobody.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from capline.model.clock import Clock
from capline.model.decision import Decision
from capline.model.errors import CaplineError, StoreClosedError, StoreError
from capline.model.subject import Subject, check_subject
from capline.store.columns import NO_HIT, Decisions, plain
from capline.store.local.base import LocalStore
from capline.store.local.batches import ROWS_A_TRANSACTION, limits_of
from capline.store.local.fast_path import FastRule, Quick, decide_one, first_decision
from capline.store.local.lmdb.environment import Environment, Transaction, open_environment
from capline.store.local.lmdb.keys import (
    LOG_KEY,
    LOG_META,
    LOG_NUMBER,
    log_keys,
    log_prefix,
    subject_key,
    subject_of,
)
from capline.store.local.lmdb.sweep import Sweeper
from capline.store.local.lmdb.transaction import LmdbPages, LmdbTransaction, logs_beside
from capline.store.local.log import ColumnLog
from capline.store.local.log_bytes import (
    FLOOR,
    IDS,
    PAGED,
    pack_first_hits,
    pack_log,
    pack_unit_log,
    read_plain,
    read_words,
    seal,
    unpack_log,
    unseal,
)
from capline.store.local.log_pages import EPOCH_WORD, MIXED_WORD, TAIL_HITS, PageIds, SeenPages, UnitPages
from capline.store.local.numbers import StoredNumbers
from capline.store.local.operations import step
from capline.store.local.pace import GRACE
from capline.store.local.transaction import LocalRule, LogRef, LogTransaction, StoredLog
from capline.store.local.unit_columns import judge_columns
from capline.store.protocol import Batch, Kind, Mode, Operation, operation_of
from capline.support.override import override
from capline.window.carry import NumberRow

if TYPE_CHECKING:
    import numpy as np
else:
    from capline.model.arrays import np

_T = TypeVar("_T")
MOST_NUMBERS = 4096
"""Logs whose numbers a process remembers: names that come with the call have no end."""
NO_LOG = LOG_NUMBER.pack(2**32 - 1)
"""The number of a log that a reader does not find; logs are numbered from 0."""
ROOM_PAGES = 32
"""What must be free for a store to be ready: a log takes a few, and so does removing old ones, which needs them too."""
FEWEST_IN_COLUMNS = 16
"""Rows that are as fast one by one."""
NO_STAMPS = array("Q")
MOST_LONG_LOGS = 64
"""Long logs whose pages a process caches: at most 64 pages of half a kilobyte each."""


class _RoomError(Exception):
    """There was room; drops the transaction."""


class LmdbStore(LocalStore):
    """See the module's text. Threads and processes may share the file; a fork opens it again."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        durability: str = "relaxed",
        most_bytes: int | None = None,
        next_forms: bool = False,
        create: bool = True,
    ) -> None:
        super().__init__(clock, next_forms=next_forms)
        self._environment: Environment | None = open_environment(path, durability, most_bytes, create=create)
        self._path = path
        self._sweeper = Sweeper()
        self._known: dict[str, tuple[bytes, int]] = {}
        self._seen: dict[bytes, tuple[SeenPages, LmdbPages]] = {}
        self._ids: dict[bytes, PageIds] = {}
        self._read_only = bool(self._environment.read_only)
        self._unmade: set[bytes] = set()

    def _transact(self, work: Callable[[LogTransaction], _T]) -> _T:
        def within(txn: Transaction) -> tuple[_T, LmdbTransaction]:
            transaction = self._logs_in(txn)
            return work(transaction), transaction

        answer, transaction = self._run(within)
        self._note(transaction)
        return answer

    def _run(self, work: Callable[[Transaction], _T]) -> _T:
        environment, pace = self._environment, self._sweeper.pace
        if environment is None:
            raise self._closed()
        answer = environment.run(work)
        if pace.fresh >= pace.every:
            rows = pace.rows()
            environment.run(lambda txn: self._sweeper.sweep(self._logs_in(txn), self._clock.now_us(), rows, GRACE))
        return answer

    def _closed(self) -> StoreClosedError:
        return StoreClosedError(f"{self._path}: this limiter was closed; make a new one")

    def _logs_in(self, txn: Transaction) -> LmdbTransaction:
        if self._environment is None:
            raise self._closed()
        if self._unmade and any(txn.get(key, db=self._table(b"meta")) for key in self._unmade):
            raise StoreError(f"{self._path}: logs were begun there since it was opened to read; open it again")
        return LmdbTransaction(txn, self._environment.tables, self._clock, self._ids, next_forms=self._next_forms)

    def _table(self, name: bytes) -> Any:
        """A table of the open environment; a fork or a reopening gives new ones."""
        if self._environment is None:
            raise self._closed()
        return self._environment.tables[name]

    def _handle(self, name: str, retention_us: int) -> object:
        """The log's number; a log that is known, with a retention that is, asks no lock for it."""
        number, known_us = self._known.get(name, (b"", -1))
        if retention_us > known_us:
            number = self._numbered(name, retention_us)
            if len(self._known) >= MOST_NUMBERS:
                self._known.clear()
            self._known[name] = number, retention_us
        return number

    def _numbered(self, name: str, retention_us: int) -> bytes:
        key = LOG_KEY + name.encode()

        def work(txn: Transaction) -> bytes:
            meta = self._table(b"meta")
            found = txn.get(key, db=meta)
            number, kept_us = LOG_META.unpack(unseal(key, found)) if found else (txn.stat(meta)["entries"], 0)
            if self._read_only and not found:
                self._unmade.add(key)
                return NO_LOG
            if retention_us > kept_us and not self._read_only:
                txn.put(key, seal(key, LOG_META.pack(number, retention_us)), db=meta)
            return LOG_NUMBER.pack(number)

        return self._run(work)

    @override
    def _beside(self, name: str) -> list[str]:
        return [beside for beside, _ in self._run(lambda txn: logs_beside(txn, self._table(b"meta"), name))]

    @override
    def unit_path(self, compiled: LocalRule, unit: FastRule) -> Callable[[Subject], Decision]:
        """One value read, `decide_one`, one value written: 3 to 5 µs."""
        prefix, run, short = log_prefix(compiled.refs[0]), self._run, self._unit

        def decide(subject: Subject) -> Decision:
            key = prefix + subject_key(check_subject(subject))
            return run(lambda txn: short(txn, compiled, unit, subject, key))

        return decide

    @override
    def ask_path(self, compiled: LocalRule, quick: Quick) -> Callable[..., Decision] | None:  # noqa: C901 - one flat step
        """Each log read, the fast path, each written; the general rule where it has no answer."""
        numbers = compiled.numbers
        if compiled.record is not None or (numbers is None and compiled.refs[1:]):  # reservations, a channel
            return None
        refs = compiled.refs[1:] if numbers else compiled.refs
        prefixes, run, now_us_of = [*map(log_prefix, refs)], self._run, self._clock.now_us
        # Numbers may be in one value, and have hits with ids beside them.
        elsewhere = [log_prefix(numbers), log_prefix(compiled.refs[0])] if numbers else []
        rare = FLOOR | PAGED | (IDS if numbers else 0)
        # Filled in each transaction, which no other thread is in.
        rows: list[Any] = [NumberRow(ref.readers[0], ColumnLog()) for ref in refs]
        places, whole = [*zip(prefixes, rows, strict=True)], StoredNumbers(rows) if numbers else None

        def ask(
            subject: Subject, cost: int = 1, fingerprint: int = 0, kind: Kind = "decide", bound_us: int | None = None
        ) -> Decision:
            subject = check_subject(subject)
            tail = subject_key(subject)

            def work(txn: Transaction) -> tuple[Decision, LmdbTransaction | None]:
                logs, now_us = self._table(b"logs"), now_us_of()
                # Where logs were not there at the opening, the general way says whether they are now.
                usual, value, log = not self._unmade, None, None
                for prefix in elsewhere:
                    usual = usual and txn.get(prefix + tail, None, logs) is None
                for prefix, row in places:
                    key = prefix + tail
                    value = txn.get(key, None, logs)
                    form, words = (0, None) if value is None else read_words(value, key)
                    if form & rare:
                        usual = False
                        break
                    row.log = log = ColumnLog() if words is None else unpack_log(form, words)[0]
                    usual = usual and len(log.stamps) < TAIL_HITS
                if usual:
                    decision = quick(whole or log, cost, fingerprint, kind, bound_us, now_us)
                    if decision is not None:
                        if decision.hit is not None:
                            for prefix, row in places:
                                key = prefix + tail
                                txn.put(key, pack_log(row.log, key), True, True, False, logs)
                            self._sweeper.pace.fresh += value is None
                        return decision, None
                transaction = self._logs_in(txn)
                asked = operation_of(kind, compiled, subject, cost, fingerprint, bound_us)
                return step(transaction, asked, now_us), transaction

            decision, transaction = run(work)
            if transaction is not None:
                self._note(transaction)
            return decision

        return ask

    def _note(self, transaction: LmdbTransaction) -> None:
        """Take over what a transaction learned, once it is committed."""
        self._sweeper.pace.fresh += transaction.fresh
        transaction.ids.commit()

    def _unit(self, txn: Transaction, compiled: LocalRule, unit: FastRule, subject: Subject, key: bytes) -> Decision:
        retention_us = compiled.refs[0].retention_us
        logs = self._table(b"logs")
        value = txn.get(key, None, logs)
        now_us = self._clock.now_us()
        if value is None:
            txn.put(key, pack_unit_log(array("Q", (now_us,)), key), True, True, False, logs)
            self._sweeper.pace.fresh += 1
            return first_decision(unit, now_us)
        stamps = read_plain(value, key)
        if stamps is None:
            decision = self._paged_unit(txn, unit, retention_us, key, value, now_us)
            return (
                step(self._logs_in(txn), Operation("decide", compiled, subject), now_us)
                if decision is None
                else decision
            )
        oldest_us, last_us = stamps[0], stamps[-1]
        decision = decide_one(stamps, 0, len(stamps), oldest_us, last_us, unit, now_us)
        stamp_us = decision.hit
        if stamp_us is not None:
            if oldest_us <= stamp_us - retention_us:
                # A new array: the decision has the other one.
                stamps = stamps[bisect_right(stamps, max(now_us, last_us) - retention_us) :]
            stamps.append(stamp_us)
            if len(stamps) > TAIL_HITS:
                log = ColumnLog()
                log.stamps, log.high_water_us = stamps, stamp_us
                self._logs_in(txn).save(compiled.refs[0], subject, log)
            else:
                txn.put(key, pack_unit_log(stamps, key), True, True, False, logs)
        return decision

    def _paged_unit(
        self, txn: Transaction, unit: FastRule, retention_us: int, key: bytes, value: bytes, now_us: int
    ) -> Decision | None:
        """`_unit` on a paged log of single units; None where the log is another."""
        head = read_plain(value, key, PAGED)
        if head is None or head[MIXED_WORD]:
            return None
        seen = self._seen_pages(txn, key, head[EPOCH_WORD])
        stamps = UnitPages(head, seen, max(now_us, head[-1]) - retention_us)
        decision = decide_one(stamps, 0, *stamps.ends, unit, now_us, UnitPages.position)
        if decision.hit is not None:
            txn.put(key, stamps.record(decision.hit), True, True, False, self._table(b"logs"))
        return decision

    def _seen_pages(self, txn: Transaction, key: bytes, epoch: int) -> SeenPages:
        """The cached pages of a long log, with this transaction to read more."""
        known = self._seen.get(key)
        if known is None or known[0].epoch != epoch:
            if len(self._seen) >= MOST_LONG_LOGS:
                self._seen.clear()
            pages = LmdbPages(txn, self._table(b"pages"), key)
            known = self._seen[key] = SeenPages(epoch, pages), pages
        seen, pages = known
        pages.within(txn, self._table(b"pages"))
        return seen

    @override
    def _batch_answers(
        self, transaction: LogTransaction, batch: Batch, mode: Mode, rows: slice, errors: dict[int, CaplineError]
    ) -> Any:
        """Rows of one unit at one instant, in columns where their logs are short and plain; the others one by one."""
        compiled, given = batch.compiled, batch.subjects[rows]
        rules: list[Any] = [rule.units for rule in compiled]
        usual = batch.cost == 1 and mode != "refund" and None not in rules and len(given) >= FEWEST_IN_COLUMNS
        if not usual or not isinstance(transaction, LmdbTransaction):
            return super()._batch_answers(transaction, batch, mode, rows, errors)
        table, now_us = self._table(b"logs"), self._clock.now_us()
        late, subjects = set[int](), plain(given)
        if not _ascend(given) and len({*subjects}) < len(subjects):
            firsts = dict(zip(reversed(subjects), reversed(range(len(subjects))), strict=True))
            late = {row for row, subject in enumerate(subjects) if firsts[subject] < row}
        places: list[tuple[Any, list[bytes], list[array[int]]]] = []
        for ref in compiled[0].refs:
            # A cursor stays on its page: neighbouring subjects, as in campaigns, cost half a search each.
            cursor, keys = transaction.txn.cursor(table), log_keys(ref, given)
            get: Callable[[bytes], bytes | None] = cursor.get
            found = [NO_STAMPS] * len(keys)
            for row, value in enumerate(map(get, keys)):
                if value is not None:
                    stamps = read_plain(value, keys[row])
                    if stamps is None or len(stamps) >= TAIL_HITS:
                        late.add(row)
                    else:
                        found[row] = stamps
            places.append((cursor, keys, found))
        codes = np.zeros(len(subjects), np.uint16) if batch.codes is None else batch.codes[rows]
        answers, left = judge_columns([found for _, _, found in places], rules, codes, limits_of(batch), now_us)
        late.update(np.flatnonzero(left).tolist())
        if mode == "decide":
            chosen = [row for row in np.flatnonzero(answers.allowed).tolist() if row not in late]
            self._put_units(places, chosen, answers.hit.tolist(), now_us, now_us - compiled[0].refs[0].retention_us)
        else:
            answers.hit[:] = NO_HIT
        others = sorted(late)
        if others:
            failed = dict[int, CaplineError]()
            operations = [Operation(mode, compiled[int(codes[row])], subjects[row]) for row in others]
            decided = self._answers(transaction, operations, 0, failed)
            errors.update({rows.start + others[at]: error for at, error in failed.items()})
            answers.put(np.array(others), Decisions.of(decided, answers.limits))
        return answers

    def _put_units(
        self,
        places: Sequence[tuple[Any, list[bytes], list[array[int]]]],
        rows: Sequence[int],
        hits: Sequence[int],
        now_us: int,
        cutoff_us: int,
    ) -> None:
        """Record a unit with its stamp in the logs of each of these rows."""
        for cursor, keys, found in places:
            fresh = [keys[row] for row in rows if not found[row]]
            cursor.putmulti(zip(fresh, pack_first_hits(now_us, fresh), strict=True))
            self._sweeper.pace.fresh += len(fresh)
            for row in rows if len(fresh) < len(rows) else ():
                if stamps := found[row]:
                    if stamps[0] <= cutoff_us:
                        stamps = stamps[bisect_right(stamps, cutoff_us) :]
                    stamps.append(hits[row])
                    cursor.put(keys[row], pack_unit_log(stamps, keys[row]))

    def _walk(
        self, transaction: LogTransaction, ref: LogRef, after: object
    ) -> Iterator[tuple[object, Subject | None, StoredLog | CaplineError]]:
        """The place is the key of the log that was last."""
        if not isinstance(transaction, LmdbTransaction):
            return
        prefix, cursor = log_prefix(ref), transaction.txn.cursor(self._table(b"logs"))
        more = cursor.set_range(prefix if not isinstance(after, bytes) else after + b"\0")
        while more:
            key, value = cursor.item()
            if not key.startswith(prefix):
                return
            try:
                subject = subject_of(key[len(prefix) :])
            except StoreError as error:
                yield key, None, error
            else:
                yield key, subject, transaction.read(key, value)
            more = cursor.next()

    @override
    def filled(self, most: int, /) -> list[str] | None:
        return self._run(lambda txn: self._sweeper.filled(self._logs_in(txn), most))

    @override
    def sweep(self, compiled: Sequence[LocalRule], /) -> int:
        """A few thousand rows a transaction, so that decisions go on in between."""
        removed, ended = 0, False
        self._sweeper.restart()
        while not ended:
            gone, ended = self._run(
                lambda txn: self._sweeper.sweep(self._logs_in(txn), self._clock.now_us(), ROWS_A_TRANSACTION)
            )
            removed += gone
        self._run(lambda txn: self._logs_in(txn).sweep_receipts())
        return removed

    @override
    def try_write(self) -> None:
        """Take some pages more than a new log needs, let the file grow for them if it has to, and give them back."""

        def work(txn: Transaction) -> None:
            for number in range(ROOM_PAGES):
                txn.put(b"%d" % number, bytes(4000), db=self._table(b"logs"))
            raise _RoomError

        with contextlib.suppress(_RoomError):
            self._run(work)

    @override
    def stats(self) -> dict[str, int]:
        """Those of `Environment.stats`."""
        if self._environment is None:
            raise self._closed()
        return self._environment.stats()

    @override
    def close(self) -> None:
        """What was decided is then on disk."""
        if self._environment is not None:
            self._environment.leave()
            self._environment = None


def _ascend(subjects: Any) -> bool:
    """Whether they are numbers in order, as those of campaigns are."""
    return isinstance(subjects, np.ndarray) and bool((subjects[1:] > subjects[:-1]).all())
