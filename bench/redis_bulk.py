"""Decisions in bulk on one server, in buckets: time, the server's CPU and memory, against SET and the sorted set.

One client process, dense ids, two limits (3/day, 10/week). Each user has 6 sends in the log, 27 hours apart, when the
clock starts, and every attempt is allowed. The parties take turns, each on a server of its own; the sorted set
(`sorted_set.lua`) and SET are sent in redis-py's pipelines. Memory is what `used_memory` grows by.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import redis
from _harness import Report, arguments, best_seconds, check
from _servers import KINDS, single
from _sorted_set import PIPELINE, SortedSets

from capline import Limiter, ManualClock, Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from _servers import Server

HOUR_US = 3_600_000_000
START_US = 1_700_000_000_000_000
LIMITS = ((3, 24 * HOUR_US), (10, 168 * HOUR_US))
POLICY = Policy("promo", ["3/day", "10/week"], layout="bucket")
VALUE = "x" * 48
"""What SET writes: as long as six stamps of eight bytes."""


@dataclass
class Party:
    """One way to do it: the best of the rounds that it was given."""

    server: Server
    work: Callable[[], None]
    seconds: float = field(default=float("inf"), init=False)
    cpu_seconds: float = field(default=float("inf"), init=False)

    def turn(self) -> None:
        """One more round."""
        before = cpu_seconds(self.server)
        self.seconds = min(self.seconds, best_seconds(self.work, rounds=1))
        self.cpu_seconds = min(self.cpu_seconds, cpu_seconds(self.server) - before)


def cpu_seconds(server: Server) -> float:
    """What the server has used so far."""
    used = server.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def used_memory(server: Server) -> int:
    """Bytes that the server has allocated."""
    return int(server.info("memory")["used_memory"])


def client_of(server: Server) -> Any:
    """redis-py's client."""
    return redis.Redis(port=server.port)


def everyone(limiter: Limiter, users: int) -> Callable[[], None]:
    """A round of ours."""
    ids = np.arange(users, dtype=np.int64)

    def work() -> None:
        allowed = int(limiter.decide_many("promo", ids).allowed.sum())
        check(allowed == users, f"capline allowed {allowed} of {users}")

    return work


def bytes_a_user(kind: str, users: int, sends: int, hours: int) -> float:
    """Memory of so many sends, so many hours apart, in buckets; every bucket must be a listpack."""
    clock = ManualClock(START_US)
    with single(kind) as server, Limiter(server.url, [POLICY], clock=clock) as limiter:
        limiter.decide_many("promo", np.arange(1000, dtype=np.int64))  # scripts and connections are there from now on
        server.command("FLUSHALL", "SYNC")
        before = used_memory(server)
        send(limiter, clock, users, sends, hours)
        after = used_memory(server)
        check_listpacks(client_of(server), users)
    return (after - before) / users


def send(limiter: Limiter, clock: ManualClock, users: int, sends: int, hours: int) -> None:
    """Log so many sends of each user."""
    work = everyone(limiter, users)
    for _ in range(sends):
        work()
        clock.advance_us(hours * HOUR_US)


def check_listpacks(client: Any, users: int) -> None:
    """Every hash is a bucket in its small form, and every key expires."""
    keys: list[bytes] = list(client.scan_iter(count=10_000))
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.type(key)
        pipeline.object("ENCODING", key)
        pipeline.pttl(key)
    replies: list[Any] = pipeline.execute()
    hashes = [encoding for kind, encoding in zip(replies[::3], replies[1::3], strict=True) if kind == b"hash"]
    check(users / 128 <= len(hashes) <= users / 50 + 1, f"{len(hashes)} buckets for {users} users")
    check(set(hashes) == {b"listpack"}, f"buckets are {set(hashes)}, not listpacks")
    check(min(replies[2::3]) > 0, "a key does not expire")


def sorted_set_bytes_a_user(kind: str, users: int, sends: int, hours: int) -> float:
    """The same in sorted sets."""
    with single(kind) as server:
        client = client_of(server)
        sets = SortedSets(client, LIMITS)
        sets.decide_many(range(1), START_US)
        server.command("FLUSHALL", "SYNC")
        before = used_memory(server)
        sets.record(range(users), [START_US + number * hours * HOUR_US for number in range(sends)])
        size = (used_memory(server) - before) / users
        check(client.zcard("user:0") == sends, "the sorted set does not hold the sends")
    return size


def memory(report: Report, kind: str, users: int) -> None:
    """The figures of memory. The targets are Redis's, which brings an allocator; the wheel's Valkey uses libc's."""
    on_redis = kind == "redis"
    for sends, hours, most in ((6, 27, 60.0), (10, 9, 75.0)):
        theirs = sorted_set_bytes_a_user(kind, users, sends, hours)
        ours = bytes_a_user(kind, users, sends, hours)
        report.add(f"{kind}: {sends} sends, sorted set", theirs, "bytes a user")
        report.add(f"{kind}: {sends} sends, bucket", ours, "bytes a user", at_most=most if on_redis else None)
        ratio = 0.3 if on_redis and sends == 6 else None
        report.add(f"{kind}: {sends} sends, bucket over sorted set", ours / theirs, "x", at_most=ratio)


def time_and_cpu(report: Report, kind: str, users: int, rounds: int) -> None:
    """The figures of time, and of the server's CPU."""
    clock = ManualClock(START_US)
    with (
        single(kind) as mine,
        single(kind) as theirs,
        single(kind) as plain,
        Limiter(mine.url, [POLICY], clock=clock) as limiter,
    ):
        send(limiter, clock, users, 6, 27)
        sets = SortedSets(client_of(theirs), LIMITS)
        sets.record(range(users), [START_US + number * 27 * HOUR_US for number in range(6)])
        client = client_of(plain)

        def sorted_set() -> None:
            allowed = sets.decide_many(range(users), clock.now_us())
            check(allowed == users, f"the sorted set allowed {allowed} of {users}")

        def plain_set() -> None:
            for start in range(0, users, PIPELINE):
                pipeline = client.pipeline(transaction=False)
                for user in range(start, min(start + PIPELINE, users)):
                    pipeline.set(f"user:{user}", VALUE)
                check(all(pipeline.execute()), "SET failed")

        plain_set()  # the keys are there, as the logs are
        parties = {
            "capline": Party(mine, everyone(limiter, users)),
            "sorted set": Party(theirs, sorted_set),
            "SET": Party(plain, plain_set),
        }
        for _ in range(rounds):
            for party in parties.values():
                party.turn()
            clock.advance_us(27 * HOUR_US)
    for name, party in parties.items():
        report.add(f"{kind}: {name}", users / party.seconds, "decisions/s" if name != "SET" else "SET/s")
        report.add(f"{kind}: {name}, server CPU", party.cpu_seconds / users * 1e6, "us each")
    ours, sorted_sets, sets_only = parties.values()
    report.add(f"{kind}: capline over the sorted set", sorted_sets.seconds / ours.seconds, "x", at_least=7)
    ratio = ours.cpu_seconds / sets_only.cpu_seconds
    report.add(f"{kind}: server CPU, capline over SET", ratio, "x", at_most=1.5)
    ratio = ours.cpu_seconds / sorted_sets.cpu_seconds
    report.add(f"{kind}: server CPU, capline over the sorted set", ratio, "x")


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, users=50_000, rounds=3)
    report = Report(f"Decisions in bulk on a server, {options.users:,} users, two limits, 6 sends logged")
    for kind in KINDS:
        time_and_cpu(report, kind, options.users, options.rounds)
        memory(report, kind, options.users)
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
