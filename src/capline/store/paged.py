"""A long log on a store that keeps values: a short tail that every hit rewrites, and sealed pages that nobody rewrites.

    head    kind PAGED, lead words [first, next, sealed, mixed], then the newest 32 to 160 hits, as in `capline.store.packed`
    page p  128 hits, for each p in first..next-1; units are counted from the page's own start
    index   for every sealed page, its first stamp, then for every page, the units sealed before it

`sealed` is the units in all pages ever sealed, so a unit has a place in the whole log: the k-th newest unit is found by one
bisection of the index and one of a page, a cutoff likewise. The usual log does without the index: while every page holds 128
units (`mixed` is 0) a place names its page, and the widest window ends in the first page, as older ones are trimmed. So a
decision reads the head and a page, and writes the head: its cost does not grow with the quota. Every 128 hits seal a page and
rewrite the index, 16 bytes a page. What a sealed page would have to be rewritten for, a refund of an old hit, rewrites the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Protocol

from capline.model.errors import StoreDamagedError
from capline.store.log import ColumnLog
from capline.store.packed import PAGED, pack_log, pack_words, read_words, unpack_log
from capline.window.log import NEVER

__all__ = ["INDEX", "PAGE_HITS", "TAIL_HITS", "PagedLog", "Pages"]

PAGE_HITS = 128
TAIL_HITS = 160
"""A tail that grows past this seals its oldest `PAGE_HITS`; what stays is never empty, so it answers for the newest hit."""

INDEX = (1 << 32) - 1
"""The index is kept as the page of this number."""

LEAD_WORDS = 4


class Pages(Protocol):
    """Where the sealed pages of one log are kept."""

    def read(self, number: int) -> bytes | None:
        """The value of a page."""
        ...

    def write(self, number: int, value: bytes | None) -> None:
        """Keep a page; None removes it."""
        ...


class PagedLog:
    """A `StoredLog` over a tail and sealed pages; see the module's text."""

    __slots__ = ("_counts", "_first", "_firsts", "_mixed", "_next", "_pages", "_seen", "_sealed", "tail")

    def __init__(self, tail: ColumnLog, pages: Pages, lead: tuple[int, ...] = (0, 0, 0, 0)) -> None:
        self.tail = tail
        self._pages = pages
        self._first, self._next, self._sealed, self._mixed = lead
        self._firsts: array[int] | None = None
        self._counts: array[int] = array("Q")
        self._seen: dict[int, ColumnLog] = {}

    @property
    def floor_us(self) -> int:
        """See `LogView`; the tail's."""
        return self.tail.floor_us

    def newest_us(self) -> int:
        """See `LogView`."""
        newest_us = self.tail.newest_us()
        if newest_us == NEVER:
            for page in self._newest_first():
                newest_us = page.newest_us()
                if newest_us != NEVER:
                    break
        return newest_us

    def units_after(self, cutoff_us: int) -> int:
        """See `LogView`."""
        tail = self.tail
        if tail.stamps[tail.start] <= cutoff_us or self._first == self._next:
            return tail.units_after(cutoff_us)
        total = self._sealed + tail.units_after(NEVER)
        oldest = self._read(0)
        if not self._mixed and cutoff_us < oldest.stamps[-1]:
            return total - (self._first + 1) * PAGE_HITS + oldest.units_after(cutoff_us)
        p = bisect_right(self._index()[0], cutoff_us) - 1
        page = self._read(max(0, p))
        return total - self._end(max(0, p)) + page.units_after(cutoff_us)

    def stamp_of_unit(self, k: int) -> int:
        """See `LogView`."""
        tail_units = self.tail.units_after(NEVER)
        if k <= tail_units or self._first == self._next:
            return self.tail.stamp_of_unit(k)
        place = self._sealed + tail_units - k
        if self._mixed:
            p = bisect_right(self._index()[1], place) - 1 if place >= 0 else -1
        else:
            p = place // PAGE_HITS - self._first
        return NEVER if p < 0 else self._read(p).stamp_of_unit(self._end(p) - place)

    def free_stamp(self, stamp_us: int) -> int:
        """See `LogView`."""
        if stamp_us < self.tail.stamps[self.tail.start]:
            return self._whole().free_stamp(stamp_us)
        return self.tail.free_stamp(stamp_us)

    def record(self, stamp_us: int, units: int, floor_us: int, fingerprint: int = 0) -> None:
        """See `ColumnLog`; O(1) amortised at the end of the log."""
        if stamp_us < self.tail.stamps[self.tail.start]:
            self._dissolve()
        self.tail.record(stamp_us, units, floor_us, fingerprint)

    def units_at(self, stamp_us: int) -> int:
        """See `ColumnLog`."""
        return self._holding(stamp_us).units_at(stamp_us)

    def refund(self, stamp_us: int) -> bool:
        """See `ColumnLog`; a hit in the tail costs no more than there, an older one rewrites the log."""
        if stamp_us >= self.tail.stamps[self.tail.start]:
            return self.tail.refund(stamp_us)
        if not self.units_at(stamp_us):
            return False
        self._dissolve()
        return self.tail.refund(stamp_us)

    def find(self, fingerprint: int, cutoff_us: int) -> int:
        """See `ColumnLog`; reads pages from the newest back to the cutoff."""
        stamp_us = self.tail.find(fingerprint, cutoff_us)
        for page in self._newest_first() if stamp_us == NEVER else ():
            stamp_us = page.find(fingerprint, cutoff_us)
            if stamp_us != NEVER or page.stamps[0] <= cutoff_us:
                break
        return stamp_us

    def trim(self, cutoff_us: int) -> None:
        """Remove every page that is wholly as old as the cutoff, and then what is that old of the tail."""
        if self._first < self._next:
            gone = 0
            while gone < self._next - self._first and self._read(gone).stamps[-1] <= cutoff_us:
                gone += 1
            if gone:
                firsts, counts = self._index()
                for number in range(self._first, self._first + gone):
                    self._pages.write(number, None)
                del firsts[:gone], counts[:gone]
                self._first += gone
                self._write_index()
        if self._first == self._next and self.tail.last_us() > cutoff_us:
            self.tail.trim(cutoff_us)

    def recorded(self) -> Iterator[tuple[int, int, int]]:
        """See `ColumnLog`."""
        for p in range(self._next - self._first):
            yield from self._read(p).recorded()
        yield from self.tail.recorded()

    def value(self) -> bytes:
        """The head, after sealing what has grown too long for the tail."""
        while len(self.tail) > TAIL_HITS:
            self._seal()
        if self._first == self._next:
            return pack_log(self.tail)
        return pack_log(self.tail, PAGED, (self._first, self._next, self._sealed, self._mixed))

    def remove_pages(self) -> None:
        """Remove every page and the index, for a log that is erased or swept."""
        for number in range(self._first, self._next):
            self._pages.write(number, None)
        if self._first < self._next:
            self._pages.write(INDEX, None)
        self._first = self._next

    def _seal(self) -> None:
        firsts, counts = self._index()
        tail, page = self.tail, ColumnLog()
        tail.pack()
        page.stamps = tail.stamps[:PAGE_HITS]
        page.floor_us = page.stamps[-1]
        if tail.before is None:
            units = PAGE_HITS
        else:
            units = tail.before[PAGE_HITS] - tail.before[0]
            page.before = array("Q", (before - tail.before[0] for before in tail.before[:PAGE_HITS]))
            page.total = units
        if tail.ids:
            cut_us = page.stamps[-1]
            page.ids = {fingerprint: us for fingerprint, us in tail.ids.items() if us <= cut_us} or None
            tail.ids = {fingerprint: us for fingerprint, us in tail.ids.items() if us > cut_us} or None
        self._pages.write(self._next, pack_log(page))
        firsts.append(page.stamps[0])
        counts.append(self._sealed)
        self._next += 1
        self._sealed += units
        self._mixed |= int(units != PAGE_HITS or page.before is not None)
        del tail.stamps[:PAGE_HITS]
        if tail.before is not None:
            base = tail.before[PAGE_HITS]
            tail.before = array("Q", (before - base for before in tail.before[PAGE_HITS:]))
            tail.total -= base
        self._write_index()

    def _dissolve(self) -> None:
        """Take every page back into the tail; `value` seals them anew."""
        whole = self._whole()
        self.remove_pages()
        self.tail = whole
        self._first = self._next = self._sealed = self._mixed = 0
        self._firsts, self._counts, self._seen = None, array("Q"), {}

    def _whole(self) -> ColumnLog:
        """The whole log in one piece; O(n)."""
        whole = ColumnLog()
        for stamp_us, units, fingerprint in self.recorded():
            whole.record(stamp_us, units, 0, fingerprint)
        whole.floor_us = self.tail.floor_us
        return whole

    def _holding(self, stamp_us: int) -> ColumnLog:
        """The tail or the page in whose range of stamps this one falls."""
        if stamp_us >= self.tail.stamps[self.tail.start] or self._first == self._next:
            return self.tail
        p = bisect_right(self._index()[0], stamp_us) - 1
        return self._read(max(0, p))

    def _newest_first(self) -> Iterator[ColumnLog]:
        return (self._read(p) for p in range(self._next - self._first - 1, -1, -1))

    def _end(self, p: int) -> int:
        """The units sealed up to and with page p."""
        if not self._mixed:
            return (self._first + p + 1) * PAGE_HITS
        counts = self._index()[1]
        return counts[p + 1] if p + 1 < len(counts) else self._sealed

    def _read(self, p: int) -> ColumnLog:
        number = self._first + p
        page = self._seen.get(number)
        if page is None:
            value = self._pages.read(number)
            if value is None:
                raise StoreDamagedError(f"a stored log is damaged: page {number} is missing; nothing is decided on it")
            page = self._seen[number] = unpack_log(*read_words(value))[0]
        return page

    def _index(self) -> tuple[array[int], array[int]]:
        if self._firsts is None:
            count = self._next - self._first
            words: array[int] = array("Q")
            if count:
                value = self._pages.read(INDEX)
                words = read_words(value)[1] if value is not None else words
                if len(words) != 2 * count:
                    raise StoreDamagedError("a stored log is damaged: its index does not fit; nothing is decided on it")
            self._firsts, self._counts = words[:count], words[count:]
        return self._firsts, self._counts

    def _write_index(self) -> None:
        firsts, counts = self._index()
        self._pages.write(INDEX, pack_words(0, firsts + counts) if firsts else None)
