"""A long log on a store of values: a short tail that every hit rewrites, and sealed pages that are never rewritten.

    head    kind PAGED, lead words [first, next, sealed, mixed, epoch], then the newest 4 to 36 hits, as in
    `capline.store.local.log_bytes`
    page p  lead word [base], then 32 hits, for each p in first..next-1; some more, where `mixed` is 1
    ahead   with BLOCKS, at page 2^32 - 1: [first block], then what is added to the bases of each 16 pages, modulo 2^64

`base` is the units sealed before the page, and `sealed` those in all pages ever sealed, from some number on: each unit
has a number in the whole log. While every page holds 32 units (`mixed` is 0) that number gives the page. The widest
window ends in the first page, since pages out of it are removed. So a decision reads the head and one page, and writes
the head: its cost does not grow with the quota. The end of a narrower window, or a unit among mixed pages, is found by
bisection over pages, some 12 reads in a log of 100,000. A refund of a hit in a sealed page, or a hit that comes into
one, rewrites that page, and the base of each later or of each earlier one, whichever are fewer: by blocks only of those
in its block, and `ahead`. With `forms=next` the first change with more than a block behind it begins them. An id is
looked up in a table of the process (`PageIds`), so each page is read for it once.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Protocol

from capline.model.clock import LATEST_US
from capline.model.errors import StoreDamagedError
from capline.store.local.log import ColumnLog
from capline.store.local.log_bytes import BLOCKS, IDS, PAGED, UNITS, pack_log, pack_words, read_words, unpack_log
from capline.window.log import DENIED, NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from capline.window.merge import Row

PAGE_HITS = 32
TAIL_HITS = 36
"""A tail that grows past this seals its oldest `PAGE_HITS`. It never gets empty: the newest hit is always in it."""
MOST_IN_PAGE = 32 * PAGE_HITS
"""Hits of a page that some were recorded in."""

BLOCK_PAGES = 16
AHEAD = (1 << 32) - 1
"""The number of the page that is none: what the bases of each block are ahead."""
_WORD = (1 << 64) - 1
_LIFT = 1 << 40
"""What all bases get, once, that those in front of a change can get less."""

LEAD_WORDS = 5
MIXED_WORD, EPOCH_WORD = 3, 4

MOST_SEEN = 64
"""Pages of one log that a process caches: more than the ends of some windows and a bisection need."""
MOST_TABLES, MOST_IDS = 64, 1 << 20
"""Logs whose ids a process caches, and how many ids in all of them: some 70 bytes each. One log may have more."""


class Pages(Protocol):
    """Where the sealed pages of one log are kept; `key` is the log's, which checksums cover."""

    __slots__ = ()

    key: bytes

    @abstractmethod
    def read(self, number: int) -> bytes | None:
        """The value of a page."""
        ...

    @abstractmethod
    def write(self, number: int, value: bytes | None) -> None:
        """Keep a page; None removes it."""
        ...


class PageIds:
    """Which sealed page of a log has an id, for its pages before `next`: under one epoch a page never changes.

    `committed` is what was so before this transaction; None where nothing is known of it. `pages`: how many there are.
    """

    __slots__ = ("committed", "epoch", "next", "numbers", "pages")

    def __init__(self, epoch: int, committed: PageIds | None) -> None:
        self.epoch = epoch
        self.committed = committed if committed is not None and committed.epoch == epoch else None
        self.next = self.committed.next if self.committed is not None else 0
        self.numbers: dict[int, int] = {}
        self.pages = 0

    def page_of(self, fingerprint: int) -> int:
        """The newest page that has this id; -1 for none."""
        number = self.numbers.get(fingerprint, -1)
        return self.committed.numbers.get(fingerprint, -1) if number < 0 and self.committed is not None else number


class IdTables:
    """The `PageIds` of the logs of one transaction. They are the process's once it is committed, never before."""

    __slots__ = ("_kept", "_logs")

    def __init__(self, kept: dict[bytes, PageIds]) -> None:
        self._kept = kept
        self._logs: dict[bytes, PageIds] = {}

    def of(self, key: bytes, epoch: int) -> PageIds:
        """The table of the log with this key."""
        ids = self._logs.get(key)
        if ids is None or ids.epoch != epoch:
            ids = self._logs[key] = PageIds(epoch, self._kept.get(key))
        return ids

    def commit(self) -> None:
        """The transaction was committed. Another thread may have committed a later one since: its pages are as true."""
        kept = self._kept
        for key, ids in self._logs.items():
            whole = ids.committed or ids
            newest = {name: max(number, whole.numbers.get(name, number)) for name, number in ids.numbers.items()}
            whole.numbers.update(newest)
            whole.next = max(whole.next, ids.next)
            if whole is ids or ids.numbers:
                kept.pop(key, None)
                if len(kept) >= MOST_TABLES or sum(len(other.numbers) for other in [*kept.values()]) > MOST_IDS:
                    kept.clear()
                if len(whole.numbers) <= 2 * PAGE_HITS * ids.pages:  # else most are of pages that are gone
                    kept[key] = whole


