"""The first page: what this service decides now, how its store and configuration are, and what needs attention."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from capline.model.errors import InvalidValueError, StoreError, quoted
from capline.service.console.charts import HEIGHT, WIDTH, areas
from capline.service.console.history import Latest
from capline.service.record.counted import SPANS, VERDICTS
from capline.service.verbs.configuration import configuration_state
from capline.service.verbs.segments import figures
from capline.support.quantity import span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from capline.limiter.aio import AsyncLimiter
    from capline.limiter.policies.segments import SegmentSource
    from capline.service.access.tokens import Token
    from capline.service.console.history import History
    from capline.service.console.verbs import Verbs
    from capline.service.http.scope import Scope
    from capline.service.metrics.registry import Metrics

_LEAST_STEPS, _LEAST_S = 5, 5.0
_MOST_POLICIES, _MOST_INSTANCES = 50, 50
_FRESH_S = 5.0
"""Workers are asked for no more often, however many pages are open."""
_NOBODY: dict[str, Any] = {"workers": [], "campaigns": 0}
_OF_INSTANCES = "howto/console.html"
WORKERS = "/v1/campaign-workers"


class Overview:
    """Makes the page's view from what the process knows, and from what stores told lately."""

    def __init__(
        self, limiter: AsyncLimiter, segments: SegmentSource | None, metrics: Metrics, history: History, verbs: Verbs
    ) -> None:
        self._limiter, self._segments, self._metrics, self._history = limiter, segments, metrics, history
        self._verbs = verbs
        self._workers: Latest[dict[str, Any]] = Latest(_FRESH_S, _NOBODY)

    async def view(self, over: str, token: Token) -> dict[str, Any]:
        """The page as plain values: rates are per second of the last minute, counts of one of `SPANS`."""
        scope = token.scope
        if over not in SPANS:
            raise InvalidValueError(f"{quoted(over)} is not a span of the history; use {', '.join(SPANS)}")
        counted = await self._history.over(over, scope)
        lately = self._history.lately(scope)
        median_s, slow_s = self._history.share_within((0.5, 0.99))
        store, configuration, servers = self._metrics.store, self._limiter.configuration, self._metrics.servers
        workers = None
        if self._verbs.may(token, "GET", WORKERS):
            await self._workers.renew(lambda: self._verbs(token, "GET", WORKERS))
            workers = {**self._workers.value, "away": self._workers.why}
        there = await self._history.instances()
        at = time.time()
        state = {
            "at": at,
            "over": over,
            "rates": lately._asdict(),
            "seconds": {"median": median_s, "p99": slow_s},
            "policies": counted.by_policy()[:_MOST_POLICIES],
            "policies_over_s": self._history.over_s(counted, at),
            "history": {
                "begin": 60.0 * counted.begin,
                "step_s": 60.0 * counted.step,
                **counted.series,
                "away": self._history.away(over),
            },
            "store": {"up": store.up, "at": store.at, "why": store.why, "figures": self._store_figures()},
            "servers": servers_once(servers.reports),
            "instances": sorted(there, key=_urgency)[:_MOST_INSTANCES],
            "instance_count": len(there),
            "workers": workers,
            "policy_count": len(scope.of(self._limiter.policies.names)),
            "configuration": None if configuration is None else configuration.stats(),
            "segments": None if self._segments is None else figures(self._segments),
        }
        return state | {
            "attention": [
                {"what": what, "page": page}
                for what, page in (*_of_what_serves(state), *self._of_settings(state, scope))
            ]
        }

    async def counted(self) -> tuple[float, dict[str, dict[str, Any]]]:
        """Over how many seconds, at most an hour, and by policy what was allowed and refused in them."""
        counted = await self._history.over("hour")
        return self._history.over_s(counted, time.time()), {one["policy"]: one for one in counted.by_policy()}

    def _store_figures(self) -> dict[str, int]:
        try:
            return dict(self._limiter.stats())
        except StoreError:
            return {}

    def _of_settings(self, state: dict[str, Any], scope: Scope) -> Iterator[tuple[str, str]]:
        for what in sorted(self._metrics.refused):
            told = "was refused; the last good one goes on, and the log says why"
            yield f"A change of {what} {told}", "reference/service.html"
        held: dict[str, Any] = configuration_state(self._limiter)
        if "configuration" in held:
            yield f"Of the configuration {held['configuration']}", "reference/configuration.html"
        for policy, names in held.get("missing_segments", {}).items():
            if policy in scope:
                yield f"Policy {policy} lists segments that there are not: {', '.join(names)}", "howto/segments.html"
        if state["segments"] is not None and state["segments"]["error"]:
            yield f"Segments: {state['segments']['error']}", "howto/publishing.html"


def _urgency(instance: dict[str, Any]) -> int:
    return 2 if instance["is_gone"] else int(not instance["is_silent"] and not instance["lags"])


def servers_once(reports: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each server once, with all of its faults, though it may have logs and configuration; those with logs first."""
    found: dict[str, dict[str, Any]] = {}
    for store in sorted(reports, key=lambda store: store != "main"):
        for report in reports[store]:
            kept = found.setdefault(report["server"], {"store": store, **report})
            kept["faults"] = report["faults"] | kept["faults"]
    return [*found.values()]


def _of_what_serves(state: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _of_store(state)
    for one in state["instances"]:
        if one["is_silent"] and not one["is_gone"]:
            yield f"Instance {one['instance']} was not heard for {span(state['at'] - one['heard'])}", _OF_INSTANCES
        elif one["lags"]:
            yield f"Instance {one['instance']} serves an older version: {', '.join(one['lags'])}", _OF_INSTANCES
    workers = (state["workers"] or _NOBODY)["workers"]
    for campaign, worker in sorted({(one["campaign"], one["worker"]) for one in workers if one["is_silent"]}):
        yield f"A worker of {campaign} is silent: {worker}", "reference/campaigns.html"


def _of_store(state: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if not state["store"]["up"] and state["store"]["why"]:
        yield f"The store does not answer: {state['store']['why']}", "reference/failures.html"
    if state["rates"]["elsewhere"]:
        yield "Attempts are answered without the store", "reference/failures.html"
    if state["rates"]["errors"]:
        yield "Attempts have no answer", "reference/failures.html"
    for server in state["servers"]:
        for fault in server["faults"].values():
            yield f"{server['server']}: {fault}", "howto/production.html"


def chart(state: dict[str, Any]) -> dict[str, Any]:
    """What is drawn of a view: attempts a second by outcome, over as much of the span as is known."""
    at, told = state["at"], state["history"]
    step_s, over_s = told["step_s"], max(_LEAST_STEPS * told["step_s"], state["policies_over_s"])
    begin, known_since = at - over_s, at - state["policies_over_s"]
    spans: list[tuple[float, float]] = []
    rows: list[list[float]] = [[] for _ in VERDICTS]
    for place, counts in enumerate(zip(*(told[verdict] for verdict in VERDICTS), strict=True)):
        since = told["begin"] + place * step_s
        until = min(since + step_s, at)
        if until > begin:
            spans.append((since, until))
            for row, count in zip(rows, counts, strict=True):
                row.append(count / max(until - max(since, known_since), _LEAST_S))
    paths, top = areas(spans, rows, begin, at)
    return {"paths": paths, "top": top, "over_s": over_s, "width": WIDTH, "height": HEIGHT, "begin": begin}
