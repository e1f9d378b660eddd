"""The first page: what this service decides now, how its store and configuration are, and what needs attention."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from capline.model.errors import StoreError
from capline.service.console.charts import HEIGHT, WIDTH, areas
from capline.service.verbs.configuration import configuration_state
from capline.service.verbs.segments import figures

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter
    from capline.limiter.policies.segments import SegmentSource
    from capline.service.console.history import History
    from capline.service.metrics.registry import Metrics

_HOUR_S, _LEAST_S = 3600.0, 300.0
_MOST_POLICIES = 50


class Overview:
    """Makes the page's view from what the process knows; asks no store."""

    def __init__(
        self, limiter: AsyncLimiter, segments: SegmentSource | None, metrics: Metrics, history: History
    ) -> None:
        self._limiter, self._segments, self._metrics, self._history = limiter, segments, metrics, history

    async def view(self) -> dict[str, Any]:
        """The page as plain values: rates are per second of the last minute, counts by limit of the last minutes."""
        await self._history.look()
        lately = self._history.lately()
        median_s, slow_s = self._history.share_within((0.5, 0.99))
        over_s, by_policy = self._history.by_limit()
        store, configuration = self._metrics.store, self._limiter.configuration
        state = {
            "at": time.time(),
            "rates": lately._asdict(),
            "seconds": {"median": median_s, "p99": slow_s},
            "policies": _by_limit(by_policy)[:_MOST_POLICIES],
            "policies_over_s": over_s,
            "store": {"up": store.up, "at": store.at, "why": store.why, "figures": self._store_figures()},
            "servers": [
                {"store": name, **msgspec.structs.asdict(server)}
                for name, servers in self._metrics.servers.states.items()
                for server in servers
            ],
            "policy_count": len(self._limiter.policies),
            "configuration": None if configuration is None else configuration.stats(),
            "segments": None if self._segments is None else figures(self._segments),
        }
        return state | {"attention": list(self._attention(state))}

    async def counted(self) -> tuple[float, dict[str, dict[str, Any]]]:
        """Over how many seconds, and by policy what was allowed and refused in them."""
        await self._history.look()
        over_s, by_policy = self._history.by_limit()
        return over_s, {one["policy"]: one for one in _by_limit(by_policy)}

    def chart(self, at: float) -> dict[str, Any]:
        """What is drawn: the attempts of the last hour by outcome, over as much of it as there is."""
        rates = self._history.rates()
        over_s = min(_HOUR_S, max(_LEAST_S, at - rates[0].at)) if rates else _LEAST_S
        begin = at - over_s
        rates = [one for one in rates if one.at > begin]
        rows = [[one.allowed for one in rates], [one.refused for one in rates], [one.errors for one in rates]]
        paths, top = areas([(one.at - one.over_s, one.at) for one in rates], rows, begin, at)
        return {"paths": paths, "top": top, "over_s": over_s, "width": WIDTH, "height": HEIGHT, "begin": begin}

    def _store_figures(self) -> dict[str, int]:
        try:
            return dict(self._limiter.stats())
        except StoreError:
            return {}

    def _attention(self, state: dict[str, Any]) -> list[dict[str, str]]:
        found: list[tuple[str, str]] = []
        if not state["store"]["up"] and state["store"]["why"]:
            found.append((f"The store does not answer: {state['store']['why']}", "reference/failures.html"))
        if state["rates"]["elsewhere"]:
            found.append(("Attempts are answered without the store", "reference/failures.html"))
        if state["rates"]["errors"]:
            found.append(("Attempts have no answer", "reference/failures.html"))
        found += [
            (f"{server['server']}: calls fail at once, as it did not answer", "reference/operating.html")
            for server in state["servers"]
            if server["breaker"] not in (None, "closed")
        ]
        found += [
            (
                f"A change of {what} was refused; the last good one goes on, and the log says why",
                "reference/service.html",
            )
            for what in sorted(self._metrics.refused)
        ]
        held = configuration_state(self._limiter)
        if "configuration" in held:
            found.append((f"Of the configuration {held['configuration']}", "reference/configuration.html"))
        missing: Any = held.get("missing_segments", {})
        found += [
            (f"Policy {policy} lists segments that there are not: {', '.join(names)}", "howto/segments.html")
            for policy, names in missing.items()
        ]
        if state["segments"] is not None and state["segments"]["error"]:
            found.append((f"Segments: {state['segments']['error']}", "howto/publishing.html"))
        return [{"what": what, "page": page} for what, page in found]


def _by_limit(counted: dict[str, dict[tuple[str, str, str], float]]) -> list[dict[str, Any]]:
    """Policies with most refusals first, then most attempts: what was allowed, and refused by each limit."""
    found: list[dict[str, Any]] = []
    for policy, rows in counted.items():
        by = {"allowed": 0.0, "refused": 0.0, "error": 0.0}
        limits: dict[str, float] = {}
        for (_, limit, verdict), count in rows.items():
            by[verdict] += count
            if verdict == "refused":
                limits[limit] = limits.get(limit, 0.0) + count
        by_limit = [{"limit": limit, "refused": limits[limit]} for limit in sorted(limits, key=limits.__getitem__)]
        found.append({"policy": policy, **by, "limits": by_limit[::-1]})
    found.sort(key=lambda one: (-one["refused"], -one["allowed"], one["policy"]))
    return found
