"""The transports for httpx and the adapter for requests, against a real server, on stores that several hosts share."""

import asyncio
import logging
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientResponse
from tests.kit.http import CLIENTS, Caller, Provider
from tests.kit.servers import shared

from capline import Limiter, Policy
from capline.middleware.aiohttp import LimitedMiddleware
from capline.middleware.httpx import AsyncLimitedTransport, LimitedTransport
from capline.middleware.requests import LimitedAdapter
from capline.model.decision import LimitExceeded
from capline.model.errors import CaplineError, StoreUnavailableError
from capline.store.protocol import Operation

HOST = "127.0.0.1"
SOON = {"Retry-After": "0.4"}
HELD_S = 3
"""Long beside what a busy machine needs for two requests."""

pytestmark = pytest.mark.parametrize("kind", CLIENTS)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as started:
        yield started


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"lmdb://{tmp_path}/store"


@pytest.fixture
def call(kind: str, store: str) -> Iterator[Callable[..., Caller]]:
    made: list[Caller] = []

    def make(*limits: str, kind: str = kind, store: str = store, name: str = "psp", **options: Any) -> Caller:
        made.append(Caller(kind, store, Policy(name, list(limits)), **options))
        return made[-1]

    yield make
    for caller in made:
        caller.close()


def hits(caller: Caller, subject: str = HOST) -> list[tuple[int, int]]:
    """(stamp, units) of what is recorded."""
    name = next(iter(caller.limiter._rules.policies))
    return [(hit.stamp_us, hit.units) for hit in caller.run(caller.limiter.explain(name, subject)).hits]


def last_part(request: Any) -> str:
    return str(request.url).rpartition("/")[2]


def key_of(request: Any) -> str | None:
    return request.headers.get("Idempotency-Key")


def counted(caller: Caller, subject: str = HOST) -> int:
    return sum(units for _, units in hits(caller, subject))


def test_each_request_waits_for_a_slot_of_its_own(call: Callable[..., Caller], provider: Provider) -> None:
    caller = call("2/300ms")
    began = time.monotonic()
    assert [caller("GET", provider.url) for _ in range(5)] == [200] * 5
    assert 0.6 <= time.monotonic() - began < 60
    assert len(provider.seen) == 5


def test_the_subject_is_the_host_unless_said(call: Callable[..., Caller], provider: Provider) -> None:
    by_host, fixed = call("9/h"), call("9/h", subject="acme")
    by_path = call("9/h", subject=last_part)
    by_host("GET", provider.url + "/x")
    fixed("GET", provider.url + "/x")
    by_path("GET", provider.url + "/pay")
    assert [counted(by_host, subject) for subject in (HOST, "acme", "pay")] == [1, 1, 1]


def test_headers_that_claim_another_host_move_nobody_to_another_log(
    call: Callable[..., Caller], provider: Provider
) -> None:
    caller = call("2/h", max_wait=0)
    spoofed = {
        "Host": "elsewhere.example",
        "Forwarded": "for=192.0.2.60;host=elsewhere.example",
        "X-Forwarded-For": "192.0.2.60",
        "X-Forwarded-Host": "elsewhere.example",
        "X-Real-IP": "192.0.2.60",
    }
    for _ in range(2):
        assert caller("GET", provider.url, headers=spoofed) == 200
    for headers in (spoofed, {}):
        with pytest.raises(LimitExceeded):
            caller("GET", provider.url, headers=headers)
    assert [counted(caller, subject) for subject in (HOST, "elsewhere.example", "192.0.2.60")] == [2, 0, 0]
    assert len(provider.seen) == 2


def test_past_the_longest_wait_it_raises_and_consumes_nothing(call: Callable[..., Caller], provider: Provider) -> None:
    caller = call("1/h", max_wait=5)
    caller("GET", provider.url)
    with pytest.raises(LimitExceeded, match=r"subject '127[.]0[.]0[.]1': limit 1/hour is reached") as raised:
        caller("GET", provider.url)
    assert getattr(raised.value.decision, "retry_after", 0) > 3000
    assert (counted(caller), len(provider.seen)) == (1, 1)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("server", ["lmdb", "redis"])
