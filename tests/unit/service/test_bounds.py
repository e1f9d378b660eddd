"""Bounds of what comes from outside, who it came from, msgpack, and the lines that are written of it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.kit.service import Service

from capline import ManualClock, Policy
from capline.service.access.guard import Guard
from capline.service.access.log import AccessLog
from capline.service.access.tokens import TokenFile
from capline.service.access.traces import Traces
from capline.service.http.app import Request
from capline.service.settings.values import Bounds, Observers

POLICIES = [Policy("promo", ["3/day"])]
ASKED = {"policy": "promo", "subject": "user:42"}
PACKED = {"Content-Type": "application/msgpack"}


class Kept:
    """Keeps what it is told of."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def answered(self, request: Request, *_answer: float) -> None:
        self.requests.append(request)


def test_more_requests_than_the_bound_are_reported_to_come_again() -> None:
    with Service(POLICIES, bounds=Bounds(requests=1)) as service:

        async def ask() -> list[Any]:
            come = asyncio.Event()
            sent: list[Any] = []

            async def receive() -> Any:
                await come.wait()
                return {"type": "http.request", "body": json.dumps(ASKED).encode(), "more_body": False}

            async def send(message: Any) -> None:
                sent.append(message)

            scope = {
                "type": "http",
                "method": "POST",
                "raw_path": b"/v1/decide",
                "query_string": b"",
                "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            }
            first = asyncio.create_task(service.app(scope, receive, send))
            await asyncio.sleep(0)  # it has begun, and waits for its body
            second = await service.client.post("/v1/decide", json=ASKED)
            probe = await service.client.get("/healthz")
            come.set()
            await first
            after = await service.client.post("/v1/decide", json=ASKED)
            return [second, probe, sent[0]["status"], after]

        second, probe, first, after = service.run(ask())
        assert (second.status_code, second.headers["Retry-After"]) == (503, "1")
        assert (probe.status_code, first, after.status_code) == (200, 200, 200)
        assert after.json()["remaining"] == 1, "the second was not decided"


def test_bodies_and_rows_have_bounds_of_the_settings() -> None:
    with Service(POLICIES, bounds=Bounds(body_bytes=1024, batch_bytes=2048, batch_rows=2)) as service:
        assert service.send("/v1/decide", json.dumps(ASKED).encode().ljust(1024)).status_code == 200
        assert service.send("/v1/decide", json.dumps(ASKED).encode().ljust(1025)).status_code == 413
        batch = json.dumps({"policy": "promo", "subjects": [1, 2]}).encode()
        assert service.send("/v1/decide/batch", batch.ljust(2048)).status_code == 200
        assert service.send("/v1/decide/batch", batch.ljust(2049)).status_code == 413
        assert service.post("/v1/decide/batch", policy="promo", subjects=[1, 2, 3]).status_code == 413


@pytest.mark.parametrize(
    ("trusted", "told", "client"),
    [
        (0, "9.9.9.9", "127.0.0.1"),
        (1, "9.9.9.9, 10.0.0.1", "10.0.0.1"),
        (2, "9.9.9.9, 10.0.0.1", "9.9.9.9"),
        (3, "9.9.9.9, 10.0.0.1", "9.9.9.9"),
        (1, "", "127.0.0.1"),
    ],
)
def test_as_many_proxies_as_are_trusted_are_believed(trusted: int, told: str, client: str) -> None:
    kept = Kept()
    with Service(POLICIES, observers=(kept,), trusted_proxies=trusted) as service:
        service("GET", "/healthz", headers={"X-Forwarded-For": told})
    assert [request.client for request in kept.requests] == [client]


def test_msgpack_is_asked_and_answered() -> None:
    with Service(POLICIES) as service:
        body = msgspec.msgpack.encode(ASKED)
        answer = service("POST", "/v1/decide", content=body, headers=PACKED)
        assert answer.headers["content-type"] == "application/msgpack"
        assert msgspec.msgpack.decode(answer.content)["remaining"] == 2
        batch = msgspec.msgpack.encode({"policy": "promo", "subjects": [1, "user:42", -1]})
        columns = msgspec.msgpack.decode(service("POST", "/v1/decide/batch", content=batch, headers=PACKED).content)
        assert (columns["remaining"], list(columns["errors"])) == ([2, 1, 0], ["2"])


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b""),
        (400, msgspec.msgpack.encode(ASKED)[:-1]),
        (400, b"\xc1"),
        (422, msgspec.msgpack.encode([1])),
        (422, msgspec.msgpack.encode({**ASKED, "costs": 1})),
        (422, msgspec.msgpack.encode({"policy": "promo", "subject": 1.5})),
        (422, b"\x83\xa6policy\xa5promo\xa7subject\xa1u\xa7subject\xa1v"),
        (422, b"\x91" * 100_000),
    ],
    ids=lambda value: str(value)[:40],
)
def test_msgpack_that_is_wrong(status: int, body: bytes) -> None:
    with Service(POLICIES) as service:
        answer = service("POST", "/v1/decide", content=body, headers=PACKED)
        assert (answer.status_code, answer.headers["content-type"]) == (status, PACKED["Content-Type"])
        assert msgspec.msgpack.decode(answer.content)["status"] == status
        assert service.post("/v1/peek", policy="promo", subject="u").json()["remaining"] == 2, "nothing was recorded"


