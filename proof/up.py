"""Kills a part of a running `capline up` every so often, and judges what was recorded:  python -m proof.up

Each part in turn, in a drawn order, when the cluster is whole again. Meanwhile two callers ask through nginx, one asks
the employees API, and both consoles are looked at each second; the campaigns, orders and charges are traffic's own.
At the end it waits until the campaigns of this time are finished, ends all and judges:

    decisions     by proof.checker: at most the quota in any window, each refusal justified
    employees     at most 10 allowed in any minute
    messages      nobody over a cap of theirs; all that the reports call sent has arrived
    providers     no 429, and by their own stamps no window over its limit
    orders        none failed, and what the table calls charged was charged, once
    pages         each page that answers is of now

Exit 0 where all of it holds, 1 where not.
"""

from __future__ import annotations

import base64
import json
import math
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx
from tests.kit.asking import ask_until
from tests.kit.chromium import Chromium
from tests.kit.server import soon

from capline.up.files import PROVIDERS
from capline.up.status import Running, console_link, running
from proof.checker import check, read
from proof.options import Options
from proof.record import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WITHIN_S, READY_WITHIN_S, FINISHED_WITHIN_S = 60, 180, 300
MINUTE_US = 60_000_000
CAPS, CAP_WINDOW_S = {"new": 1, "lapsed": 2, "active": 4}, 600
FRESH_S, SHOWN_AFTER_S = 5, 2


