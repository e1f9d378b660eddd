"""Every key expires: no later than its widest window and the grace, and never before its hits are out."""

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kit.server import SLOW, Limiters, each_layout, each_pair, soon
from tests.kit.servers import KINDS, Server, single

from capline import Attempt, ManualClock, Policy
from capline.store.redis.scripting import compiled_rule as compiled

GRACE_MS = 500


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with single(request.param) as made:
        yield made


@pytest.fixture(autouse=True)
def _little_grace(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.command("FLUSHALL")
    monkeypatch.setattr(compiled, "SERVER_GRACE_MS", GRACE_MS)
    monkeypatch.setattr(compiled, "CALLER_GRACE_MS", GRACE_MS)


def use_every_verb(limiter: Any, *, wait_s: float) -> None:
    for number in range(70):
        limiter.decide("p", number, channel="c" if number % 2 else None)
    limiter.decide("p", "s", 2, id="x")
    limiter.refund("p", "s", limiter.decide("p", "s", channel="c").hit)
    limiter.refund("p", "one", limiter.decide("p", "one").hit)
    for _ in range(6):
        limiter.schedule("p", "slots", max_wait=wait_s)
    limiter.decide_many("long", ["long"] * 350)
    limiter.decide("long", "long")
    limiter.decide("long", "long", 2, id="y")
    limiter.refund("long", "long", limiter.decide("long", "long").hit)
    limiter.decide_many("p", [*range(200), *range(9)], receipt="r")
    limiter.decide_batch([Attempt("p", f"b{number}", id="z") for number in range(70)])
    limiter.peek_many("p", range(1000))
    for number in range(9):
        limiter.commit("r", number, limiter.reserve("r", number, ttl=0.2).hit)
        limiter.reserve("r", number, ttl=0.1)
    for _ in range(150):
        limiter.reserve("r", "long", ttl=0.3)


def ttls(server: Server) -> dict[bytes, int]:
    """Of every key, but those that came to their end meanwhile, and the names of channels, which outlive their logs."""
    found = {key: server.command("PTTL", key) for key in server.command("KEYS", "*")}
    names = [ttl for key, ttl in found.items() if b":/channels:" in key]
    assert all(0 < ttl <= 3 * 3_600_500 for ttl in names)
    return {key: ttl for key, ttl in found.items() if ttl != -2 and b":/channels:" not in key}


def expired(server: Server) -> int:
    """How many keys came to their end since the server began."""
    [count] = re.findall(rb"expired_keys:(\d+)", server.command("INFO", "stats"))
    return int(count)


def policies(layout: str) -> list[Policy]:
    shape: dict[str, Any] = {"layout": layout, "population": 640}
    return [
        Policy("p", ["3/500ms", "5/s"], channels={"c": ["4/s"]}, **shape),
        Policy("long", ["800/s"], **shape),
        Policy("r", ["800/s"], reservations=True, **shape),
    ]


@each_layout
@pytest.mark.parametrize("channel", [None, "c"])
@pytest.mark.parametrize("verb", ["decide", "decide_many", "decide_all", "reserve"])
def test_a_longer_window_is_the_key_s_too_from_the_next_refusal_on(
    server: Server, sync_limiters: Limiters, layout: str, channel: str | None, verb: str
) -> None:
    def policy(limit: str) -> Policy:
        channels = {"c": [limit]} if channel else None
        reserves = verb == "reserve"
        return Policy("p", [limit], channels=channels, layout=layout, population=640, reservations=reserves)

    limiter = sync_limiters(server, policy("5/10s"))
    for number in range(5):
        if verb == "reserve" and number:
            limiter.reserve("p", "s", ttl=100, channel=channel)
        else:
            limiter.decide("p", "s", channel=channel)
    assert max(ttls(server).values()) <= 10_000 + 2 * GRACE_MS
    limiter.use([policy("5/h")])
    if verb == "decide_many":
        limiter.decide_many("p", ["s"] * 2, channel=channel)
    elif verb == "decide_all":
        limiter.decide_all([Attempt("p", "s", channel=channel)])
    else:
        limiter.decide("p", "s", channel=channel)
    assert min(ttls(server).values()) > 3_590_000


@each_layout
@pytest.mark.parametrize("algorithm", ["sliding_counter", "fixed_window", "gcra", "sliding_log"])
def test_numbers_live_as_long_as_the_longest_window(
    server: Server, sync_limiters: Limiters, layout: str, algorithm: str
) -> None:
    """And the log of hits beside them as long as they do; also where hits follow."""

    def policy(algorithm: str, *limits: str) -> Policy:
        return Policy("p", limits, algorithm=algorithm, layout=layout, population=640)

    limiter = sync_limiters(server, policy("gcra", "5/10s"), options=f"{SLOW}&forms=next")
    assert all(limiter.decide("p", "s", id=f"{number}") for number in range(5))
    assert len(ttls(server)) == 2
    assert max(ttls(server).values()) <= 20_000 + 2 * GRACE_MS
    limiter.use([policy(algorithm, "5/10s", "5/h")])
    assert not limiter.decide("p", "s", 5)
    assert min(ttls(server).values()) > 3_590_000


@pytest.mark.parametrize("hits", [3, 200], ids=["short", "long"])
def test_each_hit_gives_its_key_a_whole_window_more(server: Server, sync_limiters: Limiters, hits: int) -> None:
    limiter = sync_limiters(server, Policy("p", ["800/hour"]))
    limiter.decide_many("p", ["s"] * hits)
    [key] = server.command("KEYS", "*")
    for verb in (
        lambda: limiter.decide("p", "s"),
        lambda: limiter.decide("p", "s", 2),
        lambda: limiter.decide("p", "s", id="x"),
        lambda: limiter.schedule("p", "s"),
        lambda: limiter.decide_all([Attempt("p", "s")]),
        lambda: limiter.decide_batch([Attempt("p", "s")])[0],
        lambda: limiter.decide_many("p", ["s"]).allowed[0],
    ):
        server.command("PEXPIRE", key, 30_000)
        assert verb()
        assert server.command("PTTL", key) > 3_590_000


@each_layout
@pytest.mark.parametrize(("limits", "slots"), [(["1/hour", "9/2h"], 6), (["60/2h"], 200)], ids=["short", "long"])
def test_a_slot_gives_its_key_a_whole_window_behind_it(
    server: Server, sync_limiters: Limiters, layout: str, limits: list[str], slots: int
) -> None:
    limiter = sync_limiters(server, Policy("p", limits, layout=layout))
    waits_s: list[float] = []
    for _ in range(slots):
        waits_s.append(limiter.schedule("p", "s").wait)
        [ttl_ms] = ttls(server).values()
        assert ttl_ms > (waits_s[-1] + 7200) * 1000 - 60_000
    assert waits_s[-1] > 17_000


@each_pair
def test_every_key_has_an_end_and_comes_to_it(server: Server, limiters: Limiters, layout: str) -> None:
    limiter, before = limiters(server, *policies(layout)), expired(server)
    use_every_verb(limiter, wait_s=0.9)
    found = ttls(server)
    assert len(found) + expired(server) - before > 10  # a slow machine makes the last when the first are gone
    longest_ms = 1000 + GRACE_MS * 2 + 1000  # the widest window, the grace, in buckets half as much, and a slot's wait
    assert {key: ttl for key, ttl in found.items() if not 0 <= ttl <= longest_ms} == {}
    assert soon(lambda: server.command("DBSIZE") == 0)


@each_layout
def test_a_key_lives_as_long_as_its_hits_count(server: Server, sync_limiters: Limiters, layout: str) -> None:
    limiter = sync_limiters(server, Policy("p", ["2/s"], layout=layout, population=64))
    clock_us = limiter.decide("p", "first").hit
    while limiter.now_us() < clock_us + 900_000:
        assert not limiter.decide("p", "first") or limiter.decide("p", "first").remaining == 0
        time.sleep(0.02)
        limiter.decide("p", "other")
    [ttl, *_] = ttls(server).values()
    assert ttl > 50


def test_a_steady_stream_keeps_its_key_and_an_idle_one_goes(sync_limiters: Limiters, server: Server) -> None:
    limiter = sync_limiters(server, *policies("bucket"))
    end = time.monotonic() + 2.2
    while time.monotonic() < end:
        asked = time.monotonic()
        limiter.decide("p", 1)
        time.sleep(0.01)
        assert server.command("DBSIZE") == 1 or time.monotonic() - asked > 0.5  # the machine was away for longer
    assert limiter.explain("p", 1).hits
    assert soon(lambda: server.command("DBSIZE") == 0)


@each_layout
def test_with_a_caller_s_clock_keys_end_too(server: Server, sync_limiters: Limiters, layout: str) -> None:
    clock = ManualClock(5_000_000_000)
    limiter = sync_limiters(server, *policies(layout), clock=clock)
    use_every_verb(limiter, wait_s=0.9)
    clock.advance_us(-2_000_000)
    limiter.decide("p", "s")
    limiter.decide("long", "long")
    for key, ttl in ttls(server).items():
        assert 0 <= ttl <= 1000 + 2 * GRACE_MS + 3000, key  # 0 is less than a millisecond; -1 would be no end
    assert soon(lambda: server.command("DBSIZE") == 0)


@each_pair
def test_a_sweep_reaches_logs_that_its_limiter_has_not_used_and_passes_over_foreign_keys(
    server: Server, limiters: Limiters, layout: str
) -> None:
    clock = ManualClock(5_000_000_000)
    policy = Policy("p", ["3/day"], layout=layout, population=64)
    used = limiters(server, policy, clock=clock)
    assert used.decide("p", 1)
    clock.advance_us(3 * 86_400_000_000)
    assert used.decide("p", 2)
    assert limiters(server, policy, clock=clock).sweep() == 1
    assert used.peek("p", 2).remaining == 1
    server.command("SET", b"\x80x:{y}", b"of another application")
    assert limiters(server, policy, clock=clock).sweep() == 0


@each_layout
def test_a_retry_on_a_key_without_an_end_keeps_the_log_and_gives_it_an_end(
    server: Server, sync_limiters: Limiters, layout: str
) -> None:
    """PERSIST, or RESTORE with a ttl of 0, takes the end away; what is written again unchanged must not delete it."""
    limiter = sync_limiters(server, Policy("p", ["9/day"], layout=layout, population=64, reservations=True))
    held = limiter.reserve("p", 1, ttl=3600).hit
    assert limiter.commit("p", 1, held)
    ways: list[Any] = [
        lambda: limiter.decide("p", 1, id="x"),
        lambda: limiter.decide_all([Attempt("p", 1, id="x"), Attempt("p", 2, id="y")]),
        lambda: limiter.commit("p", 1, held),
        lambda: limiter.decide_many("p", [1], receipt="r").allowed[0],
    ]
    for way in ways:
        assert way()
        left = limiter.peek("p", 1).remaining
        keys = server.command("KEYS", "*")
        for key in keys:
            server.command("PERSIST", key)
        assert way()
        assert sorted(server.command("KEYS", "*")) == sorted(keys)
        assert limiter.peek("p", 1).remaining == left
        assert any(86_300_000 < server.command("PTTL", key) <= 86_400_000 + 2 * GRACE_MS for key in keys)


@each_layout
def test_nothing_pending_is_no_record(server: Server, sync_limiters: Limiters, layout: str) -> None:
    policy = Policy("r", ["800/h"], reservations=True, layout=layout, population=640, channels={"c": ["9/h"]})
    limiter = sync_limiters(server, policy)
    for channel in (None, "c"):
        for verb in (limiter.commit, limiter.cancel):
            assert verb("r", "s", limiter.reserve("r", "s", ttl=60, channel=channel).hit)
            assert not [key for key in ttls(server) if b"+reserved" in key]
    limiter.reserve("r", "s", ttl=0.001, channel="c")
    time.sleep(0.002)
    assert limiter.decide("r", "s", channel="c")
    assert not [key for key in ttls(server) if b"+reserved" in key]
