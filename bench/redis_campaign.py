"""The decide phase of a campaign on servers: one node, and a cluster of three primaries on this machine.

Dense ids, two limits, in buckets, three campaigns 27 hours apart: two in batches as `capline campaign run` makes them,
each with a receipt, the first on empty logs; then one in a single `decide_many`. Each client is a process of its own.
The longest script call is the server's own measure (SLOWLOG); where client and servers share two cores, it includes
time that the server had no core.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from _harness import Report, arguments, check
from _servers import KINDS, cluster, single

from capline import Limiter, ManualClock, Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _servers import Server

HOUR_US = 3_600_000_000
POLICY = Policy("promo", ["3/day", "10/week"], layout="bucket")
SLOW_US = 500
"""Script calls that take longer are kept in the servers' log, as many as `SLOWLOG_LINES`."""

SLOWLOG_LINES = 100_000


def campaign(url: str, users: int, batch: int, number: int) -> tuple[float, float]:
    """Seconds of the campaign of this number, and the peak memory in MB of this process."""
    clock = ManualClock(1_700_000_000_000_000 + number * 27 * HOUR_US)
    with Limiter(url, [POLICY], clock=clock) as limiter:
        start, allowed = time.perf_counter(), 0
        for first in range(0, users, batch):
            ids = np.arange(first, min(first + batch, users), dtype=np.int64)
            receipt = f"campaign/{number}/{first}" if batch < users else None
            allowed += int(limiter.decide_many("promo", ids, receipt=receipt).allowed.sum())
        seconds = time.perf_counter() - start
    check(allowed == users, f"{url}: {allowed} of {users} allowed")
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def measure(
    report: Report, name: str, url: str, servers: Sequence[Server], users: int, batch: int, most: float | None
) -> None:
    """The figures of one place."""
    for server in servers:
        server.command("CONFIG", "SET", "slowlog-log-slower-than", SLOW_US, "slowlog-max-len", SLOWLOG_LINES)
    for number, (which, size) in enumerate({"first": batch, "second": batch, "in one call": users}.items()):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, peak_mb = pool.apply(campaign, (url, users, size, number))
        report.add(f"{name}: {which}", users / seconds, "users/s")
        report.add(f"{name}: {which}, peak memory of the client", peak_mb, "MB", at_most=1500)
    calls = sorted(us for server in servers for us in script_calls_us(server))
    if calls:
        report.add(f"{name}: longest script call", calls[-1] / 1000, "ms", at_most=most)
    else:
        report.add(f"{name}: longest script call, at most", SLOW_US / 1000, "ms", at_most=most)
    report.add(f"{name}: script calls over 5 ms", sum(us > 5000 for us in calls), "calls")
    total = sum(int(script_stats(server)["calls"]) for server in servers)
    used = sum(int(script_stats(server)["usec"]) for server in servers)
    report.add(f"{name}: users a script call", 3 * users / total, "users")
    report.add(f"{name}: mean script call", used / total / 1000, "ms")


def script_calls_us(server: Server) -> list[int]:
    """The times of the script calls in the server's log."""
    entries: list[Any] = server.command("SLOWLOG", "GET", -1, timeout_seconds=60)
    return [entry[2] for entry in entries if entry[3][0].upper() == b"EVALSHA"]


def script_stats(server: Server) -> dict[str, str]:
    """How many calls of scripts, and their time in all."""
    return dict(pair.split("=") for pair in server.info("commandstats")["cmdstat_evalsha"].split(","))


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, users=10_000_000, batch=10_000)
    users, batch = options.users, options.batch
    report = Report(f"Campaigns of {users:,} users on servers, decide phase only")
    for kind in KINDS:
        with single(kind) as server:
            measure(report, f"{kind}, one node", server.url, [server], users, batch, 5)
        with cluster(kind, primaries=3, replicas=0) as nodes:
            measure(report, f"{kind}, three primaries", nodes.url, nodes.servers, users, batch, None)
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