class Up:
    """A running `capline up`; `said` are the lines of both its outputs, once it is ready `facts` what it answered."""

    def __init__(self, here: Path, folder: Path, *words: str, path: str | None = None) -> None:
        self.folder, self.said, self.facts = folder, list[str](), dict[str, Any]()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "capline.cli", "up", "--dir", str(folder), "--json", *words],
            cwd=here,
            env={**os.environ, "PATH": path or os.environ["PATH"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def ready(self) -> bool:
        """Wait until all of it answers; False where it ended before."""
        soon(lambda: bool(self.facts) or self.process.poll() is not None, READY_WITHIN_S)
        return bool(self.facts)

    def has(self, text: str) -> bool:
        """Whether a line holds this text."""
        return any(text in line for line in self.said)

    def parts(self) -> dict[str, Running]:
        """Each part, as it is now."""
        return {part.name: part for part in running(self.folder)}

    def url(self, name: str, number: int = 0) -> str:
        """An address of a part, of those that it says."""
        ports = re.findall(r"127\.0\.0\.1:\d+", self.parts()[name].where)
        return f"http://{ports[number]}"

    def client(self, url: str) -> httpx.Client:
        """One that asks as the run's own token."""
        headers = {"Authorization": f"Bearer {(self.folder / 'you.token').read_text(encoding='ascii')}"}
        return httpx.Client(base_url=url, headers=headers, timeout=WITHIN_S, trust_env=False)

    def kill(self, name: str) -> None:
        """End the process of a part, and wait until another has its place."""
        before = self.parts()[name]
        if before.pid is not None:
            os.kill(before.pid, signal.SIGKILL)
        if not soon(lambda: self.parts()[name].starts > before.starts, WITHIN_S):
            raise TimeoutError(f"{name} was not started again: {self.said[-3:]}")

    def is_whole(self) -> bool:
        """Three primaries with a replica each, as a service tells it."""
        try:
            with self.client(self.url("service-2", 2)) as client:
                told = client.get("/metrics").text
        except httpx.HTTPError:
            return False
        found = re.findall(r'^capline_server_replicas\{.*store="main"\} (\S+)$', told, re.MULTILINE)
        return found == ["1.0"] * 3

    def stop(self) -> int:
        """End it as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(WITHIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(WITHIN_S)
        finally:
            self.process.kill()
            self._reader.join()

    def _read(self) -> None:
        with self.process.stdout or sys.stdin as lines:
            for line in lines:
                self.said.append(line)
                if line.startswith("{"):
                    self.facts = json.loads(line)


def over(spans: Iterable[tuple[float, float]], quota: int, window: float) -> int:
    """How often more than the quota lay wholly within a window; a span is from when it was asked until its answer."""
    ordered = sorted(spans)
    return sum(
        max(end for _, end in ordered[number : number + quota + 1]) - ordered[number][0] < window
        for number in range(len(ordered) - quota)
    )


class Watching:
    """What is asked and looked at while parts are killed."""

    def __init__(self, up: Up) -> None:
        self.stop = threading.Event()
        self.allowed: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.pages: Counter[str] = Counter()
        self._up = up
        self._threads = ThreadPoolExecutor(5)
        url = up.url("nginx")
        headers = dict(up.client(url).headers)
        self._asked = [
            self._threads.submit(ask_until, self.stop, url, "api", ["exact"], 0.05, headers) for _ in range(2)
        ]
        admins = [up.url(f"service-{number}", 2) for number in (1, 2)]
        self._looked = [self._threads.submit(self._look, admin) for admin in admins]
        self._looked.append(self._threads.submit(self._ask_employees, up.url("employees")))

    def end(self) -> list[str]:
        """Stop, and return what the callers recorded."""
        self.stop.set()
        with self._threads:
            for done in self._looked:
                done.result()
            return [line for one in self._asked for line in one.result()]

    def _look(self, admin: str) -> None:
        with self._up.client(admin) as client:
            while not self.stop.wait(1):
                try:
                    answer = client.get("/console", headers={"Accept": "application/json"})
                except httpx.HTTPError:
                    self.pages["away"] += 1
                    continue
                fresh = answer.is_success and abs(time.time() - answer.json()["at"]) < FRESH_S
                self.pages["of now" if fresh else "not of now"] += 1
                if answer.is_success and answer.json()["attention"]:
                    self.pages["with a warning"] += 1

    def _ask_employees(self, url: str) -> None:
        with httpx.Client(base_url=url, timeout=WITHIN_S, trust_env=False) as client:
            for key in cycle(("one", "two")):
                if self.stop.wait(1.5):
                    return
                begun = time.monotonic()
                try:
                    answer = client.get("/employees/7", headers={"X-Api-Key": key})
                except httpx.HTTPError:
                    continue
                if answer.is_success:
                    self.allowed[key].append((begun, time.monotonic()))


def finished(up: Up) -> dict[str, dict[str, Any]]:
    """The reports of the campaigns that there are now, each when it is finished; raises where one does not finish."""
    found: dict[str, dict[str, Any]] = {}
    with up.client(up.url("service-1")) as client:
        names = [one["campaign"] for one in client.get("/v1/campaigns").raise_for_status().json()["campaigns"]]

        def are() -> bool:
            for name in names:
                if found.get(name, {}).get("state") != "finished":
                    found[name] = client.get(f"/v1/campaigns/{name}").raise_for_status().json()
            time.sleep(1)
            return all(one["state"] == "finished" for one in found.values())

        if not soon(are, FINISHED_WITHIN_S):
            raise TimeoutError(f"not finished: {[name for name in names if found[name]['state'] != 'finished']}")
    return found


def messages(log: Path, reports: Mapping[str, Mapping[str, Any]], seconds: float) -> tuple[int, list[str]]:
    """How many messages the receiver got, each once, and what is wrong with them."""
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    got = {row["key"]: row for row in rows}.values()
    wrong: list[str] = []
    windows = math.ceil(seconds / CAP_WINDOW_S)
    by_segment = Counter((row["id"], row["segment"]) for row in got)
    # Who moved from `new` to `active` has the larger cap, over what came before too.
    by_user = Counter(row["id"] for row in got)
    wrong += [
        f"user {user}: {count} as {name}" for (user, name), count in by_segment.items() if count > CAPS[name] * windows
    ]
    wrong += [
        f"user {user}: {count} messages" for user, count in by_user.items() if count > max(CAPS.values()) * windows
    ]
    arrived = Counter(row["campaign"] for row in got)
    for name, report in reports.items():
        total = report["total"]
        if not total["sent"] <= arrived[name] <= total["sent"] + total["not_known"] + total["failed"]:
            wrong.append(f"{name}: {total['sent']} sent, {arrived[name]} arrived")
    return len(got), wrong


def payments(folder: Path) -> tuple[int, list[str]]:
    """How many charges there were, and what is wrong with them."""
    wrong: list[str] = []
    charged: set[str] = set()
    calls = 0
    for name, limit in PROVIDERS.items():
        rows = [line.split() for line in (folder / f"{name}.calls").read_text(encoding="ascii").splitlines()]
        quota, _, seconds = limit.partition("/")
        calls += len(rows)
        refused = sum(status == "429" for _, status, *_ in rows)
        stamps = [(int(at) / 1e9, int(at) / 1e9) for at, status, *_ in rows if status == "200"]
        if many := refused + over(stamps, int(quota), float(seconds)):
            wrong.append(f"{name}: {many} calls over {limit} s, {refused} of them answered 429")
        charged |= {key for _, status, key, _ in rows if status == "200"}
    with sqlite3.connect(folder / "orders.sqlite") as table:
        orders = {f"order-{number}": state for number, state in table.execute("SELECT id, state FROM orders")}
    lost = [key for key, state in orders.items() if state == "failed" or (state == "charged" and key not in charged)]
    wrong += [f"{key} is {orders[key]}, and was charged by nobody" for key in lost]
    if not any(state == "charged" for state in orders.values()):
        wrong.append("no order was charged")
    return calls, wrong


def run(up: Up, seconds: float, every_s: float, names: Sequence[str], picture: Path | None) -> dict[str, Any]:
    """Kill these in turn for so long; what was found, `wrong` is empty where all holds."""
    began = time.monotonic()
    watching = Watching(up)
    killed: list[str] = []
    try:
        for name in cycle(names):
            due = time.monotonic() + every_s
            if due > began + seconds:
                break
            soon(up.is_whole, WITHIN_S)
            up.kill(name)
            killed.append(name)
            print(f"killed {name}; started again", file=sys.stderr, flush=True)
            time.sleep(max(0.0, due - time.monotonic()))
        if picture is not None:
            take_picture(up, picture)
        reports = finished(up)
    finally:
        lines = watching.end()
    took_s = time.monotonic() - began
    memory = {part.name: part.memory_bytes for part in up.parts().values()}
    if up.stop():
        raise RuntimeError(f"capline up did not end well: {up.said[-3:]}")
    head = Recorder()
    head.policy("api", [(20, MINUTE_US)])
    report = check(read([*head.lines, *lines]))
    count, wrong = messages(up.folder / "receiver.log", reports, took_s)
    calls, unpaid = payments(up.folder)
    wrong += unpaid
    wrong += [] if report else [report.text()]
    wrong += [f"employees: {key} over 10/minute" for key, spans in watching.allowed.items() if over(spans, 10, 60)]
    wrong += [f"pages: {watching.pages['not of now']} not of now"] if watching.pages["not of now"] else []
    counted = {"decisions": report.attempts, "refused": report.refused, "messages": count, "charges": calls}
    counted |= {"campaigns": len(reports), "employees": sum(map(len, watching.allowed.values()))}
    return {"killed": killed, "counted": counted, "pages": watching.pages, "memory_bytes": memory, "wrong": wrong}


def take_picture(up: Up, file: Path) -> None:
    """The console's first page, as a browser shows it to who follows the link."""
    with tempfile.TemporaryDirectory() as folder, Chromium(Path(folder), width=1200) as page:
        page.go(console_link(up.folder) or "about:blank")
        time.sleep(SHOWN_AFTER_S)
        page.ask("Emulation.setDeviceMetricsOverride", width=1200, height=1000, deviceScaleFactor=1, mobile=False)
        taken = page.ask("Page.captureScreenshot", format="webp", quality=85)
    file.write_bytes(base64.b64decode(taken["data"]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Start it, kill, judge; what was found as JSON on standard output."""
    parser = Options("python -m proof.up", "Kill parts of a running capline up, and judge.", "--seconds 60 --every 6")
    parser.add_argument("--seconds", type=float, default=480, help="how long (480: each part once)")
    parser.add_argument("--every", type=float, default=20, help="seconds from one kill to the next (20)")
    parser.add_argument("--seed", default="capline", help="of the order in which parts are killed")
    parser.add_argument("--only", nargs="*", help="the parts to kill, in this order; all but traffic unless said")
    parser.add_argument("--picture", type=Path, help="a file for a picture of the console, as WebP")
    options = parser.parse_args(arguments)
    here = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory(prefix="capline-up-") as folder, Up(here, Path(folder) / "up", "--keep") as up:
        if not up.ready() or up.has(" is missing"):
            print(f"capline up is not whole: {''.join(up.said[-5:])}", file=sys.stderr)
            return 2
        names = options.only or sorted(up.parts().keys() - {"traffic"})
        if not options.only:
            random.Random(options.seed).shuffle(names)
        found = run(up, options.seconds, options.every, names, options.picture)
    print(json.dumps(found, indent=1))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