@pytest.mark.parametrize("path", ["/v1/decide/all", "/v1/decide/batch"])
def test_a_key_twice_in_one_of_many_attempts_of_msgpack(path: str) -> None:
    good = msgspec.msgpack.encode({**ASKED, "id": "policy"})
    other = msgspec.msgpack.encode({**ASKED, "subject": "subject"})
    twice = b"\x83\xa6policy\xa5promo\xa7subject\xa1u\xa7subject\xa1v"
    with Service(POLICIES) as service:
        for attempts, status in (([good, twice], 422), ([good, other], 200)):
            body = b"\x81\xa8attempts" + bytes([0x90 + len(attempts)]) + b"".join(attempts)
            answer = service("POST", path, content=body, headers=PACKED)
            assert answer.status_code == status, answer.text
            if status != 200:
                assert service.post("/v1/peek", policy="promo", subject="user:42").json()["remaining"] == 2


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_access_log_has_no_subject_unless_asked(tmp_path: Path) -> None:
    plain = AccessLog(Observers(access_log=str(tmp_path / "plain")))
    told = AccessLog(Observers(access_log=str(tmp_path / "told"), subjects=True))
    with Service(POLICIES, observers=(plain, told)) as service:
        service("GET", "/v1/subjects/ann?policy=promo")
        service.post("/v1/decide", policy="promo", subject="ann")
        service("GET", "/ann")
    for log in (plain, told):
        log.close()
    assert [(line["route"], line["status"]) for line in lines(tmp_path / "plain")] == [
        ("/v1/subjects/{subject}", 200),
        ("/v1/decide", 200),
        ("", 404),
    ]
    assert "ann" not in (tmp_path / "plain").read_text(encoding="utf-8")
    assert [line["path"] for line in lines(tmp_path / "told")] == ["/v1/subjects/ann", "/v1/decide", "/ann"]
    assert lines(tmp_path / "plain")[0].keys() == {"at", "method", "route", "status", "ms", "bytes", "who", "client"}


def test_a_sample_of_nothing_has_what_failed_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.5)
    log = AccessLog(Observers(access_log=str(tmp_path / "log"), access_sample=0.25))
    with Service(POLICIES, observers=(log,), bounds=Bounds(requests=0)) as service:
        service("GET", "/healthz")
        assert service("GET", "/v1/policies").status_code == 503
    log.close()
    assert [line["status"] for line in lines(tmp_path / "log")] == [503]


def test_a_log_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    log = AccessLog(Observers(access_log=str(tmp_path / "log")))
    assert not log.reopen()
    (tmp_path / "log").rename(tmp_path / "log.1")
    assert log.reopen()
    with Service(POLICIES, observers=(log,)) as service:
        service("GET", "/healthz")
    log.close()
    assert (len(lines(tmp_path / "log")), len(lines(tmp_path / "log.1"))) == (1, 0)


def test_a_span_is_made_of_each_request_below_its_callers() -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with Service(POLICIES, observers=(Traces(provider),)) as service:
        service("GET", "/v1/subjects/ann?policy=promo", headers={"traceparent": caller})
        service("GET", "/ann")
    provider.shutdown()
    known, unknown = spans.get_finished_spans()
    assert (known.name, unknown.name) == ("GET /v1/subjects/{subject}", "GET unknown")
    assert known.context is not None
    assert f"{known.context.trace_id:032x}" == caller.split("-")[1]
    assert known.attributes is not None
    assert known.attributes["http.response.status_code"] == 200
    assert "ann" not in str(known.attributes)


