"""Logs of local stores, pages of 4 hits so that each seam is crossed often, answer every look as the plain value."""

from array import array
from itertools import cycle
from typing import TypeVar
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.profiles import size

from capline.store.local import log as columns
from capline.store.local import log_pages as paged
from capline.store.local.log import ColumnLog
from capline.store.local.log_bytes import BLOCKS, PAGED, pack_log, read_words, unpack_log
from capline.window import log as window

Step = tuple[str, int, int]
unit_steps = st.lists(
    st.one_of(
        st.tuples(st.just("record unit"), st.integers(1, 3), st.just(1)),
        st.tuples(st.just("record unit"), st.integers(1, 3), st.just(1)),
        st.tuples(st.just("trim"), st.integers(0, 40), st.just(0)),
    ),
    min_size=20,
    max_size=100,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.integers(1, 9), st.sampled_from([1, 1, 1, 1, 2, 5, 1000])),
        st.tuples(st.just("record unit"), st.integers(1, 3), st.just(1)),
        st.tuples(st.just("refund"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("extend"), st.integers(0, 3), st.sampled_from([0, 1, 5])),
        st.tuples(st.just("trim"), st.integers(0, 120), st.just(0)),
        st.tuples(st.just("insert"), st.integers(1, 60), st.sampled_from([1, 3])),
        st.tuples(st.just("insert many"), st.integers(-3, 60), st.sampled_from([1, 3])),
    ),
    min_size=10,
    max_size=80,
)


SEEN: dict[int, paged.SeenPages] = {}
"""Kept over all examples, as a process keeps it: only the epoch tells whose pages they are."""
IDS: dict[bytes, paged.PageIds] = {}
TABLES = [paged.IdTables(IDS)]


KEY = b"log"


class StoredPages:
    key = KEY

    def __init__(self) -> None:
        self.values: dict[int, bytes] = {}

    def read(self, number: int) -> bytes | None:
        return self.values.get(number)

    def write(self, number: int, value: bytes | None) -> None:
        if value is None:
            del self.values[number]
        else:
            self.values[number] = value


def reopened(value: bytes, stored: StoredPages, *, next_forms: bool = False) -> paged.PagedLog:
    kind, words = read_words(value, KEY)
    if kind & PAGED:
        tail, lead = unpack_log(kind, words, paged.LEAD_WORDS)
        blocks = bool(kind & BLOCKS)
        assert blocks is (paged.AHEAD in stored.values)
        return paged.PagedLog(tail, stored, tables(), lead, blocks=blocks, next_forms=next_forms)
    return paged.PagedLog(unpack_log(kind, words)[0], stored, tables())


def tables() -> paged.IdTables:
    """Those of the next transaction; the last one was committed."""
    TABLES[0].commit()
    TABLES[0] = paged.IdTables(IDS)
    return TABLES[0]


def check_unit_pages(value: bytes, stored: StoredPages, plain: window.Log) -> None:
    kind, words = read_words(value, KEY)
    if kind == PAGED and not words[paged.MIXED_WORD]:
        epoch = words[paged.EPOCH_WORD]
        seen = SEEN.setdefault(epoch, paged.SeenPages(epoch, stored))
        pages = paged.UnitPages(words, seen, plain.hits[0].stamp_us - 1)
        stamps = [pages[i] for i in range(len(pages))]
        kept = [hit.stamp_us for hit in plain.hits]
        assert stamps[len(stamps) - len(kept) :] == kept
        assert pages.ends == (len(stamps), stamps[0], stamps[-1])
        for cutoff_us in {*stamps[::3], stamps[0] - 1, stamps[-1]}:
            assert pages.position(cutoff_us, 0) == sum(stamp <= cutoff_us for stamp in stamps)


L = TypeVar("L", paged.PagedLog, ColumnLog)


