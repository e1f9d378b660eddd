"""The case that breaks each published limiter, played on it and on capline: the same attempts, and a count."""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import redis

from capline import Limiter, ManualClock, Policy
from proof.articles import published

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proof.articles.published import Published

__all__ = ["CASES", "Case", "Outcome", "outcomes"]

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
START_US = 1_800_000_000 * SECOND_US
"""The beginning of a second, an hour and a day of the clock."""


class Case(NamedTuple):
    """One fault: how an article's limiter counts, what is asked of it, what the answer is, and what capline's is.

    `played` and `capline` return how many of `asked` were allowed, or the figure that `counts` names.
    """

    fault: str
    limit: str
    story: str
    asked: int
    expected: int
    played: Callable[[Any], int]
    capline: Callable[[str], int]
    counts: str = "allowed"


class Outcome(NamedTuple):
    """What came of a case."""

    case: Case
    played: int
    capline: int

    @property
    def holds(self) -> bool:
        """The published limiter is wrong, and capline is right."""
        return self.capline == self.case.expected != self.played


def outcomes(url: str) -> list[Outcome]:
    """Play every case; `url` is of a Redis server whose database nobody else uses, and which is emptied for each."""
    client = _client(url)
    found: list[Outcome] = []
    for case in CASES:
        client.flushdb()
        played = case.played(client)
        client.flushdb()
        found.append(Outcome(case, played, case.capline(url)))
    client.close()
    return found


def _client(url: str) -> Any:
    # redis-py's client is untyped where it matters.
    connect: Any = redis.Redis.from_url  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return connect(url)


def _asked(limiter: Published, instants_us: Sequence[int]) -> int:
    """How many of these attempts of one subject the limiter allows."""
    return sum(limiter.allows("s", now_us) for now_us in instants_us)


def _plays(make: Callable[[Any], Published], instants_us: Sequence[int]) -> Callable[[Any], int]:
    """These attempts, asked of the limiter that is made with a client."""

    def play(client: Any) -> int:
        return _asked(make(client), instants_us)

    return play


def _capline(limits: Sequence[str], instants_us: Sequence[int]) -> Callable[[str], int]:
    """The same attempts, asked of capline."""

    def play(_url: str) -> int:
        clock = ManualClock(START_US - DAY_US)
        with Limiter("memory://", [Policy("p", list(limits))], clock=clock) as limiter:
            allowed = 0
            for now_us in instants_us:
                clock.advance_us(now_us - clock.now_us())
                allowed += limiter.decide("p", "s").allowed
        return allowed

    return play


# --- the attempts ---------------------------------------------------------------------------------------------------

ONE_INSTANT = [START_US] * 100
"""100 attempts within one millisecond."""

AROUND_A_SECOND = [START_US + SECOND_US - 1000] * 10 + [START_US + SECOND_US + 1000] * 10
"""10 attempts just before the clock turns to the next second, 10 just after it: 2 ms in all."""

