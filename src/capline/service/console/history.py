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
import os
import secrets
import socket
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from capline.limiter.policies.shadow import SHADOW
from capline.model.errors import CaplineError, StoreError
from capline.observe.metrics import DECISIONS
from capline.service.http.problems import Problem
from capline.service.http.scope import EVERYTHING
from capline.service.record import instances
from capline.service.record.counted import HOUR, SPANS, Joined, Key, Span, joined, packed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capline.config.hours import Hours, Written
    from capline.service.http.scope import Scope
    from capline.service.metrics.registry import Metrics

log = logging.getLogger("capline.service")

T = TypeVar("T")

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


class Latest(Generic[T]):
    """What was last answered; asked anew once it is `fresh_s` old, by one task, which a page waits for but a moment.

    An answer that took long also rests for `rests` times as long, so that pages never take more than that share.
    """

    def __init__(self, fresh_s: float, value: T, rests: int = 0) -> None:
        self.value, self._fresh_s, self._rests = value, fresh_s, rests
        self.why = ""
        """Why it could not be answered; empty if it could."""
        self._due = -inf
        self._task: asyncio.Task[None] | None = None

    async def renew(self, ask: Callable[[], Awaitable[T]]) -> bool:
        """Ask, if it is time; whether the value may be another."""
        if self._task is None and time.monotonic() >= self._due:
            self._task = asyncio.create_task(self._ask(ask))
        if self._task is None:
            return False
        await asyncio.wait({self._task}, timeout=_WAIT_S)
        return True

    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> None:
        began = time.monotonic()
        try:
            self.value, self.why = await ask(), ""
        except (CaplineError, Problem) as error:
            self.why = str(error)
        finally:
            now, self._task = time.monotonic(), None
            self._due = now + max(self._fresh_s, self._rests * (now - began))


class _Read(NamedTuple):
    """Rows as the store told them, and when."""

    at: float
    rows: list[tuple[int, Written]]


class History:
    """Follows the counters of these metrics, and keeps them in `hours`; `now` tells seconds since 1970.

    With each row it writes which `versions` this instance serves.
    """

    def __init__(
        self,
        metrics: Metrics,
        hours: Hours,
        now: Callable[[], float] = time.time,
        versions: Callable[[], instances.Versions] = dict,
    ) -> None:
        self._metrics, self._hours, self._time, self._versions = metrics, hours, now, versions
        self._name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._since: dict[str, tuple[str, float]] = {}
        self._bounds: list[str] = []
        self._totals: deque[Totals] = deque(maxlen=_LATELY)
        self._seen: dict[Key, float] | None = None
        self._now, self._has_more = _Hour(0, b"", {}), False
        self._waiting: dict[tuple[int, bytes], bytes] = {}
        self._told = {
            name: Latest(_FRESH_S * min(span.step, _LONGEST_STEPS), _Read(now(), [])) for name, span in SPANS.items()
        }
        self._joined: dict[str, Joined] = {}
        self._began = now()
        self._lock = asyncio.Lock()
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
            self._versions = instances.ended
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

    def _row(self) -> bytes:
        """This instance's row of the hour as it is now."""
        now, versions = self._time(), self._versions()
        for kind, (version, _) in versions.items():
            if self._since.get(kind, ("", now))[0] != version:
                self._since[kind] = version, now
        since = {kind: at for kind, (_, at) in self._since.items()}
        return packed(self._now.counts, instances.told(self._name, now, versions, since))

    async def write(self) -> None:
        """Write what is not written yet; where the store is away it waits, and the log says so once."""
        self._put_aside()
        if self._versions():
            self._waiting[self._now.hour, self._now.name] = self._row()
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
        is_new = await self._told[name].renew(partial(self._read_hours, span, minute))
        if not is_new and span.step > 1 and scope.is_all and name in self._joined:
            return self._joined[name]
        found = await asyncio.to_thread(joined, self._rows(name), span, minute, scope)
        if scope.is_all:
            self._joined[name] = found
        return found

    def _rows(self, name: str) -> list[tuple[int, bytes]]:
        """The rows of a span by their hours: as the store told them, and this instance's own."""
        own = self._waiting | {(self._now.hour, self._now.name): self._row()}
        rows = self._told[name].value.rows
        return [(hour, row) for hour, of in rows for writer, row in of.items() if (hour, writer) not in own] + [
            (hour, row) for (hour, _), row in own.items()
        ]

    async def _read_hours(self, span: Span, minute: int) -> _Read:
        hours = [*range((minute - span.minutes) // HOUR, minute // HOUR + 1)]
        return _Read(self._time(), [*zip(hours, await asyncio.to_thread(self._hours.get, hours), strict=True)])

    async def instances(self) -> list[dict[str, Any]]:
        """Those that were heard in the last hour, as `instances.heard` tells; who is silent, as of the last reading."""
        await self.over("hour")
        return instances.heard((row for _, row in self._rows("hour")), self._told["hour"].value.at)

    def away(self, name: str) -> str:
        """Why what others counted in a span could not be read; empty if it could."""
        return self._told[name].why

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
