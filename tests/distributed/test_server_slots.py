"""One slot under several policies on servers: in one call; an error that says how where a cluster keeps them apart."""

# pyright: reportUnknownArgumentType=false

from typing import Any

import pytest
from tests.kit.server import Limiters, Proxy, each_layout, executed, units
from tests.kit.servers import shared, single

from capline import Attempt, InvalidValueError, ManualClock, Policy

START_US = 1_700_000_000_000_000
QUICK = "deadline=300ms"


def policies(layout: str = "subject") -> list[Policy]:
    return [Policy(name, ["2/h"], layout=layout, population=500) for name in ("key", "organisation")]


def test_a_key_and_its_organisation_take_one_slot_in_one_call_on_a_cluster(sync_limiters: Limiters) -> None:
    nodes = shared("redis", "cluster")
    limiter = sync_limiters(nodes, *policies(), clock=ManualClock(START_US))
    parts = [Attempt("key", "{acme}:key:7"), Attempt("organisation", "{acme}")]
    assert limiter.schedule_all(parts).wait_us == 0
    before = sum(executed(node) for node in nodes.servers)
    assert [limiter.schedule_all(parts).wait_us for _ in range(2)] == [1, 3_600_000_000]
    assert sum(executed(node) for node in nodes.servers) - before == 2
    assert units(limiter, "{acme}", "organisation") == 3


@each_layout
def test_logs_in_two_slots_of_a_cluster_are_an_error_that_says_how(sync_limiters: Limiters, layout: str) -> None:
    limiter = sync_limiters(shared("valkey", "cluster"), *policies(layout))
    with pytest.raises(InvalidValueError, match=r"keeps 'acme' and 'key:7' in two: use one subject .* '\{acme\}:key'"):
        limiter.schedule_all([Attempt("organisation", "acme"), Attempt("key", "key:7")])
    assert [units(limiter, "acme", "organisation"), units(limiter, "key:7", "key")] == [0, 0]
    assert limiter.schedule_all([Attempt("organisation", "acme"), Attempt("key", "acme")]).allowed
    assert limiter.decide_all([Attempt("organisation", "other"), Attempt("key", "key:7")]).allowed


def test_an_answer_that_is_lost_is_asked_for_again_and_is_one_slot() -> None:
    with single("redis") as server, Proxy(server) as proxy:
        for asynchronous in (False, True):
            made = Limiters(asynchronous)
            limiter, direct = made(proxy.url(QUICK), *policies()), made(server, *policies())
            lost = iter(["reset", "reset"])
            limiter.schedule_all([Attempt("key", "warm")])
            proxy.fate = lambda _piece, lost=lost: next(lost, "pass")
            assert _acquired(limiter).allowed
            assert next(lost, None) is None
            assert [units(direct, "s", name) for name in ("key", "organisation")] == [1, 1]
            made.close()


def _acquired(limiter: Any) -> Any:
    parts = [Attempt("key", "s"), Attempt("organisation", "s")]
    if not hasattr(limiter, "inner"):
        with limiter.acquire_all(parts, timeout=60) as slot:
            return slot

    async def awaited() -> Any:
        async with limiter.inner.acquire_all(parts, timeout=60) as slot:
            return slot

    return limiter.run(awaited())
