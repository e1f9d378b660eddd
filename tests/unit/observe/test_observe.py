"""Observers: what they are told when things go wrong, that none breaks a decision, that what they keep is bounded."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from tests.kit.limiter import behind_a_door, close, gone, inner_of
from tests.kit.observe import POLICIES, Raising, Recorder, outcome

from capline import (
    AsyncLimiter,
    Attempt,
    IdConflictError,
    Insurance,
    InvalidTypeError,
    InvalidValueError,
    Limit,
    Limiter,
    Policy,
    StoreError,
    UnknownNameError,
)
from capline.limiter import observed
from capline.observe import LogObserver, OpenTelemetryObserver, Outcome, PrometheusObserver


class Hears(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.failed = 0

    def observer_failed(self) -> None:
        self.failed += 1


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    made: list[Any] = []

    def limiter(**options: Any) -> tuple[Any, Any, Recorder]:
        recorder = Recorder()
        limiter, door = behind_a_door(*POLICIES, asynchronous=request.param, observers=[recorder], **options)
        made.append(limiter)
        return limiter, door, recorder

    yield limiter
    for one in made:
        close(one)


def error(*names: str | None) -> Outcome:
    return Outcome(*(names or ("q", None, None)), None, "error", "")  # type: ignore[arg-type]


# --- what is told ---------------------------------------------------------------------------------------------


def test_without_observers_the_short_way_is_taken_and_with_them_it_is_not() -> None:
    for observers, short in (([], True), ([Recorder()], False)):
        made: Any = Limiter("memory://", POLICIES, observers=observers)
        with made as limiter:
            assert limiter.decide("q", "s")
            assert limiter.decide("p", "s", segment="new")
            assert bool(limiter._units) == short


def test_an_event_names_what_its_attempts_share(make: Any) -> None:
    limiter, _, recorder = make()
    limiter.decide("p", "s", segment="new", channel="push")
    limiter.decide("q", "s", segment="told apart by nobody")
    limiter.decide_batch([Attempt("p", "s", segment="new"), Attempt("p", "s", segment="old")])
    limiter.decide_batch([Attempt("p", "s"), Attempt("q", "s")])
    limiter.decide_batch([])
    limiter.decide_many("p", ["s"] * 2, segment=["new", "new"], codes=[0, 1], channel="push")
    limiter.decide_many("p", ["s"] * 2, segment=["new", "old"], codes=[0, 1])
    limiter.decide_many("q", [])
    assert [told[:5] for told in recorder.told] == [
        ("decide", "p", "new", "push", 1),
        ("decide", "q", None, None, 1),
        ("decide_batch", "p", None, None, 2),
        ("decide_batch", None, None, None, 2),
        ("decide_batch", None, None, None, 0),
        ("decide_many", "p", "new", "push", 2),
        ("decide_many", "p", None, None, 2),
        ("decide_many", "q", None, None, 0),
    ]


def test_a_charge_is_reported_and_never_as_a_refusal(make: Any) -> None:
    limiter, _, recorder = make()
    limiter.charge("p", "a", 9)
    event = recorder.events[0]
    assert (event.verb, event.policy, event.allowed, event.refused) == ("charge", "p", 1, 0)


def test_an_event_adds_up_what_it_counts(make: Any) -> None:
    limiter, _, recorder = make()
    limiter.decide_many("p", ["a"] * 5 + ["b"] * 2 + [""])
    event = recorder.events[0]
    assert (event.allowed, event.refused, event.errors) == (5, 2, 1)
    assert event.by_origin == {"store": 7}
    assert event.refused_by_limit == {Limit.parse("3/day"): 2}


def test_a_call_that_is_wrong_as_a_whole_is_not_reported(make: Any) -> None:
    limiter, _, recorder = make()
    for verb in ("decide", "peek", "schedule"):
        for wrong in (("poison", "s"), ("p", ""), ("p", "s", -1)):
            with pytest.raises(ValueError):
                getattr(limiter, verb)(*wrong)
        for name in ("segment", "channel"):
            with pytest.raises(UnknownNameError):
                getattr(limiter, verb)("p", "s", **{name: "poison"})
    for verb in ("decide_many", "peek_many"):
        for policy, names in (("poison", {}), ("p", {"segment": "poison"}), ("p", {"channel": "poison"})):
            with pytest.raises(UnknownNameError):
                getattr(limiter, verb)(policy, ["s"], **names)
        with pytest.raises(InvalidTypeError):
            getattr(limiter, verb)("p", ["s"], channel=[])
    assert recorder.told == []


def test_names_that_nobody_defined_are_reported_nowhere_even_while_the_store_is_away(make: Any) -> None:
    limiter, door, recorder = make()
    door.down = gone()
    answers = ("poison", None), ("p", "poison"), ("p", "new")
    with pytest.raises(StoreError):
        limiter.decide_batch([Attempt(policy, "s", segment=segment) for policy, segment in answers])
    for names in ({"segment": ["new", "poison"], "codes": [0, 1]}, {"channel": "poison"}):
        with pytest.raises(UnknownNameError):
            limiter.decide_many("p", ["s", "s"], **names)
    assert [told.counts for told in recorder.told] == [{error(None, None, None): 2, error("p", "new", None): 1}]


def test_a_joint_attempt_is_one_event_under_the_names_of_the_part_that_binds(make: Any) -> None:
    limiter, _, recorder = make()
    parts = [Attempt("p", "s", segment="new", channel="push"), Attempt("q", "t", segment="told apart by nobody")]
    allowed, refused = limiter.decide_all(parts), limiter.decide_all(parts)
    full = limiter.decide_all([Attempt("q", "t", 2), Attempt("p", "u")])
    second = limiter.peek_all([Attempt("p", "v"), Attempt("q", "a", 3)])
    limiter.peek_all([Attempt("q", "a")])
    assert [told[:5] for told in recorder.told] == [
        ("decide_all", None, None, None, 1),
        ("decide_all", None, None, None, 1),
        ("decide_all", None, None, None, 1),
        ("peek_all", None, None, None, 1),
        ("peek_all", "q", None, None, 1),
    ]
    names = ("p", "new", "push")
    assert (allowed.binds, refused.binds, full.binds, second.binds) == (0, 0, 0, 1)
    assert [told.counts for told in recorder.told[:4]] == [
        {outcome(allowed, *names): 1},
        {outcome(refused, *names): 1},
        {outcome(full, "q"): 1},
        {outcome(second, "q"): 1},
    ]
    assert all(told.seconds is not None for told in recorder.told)


def test_a_joint_attempt_that_is_wrong_is_not_reported_and_one_that_failed_is_an_error(make: Any) -> None:
    limiter, door, recorder = make()
    for wrong in ([], [Attempt("poison", "s")], [Attempt("p", "s"), Attempt("p", "s")], [Attempt("p", "s", 0)]):
        with pytest.raises(ValueError):
            limiter.decide_all(wrong)
    with pytest.raises(UnknownNameError):
        limiter.decide_all([Attempt("p", "s", segment="poison")])
    assert recorder.told == []
    assert limiter.decide_all([Attempt("q", "s", id="x")])
    with pytest.raises(IdConflictError):
        limiter.decide_all([Attempt("q", "s", 2, id="x")])
    door.down = gone()
    with pytest.raises(StoreError):
        limiter.peek_all([Attempt("q", "s"), Attempt("p", "s")])
    assert [told.counts for told in recorder.told[1:]] == [{error(): 1}, {error(): 1}]


def test_a_joint_attempt_in_an_outage_is_reported_as_what_stood_in(make: Any) -> None:
    limiter, door, recorder = make(on_store_error=Insurance(hosts=1))
    door.down = gone()
    assert limiter.decide_all([Attempt("q", "s"), Attempt("p", "s")])
    assert [(kind.verdict, kind.origin) for kind in recorder.sums()] == [("allowed", "insurance")]


def test_zones_and_refusals_that_count_leave_the_labels_bounded(make: Any) -> None:
    limiter, _, recorder = make()
    limiter.use([Policy("p", ["2/calendar-day"], count_denied=True)])
    for zone in (None, "Asia/Tokyo", "UTC"):
        limiter.decide("p", "s", zone=zone)
    limiter.decide_many("p", ["a", "b"], zone=["UTC", "Asia/Tokyo"], codes=[0, 1])
    assert {kind[:4] for kind in recorder.sums()} == {("p", None, None, Limit.parse("2/calendar-day"))}
    assert sum(recorder.sums().values()) == 5


# --- the store is away ------------------------------------------------------------------------------------------


def ask_all(limiter: Any) -> None:
    for verb in ("decide", "peek", "schedule"):
        try_it(lambda verb=verb: getattr(limiter, verb)("q", "s"))
    try_it(lambda: limiter.decide_batch([Attempt("q", "s")] * 3))
    for verb in ("decide_many", "peek_many"):
        try_it(lambda verb=verb: getattr(limiter, verb)("q", ["s", "t", ""]))


def try_it(ask: Any) -> None:
    try:
        ask()
    except StoreError:
        return


@pytest.mark.parametrize("bound", [False, True], ids=["from the start", "later"])
def test_an_error_of_the_store_is_reported_of_every_attempt(make: Any, bound: bool) -> None:
    limiter, door, recorder = make()
    if bound:
        limiter.peek("q", "s")
        recorder.told.clear()
    door.down = gone()
    ask_all(limiter)
    assert [sum(told.counts.values()) for told in recorder.told] == [1, 1, 1, 3, 3, 3]
    # Where even the rule could not be handed over, the batch ends at its first row, and no other has come to be read.
    assert recorder.sums() == {error(): 12} if bound else {error(): 10, error(None, None, None): 2}


@pytest.mark.parametrize(
    ("choice", "origin"), [("allow", "fallback"), ("deny", "fallback"), (Insurance(hosts=1), "insurance")]
)
def test_what_stands_in_for_the_store_is_reported_with_its_origin(make: Any, choice: Any, origin: str) -> None:
    limiter, door, recorder = make(on_store_error=choice)
    limiter.peek("q", "s")
    recorder.told.clear()
    door.down = gone()
    ask_all(limiter)
    by_origin = Counter({kind.origin: 0 for kind in recorder.sums()})
    for kind, count in recorder.sums().items():
        by_origin[kind.origin] += count
    assert by_origin == {origin: 10, "": 2}


def test_rows_that_were_lost_are_reported_as_what_stood_in_for_them(make: Any) -> None:
    limiter, door, recorder = make(on_store_error="deny")
    door.lost = {"b", "c"}
    limiter.decide_many("q", ["a", "b", "c", "a", "a"])
    limiter.decide_batch([Attempt("q", name) for name in "abc"])
    assert [told.counts for told in recorder.told] == [
        {
            Outcome("q", None, None, Limit.parse("2/day"), "allowed", "store"): 2,
            Outcome("q", None, None, Limit.parse("2/day"), "refused", "store"): 1,
            Outcome("q", None, None, None, "refused", "fallback"): 2,
        },
        {
            Outcome("q", None, None, Limit.parse("2/day"), "refused", "store"): 1,
            Outcome("q", None, None, None, "refused", "fallback"): 2,
        },
    ]


def test_rows_that_were_lost_are_errors_where_nobody_stands_in(make: Any) -> None:
    limiter, door, recorder = make()
    door.lost = {"b"}
    limiter.decide_many("p", ["a", "b", "b"], segment=["new", "old"], codes=[0, 1, 0])
    assert recorder.told[0].counts == {
        Outcome("p", "new", None, Limit.parse("1/day"), "allowed", "store"): 1,
        error("p", "old", None): 1,
        error("p", "new", None): 1,
    }


def test_an_id_with_another_cost_is_an_error_and_a_refusal_remembered_here_took_no_time_of_the_store(make: Any) -> None:
    limiter, _, recorder = make(deny_cache=10)
    limiter.decide("q", "s", 1, "a")
    with pytest.raises(IdConflictError):
        limiter.decide("q", "s", 2, "a")
    refused = [limiter.decide("q", "t", 3) for _ in range(2)]
    assert [told.counts for told in recorder.told[1:]] == [
        {error(): 1},
        *({outcome(answer, "q"): 1} for answer in refused),
    ]
    assert [answer.origin for answer in refused] == ["store", "deny-cache"]
    assert [told.seconds is None for told in recorder.told] == [False, False, False, True]


def test_many_rows_are_counted_before_the_event_loop_has_them() -> None:
    class Looks:
        counted: list[bool] = []  # noqa: RUF012 - one for the test

        def decided(self, event: Any) -> None:
            self.counted.append(event.counted is not None)

    async def main() -> None:
        async with AsyncLimiter("memory://", POLICIES, observers=[Looks()]) as limiter:
            await limiter.decide_many("q", range(5000))
            await limiter.decide_batch([Attempt("q", n) for n in range(5000)])
            await limiter.decide_many("q", range(50))
            await limiter.decide("q", 1)

    asyncio.run(main())
    assert Looks.counted == [True, True, False, False]


def test_a_call_that_was_cancelled_is_not_reported() -> None:
    recorder = Recorder()

    async def hangs(*_: Any) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        made: Any = AsyncLimiter("memory://", POLICIES, observers=[recorder])
        async with made as limiter:
            limiter._store.step = hangs
            asking = asyncio.create_task(limiter.peek("q", "s"))
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])

    asyncio.run(main())
    assert recorder.told == []


def test_a_limiter_from_a_file_has_observers_and_a_reload_keeps_them(tmp_path: Path) -> None:
    path, recorder = tmp_path / "policies.yaml", Recorder()
    path.write_text("policies:\n  a:\n    limits: [1/day]\n")
    with Limiter.from_file(path, "memory://", observers=[recorder]) as limiter:
        limiter.decide("a", "s")
        path.write_text("policies:\n  another:\n    limits: [1/day]\n")
        assert limiter.reload()
        limiter.decide("another", "s")
    assert [told.policy for told in recorder.told] == ["a", "another"]


@pytest.mark.parametrize("observers", [5, Recorder(), [None], [Recorder], [Recorder(), "log"], [Recorder()] * 17])
def test_what_is_no_list_of_observers_is_refused(observers: Any) -> None:
    with pytest.raises((InvalidTypeError, InvalidValueError), match="observer"):
        Limiter("memory://", POLICIES, observers=observers)


# --- an observer that raises --------------------------------------------------------------------------------------


def test_an_observer_that_raises_breaks_nothing_and_is_counted(make: Any) -> None:
    limiter, _, recorder = make()
    raising, hears = Raising(), Hears()
    inner = inner_of(limiter)
    inner._observers = observed.Observers([raising, recorder, hears])
    assert limiter.decide("q", "s")
    assert len(limiter.decide_batch([Attempt("q", "s")] * 2)) == 2
    assert len(limiter.decide_many("q", range(5000))) == 5000
    assert raising.times == len(recorder.told) == hears.failed == inner.observer_errors == 3


def test_an_observer_that_raises_at_an_error_leaves_the_error_as_it_was(make: Any) -> None:
    limiter, door, _ = make()
    inner_of(limiter)._observers = observed.Observers([Raising()])
    door.down = gone()
    for ask in (lambda: limiter.decide("q", "s"), lambda: limiter.decide_many("q", ["s"])):
        with pytest.raises(StoreError, match="nobody is there") as raised:
            ask()
        assert raised.value is door.down


def test_what_raised_is_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = [5.0]
    monkeypatch.setattr(observed, "monotonic", lambda: now[0])
    with Limiter("memory://", POLICIES, observers=[Raising(), Raising()]) as limiter:
        for at in (5.0, 5.1, 64.9, 65.0, 66.0, 3000.0):
            now[0] = at
            limiter.decide("q", "s")
        assert limiter.observer_errors == 12
    lines = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    said = "observer Raising raised, and was passed over; {} times that any did since the line before"
    assert lines == [("capline", "WARNING", said.format(times)) for times in (1, 6, 4)]
    assert "no room for decide" in caplog.text


def test_a_hearer_of_failures_that_fails_at_that_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Hopeless(Raising):
        def observer_failed(self) -> None:
            raise RuntimeError

    registry = CollectorRegistry()
    with Limiter("memory://", POLICIES, observers=[Hopeless(), PrometheusObserver(registry)]) as limiter:
        assert limiter.decide("q", "s")
        assert limiter.decide("q", "s")
    assert registry.get_sample_value("capline_observer_errors_total") == 2
    assert len(caplog.records) == 1


# --- metrics ------------------------------------------------------------------------------------------------------

SEGMENTS = [f"s{number}" for number in range(200)]


@cache
def ten() -> list[Policy]:
    """Policies with two thousand sets of limits, which take long to make."""
    limits = {name: ["1/day"] for name in SEGMENTS}
    return [Policy(f"p{number}", ["1/day"], by_segment=limits) for number in range(10)]


def test_label_sets_are_bounded_under_two_thousand_segments_and_every_attempt_is_counted() -> None:
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    observers = [
        PrometheusObserver(registry, label_sets=100),
        OpenTelemetryObserver(MeterProvider([reader]), label_sets=100),
    ]
    with Limiter("memory://", ten(), observers=observers, on_store_error="deny") as limiter:
        for policy in ten():
            for _ in range(2):
                limiter.decide_many(policy.name, range(200), segment=SEGMENTS, codes=range(200))
        again = limiter.decide_many("p0", range(3), segment=SEGMENTS, codes=range(3))
        assert not again.allowed.any()
    family = next(family for family in registry.collect() if family.name == "capline_decisions")
    totals = {tuple(s.labels.values()): s.value for s in family.samples if s.name.endswith("_total")}
    assert len(totals) == 102
    others = {labels[5:]: value for labels, value in totals.items() if labels[1] == "other"}
    assert others == {("allowed", "store"): 1900, ("refused", "store"): 2003}
    assert all(labels[:5] == ("decide_many", *("other",) * 4) for labels in totals if labels[1] == "other")
    data: Any = reader.get_metrics_data()
    metrics: Any = {metric.name: metric.data for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert {
        tuple(point.attributes.values()): point.value for point in metrics["capline_decisions_total"].data_points
    } == totals


def test_a_peek_is_never_counted_as_a_decision_or_a_refusal(lines: Any) -> None:
    """Whoever shows a user what is left, at every page, must not look as if users were refused."""
    registry, refusals = CollectorRegistry(), list[Any]()

    class Counting:
        def decided(self, event: Any) -> None:
            counted = event.allowed, event.refused, event.refused_by_limit, event.would_allow, event.would_refuse
            refusals.append(counted)

    observers = [PrometheusObserver(registry), LogObserver(allowed_ratio=0), Counting()]
    with Limiter("memory://", [Policy("q", ["1/day"])], observers=observers) as limiter:
        assert limiter.peek("q", "s")
        assert not limiter.peek("q", "s", 2)
        assert not limiter.peek_all([Attempt("q", "s", 2)])
        assert not limiter.peek_many("q", ["s", "t"], cost=2).allowed.any()
        assert refusals == [(0, 0, {}, 1, 0), (0, 0, {}, 0, 1), (0, 0, {}, 0, 1), (0, 0, {}, 0, 2)]
        families = {family.name: family for family in registry.collect()}
        assert not families["capline_decisions"].samples
        assert not limiter.decide("q", "s", 2)
    assert refusals[-1] == (0, 1, {Limit(1, 86_400_000_000): 1}, 0, 0)
    rest = {"policy": "q", "segment": "", "channel": "", "limit": "1/day", "origin": "store", "verdict": "refused"}
    assert registry.get_sample_value("capline_decisions_total", {"verb": "decide", **rest}) == 1
    for verb, count in {"peek": 1, "peek_all": 1, "peek_many": 2}.items():
        assert registry.get_sample_value("capline_peeks_total", {"verb": verb, **rest}) == count
    told = [json.loads(line) for line in lines[1]]
    assert [(line["verb"], line["refused"], line["would_refuse"]) for line in told] == [
        ("peek", 0, 1),
        ("peek_all", 0, 1),
        ("peek_many", 0, 2),
        ("decide", 1, 0),
    ]


def test_call_labels_are_bounded_too_and_keep_their_verb() -> None:
    registry = CollectorRegistry()
    with Limiter("memory://", ten(), observers=[PrometheusObserver(registry, label_sets=2)]) as limiter:
        for policy in ten():
            limiter.peek(policy.name, "s")
    count = "capline_store_seconds_count"
    assert registry.get_sample_value(count, {"verb": "peek", "policy": "p1"}) == 1
    assert registry.get_sample_value(count, {"verb": "peek", "policy": "p2"}) is None
    assert registry.get_sample_value(count, {"verb": "peek", "policy": "other"}) == 8


def test_a_refusal_remembered_here_is_counted_and_not_timed() -> None:
    registry = CollectorRegistry()
    with Limiter("memory://", POLICIES, observers=[PrometheusObserver(registry)], deny_cache=9) as limiter:
        assert not limiter.decide("q", "s", 3)
        assert limiter.decide("q", "s", 3).origin == "deny-cache"
        assert limiter.observer_errors == 0
    assert registry.get_sample_value("capline_store_seconds_count", {"verb": "decide", "policy": "q"}) == 1


def test_threads_lose_no_count_and_pass_no_bound() -> None:
    registry = CollectorRegistry()
    with Limiter("memory://", ten(), observers=[PrometheusObserver(registry, label_sets=50)]) as limiter:

        def ask(number: int) -> None:
            for segment in SEGMENTS:
                limiter.decide("p0", number, segment=segment)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(8)))
    family = next(family for family in registry.collect() if family.name == "capline_decisions")
    totals = [sample for sample in family.samples if sample.name.endswith("_total")]
    assert sum(sample.value for sample in totals) == 1600
    assert len(totals) <= 52


def test_an_origin_that_a_store_made_up_is_bounded() -> None:
    recorder, registry = Recorder(), CollectorRegistry()
    observer = PrometheusObserver(registry, label_sets=1)
    with Limiter("memory://", POLICIES, observers=[recorder]) as limiter:
        limiter.decide("q", "s")
    event = recorder.events[0]
    for number in range(100):
        event.counted = {Outcome("q", None, None, None, "allowed", f"made up {number}"): 1}
        observer.decided(event)
    names = dict.fromkeys(("policy", "segment", "channel", "limit"), "other")
    others = {"verb": "decide", **names, "verdict": "allowed"}
    assert registry.get_sample_value("capline_decisions_total", {**others, "origin": "other"}) == 99


def test_a_second_observer_in_one_registry_is_refused_and_one_may_be_shared() -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    with pytest.raises(InvalidValueError, match="has capline's metrics already"):
        PrometheusObserver(registry)
    for _ in range(2):
        with Limiter("memory://", POLICIES, observers=[observer]) as limiter:
            limiter.decide("q", "s")
    named = {"verb": "decide", "policy": "q", "segment": "", "channel": ""}
    labels = {**named, "limit": "2/day", "verdict": "allowed", "origin": "store"}
    assert registry.get_sample_value("capline_decisions_total", labels) == 2


@pytest.mark.parametrize("most", [0, -1, 1_000_001, True, 1.5, "9"])
def test_a_number_of_label_sets_that_cannot_be_is_refused(most: Any) -> None:
    for make in (PrometheusObserver, OpenTelemetryObserver):
        with pytest.raises((InvalidTypeError, InvalidValueError), match="label_sets"):
            make(label_sets=most)


def test_prometheus_in_multiprocess_mode_sums_over_processes(tmp_path: Path) -> None:
    program = (
        "from capline import Limiter, Policy\n"
        "from capline.observe import PrometheusObserver\n"
        "with Limiter('memory://', [Policy('p', ['3/day'])], observers=[PrometheusObserver()]) as limiter:\n"
        "    for _ in range(5): limiter.decide('p', 's')\n"
    )
    scrape = (
        "from prometheus_client import CollectorRegistry, generate_latest, multiprocess\n"
        "registry = CollectorRegistry()\n"
        "multiprocess.MultiProcessCollector(registry)\n"
        "print(generate_latest(registry).decode())\n"
    )
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for _ in range(2):
        subprocess.run([sys.executable, "-W", "error", "-c", program], env=environment, check=True)
    text = subprocess.run(
        [sys.executable, "-c", scrape], env=environment, check=True, capture_output=True, text=True
    ).stdout
    lines = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in text.splitlines()}
    named = 'channel="",limit="3/day",origin="store",policy="p",segment=""'
    assert lines[f'capline_decisions_total{{{named},verb="decide",verdict="allowed"}}'] == "6.0"
    assert lines[f'capline_decisions_total{{{named},verb="decide",verdict="refused"}}'] == "4.0"
    assert lines['capline_store_seconds_count{policy="p",verb="decide"}'] == "10.0"


@pytest.mark.parametrize(
    ("missing", "observer", "extra"),
    [
        ("prometheus_client", "PrometheusObserver", "prometheus"),
        ("opentelemetry.metrics", "OpenTelemetryObserver", "otel"),
    ],
)
def test_an_observer_without_its_package_names_the_extra(missing: str, observer: str, extra: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"from capline.observe import {observer}\n"
        f"try: {observer}()\n"
        "except Exception as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(f'pip install "capline[{extra}]"')


# --- lines --------------------------------------------------------------------------------------------------------


@pytest.fixture
def lines() -> Iterator[tuple[logging.Logger, list[str]]]:
    kept: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record.getMessage())

    logger = logging.getLogger("capline.decisions")
    handler = Keeps()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger, kept
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def test_a_line_is_json_and_says_what_was_decided(lines: Any) -> None:
    with Limiter("memory://", POLICIES, observers=[LogObserver()]) as limiter:
        limiter.decide("p", "poison", channel="push")
        limiter.decide_many("q", ["poison"] * 3 + [""])
    first, second = (json.loads(line) for line in lines[1])
    assert first.pop("seconds") > 0
    names = {"policy": "p", "segment": None, "channel": "push"}
    peeks = {"would_allow": 0, "would_refuse": 0}
    counts = {"allowed": 1, "refused": 0, "errors": 0, **peeks, "limits": {}, "origins": {"store": 1}}
    assert first == {"verb": "decide", **names, **counts, "left_out": 0}
    del second["seconds"]
    names = {"policy": "q", "segment": None, "channel": None}
    counts = {"allowed": 2, "refused": 1, "errors": 1, **peeks, "limits": {"2/day": 1}, "origins": {"store": 3}}
    assert second == {"verb": "decide_many", **names, **counts, "left_out": 0}
    assert not any("poison" in line or "\n" in line for line in lines[1])


def test_there_are_never_more_lines_in_a_second_than_stated(lines: Any) -> None:
    now = [100.0]
    with Limiter("memory://", POLICIES, observers=[LogObserver(lines_per_second=3, now=lambda: now[0])]) as limiter:
        for at in (100.0, 100.5, 100.9, 100.95, 100.99, 101.0, 101.4, 101.5):
            now[0] = at
            limiter.decide("q", "s")
    assert [json.loads(line)["left_out"] for line in lines[1]] == [0, 0, 0, 2, 1]


def test_a_part_of_what_was_simply_allowed_has_lines_and_all_the_rest_has(lines: Any) -> None:
    observer = LogObserver(allowed_ratio=0.1, lines_per_second=1000)
    with Limiter("memory://", POLICIES, observers=[observer]) as limiter:
        for number in range(50):
            limiter.decide("q", number)
        assert len(lines[1]) == 5
        assert not limiter.decide("q", 1, 3)
        assert len(lines[1]) == 6
        limiter.decide_many("q", ["s"] * 3)
        assert len(lines[1]) == 7
    door = behind_a_door(*POLICIES, on_store_error="allow", observers=[LogObserver(allowed_ratio=0)])
    door[1].down = gone()
    door[0].decide("q", "s")
    close(door[0])
    assert json.loads(lines[1][-1])["origins"] == {"fallback": 1}


def test_a_logger_that_does_not_listen_costs_no_count(lines: Any) -> None:
    lines[0].setLevel(logging.WARNING)
    recorder: list[Any] = []

    class Keeps:
        def decided(self, event: Any) -> None:
            recorder.append(event.counted)

    with Limiter("memory://", POLICIES, observers=[LogObserver(), Keeps()]) as limiter:
        limiter.decide("q", "s")
    assert recorder == [None]
    assert lines[1] == []


@pytest.mark.parametrize(
    "options",
    [
        {"lines_per_second": 0},
        {"lines_per_second": 100_001},
        {"lines_per_second": 1.5},
        {"allowed_ratio": 1.1},
        {"allowed_ratio": float("nan")},
        {"allowed_ratio": "all"},
    ],
)
def test_options_of_lines_that_cannot_be_are_refused(options: Any) -> None:
    with pytest.raises((InvalidTypeError, InvalidValueError), match=next(iter(options))):
        LogObserver(**options)


def test_counts_by_a_sort_are_those_by_places(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Counter[Outcome]] = []
    for few in (1 << 16, 0):
        monkeypatch.setattr(observed, "FEW_KINDS", few)
        recorder = Recorder()
        with Limiter("memory://", POLICIES, observers=[recorder]) as limiter:
            codes = np.arange(900) % 2
            limiter.decide_many("p", np.arange(900) // 4, segment=["new", "old"], codes=codes)
        seen.append(recorder.sums())
    assert seen[0] == seen[1]
    assert seen[0].total() == 900
