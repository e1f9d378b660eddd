"""The metrics that the Prometheus and the OpenTelemetry observer share.

    capline_decisions_total{verb,policy,segment,channel,limit,verdict,origin}  attempts
    capline_peeks_total{verb,policy,segment,channel,limit,verdict,origin}      attempts that were only peeked at
    capline_store_seconds{verb,policy}                                         duration of the store's calls
    capline_observer_errors_total                                              times that an observer raised

The rule: each metric has at most `label_sets` label sets. Beyond that, all labels but verb, verdict and origin are
"other", so sums and alerts stay right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from capline.observe.bounded import Bounded, check_label_sets
from capline.observe.event import Outcome
from capline.observe.protocol import HearsFailures, Observer
from capline.support.override import override

if TYPE_CHECKING:
    from capline.model.decision import Decision
    from capline.observe.bounded import Figure
    from capline.observe.event import Decided

    Maker = Callable[[str, str, tuple[str, ...]], Callable[[tuple[str, ...]], Figure]]
    """Takes the name, the text and the labels of a metric; returns what makes a figure from values of the labels."""

DECISIONS = "capline_decisions_total"
PEEKS = "capline_peeks_total"
STORE_SECONDS = "capline_store_seconds"
OBSERVER_ERRORS = "capline_observer_errors_total"
_DECISION_LABELS = ("verb", "policy", "segment", "channel", "limit", "verdict", "origin")
BUCKETS_SECONDS = (10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.5, 1, 5)
"""From one embedded decision to a batch of millions."""

OTHER = "other"
_ORIGINS = ("", "store", "fallback", "insurance", "deny-cache", "shadow")
"""The origins of capline itself. A third party's store may name others, without a bound."""


class Metrics(Observer, HearsFailures):
    """Counts decisions. `counter` and `histogram` make a metric by its name, text and labels."""

    def __init__(self, label_sets: int, counter: Maker, histogram: Maker) -> None:
        most = self._most = check_label_sets(label_sets)
        self._singles: dict[tuple[object, ...], Figure] = {}
        decisions = counter(DECISIONS, "Attempts, by their outcome", _DECISION_LABELS)
        self._decisions = Bounded(most, _of_outcome, _of_other_outcome, decisions)
        peeks = counter(PEEKS, "Attempts that were only peeked at", _DECISION_LABELS)
        self._peeks = Bounded(most, _of_outcome, _of_other_outcome, peeks)
        seconds = histogram(STORE_SECONDS, "Seconds that the store's call took", ("verb", "policy"))
        self._seconds = Bounded[tuple[str, str | None]](
            most, lambda call: (call[0], call[1] or ""), lambda call: (call[0], OTHER), seconds
        )
        self._failed = counter(OBSERVER_ERRORS, "Times that an observer raised", ())(())

    @override
    def decided(self, event: Decided) -> None:
        figures = self._peeks if event.is_peek else self._decisions
        for outcome, count in event.counts.items():
            figures[event.verb, outcome](count)
        if event.seconds is not None:
            self._seconds[event.verb, event.policy](event.seconds)

    def decided_one(
        self, policy: str, segment: str | None, channel: str | None, decision: Decision, seconds: float
    ) -> None:
        """See `CountsOne`."""
        key = policy, segment, channel, decision.limit, decision.allowed, decision.origin
        figure = self._singles.get(key)
        if figure is None:
            verdict = "allowed" if decision.allowed else "refused"
            outcome = Outcome(policy, segment, channel, decision.limit, verdict, decision.origin)
            figure = self._decisions["decide", outcome]
            if len(self._singles) < self._most:
                self._singles[key] = figure
        figure(1)
        self._seconds["decide", policy](seconds)

    @override
    def observer_failed(self) -> None:
        self._failed(1)


def _of_outcome(key: tuple[str, Outcome]) -> tuple[str, ...]:
    verb, (policy, segment, channel, limit, verdict, origin) = key
    return verb, policy or "", segment or "", channel or "", "" if limit is None else str(limit), verdict, origin


def _of_other_outcome(key: tuple[str, Outcome]) -> tuple[str, ...]:
    verb, outcome = key
    return verb, OTHER, OTHER, OTHER, OTHER, outcome.verdict, outcome.origin if outcome.origin in _ORIGINS else OTHER
