"""`capline replay`: events per second from a CSV file to counts, beside the ten lines that one would write instead.

The same events are read as an access log too. More are read by `capline suggest`, which counts every quota of three
windows, and the three together; and the policy alone is counted by its columns, once they are read. The ten lines keep
a list of stamps for each subject and drop what is old; their counts are the check of the answers. Times are of the
processor, so that the ratio stands on a busy machine.
"""

from __future__ import annotations

import csv
import random
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path

import numpy as np
from _harness import Report, arguments, check

from capline import Limiter, ManualClock, Policy
from capline.replay.blocks import EventFile
from capline.replay.count import Trial, count_events
from capline.replay.suggest.events import Past, read
from capline.replay.suggest.histories import Histories, window_of
from capline.replay.suggest.refusals import refusals
from capline.replay.suggest.suggestion import Bound, suggest

POLICY = Policy("promo", ["1/day", "2/week"])
WINDOWS_US = {"1/day": (1, 86_400_000_000), "2/week": (2, 604_800_000_000)}
TARGET, LINES_TARGET, SUGGEST_TARGET, COLUMNS_TARGET = 500_000, 250_000, 333_000, 5_000_000


def write_events(path: Path, rows: int) -> None:
    """Some twenty thousand people over half a year or so, a stamp for each event."""
    random_, at = random.Random(1), 1_700_000_000  # noqa: S311 - load, not a secret
    with path.open("w") as file:
        file.write("subject,time\n")
        for _ in range(rows):
            at += random_.randrange(1, 40_000_000 // rows)  # whole seconds, as an access log has, and none twice
            file.write(f"u{random_.randrange(rows // 50)},{datetime.fromtimestamp(at, UTC).isoformat()}\n")


def write_access_log(events: Path, path: Path) -> None:
    """The same events, as a server writes them."""
    with events.open() as rows, path.open("w") as file:
        for row in csv.DictReader(rows):
            at = datetime.fromisoformat(row["time"])
            file.write(
                f'{row["subject"]} - - [{at:%d/%b/%Y:%H:%M:%S} +0000] "GET / HTTP/1.1" 200 512 "-" "Mozilla/5.0"\n'
            )


def ten_lines(path: Path) -> Counter[str]:
    """Count the refusals by the limit that stays full longest."""
    refused: Counter[str] = Counter()
    sent: dict[str, list[int]] = {}
    for row in csv.DictReader(path.open()):
        at_us = round(datetime.fromisoformat(row["time"]).timestamp() * 1_000_000)
        log = sent[row["subject"]] = [one for one in sent.get(row["subject"], []) if one > at_us - 604_800_000_000]
        full = [(log[-quota] + us, name) for name, (quota, us) in WINDOWS_US.items() if len(log) >= quota]
        frees_us, name = max(full, default=(0, ""))
        if frees_us > at_us:
            refused[name] += 1
        else:
            log.append(at_us)
    return refused


def replayed(path: Path, subject_column: str = "subject", policy: Policy = POLICY) -> Counter[str]:
    """The same by capline."""
    clock, file = ManualClock(), EventFile(path, subject_column, "time")
    with Limiter("memory://", [policy], clock=clock) as limiter, file.in_order() as events:
        (counted,) = count_events([Trial(limiter, clock, "promo")], file, events)
    return Counter({str(limit): count for (_, limit), count in counted.refused.items()})


def fastest_s(path: Path, subject_column: str, expected: Counter[str]) -> float:
    """The least processor time of three replays, whose counts are these."""
    seconds: list[float] = []
    for _ in range(3):
        began = time.process_time()
        found = replayed(path, subject_column)
        seconds.append(time.process_time() - began)
        check(found == expected, f"{path.name}: {found} is not {expected}")
    return min(seconds)


def by_columns(past: Past) -> tuple[int, float]:
    """How many the policy refuses, and the processor time; the first call touches memory that has to be found."""
    began = time.process_time()
    histories = Histories(past.subjects, past.at_us)
    windows = [window_of(histories, width_us) for _, width_us in WINDOWS_US.values()]
    quotas = np.array([[quota] for quota, _ in WINDOWS_US.values()], np.int32)
    return int(refusals(histories, windows, quotas).events[0]), time.process_time() - began


def suggested_s(path: Path) -> tuple[float, float]:
    """The processor time of the curves of three windows, from the file on; what they suggest is replayed as a check.

    And that of the policy's refusals by columns, from the columns on.
    """
    began = time.process_time()
    past = read(EventFile(path, "subject", "time"), lambda _bytes: None)
    found = suggest(past.histories, [3_600_000_000, 86_400_000_000, 604_800_000_000], Bound.parse("1%", "events"), int)
    seconds = time.process_time() - began
    for price in (found.together, *(choice.price for choice in found.choices)):
        refused = replayed(path, policy=Policy("promo", list(price.limits))).total()
        check(refused == price.events, f"{price.limits}: {price.events} refused, a replay says {refused}")
    counted, columns_s = min((by_columns(past) for _ in range(3)), key=itemgetter(1))
    refused = replayed(path).total()
    check(counted == refused, f"{counted} refused by columns, a replay says {refused}")
    return seconds, columns_s


def main() -> None:
    """Print events per second, and the ratio."""
    options = arguments(__doc__, rows=1_000_000, suggest=10_000_000)
    report = Report("capline replay: a CSV file of events, counted")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.csv"
        for rows in (options.rows // 10, options.rows):
            write_events(path, rows)
            began = time.process_time()
            expected = ten_lines(path)
            loop = time.process_time() - began
            fastest = fastest_s(path, "subject", expected)
            name = f"{rows:,} events"
            report.add(f"{name}: replay", rows / fastest, "events/s", at_least=TARGET)
            report.add(f"{name}: ten lines", rows / loop, "events/s")
            report.add(f"{name}: times as fast", loop / fastest, "x", at_least=1)
            log = Path(folder) / "access.log"
            write_access_log(path, log)
            lines_s = fastest_s(log, "address", expected)
            report.add(f"{rows:,} lines of an access log: replay", rows / lines_s, "lines/s", at_least=LINES_TARGET)
        rows = options.suggest
        write_events(path, rows)
        seconds, columns_s = suggested_s(path)
        name = f"{rows:,} events: suggest over an hour, a day and a week"
        report.add(name, rows / seconds, "events/s", at_least=SUGGEST_TARGET)
        report.add(
            f"{rows:,} events in memory: a policy by columns", rows / columns_s, "events/s", at_least=COLUMNS_TARGET
        )
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
