"""The demo on a slice of the data, against a simulation written out by hand; and what it refuses."""

import csv
import gzip
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from capline import CaplineError, Limit, PolicyError
from capline.campaign.file import load_campaign
from capline.replay.demo.figures import NO_SEGMENT, by_window, limit_name
from capline.replay.demo.messages import Messages, Purchases, calendar
from capline.replay.demo.record import Record, Recorder
from capline.replay.demo.recount import Recount, recount
from capline.replay.demo.report import write_report
from capline.replay.demo.run import run_demo
from capline.replay.events import ReplayError
from capline.segment import Snapshot, load_snapshot

DATA = Path(__file__).parents[3] / "examples/data/cdnow_transactions.csv.gz"
BUSIEST = 14048
DAY = timedelta(days=1)
LIMITS = {
    None: [(1, DAY, "1/day"), (2, 7 * DAY, "2/week")],
    "new": [(1, DAY, "1/day"), (3, 7 * DAY, "3/week")],
    "active": [(2, DAY, "2/day"), (5, 7 * DAY, "5/week")],
    "lapsing": [(1, DAY, "1/day"), (1, 7 * DAY, "1/week")],
    "churned": [(1, DAY, "1/day"), (1, 14 * DAY, "1/2 weeks")],
}


def slice_of_data(tmp_path: Path) -> tuple[Path, list[tuple[int, datetime]]]:
    """Every 300th customer and the one who bought most."""
    with gzip.open(DATA, "rt") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if int(row["customer_id"]) % 300 == 7 or row["customer_id"] == str(BUSIEST)
        ]
    path = tmp_path / "slice.csv"
    path.write_text("date,customer_id\n" + "".join(f"{row['date']},{row['customer_id']}\n" for row in rows))
    return path, [(int(row["customer_id"]), datetime.fromisoformat(row["date"]).replace(tzinfo=UTC)) for row in rows]


def segment_by_hand(bought: Iterable[datetime], morning: datetime) -> str | None:
    ages = [(morning - day).days for day in bought if day < morning]
    if not ages:
        return None
    if max(ages) <= 30:
        return "new"
    if min(ages) <= 90:
        return "active"
    return "lapsing" if min(ages) <= 180 else "churned"


def by_hand(purchases: Iterable[tuple[int, datetime]]) -> tuple[Counter[str], Counter[tuple[str, str]], Counter[str]]:
    """Asked and refused by segment, and sent by message: the definitions, one message at a time."""
    purchases = sorted(purchases, key=lambda purchase: purchase[1])
    first_day, last_day = purchases[0][1], purchases[-1][1]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    due: list[tuple[datetime, int, int, str]] = []
    for customer, day in purchases:
        mixed = (customer * 2_654_435_761 + (day - epoch).days * 40_503) >> 8
        for kind, (name, after) in enumerate((("thanks", 0), ("review", 3), ("offer", 7))):
            at = day + after * DAY + timedelta(hours=8 + mixed % 14)
            if at < last_day + DAY:
                due.append((at, kind, customer, name))
    day = first_day
    while day <= last_day:
        if day.strftime("%A") == "Thursday":
            known = {customer for customer, bought in purchases if bought < day}
            due += [(day + timedelta(hours=16), 3, customer, "blast") for customer in sorted(known)]
        day += DAY
    asked: Counter[str] = Counter()
    refused: Counter[tuple[str, str]] = Counter()
    sent: Counter[str] = Counter()
    logs: dict[int, list[datetime]] = {}
    for at, _, customer, name in sorted(due, key=lambda one: one[0]):
        segment = segment_by_hand([day for who, day in purchases if who == customer], at.replace(hour=0))
        asked[segment or NO_SEGMENT] += 1
        log = logs.setdefault(customer, [])
        now = max([at, *(one + timedelta(microseconds=1) for one in log[-1:])])
        full: list[tuple[datetime, str]] = []
        for quota, window, text in LIMITS[segment]:
            inside = [one for one in log if one > now - window]
            if len(inside) >= quota:
                full.append((inside[-quota] + window, text))
        if full:
            refused[segment or NO_SEGMENT, max(full)[1]] += 1
        else:
            log.append(now)
            sent[name] += 1
    return asked, refused, sent


