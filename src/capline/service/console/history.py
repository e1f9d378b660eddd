"""What was counted: here every ten seconds, and of all instances every minute, for as long as the store keeps it.

    /metrics, of all workers  ->  what came since the last look, in its minute  ->  this instance's row of the hour
    the rows of all instances, and what of ours is not written yet  ->  an hour, a day, a week

The rule: a row is written whole, under a name that is drawn for each hour anew, so nothing is counted twice: not after
a restart, nor by two instances, nor after a clock was set back. While the store is away rows wait here, those of the
last `_MOST_WAITING` hours. An instance that is killed loses what it counted since the last minute.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from capline.limiter.policies.shadow import SHADOW
from capline.model.errors import StoreError
from capline.observe.metrics import DECISIONS
from capline.service.http.scope import EVERYTHING
from capline.service.record.counted import HOUR, SPANS, Joined, Key, Span, joined, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from capline.config.hours import Hours, Written
    from capline.service.http.scope import Scope
    from capline.service.metrics.registry import Metrics

log = logging.getLogger("capline.service")

EVERY_S = 10.0
_LATELY = 7
_FULL = 0.9
_WRITE_EVERY = 6
_MOST_WAITING = 168
_FRESH_S, _LONGEST_STEPS, _WAIT_S = 5.0, 12, 0.5
"""The store is asked again after so many seconds for each minute of a step; a page waits for it no longer."""
_SECONDS = "capline_http_seconds"
_COUNTED = ("allowed", "refused", "error", "elsewhere")
"""As `Rates` has them."""


class Totals(NamedTuple):
    """Counted since the service began, at an instant.

    Attempts by policy and one of `_COUNTED`; requests by the bounds of their seconds.
    """

    at: float
    attempts: Mapping[tuple[str, str], float]
    requests: tuple[float, ...]

    def of(self, scope: Scope) -> list[float]:
        """The attempts, by `_COUNTED`."""
        found: dict[str, float] = dict.fromkeys(_COUNTED, 0.0)
        for (policy, counted), count in self.attempts.items():
            found[counted] += count if policy in scope else 0.0
        return [*found.values()]


class Rates(NamedTuple):
    """Per second, over `over_s` seconds until `at`."""

    at: float
    over_s: float
    allowed: float
    refused: float
    errors: float
    elsewhere: float


class _Hour(NamedTuple):
    """What this instance counts in one hour, under the name that its row will have."""

    hour: int
    name: bytes
    counts: dict[Key, list[int]]


@dataclass
class _Told:
    """What the store last told of a span, and when; the task that asks it."""

    at: float = -inf
    rows: list[tuple[int, Written]] = field(default_factory=list[Any])
    joined: Joined | None = None
    task: asyncio.Task[None] | None = None


class History:
    """Follows the counters of these metrics, and keeps them in `hours`; `now` tells seconds since 1970."""

    def __init__(self, metrics: Metrics, hours: Hours, now: Callable[[], float] = time.time) -> None:
        self._metrics, self._hours, self._time = metrics, hours, now
        self._bounds: list[str] = []
        self._totals: deque[Totals] = deque(maxlen=_LATELY)
        self._seen: dict[Key, float] | None = None
        self._now, self._has_more = _Hour(0, b"", {}), False
        self._waiting: dict[tuple[int, bytes], bytes] = {}
        self._told: dict[str, _Told] = {}
        self._began = now()
        self._lock = asyncio.Lock()
        self.away = ""
        """Why what others counted could not be read; empty if it could."""
        self._fails = False

    async def follow(self) -> None:
        """Look every ten seconds and write every minute, until this is cancelled."""
        looks = 0
        try:
            while True:
                await self.look()
                if looks % _WRITE_EVERY == 0:
                    await self.write()
                looks += 1
                await asyncio.sleep(EVERY_S)
        finally:
            await self.look()
            await self.write()

    async def look(self) -> None:
        """Take the figures as they are now."""
        async with self._lock:
            totals, rows = await asyncio.to_thread(self._read)
            if len(self._totals) > 1 and self._totals[-1].at - self._totals[-2].at < _FULL * EVERY_S:
                self._totals.pop()  # taken between two full looks, to be shown at once
            self._totals.append(totals)
            self._add(rows, int(totals.at // 60))

    def _read(self) -> tuple[Totals, dict[Key, float]]:
        rows: dict[Key, float] = defaultdict(float)
        attempts: dict[tuple[str, str], float] = defaultdict(float)
        buckets: dict[str, float] = {}
        for metric in self._metrics.counted():
            for sample in metric.samples:
                if sample.name == DECISIONS:
                    labels = sample.labels
                    verdict = SHADOW if labels["origin"] == SHADOW else labels["verdict"]
                    rows[labels["policy"], labels["limit"], verdict] += sample.value
                    attempts[labels["policy"], labels["verdict"]] += sample.value
                    if labels["origin"] not in ("store", SHADOW, ""):
                        attempts[labels["policy"], "elsewhere"] += sample.value
                elif sample.name == f"{_SECONDS}_bucket":
                    buckets[sample.labels["le"]] = sample.value
        self._bounds = sorted(buckets, key=float)
        counts = tuple(buckets[bound] for bound in self._bounds)
        return Totals(self._time(), attempts, counts), rows

    def _add(self, rows: dict[Key, float], minute: int) -> None:
        """Add what came since the last look to its minute. The first look may find what a process before it counted."""
        before, self._seen = rows if self._seen is None else self._seen, rows
        hour, place = divmod(minute, HOUR)
        if hour != self._now.hour:
            self._put_aside()
            self._now = _Hour(hour, secrets.token_bytes(6), {})
        for key, value in rows.items():
            if (came := int(value - before.get(key, 0.0))) > 0:
                self._now.counts.setdefault(key, [0] * HOUR)[place] += came
                self._has_more = True

    # --- what is kept -------------------------------------------------------------------------------------------

    def _put_aside(self) -> None:
        hour, name, counts = self._now
        if self._has_more:
            self._waiting[hour, name], self._has_more = packed(counts), False
        while len(self._waiting) > _MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]

    async def write(self) -> None:
        """Write what is not written yet; where the store is away it waits, and the log says so once."""
        self._put_aside()
        for (hour, name), row in [*self._waiting.items()]:
            try:
                await asyncio.to_thread(self._hours.put, hour, name, row)
            except StoreError as error:
                if not self._fails:
                    log.warning("what is counted waits in memory to be stored: %s", error)
                self._fails = True
                return
            self._fails = False
            if self._waiting.get((hour, name)) is row:
                del self._waiting[hour, name]

    async def over(self, name: str, scope: Scope = EVERYTHING) -> Joined:
        """What all instances counted in one of `SPANS`; of others as it was some seconds ago, or a minute."""
        await self.look()
        span, minute = SPANS[name], int(self._time() // 60)
        told = self._told.setdefault(name, _Told())
        if told.task is None and time.monotonic() - told.at >= _FRESH_S * min(span.step, _LONGEST_STEPS):
            told.task = asyncio.create_task(self._tell(told, span, minute))
        if told.task is not None:
            await asyncio.wait({told.task}, timeout=_WAIT_S)
        elif span.step > 1 and told.joined is not None and scope.is_all:
            return told.joined
        own = self._waiting | {(self._now.hour, self._now.name): packed(self._now.counts)}
        rows = [(hour, row) for hour, of in told.rows for writer, row in of.items() if (hour, writer) not in own]
        rows += [(hour, row) for (hour, _), row in own.items()]
        found = await asyncio.to_thread(joined, rows, span, minute, scope)
        told.joined = found if scope.is_all else told.joined
        return found

    async def _tell(self, told: _Told, span: Span, minute: int) -> None:
        hours = [*range((minute - span.minutes) // HOUR, minute // HOUR + 1)]
        try:
            told.rows = [*zip(hours, await asyncio.to_thread(self._hours.get, hours), strict=True)]
            self.away = ""
        except StoreError as error:
            self.away = str(error)
        finally:
            told.at, told.task = time.monotonic(), None

    def over_s(self, found: Joined, at: float) -> float:
        """The seconds until `at` that these counts are of: less than the span, if it is not known for as long."""
        began = self._began if found.first is None else min(self._began, 60.0 * found.first)
        return max(at - max(began, 60.0 * found.begin), EVERY_S)

    # --- the last minute ----------------------------------------------------------------------------------------

    def lately(self, scope: Scope) -> Rates:
        """The rates of the last minute."""
        now = self._totals[-1]
        before = self._before(60.0)
        over_s = now.at - before.at
        counts = zip(before.of(scope), now.of(scope), strict=True)
        return Rates(now.at, over_s, *(max(0.0, after - one) / over_s if over_s > 0 else 0.0 for one, after in counts))

    def share_within(self, shares: Sequence[float]) -> list[float | None]:
        """For each share of the last minute's requests, the seconds within which so many were answered."""
        now, before = self._totals[-1].requests, self._before(60.0).requests
        counts = [some - other for some, other in zip(now, before, strict=True)] if len(before) == len(now) else now
        total = counts[-1] if counts else 0.0
        found: list[float | None] = []
        for share in shares:
            at = next(
                (bound for bound, count in zip(self._bounds, counts, strict=True) if count >= share * total), None
            )
            found.append(None if at is None or not total else float(at))
        return found

    def _before(self, seconds: float) -> Totals:
        """The totals that many seconds ago, or the oldest there are."""
        last = self._totals[-1]
        return next((one for one in reversed(self._totals) if last.at - one.at >= seconds), self._totals[0])
