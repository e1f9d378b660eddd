"""What observers count is what callers were told: on every kind of store, for every verb, one by one and in batches."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.kit.limiter import inner_of
from tests.kit.observe import POLICIES, Raising, Recorder, labels, outcome, row
from tests.kit.server import Limiters
from tests.kit.servers import shared

from capline import Attempt
from capline.observe import OpenTelemetryObserver, Outcome, PrometheusObserver

STORES = ("memory", "lmdb", "redis", "valkey", "valkey cluster")


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        return "memory://"
    if request.param == "lmdb":
        return f"lmdb://{tmp_path}"
    kind, _, shape = request.param.partition(" ")
    return shared(kind, shape or "single")


def ask_everything(limiter: Any) -> Counter[tuple[str, Outcome]]:
    """Each verb, allowed and refused, good and bad; returns the outcomes of the answers that came back."""
    seen: Counter[tuple[str, Outcome]] = Counter()

    def ask(verb: str, policy: str, subject: str, *args: Any, segment: str | None = None, **names: Any) -> None:
        answer = getattr(limiter, verb)(policy, subject, *args, segment=segment, **names)
        seen[verb, outcome(answer, policy, segment if policy == "p" else None, names.get("channel"))] += 1

    for _ in range(5):
        ask("decide", "p", "poison-1")
        ask("decide", "p", "poison-2", segment="new")
        ask("decide", "p", "poison-3", channel="push")
        ask("decide", "q", "poison-4", segment="not told apart")
        ask("decide", "q", "poison-5", 2)
        ask("decide", "q", "poison-6", 1, "one and the same")
        ask("peek", "p", "poison-1")
        ask("schedule", "q", "poison-7", max_wait=0)
    batch = [Attempt("p", "poison-8"), Attempt("q", "poison-8"), Attempt("p", "poison-8", segment="new")] * 3
    wrong = [Attempt("poison", "s"), Attempt("p", ""), Attempt("p", "s", channel="poison"), Attempt("p", "s", 0)]
    for attempt, answer in zip(batch + wrong, limiter.decide_batch(batch + wrong), strict=True):
        known = attempt not in wrong
        seen["decide_batch", outcome(answer, attempt.policy if known else None, attempt.segment)] += 1
    seen["decide_batch", outcome(limiter.decide_batch([Attempt("q", "poison-9")])[0], "q")] += 1
    codes = np.array([0, 1, 0, 1, 1, 0, 0, 0])
    named: list[Any] = ["m1", "m2", "m1", "m2", "", "m3", "m1", "m1"]
    # A subject that cannot be one never comes to have a segment.
    segments: list[str | None] = ["new", "old", "new", "old", None, "new", "new", "new"]
    for verb in ("decide_many", "peek_many"):
        answers = getattr(limiter, verb)("p", named, segment=["new", "old"], codes=codes)
        for number, segment in enumerate(segments):
            seen[verb, outcome(row(answers, number), "p", segment)] += 1
        answers = getattr(limiter, verb)("q", np.arange(50) % 20)
        seen.update((verb, outcome(answer, "q")) for answer in answers)
    return seen


def test_every_count_is_that_of_the_answers(place: Any, limiters: Limiters) -> None:
    recorder, registry, reader = Recorder(), CollectorRegistry(), InMemoryMetricReader()
    observers = [Raising(), recorder, PrometheusObserver(registry), OpenTelemetryObserver(MeterProvider([reader]))]
    limiter = limiters(place, *POLICIES, observers=observers)
    seen = ask_everything(limiter)
    kinds: Counter[Outcome] = Counter()
    for (_, kind), count in seen.items():
        kinds[kind] += count
    assert recorder.sums() == kinds
    assert {kind.verdict for kind in kinds} == {"allowed", "refused", "error"}
    assert len(kinds) == 12
    for told in recorder.told:
        assert sum(told.counts.values()) == told.size
        assert told.seconds is not None
        assert 0 < told.seconds < 20
    verbs = Counter(told.verb for told in recorder.told)
    assert verbs == {"decide": 30, "peek": 5, "schedule": 5, "decide_batch": 2, "decide_many": 2, "peek_many": 2}
    decided = {(verb, *labels(kind)): count for (verb, kind), count in seen.items() if "peek" not in verb}
    peeked = {(verb, *labels(kind)): count for (verb, kind), count in seen.items() if "peek" in verb}
    assert by_prometheus(registry) == (decided, peeked)
    assert by_opentelemetry(reader, len(recorder.told)) == (decided, peeked)
    assert inner_of(limiter).observer_errors == len(recorder.told)


ORDER = ("verb", "policy", "segment", "channel", "limit", "verdict", "origin")
Counts = Mapping[tuple[str, ...], float]


def by_prometheus(registry: CollectorRegistry) -> tuple[Counts, Counts]:
    """The counters of decisions and of peeks, as a scraper reads them; and nothing there names a subject."""
    text = generate_latest(registry).decode()
    assert "poison" not in text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    named = {name.removesuffix("_created") for name in families}
    assert named == {"capline_decisions", "capline_peeks", "capline_store_seconds", "capline_observer_errors"}
    decided, peeked = (
        {
            tuple(sample.labels[name] for name in ORDER): sample.value
            for sample in families[family].samples
            if sample.name == f"{family}_total"
        }
        for family in ("capline_decisions", "capline_peeks")
    )
    return decided, peeked


def by_opentelemetry(reader: InMemoryMetricReader, calls: int) -> tuple[Counts, Counts]:
    """The same, as an exporter is handed them."""
    data: Any = reader.get_metrics_data()
    points: Any = {metric.name: metric.data.data_points for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert sum(point.count for point in points["capline_store_seconds"]) == calls
    assert [point.value for point in points["capline_observer_errors_total"]] == [calls]
    decided, peeked = (
        {tuple(point.attributes[name] for name in ORDER): point.value for point in points[metric]}
        for metric in ("capline_decisions_total", "capline_peeks_total")
    )
    return decided, peeked