def test_the_demo_is_its_definition(tmp_path: Path) -> None:
    data, purchases = slice_of_data(tmp_path)
    seen: list[tuple[int, int]] = []
    result = run_demo(data, tmp_path / "out", progress=lambda done, days: seen.append((done, days)))
    asked, refused, sent = by_hand(purchases)
    assert {line.name: line.asked for line in result.figures.segments} == dict(asked)
    assert {
        (line.name, limit): count for line in result.figures.segments for limit, count in line.refused.items()
    } == dict(refused)
    assert {line.name: line.sent for line in result.figures.messages} == dict(sent)
    assert len({limit for _, limit in refused}) >= 5
    assert result.holds
    assert seen == [(day, result.days) for day in range(1, result.days + 1)]


def test_the_figures_add_up(tmp_path: Path) -> None:
    data, purchases = slice_of_data(tmp_path)
    result = run_demo(data, tmp_path / "out")
    figures = result.figures
    assert figures.total.asked == figures.total.sent + sum(figures.total.refused.values()) == result.decisions
    for lines in (figures.segments, figures.messages):
        assert sum(line.asked for line in lines) == result.decisions
        assert all(line.asked == line.sent + sum(line.refused.values()) for line in lines)
    assert sum(week.sent for week in figures.weeks) == figures.total.sent
    assert sum(sum(week.refused.values()) for week in figures.weeks) == result.decisions - figures.total.sent
    assert sum(by_window(figures.total, window) for window in figures.windows) == result.decisions - figures.total.sent
    assert sum(number * times for number, times in figures.without_caps.items()) == result.decisions
    assert sum(number * times for number, times in figures.with_caps.items()) == figures.total.sent
    assert sum(figures.without_caps.values()) == sum(figures.with_caps.values())
    assert result.purchases == len(purchases)
    assert sum(map(len, load_snapshot(tmp_path / "out/segments").sets.values())) == result.customers


def test_a_second_run_makes_its_store_anew_and_says_the_same(tmp_path: Path) -> None:
    data, _ = slice_of_data(tmp_path)
    first, second = (run_demo(data, tmp_path / "out") for _ in range(2))
    assert first.figures == second.figures


def test_a_message_that_nobody_asked_for_fails_the_first_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = slice_of_data(tmp_path)

    def short(purchases: Purchases) -> Iterator[tuple[Snapshot, list[Messages]]]:
        for snapshot, batches in calendar(purchases):
            yield snapshot, batches[:2]

    monkeypatch.setattr("capline.replay.demo.run.calendar", short)
    result = run_demo(data, tmp_path / "out")
    assert [check.holds for check in result.checks] == [False, True, True, True]
    assert not result.holds


def test_a_record_that_is_not_what_the_store_holds_fails_the_last_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _ = slice_of_data(tmp_path)

    class Forgetful(Recorder):
        def done(self) -> Record:
            record = super().done()
            record.hit[np.flatnonzero(record.allowed)[-1]] += 1
            return record

    monkeypatch.setattr("capline.replay.demo.run.Recorder", Forgetful)
    result = run_demo(data, tmp_path / "out")
    assert [check.holds for check in result.checks] == [True, True, True, False]


def test_a_store_that_admits_too_much_fails_the_second_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = slice_of_data(tmp_path)

    def stricter(record: Record, limits_of: Sequence[Sequence[Limit]], zone: str) -> Recount:
        less = [[Limit(limit.quota - 1, limit.window_us) for limit in limits] for limits in limits_of]
        return recount(record, less, zone)

    monkeypatch.setattr("capline.replay.demo.run.recount", stricter)
    result = run_demo(data, tmp_path / "out")
    assert [check.holds for check in result.checks] == [True, False, True, True]