def apply(step: Step, log: L, plain: window.Log, now_us: int, stored: StoredPages) -> tuple[L, window.Log, int]:
    verb, n, units = step
    if verb.startswith("record"):
        now_us += n
        fingerprint = window.DENIED if now_us % 7 == 0 else now_us if units > 1 or now_us % 5 == 0 else 0
        hit = window.Hit(now_us, units, fingerprint)
        kind, head = read_words(log.value(), KEY) if isinstance(log, paged.PagedLog) else (0, array("Q"))
        if units == 1 and not fingerprint and kind == PAGED and not head[paged.MIXED_WORD]:
            seen = paged.SeenPages(head[paged.EPOCH_WORD], stored)
            unit_pages = paged.UnitPages(head, seen, plain.hits[0].stamp_us - 1)
            again = reopened(unit_pages.record(now_us), stored)
            return again, window.record(plain, hit, now_us), now_us  # pyright: ignore[reportReturnType] - `log` is one too
        log.record(now_us, units, now_us, fingerprint)
        return log, window.record(plain, hit, now_us), now_us
    if verb == "refund" and plain.hits:
        stamp = plain.hits[-1 - n % len(plain.hits)].stamp_us
        there = plain.units_at(stamp)
        part = min(there, 1 + n % 3)
        plain, done = window.give_back(plain, stamp, part)
        assert log.give_back(stamp, part) is done
        assert log.give_back(stamp, there - part + 1) is False
        if there > part and n % 2:
            log.amend(stamp, there + n)
            plain = window.amend(plain, stamp, there + n)
    if verb == "extend" and plain.hits and plain.hits[-1].fingerprint in (0, window.DENIED):
        now_us = max(now_us, plain.last_us()) + n
        log.extend(now_us, units, now_us)
        plain = window.extend(plain, now_us, units, now_us)
    if verb == "trim" and plain.hits and plain.hits[-1].stamp_us > now_us - n:
        log.trim(now_us - n)
        plain = window.trim(plain, now_us - n)
    if verb == "insert" and plain.hits:
        stamp = plain.free_stamp(max(plain.hits[0].stamp_us, now_us - n))
        hit = window.Hit(stamp, units, (0, stamp, window.DENIED)[n % 3])
        log.record(stamp, units, 0, hit.fingerprint)
        plain, now_us = window.record(plain, hit, 0), max(now_us, stamp)
    if verb == "insert many" and plain.hits:
        rows: list[tuple[int, int, int]] = []
        for i in range(7):
            stamp = plain.free_stamp(max(plain.hits[0].stamp_us, now_us - n) + i * (n % 3))
            rows.append((stamp, units, stamp if i % 3 else 0))
            plain, now_us = window.record(plain, window.Hit(*rows[-1]), 0), max(now_us, stamp)
        log.insert(sorted(rows), 0)
    return log, plain, now_us