class PagedLog:
    """A `StoredLog` over a tail and sealed pages; see the module's text."""

    __slots__ = (
        "_ahead", "_blocks", "_epoch", "_first", "_ids", "_mixed", "_next", "_next_forms", "_pages", "_sealed", "_seen",
        "reserved", "tail",
    )  # fmt: skip

    def __init__(
        self,
        tail: ColumnLog,
        pages: Pages,
        ids: IdTables,
        lead: tuple[int, ...] = (0,) * LEAD_WORDS,
        *,
        blocks: bool = False,
        next_forms: bool = False,
    ) -> None:
        self.tail, self.reserved = tail, tail.reserved
        self._blocks = blocks
        self._next_forms = next_forms
        self._ahead: array[int] | None = None
        self._pages = pages
        self._ids = ids
        self._first, self._next, self._sealed, self._mixed, self._epoch = lead
        self._seen: dict[int, tuple[ColumnLog, int]] = {}

    @property
    def high_water_us(self) -> int:
        """The latest instant that the log has seen; the tail's."""
        return self.tail.high_water_us

    def newest_us(self) -> int:
        """The latest stamp of a hit with units; `NEVER` where there is none."""
        newest_us = self.tail.newest_us()
        if newest_us == NEVER:
            for page in self._newest_first():
                newest_us = page.newest_us()
                if newest_us != NEVER:
                    break
        return newest_us

    def units_after(self, cutoff_us: int) -> int:
        """Units of hits with a stamp later than the cutoff."""
        tail = self.tail
        if tail.stamps[tail.start] <= cutoff_us or self._first == self._next:
            return tail.units_after(cutoff_us)
        page, base = self._read(self._first)
        if cutoff_us >= page.stamps[-1]:
            page, base = self._last(lambda page, _: page.stamps[0] <= cutoff_us)
        return self._sealed + tail.units_after(NEVER) - base - page.units_after(NEVER) + page.units_after(cutoff_us)

    def stamp_of_unit(self, k: int) -> int:
        """The stamp of the hit that holds the k-th newest unit (k >= 1); `NEVER` where the log has fewer units."""
        tail_units = self.tail.units_after(NEVER)
        if k <= tail_units or self._first == self._next:
            return self.tail.stamp_of_unit(k)
        index = self._sealed + tail_units - k
        if index < self._read(self._first)[1]:
            return NEVER
        if self._mixed:
            page, base = self._last(lambda _, base: base <= index)
        else:
            page, base = self._read(index // PAGE_HITS)
        return page.stamp_of_unit(base + page.units_after(NEVER) - index)

    def free_stamp(self, stamp_us: int) -> int:
        """The first instant at or after this one that is no hit's stamp, not even a refunded hit's."""
        if stamp_us < self.tail.stamps[self.tail.start]:
            for number in range(self._holding(stamp_us), self._next):
                page = self._read(number)[0]
                if page.stamps[0] > stamp_us or (stamp_us := page.free_stamp(stamp_us)) <= page.stamps[-1]:
                    return stamp_us
        return self.tail.free_stamp(stamp_us)

    def record(self, stamp_us: int, units: int, high_water_us: int, fingerprint: int = 0) -> None:
        """A hit more, as `ColumnLog` records it; O(1) amortised at the end. Before slots it goes into a page."""
        if self._first < self._next and stamp_us < self.tail.stamps[self.tail.start]:
            page, epoch = self._page_of(stamp_us), self._epoch
            if len(page) < MOST_IN_PAGE and fingerprint != DENIED and not page.denied:
                self._change(stamp_us, lambda page: page.record(stamp_us, units, stamp_us, fingerprint))
                self._epoch = self._epoch if fingerprint else epoch  # only an id is new to tables of ids
                self.tail.high_water_us = max(self.tail.high_water_us, high_water_us)
                return
        self._take_back(stamp_us)
        self.tail.record(stamp_us, units, high_water_us, fingerprint)

    def insert(self, rows: Sequence[Row], high_water_us: int) -> None:
        """As in `ColumnLog`; O(pages behind the first of them)."""
        self._take_back(rows[0][0])
        self.tail.insert(rows, high_water_us)

    def extend(self, stamp_us: int, units: int, high_water_us: int) -> None:
        """As in `ColumnLog`; the last hit is always in the tail."""
        self.tail.extend(stamp_us, units, high_water_us)

    def last_us(self) -> int:
        """The last stamp, refunded or not; `NEVER` where the log is empty."""
        return self.tail.last_us()

    def next_stamp(self, stamp_us: int) -> int:
        """The first stamp from this instant on, refunded or not; `NEVER` for none."""
        if stamp_us > self.tail.stamps[self.tail.start] or self._first == self._next:
            return self.tail.next_stamp(stamp_us)
        number = self._holding(stamp_us)
        found_us = self._read(number)[0].next_stamp(stamp_us)
        if found_us == NEVER:
            later = self._read(number + 1)[0] if number + 1 < self._next else self.tail
            found_us = later.stamps[later.start]
        return found_us

    def name_of(self, stamp_us: int) -> int:
        """As in `ColumnLog`."""
        if stamp_us >= self.tail.stamps[self.tail.start] or self._first == self._next:
            return self.tail.name_of(stamp_us)
        return self._page_of(stamp_us).name_of(stamp_us)

    def is_carried(self, stamp_us: int) -> bool:
        """As in `ColumnLog`, of the tail: a log in a file takes nothing over from numbers."""
        return self.tail.is_carried(stamp_us)

    def units_at(self, stamp_us: int) -> int:
        """As in `ColumnLog`."""
        if stamp_us >= self.tail.stamps[self.tail.start] or self._first == self._next:
            return self.tail.units_at(stamp_us)
        return self._page_of(stamp_us).units_at(stamp_us)

    def give_back(self, stamp_us: int, units: int) -> bool:
        """As in `ColumnLog`; a hit in the tail costs no more than there, an older one O(pages behind it)."""
        if stamp_us >= self.tail.stamps[self.tail.start]:
            return self.tail.give_back(stamp_us, units)
        if not 0 < units <= self.units_at(stamp_us):
            return False
        self._change(stamp_us, lambda page: page.give_back(stamp_us, units))
        return True

    def amend(self, stamp_us: int, units: int) -> None:
        """As in `ColumnLog`; a hit in the tail costs no more than there, an older one O(pages behind it)."""
        if stamp_us < self.tail.stamps[self.tail.start]:
            self._change(stamp_us, lambda page: page.amend(stamp_us, units))
        else:
            self.tail.amend(stamp_us, units)

    def find(self, fingerprint: int, cutoff_us: int) -> int:
        """As in `ColumnLog`; reads the pages that were sealed since this process looked for an id."""
        stamp_us = self.tail.find(fingerprint, cutoff_us)
        if stamp_us != NEVER or self._first == self._next:
            return stamp_us
        table = self._ids.of(self._pages.key, self._epoch)
        for number in range(max(self._first, table.next), self._next):
            table.numbers.update(dict.fromkeys(self._read(number)[0].ids or (), number))
        table.next, table.pages = self._next, self._next - self._first
        number = table.page_of(fingerprint)
        # A transaction that only reads may be older than the table.
        there = self._first <= number < self._next
        return self._read(number)[0].find(fingerprint, cutoff_us) if there else NEVER

    def trim(self, cutoff_us: int) -> None:
        """Remove every page whose hits are all as old as the cutoff, then the hits of the tail that are."""
        while self._first < self._next and self._read(self._first)[0].stamps[-1] <= cutoff_us:
            self._remove_first()
        if self._first == self._next and self.tail.last_us() > cutoff_us:
            self.tail.trim(cutoff_us)

    def forget(self, cutoff_us: int) -> None:
        """Forget refusals; a page with another hit stays until half of all hits can go.

        That is looked for once in some sixteenth of the pages of a longer log, as it reads them all. No answer depends
        on it, but where the time of the log is not past their stamps: these may be another's.
        """
        while self._first < self._next and len((oldest := self._read(self._first)[0]).denied or ()) == PAGE_HITS:
            if oldest.stamps[-1] > cutoff_us:
                break
            self._remove_first()
        pages, ahead = self._next - self._first, cutoff_us >= self.tail.high_water_us
        if not pages:
            self.tail.forget(cutoff_us)
            return
        step = 1 << max(0, pages.bit_length() - 4)
        if step > 1 and not ahead and (self._next % step or len(self.tail) != TAIL_HITS):
            return
        loose = 0
        for number in range(self._first, self._next):
            page = self._read(number)[0]
            loose += sum(stamp_us <= cutoff_us for stamp_us in page.denied or ())
            if page.stamps[-1] > cutoff_us:
                break
        if loose and (ahead or loose * 2 >= pages * PAGE_HITS):
            self._dissolve(self._first)
        if self._first == self._next or ahead:
            self.tail.forget(cutoff_us)

    def recorded(self, first_us: int = 0, last_us: int = LATEST_US) -> Iterator[Row]:
        """As in `ColumnLog`."""
        for number in range(self._holding(first_us), self._next):
            page = self._read(number)[0]
            if page.stamps[0] > last_us:
                return
            yield from page.recorded(first_us, last_us)
        yield from self.tail.recorded(first_us, last_us)

    def value(self) -> bytes:
        """The head, after sealing what has grown too long for the tail."""
        if len(self.tail) > TAIL_HITS:
            self._seal()
        self.tail.reserved = self.reserved
        if self._first == self._next:
            self._end_blocks()
            return pack_log(self.tail, self._pages.key)
        kind = PAGED | BLOCKS if self._blocks else PAGED
        lead = (self._first, self._next, self._sealed, self._mixed, self._epoch)
        return pack_log(self.tail, self._pages.key, kind, lead)

    def remove_pages(self) -> None:
        """Remove every page, for a log that is erased or swept."""
        for number in range(self._first, self._next):
            self._pages.write(number, None)
        self._first = self._next
        self._end_blocks()

    def _remove_first(self) -> None:
        self._pages.write(self._first, None)
        self._first += 1

    def _seal(self) -> None:
        """Make pages of the tail's oldest hits, until few enough are left."""
        whole = self.tail
        whole.pack()
        cuts, names = range(0, len(whole) - TAIL_HITS + PAGE_HITS, PAGE_HITS), whole.names()
        self._epoch = self._epoch or _new_epoch()
        self._mixed |= whole.before is not None
        for first in cuts[:-1]:
            page = whole.part(first, first + PAGE_HITS, names)
            self._write(self._next, page, self._sealed)
            self._next += 1
            self._sealed += page.units_after(NEVER)
        self.tail = whole.part(cuts[-1], len(whole), names)
        self.tail.high_water_us = whole.high_water_us

    def _change(self, stamp_us: int, change: Callable[[ColumnLog], object]) -> None:
        number = self._holding(stamp_us)
        page, base = self._read(number)
        units = page.units_after(NEVER)
        change(page)
        more = page.units_after(NEVER) - units
        after = self._next
        if self._blocks or (self._next_forms and after - number > BLOCK_PAGES):
            after = min(after, (number // BLOCK_PAGES + 1) * BLOCK_PAGES)
            self._move_blocks(number // BLOCK_PAGES + 1, more)
        elif number - self._first < after - number - 1:  # fewer pages are in front: their bases move the other way
            if more > self._read(self._first)[1]:
                self._move_bases(self._first, after, more + _LIFT)
                self._sealed, base = self._sealed + more + _LIFT, base + more + _LIFT
            self._move_bases(self._first, number, -more)
            self._sealed, base, after = self._sealed - more, base - more, number + 1
        self._write(number, page, base)
        self._move_bases(number + 1, after, more)
        self._seen = {number: (page, base)}
        self._sealed += more
        self._mixed = 1
        self._epoch = _new_epoch()

    def _move_bases(self, first: int, after: int, more: int) -> None:
        for number in range(first, after):
            kind, words = _page_words(self._pages, number)
            place = kind & UNITS  # the base: behind the total, where there is one
            words[place] = (words[place] + more) & _WORD
            self._pages.write(number, pack_words(kind, words, page_key(self._pages.key, number)))

    def _write(self, number: int, page: ColumnLog, base: int) -> None:
        """Keep a page, before which so many units are sealed."""
        lead = ((base - self._ahead_of(number)) & _WORD,)
        self._pages.write(number, pack_log(page, page_key(self._pages.key, number), lead=lead))

    def _aheads(self) -> array[int]:
        """The first block, and by how much the bases of each block are ahead."""
        if self._ahead is None:
            kind, words = _read_page(self._pages, AHEAD) if self._blocks else (0, array("Q", (self._first_block(),)))
            if kind or not words or words[0] > self._first_block():
                raise StoreDamagedError("a stored log is damaged: its sums by block; nothing is decided on it")
            self._ahead = words
        return self._ahead

    def _ahead_of(self, number: int) -> int:
        if not self._blocks:
            return 0
        ahead = self._aheads()
        place = number // BLOCK_PAGES - ahead[0] + 1
        return ahead[place] if place < len(ahead) else 0

    def _move_blocks(self, first: int, more: int) -> None:
        ahead, begin = self._aheads(), self._first_block()
        del ahead[1 : 1 + begin - ahead[0]]
        ahead[0] = begin
        ahead.frombytes(bytes(8 * max(0, self._next // BLOCK_PAGES - begin + 2 - len(ahead))))
        for place in range(1 + first - begin, len(ahead)):
            ahead[place] = (ahead[place] + more) & _WORD
        self._blocks = True
        self._pages.write(AHEAD, pack_words(0, ahead, page_key(self._pages.key, AHEAD)))

    def _end_blocks(self) -> None:
        if self._blocks:
            self._pages.write(AHEAD, None)
        self._blocks, self._ahead = False, None

    def _first_block(self) -> int:
        return self._first // BLOCK_PAGES

    def _take_back(self, stamp_us: int) -> None:
        """Take every page that holds later hits than this back into the tail; `value` seals them again."""
        if stamp_us < self.tail.stamps[self.tail.start] and self._first < self._next:
            self._dissolve(self._holding(stamp_us))

    def _dissolve(self, number: int) -> None:
        """Take the pages from this one on back into the tail."""
        whole, base = self._whole(number), self._read(number)[1]
        for sealed in range(number, self._next):
            self._pages.write(sealed, None)
        self.tail, self._seen, self._next, self._sealed, self._epoch = whole, {}, number, base, _new_epoch()
        if number == self._first:
            self._end_blocks()
            self._first = self._next = self._sealed = self._mixed = self._epoch = 0

    def _whole(self, number: int) -> ColumnLog:
        """The log from this page on in one piece; O(n)."""
        parts = [*(self._read(page)[0] for page in range(number, self._next)), self.tail]
        return ColumnLog.joined(parts)

    def _page_of(self, stamp_us: int) -> ColumnLog:
        return self._read(self._holding(stamp_us))[0]

    def _holding(self, stamp_us: int) -> int:
        """The page that holds this instant, or would."""
        return self._find(lambda page, _: page.stamps[0] <= stamp_us)

    def _last(self, holds: Callable[[ColumnLog, int], bool]) -> tuple[ColumnLog, int]:
        """The page that `_find` finds, and the units sealed before it."""
        return self._read(self._find(holds))

    def _find(self, holds: Callable[[ColumnLog, int], bool]) -> int:
        """The last page for which `holds` is true, given that it is true up to some page; the first if for none."""
        low, high = self._first, self._next
        while high - low > 1:
            middle = (low + high) // 2
            if holds(*self._read(middle)):
                low = middle
            else:
                high = middle
        return low

    def _newest_first(self) -> Iterator[ColumnLog]:
        return (self._read(number)[0] for number in range(self._next - 1, self._first - 1, -1))

    def _read(self, number: int) -> tuple[ColumnLog, int]:
        """A page, and the units sealed before it."""
        seen = self._seen.get(number)
        if seen is None:
            kind, words = _page_words(self._pages, number)
            page, (base,) = unpack_log(kind, words, 1)
            seen = self._seen[number] = page, (base + self._ahead_of(number)) & _WORD
        return seen


class SeenPages:
    """Pages of one log that this process has read and checked, under one epoch; `hint` is where a window last ended.

    `pages` is where they are read from and written to, by whoever holds the transaction.
    """

    __slots__ = ("epoch", "hint", "pages", "words")

    def __init__(self, epoch: int, pages: Pages) -> None:
        self.epoch = epoch
        self.hint = 0
        self.pages = pages
        self.words: dict[int, array[int]] = {}

    def page(self, number: int) -> array[int]:
        """The words of a page: its base, then its stamps."""
        words = self.words
        page = words.get(number)
        if page is None:
            if len(words) >= MOST_SEEN:
                words.clear()
            # After the stamps there may be ids, which are not needed here.
            page = words[number] = _page_words(self.pages, number)[1][: 1 + PAGE_HITS]
        return page


class UnitPages:
    """The stamps of a paged log of single units as one sequence, for the fast path.

    Only for heads of kind PAGED alone, with `mixed` 0. Pages as old as the cutoff are skipped. `ends` is the number of
    stamps, the first and the last.
    """

    __slots__ = ("_count", "_first", "_head", "_oldest", "_seen", "ends")

    def __init__(self, head: array[int], seen: SeenPages, cutoff_us: int) -> None:
        first = head[0]
        oldest = seen.words.get(first) or seen.page(first)
        while oldest[-1] <= cutoff_us and first + 1 < head[1]:
            first += 1
            oldest = seen.page(first)
        self._head = head
        self._seen = seen
        self._first = first
        self._count = count = (head[1] - first) * PAGE_HITS
        self._oldest = oldest
        self.ends = (count + len(head) - LEAD_WORDS, oldest[1], head[-1])

    def record(self, stamp_us: int) -> bytes:
        """One more hit at the end: the head's new value.

        Skipped pages are removed when a page is sealed: both change the same table, so together they cost one change.
        """
        head, seen = self._head, self._seen
        head.append(stamp_us)
        if len(head) > LEAD_WORDS + TAIL_HITS:
            page = array("Q", (head[2],)) + head[LEAD_WORDS : LEAD_WORDS + PAGE_HITS]
            seen.pages.write(head[1], pack_words(0, page, page_key(seen.pages.key, head[1])))
            del head[LEAD_WORDS : LEAD_WORDS + PAGE_HITS]
            head[1] += 1
            head[2] += PAGE_HITS
            for number in range(head[0], self._first):
                seen.pages.write(number, None)
                seen.words.pop(number, None)
            head[0] = self._first
        return pack_words(PAGED, head, seen.pages.key)

    def __len__(self) -> int:
        return self.ends[0]

    def __getitem__(self, i: int) -> int:
        if i < PAGE_HITS:
            return self._oldest[1 + i]
        if i >= self._count:
            return self._head[LEAD_WORDS + i - self._count]
        page, index = divmod(i, PAGE_HITS)
        return self._seen.page(self._first + page)[1 + index]

    def position(self, cutoff_us: int, _start: int) -> int:
        """How many of the stamps are as old as the cutoff or older: `bisect_right`, by page."""
        head, seen = self._head, self._seen
        if head[LEAD_WORDS] <= cutoff_us:
            return self._count + bisect_right(head, cutoff_us, LEAD_WORDS) - LEAD_WORDS
        if cutoff_us < self._oldest[-1]:
            return bisect_right(self._oldest, cutoff_us, 1) - 1
        number = seen.hint
        page = seen.words.get(number)
        if page is None or not page[1] <= cutoff_us < page[-1] or not self._first <= number < head[1]:
            number = seen.hint = self._search(cutoff_us)
            page = seen.page(number)
        return (number - self._first) * PAGE_HITS + bisect_right(page, cutoff_us, 1) - 1

    def _search(self, cutoff_us: int) -> int:
        """The last page that begins at or before the cutoff; the page after the one found last time is tried first."""
        low, high, seen = self._first, self._head[1], self._seen
        number = seen.hint + 1
        if low <= number < high and seen.page(number)[1] <= cutoff_us < seen.page(number)[-1]:
            return number
        while high - low > 1:
            middle = (low + high) // 2
            if seen.page(middle)[1] <= cutoff_us:
                low = middle
            else:
                high = middle
        return low


def page_key(key: bytes, number: int) -> bytes:
    """The key of a page: the log's, then the page's number, big-endian."""
    return key + number.to_bytes(4)


def _new_epoch() -> int:
    """Another than every process has cached pages under."""
    return int.from_bytes(os.urandom(8)) or 1


def _read_page(pages: Pages, number: int) -> tuple[int, array[int]]:
    value = pages.read(number)
    if value is None:
        raise StoreDamagedError(f"a stored log is damaged: page {number} is missing; nothing is decided on it")
    return read_words(value, page_key(pages.key, number))


def _page_words(pages: Pages, number: int) -> tuple[int, array[int]]:
    kind, words = _read_page(pages, number)
    if len(words) < 1 + PAGE_HITS or kind & ~(UNITS | IDS):
        raise StoreDamagedError(f"a stored log is damaged: page {number} is not one; nothing is decided on it")
    return kind, words
