"""Wrong limiters on a real server, as they are published, asked by several callers at the same time.

The scripts are short on purpose: this is what people paste. `run` is one of them under load; its records are for the
checker.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import redis

from proof.mutants.in_memory import Answer
from proof.record import Recorder, wall_us

__all__ = ["MUTANTS", "QUOTA", "WINDOW_US", "Caller", "run"]

QUOTA = 20
WINDOW_US = 1_000_000
CALLERS = 8
SKEW_US = 700_000
"""How far the first half of the callers' clocks are ahead, where a limiter goes by them."""

SORTED_SET = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - ARGV[2] / 1000)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return {0, 0} end
redis.call('ZADD', KEYS[1], now, now)
redis.call('PEXPIRE', KEYS[1], 60000)
return {1, now}
"""

CALLERS_TIME = """
local now = tonumber(ARGV[3])
local from, to = string.format('(%.0f', now - ARGV[2]), string.format('%.0f', now)
if redis.call('ZCOUNT', KEYS[1], from, to) >= tonumber(ARGV[1]) then return {0, 0} end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[3] .. ARGV[4])
redis.call('PEXPIRE', KEYS[1], 60000)
return {1, now}
"""


class Caller:
    """One caller of one limiter: a connection, a number, and the verb."""

    def __init__(self, url: str, key: str, number: int) -> None:
        host, _, port = url.partition("://")[2].partition("/")[0].partition(":")
        self.client: Any = redis.Redis(host, int(port), protocol=2)
        self.key = key
        self.number = number

    def decide(self) -> Answer:
        """Consume one unit, or not."""
        raise NotImplementedError


class MillisecondMember(Caller):
    """A sorted set whose member is its score, in milliseconds: of two hits in one millisecond one is lost."""

    def decide(self) -> Answer:
        allowed, now_ms = self.client.eval(SORTED_SET, 1, self.key, QUOTA, WINDOW_US)
        # What it knows of its hit is the millisecond; the record wants more, and gets an instant within it.
        return Answer(bool(allowed), now_ms * 1000 + 999 - self.number if allowed else None, -1)


class CallersTime(Caller):
    """The caller's time is the end of the window: who is behind does not see the hits of who is ahead."""

    def decide(self) -> Answer:
        now_us = wall_us() + (SKEW_US if self.number < CALLERS // 2 else 0)
        allowed, _ = self.client.eval(CALLERS_TIME, 1, self.key, QUOTA, WINDOW_US, now_us, f":{self.number}")
        return Answer(bool(allowed), now_us if allowed else None, -1)


class GetThenSet(Caller):
    """Reads, decides, writes; another caller does the same meanwhile."""

    def decide(self) -> Answer:
        now_us = wall_us()
        stamps = [int(one) for one in (self.client.get(self.key) or b"").split()]
        stamps = [stamp for stamp in stamps if stamp > now_us - WINDOW_US]
        if len(stamps) >= QUOTA:
            return Answer(False, None, -1)
        self.client.set(self.key, " ".join(map(str, [*stamps, now_us])), px=60_000)
        return Answer(True, now_us)


MUTANTS: dict[type[Caller], set[str]] = {
    MillisecondMember: {"over-quota-by-wall", "over-quota-by-stamps"},
    CallersTime: {"over-quota-by-wall", "stamp-outside-call"},
    GetThenSet: {"over-quota-by-wall", "over-quota-by-stamps"},
}
"""What the checker has to say of each: all of these kinds of fault."""


def run(mutant: type[Caller], url: str, key: str, seconds: float = 0.4) -> list[str]:
    """The records of eight callers, each a thread, who ask as fast as they can."""
    begin = threading.Barrier(CALLERS)
    head = Recorder()
    head.policy("p", [(QUOTA, WINDOW_US)])
    recorders = [head, *(Recorder() for _ in range(CALLERS))]

    def ask(caller: Caller, recorder: Recorder) -> None:
        caller.client.ping()
        begin.wait()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            recorder.tell(recorder.attempt("p", key), caller.decide)

    threads = [
        threading.Thread(target=ask, args=(mutant(url, key, number), recorders[number + 1]), daemon=True)
        for number in range(CALLERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [line for recorder in recorders for line in recorder.lines]
