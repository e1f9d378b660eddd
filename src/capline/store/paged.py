"""A long log on a store that keeps values: a short tail that every hit rewrites, and sealed pages that nobody rewrites.

    head    kind PAGED, lead words [first, next, sealed, mixed], then the newest 32 to 96 hits, as in
    `capline.store.packed`
    page p  lead word [base], then 64 hits, for each p in first..next-1

`base` is the units sealed before the page and `sealed` those in all pages ever sealed, so a unit has a place in the
whole log. While every page holds 64 units (`mixed` is 0) a place names its page. The widest window ends in the first
page, as pages out of it are removed. So a decision reads the head and one page, and writes the head: its cost does not
grow with the quota. A narrower window that ends between, and a place among mixed pages, is found by bisection over
pages, some 10 reads in a log of 100,000. What a sealed page would have to be rewritten for, a refund of an old hit,
rewrites the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Protocol

from capline.model.errors import StoreDamagedError
from capline.store.log import ColumnLog
from capline.store.packed import IDS, PAGED, UNITS, pack_log, read_words, unpack_log
from capline.window.log import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["LEAD_WORDS", "PAGE_HITS", "TAIL_HITS", "PagedLog", "Pages", "UnitPages"]

PAGE_HITS = 64
TAIL_HITS = 96
"""A tail that grows past this seals its oldest `PAGE_HITS`; what stays is never empty: it answers for the newest."""

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

    __slots__ = ("_first", "_mixed", "_next", "_pages", "_sealed", "_seen", "tail")

    def __init__(self, tail: ColumnLog, pages: Pages, lead: tuple[int, ...] = (0, 0, 0, 0)) -> None:
        self.tail = tail
        self._pages = pages
        self._first, self._next, self._sealed, self._mixed = lead
        self._seen: dict[int, tuple[ColumnLog, int]] = {}

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
        page, base = self._read(self._first)
        if cutoff_us >= page.stamps[-1]:
            page, base = self._last(lambda page, _: page.stamps[0] <= cutoff_us)
        return self._sealed + tail.units_after(NEVER) - base - page.units_after(NEVER) + page.units_after(cutoff_us)

    def stamp_of_unit(self, k: int) -> int:
        """See `LogView`."""
        tail_units = self.tail.units_after(NEVER)
        if k <= tail_units or self._first == self._next:
            return self.tail.stamp_of_unit(k)
        place = self._sealed + tail_units - k
        if place < self._read(self._first)[1]:
            return NEVER
        if self._mixed:
            page, base = self._last(lambda _, base: base <= place)
        else:
            page, base = self._read(place // PAGE_HITS)
        return page.stamp_of_unit(base + page.units_after(NEVER) - place)

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
        if stamp_us >= self.tail.stamps[self.tail.start] or self._first == self._next:
            return self.tail.units_at(stamp_us)
        return self._last(lambda page, _: page.stamps[0] <= stamp_us)[0].units_at(stamp_us)

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
        while self._first < self._next and self._read(self._first)[0].stamps[-1] <= cutoff_us:
            self._pages.write(self._first, None)
            self._first += 1
        if self._first == self._next and self.tail.last_us() > cutoff_us:
            self.tail.trim(cutoff_us)

    def recorded(self) -> Iterator[tuple[int, int, int]]:
        """See `ColumnLog`."""
        for number in range(self._first, self._next):
            yield from self._read(number)[0].recorded()
        yield from self.tail.recorded()

    def value(self) -> bytes:
        """The head, after sealing what has grown too long for the tail."""
        while len(self.tail) > TAIL_HITS:
            self._seal()
        if self._first == self._next:
            return pack_log(self.tail)
        return pack_log(self.tail, PAGED, (self._first, self._next, self._sealed, self._mixed))

    def remove_pages(self) -> None:
        """Remove every page, for a log that is erased or swept."""
        for number in range(self._first, self._next):
            self._pages.write(number, None)
        self._first = self._next

    def _seal(self) -> None:
        tail, page = self.tail, ColumnLog()
        tail.pack()
        page.stamps = tail.stamps[:PAGE_HITS]
        page.floor_us = page.stamps[-1]
        units = PAGE_HITS
        if tail.before is not None:
            start, end = tail.before[0], tail.before[PAGE_HITS]
            page.total = units = end - start
            page.before = array("Q", (before - start for before in tail.before[:PAGE_HITS]))
            tail.before = array("Q", (before - end for before in tail.before[PAGE_HITS:]))
            tail.total -= end
            self._mixed = 1
        if tail.ids:
            cut_us = page.stamps[-1]
            page.ids = {fingerprint: us for fingerprint, us in tail.ids.items() if us <= cut_us} or None
            tail.ids = {fingerprint: us for fingerprint, us in tail.ids.items() if us > cut_us} or None
        del tail.stamps[:PAGE_HITS]
        self._pages.write(self._next, pack_log(page, lead=(self._sealed,)))
        self._next += 1
        self._sealed += units

    def _dissolve(self) -> None:
        """Take every page back into the tail; `value` seals them anew."""
        whole = self._whole()
        self.remove_pages()
        self.tail, self._seen = whole, {}
        self._first = self._next = self._sealed = self._mixed = 0

    def _whole(self) -> ColumnLog:
        """The whole log in one piece; O(n)."""
        whole = ColumnLog()
        for stamp_us, units, fingerprint in self.recorded():
            whole.record(stamp_us, units, 0, fingerprint)
        whole.floor_us = self.tail.floor_us
        return whole

    def _last(self, holds: Callable[[ColumnLog, int], bool]) -> tuple[ColumnLog, int]:
        """The last page that this holds for, given that it holds up to some page; the first, if for none."""
        low, high = self._first, self._next
        while high - low > 1:
            middle = (low + high) // 2
            if holds(*self._read(middle)):
                low = middle
            else:
                high = middle
        return self._read(low)

    def _newest_first(self) -> Iterator[ColumnLog]:
        return (self._read(number)[0] for number in range(self._next - 1, self._first - 1, -1))

    def _read(self, number: int) -> tuple[ColumnLog, int]:
        """A page, and the units sealed before it."""
        seen = self._seen.get(number)
        if seen is None:
            kind, words = _page_words(self._pages, number)
            page, (base,) = unpack_log(kind, words, 1)
            seen = self._seen[number] = page, base
        return seen


class UnitPages:
    """The stamps of a paged log whose every hit is one unit, as one sequence: the short way through it.

    Only for heads of kind PAGED alone, with `mixed` 0. `usable` is false where the log needs more than a hit at the end
    of its tail: pages to seal or to remove, which `PagedLog` does.
    """

    __slots__ = ("_count", "_first", "_oldest", "_pages", "_words")

    def __init__(self, words: array[int], pages: Pages) -> None:
        self._words = words
        self._pages = pages
        self._first = words[0]
        self._count = (words[1] - words[0]) * PAGE_HITS
        self._oldest = _page_words(pages, words[0])[1]

    def usable(self, cutoff_us: int) -> bool:
        """Tell whether the first page is still in use and the tail short enough for one more."""
        return len(self._words) - LEAD_WORDS < TAIL_HITS and self._oldest[-1] > cutoff_us

    def __len__(self) -> int:
        return self._count + len(self._words) - LEAD_WORDS

    def __getitem__(self, i: int) -> int:
        i -= self._count
        if i >= 0:
            return self._words[LEAD_WORDS + i]
        if i < -self._count:  # only -1 is asked for from the end
            return self._words[-1]
        page, place = divmod(i + self._count, PAGE_HITS)
        return (self._oldest if page == 0 else _page_words(self._pages, self._first + page)[1])[1 + place]

    def position(self, cutoff_us: int, _start: int) -> int:
        """How many of the stamps are as old as the cutoff or older: `bisect_right`, by page."""
        if self._words[LEAD_WORDS] <= cutoff_us:
            return self._count + bisect_right(self._words, cutoff_us, LEAD_WORDS) - LEAD_WORDS
        low, high, page = 0, self._count // PAGE_HITS, self._oldest
        if cutoff_us >= page[-1]:
            while high - low > 1:
                middle = (low + high) // 2
                words = _page_words(self._pages, self._first + middle)[1]
                if words[1] <= cutoff_us:
                    low, page = middle, words
                else:
                    high = middle
        return low * PAGE_HITS + bisect_right(page, cutoff_us, 1) - 1


def _page_words(pages: Pages, number: int) -> tuple[int, array[int]]:
    value = pages.read(number)
    if value is None:
        raise StoreDamagedError(f"a stored log is damaged: page {number} is missing; nothing is decided on it")
    kind, words = read_words(value)
    if len(words) < 1 + PAGE_HITS or kind & ~(UNITS | IDS):
        raise StoreDamagedError(f"a stored log is damaged: page {number} is not one; nothing is decided on it")
    return kind, words
