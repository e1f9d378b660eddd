"""Long logs of the embedded store, at the places where only a long history finds a mistake."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pytest

from capline import Attempt, Decision, Limiter, ManualClock, Policy, StoreDamagedError
from capline.store.local.lmdb.check import check_store
from capline.store.local.lmdb.environment import Environment
from capline.store.local.lmdb.transaction import LmdbPages
from capline.store.local.log import ColumnLog
from capline.store.local.log_bytes import PAGED, read_words
from capline.store.local.log_pages import (
    AHEAD,
    BLOCK_PAGES,
    PAGE_HITS,
    IdTables,
    PagedLog,
    PageIds,
    SeenPages,
    UnitPages,
)
from capline.testing.reference import Reference

START_US = 1_700_000_000_000_000
KEY = b"log"


class InMemory:
    """Pages of one log."""

    key = KEY

    def __init__(self) -> None:
        self.values: dict[int, bytes] = {}

    def read(self, number: int) -> bytes | None:
        return self.values.get(number)

    def write(self, number: int, value: bytes | None) -> None:
        if value is not None:
            self.values[number] = value


def test_pages_of_an_erased_log_are_not_those_of_the_next(tmp_path: Path) -> None:
    clock = ManualClock(START_US)
    policies = [Policy("p", ["150/5000us", "300/h"])]
    with (
        Limiter(f"lmdb://{tmp_path}/store", policies, clock=clock) as stored,
        Limiter("memory://", policies, clock=clock) as plain,
    ):
        for gap_us in (7, 31, 11):
            for _ in range(400):
                clock.advance_us(gap_us)
                assert stored.decide("p", "s") == plain.decide("p", "s")
            stored.erase("s")
            plain.erase("s")


@pytest.mark.parametrize("order", [1, -1], ids=["forwards", "backwards"])
def test_a_cutoff_at_every_hit_of_every_page_is_found(order: int) -> None:
    pages, log = InMemory(), ColumnLog()
    stamps = [START_US + 10 * i for i in range(6 * PAGE_HITS)]
    for stamp_us in stamps:
        log.record(stamp_us, 1, stamp_us)
    kind, head = read_words(PagedLog(log, pages, IdTables({})).value(), KEY)
    assert kind == PAGED
    asked = [stamp_us + more_us for stamp_us in stamps for more_us in (-1, 0, 1)][::order]
    kept = SeenPages(1, pages)
    for cutoff_us in asked:
        expected = sum(stamp_us <= cutoff_us for stamp_us in stamps)
        # With no page at hand, and with what was found for the one before.
        for seen in (SeenPages(1, pages), kept):
            assert UnitPages(head, seen, START_US - 1).position(cutoff_us, 0) == expected


def test_a_cutoff_at_the_first_hit_of_a_page_is_searched_for() -> None:
    """The look at the page next to the last one found does not hide the search."""
    pages, log = InMemory(), ColumnLog()
    stamps = [START_US + 10 * i for i in range(8 * PAGE_HITS)]
    for stamp_us in stamps:
        log.record(stamp_us, 1, stamp_us)
    _, head = read_words(PagedLog(log, pages, IdTables({})).value(), KEY)
    for place in (5, 3, 6, 2, 4):
        seen = SeenPages(1, pages)
        assert UnitPages(head, seen, START_US - 1).position(stamps[place * PAGE_HITS], 0) == place * PAGE_HITS + 1


def test_a_paged_log_tells_the_units_at_the_edge_of_every_page() -> None:
    pages, log, plain = InMemory(), ColumnLog(), ColumnLog()
    for i in range(4 * PAGE_HITS):
        for each in (log, plain):
            each.record(START_US + 10 * i, 1 + i % 3, START_US + 10 * i)
    paged = PagedLog(log, pages, IdTables({}))
    paged.value()
    for cutoff_us in range(START_US, START_US + 40 * PAGE_HITS, 5):
        assert paged.units_after(cutoff_us) == plain.units_after(cutoff_us)
    total = plain.units_after(START_US - 1)
    assert [paged.stamp_of_unit(k) for k in range(1, total)] == [plain.stamp_of_unit(k) for k in range(1, total)]


def test_ids_of_a_batch_read_no_page_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as many rows read ten times as many pages: a class of growth, not a time."""
    read, reads = LmdbPages.read, [0]

    def counted(self: LmdbPages, number: int) -> bytes | None:
        reads[0] += 1
        return read(self, number)

    monkeypatch.setattr(LmdbPages, "read", counted)
    spent: list[int] = []
    for rows in (300, 3_000):
        reads[0] = 0
        with Limiter(f"lmdb://{tmp_path}/{rows}", [Policy("p", ["9999/h"])], clock=ManualClock(START_US)) as limiter:
            for part in range(3):
                attempts = [Attempt("p", "s", id=f"{part} {i}") for i in range(rows // 3)]
                assert all(limiter.decide_batch(attempts))
        spent.append(reads[0])
    assert spent[1] < 12 * spent[0]


def test_ids_of_a_transaction_that_is_dropped_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Environment.run

    def dropping(self: Environment, work: Callable[[Any], object]) -> object:
        def dropped(txn: object) -> None:
            work(txn)
            raise InterruptedError

        return run(self, dropped)

    def decided(*kinds: str) -> list[object]:
        attempts = [Attempt("p", "s", id=f"{kind} {i}") for kind in kinds for i in range(100)]
        return [decision.hit for decision in limiter.decide_batch(attempts) if isinstance(decision, Decision)]

    with Limiter(f"lmdb://{tmp_path}/store", [Policy("p", ["9999/h"])], clock=ManualClock(START_US)) as limiter:
        first = decided("first")
        with monkeypatch.context() as patched:
            patched.setattr(Environment, "run", dropping)
            with pytest.raises(InterruptedError):
                decided("dropped")
        again = decided("other", "dropped", "first")
        assert again[200:] == first
        assert len({*again}) == 300 == limiter.usage("p", "s")[0].used


def test_a_thread_that_tells_late_what_it_committed_hides_no_later_page() -> None:
    kept: dict[bytes, PageIds] = {}
    first, earlier, later = IdTables(kept), IdTables(kept), IdTables(kept)
    for tables, number in ((first, 0), (earlier, 5), (later, 9)):
        table = tables.of(KEY, 1)
        table.numbers[7], table.next, table.pages = number, number + 1, number + 1
        if tables is first:
            first.commit()
    later.commit()
    earlier.commit()
    found = IdTables(kept).of(KEY, 1)
    assert (found.page_of(7), found.next) == (9, 10)


def test_a_change_far_back_writes_as_many_pages_in_a_log_of_any_length(tmp_path: Path) -> None:
    """By blocks, which `forms=next` begins and every process goes on with; and what is missing of them is seen."""
    writes: list[int] = []

    def wrote(self: LmdbPages, number: int, value: bytes | None) -> None:
        writes.append(number)
        write(self, number, value)

    write = LmdbPages.write
    path = tmp_path / "store"
    clock = ManualClock(START_US)
    policy = Policy("p", ["99999/h"])
    with Limiter(f"lmdb://{path}?forms=next", [policy], clock=clock) as limiter:
        for _ in range(3_000):
            clock.advance_us(1)
            limiter.decide("p", "s")
    for forms, used in (("next", 2_999), ("present", 2_998)):
        with (
            pytest.MonkeyPatch.context() as patched,
            Limiter(f"lmdb://{path}?forms={forms}", [policy], clock=clock) as limiter,
        ):
            patched.setattr(LmdbPages, "write", wrote)
            assert limiter.refund("p", "s", START_US + used - 2_000)
            assert limiter.usage("p", "s")[0].used == used
        assert AHEAD in writes
        assert len(writes) <= BLOCK_PAGES + 1
        writes.clear()
    assert not check_store(path).faults
    with lmdb.open(str(path), max_dbs=8) as env, env.begin(write=True) as txn:
        pages = env.open_db(b"pages", txn)
        assert txn.delete(next(key for key, _ in txn.cursor(pages) if key.endswith(b"\xff" * 4)), db=pages)
    assert "sums by block are missing" in check_store(path).faults[0]
    with Limiter(f"lmdb://{path}", [policy], clock=clock) as limiter, pytest.raises(StoreDamagedError, match="missing"):
        limiter.usage("p", "s")


def test_a_log_of_costs_goes_to_pages(tmp_path: Path) -> None:
    url, policy = f"lmdb://{tmp_path}/store", Policy("p", ["1000/h"])
    with Limiter(url, [policy], clock=ManualClock(START_US)) as limiter:
        for _ in range(3 * PAGE_HITS):
            assert limiter.decide("p", "s", 2)
    assert check_store(tmp_path / "store").sealed_pages


@pytest.mark.parametrize("seed", [14, 74, 84, 236])
def test_refusals_that_pages_keep_change_no_answer(tmp_path: Path, seed: int) -> None:
    """Refusals come faster than the clock, among slots: a forgotten one's stamp may be taken again."""
    draw, clock = Random(seed), ManualClock(START_US)
    policies = [Policy("p", ["9/70us", "15/100us"], algorithm="bucketed", granularity="5us", count_denied=True)]
    reference = Reference(policies, clock)
    with Limiter(f"lmdb://{tmp_path}/store", policies, clock=clock) as limiter:
        for _ in range(60):
            match draw.choice(["decide", "decide", "many", "charge", "schedule", "tick", "keep", "tick"]):
                case "tick":
                    clock.advance_us(draw.choice([1, 2, 3, 7, 12, -3]))
                case "many":
                    rows = ["a"] * draw.choice([1, 3, 12])
                    expected = [reference.decide("p", subject) for subject in rows]
                    assert [*limiter.decide_many("p", rows)] == expected
                case "keep":
                    assert limiter.decide("p", "a", keep_free=1) == reference.decide("p", "a", keep_free=1)
                case "charge":
                    assert limiter.charge("p", "a", 1) == reference.charge("p", "a", 1)
                case verb:
                    assert getattr(limiter, verb)("p", "a") == getattr(reference, verb)("p", "a")
