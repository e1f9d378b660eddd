"""Numbers of a policy as one value on a server, beside processes that do not begin it."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.kit.server import SLOW, Limiters, each_kind, each_layout
from tests.kit.servers import Server, shared

from capline import Attempt, Limiter, ManualClock, Policy
from capline.model.errors import IdConflictError

NEXT = f"{SLOW}&forms=next"
COUNTERS = ("sliding_counter", "fixed_window", "gcra")


def policy(layout: str, algorithm: str, *limits: str) -> Policy:
    return Policy("p", limits, algorithm=algorithm, layout=layout, population=640)


def keys(server: Server, namespace: str) -> list[str]:
    """The logs that there are, without subjects."""
    found: list[bytes] = server.command("KEYS", f"{namespace}:*")
    return sorted(key.decode().removeprefix(f"{namespace}:").partition(":{")[0] for key in found)


@each_kind
@each_layout
@pytest.mark.parametrize("algorithm", COUNTERS)
def test_sums_of_each_limit_become_rows_in_one_step(
    kind: str, layout: str, algorithm: str, sync_limiters: Limiters
) -> None:
    server, clock, rule = shared(kind), ManualClock(1_700_000_000_000_000), policy(layout, algorithm, "5/hour", "9/day")
    present = sync_limiters(server, rule, clock=clock)
    begins = sync_limiters(server, rule, clock=clock, options=NEXT)
    assert present.decide("p", "s", 2, id="x")
    assert len(keys(server, present.namespace)) == 3
    assert not begins.decide("p", "s", 4)
    assert len(keys(server, present.namespace)) == 3, "a refusal has nothing to write"
    assert begins.decide("p", "s")
    assert keys(server, present.namespace) == ["p", "p/+ids"]
    assert present.decide("p", "s", 2, id="x"), "its first answer"
    assert present.decide("p", "s", 2)
    assert [state.used for state in begins.usage("p", "s")] == [5, 5]
    assert present.erase("s") == 1
    assert not keys(server, present.namespace)


@each_layout
@pytest.mark.parametrize("algorithm", COUNTERS)
def test_policies_of_one_log_become_rows_one_after_the_other(
    layout: str, algorithm: str, sync_limiters: Limiters
) -> None:
    server = shared("redis")
    shape: dict[str, Any] = {"algorithm": algorithm, "layout": layout, "population": 640, "log": "both"}
    rules = [Policy("h", ["2/hour"], **shape), Policy("d", ["3/day"], **shape)]
    present = sync_limiters(server, *rules, clock=ManualClock(1_700_000_000_000_000))
    begins = sync_limiters(server, *rules, clock=ManualClock(1_700_000_000_000_001), options=NEXT)
    assert present.decide("d", "s", 2)
    assert begins.decide("h", "s", 2)
    assert present.usage("d", "s")[0].used == 2
    assert begins.decide("d", "s")
    assert keys(server, present.namespace) == ["both"]
    assert not any(limiter.decide(name, "s") for limiter in (present, begins) for name in "hd")


def answer(limiter: Limiter, ask: Callable[[Any], Any]) -> Any:
    try:
        return ask(limiter)
    except IdConflictError:
        return "conflict"


@each_kind
@each_layout
def test_processes_with_and_without_the_setting_share_every_number(kind: str, layout: str) -> None:
    """Where the value is there whoever writes keeps it: random steps of both, and changes, beside one in memory."""
    draw, clock = random.Random(f"{kind}{layout}"), ManualClock(1_700_000_000_000_000)
    name = f"t{draw.getrandbits(60):x}"
    changes = [
        policy(layout, algorithm, *limits)
        for algorithm in COUNTERS
        for limits in (["5/20us"], ["3/20us", "11/70us"], ["9/40us", "1000003/3s"], ["8/50us"])
    ]
    subjects: list[str | int] = ["a", 7, 9]
    hits: list[tuple[str | int, int]] = []
    urls = [*(f"{shared(kind).url}?{options}" for options in (NEXT, SLOW)), "memory://"]
    begins, present, twin = (Limiter(url, [changes[0]], clock=clock, namespace=name) for url in urls)

    def step() -> tuple[str, Callable[[Any], Any]]:
        subject, cost, id = draw.choice(subjects), draw.randrange(1, 5), draw.choice([None, None, "x", "y"])
        whose, hit = draw.choice(hits[-30:])
        parts = [Attempt("p", subject, cost), Attempt("p", draw.choice([one for one in subjects if one != subject]))]
        asks: dict[str, Callable[[Any], Any]] = {
            "refund": lambda limiter: limiter.refund("p", whose, hit, cost),
            "settle": lambda limiter: limiter.settle("p", whose, hit, cost),
            "explain": lambda limiter: [(hit.stamp_us, hit.units) for hit in limiter.explain("p", subject).hits],
            "usage": lambda limiter: limiter.usage("p", subject),
            "decide_all": lambda limiter: limiter.decide_all(parts),
        }
        verb = draw.choice(["decide", "decide", "peek", "charge", "schedule", *asks])
        if verb not in asks:
            return verb, lambda limiter: noted(getattr(limiter, verb)("p", subject, cost, id=id), subject)
        return verb, asks[verb]

    def noted(decision: Any, subject: str | int) -> Any:
        if decision.hit is not None:
            hits.append((subject, decision.hit))
        return decision, decision.limits

    with begins, present, twin:
        for subject in subjects:
            assert begins.decide("p", subject) == twin.decide("p", subject)
            hits.append((subject, clock.now_us()))
        for number in range(700):
            clock.advance_us(draw.choice([0, 1, 4, 15, -3]))
            if draw.random() < 0.1:
                rule = draw.choice(changes)
                for limiter in (begins, present, twin):
                    limiter.use([rule])
            verb, ask = step()
            assert answer(draw.choice([begins, present]), ask) == answer(twin, ask), f"{verb}, step {number}"
        [shape] = {name.partition("/")[2] for name in keys(shared(kind), name)} - {""}
        assert shape == "+ids"
