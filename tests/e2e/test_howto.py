"""Commands of docs/howto, typed in the order of their page, in a folder that has what the page supposes."""

import gzip
import re
import shlex
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.kit.cli import CommandLine

from capline.segment import IdSet, Publisher, Snapshot, write_snapshot

pa: Any = import_module("pyarrow")
pq: Any = import_module("pyarrow.parquet")
HOWTO = Path(__file__).parents[2] / "docs" / "howto"
POLICIES = """
policies:
  promo: {limits: [3/day], by_segment: {new: [1/day], active: [5/day]}, channels: {push: [2/day]}}
  winback: {limits: [1/week]}
"""


def rows(file: str, **columns: list[str] | list[int]) -> None:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file)


def logs() -> None:
    line = '192.0.2.7 - - [26/Nov/2026:11:00:00 +0000] "GET / HTTP/1.1" 200 5\n'
    Path("access.log.gz").write_bytes(gzip.compress(line.encode() * 25))
    sends = "".join(f"7,2026-07-01T10:{minute:02}:00Z,active,Asia/Singapore\n" for minute in range(20))
    Path("sends.csv").write_text(f"user_id,sent_at,segment,zone\n{sends}")
    sent = '{"policy": "promo", "subject": 42, "at": "2026-01-31T16:00:00Z", "channel": "push", "id": "m1"}\n'
    Path("past-sends.jsonl").write_text(sent)


def segments() -> None:
    write_snapshot(Snapshot({"new": IdSet([1, 2]), "active": IdSet([7])}, "sunday"), "segments/sunday")
    with Publisher("published") as publisher:
        publisher.publish("segments/sunday")
    rows("export/part-6.parquet", id=[1, 2, 42], segment=["new", "churned", "active"])
    rows("export/part-7.parquet", id=[7, 1007], segment=["new", "active"])
    rows("users.parquet", id=[1, 42], segment=["new", "active"])
    rows("audience.parquet", id=[1, 42, 43])
    day = ["2026-11-20T00:00:00Z", "2026-11-01T00:00:00Z", "2026-03-01T00:00:00Z"]
    kinds = {"kind": ["signup", "ride", "ride"], "amount": [0, 5, 5]}
    rows("events/november.parquet", user=[1, 2, 3], at=day, **kinds)
    Path("users.csv").write_text("id,segment\nann,new\nbob,active\n")
    Path("moved.csv").write_text("id,segment\n1,active\n2,-\n")
    (rules,) = re.findall(r"```yaml\n(columns: .*?)```", (HOWTO / "segments.md").read_text("utf-8"), re.DOTALL)
    Path("rules.yaml").write_text(rules)


ADDRESSES = {
    "s3://bucket/segments": "published",
    "/var/cache/capline": "cache",
    "/var/lib/capline": "store",
    "redis://127.0.0.1:6379/0": "lmdb://other",
    "parts/*": "parts/6 parts/7",
}


@pytest.mark.parametrize(
    ("page", "prepare", "before", "count"),
    [
        ("replay", logs, (), 3),
        ("changing", logs, (), 3),
        ("logs", logs, ("decide promo 42 --store lmdb://store",), 3),
        ("publishing", segments, (), 4),
        ("segments", segments, ("segments build export/part-6.parquet --partial --out parts/6",), 11),
    ],
)
def test_the_commands_of_a_page_run_in_its_order(
    page: str, prepare: Callable[[], None], before: tuple[str, ...], count: int, capline: CommandLine
) -> None:
    Path("policies.yaml").write_text(POLICIES)
    prepare()
    text = (HOWTO / f"{page}.md").read_text("utf-8")
    typed = re.findall(r"^(?: {4})?capline (.+)", text, re.MULTILINE)
    for row in re.findall(r"^\|.*", text, re.MULTILINE):
        typed += re.findall(r"`capline ([^`]+ [^`]+)`", row)
    assert len(typed) == count, typed
    for shown, real in ADDRESSES.items():
        typed = [command.replace(shown, real) for command in typed]
    for command in (*before, *typed):
        done = capline(*shlex.split(command, comments=True))
        assert done.returncode == 0, (command, done.stderr)
