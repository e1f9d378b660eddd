"""`acquire` goes on asking while its store is away: until its own timeout, and for one slot whatever is asked again."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.kit.server import SLOW, Limiters, Proxy, units
from tests.kit.servers import Server, single

from capline import Policy
from capline.model.decision import LimitExceeded
from capline.model.errors import StoreError, StoreUnavailableError

POLICY = Policy("p", ["100/day"])
QUICK = "deadline=300ms"
"""So that a silent server costs little; a call that is cut off by it is asked again."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with single("redis", "appendonly yes") as made:
        yield made


def taken(limiter: Any, **options: Any) -> Any:
    """The slot that `acquire` gives, sync or async."""
    if not hasattr(limiter, "inner"):
        with limiter.acquire("p", "s", **options) as slot:
            return slot

    async def awaited() -> Any:
        async with limiter.inner.acquire("p", "s", **options) as slot:
            return slot

    return limiter.run(awaited())


def test_a_server_that_restarts_costs_the_wait_and_not_the_call(server: Server, limiters: Limiters) -> None:
    limiter = limiters(server, POLICY, options=QUICK)
    server.kill()
    with ThreadPoolExecutor(1) as waiter:
        waiting = waiter.submit(taken, limiter, timeout=60)
        # Long enough for some tries, all of them refused.
        with pytest.raises(TimeoutError):
            waiting.result(1)
        server.restart()
        assert waiting.result().allowed
    assert units(limiter, "s") == 1


def test_an_answer_that_is_lost_is_asked_for_again_and_is_one_slot(server: Server, limiters: Limiters) -> None:
    with Proxy(server) as proxy:
        limiter, direct = limiters(proxy.url(QUICK), POLICY), limiters(server, POLICY)
        taken(limiter, timeout=60)
        lost = iter(["reset", "reset"])
        proxy.fate = lambda _piece: next(lost, "pass")
        assert taken(limiter, timeout=60).allowed
        assert next(lost, None) is None
        assert units(direct, "s") == 2


def test_past_the_timeout_it_is_the_stores_error(limiters: Limiters) -> None:
    with single("redis") as gone:
        address = gone.url
    limiter = limiters(f"{address}?{QUICK}", POLICY)
    with pytest.raises(StoreUnavailableError):
        taken(limiter, timeout=0.2)


def test_who_chose_an_answer_for_an_outage_gets_it_at_once(limiters: Limiters) -> None:
    with single("redis") as gone:
        address = gone.url
    for choice, allowed in (("allow", True), ("deny", False)):
        limiter = limiters(f"{address}?{QUICK}", POLICY, on_store_error=choice)
        if allowed:
            assert taken(limiter, timeout=60).origin == "fallback"
        else:
            with pytest.raises(LimitExceeded):
                taken(limiter, timeout=60)


def test_a_damaged_log_is_not_asked_again(server: Server, limiters: Limiters) -> None:
    limiter = limiters(server, POLICY, options=SLOW)
    taken(limiter)
    (key,) = server.command("KEYS", f"*{limiters.namespace}*")
    server.command("SET", key, b"\xff\xff\xff")
    with pytest.raises(StoreError):
        taken(limiter, timeout=600)