A_FULL_WEEK = [START_US + half * DAY_US // 2 for half in (0, 0, 4, 13, 13, 14)]
"""Two attempts on the first day, one on the third, two late on the seventh, one when the first two are a week old."""

AT_THE_END = [START_US + 990_000] * 100 + [START_US + SECOND_US + 600_000] * 100
"""A burst of 100 at the end of one window, and 100 attempts 0.61 s later, within 1 s of the burst."""

EVERY_TEN_SECONDS = [START_US + step * 10 * SECOND_US for step in range(30)]
"""An attempt every 10 s for 5 minutes."""

BURSTS = [START_US + 900_000] * 100 + [START_US + SECOND_US + 500_000 + step * 1000 for step in range(100)]
"""100 attempts late in one second of the clock, 100 more in the middle of the next, all within one second."""


# --- what only a server or several callers bring about --------------------------------------------------------------


def _between(client: Any) -> int:
    """Ten threads: each has counted before any adds, as when they ask at the same time."""
    counted = threading.Barrier(10)
    limiter = published.CountThenAdd(client, 3, 60 * SECOND_US, lambda: counted.wait(timeout=60))
    with ThreadPoolExecutor(10) as callers:
        return sum(callers.map(limiter.allows, ["s"] * 10, [START_US] * 10))


def _together(url: str) -> int:
    with Limiter(f"{url}?deadline=60s", [Policy("p", ["3/minute"])], namespace=secrets.token_hex(8)) as limiter:
        return int(limiter.decide_many("p", ["s"] * 10).allowed.sum())


def _nanoseconds(client: Any) -> int:
    """The key's remaining life in hours, of a window of one minute."""
    published.NanosecondExpiry(client, 5, 60 * SECOND_US * 1000).allows("s", START_US)
    return round(client.pttl("s") / 3_600_000)


def _capline_life(url: str) -> int:
    policy = Policy("p", ["5/minute"])
    with Limiter(f"{url}?deadline=60s", [policy], namespace=secrets.token_hex(8)) as limiter:
        limiter.decide("p", "s")
        return round(max(_lives_ms(url)) / 3_600_000)


def _lives_ms(url: str) -> list[int]:
    """How long each key of the database has left; -1 for one that stays for ever."""
    client = _client(url)
    lives = [client.pttl(key) for key in client.scan_iter(count=1000)]
    client.close()
    return lives


def _kept(client: Any) -> int:
    """Keys that nothing will ever remove, of 1,000 subjects who came once."""
    limiter = published.WithoutExpiry(client, 3, 60 * SECOND_US)
    for number in range(1000):
        limiter.allows(f"s{number}", START_US)
    return sum(client.pttl(key) == -1 for key in client.scan_iter(count=1000))


def _capline_kept(url: str) -> int:
    policy = Policy("p", ["3/minute"])
    with Limiter(f"{url}?deadline=60s", [policy], namespace=secrets.token_hex(8)) as limiter:
        limiter.decide_many("p", [f"s{number}" for number in range(1000)])
        lives_ms = _lives_ms(url)
    # Each of them is there now, or the count would say nothing.
    return sum(life == -1 for life in lives_ms) if len(lives_ms) >= 1000 else -1


def _two_hosts(client: Any) -> int:
    """10 attempts on a host whose clock is right, then 10 on one that is 2 hours ahead, at the same time."""
    limiter = published.CallersClock(client, 10, 3600 * SECOND_US)
    return _asked(limiter, [START_US] * 10 + [START_US + 7200 * SECOND_US] * 10)


def _servers_clock(url: str) -> int:
    """Two limiters, as on two hosts: without a clock of their own, both go by the server's."""
    name, allowed = secrets.token_hex(8), 0
    for _ in range(2):
        with Limiter(f"{url}?deadline=60s", [Policy("p", ["10/hour"])], namespace=name) as limiter:
            allowed += int(limiter.decide_many("p", ["s"] * 10).allowed.sum())
    return allowed


def _read_between(client: Any) -> int:
    """A minute after 3 hits somebody reads; then 3 attempts come whose time was taken 1 ms before."""
    limiter = published.ReaderDeletes(client, 3, 60 * SECOND_US)
    allowed = _asked(limiter, [START_US] * 3)
    limiter.left("s", START_US + 60 * SECOND_US)
    return allowed + _asked(limiter, [START_US + 60 * SECOND_US - 1000] * 3)


def _capline_read_between(url: str) -> int:
    """The same on a server: the reader has a clock of its own, 1 ms ahead of the callers'."""
    policies, name = [Policy("p", ["3/minute"])], secrets.token_hex(8)
    callers, reader = ManualClock(START_US), ManualClock(START_US + 60 * SECOND_US)
    with (
        Limiter(f"{url}?deadline=60s", policies, namespace=name, clock=callers) as limiter,
        Limiter(f"{url}?deadline=60s", policies, namespace=name, clock=reader) as page,
    ):
        allowed = int(limiter.decide_many("p", ["s"] * 3).allowed.sum())
        page.usage("p", "s")
        callers.advance_us(60 * SECOND_US - 1000)
        return allowed + int(limiter.decide_many("p", ["s"] * 3).allowed.sum())


CASES = (
    Case(
        "millisecond as member",
        "10/minute",
        "100 attempts in one millisecond",
        100,
        10,
        _plays(lambda client: published.MillisecondMember(client, 10, 60 * SECOND_US), ONE_INSTANT),
        _capline(["10/minute"], ONE_INSTANT),
    ),
    Case(
        "seconds as windows",
        "10/s",
        "10 attempts 1 ms before the clock's next second, 10 attempts 1 ms after",
        20,
        10,
        _plays(lambda client: published.SecondsAsWindow(client, 10), AROUND_A_SECOND),
        _capline(["10/s"], AROUND_A_SECOND),
    ),
    Case("count, then add", "3/minute", "10 callers; each counts before any of them adds", 10, 3, _between, _together),
    Case(
        "refusal by the week burns the day",
        "2/day and 3/week",
        "2 attempts on day 1, 1 on day 3, 2 on day 7 that the week refuses, 1 when day 1 is a week ago",
        6,
        4,
        _plays(lambda _: published.DayThenWeek((2, DAY_US), (3, 7 * DAY_US)), A_FULL_WEEK),
        _capline(["2/day", "3/week"], A_FULL_WEEK),
    ),
    Case(
        "nanoseconds as expiry",
        "5/minute",
        "one attempt; how long the key lives, in hours",
        1,
        0,
        _nanoseconds,
        _capline_life,
        "hours",
    ),
    Case(
        "a log without expiry",
        "3/minute",
        "1,000 subjects who come once; keys that nothing removes",
        1000,
        0,
        _kept,
        _capline_kept,
        "keys",
    ),
    Case(
        "the caller's clock",
        "10/hour",
        "10 attempts on one host, 10 on another whose clock is 2 hours ahead",
        20,
        10,
        _two_hosts,
        _servers_clock,
    ),
    Case(
        "fixed windows",
        "100/s",
        "100 attempts late in a second of the clock, 100 more 0.6 s later",
        200,
        100,
        _plays(lambda _: published.FixedWindow(100, SECOND_US), BURSTS),
        _capline(["100/s"], BURSTS),
    ),
    Case(
        "the weighted counter",
        "100/s",
        "100 attempts at the end of a window, 100 more 0.61 s later",
        200,
        100,
        _plays(lambda _: published.WeightedCounter(100, SECOND_US), AT_THE_END),
        _capline(["100/s"], AT_THE_END),
    ),
    Case(
        "0 is taken for a yes",
        "3/minute",
        "10 attempts; a counter that stops at 0, and allowed is what answers 0 or more",
        10,
        3,
        _plays(lambda client: published.DecrementToZero(client, 3, 60 * SECOND_US), [START_US] * 10),
        _capline(["3/minute"], [START_US] * 10),
    ),
    Case(
        "refusals are recorded",
        "3/minute",
        "an attempt every 10 s for 5 minutes; MULTI adds it and then counts",
        30,
        15,
        _plays(lambda client: published.RefusalsRecorded(client, 3, 60 * SECOND_US), EVERY_TEN_SECONDS),
        _capline(["3/minute"], EVERY_TEN_SECONDS),
    ),
    Case(
        "a reader deletes",
        "3/minute",
        "3 attempts, a reader a minute later, 3 attempts whose time was taken 1 ms before the reader's",
        6,
        3,
        _read_between,
        _capline_read_between,
    ),
)