def test_a_token_creates_so_many_new_subjects_in_a_minute_and_goes_on_with_those_there_are() -> None:
    clock = ManualClock(1_763_700_000_000_000)
    with Service(POLICIES, new_subjects=2, clock=clock) as service:

        def ask(subject: str, path: str = "/v1/decide") -> int:
            return service.post(path, policy="promo", subject=subject).status_code

        assert [ask(subject) for subject in ("a", "a", "b", "a", "c")] == [200] * 5, "the bound is reached with c"
        refused = service.post("/v1/decide", policy="promo", subject="d")
        assert (refused.status_code, refused.headers["content-type"]) == (429, "application/problem+json")
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
        assert service.post("/v1/peek", policy="promo", subject="d").json()["remaining"] == 2, "nothing was recorded"
        assert [ask("b"), ask("e", "/v1/schedule"), ask("a")] == [200, 429, 200], "a is refused by its limit: an answer"
        assert service.post("/v1/decide/batch", policy="promo", subjects=[1]).status_code == 429


def test_new_subjects_of_a_batch_count() -> None:
    with Service(POLICIES, new_subjects=3) as service:
        assert service.post("/v1/decide/batch", policy="promo", subjects=[1, 2, 2, 3]).status_code == 200
        assert service.post("/v1/decide", policy="promo", subject=1).status_code == 200
        assert service.post("/v1/decide", policy="promo", subject=4).status_code == 200
        assert service.post("/v1/decide", policy="promo", subject=5).status_code == 429


def test_new_subjects_of_a_batch_count_whatever_they_cost() -> None:
    with Service(POLICIES, new_subjects=2) as service:
        assert service.post("/v1/decide/batch", policy="promo", subjects=[1], cost=2).status_code == 200
        attempts = [{"policy": "promo", "subject": 2, "cost": 2}]
        assert service.post("/v1/decide/batch", attempts=attempts).status_code == 200
        decided = [service.post("/v1/decide", policy="promo", subject=subject).status_code for subject in (3, 4)]
        assert decided == [200, 429]


def test_each_token_has_a_bound_of_its_own(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json", create=True)
    with Service(POLICIES, new_subjects=1, guard=Guard(tokens)) as service:
        for name in ("billing", "search"):
            headers = {"Authorization": f"Bearer {tokens.create(name, ['decide'])}"}
            forms = [{"policy": "promo", "subject": f"{name} {number}"} for number in range(3)]
            asked = [service("POST", "/v1/decide", headers=headers, json=form).status_code for form in forms]
            assert asked == [200, 200, 429], name


def test_new_subjects_that_are_charged_past_their_limits_count() -> None:
    with Service(POLICIES, new_subjects=2) as service:

        def charge(subject: str, cost: int) -> int:
            return service.post("/v1/charge", policy="promo", subject=subject, cost=cost).status_code

        assert [charge(subject, 9) for subject in ("a", "a", "b", "a", "c")] == [200] * 5
        assert [charge("d", 9), charge("d", 1), charge("a", 9)] == [429, 429, 200]
        answer = service.post("/v1/decide", policy="promo", subject="d", cost=9).json()
        assert (answer["allowed"], answer["remaining"]) == (False, 3), "what could be refused only creates nobody"


def test_a_batch_of_more_new_subjects_than_the_bound_uses_it_up() -> None:
    clock = ManualClock(1_763_700_000_000_000)
    with Service(POLICIES, new_subjects=3, clock=clock) as service:
        assert service.post("/v1/decide/batch", policy="promo", subjects=[1, 2, 3, 4]).status_code == 200
        refused = service.post("/v1/decide/batch", policy="promo", subjects=[5, 6, 7, 8])
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")


@pytest.mark.parametrize("path", ["/v1/decide/all", "/v1/schedule/all"])
def test_new_subjects_of_one_answer_to_several_count(path: str) -> None:
    with Service(POLICIES, new_subjects=3) as service:

        def ask(*subjects: str) -> int:
            return service.post(path, attempts=[{"policy": "promo", "subject": one} for one in subjects]).status_code

        assert [ask("a", "b"), ask("a", "c"), ask("a", "d"), ask("a", "b")] == [200, 200, 200, 429]
        assert service.post("/v1/decide", policy="promo", subject="b").status_code == 200
        assert service.post("/v1/decide", policy="promo", subject="e").status_code == 429
