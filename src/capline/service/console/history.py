"""What this service counted in the last hour: all of it every ten seconds, by policy and limit every minute.

The counters are those of `/metrics`; with several workers they are of all of them. It begins with the process.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from capline.observe.metrics import DECISIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.service.metrics.registry import Metrics

EVERY_S = 10.0
_HOUR = 360
_FULL = 0.9
_BY_LIMIT_EVERY = 6
_MINUTES = 6
_SECONDS = "capline_http_seconds"


class Totals(NamedTuple):
    """Counted since the service began, at an instant: attempts by outcome; requests by the bounds of their seconds."""

    at: float
    allowed: float
    refused: float
    errors: float
    elsewhere: float
    requests: tuple[float, ...]


Row = tuple[str, str, str]
"""A policy, a limit ("" where none binds), a verdict."""


class Rates(NamedTuple):
    """Per second, over `over_s` seconds until `at`."""

    at: float
    over_s: float
    allowed: float
    refused: float
    errors: float
    elsewhere: float


class History:
    """Follows the counters of these metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._bounds: list[str] = []
        self._totals: deque[Totals] = deque(maxlen=_HOUR + 1)
        self._rows: deque[tuple[float, dict[Row, float]]] = deque(maxlen=_MINUTES)
        self._now: tuple[float, dict[Row, float]] = 0.0, {}

    async def follow(self) -> None:
        """Look every ten seconds, until this is cancelled."""
        looks = 0
        while True:
            await self.look(keep=looks % _BY_LIMIT_EVERY == 0)
            looks += 1
            await asyncio.sleep(EVERY_S)

    async def look(self, *, keep: bool = False) -> None:
        """Take the figures as they are now; `keep` those by limit to compare with."""
        totals, rows = await asyncio.to_thread(self._read)
        if len(self._totals) > 1 and self._totals[-1].at - self._totals[-2].at < _FULL * EVERY_S:
            self._totals.pop()  # taken between two full looks, to be shown at once
        self._totals.append(totals)
        self._now = totals.at, rows
        if keep:
            self._rows.append(self._now)

    def _read(self) -> tuple[Totals, dict[Row, float]]:
        rows: dict[Row, float] = defaultdict(float)
        by_verdict: dict[str, float] = defaultdict(float)
        elsewhere = 0.0
        buckets: dict[str, float] = {}
        for metric in self._metrics.counted():
            for sample in metric.samples:
                if sample.name == DECISIONS:
                    labels = sample.labels
                    rows[labels["policy"], labels["limit"], labels["verdict"]] += sample.value
                    by_verdict[labels["verdict"]] += sample.value
                    if labels["origin"] not in ("store", ""):
                        elsewhere += sample.value
                elif sample.name == f"{_SECONDS}_bucket":
                    buckets[sample.labels["le"]] = sample.value
        self._bounds = sorted(buckets, key=float)
        counts = tuple(buckets[bound] for bound in self._bounds)
        by = by_verdict
        return Totals(time.time(), by["allowed"], by["refused"], by["error"], elsewhere, counts), rows

    def rates(self) -> list[Rates]:
        """The rates of each ten seconds of the last hour, oldest first."""
        totals = list(self._totals)
        return [_rates(before, now) for before, now in pairwise(totals)]

    def lately(self) -> Rates:
        """The rates of the last minute."""
        now = self._totals[-1]
        return _rates(self._before(60.0), now)

    def by_limit(self) -> tuple[float, dict[str, dict[Row, float]]]:
        """Over how many seconds, at most five minutes, and by policy what was counted in them."""
        at, before = self._rows[0] if self._rows else (self._now[0], {})
        if at == self._now[0]:
            before = {}
        found: dict[str, dict[Row, float]] = defaultdict(dict)
        for row, value in self._now[1].items():
            if counted := value - before.get(row, 0.0):
                found[row[0]][row] = counted
        return max(self._now[0] - at, EVERY_S), found

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


def _rates(before: Totals, now: Totals) -> Rates:
    over_s = now.at - before.at
    counts = zip(before[1:5], now[1:5], strict=True)
    return Rates(now.at, over_s, *(max(0.0, after - one) / over_s if over_s > 0 else 0.0 for one, after in counts))
