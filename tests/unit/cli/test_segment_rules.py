"""`capline segments build` by rules over events, and by changes: what it says, and what it refuses in one line."""

import gzip
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kit.cli import CommandLine

from capline.segment import load_snapshot

pa: Any = import_module("pyarrow")
pq: Any = import_module("pyarrow.parquet")
ROOT = Path(__file__).parents[3]

RULES = """\
columns: {id: user, time: at, value: amount}
segments:
  new:     {first: signup within 30 days, never: ride}
  active:  {at_least: 1 ride within 30 days}
  lapsed:  {last: ride more than 90 days ago}
  big:     {spent: at least 100 on buy within 90 days}
"""
EVENTS = """\
user,at,event,amount
2,2026-11-05 10:00:00+01:00,ride,3.5
1,2026-11-01,signup,
2,2026-11-01T10:00:00Z,signup,
3,2026-01-01,ride,1
4,1795000000,buy,60
4,1795000000,buy,40
5,2027-01-01,ride,1
6,2026-11-01,buy,99.9999
"""
BUILD = ("segments", "build", "--rules", "rules.yaml", "--events", "events.csv", "--out", "s")
AT = ("--at", "2026-11-21")


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "events.csv").write_text(EVENTS)


def members(folder: Path) -> dict[str, set[int]]:
    return {name: set(ids) for name, ids in load_snapshot(folder).sets.items()}


