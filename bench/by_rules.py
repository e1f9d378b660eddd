"""`capline segments build --rules` and `capline response`: rows a second, from Parquet files to checked answers.

Events lie over 400 days, ten for each user; three rules make segments of them, and each count of the build is checked
with a sum over columns. A tenth of the users is one campaign's audience, half of it held out; its events are the
response, whose counts are checked in the same way. Times are of the processor, on all cores together.
"""

from __future__ import annotations

import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _harness import Report, arguments, check

from capline.campaign.response.measure import measure
from capline.campaign.response.messages import gathered, messages_of_files
from capline.campaign.response.replies import EventColumns, Replies
from capline.segment.build.by_rules import RuleBuild
from capline.segment.build.rules import read_rules

if TYPE_CHECKING:
    from numpy.typing import NDArray

DAY_US = 86_400_000_000
AT_US = 1_795_219_200_000_000
RULES = """\
segments:
  active: {at_least: 1 ride within 30 days}
  big:    {spent: at least 100 on order}
  lapsed: {last: ride more than 30 days ago}
"""
NAMES = np.array(["ride", "order", "open"])
RULES_TARGET, RESPONSE_TARGET = 1_000_000, 500_000


class Past:
    """Events as columns, and as a file."""

    def __init__(self, rows: int, folder: Path) -> None:
        dice = np.random.default_rng(1)
        self.users = rows // 10
        self.user: NDArray[np.int64] = dice.integers(0, self.users, rows)
        self.at_us: NDArray[np.int64] = AT_US - dice.integers(0, 400, rows) * DAY_US
        self.name: NDArray[np.int64] = dice.choice(3, rows, p=[0.7, 0.2, 0.1])
        self.value: NDArray[np.int64] = dice.integers(1, 100, rows)
        self.path = folder / "events.parquet"
        pa: Any = import_module("pyarrow")
        columns = {"id": self.user, "time": pa.array(self.at_us, pa.timestamp("us", "UTC")), "value": self.value}
        write(self.path, {**columns, "event": NAMES[self.name]})


def write(path: Path, columns: dict[str, Any]) -> None:
    """Write columns as a Parquet file."""
    import_module("pyarrow.parquet").write_table(import_module("pyarrow").table(columns), path)


def rules_s(past: Past, folder: Path) -> float:
    """The processor time of deciding segments by rules."""
    (folder / "rules.yaml").write_text(RULES, encoding="utf-8")
    build = RuleBuild(read_rules(folder / "rules.yaml"), past.path, AT_US)
    began = time.process_time()
    for _ in build.rows(folder):
        pass
    seconds = time.process_time() - began
    ride, order = past.name == 0, past.name == 1
    active = np.bincount(past.user, ride & (past.at_us > AT_US - 30 * DAY_US), past.users) > 0
    big = np.bincount(past.user, order * past.value, past.users) >= 100
    lapsed = (np.bincount(past.user, ride, past.users) > 0) & ~active
    expected = [int(active.sum()), int((big & ~active).sum()), int((lapsed & ~big).sum())]
    check(build.taken.tolist() == expected, f"segments of {build.taken.tolist()}, not {expected}")
    return seconds


def response_s(past: Past, folder: Path) -> float:
    """The processor time of a response, from both files on."""
    people = np.arange(past.users)
    held, at_us, none = people % 2 == 1, AT_US - 200 * DAY_US, np.full(past.users, None)
    pa: Any = import_module("pyarrow")
    outcomes = {
        "id": people,
        "segment": pa.array(none, pa.string()),
        "outcome": np.where(held, "held out", "sent"),
        "limit": pa.array(none, pa.string()),
        "until": pa.array(none, pa.timestamp("us", "UTC")),
        "given_back": np.zeros(past.users, np.bool_),
        "decided": pa.array(np.full(past.users, at_us), pa.timestamp("us", "UTC")),
        "hit_us": pa.array(np.full(past.users, at_us), mask=held),
        "key": [f"c/r/{who}" for who in people.tolist()],
    }
    write(folder / "outcomes.parquet", outcomes)
    began = time.process_time()
    messages = gathered(messages_of_files([folder / "outcomes.parquet"]))
    replies = Replies(messages, 7 * DAY_US)
    replies.read(past.path, EventColumns(), lambda _rows: None)
    found = measure(messages, replies, 7 * DAY_US)
    seconds = time.process_time() - began
    near = (past.at_us >= at_us) & (past.at_us < at_us + 7 * DAY_US)
    for group in found.groups:
        did = np.bincount(past.user, near & (NAMES[past.name] == group.kind), past.users) > 0
        expected = int((did & ~held).sum()), int((did & held).sum())
        counted = group.sent.responded, group.against.held_out.responded if group.against else -1
        check(counted == expected, f"{group.kind}: {counted} responded, not {expected}")
    check(found.never_sent == 0, f"{found.never_sent} events of nobody's")
    return seconds


def main() -> None:
    """Print rows per second."""
    options = arguments(__doc__, rows=1_000_000)
    report = Report("Segments by rules over events, and response")
    with tempfile.TemporaryDirectory() as name:
        past = Past(options.rows, Path(name))
        rules, response = rules_s(past, Path(name)), response_s(past, Path(name))
    report.add(f"{options.rows:,} events: segments by rules", options.rows / rules, "events/s", at_least=RULES_TARGET)
    report.add(f"{options.rows:,} events: response", options.rows / response, "events/s", at_least=RESPONSE_TARGET)
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