def test_a_provider_that_asks_to_wait_holds_back_every_host(
    call: Callable[..., Caller], provider: Provider, store: str, status: int, server: str
) -> None:
    if server == "redis":
        store = shared("redis").url + "?deadline=10s"
    # A name of its own, as the server is shared by tests.
    name = f"psp-{secrets.token_hex(4)}"
    here, there = (call("900/minute", store=store, name=name) for _ in range(2))
    other_client = call("900/minute", store=store, name=name, kind="httpx")
    there("GET", provider.url)
    provider.answers = [(status, {"Retry-After": str(HELD_S)})]
    began = time.monotonic()
    assert here("GET", provider.url) == status
    assert time.monotonic() - began < HELD_S
    assert not there.run(there.limiter.decide(name, HOST))
    for caller in (there, other_client, here):
        assert caller("GET", provider.url) == 200
        assert time.monotonic() - began >= HELD_S
    # The two calls before, the unit that held all back, and the three after.
    assert counted(here) == 6


def test_where_all_are_held_back_for_longer_already_no_unit_is_spent(
    call: Callable[..., Caller], provider: Provider, store: str
) -> None:
    caller = call("900/minute")
    provider.answers = [(429, {"Retry-After": "30"})]
    with Limiter(store, policies=[Policy("psp", ["900/minute"])]) as other_host:
        provider.meanwhile = lambda: other_host.schedule("psp", HOST, not_before=50)
        caller("GET", provider.url)
    assert counted(caller) == 2


def test_what_a_provider_may_ask_for_is_at_most_an_hour(call: Callable[..., Caller], provider: Provider) -> None:
    caller = call("900/minute")
    provider.answers = [(429, {"Retry-After": "999999999"})]
    caller("GET", provider.url)
    first, held = (stamp for stamp, _ in hits(caller))
    assert 3600 <= (held - first) / 1e6 < 3620


def test_a_date_is_taken_against_the_date_of_the_answer(call: Callable[..., Caller], provider: Provider) -> None:
    caller = call("900/minute")
    # The provider's clock is a day behind: what counts is how far apart its own two dates are.
    theirs = datetime.now(UTC) - timedelta(days=1)
    said = {
        "Date": format_datetime(theirs, usegmt=True),
        "Retry-After": format_datetime(theirs + timedelta(seconds=100), usegmt=True),
    }
    provider.answers = [(503, said)]
    caller("GET", provider.url)
    first, held = (stamp for stamp, _ in hits(caller))
    assert 99 <= (held - first) / 1e6 < 120