def check_looks(log: paged.PagedLog | ColumnLog, plain: window.Log, now_us: int) -> None:
    oldest_us = plain.hits[0].stamp_us
    assert log.newest_us() == plain.newest_us()
    assert log.last_us() == plain.last_us()
    assert log.high_water_us == plain.high_water_us
    for cutoff_us in (now_us - 1, now_us - 7, now_us - 30, oldest_us, oldest_us - 1):
        if cutoff_us >= oldest_us - 1:
            assert log.units_after(cutoff_us) == plain.units_after(cutoff_us)
    total = plain.units_after(oldest_us - 1)
    for k in {1, 2, 5, 11, total // 2 + 1, total}:
        if 1 <= k <= total:
            assert log.stamp_of_unit(k) == plain.stamp_of_unit(k)
    for hit in plain.hits[:: 1 + len(plain.hits) // 5]:
        assert log.units_at(hit.stamp_us) == hit.units
        assert log.free_stamp(hit.stamp_us) == plain.free_stamp(hit.stamp_us)
        if hit.fingerprint != window.REFUNDED or hit is plain.hits[-1]:
            assert log.name_of(hit.stamp_us) == hit.fingerprint
        for stamp in (hit.stamp_us, hit.stamp_us + 1):
            assert log.next_stamp(stamp) == plain.next_stamp(stamp)
        if 0 < hit.fingerprint < window.REFUNDED:
            assert log.find(hit.fingerprint, oldest_us - 1) == hit.stamp_us
    ids = {hit.fingerprint: hit.stamp_us for hit in plain.hits if 0 < hit.fingerprint < window.REFUNDED}
    assert {fingerprint: log.find(fingerprint, oldest_us - 1) for fingerprint in ids} == ids
    assert log.find(1, oldest_us - 1) == window.NEVER
    middle_us = plain.hits[len(plain.hits) // 2].stamp_us
    assert [row[:2] for row in log.recorded(middle_us, now_us - 1)] == [
        (hit.stamp_us, hit.units) for hit in plain.hits if middle_us <= hit.stamp_us < now_us
    ]


@settings(max_examples=size(30, 300), deadline=None)
@given(steps)
def test_every_look_at_columns_agrees_with_the_plain_value(script: list[Step]) -> None:
    log, plain, now_us = ColumnLog(), window.Log(), 1000
    with patch.object(columns, "_STRIDE", 2):  # so that a short log has the ways of a long one
        for step in script:
            log, plain, now_us = apply(step, log, plain, now_us, StoredPages())
            if plain.hits:
                check_looks(log, plain, now_us)


@settings(max_examples=size(30, 300), deadline=None)
@given(st.one_of(steps, unit_steps), st.sampled_from([(False,), (True,), (True, False)]))
def test_every_look_agrees_with_the_plain_value_across_seals_trims_refunds_and_reopenings(
    script: list[Step], forms: tuple[bool, ...]
) -> None:
    with patch.multiple(paged, PAGE_HITS=4, MOST_IN_PAGE=7, TAIL_HITS=6, BLOCK_PAGES=2):
        stored, now_us, plain = StoredPages(), 1000, window.Log()
        first = ColumnLog()
        first.record(now_us, 1, now_us)
        log = paged.PagedLog(first, stored, tables())
        plain = window.record(plain, window.Hit(now_us, 1), now_us)
        for step, next_forms in zip(script, cycle(forms)):
            log, plain, now_us = apply(step, log, plain, now_us, stored)
            log = reopened(log.value(), stored, next_forms=next_forms)
            check_looks(log, plain, now_us)
            check_unit_pages(log.value(), stored, plain)
        kept = [(stamp, units) for stamp, units, _ in log.recorded() if stamp >= plain.hits[0].stamp_us]
        assert kept == [(hit.stamp_us, hit.units) for hit in plain.hits]
        log.remove_pages()
        assert not stored.values


def test_a_short_log_stays_one_value_of_eight_bytes_a_hit() -> None:
    log = ColumnLog()
    for stamp in range(10):
        log.record(stamp, 1, stamp)
    assert len(pack_log(log, KEY)) == 8 + 10 * 8


def test_sums_by_block_stay_true_as_a_log_moves_on() -> None:
    """Blocks come at the end and go at the beginning between changes, which no short script does."""
    with patch.multiple(paged, PAGE_HITS=4, MOST_IN_PAGE=7, TAIL_HITS=6, BLOCK_PAGES=2):
        stored, plain = StoredPages(), ColumnLog()
        plain.record(1, 1, 1)
        log = paged.PagedLog(ColumnLog.copy_of(plain), stored, tables())
        for now_us in range(2, 600):
            for each in (log, plain):
                each.record(now_us, 1 + now_us % 3, now_us)
                if now_us % 23 == 0:
                    each.trim(now_us - 120)
            log = reopened(log.value(), stored, next_forms=True)
            oldest_us = max(1, now_us - 90)
            cutoffs = range(oldest_us, now_us, 7)
            for stamp_us in (now_us - 30, now_us - 65, now_us - 31) if now_us % 41 == 0 else ():
                assert [log.units_after(us) for us in cutoffs] == [plain.units_after(us) for us in cutoffs]
                for each in (log, plain):
                    each.amend(stamp_us, now_us % 5)
                assert [log.units_after(us) for us in cutoffs] == [plain.units_after(us) for us in cutoffs]
            assert [log.units_after(us) for us in cutoffs] == [plain.units_after(us) for us in cutoffs]
            units = range(1, plain.units_after(oldest_us), 5)
            assert [log.stamp_of_unit(k) for k in units] == [plain.stamp_of_unit(k) for k in units]
        assert paged.AHEAD in stored.values
