"""`capline suggest`: the price of every quota, the smallest that keeps a bound, and files to use them."""

import csv
import gzip
import json
import re
import time
from contextlib import closing
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.kit.campaign import AT_US, Far, Site, ledger_of, with_sender
from tests.kit.cli import CommandLine

from capline import Limiter, ManualClock, Policy
from capline.campaign import Stop, run
from capline.policy.file import load

pa: Any = import_module("pyarrow")
pq: Any = import_module("pyarrow.parquet")
ROOT = Path(__file__).parents[3]
CDNOW = ROOT / "examples/data/cdnow_transactions.csv.gz"
ACCESS = ROOT.parent / "shared/data/access.log.gz"

ROWS = [("ann", 0, "vip"), ("ann", 5, "vip"), ("ann", 9, "vip"), ("bob", 9, ""), ("bob", 69, ""), ("cy", 3, "new")]
EVENTS = "user,ts,segment\n" + "".join(f"{who},{at},{segment}\n" for who, at, segment in ROWS)


@pytest.fixture
def events(tmp_path: Path) -> str:
    (tmp_path / "events.csv").write_text(EVENTS)
    return "events.csv"


def real(path: Path) -> str:
    if not path.exists():
        pytest.skip("the access log is not part of the project")
    return str(path)


def test_what_limits_cost_a_real_access_log(capline: CommandLine) -> None:
    found = capline.json("suggest", real(ACCESS), "--window", "minute", "--window", "hour")
    minute = found["windows"]["minute"]
    price = {"limit": "57/minute", "refused_events": 98, "refused_subjects": 2}
    assert (found["events"], found["subjects"], minute["suggested"]) == (10_000, 1_753, price)
    assert minute["quotas"][19] == [20, 931, 50]
    assert [row[0] for row in minute["quotas"]] == list(range(1, 109))
    assert [row[1] == 0 for row in minute["quotas"]] == [False] * 107 + [True]
    assert found["frontier"] == [[{"minute": 57, "hour": 59}, 100, 2], [{"minute": 58, "hour": 58}, 99, 2]]
    assert found["together"] == {"limits": ["57/minute", "59/hour"], "refused_events": 100, "refused_subjects": 2}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (CDNOW, ("--window", "week", "--window", "30 days")),
        (ACCESS, ("--window", "minute", "--window", "day")),
        (ACCESS, ("--window", "15min", "--window", "6h", "--window", "day", "--of", "subjects")),
        (ACCESS, ("--subject-column", "agent", "--window", "90s", "--refuse-at-most", "300")),
    ],
)
def test_each_price_is_what_a_replay_counts(capline: CommandLine, data: Path, words: tuple[str, ...]) -> None:
    column = words[:2] if words[0] == "--subject-column" else ()
    found = capline.json("suggest", real(data), *words)
    sets = {",".join(found["together"]["limits"]): found["together"]}
    for name, window in found["windows"].items():
        sets[window["suggested"]["limit"]] = window["suggested"]
        for quota, refused, subjects in window["quotas"][:: max(1, len(window["quotas"]) // 3)]:
            sets[f"{quota}/{name}"] = {"refused_events": refused, "refused_subjects": subjects}
    for quotas, refused, subjects in found.get("frontier", [])[::9]:
        limits = ",".join(f"{quota}/{name}" for name, quota in quotas.items())
        sets[limits] = {"refused_events": refused, "refused_subjects": subjects}
    compared = [word for place, limits in enumerate(sets) for word in ("--compare", f"n{place}={limits}")]
    counted = capline.json("replay", str(data), *column, *compared)["policies"]
    for place, (limits, price) in enumerate(sets.items()):
        assert counted[f"n{place}"]["refused"] == price["refused_events"], limits
        assert counted[f"n{place}"]["subjects_refused"] == price["refused_subjects"], limits


def test_the_smallest_quota_keeps_the_bound_and_no_pair_of_a_frontier_can_be_smaller(capline: CommandLine) -> None:
    found = capline.json("suggest", str(CDNOW), "--window", "week", "--window", "30 days", "--refuse-at-most", "0.5%")
    most = found["events"] * 5 // 1000
    for window in found["windows"].values():
        quotas = window["quotas"]
        quota = int(window["suggested"]["limit"].partition("/")[0])
        assert quotas[quota - 1][1] <= most < quotas[quota - 2][1]
    pairs = [tuple(quotas.values()) for quotas, _, _ in found["frontier"]]
    assert len(pairs) > 1
    assert pairs == sorted(pairs)
    assert pairs[::-1] == sorted(pairs, key=lambda pair: pair[1])
    smaller = {pair for week, month in pairs for pair in ((week - 1, month), (week, month - 1)) if min(pair)}
    words = [word for week, month in smaller for word in ("--compare", f"{week}x{month}={week}/week,{month}/30 days")]
    counted = capline.json("replay", str(CDNOW), *words)["policies"]
    assert min(counts["refused"] for counts in counted.values()) > most


def test_by_segment_each_has_limits_of_its_own_in_one_policy_file(
    tmp_path: Path, capline: CommandLine, events: str
) -> None:
    words = ("suggest", events, "--by-segment", "--window", "10s", "--refuse-at-most", "0", "--output", "p.yaml")
    found = capline.json(*words)
    limits = {name: of["windows"]["10s"]["suggested"]["limit"] for name, of in found["segments"].items()}
    assert limits == {"vip": "3/10s", "-": "1/10s", "new": "1/10s"}
    assert found["segments"]["vip"]["windows"]["10s"]["quotas"] == [[1, 2, 1], [2, 1, 1], [3, 0, 0]]
    (policy,) = load(tmp_path / "p.yaml").policies
    assert list(map(str, policy.limits)) == ["1/10s"]
    assert {name: list(map(str, of)) for name, of in policy.by_segment.items()} == {"vip": ["3/10s"], "new": ["1/10s"]}
    assert "# 0 of 3 events (0.0%) refused, 0 of 1 subjects (0.0%) feel it" in (tmp_path / "p.yaml").read_text()
    assert capline(*words).returncode == 0  # its own file it replaces
    assert "vip: 3/10s, 0 of 3 events" in capline(*words).stdout


def test_the_order_of_the_rows_makes_no_difference(tmp_path: Path, capline: CommandLine) -> None:
    """Nor among twelve subjects with as many refusals, of which ten are shown; nor to the order of segments."""
    policy = "policies: {p: {limits: [1/minute, 9/day], by_segment: {b: [2/minute], a: [1/minute, 1/day]}}}"
    (tmp_path / "policies.yaml").write_text(policy)
    rows = [
        f"{who},{at},{segment}\n" for at, segment in enumerate(("b", "", "a", "b")) for who in (*"lkjihg", *range(6))
    ]
    answers: set[tuple[str, str]] = set()
    for turn in (1, 5, 7, 47):
        some = [rows[place * turn % len(rows)] for place in range(len(rows))]
        (tmp_path / "e.csv").write_text("".join(["user,ts,segment\n", *some]))
        replay = ("replay", "e.csv", "--policy", "p", "--segment-column", "segment")
        suggest = ("suggest", "e.csv", "--by-segment", "--window", "minute", "--refuse-at-most", "24")
        answers.add((capline(*replay, "--json").stdout, capline(*suggest, "--json").stdout))
    ((counted, found),) = ([json.loads(text) for text in answer] for answer in answers)
    assert [line["segment"] for line in counted["segments"]["p"]] == [None, "a", "b"]
    assert list(found["segments"]) == ["-", "a", "b"]
    assert [who for who, *_ in found["windows"]["minute"]["top_refused"]] == [*range(6), *"ghij"]


def test_the_report_says_which_limit_to_take_and_whom_it_hits(tmp_path: Path, capline: CommandLine) -> None:
    (tmp_path / "<b>.csv").write_text(EVENTS.replace("ann", "<i>ann"))
    words = ("--window", "10s", "--window", "minute", "--refuse-at-most", "1", "--by-segment")
    assert capline("suggest", "<b>.csv", *words, "--report", "out.html").returncode == 0
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    assert not re.search(r"https?://|src=|href=|@import|url\(|<script|<b>\.|<i>ann", text)
    for title in (
        "Take 2/10s and 2/minute: 1 of 6 events (16.7%) refused, 1 of 3 subjects (33.3%) feel it",
        "2/10s refuses 16.7% of the events; 1/10s refuses 33.3%, and 1 subjects feel it in place of 1",
        "2/10s hits &lt;i&gt;ann most: 1 of its 3 events",
        "2/10s and 2/minute keep it together; 1 pairs do of which neither can be smaller",
    ):
        assert f">{title}</h" in text, title
    assert text.count("<details>") == text.count("<h2>") == 6
    assert capline("suggest", "<b>.csv", *words, "--report", "out.html", "--hash-subjects").returncode == 0
    assert not re.search("ann|bob", (tmp_path / "out.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (["a,5", "b,1"], "not in order of time (1 times an event is earlier than the one before); sorted"),
        (["a,5", "a,5", "b,6"], "1 events are at the same instant as another of their subject; each is counted"),
        (["a,5", "b,6", "a,5", "b,6"], "every event is there 2 times; is the file twice in itself? each is counted"),
        (["a,5", "b,7258118400"], "1 events are in the future, the last at 2200-01-01 00:00:00 UTC; counted"),
        (["a,2024-05-06T10:00:00"], "times without a zone, like 2024-05-06T10:00:00, are read as UTC"),
    ],
)
def test_what_is_odd_about_a_file_is_told(tmp_path: Path, capline: CommandLine, rows: list[str], told: str) -> None:
    (tmp_path / "e.csv").write_text("\n".join(["user,ts", *rows, ""]))
    done = capline("suggest", "e.csv", "--window", "minute")
    assert (done.returncode, told in done.stderr) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("data", "words", "said"),
    [
        (EVENTS, ("--window", "month"), "--window: a month has no fixed length; write '30 days'"),
        (EVENTS, ("--window", "soon"), "--window: unknown unit 'soon'"),
        (EVENTS, ("--refuse-at-most", "2"), ""),
        (EVENTS, ("--refuse-at-most", "101%"), "--refuse-at-most is a share like 1%, or a whole number of events"),
        (EVENTS, ("--refuse-at-most", "nan%"), "--refuse-at-most is a share like 1%"),
        (EVENTS, ("--refuse-at-most", "0.01"), "--refuse-at-most is a share like 1%"),
        (EVENTS, ("--segment-column", "tier"), "no column 'tier'; there are: 'user, ts, segment'"),
        (EVENTS, ("--output", "mine.yaml"), "mine.yaml: it is there already, and not by capline suggest"),
        (EVENTS, ("--output", "gone/p.yaml"), "gone/p.yaml: there is no folder gone; make it"),
        (EVENTS, ("--report", "gone/out.html"), "gone/out.html: there is no folder gone; make it"),
        (EVENTS[:-12], (), "row 5: 2 values where the header has 3"),
        (gzip.compress(EVENTS.encode(), mtime=0)[:-9], (), "not a whole gzip file"),
        ("user,ts\n", (), "no rows below the header"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capline: CommandLine, data: str | bytes, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "events.csv").write_bytes(data if isinstance(data, bytes) else data.encode())
    (tmp_path / "mine.yaml").write_text("policies: {p: {limits: [1/day]}}")
    done = capline("suggest", "events.csv", *words)
    assert (done.returncode, said in done.stderr) == (2 if said else 0, True), done.stderr
    if said:
        assert done.stderr.count("\n") - done.stderr.count("read as") == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["events.csv", "mine.yaml"]


def test_a_time_in_parquet_that_is_not_a_number_is_one_line(tmp_path: Path, capline: CommandLine) -> None:
    for time_s in ("nan", "inf", "1e300"):
        pq.write_table(pa.table({"user": ["a", "b"], "ts": [1.5, float(time_s)]}), tmp_path / "e.parquet")
        assert "e.parquet, row 2: time" in capline.refused("suggest", "e.parquet")


def test_an_export_of_logs_is_a_file_of_events(tmp_path: Path, capline: CommandLine, events: str) -> None:
    """What the table says, of a store that has these events; other hits of the export are told."""
    policy = Policy("promo", ["9/day"], channels={"push": ["5/day"]})
    clock = ManualClock(start_us := time.time_ns() // 1000 - 3_600_000_000)
    (tmp_path / "policies.yaml").write_text(
        "policies: {promo: {limits: [9/day], channels: {push: [5/day]}}, other: {limits: [1/day]}}"
    )
    store = f"lmdb://{tmp_path}/store"
    with Limiter(store, [policy, Policy("other", ["1/day"])], clock=clock) as limiter:
        for who, at_s, _ in sorted(ROWS, key=lambda row: row[1]):
            clock.advance_us(start_us + at_s * 1_000_000 - clock.now_us())
            assert limiter.decide("promo", who, channel="push" if who == "ann" else None)
        assert limiter.decide("promo", 7, 2, id="x")
        assert limiter.refund("promo", 8, limiter.decide("promo", 8).hit)
        assert limiter.decide("other", "ann")
    words = ("--store", store, "--policies", "policies.yaml")
    assert capline("export", "all.jsonl", *words).returncode == 0
    assert capline("export", "promo.jsonl", *words, "--policy", "promo").returncode == 0
    found = capline.json("suggest", "promo.jsonl", "--window", "10s")
    table = capline.json("suggest", events, "--window", "10s")
    assert (found["events"], found["subjects"]) == (table["events"] + 1, table["subjects"] + 1)
    assert found["windows"]["10s"]["quotas"] == table["windows"]["10s"]["quotas"]
    said = capline("replay", "promo.jsonl", "--limit", "2/10s").stderr
    assert "promo.jsonl: read as an export of logs; each hit is an event" in said
    assert "promo.jsonl: promo/push left out: hits of channels are in the policy's log" in said
    assert "promo.jsonl: 1 hits of several units are one event each" in said
    assert "an export of logs promo, other; export one: --policy NAME" in capline.refused("suggest", "all.jsonl")
    assert "it has no columns" in capline.refused("suggest", "promo.jsonl", "--subject-column", "subject")
    cut = (tmp_path / "promo.jsonl").read_text()[:-20]
    (tmp_path / "cut.jsonl").write_text(cut)
    assert "is no line of an export" in capline.refused("suggest", "cut.jsonl")
    wrong = '{"log": "promo", "subject": 1, "hits": [[-1, 1]]}\n'
    (tmp_path / "wrong.jsonl").write_text(cut.partition("\n")[0] + "\n" + wrong)
    assert "line 2: a hit at -1, which is no instant" in capline.refused("suggest", "wrong.jsonl")


def test_outcomes_of_campaigns_are_events(tmp_path: Path, capline: CommandLine) -> None:
    """They suggest what a file of the same events does: messages that were asked for, whatever became of them."""
    site = Site(tmp_path, {"holdout": "20%", "exclude": "{csv: gone.csv}"})
    (tmp_path / "gone.csv").write_text("id\n" + "".join(f"{who}\n" for who in range(9)))
    site.seed()
    for hour in range(3):
        at = datetime.fromtimestamp(AT_US / 1e6 + hour * 3600, UTC).isoformat()
        job = with_sender(site.job(campaign=f"sale-{hour}", as_of=at), Far())
        folder = tmp_path / f"run-{hour}"
        with closing(Stop()) as stop, job.open_limiter() as limiter, ledger_of(job, folder) as ledger:
            run(job, limiter, ledger, stop, pause=lambda _s: None, jitter=lambda: 0.0)
        for suffix in ("parquet", "csv"):
            assert capline("campaign", "outcomes", folder.name, "--to", f"{hour}.{suffix}").returncode == 0
    rows = [row for hour in range(3) for row in csv.DictReader((tmp_path / f"{hour}.csv").read_text().splitlines())]
    assert {"sent", "refused", "held out", "excluded"} == {row["outcome"] for row in rows}
    asked = [row for row in rows if row["outcome"] in ("sent", "refused")]
    lines = "".join(f"{row['id']},{row['decided']},{row['segment']}\n" for row in asked)
    (tmp_path / "events.csv").write_text("user,at,segment\n" + lines)
    words = ("--window", "3h", "--window", "2h", "--by-segment")
    expected = capline.json("suggest", "events.csv", *words)
    assert expected["windows"]["3h"]["quotas"][0][1] > 100
    for suffix in ("parquet", "csv"):
        files = [f"{hour}.{suffix}" for hour in range(3)]
        assert capline.json("suggest", *files, *words) == expected
    assert capline.json("suggest", "run-0", "1.csv", "run-2", *words) == expected
    done = capline("suggest", *files, "--output", "p.yaml")
    left_out = f"{len(rows) - len(asked):,} that are excluded or held out are not"
    assert f"0.csv, 1.csv, 2.csv: outcomes of campaigns: {len(asked):,} messages are events, {left_out}" in done.stderr
    assert (tmp_path / "p.yaml").read_text().startswith("# Suggested by capline suggest from 3 campaigns.\n")
    assert "2 files: name one, or campaigns alone" in capline.refused("suggest", "0.csv", "events.csv")
    assert "name each campaign once" in capline.refused("suggest", "0.csv", "0.parquet")
    (tmp_path / "none.csv").write_text((tmp_path / "0.csv").read_text().partition("\n")[0] + "\n")
    assert "no outcomes; name campaigns" in capline.refused("suggest", "none.csv")


def test_campaigns_are_events_by_file_directory_and_name(tmp_path: Path, capline: CommandLine) -> None:
    (tmp_path / "users.csv").write_text("id\n" + "".join(f"{who}\n" for who in range(50)))
    (tmp_path / "policies.yaml").write_text("policies: {promo: {limits: [1/day]}}")
    settings = "policies: policies.yaml\npolicy: promo\nstore: lmdb://store\naudience: {csv: users.csv}\n"
    queue = ("--queue", f"sqlite:///{tmp_path}/queue")
    for name in ("mon", "tue"):
        (tmp_path / f"{name}.yaml").write_text(f"campaign: {name}\n{settings}sender: {{file: out-{name}}}\n")
    assert capline("campaign", "run", "mon.yaml").returncode == 0
    assert capline("campaign", "enqueue", "tue.yaml", *queue).returncode == 0
    assert capline("worker", *queue, "--until-idle", "--quiet").returncode == 0
    assert capline("campaign", "outcomes", "mon.yaml", "--to", "mon.csv").returncode == 0
    assert capline("campaign", "outcomes", "tue", *queue, "--to", "tue.csv").returncode == 0
    rows = [row for day in ("mon", "tue") for row in csv.DictReader((tmp_path / f"{day}.csv").read_text().splitlines())]
    assert [row["outcome"] for row in rows] == ["sent"] * 50 + ["refused"] * 50
    lines = "".join(f"{row['id']},{row['decided']}\n" for row in rows)
    (tmp_path / "events.csv").write_text("user,at\n" + lines)
    expected = capline.json("suggest", "events.csv")
    assert expected["windows"]["day"]["quotas"] == [[1, 50, 50], [2, 0, 0]]
    for campaigns, words in ((("mon.run", "tue"), queue), (("mon.yaml", "tue.csv"), ()), (("mon.csv", "tue"), queue)):
        done = capline("suggest", *campaigns, *words, "--json")
        assert json.loads(done.stdout) == expected
        assert f"{', '.join(campaigns)}: outcomes of campaigns: 100 messages are events" in done.stderr
    assert "no run of a campaign 'wed'" in capline.refused("suggest", "tue", "wed", *queue)
    assert "tue: no such file" in capline.refused("suggest", "tue")


def test_in_json_and_in_a_table_the_same_is_said(capline: CommandLine, events: str) -> None:
    words = ("suggest", events, "--window", "10s", "--refuse-at-most", "40%", "--of", "subjects")
    found: dict[str, Any] = json.loads(capline(*words, "--json").stdout)
    assert set(found) == {"events", "subjects", "windows", "together", "first_us", "last_us", "broken_lines"}
    assert found["windows"]["10s"] == {
        "quotas": [[1, 2, 1], [2, 1, 1], [3, 0, 0]],
        "most_of_one": [2, 1, 0],
        "suggested": {"limit": "1/10s", "refused_events": 2, "refused_subjects": 1},
        "top_refused": [["ann", 2, 3]],
    }
    shown = capline(*words).stdout
    assert "1/10s: 2 of 6 events (33.3%) refused, 1 of 3 subjects (33.3%) feel it" in shown
    assert "most refused: ann (2 of 3)" in shown