def test_calendar_limits_and_quiet_hours_are_counted_out_in_the_policys_zone(tmp_path: Path) -> None:
    data, _ = slice_of_data(tmp_path)
    policies = tmp_path / "mine.yaml"
    policies.write_text(
        "policies: {promo: {limits: [1/calendar-day, 1/calendar-week, not between 20:00 and 04:00], zone: Asia/Kolkata,"
        " by_segment: {new: [3/calendar-week, 2/week], churned: [1/calendar-week],"
        " active: [2/day, 1/calendar-day, not between 18:00 and 22:00]}}}"
    )
    result = run_demo(data, tmp_path / "out", policies)
    assert [check.holds for check in result.checks] == [True] * 4
    assert set(result.figures.windows) == {
        "calendar-day",
        "day",
        "calendar-week",
        "week",
        "not between 20:00 and 04:00",
        "not between 18:00 and 22:00",
    }
    total = result.figures.total
    assert sum(by_window(total, window) for window in result.figures.windows) == total.asked - total.sent
    named = ("calendar-week", "not between 20:00 and 04:00", "not between 18:00 and 22:00")
    assert all(by_window(total, window) for window in named)
    write_report(result, tmp_path / "report.html")
    assert "not between 18:00 and 22:00" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("algorithm: gcra", "'promo' is gcra, whose windows cannot be counted out from sends; take sliding_log"),
        ("algorithm: bucketed", "'promo' is bucketed"),
        ("algorithm: sliding_counter", "'promo' is sliding_counter"),
        ("count_denied: true", "counts refusals too, so its windows cannot be counted out from sends; leave"),
    ],
)
def test_a_policy_that_cannot_be_counted_out_is_refused_before_anything_is_written(
    tmp_path: Path, options: str, said: str
) -> None:
    data, _ = slice_of_data(tmp_path)
    (tmp_path / "mine.yaml").write_text(f"policies: {{promo: {{limits: [3/day], {options}}}}}")
    with pytest.raises(ReplayError, match=said):
        run_demo(data, tmp_path / "out", tmp_path / "mine.yaml")
    assert not (tmp_path / "out").exists()


def test_another_policy_takes_the_place_of_the_built_in_one(tmp_path: Path) -> None:
    data, _ = slice_of_data(tmp_path)
    policies = tmp_path / "mine.yaml"
    policies.write_text("policies:\n  promo:\n    limits: [0/day]\n    by_segment: {new: [9/hour]}\n")
    result = run_demo(data, tmp_path / "out", policies)
    sent = {line.name: line.sent for line in result.figures.segments}
    assert result.holds
    assert sent.pop("new") > 0
    assert set(sent.values()) == {0}
    assert result.limits_by_segment["churned"] == ("0/day",)
    assert not (tmp_path / "out/campaign.yaml").exists()  # its audience has segments that this policy does not know


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("policies: {other: {limits: [1/day]}}", ReplayError, "no policy 'promo'"),
        ("policies: {promo: {channels: {push: [1/day]}}}", ReplayError, "channels only"),
        ("policies: {promo: {limits: [1/fortnight]}}", PolicyError, "fortnight"),
    ],
)
def test_a_policy_file_that_does_not_serve_is_refused_before_anything_is_touched(
    tmp_path: Path, text: str, error: type[CaplineError], says: str
) -> None:
    data, _ = slice_of_data(tmp_path)
    policies = tmp_path / "mine.yaml"
    policies.write_text(text)
    with pytest.raises(error, match=says):
        run_demo(data, tmp_path / "out", policies)
    assert not (tmp_path / "out").exists()


def test_a_store_directory_with_anything_else_in_it_is_left_alone(tmp_path: Path) -> None:
    data, _ = slice_of_data(tmp_path)
    diary = tmp_path / "out/store/diary.txt"
    diary.parent.mkdir(parents=True)
    diary.write_text("dear diary")
    with pytest.raises(ReplayError, match="left alone"):
        run_demo(data, tmp_path / "out")
    assert diary.read_text() == "dear diary"


@pytest.mark.parametrize("customer", ["-1", "4294967296", "anna", "1.5"])
def test_a_customer_that_is_no_id_is_refused_by_row(tmp_path: Path, customer: str) -> None:
    data = tmp_path / "bad.csv"
    data.write_text(f"customer_id,date\n1,1997-01-01\n{customer},1997-01-02\n")
    with pytest.raises(ReplayError, match="row 2: customer_id"):
        run_demo(data, tmp_path / "out")


def test_an_out_that_is_a_file_is_refused(tmp_path: Path) -> None:
    data, _ = slice_of_data(tmp_path)
    (tmp_path / "out").write_text("")
    with pytest.raises(ReplayError, match="choose another --out"):
        run_demo(data, tmp_path / "out")


def test_the_next_blast_is_a_campaign_that_capline_reads(tmp_path: Path) -> None:
    data, _ = slice_of_data(tmp_path)
    run_demo(data, tmp_path / "out")
    campaign = load_campaign(tmp_path / "out/campaign.yaml")
    assert campaign.policy == "promo"
    assert campaign.store == f"lmdb://{tmp_path}/out/store"
    assert campaign.as_of_us is not None
    at = datetime.fromtimestamp(campaign.as_of_us / 1e6, UTC)
    assert f"{at:%A %H:%M}" == "Thursday 16:00"


def test_limits_are_named_as_people_do() -> None:
    assert [limit_name(window) for window in ("day", "2 weeks", "10s")] == ["day limit", "2-week limit", "10s limit"]