@pytest.mark.parametrize(
    "answer",
    [
        (429, {}),
        (429, {"Retry-After": "soon"}),
        (429, {"Retry-After": "0"}),
        (429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        (500, SOON),
        (200, SOON),
    ],
)
def test_no_other_answer_holds_anyone_back(
    call: Callable[..., Caller], provider: Provider, answer: tuple[int, dict[str, str]]
) -> None:
    caller = call("900/minute")
    provider.answers = [answer]
    assert caller("GET", provider.url) == answer[0]
    assert counted(caller) == 1


def test_a_request_goes_again_in_the_slot_that_holds_the_others_back(
    call: Callable[..., Caller], provider: Provider
) -> None:
    caller = call("900/minute", retries=2)
    provider.answers = [(429, SOON), (429, SOON)]
    began = time.monotonic()
    assert caller("POST", provider.url + "/pay", b"5 EUR") == 200
    assert time.monotonic() - began >= 0.8
    assert provider.seen == [("POST", "/pay", b"5 EUR")] * 3
    assert counted(caller) == 3


def test_after_the_last_retry_the_answer_is_the_callers(call: Callable[..., Caller], provider: Provider) -> None:
    caller = call("900/minute", retries=1)
    provider.answers = [(429, SOON), (429, SOON), (429, SOON)]
    assert caller("GET", provider.url) == 429
    assert len(provider.seen) == 2
    assert counted(caller) == 3


def test_a_word_beyond_the_longest_wait_is_not_waited_for_but_kept(
    call: Callable[..., Caller], provider: Provider
) -> None:
    caller = call("900/minute", retries=3, max_wait=1)
    provider.answers = [(429, {"Retry-After": "60"})]
    assert caller("GET", provider.url) == 429
    with pytest.raises(LimitExceeded):
        caller("GET", provider.url)
    assert len(provider.seen) == 1
    assert counted(caller) == 2


def test_a_streamed_body_is_not_sent_again(call: Callable[..., Caller], provider: Provider) -> None:
    caller = call("900/minute", retries=3)
    provider.answers = [(429, SOON)]
    assert caller("POST", provider.url, iter([b"a", b"b"])) == 429
    assert [body for _, _, body in provider.seen] == [b"ab"]


@pytest.mark.parametrize(
    ("method", "status", "key", "times"),
    [("POST", 503, {}, 1), ("POST", 503, {"Idempotency-Key": "k"}, 2), ("PUT", 503, {}, 2), ("POST", 429, {}, 2)],
)
def test_what_may_have_been_done_is_not_done_twice(
    call: Callable[..., Caller], provider: Provider, method: str, status: int, key: dict[str, str], times: int
) -> None:
    caller = call("900/minute", retries=3)
    provider.answers = [(status, {"Retry-After": "0.05"})]
    caller(method, provider.url, b"5 EUR", headers=key)
    assert len(provider.seen) == times


def test_a_store_that_fails_when_the_word_comes_does_not_lose_the_answer(
    call: Callable[..., Caller],
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    caller = call("900/minute")
    whole: Any = caller.limiter.schedule

    def schedule(*asked: Any, not_before: float = 0, **options: Any) -> Any:
        if not_before:
            raise StoreUnavailableError("nobody is there")
        return whole(*asked, not_before=not_before, **options)

    monkeypatch.setattr(caller.limiter, "schedule", schedule)
    provider.answers = [(429, SOON)]
    with caplog.at_level(logging.WARNING, "capline"):
        assert caller("GET", provider.url) == 429
    assert "other hosts do not know of it: nobody is there" in caplog.text


def answers_late(caller: Caller, monkeypatch: pytest.MonkeyPatch, times: int = 99) -> None:
    """Let the store's next answers come a second late, on a clock that only the waiting reads."""
    now, place, left = [0.0], caller.limiter._store.step, [times]

    def late(operation: Operation) -> Any:
        if operation.kind == "schedule":
            now[0] += left[0] > 0
            left[0] -= 1
        return place(operation)

    monkeypatch.setattr(caller.limiter._store, "step", late)
    monkeypatch.setattr("capline.limiter.patience.time", SimpleNamespace(monotonic=lambda: now[0]))


@pytest.mark.parametrize(("slow_answers", "taken"), [(0, 1), (2, 3), (99, 11)])
def test_a_slot_that_was_missed_is_given_back_for_another(
    call: Callable[..., Caller], provider: Provider, monkeypatch: pytest.MonkeyPatch, slow_answers: int, taken: int
) -> None:
    caller = call("900/minute", slack=0.02)
    answers_late(caller, monkeypatch, slow_answers)
    assert caller("GET", provider.url) == 200
    recorded = [units for _, units in hits(caller)]
    assert recorded == [0] * (taken - 1) + [1]


def test_without_slack_a_late_request_goes(
    call: Callable[..., Caller], provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = call("900/minute")
    answers_late(caller, monkeypatch)
    assert caller("GET", provider.url) == 200
    assert len(hits(caller)) == 1


def test_a_request_that_is_tried_again_under_its_id_is_one_consumption(
    call: Callable[..., Caller], provider: Provider
) -> None:
    caller = call("3/h", max_wait=0, id=key_of)
    for key, seen in (("a", 1), ("a", 1), ("b", 2), ("a", 2), ("b", 2)):
        assert caller("POST", provider.url, headers={"Idempotency-Key": key}) == 200
        assert counted(caller) == seen
    assert caller("GET", provider.url) == 200
    with pytest.raises(LimitExceeded):
        caller("GET", provider.url)
    assert len(provider.seen) == 6


def test_each_sending_of_a_named_request_has_a_slot_of_its_own(call: Callable[..., Caller], provider: Provider) -> None:
    caller = call("9/h", retries=1, id=last_part)
    provider.answers = [(429, SOON)]
    assert caller("GET", provider.url + "/a") == 200
    assert (counted(caller), len(provider.seen)) == (2, 2)
    assert caller("GET", provider.url + "/a") == 200
    assert (counted(caller), len(provider.seen)) == (2, 3)


def test_a_named_request_that_is_tried_again_past_the_slack_leaves_its_first_slot_used(
    call: Callable[..., Caller], provider: Provider
) -> None:
    caller = call("9/h", slack=0.02, id=last_part)
    caller("GET", provider.url + "/a")
    stamp_us, _ = hits(caller)[-1]  # behind those that a busy machine missed
    while caller.run(caller.limiter.now_us()) - stamp_us <= 21_000:
        pass
    caller("GET", provider.url + "/a")
    assert counted(caller) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_wait": -1}, "max_wait is a number of seconds"),
        ({"slack": -1}, "slack is a number of seconds"),
        ({"retries": -1}, "retries is 0 to 100"),
        ({"retries": True}, "retries is a whole number"),
        ({"subject": ""}, "subject"),
        ({"id": "same"}, "id is a function of the request"),
    ],
)
def test_bad_settings_are_reported_when_they_are_made(kind: str, options: dict[str, Any], says: str) -> None:
    limiter: Any = None
    made: dict[str, Any] = {
        "httpx": LimitedTransport,
        "httpx-async": AsyncLimitedTransport,
        "requests": LimitedAdapter,
        "aiohttp": LimitedMiddleware,
    }
    with pytest.raises(CaplineError, match=says):
        made[kind](limiter, "psp", **options)


def test_without_the_client_the_error_says_what_to_install(kind: str) -> None:
    name = kind.partition("-")[0]
    code = f"import sys; sys.modules[{name!r}] = None; import capline.middleware.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    package = {"httpx": "capline[http]", "requests": "capline[requests]", "aiohttp": "aiohttp>=3.12"}[name]
    assert f'needs {name}: pip install "{package}"' in done.stderr.splitlines()[-1]


def test_an_interrupted_wait_gives_the_slot_back(
    call: Callable[..., Caller], provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = call("1/h")
    caller("GET", provider.url)
    if caller.runner is not None:

        async def cancelled() -> None:
            task = asyncio.create_task(caller.client.get(provider.url))
            # Until it has its slot, two hours from now for the next.
            for _ in range(1000):
                if (await caller.limiter.peek("psp", HOST)).retry_after_us > 3_600_000_000:
                    break
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        caller.run(cancelled())
    else:
        waits: list[float] = []

        def interrupted(seconds: float) -> None:
            waits.append(seconds)
            raise KeyboardInterrupt

        monkeypatch.setattr("time.sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            caller("GET", provider.url)
        assert waits[0] > 3500
    assert counted(caller) == 1
    assert len(provider.seen) == 1


def test_threads_or_tasks_share_one_client(call: Callable[..., Caller], provider: Provider) -> None:
    caller = call("5/300ms")
    began = time.monotonic()
    if caller.runner is not None:

        async def together() -> None:
            answers = await asyncio.gather(*(caller.client.get(provider.url) for _ in range(11)))
            for answer in answers:
                assert await (answer.read() if isinstance(answer, ClientResponse) else answer.aread()) == b"ok"

        caller.run(together())
    else:
        threads = [threading.Thread(target=caller.client.get, args=(provider.url,)) for _ in range(11)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert time.monotonic() - began >= 0.6
    stamps = [stamp for stamp, _ in hits(caller)]
    assert len(provider.seen) == 11
    assert all(later - earlier >= 300_000 for earlier, later in zip(stamps, stamps[5:], strict=False))
