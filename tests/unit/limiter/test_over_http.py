"""A limiter at a service: what it sends again, what each error is, what it refuses. The law has its verbs."""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kit.over_http import AtService
from tests.kit.wire import Wire, read_request, wire

from capline import (
    AccessError,
    AsyncLimiter,
    Attempt,
    Decision,
    IdConflictError,
    Insurance,
    InvalidTypeError,
    InvalidValueError,
    Limiter,
    PastHit,
    Policy,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreUnavailableError,
    StoreUnknownError,
    UnknownNameError,
)
from capline.model.errors import CaplineError

DECIDED = (
    b'{"allowed":true,"policy":"p","limit":"3/day","remaining":2,"retry_after":0.0,"reset_after":1.5,"hit":7,'
    b'"segment":null,"origin":"store"}'
)

SENT: list[tuple[Callable[[Any], object], bool]] = [
    (lambda limiter: limiter.decide("p", "s"), False),
    (lambda limiter: limiter.decide("p", "s", id="m1"), True),
    (lambda limiter: limiter.peek("p", "s"), True),
    (lambda limiter: limiter.charge("p", "s", 1), False),
    (lambda limiter: limiter.refund("p", "s", 7), False),
    (lambda limiter: limiter.settle("p", "s", 7, 1), True),
    (lambda limiter: limiter.settle("p", "s", 7, 0), False),
    (lambda limiter: limiter.decide_many("p", [1]), False),
    (lambda limiter: limiter.decide_many("p", [1], receipt="r1"), True),
    (lambda limiter: limiter.erase("s"), False),
]
ABSENT: list[Callable[[Any], object]] = [
    lambda limiter: limiter.move("p", "s", 1),
    lambda limiter: limiter.peek_all([Attempt("p", "s")]),
    lambda limiter: limiter.peek_many("p", [1]),
    lambda limiter: limiter.decide("p", "s", limits=["3/day"]),
    lambda limiter: limiter.explain("p", "s", ids=["m1"]),
    lambda limiter: limiter.decide_many("p", [1, 2], zone=["UTC", "Asia/Tokyo"]),
    lambda limiter: limiter.override("p", "s", None, effective_at="2027-01-01T00:00:00Z"),
    lambda limiter: limiter.override("p", "s", None, until="2027-01-01T00:00:00Z"),
    lambda limiter: [*limiter.export()],
    lambda limiter: limiter.load([PastHit("p", "s", 1)]),
    lambda limiter: limiter.flush("p"),
    lambda limiter: limiter.sweep(),
    lambda limiter: limiter.now_us(),
    lambda limiter: limiter.try_write(),
    lambda limiter: limiter.servers(),
    lambda limiter: limiter.stats(),
    lambda limiter: limiter.use([]),
    lambda limiter: limiter.beside([]),
    lambda limiter: limiter.policies,
    lambda limiter: limiter.check_policy("p"),
    lambda limiter: limiter.segment_of("p", "s"),
    lambda limiter: limiter.log_of("p"),
]


def reply(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status.encode(), len(body)) + body


def answering(*replies: bytes) -> Callable[[socket.socket, Wire], None]:
    """Answer the n-th request of all with the n-th of these, the empty one by hanging up."""

    def serve(connection: socket.socket, far: Wire) -> None:
        while request := read_request(connection):
            far.seen.append(request)
            if not replies[len(far.seen) - 1]:
                return
            connection.sendall(replies[len(far.seen) - 1])

    return serve


@pytest.fixture
def service() -> Iterator[AtService]:
    at = AtService("memory://", [Policy("p", ["3/day"])], asynchronous=False)
    yield at
    at.close()


@pytest.mark.parametrize(("ask", "again"), SENT)
def test_what_may_have_run_is_sent_again_once_where_it_counts_once(ask: Callable[[Any], object], again: bool) -> None:
    with wire(answering(b"", b"")) as far, Limiter(far.url.removesuffix("/push")) as limiter:
        with pytest.raises(StoreUnknownError, match="did not answer"):
            ask(limiter)
        assert len(far.seen) == 1 + again