def test_the_first_rule_that_matches_decides(tmp_path: Path, capline: CommandLine) -> None:
    done = capline(*BUILD, *AT)
    assert done.returncode == 0, done.stderr
    assert members(tmp_path / "s") == {"new": {1}, "active": {2}, "lapsed": {3}, "big": {4}}
    assert "nobody is in two of them" in done.stdout
    assert done.stderr.splitlines() == [
        "events.csv: times without a zone are read as UTC",
        "1 of 8 events are later than --at; not used",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.csv", "rules.yaml", "s"]


def test_who_moved_since_the_version_that_is_replaced(tmp_path: Path, capline: CommandLine) -> None:
    assert capline.json(*BUILD, *AT)["rules"]["in_none"] == 1
    found = capline.json(*BUILD, "--at", "2027-01-05", "--replace")
    moved = [{"from": "new", "to": None, "ids": 1}, {"from": "active", "to": None, "ids": 1}]
    assert found["moved"] == [*moved, {"from": None, "to": "active", "ids": 1}]
    facts = {"events": 8, "later": 0, "duplicates": 0, "users": 6, "in_none": 3}
    assert {key: found["rules"][key] for key in facts} == facts
    assert found["rules"]["meet"] == {"new": 0, "active": 1, "lapsed": 1, "big": 1}
    capline(*BUILD[:-1], "t", *AT)
    since = capline(*BUILD[:-1], "u", "--at", "2027-01-05", "--since", "t", "--version", "b")
    assert re.search(r"moved since version \S+: 3\n.*\n new +- +1 \n active +- +1 \n - +active +1 \n", since.stdout)
    assert "segment 'new': nobody meets its rule" in since.stderr
    assert capline.json(*BUILD, *AT, "--replace")["moved"][0] == {"from": "active", "to": None, "ids": 1}


def test_the_same_rules_in_spark_sql_give_the_same_rows(tmp_path: Path, capline: CommandLine) -> None:
    """DuckDB runs the query, which is in the part of SQL that both speak; events lie on the bounds of the spans too."""
    dice, day_us, at_us = np.random.default_rng(31), 86_400_000_000, 1_795_219_200_000_000
    size = 3000
    ago = dice.choice([-5, 0, 10, 30, 31, 60, 90, 91, 300], size) * day_us + dice.choice([0, 0, 1, -1], size)
    events = pa.table(
        {
            "id": dice.integers(0, 1200, size),
            "time": pa.array(at_us - ago, pa.timestamp("us")),
            "event": dice.choice(["signup", "ride", "order", "open"], size),
            "value": np.round(dice.random(size) * 120, 4),
        }
    )
    pq.write_table(events, tmp_path / "events.parquet")
    rules = re.search(
        r"```yaml\ncolumns: .*?\n(.*?)```", (ROOT / "docs/howto/segments.md").read_text("utf-8"), re.DOTALL
    )
    assert rules is not None
    (tmp_path / "rules.yaml").write_text(rules[1])
    assert capline(*BUILD[:5], "events.parquet", *BUILD[-2:], *AT).returncode == 0
    query = (ROOT / "examples/spark_segments/rules.sql").read_text("utf-8")
    found: dict[str, set[int]] = {}
    with import_module("duckdb").connect() as engine:
        engine.register("events", events)
        for who, segment in engine.sql(query).fetchall():
            found.setdefault(segment, set()).add(who)
    assert min(map(len, found.values())) > 10
    assert found == members(tmp_path / "s")


@pytest.mark.parametrize("kind", [("--kind", "text", "--ids", "ids"), ("--kind", "uint64"), ()])
def test_changes_move_a_few(tmp_path: Path, capline: CommandLine, kind: tuple[str, ...]) -> None:
    assert capline(*BUILD, *AT, *kind).returncode == 0
    (tmp_path / "changes.csv").write_text("id,segment\n1,active\n3,-\n9,big\n9,big\n")
    change = ("segments", "build", "--from", "s", "--changes", "changes.csv", "--out", "t", *kind[2:])
    found = capline.json(*change)
    assert found["moved"] == [
        {"from": "new", "to": "active", "ids": 1},
        {"from": "lapsed", "to": None, "ids": 1},
        {"from": None, "to": "big", "ids": 1},
    ]
    said = capline("segments", "contains", "t", "1", "2", "3", "4", "9").stdout
    assert [line.split()[1] for line in said.splitlines()] == ["active", "active", "-", "big", "big"]
    (tmp_path / "changes.csv").write_text("id,segment\n1,gold\n")
    assert "segment 'gold' is not one of new, active, lapsed, big" in capline.refused(*change, "--replace")
    (tmp_path / "changes.csv").write_text("id,segment\n1,new\n1,-\n")
    assert "say once where an id goes" in capline.refused(*change, "--replace")


def test_a_rule_that_nobody_meets_leaves_segments_of_text_ids_that_can_be_read(
    tmp_path: Path, capline: CommandLine
) -> None:
    """Then no text has got a number: the dictionary is empty."""
    text = ("--kind", "text", "--ids", "ids")
    (tmp_path / "rules.yaml").write_text("columns: {id: user, time: at}\nsegments: {odd: {at_least: 9 ride}}\n")
    assert "nobody meets its rule" in capline(*BUILD, *AT, *text).stderr
    assert capline("segments", "contains", "s", "2").stdout.split() == ["2", "-"]
    (tmp_path / "changes.csv").write_text("id,segment\n2,odd\n")
    change = ("--from", "s", "--changes", "changes.csv", "--out", "t", *text[2:])
    assert capline.json("segments", "build", *change)["moved"] == [{"from": None, "to": "odd", "ids": 1}]


def test_duplicated_events_are_counted_or_dropped_and_told(tmp_path: Path, capline: CommandLine) -> None:
    (tmp_path / "again.csv").write_text(EVENTS.replace("4,1795000000,buy,40\n", ""))
    again = (*BUILD, "--events", "again.csv", *AT)
    assert capline.json(*again)["rules"]["meet"]["big"] == 2  # 99.9999 twice
    found = capline.json(*again, "--drop-duplicates", "--replace")["rules"]
    assert (found["meet"]["big"], found["duplicates"]) == (1, 6)
    assert "6 duplicated events are not used" in found["told"]


def test_users_without_events_can_be_in_a_segment_and_a_rule_for_all_is_told(
    tmp_path: Path, capline: CommandLine
) -> None:
    (tmp_path / "rules.yaml").write_text(
        "segments:\n  calm: {never: any}\n  all: {at_least: 0 any}\n  late: {last: any within 1 day}\n"
    )
    (tmp_path / "users.csv").write_text("user\n1\n77\n")
    words = ("--id-column", "user", "--time-column", "at", "--users", "users.csv")
    done = capline(*BUILD, *AT, *words)
    assert members(tmp_path / "s")["calm"] == {77}
    assert "segment 'all': everybody meets its rule, so nobody is left for later ones" in done.stderr
    assert "segment 'late': nobody meets its rule" in done.stderr


def test_times_are_read_as_a_replay_reads_them(tmp_path: Path, capline: CommandLine) -> None:
    """In all forms, and in a column of several: as seconds, dates, and ISO 8601 with and without its marks."""
    (tmp_path / "rules.yaml").write_text("columns: {id: user, time: at}\nsegments: {late: {last: any within 2 days}}")
    times = (
        "20261119T000000.5Z",
        "2026-11-19 00:01",
        "1795046400.5",
        "2026-W47-4T01:00:00Z",
        "2026-11-19T00:00:01+0000",
    )
    early = ("20261118T235959Z", "2026-11-19", " 1795046400 ", "2026-11-19T00:30:00+01:00")
    text = "".join(f"{user},{at}\n" for user, at in enumerate((*times, *early)))
    (tmp_path / "events.csv").write_text(f"user,at\n{text}")
    assert capline(*BUILD, *AT).returncode == 0
    assert members(tmp_path / "s") == {"late": set(range(len(times)))}


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("", "rules.yaml: the file is empty; begin it with 'segments:'"),
        ("segments:", "rules.yaml:1: segments: expected a mapping, like"),
        ("segments: {}", "there is none; add one"),
        ("segments: {a: {}}", "a: no condition; add one"),
        ("segments: {a: {last: x}}", "last: 'x' cannot be read; write it like 'ride more than 90 days ago'"),
        ("segments: {a: {last: x within 1 month}}", "a month has no fixed length; write '30 days'"),
        ("segments: {a: {las: x within 1 day}}", "unknown key 'las'; did you mean last?"),
        (
            "segments: {a: {never: x}, b: {at_most: 0 x}}",
            "b: the same rule as that of 'a', which takes all; remove one",
        ),
        ("segments: {-: {never: x}}", "segment name '-' is not 1 to 64 letters"),
        ("columns: {id: user, time: user}\nsegments: {a: {never: any}}", "two of the columns are one: user, user"),
        ("segments: {a: {never: \x01}}", "U+0001 cannot stand in a YAML text"),
    ],
)
def test_rules_are_refused_in_a_line(tmp_path: Path, capline: CommandLine, rules: str, said: str) -> None:
    (tmp_path / "rules.yaml").write_text(rules)
    assert said in capline.refused(*BUILD)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ("user,at,event,amount\n", "no events"),
        ("user,at,event\n1,1,a\n", "no column 'amount'"),
        ("user,at,event,amount\nx,1,a,1\n", "row 1: user 'x' is not a number"),
        ("user,at,event,amount\n1,1,a,1\n2,soon,a,1\n", "row 2: at 'soon' is neither ISO 8601"),
        ("user,at,event,amount\n1,2026-02-28,a,1\n1,2026-02-30,a,1\n", "row 2: at '2026-02-30' is neither ISO 8601"),
        ("user,at,event,amount\n1,,a,1\n", "row 1: at '' is neither ISO 8601"),
        ("user,at,event,amount\n1,1795000000000,a,1\n", "numbers are seconds since 1970, not milliseconds"),
        ("user,at,event,amount\n1,1,a,ten\n", "row 1: amount 'ten' is not a number; write it like 12.50"),
        ("user,at,event,amount\n1,1,a,999999999999\n", "amount is not a number within 100,000,000,000"),
        ("user,at,event,amount\n1,1,a,1\n2,1\n", "row 2: 2 values where the header has 4"),
        ('user,at,event,amount\n1,1,"a"b,1\n', "row 1: not readable as CSV (',' expected after '\"')"),
        ('user,at,event,amount\n1,1,"a\nb",1\n', "row 1: event has a line break inside quotes"),
        (
            'user,at,event,amount\n1,1,"a,1\n2,1,a,1\n',
            "row 1: not readable as CSV (unexpected end of data)",
        ),
    ],
)
def test_bad_events_are_refused_in_a_line(tmp_path: Path, capline: CommandLine, events: str, said: str) -> None:
    (tmp_path / "events.csv").write_text(events)
    assert said in capline.refused(*BUILD)
    assert not (tmp_path / "s").exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_columns_of_other_types_and_files_that_end_in_the_middle(tmp_path: Path, capline: CommandLine) -> None:
    words = (*BUILD[:4], "--out", "s", "--events")
    whole = gzip.compress(EVENTS.encode())
    (tmp_path / "cut.csv.gz").write_bytes(whole[:-9])
    assert "damaged, cut short" in capline.refused(*words, "cut.csv.gz")
    columns: dict[str, Any] = {
        "user": pa.array([1, 2]),
        "at": [1, 2],
        "event": ["a", "b"],
        "amount": [1.5, float("nan")],
    }
    pq.write_table(pa.table(columns), tmp_path / "e.parquet")
    assert "row 2: amount is not a number within" in capline.refused(*words, "e.parquet")
    cut = (tmp_path / "e.parquet").read_bytes()[:-10]
    (tmp_path / "e.parquet").write_bytes(cut)
    assert "damaged, cut short" in capline.refused(*words, "e.parquet")
    for name, values, said in (
        ("at", [True, False], "column 'at' holds bool; store times, or seconds"),
        ("event", [1, 2], "column 'event' holds int64; events have names"),
        ("amount", [True, False], "column 'amount' holds bool; values are numbers"),
        ("user", ["1", "x"], "column 'user' holds string; ids are whole numbers"),
        ("at", [None, 2], "row 1: at is null; every event needs one"),
    ):
        good: dict[str, Any] = {**columns, "amount": [1.5, None], name: values}
        pq.write_table(pa.table(good), tmp_path / "e.parquet")
        assert said in capline.refused(*words, "e.parquet")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "one of these ways"),
        (("rows.csv", "--rules", "rules.yaml"), "one of these ways"),
        (("--rules", "rules.yaml"), "--rules and --events go together"),
        (("--from", "s"), "--from and --changes go together"),
        (("rows.csv", "--at", "2026-01-01"), "need --rules"),
        ((*BUILD[2:6], "--partial"), "are for rows"),
        ((*BUILD[2:6], "--at", "soon"), "time 'soon' is neither"),
    ],
)
def test_ways_do_not_mix(capline: CommandLine, words: tuple[str, ...], said: str) -> None:
    assert said in capline.refused("segments", "build", *words, "--out", "s")


def test_without_the_engine_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capline: CommandLine
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert capline.refused(*BUILD).endswith('rules over events need duckdb: pip install "capline[rules]"\n')


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    rows = "".join(f"{row % 50_000},{1_790_000_000 + row},ride,1\n" for row in range(1_000_000))
    (tmp_path / "events.csv").write_text("user,at,event,amount\n" + rows)
    command = [str(Path(sys.executable).parent / "capline"), *BUILD]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
        while running.poll() is None and len(list(tmp_path.iterdir())) == 2:
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        said = running.communicate(timeout=60)[1]
    assert running.returncode == 130, said
    assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.csv", "rules.yaml"]
