"""How late campaigns are: one that waits for its minute, one of ten beside a large one, and messages that are held.

Two workers (`capline worker`) on one campaign store and one embedded store of limits, both on this machine; parts are
files, and a message is as late as the file that it is in. The figures:

    at its minute       from `send_at` to the first messages, and to all of them
    beside a large one  a campaign of ten with a higher priority, from when it was accepted to its messages
    held                all are over their limit until one instant: what the workers take meanwhile, with many and with
                        few held, and from the instant to the first messages

In the end each recipient must have each message once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from _harness import Report, arguments, check, processor_clock

from capline import Limiter, Policy

if TYPE_CHECKING:
    from collections.abc import Generator

CAPLINE = (sys.executable, "-m", "capline.cli")
FEW = 10
POLL_S = 0.02
LONGEST_S = 600.0


def capline(*words: str) -> subprocess.CompletedProcess[str]:
    """Type these words."""
    command = [*CAPLINE, *words, "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours


class Place:
    """A directory with a policy file, a campaign store and the parts of each campaign."""

    def __init__(self, path: Path, limits: str) -> None:
        self.path = path
        self.queue = f"sqlite://{path}/campaigns.sqlite"
        self.store = f"lmdb://{path}/store"
        (path / "policies.yaml").write_text(f"policies: {{promo: {{limits: [{limits}]}}, free: {{limits: [9/day]}}}}\n")

    def begin(self, name: str, users: int, policy: str = "promo", **more: str) -> None:
        """Accept a campaign to the users from 0 on."""
        audience = self.path / f"{name}.csv"
        audience.write_text("id\n" + "".join(f"{user}\n" for user in range(users)))
        said = {
            "campaign": name,
            "policies": "policies.yaml",
            "policy": policy,
            "store": self.store,
            "audience": f"{{csv: {name}.csv}}",
            "sender": f"{{file: {name}-parts, format: csv}}",
            **more,
        }
        file = self.path / f"{name}.yaml"
        file.write_text("".join(f"{key}: {value}\n" for key, value in said.items()))
        done = capline("campaign", "enqueue", str(file), "--queue", self.queue)
        check(done.returncode == 0, done.stderr)

    def parts(self, name: str) -> list[Path]:
        """Its parts that are there."""
        return sorted((self.path / f"{name}-parts").glob("part-*.csv"))

    def wait(self, name: str, parts: int) -> list[float]:
        """Until so many are there: when each was, by the clock on the wall."""
        until = time.monotonic() + LONGEST_S
        while len(found := self.parts(name)) < parts:
            check(time.monotonic() < until, f"{name}: {len(found)} of {parts} parts")
            time.sleep(POLL_S)
        return sorted(part.stat().st_mtime for part in found)

    def check_sent(self, name: str, users: int) -> None:
        """Each user has one message."""
        read = import_module("pyarrow.csv").read_csv
        ids = np.sort(np.concatenate([read(part).column("id").to_numpy() for part in self.parts(name)]))
        check(np.array_equal(ids, np.arange(users)), f"{name}: {len(ids)} messages to {len(np.unique(ids))}")

    @contextmanager
    def workers(self) -> Generator[list[int]]:
        """Two that work; their process ids."""
        words = (*CAPLINE, "worker", "--queue", self.queue, "--quiet")
        with subprocess.Popen(words) as one, subprocess.Popen(words) as other:  # noqa: S603 - ours
            try:
                yield [one.pid, other.pid]
            finally:
                one.terminate()
                other.terminate()


def at_its_minute(report: Report, users: int, batch: int) -> None:
    """A campaign that is whole before it is due."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), "3/day")
        with place.workers():
            due = int(time.time()) + 5 + users // 100_000
            place.begin("blast", users, send_at=datetime.fromtimestamp(due, UTC).isoformat(), batch=str(batch))
            at = place.wait("blast", -(-users // batch))
        place.check_sent("blast", users)
    report.add("from the minute to the first messages", at[0] - due, "s", at_most=1)
    report.add(f"from the minute to all of {users:,}", at[-1] - due, "s")
    report.add("messages a second", users / (at[-1] - due), "/s")


def beside_a_large_one(report: Report, users: int, batch: int) -> None:
    """Ten who are more urgent, while a large one is sent."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), "3/day")
        with place.workers():
            place.begin("large", users, batch=str(batch))
            place.wait("large", 2)
            place.begin("urgent", FEW, policy="free", priority="90")
            accepted = time.time()
            (at,) = place.wait("urgent", 1)
            left = -(-users // batch) - len(place.parts("large"))
            place.wait("large", -(-users // batch))
        place.check_sent("urgent", FEW)
        place.check_sent("large", users)
    report.add("share of the large one that was left then", 100 * left / -(-users // batch), "%")
    report.add("ten beside a large one, from accepted to sent", max(at - accepted, 0), "s", at_most=2)


def held(report: Report, users: int, batch: int, waits_s: int) -> None:
    """All are over their limit until one instant, but for one who has no message yet."""
    idle: dict[int, float] = {}
    for size in (batch, users):
        with tempfile.TemporaryDirectory() as folder:
            place = Place(Path(folder), f"1/{waits_s}s")
            with Limiter(place.store, [Policy("promo", [f"1/{waits_s}s"])]) as limiter:
                begun = limiter.now_us()
                check(bool(limiter.decide_many("promo", np.arange(size)).allowed.all()), "a first message was refused")
                last = limiter.now_us()
            with place.workers() as pids:
                place.begin("held", size, over_cap="hold", batch=str(batch))
                while True:
                    said = capline("campaign", "status", "held", "--queue", place.queue)
                    total = json.loads(said.stdout)["total"]
                    if total["held"] == size:
                        break
                    check(time.time() < begun / 1e6 + waits_s, f"{total}: give them more time, --waits")
                worked = processor_clock(*pids, own=False)
                before, since = worked(), time.monotonic()
                time.sleep(min(5, max(0, begun / 1e6 + waits_s - time.time() - 1)))
                idle[size] = (worked() - before) / (time.monotonic() - since)
                at = place.wait("held", -(-size // batch))
            place.check_sent("held", size)
    report.add(f"{users:,} held, what workers take ÷ with {batch:,}", idle[users] / idle[batch], "times", at_most=2)
    report.add("share of a core that they take", 100 * idle[users], "%")
    report.add("from the first one's instant to its message", at[0] - (begun / 1e6 + waits_s), "s", at_most=2)
    report.add("from the last one's instant to the last message", at[-1] - (last / 1e6 + waits_s), "s")


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, users=1_000_000, batch=10_000, waits=60)
    os.environ["PYTHONUNBUFFERED"] = "1"
    report = Report("How late campaigns are: two workers on this machine")
    at_its_minute(report, options.users, options.batch)
    beside_a_large_one(report, options.users, options.batch)
    held(report, options.users, options.batch, options.waits)
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