def test_the_answer_to_the_second_sending_is_the_answer() -> None:
    with wire(answering(b"", reply("200 OK", DECIDED))) as far, Limiter(far.url) as limiter:
        decided = limiter.decide("p", "s", 2, id="m1")
        assert (decided.allowed, str(decided.limit), decided.hit, decided.reset_after_us) == (True, "3/day", 7, 1500000)
        first, second = far.seen
        assert first == second
        assert first.startswith(b"POST /push/v1/decide HTTP/1.1\r\n"), "below the path of the address"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("401 Unauthorized", AccessError),
        ("403 Forbidden", AccessError),
        ("429 Too Many Requests", StoreUnavailableError),
        ("503 Service Unavailable", StoreUnavailableError),
        ("502 Bad Gateway", StoreUnknownError),
        ("404 Not Found", InvalidValueError),
        ("301 Moved Permanently", InvalidValueError),
        ("200 OK", InvalidValueError),
    ],
)
def test_what_is_not_an_answer_is_an_error_that_says_the_status(status: str, error: type[CaplineError]) -> None:
    with wire(answering(reply(status, b"<html>"))) as far, Limiter(far.url) as limiter:
        with pytest.raises(error, match=f"{status[:3]}, which is not an answer") as raised:
            limiter.decide("p", "s")
        assert type(raised.value) is error
    other = wire(answering(reply("200 OK", b"{}")))
    with other as far, Limiter(far.url) as limiter, pytest.raises(InvalidValueError, match="answer has no 'allowed'"):
        limiter.decide("p", "s")


def test_an_error_is_the_one_that_the_services_limiter_raised(service: AtService) -> None:
    with pytest.raises(UnknownNameError, match="no policy 'q'; there are: p"):
        service.decide("q", "s")
    service.decide("p", "s", id="m1")
    with pytest.raises(IdConflictError):
        service.decide("p", "s", 2, id="m1")
    damaged = b'{"title":"","status":500,"detail":"a log is damaged","error":"StoreDamagedError"}'
    broken = wire(answering(reply("500 Internal Server Error", damaged)))
    with broken as far, Limiter(far.url, on_store_error="allow") as limiter, pytest.raises(StoreDamagedError):
        limiter.decide("p", "s")
    strange = b'{"title":"","status":503,"detail":"closing","error":"StoreClosedError"}'
    closing = wire(answering(reply("503 Service Unavailable", strange)))
    with closing as far, Limiter(far.url) as limiter, pytest.raises(StoreUnavailableError, match="closing"):
        limiter.decide("p", "s")


def test_what_it_asks_for_is_what_the_service_is_asked(service: AtService) -> None:
    limiter: Limiter = service.limiter
    assert [bool(limiter.schedule("p", "s", max_wait=0)) for _ in range(4)] == [True] * 3 + [False], "no wait at all"
    assert limiter.schedule("p", "s").wait > 0
    with pytest.raises(InvalidValueError, match="has no reservations"):
        limiter.cancel("p", "s", 1)
    unknown = limiter.decide_batch([Attempt("q", "s"), Attempt("p", "t")])
    assert (type(unknown[0]), type(unknown[1])) == (UnknownNameError, Decision)


def test_nobody_there_is_an_outage_with_its_choice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with (
        Limiter(url) as limiter,
        pytest.raises(StoreUnavailableError, match=r"cannot be reached \(nothing answers there: is it running\?\)"),
    ):
        limiter.decide("p", "s")
    with Limiter(url, on_store_error="allow") as limiter:
        assert limiter.decide("p", "s").origin == "fallback"
        assert limiter.decide_many("p", [1, 2]).allowed.all()
    with Limiter(url, on_store_error="deny") as limiter:
        assert not limiter.decide("p", "s")


def test_it_waits_until_the_deadline() -> None:
    silent = wire(lambda _, far: far.ended.wait())
    said = pytest.raises(StoreUnknownError, match="took too long")
    with silent as far, Limiter(f"{far.url}?deadline=50ms") as limiter, said:
        limiter.decide("p", "s")


