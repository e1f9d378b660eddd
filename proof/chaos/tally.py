"""From records and content to figures.

    lost          hits that were acknowledged and not given back, and that the servers do not hold in the end
    over          the fewest hits to remove so that no window is over its quota
    duplicates    hits of one id beyond its first, and hits that nobody asked for; a hit that was lost is no duplicate
    back          acknowledged refunds whose hits the servers still hold: they err towards refusing
    down          by shard, tenths of a second with due attempts of which none was answered by the deadline
    latency       from the instant that an attempt was due; and, separately, from when it was sent
    late          answers, errors included, that took more than 1.25 deadlines from sending

Without the lost hits no window is over its quota, so `over` is at most `lost`: above it is a fault of the limiter, not
of replication.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from proof.chaos.callers import Content

__all__ = ["Figures", "tally"]

SLICE_US = 100_000
FEW = 3
"""With fewer attempts a slice of time says nothing about a shard."""


@dataclass
class Figures:
    """The figures of one run. None where the limiter's content does not tell."""

    attempts: int = 0
    allowed: int = 0
    refused: int = 0
    unanswered: int = 0
    errors: dict[str, int] = field(default_factory=dict[str, int])
    lost: int | None = 0
    over: int = 0
    duplicates: int = 0
    back: int | None = 0
    down_s: list[float] = field(default_factory=list[float])
    longest_down_s: list[float] = field(default_factory=list[float])
    p50_ms: float = 0
    p999_ms: float = 0
    worst_ms: float = 0
    call_p999_ms: float = 0
    """From sending to answer: without the load's own delay, which is the machine's."""
    late: int = 0


@dataclass(slots=True)
class _Log:
    """One subject: what was said about its hits."""

    stamps: dict[int, str | None] = field(default_factory=dict[int, "str | None"])
    given_back: set[int] = field(default_factory=set[int])
    maybe_back: set[int] = field(default_factory=set[int])
    unanswered: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    allowed: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def tally(
    lines: Iterable[str],
    content: Content | None,
    limit: tuple[int, int],
    deadline_us: int,
    shard: Callable[[str], int],
    shards: int,
) -> Figures:
    """The figures of one run; `limit` is quota and window_us, `shard` where a subject's log is."""
    rows, logs = [json.loads(line) for line in lines], defaultdict[str, _Log](_Log)
    for row in rows:
        _take(logs[row["subject"]], row)
    attempts = [row for row in rows if row["event"] == "attempt"]
    errors = Counter(row["error"].partition("(")[0] for row in attempts if row["allowed"] is None)
    verdicts = Counter(row["allowed"] for row in attempts)
    found = Figures(len(attempts), verdicts[True], verdicts[False], verdicts[None], dict(errors))
    _times(found, attempts, deadline_us)
    slices: list[dict[int, list[bool]]] = [defaultdict(list) for _ in range(shards)]
    for row in attempts:
        in_time = row["answered_us"] - row["due_us"] <= deadline_us
        slices[shard(row["subject"])][row["due_us"] // SLICE_US].append(row["allowed"] is not None and in_time)
    for one in slices:
        total, longest = _down(one)
        found.down_s.append(total)
        found.longest_down_s.append(longest)
    if content is None:
        found.lost = found.back = None
    for subject, log in logs.items():
        _judge(found, log, None if content is None else dict(content.get(subject, [])), limit)
    return found


def _take(log: _Log, row: dict[str, Any]) -> None:
    if row["event"] == "refund":
        if row["done"] is not False:
            (log.given_back if row["done"] else log.maybe_back).add(row["hit"])
    elif row["allowed"] is None:
        log.unanswered.append(row)
    elif row["allowed"]:
        log.allowed.append(row)
        if row["hit"] is not None:
            log.stamps.setdefault(row["hit"], row["id"])


def _judge(found: Figures, log: _Log, held: dict[int, int] | None, limit: tuple[int, int]) -> None:
    gone = log.given_back | log.maybe_back
    kept = {stamp: id for stamp, id in log.stamps.items() if stamp not in gone}
    if held is None or found.lost is None or found.back is None:
        found.over += over_by_wall([(row["asked_us"], row["answered_us"]) for row in log.allowed], *limit)
        found.duplicates += _beyond_first(row["id"] for row in log.allowed)
        return
    there = {stamp for stamp, units in held.items() if units}
    found.lost += len(kept.keys() - there)
    found.back += len(log.given_back & there)
    found.over += over_by_stamps(sorted(kept), *limit)
    found.duplicates += _beyond_first(id for stamp, id in kept.items() if stamp in there)
    found.duplicates += _unasked(sorted(there - log.stamps.keys()), log)


def _beyond_first(ids: Iterable[str | None]) -> int:
    return sum(many - 1 for id, many in Counter(ids).items() if id is not None)


def _unasked(stamps: list[int], log: _Log) -> int:
    """Count hits that no unanswered call can have left. Calls of one id leave one hit, or none if it was acknowledged.

    Such a call may run long after its caller has given up: on a server that was stopped, when it goes on.
    """
    told = set(log.stamps.values())
    asked: dict[Any, int] = {}
    for number, row in enumerate(log.unanswered):
        key = row["id"] if row["id"] is not None else number
        if row["id"] is None or row["id"] not in told:
            asked[key] = min(asked.get(key, row["asked_us"]), row["asked_us"])
    waiting, free, unasked = deque(sorted(asked.values())), 0, 0
    for stamp in stamps:
        while waiting and waiting[0] <= stamp + 1000:
            waiting.popleft()
            free += 1
        if free:
            free -= 1
        else:
            unasked += 1
    return unasked


def over_by_stamps(stamps: Iterable[int], quota: int, window_us: int) -> int:
    """The fewest of these ordered hits to remove so that no window is over the quota: each time the newest."""
    kept, over = deque[int](), 0
    for stamp in stamps:
        while kept and kept[0] <= stamp - window_us:
            kept.popleft()
        if len(kept) < quota:
            kept.append(stamp)
        else:
            over += 1
    return over


def over_by_wall(calls: list[tuple[int, int]], quota: int, window_us: int) -> int:
    """A lower bound of the same for hits without stamps, each somewhere between its call and its answer."""
    kept, over = list[int](), 0
    for asked_us, answered_us in sorted(calls, key=lambda call: call[1]):
        kept = [one for one in kept if one > answered_us - window_us]
        if len(kept) < quota:
            kept.append(asked_us)
        elif asked_us > answered_us - window_us:
            over += 1
    return over


def _down(slices: dict[int, list[bool]]) -> tuple[float, float]:
    """Seconds in all, and of the longest stretch."""
    down = sorted(at for at, answers in slices.items() if len(answers) >= FEW and not any(answers))
    longest = run = min(len(down), 1)
    for one, other in pairwise(down):
        run = run + 1 if other == one + 1 else 1
        longest = max(longest, run)
    return len(down) * SLICE_US / 1e6, longest * SLICE_US / 1e6


def _times(found: Figures, attempts: list[dict[str, Any]], deadline_us: int) -> None:
    delays_us = sorted(row["answered_us"] - row["due_us"] for row in attempts)
    calls_us = sorted(row["answered_us"] - row["asked_us"] for row in attempts)
    found.late = sum(call_us > 1.25 * deadline_us for call_us in calls_us)
    if attempts:
        found.p50_ms = delays_us[len(delays_us) // 2] / 1e3
        found.p999_ms = delays_us[int(len(delays_us) * 0.999)] / 1e3
        found.worst_ms = delays_us[-1] / 1e3
        found.call_p999_ms = calls_us[int(len(calls_us) * 0.999)] / 1e3
