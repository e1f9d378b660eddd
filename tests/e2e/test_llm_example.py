"""The example of a language model's limits: its parts in one process, and processes that share one key."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.kit.examples import EXAMPLES, example
from tests.kit.servers import shared

from capline import Limiter, ManualClock, Policy

RUN = EXAMPLES / "llm" / "run.py"
MOST_RUNS = 5


@pytest.fixture(scope="module")
def llm() -> Iterator[Any]:
    with example("llm") as module:
        yield module


def test_the_provider_counts_what_a_request_may_use_until_it_has_answered(
    llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0]
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])
    provider = llm("provider").Provider(3, 100, 1.0)
    first = provider.lets_in(60)
    assert provider.lets_in(41) is None
    provider.answer(first, 10)
    assert provider.left() == (2, 90)
    now[0] = 500_000_000
    assert provider.lets_in(90)
    assert (provider.lets_in(1), provider.left(), provider.retry_after()) == (None, (1, 0), 1)
    now[0] = 1_000_000_000
    assert provider.left() == (2, 10), "a second old is out"
    assert (provider.stats()["refused"], provider.stats()["tokens"]) == (2, 10)


@contextmanager
def serving(provider: Any) -> Generator[str]:
    """The provider on a port of its own, in a thread."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(provider.serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)


Asking = tuple[Any, Any, Limiter]


@pytest.fixture
def asking(llm: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], Asking]]:
    """A client whose limits are so many requests and tokens an hour, at a provider of ten requests."""
    monkeypatch.setattr(llm("provider"), "ANSWER_SECONDS", (0, 0))
    provider = llm("provider").Provider(10, 2_000, 3600)
    with serving(provider) as url, httpx.Client(base_url=url, trust_env=False) as client:
        made: list[Limiter] = []

        def make(requests: int, tokens: int) -> Asking:
            limits = llm("model").policies(f"{requests}/hour", f"{tokens}/hour", "1s")
            # Without the limit that spreads them: a test does not wait for six minutes.
            made.append(Limiter("memory://", [type(one)(one.name, one.limits[:1]) for one in limits]))
            return llm("model").Model(made[-1], client, "key", 5), provider, made[-1]

        yield make
        for limiter in made:
            limiter.close()


def test_what_was_estimated_becomes_what_was_used(asking: Callable[[int, int], Asking]) -> None:
    model, provider, limiter = asking(10, 2_000)
    for _ in range(3):
        assert model.complete("three words here", 100)["usage"]["total_tokens"] <= 103
    used = [limiter.usage(policy, "key")[0].used for policy in ("llm-requests", "llm-tokens")]
    assert used == [3, provider.stats()["tokens"]]


def test_what_others_use_is_charged_to_the_log_of_all(asking: Callable[[int, int], Asking]) -> None:
    model, provider, limiter = asking(10, 2_000)
    assert provider.lets_in(700)
    assert provider.lets_in(300)
    for _ in range(5):
        model.complete("a b", 30)
    requests, tokens = (limiter.usage(policy, "key")[0] for policy in ("llm-requests", "llm-tokens"))
    assert requests.used == 7
    assert tokens.used == 1_000 + provider.stats()["tokens"]


def test_calls_that_wait_still_hide_nothing_and_it_is_charged_once(llm: Any) -> None:
    clock = ManualClock()
    hourly = Policy("llm-requests", ["10/hour"])
    with httpx.Client() as client, Limiter("memory://", [hourly], clock=clock) as limiter:
        model = llm("model").Model(limiter, client, "key", 5)
        assert limiter.schedule("llm-requests", "key", not_before=1_800).allowed
        for _ in range(6):
            model._believe({"x-ratelimit-remaining-requests": "6"})
            clock.advance_us(200_000_000)
        assert limiter.usage("llm-requests", "key")[0].used == 1 + 4


def test_a_call_that_was_refused_is_not_counted_and_goes_when_the_provider_says(
    asking: Callable[[int, int], Asking], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, provider, limiter = asking(20, 2_000)
    provider.requests = 0

    def again_soon() -> float:
        provider.requests = 10
        return 0.2

    monkeypatch.setattr(provider, "retry_after", again_soon)
    before_us = limiter.now_us()
    used = model.complete("a b", 30)["usage"]["total_tokens"]
    log = limiter.explain("llm-tokens", "key")
    assert provider.refused == 1
    assert [hit.units for hit in log.hits if hit.units] == [used]
    assert max(hit.stamp_us for hit in log.hits) >= before_us + 200_000
    assert limiter.usage("llm-requests", "key")[0].used == 1


@pytest.mark.deep
@pytest.mark.alone
@pytest.mark.parametrize("kind", ["lmdb", "redis"])
def test_processes_that_share_a_key_never_hear_429_and_use_most_of_the_quota(kind: str) -> None:
    # A second for the way, of a minute of five seconds. A machine that was away for longer gets another run.
    options = ["--seconds", "12", "--jitter", "1s", "--json"]
    if kind != "lmdb":
        options += ["--store", shared(kind).url]
    seen: dict[str, Any] = {}
    for _ in range(MOST_RUNS):
        done = subprocess.run(
            [sys.executable, str(RUN), *options], capture_output=True, text=True, timeout=120, check=False
        )
        seen = json.loads(done.stdout)
        assert "Traceback" not in done.stderr
        if not seen["refused"] and seen["tokens_share"] > 0.6:
            assert done.returncode == 0, done.stderr
            return
    pytest.fail(f"{MOST_RUNS} runs, of which the last one: {seen}")


@pytest.mark.parametrize("options", [("--processes", "0"), ("--store", "mongo://here"), ("--jitter", "soon")])
def test_what_cannot_be_is_one_line(llm: Any, capsys: pytest.CaptureFixture[str], options: tuple[str, str]) -> None:
    try:
        code = llm("run").main(list(options))
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("run.py: ")