@pytest.mark.parametrize(
    ("url", "options", "sent"),
    [
        ("http://{}", {"token": "cap_a_b"}, b"Bearer cap_a_b"),
        ("http://cap_a%40b@{}", {}, b"Bearer cap_a@b"),
        ("http://ann:correct%20horse@{}", {}, b"Basic YW5uOmNvcnJlY3QgaG9yc2U="),
    ],
)
def test_a_token_is_sent_and_never_shown(url: str, options: dict[str, str], sent: bytes) -> None:
    with wire(answering(reply("403 Forbidden", b"{}"))) as far:
        limiter = Limiter(url.format(f"127.0.0.1:{far.port}"), **options)  # pyright: ignore[reportArgumentType]
        with limiter, pytest.raises(AccessError) as raised:
            limiter.decide("p", "s")
        assert b"authorization: " + sent.lower() in far.seen[0].lower()
        shown = repr(limiter) + str(raised.value)
        assert "***" in shown
        assert not any(secret in shown for secret in ("cap_a", "horse"))


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("http://h", {"policies": [Policy("p", ["1/day"])]}, "policies: at a service that is the service's own"),
        ("http://h", {"namespace": "n", "deny_cache": 5}, "namespace, deny_cache: at a service"),
        ("http://h", {"on_store_error": Insurance(hosts=2)}, "an Insurance: at a service"),
        ("http://h", {"on_store_error": "perhaps"}, "on_store_error is one of"),
        ("http://h", {"token": "a\r\nb"}, "has a character that no token has"),
        ("http://h/a b", {}, "cannot be read"),
        ("http://a@h", {"token": "b"}, "has a token in it; leave token= out"),
        ("http://h?deadline=soon", {}, "deadline is a duration"),
        ("http://h?ca=x", {}, "unknown option 'ca'; it takes: deadline"),
        ("http://h:x", {}, "cannot be read; write it like 'http://host:8080'"),
        ("http://", {}, "cannot be read"),
        ("https://h#x", {}, "cannot be read"),
        ("memory://", {"token": "b"}, "token= is for a service"),
    ],
)
@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_what_a_service_has_itself_is_refused(kind: Any, url: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidValueError, match=said):
        kind(url, **options)


@pytest.mark.parametrize("ask", ABSENT)
def test_a_verb_that_http_does_not_have_says_so(service: AtService, ask: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidValueError, match=r"at a service|has no"):
        ask(service.limiter)
    with pytest.raises(InvalidTypeError, match="cannot be sent"):
        service.decide("p", "s", segment=object())


def test_after_a_fork_each_process_has_connections_of_its_own() -> None:
    callers: list[object] = []

    def serve(connection: socket.socket, _: Wire) -> None:
        while read_request(connection):
            callers.append(connection.getpeername())
            connection.sendall(reply("200 OK", DECIDED))

    with wire(serve) as far, Limiter(far.url) as limiter:
        assert limiter.decide("p", "s")
        child = os.fork()
        if not child:
            os._exit(0 if limiter.decide("p", "s") else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert limiter.decide("p", "s")
        mine, childs, again = callers
        assert mine == again != childs


def test_threads_share_it_and_tasks_share_the_awaited_one(service: AtService) -> None:
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(bool(service.decide("p", "t")))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [False] * 5 + [True] * 3

    async def main() -> list[bool]:
        async with AsyncLimiter(service.url) as limiter:
            return [bool(one) for one in await asyncio.gather(*(limiter.decide("p", "u") for _ in range(8)))]

    assert sorted(asyncio.run(main())) == [False] * 5 + [True] * 3


def test_overrides_are_written_to_the_services_configuration(tmp_path: Path) -> None:
    at = AtService("memory://", [Policy("p", ["3/day"])], asynchronous=False, config=f"lmdb://{tmp_path}/config")
    assert at.limiter.override("p", "s/1", ["1/day"], who="ann") == 1
    assert [bool(at.decide("p", "s/1")) for _ in range(2)] == [True, False]
    assert at.limiter.override("p", "s/1", None) == 2
    assert at.decide("p", "s/1").remaining == 1
    assert at.limiter.override("p", "s/1", ["9/day"], until="2100-01-01T00:00:00Z") == 3
    assert at.decide("p", "s/1").remaining == 6
    at.close()


def test_once_closed_it_says_so(service: AtService) -> None:
    limiter = Limiter(service.url)
    limiter.close()
    limiter.close()
    with pytest.raises(StoreClosedError):
        limiter.decide("p", "s")


def test_without_httpx_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(StoreError, match=r"capline\[http\]"):
        AsyncLimiter("http://h")
    Limiter("http://h").close()


def test_a_policy_file_is_the_services(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("policies: {p: {limits: [1/day]}}", encoding="utf-8")
    with pytest.raises(InvalidValueError, match="policies: at a service"):
        Limiter.from_file(tmp_path / "p.yaml", "http://h")
