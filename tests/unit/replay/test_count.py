"""Counting a file: the blocks are the events, the core is the specification, the answer is the limiter's."""

import gzip
import os
import tracemalloc
from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from random import Random
from tempfile import SpooledTemporaryFile, TemporaryFile

import numpy as np
import pytest
from tests.kit.rows import read_events

from capline import CaplineError, Limiter, ManualClock, Policy
from capline.replay import ordered
from capline.replay.blocks import EventFile
from capline.replay.count import ReplayCounts, Trial, UnitCore, count_events
from capline.replay.events import ReplayError
from capline.replay.ordered import Events, OrderedEvents
from capline.tables import columns as tables
from capline.tables import csv_file

COLUMNS = ("id", "ts", "kind", "tz")


def written(tmp_path: Path, data: str | bytes, name: str = "events.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def by_blocks(path: Path, columns: tuple[str, ...] = COLUMNS) -> list[tuple[object, ...]]:
    file = EventFile(path, *columns)
    rows: list[tuple[object, ...]] = []
    for block in file.blocks():
        assert block.row == len(rows)
        subjects, kinds = file.subjects(), file.kinds()
        for row, at_us in enumerate(block.at_us.tolist()):
            rows.append((subjects[int(block.subjects[row])], at_us, *kinds[int(block.kinds[row])]))
    return rows


def by_rows(path: Path, columns: tuple[str, ...] = COLUMNS) -> list[tuple[object, ...]]:
    return [(event.subject, event.at_us, event.segment, event.zone) for event in read_events(path, *columns)]


TIMES: dict[str, Callable[[int], str]] = {
    "seconds": lambda at: f"{at // 10}",
    "fractions": lambda at: f"{at / 10:.6f}",
    "dates": lambda at: f"{1970 + at // 3000}-03-0{1 + at % 3000 // 1000}",
    "local": lambda at: f"2025-01-01{'T' if at % 2 else ' '}{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}",
    "zoned": lambda at: f"2025-01-01T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}.25+01:00",
    "utc": lambda at: f"2025-01-01T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}Z",
    "short": lambda at: f"20250101T{at // 3600:02}0000Z",
}
SLOW = {"short"}


def lines(form: str, rows: int = 4000) -> list[str]:
    random = Random(5)
    subjects = ["7", "007", "0", "user:1", "ü", "18446744073709551615", "18446744073709551616", " x "]
    time = TIMES[form]
    return [
        f"{random.choice(subjects)},{time(at)},{random.choice(['', 'vip', 'new', 'NA'])},"
        f"{random.choice(['', 'Asia/Tokyo'])}"
        for at in range(rows)
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("form", list(TIMES))
def test_blocks_are_the_events_read_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, end: str
) -> None:
    monkeypatch.setattr(csv_file, "BLOCK_BYTES", 5000)
    text = lines(form)
    path = written(tmp_path, end.join(["\ufeffid,ts,kind,tz", "", *text[:100], "", "", *text[100:]]))
    slow: list[str] = []
    one_by_one = tables.read_time_us

    def noted(text: str, name: str) -> int:
        slow.append(text)
        return one_by_one(text, name)

    monkeypatch.setattr(tables, "read_time_us", noted)
    found = by_blocks(path)
    assert found == by_rows(path)
    assert len(found) == 4000
    assert bool(slow) == (form in SLOW)
    monkeypatch.setattr(csv_file, "arrow", lambda: None)
    assert by_blocks(path) == found
    monkeypatch.setattr(tables, "arrow", lambda: None)
    assert by_blocks(path) == found


@pytest.mark.parametrize(
    "odd",
    [
        '"a",5,vip,',
        '"a\nb",5,vip,',
        '"a,b",5,"v""ip",',
        '"a""b",5,"""vip""",""',
        'a"b,5,vip,',
        'a",5,vip",',
        "a,5.5,vip,",
        "a, 5 ,vip,",
        "a,1970-01-01T00:00:05,vip,",
        "a,1970-01-01T00:00:05.1234567,vip,",
        "a,1970-01-01T01:00:05+01:00,vip,",
        "a\0b,5,,",
    ],
)
def test_from_an_unusual_row_on_a_file_is_read_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    monkeypatch.setattr(csv_file, "BLOCK_BYTES", 100)
    plain, later = ([f"u{n % 7},{second},vip," for n in range(60)] for second in (5, 6))
    path = written(tmp_path, "\n".join(["id,ts,kind,tz", *plain, odd, *later]) + "\n")
    assert by_blocks(path) == by_rows(path)
    assert len(by_blocks(path)) == 121


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("e.csv", b""),
        ("e.csv", b"\n\n"),
        ("e.csv", b"id,ts,kind,tz\n"),
        ("e.csv", b"id,ts,kind,tz\n\n\r\n"),
        ("e.csv", b"user,ts,kind,tz\n1,2,,\n"),
        ("e.csv", b"id,id,ts,kind,tz\n1,2,3,,\n"),
        ("e.csv", b"id,ts,kind,tz\n1,2,,\n3\n"),
        ("e.csv", b"id,ts,kind,tz\n1,2,,\n3,4,,,\n"),
        ("e.csv", b"id,ts,kind,tz\n1,2,,\n ,\n"),
        ("e.csv", b"id,ts,kind,tz\n1,2,,\n\n,2,,\n"),
        ("e.csv", b"id,ts,kind,tz\n1,soon,,\n"),
        ("e.csv", b"id,ts,kind,tz\n1,0x10,,\n"),
        ("e.csv", b"id,ts,kind,tz\n1,-5,,\n"),
        ("e.csv", b"id,ts,kind,tz\n1,9999999999,,\n"),
        ("e.csv", b"id,ts,kind,tz\n1,1740830400000,,\n"),
        ("e.csv", b"id,ts,kind,tz\n1,1969-12-31,,\n"),
        ("e.csv", b"id,ts,kind,tz\n1,1997-02-30,,\n"),
        ("e.csv", b"id,ts,kind,tz\n1,1997-02-20T23:59:60,,\n"),
        ("e.csv", b"id,ts,kind,tz\n1,1997-02-20T24:00:00Z,,\n"),
        ("e.csv", b"id,ts,kind,tz\n1,2,,Tokyo\n"),
        ("e.csv", b"id,ts,kind,tz\n\xff\xfe,2,,\n"),
        ("e.csv", b"id,ts,kind,tz\n1,2,\xff,\n"),
        ("e.csv", b'id,ts,kind,tz\n1,2,,\n"1,2,,\n'),
        ("e.csv", b'id,ts,kind,tz\n1,2,,\n"a"b,2,,\n'),
        ("e.csv", b'id,ts,kind,tz\n1,2,,\n""b,2,,\n'),
        ("e.csv", b'id,ts,kind,tz\n1,2,,\n"a"""b,2,,\n'),
        ("e.csv", b'id,ts,kind,tz\n1,soon,,\n"a",2,,\n1,2\n'),
        ("e.csv.gz", gzip.compress(b"id,ts,kind,tz\n" + b"1,2,,\n" * 999, mtime=0)[:-20]),
    ],
)
@pytest.mark.parametrize("block_bytes", [20, 1 << 20])
def test_what_is_wrong_is_said_as_it_is_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, block_bytes: int
) -> None:
    monkeypatch.setattr(csv_file, "BLOCK_BYTES", block_bytes)
    path = written(tmp_path, data, name)
    with pytest.raises(CaplineError) as caught:
        by_blocks(path)
    with pytest.raises(CaplineError) as expected:
        by_rows(path)
    assert str(caught.value) == str(expected.value)
    assert "\n" not in str(caught.value)


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_file, "LONGEST_LINE_BYTES", 1 << 20)
    monkeypatch.setattr(csv_file, "BLOCK_BYTES", 1 << 16)
    with pytest.raises(ReplayError, match=r"a line of more than 1 MB; is it a CSV file\?"):
        by_blocks(written(tmp_path, b"id,ts,kind,tz\n" + b"x" * (3 << 20)))


