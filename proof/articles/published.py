"""Limiters as articles publish them, written again from what they do. Each has one fault, named in its docstring.

A limiter in an article is a few lines around one structure; these keep that shape. Time is told to those in memory; a
script on a server reads the server's clock, or takes the caller's where the article does. `capline` is not used here.
"""

# ruff: noqa: ARG002 - each is asked alike, whether it looks at the time or not

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CallersClock",
    "CountThenAdd",
    "DayThenWeek",
    "DecrementToZero",
    "FixedWindow",
    "MillisecondMember",
    "NanosecondExpiry",
    "Published",
    "ReaderDeletes",
    "RefusalsRecorded",
    "SecondsAsWindow",
    "WeightedCounter",
    "WithoutExpiry",
]


class Published(Protocol):
    """May this subject have one unit now?"""

    def allows(self, subject: str, now_us: int) -> bool:
        """Consume one unit, or not."""
        ...


class MillisecondMember:
    """A sorted set on Redis whose member is the time in milliseconds: hits of one millisecond are one member."""

    SCRIPT = """
    redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[1] - ARGV[2])
    if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
    redis.call('ZADD', KEYS[1], ARGV[1], ARGV[1])
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return 1
    """

    def __init__(self, client: Any, quota: int, window_us: int) -> None:
        self._client, self._quota, self._window_ms = client, quota, window_us // 1000

    def allows(self, subject: str, now_us: int) -> bool:
        return bool(self._client.eval(self.SCRIPT, 1, subject, now_us // 1000, self._window_ms, self._quota))


class SecondsAsWindow:
    """A counter on Redis for each second of the clock: around the end of a second there is room for twice as many."""

    SCRIPT = """
    local used = redis.call('INCR', KEYS[1])
    if used == 1 then redis.call('EXPIRE', KEYS[1], 2) end
    return used
    """

    def __init__(self, client: Any, quota: int) -> None:
        self._client, self._quota = client, quota

    def allows(self, subject: str, now_us: int) -> bool:
        return self._client.eval(self.SCRIPT, 1, f"{subject}:{now_us // 1_000_000}") <= self._quota


class CountThenAdd:
    """A sorted set on Redis, counted by one command and added to by another: callers come in between.

    `between` is called there; with it a test makes certain what load makes likely.
    """

    def __init__(self, client: Any, quota: int, window_us: int, between: Callable[[], object]) -> None:
        self._client, self._quota, self._window_us, self._between = client, quota, window_us, between

    def allows(self, subject: str, now_us: int) -> bool:
        self._client.zremrangebyscore(subject, 0, now_us - self._window_us)
        used = self._client.zcard(subject)
        self._between()
        if used >= self._quota:
            return False
        return bool(self._client.zadd(subject, {f"{now_us}:{self._client.incr('member')}": now_us}))


class DayThenWeek:
    """A log for each limit, consumed one after the other: what the week refuses has used up the day."""

    def __init__(self, *limits: tuple[int, int]) -> None:
        self._limits = limits
        self._logs: dict[tuple[str, int], deque[int]] = defaultdict(deque)

    def allows(self, subject: str, now_us: int) -> bool:
        for number, (quota, window_us) in enumerate(self._limits):
            log = self._logs[subject, number]
            while log and log[0] <= now_us - window_us:
                log.popleft()
            if len(log) >= quota:
                return False
            log.append(now_us)
        return True


class NanosecondExpiry:
    """A window held in nanoseconds, as some languages hold a span, is given to PEXPIRE as if it were milliseconds.

    The counter should start again after each window; its key lives a million times as long.
    """

    SCRIPT = """
    local used = redis.call('INCR', KEYS[1])
    if used == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
    return used
    """

    def __init__(self, client: Any, quota: int, window_ns: int) -> None:
        self._client, self._quota, self._window_ns = client, quota, window_ns

    def allows(self, subject: str, now_us: int) -> bool:
        return self._client.eval(self.SCRIPT, 1, subject, self._window_ns) <= self._quota


class WithoutExpiry:
    """A log on Redis that is trimmed when its subject comes back: whoever does not come back is kept for ever."""

    SCRIPT = """
    redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[1] - ARGV[2])
    if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
    redis.call('ZADD', KEYS[1], ARGV[1], ARGV[1])
    return 1
    """

    def __init__(self, client: Any, quota: int, window_us: int) -> None:
        self._client, self._quota, self._window_us = client, quota, window_us

    def allows(self, subject: str, now_us: int) -> bool:
        return bool(self._client.eval(self.SCRIPT, 1, subject, now_us, self._window_us, self._quota))


class CallersClock:
    """A sorted set on Redis that goes by the caller's clock: a host whose clock is ahead trims what still counts."""

    SCRIPT = """
    redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[1] - ARGV[2])
    if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
    redis.call('ZADD', KEYS[1], ARGV[1], ARGV[4])
    redis.call('PEXPIRE', KEYS[1], ARGV[2] / 1000)
    return 1
    """

    def __init__(self, client: Any, quota: int, window_us: int) -> None:
        self._client, self._quota, self._window_us = client, quota, window_us
        self._members = 0

    def allows(self, subject: str, now_us: int) -> bool:
        self._members += 1
        words = now_us, self._window_us, self._quota, self._members
        return bool(self._client.eval(self.SCRIPT, 1, subject, *words))


class FixedWindow:
    """A count for each window of the clock: twice the quota around its end."""

    def __init__(self, quota: int, window_us: int) -> None:
        self._quota, self._window_us = quota, window_us
        self._counts: dict[tuple[str, int], int] = defaultdict(int)

    def allows(self, subject: str, now_us: int) -> bool:
        key = subject, now_us // self._window_us
        self._counts[key] += self._counts[key] < self._quota + 1
        return self._counts[key] <= self._quota


class WeightedCounter:
    """Two counts, the last window's weighted by what is left of it: it takes the last window's hits as evenly spread.

    Where they came at its end, more is allowed than the limit says.
    """

    def __init__(self, quota: int, window_us: int) -> None:
        self._quota, self._window_us = quota, window_us
        self._counts: dict[tuple[str, int], int] = defaultdict(int)

    def allows(self, subject: str, now_us: int) -> bool:
        window, into_us = divmod(now_us, self._window_us)
        last = self._counts[subject, window - 1] * (1 - into_us / self._window_us)
        if self._counts[subject, window] + int(last) >= self._quota:
            return False
        self._counts[subject, window] += 1
        return True


class DecrementToZero:
    """A counter on Redis that goes down to 0 and stays there, where an answer of 0 or more is taken for a yes."""

    SCRIPT = """
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX')
    if redis.call('GET', KEYS[1]) == '0' then return 0 end
    return redis.call('DECR', KEYS[1])
    """

    def __init__(self, client: Any, quota: int, window_us: int) -> None:
        self._client, self._quota, self._window_ms = client, quota, window_us // 1000

    def allows(self, subject: str, now_us: int) -> bool:
        return self._client.eval(self.SCRIPT, 1, subject, self._quota, self._window_ms) >= 0


class RefusalsRecorded:
    """A sorted set on Redis, added to and counted in one MULTI: what is then refused stays recorded, and counts."""

    def __init__(self, client: Any, quota: int, window_us: int) -> None:
        self._client, self._quota, self._window_us = client, quota, window_us
        self._members = 0

    def allows(self, subject: str, now_us: int) -> bool:
        self._members += 1
        with self._client.pipeline(transaction=True) as transaction:
            transaction.zremrangebyscore(subject, 0, now_us - self._window_us)
            transaction.zadd(subject, {str(self._members): now_us})
            transaction.zcard(subject)
            return transaction.execute()[-1] <= self._quota


class ReaderDeletes(CallersClock):
    """A sorted set on Redis that is trimmed by whoever reads it, while an attempt that is older still counts."""

    def left(self, subject: str, now_us: int) -> int:
        self._client.zremrangebyscore(subject, 0, now_us - self._window_us)
        return self._quota - self._client.zcard(subject)
