"""The console: what a visit weighs, when each page is first painted, and what ten open pages cost an instance.

A real `capline serve` that keeps the decisions of an hour. Ten open pages are asked for anew every five seconds, as
their script does; all ten are live ones, as any other asks for nothing. The processor's time is the whole service's,
from outside. Checked: every page
answers and says what it is; who is limited is counted exactly as the decisions were; every open page was answered.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
from _harness import Report, arguments, check, processor_clock
from _servers import single
from tests.kit.chromium import Chromium
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving

PAGES = {
    "": "Attempts a second",
    "?over=week": "Attempts a second",
    "/subject?id=u7": "The next unit is free",
    "/policies": "Asked in",
    "/policy?name=promo": "Refused",
    "/try?name=promo&limits=2/day": "would have refused",
    "/limited": "all of them counted",
    "/campaigns": "no campaign store",
    "/segments": "Segments",
    "/audit": "configuration",
}
OPEN = 10
EVERY_S = 5.0
"""How often console.js asks."""


def main() -> None:
    """Serve, ask, measure; print the table."""
    options = arguments(__doc__, seconds=60, decisions=20_000)
    report = Report("The console, a service on Redis that keeps an hour's decisions")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, single("redis") as server:
        folder = Path(name)
        many = "".join(f"  p{number}: {{limits: [9/day]}}\n" for number in range(40))
        (folder / "policies.yaml").write_text(f"policies:\n  promo: {{limits: [3/day, 9/week]}}\n{many}")
        (folder / "capline.yaml").write_text(f"store: {server.url}\npolicies: policies.yaml\nrecord: {{keep: 3600}}\n")
        with Serving(folder, "--config", "capline.yaml") as service:
            admin = httpx.Client(base_url=service.admin, trust_env=False, timeout=WITHIN_S)
            refused = decide(service, options.decisions)
            rank(report, admin, refused)
            keep_open(report, service, weigh(report, admin), options.seconds)
            with Chromium(folder / "profile") as browser:
                painted = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
                for page in PAGES:
                    browser.go(f"{service.admin}/console{page}")
                    check(soon(lambda: browser.told(painted) > 0, WITHIN_S), f"/console{page}: nothing was painted")
                    report.add(
                        f"first paint of /console{page}, the browser on the same machine", browser.told(painted), "ms"
                    )
                check(not browser.notes, f"the browser complains: {browser.notes}")
    report.show(as_json=options.json)


def decide(service: Serving, decisions: int) -> Counter[str]:
    """Ask, a few subjects far more often than most; how often each was refused."""
    refused: Counter[str] = Counter()
    asked = [f"u{min(number % 97, number * number % 1009)}" for number in range(decisions)]
    for begin in range(0, decisions, 1000):
        some = asked[begin : begin + 1000]
        allowed = service.ask("/v1/decide/batch", policy="promo", subjects=some).json()["allowed"]
        refused.update(each for each, yes in zip(some, allowed, strict=True) if not yes)
    return refused


def rank(report: Report, admin: httpx.Client, refused: Counter[str]) -> None:
    """Who is refused most, against what was answered."""
    begun = time.perf_counter()
    told = admin.get("/console/limited", headers={"Accept": "application/json"}).json()
    seconds = time.perf_counter() - begun
    (promo,) = (one for one in told["policies"] if one["policy"] == "promo")
    found: Counter[str] = Counter()
    for limit in promo["limits"]:
        found.update({one["subject"]: one["count"] for one in limit["subjects"]})
    check(bool(found), "nobody is limited")
    exact = sorted(refused.values(), reverse=True)[: len(found)]
    check(all(refused[each] == count for each, count in found.items()), "refusals are counted otherwise")
    check(sorted(found.values(), reverse=True) == exact, "who is refused most is counted otherwise")
    report.add("who is limited, of the recorded decisions", seconds * 1e3, "ms")


def weigh(report: Report, admin: httpx.Client) -> list[str]:
    """Each page with what it loads; those that are live."""
    first: dict[str, int] = {}
    live: list[str] = []
    for page, said in PAGES.items():
        answer = admin.get(f"/console{page}")
        check(answer.is_success and said in answer.text, f"/console{page}: {said} is not there")
        first[page] = len(answer.content)
        if " data-live" in answer.text:
            live.append(page)
        report.add(f"/console{page}", len(answer.content) / 1e3, "kB")
    text = admin.get("/console").text
    loaded = [part.partition('"')[0] for part in text.split('="') if part.startswith("/console/console-")]
    check(len(loaded) == len(("css", "js")), f"a page loads {loaded}")
    files = sum(len(admin.get(path).content) for path in loaded)
    report.add("a first visit, of the largest page", (max(first.values()) + files) / 1e3, "kB", at_most=150)
    check(live[:1] == [""], f"the overview is not live, but {live}")
    return live


def keep_open(report: Report, service: Serving, live: list[str], seconds: int) -> None:
    """Ten pages, each asked anew every five seconds for so long; what that costs the service."""
    pid = service.process.pid
    spent = processor_clock(pid, own=False)
    with httpx.Client(base_url=service.admin, trust_env=False, timeout=WITHIN_S) as visitor:
        began, cost, asked = time.monotonic(), spent(), 0
        while (left := began + asked * EVERY_S / OPEN - time.monotonic()) < began + seconds - time.monotonic():
            time.sleep(max(0.0, left))
            page = live[asked % len(live)]
            check(visitor.get(f"/console{page}").is_success, f"/console{page} was not answered")
            asked += 1
        cost, took = spent() - cost, time.monotonic() - began
    check(asked >= seconds * OPEN / EVERY_S, f"only {asked} requests in {took:.0f} s")
    idle = spent()
    time.sleep(EVERY_S)
    idle = (spent() - idle) / EVERY_S
    report.add("ten pages open", asked / took, "requests a s")
    report.add("ten pages open, processor of the service", 100 * (cost / took - idle), "% of a core", at_most=2)
    report.add("a page", 1e3 * (cost - idle * took) / asked, "ms of processor")
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").split()
    report.add("memory of the service", int(status[status.index("VmRSS:") + 1]) / 1e3, "MB")


if __name__ == "__main__":
    main()