def test_a_pipe_is_read_too() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"id,ts,kind,tz\n7,1,,\n")
    os.close(writer)
    assert by_blocks(Path(f"/dev/fd/{reader}")) == [(7, 1_000_000, None, None)]
    os.close(reader)


def test_one_column_may_be_subject_and_segment(tmp_path: Path) -> None:
    path = written(tmp_path, "id,ts\nvip,1\n,2\n")
    columns = ("id", "ts", "id")
    with pytest.raises(ReplayError, match="row 2"):
        by_blocks(path, columns)
    path.write_text("id,ts\nvip,1\n")
    assert by_blocks(path, columns) == by_rows(path, columns) == [("vip", 1_000_000, "vip", None)]


def test_events_are_sorted_by_time_and_those_of_an_instant_stay_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "id,ts\n1,5\n2,5\n3,4\n")
    for block_bytes in (1 << 20, 8):
        monkeypatch.setattr(csv_file, "BLOCK_BYTES", block_bytes)
        file = EventFile(path, "id", "ts")
        with file.in_order() as events:
            (block,) = events.blocks()
            assert [file.subjects()[code] for code in block.subjects] == [3, 1, 2]


@pytest.mark.parametrize(("span", "rows"), [(1, 1), (7, 40), (1000, 40), (10**9, 3)])
def test_runs_are_merged_as_if_all_were_sorted_at_once(monkeypatch: pytest.MonkeyPatch, span: int, rows: int) -> None:
    monkeypatch.setattr(ordered, "RUN_ROWS", 50)
    monkeypatch.setattr(ordered, "BLOCK_ROWS", 30)
    random = Random(span)
    every = [(number, random.randrange(span) + number // 400, number % 3) for number in range(1000)]
    with TemporaryFile() as file:
        events = OrderedEvents(file)
        for start in range(0, len(every), rows):
            events.add(Events(*map(np.array, zip(*every[start : start + rows], strict=True))))
        events.end_run()
        events.end_run()
        found = [row for block in events.blocks() for row in zip(*(part.tolist() for part in block), strict=True)]
        assert all(0 < len(block.at_us) <= 50 for block in events.blocks())
    assert found == sorted(every, key=itemgetter(1))
    assert len(events) == events.subjects == 1000
    assert (events.first_us, events.last_us) == (found[0][1], found[-1][1])


def test_memory_does_not_grow_with_the_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "RUN_ROWS", 1 << 16)
    peaks: list[int] = []
    for blocks in (32, 128):
        at_us = np.random.default_rng(blocks).integers(0, 1 << 40, 1 << 12)
        codes = np.zeros(1 << 12, np.int32)
        tracemalloc.start()
        with SpooledTemporaryFile(1 << 18) as file:
            events = OrderedEvents(file)
            for _ in range(blocks):
                events.add(Events(codes, at_us, codes))
            events.end_run()
            assert sum(len(block.at_us) for block in events.blocks()) == blocks << 12
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # 6 MB of events more.
    assert peaks[1] - peaks[0] < 1 << 20


def counted(path: Path, policy: Policy) -> ReplayCounts:
    clock, file = ManualClock(), EventFile(path, *COLUMNS)
    with Limiter("memory://", [policy], clock=clock) as limiter, file.in_order() as events:
        (counts,) = count_events([Trial(limiter, clock, "p")], file, events)
        return counts


POLICIES = [
    Policy("p", ["2/10s", "5/60s"], by_segment={"vip": ["4/10s", "30/day"]}),
    Policy("p", ["3/10s"], by_segment={"vip": ["30/10s"]}, channels={"push": ["1/day"]}),
    Policy("p", ["2/calendar-day", "not between 22:00 and 08:00"], by_segment={"vip": ["3/calendar-day"]}),
    Policy("p", ["2/10s"], by_segment={"vip": ["0/day"]}),
    Policy("p", ["5/10s", "20/60s"], count_denied=True),
    *(Policy("p", ["2/10s", "20/60s"], algorithm=name) for name in ("bucketed", "sliding_counter", "gcra")),
]


@pytest.mark.parametrize("policy", POLICIES, ids=[str(number) for number in range(len(POLICIES))])
def test_the_counts_are_those_of_decisions_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    monkeypatch.setattr(csv_file, "BLOCK_BYTES", 3000)
    random, at_us, rows = Random(9), 0, ["id,ts,kind,tz"]
    for _ in range(1500):
        at_us += random.choice((0, 0, 1, 1_000_000, 4_999_999, 5_000_000))
        kind, zone = random.choice(("", "vip")), random.choice(("", "Asia/Tokyo"))
        rows.append(f"{random.randrange(6)},{at_us // 1_000_000}.{at_us % 1_000_000:06},{kind},{zone}")
    path = written(tmp_path, "\n".join(rows))
    found = counted(path, policy)
    asked: Counter[str | None] = Counter()
    refused: Counter[object] = Counter()
    first: Counter[str] = Counter()
    of_subject: Counter[object] = Counter()
    clock = ManualClock()
    with Limiter("memory://", [policy], clock=clock) as limiter:
        for event in read_events(path, *COLUMNS):
            clock.advance_us(event.at_us - clock.now_us())
            decision = limiter.decide("p", event.subject, segment=event.segment, zone=event.zone)
            asked[event.segment] += 1
            if not decision.allowed:
                refused[event.segment, decision.limit] += 1
                first[str(next(state.limit for state in decision.limits if not state.remaining))] += 1
                of_subject[event.subject] += 1
    assert found.asked == asked
    assert found.refused == refused
    assert {name: count for name, count in found.by_limit().items() if count} == first
    assert sum(found.by_limit(binding=True).values()) == found.refused_over_time.sum() == refused.total()
    assert found.over_time.sum() == 1500
    file = EventFile(path, *COLUMNS)
    list(file.blocks())
    assert dict(found.top_refused(file.subjects())) == of_subject
    assert 0 < refused.total() < 1500
    assert found.last_us == at_us
    assert UnitCore.covers(policy) == (policy in POLICIES[:2])
    shuffled = [rows[0], *random.sample(rows[1:], 1500)]
    # Events of one instant come in another order then, so that only what was asked is the same.
    assert counted(written(tmp_path, "\n".join(shuffled), "shuffled.csv"), policy).asked == asked


def test_names_that_nobody_defined_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "id,ts,kind,tz\n1,5,gold,\n")
    with pytest.raises(CaplineError, match="gold"):
        counted(path, POLICIES[0])
    with pytest.raises(CaplineError, match="no policy 'p'"):
        counted(path, Policy("q", ["1/s"]))
