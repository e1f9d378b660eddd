"""Whatever is sent: one problem document, and nothing is recorded."""

import asyncio
import gzip
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.kit.limiter import Door
from tests.kit.service import Service

from capline import Policy
from capline.model.errors import StoreDamagedError, StoreError, StoreUnavailableError, StoreUnknownError
from capline.service.http import app as http
from capline.service.http.app import App
from capline.service.settings.values import Bounds
from capline.service.verbs.routes import routes
from capline.store.local.aio import AsyncLocalStore

PARTS = [{"policy": "promo", "subject": "u"}]
GOOD = b'{"policy":"promo","subject":"u"}'
DEEP = b"[" * 100_000


@pytest.fixture
def service() -> Iterator[Service]:
    with Service([Policy("promo", ["3/day"])]) as asked:
        yield asked
        assert asked.post("/v1/peek", policy="promo", subject="u").json()["remaining"] == 2, "nothing was recorded"


def problem(answer: httpx.Response, status: int) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    said = answer.json()
    assert (answer.status_code, said["status"], said["type"]) == (status, status, "about:blank")
    assert said["title"]
    assert "\n" not in said["detail"]
    return said["detail"]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, b"", "truncated"),
        (400, GOOD[:-1], "truncated"),
        (400, GOOD + b"x", "trailing"),
        (400, b"policy=promo", "malformed"),
        (400, b'{"policy":"promo","subject":"\xff"}', "utf-8"),
        (400, b'{"policy":"promo","subject":"\\ud800"}', "not JSON"),
        (400, b'{"policy":"promo","subject":NaN}', "malformed"),
        (422, b"[]", "Expected `object`"),
        (422, b'{"subject":"u"}', "missing required field `policy`"),
        (422, b'{"policy":"promo","subject":true}', "got `bool`"),
        (422, b'{"policy":"promo","subject":1.0}', "got `float`"),
        (422, b'{"policy":"promo","subject":"u","cost":"1"}', "$.cost"),
        (422, b'{"policy":"promo","subject":"u","cost":0}', "a cost is 1 to"),
        (422, b'{"policy":"promo","subject":"u","id":""}', "id is 1 to 512 bytes"),
        (422, b'{"policy":"promo","subject":""}', "1 to 512 bytes"),
        (422, b'{"policy":"promo","subject":-1}', "0 to 2^64-1"),
        (422, b'{"policy":"promo","subject":123456789012345678901234567890}', "0 to 2^64-1"),
        (422, b'{"policy":"nope","subject":"u"}', "there are: promo"),
        (422, b'{"policy":"promo","subject":"u","zone":"Mars/Base"}', "Mars/Base"),
        (422, b'{"policy":"promo","subject":"u","costs":1}', "unknown field `costs`"),
        (422, b'{"policy":"promo","subject":"u","subject":"u"}', "'subject' is there twice"),
        (422, b'{"policy":"promo","subject":"u","subj\\u0065ct":"u"}', "'subject' is there twice"),
        (422, b'{"policy":"promo","subject":' + DEEP, "got `array`"),
        (422, b'{"deep":' + DEEP, "unknown field"),
        (422, DEEP, "Expected `object`"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_body_that_is_wrong(service: Service, status: int, body: bytes, said: str) -> None:
    assert said in problem(service.send("/v1/decide", body), status)


def test_a_name_of_a_key_may_be_a_value(service: Service) -> None:
    answer = service.send("/v1/decide", b'{"policy":"promo","subject":"subject","id":"\\"subject\\""}')
    assert answer.json()["allowed"]


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"policy": "promo"},
        {"subjects": [1]},
        {"policy": "promo", "subjects": [1], "attempts": []},
        {"policy": "promo", "subjects": [1], "segment": "a", "segments": ["a"]},
        {"policy": "promo", "subjects": [1], "codes": [0]},
        {"policy": "promo", "subjects": [1], "segments": ["a"], "codes": [1]},
        {"policy": "promo", "subjects": [[1]]},
        {"attempts": [{"policy": "promo", "subject": "u", "wrong": 1}]},
    ],
    ids=str,
)
def test_a_batch_that_is_wrong(service: Service, form: dict[str, Any]) -> None:
    problem(service.post("/v1/decide/batch", **form), 422)


def test_a_key_twice_in_one_of_many_attempts(service: Service) -> None:
    body = b'{"attempts":[' + GOOD + b',{"policy":"promo","subject":"u","policy":"promo"}]%b}'
    for path, rest in (
        ("decide/batch", b""),
        ("decide/all", b""),
        ("schedule/all", b""),
        ("refund/all", b',"hits":[1]'),
    ):
        assert "twice" in problem(service.send(f"/v1/{path}", body % rest), 422)


def test_bodies_have_bounds(service: Service) -> None:
    at_most = GOOD.ljust(http.ONE_BODY_BYTES)
    assert service.send("/v1/peek", at_most).status_code == 200
    assert "larger than 1048576" in problem(service.send("/v1/decide", at_most + b" "), 413)
    batch = b'{"policy":"promo","subjects":[]}'.ljust(http.BATCH_BYTES)
    assert service.send("/v1/decide/batch", batch).status_code == 200
    problem(service.send("/v1/decide/batch", batch + b" "), 413)
    assert "at most 100000" in problem(service.post("/v1/decide/batch", policy="promo", subjects=[1] * 100_001), 413)


def test_a_body_without_a_stated_length_has_the_same_bound(service: Service) -> None:
    async def pieces() -> Any:
        for _ in range(17):
            yield b" " * 65_536

    answer = service("POST", "/v1/decide", content=pieces(), headers={"Content-Type": "application/json"})
    problem(answer, 413)


def test_no_more_is_read_of_a_body_that_is_too_large(service: Service) -> None:
    read: list[int] = []

    async def receive() -> Any:
        read.append(len(read))
        return {"type": "http.request", "body": b" " * 65_536, "more_body": len(read) < 100}

    for headers, pieces in ((_scope()["headers"], 17), ([*_scope()["headers"], (b"content-length", b"1048577")], 0)):
        read.clear()
        sent: list[Any] = []
        service.run(service.app(_scope() | {"headers": headers}, receive, _keep(sent)))
        assert (sent[0]["status"], len(read)) == (413, pieces)


def test_a_body_that_does_not_come_in_time(service: Service) -> None:
    app = App(routes(service.limiter), Bounds(body_within=0.01))
    sent: list[Any] = []
    service.run(app(_scope(), asyncio.Event().wait, _keep(sent)))  # pyright: ignore[reportArgumentType] - it never comes
    assert sent[0]["status"] == 408


def test_a_body_that_comes_by_drops_has_no_longer(service: Service) -> None:
    pieces = [{"type": "http.request", "body": b" ", "more_body": True}] * 30
    coming = iter([*pieces, {"type": "http.request", "body": GOOD, "more_body": False}])

    async def receive() -> Any:
        await asyncio.sleep(0.02)
        return next(coming)

    sent: list[Any] = []
    service.run(App(routes(service.limiter), Bounds(body_within=0.2))(_scope(), receive, _keep(sent)))
    assert sent[0]["status"] == 408


@pytest.mark.parametrize(
    "first", [[], [{"type": "http.request", "body": GOOD, "more_body": True}]], ids=["none", "cut"]
)
def test_a_client_that_leaves_before_its_end_gets_no_decision(service: Service, first: list[Any]) -> None:
    coming = iter([*first, {"type": "http.disconnect"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(coming)

    service.run(service.app(_scope(), receive, _keep(sent)))
    assert sent == []


@pytest.mark.parametrize("kind", ["text/plain", "application/cbor", ""])
def test_only_json_is_taken(service: Service, kind: str) -> None:
    assert "application/json" in problem(service.send("/v1/decide", GOOD, kind), 415)


def test_no_compressed_body_is_taken(service: Service) -> None:
    for body in (GOOD, gzip.compress(GOOD)):
        said = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        assert "without Content-Encoding" in problem(service("POST", "/v1/decide", content=body, headers=said), 415)
    said = {"Content-Type": "application/json", "Transfer-Encoding": "gzip, chunked"}
    assert "no other Transfer-Encoding" in problem(service("POST", "/v1/decide", content=GOOD, headers=said), 501)
    said = {"Content-Type": "application/json", "Content-Encoding": "identity"}
    assert service("POST", "/v1/peek", content=GOOD, headers=said).status_code == 200


def test_json_as_curl_sends_it_is_taken_where_no_page_asks(service: Service) -> None:
    kind = "application/x-www-form-urlencoded"
    assert service.send("/v1/peek", GOOD, kind).status_code == 200
    said = {"Content-Type": kind, "Origin": "http://127.0.0.1"}
    assert "application/json" in problem(service("POST", "/v1/decide", content=GOOD, headers=said), 415)


def test_json_may_name_its_charset(service: Service) -> None:
    assert service.send("/v1/peek", GOOD, "Application/JSON; charset=utf-8").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/subjects/", 404),
        ("GET", "/v1/subjects/a/b?policy=promo", 404),
        ("POST", "/v1/decide/", 404),
        ("GET", "/v1/decide", 405),
        ("POST", "/v1/subjects/u", 405),
        ("GET", "/v1/subjects/u?colour=red", 422),
        ("GET", "/v1/subjects/u?policy=nope", 422),
        ("GET", "/v1/subjects/u?policy=promo&policy=promo", 422),
        ("GET", "/v1/subjects/u?policy=promo&colour=red", 422),
        ("GET", "/v1/subjects/u?policy=%FF", 400),
        ("GET", "/v1/subjects/u?policy", 400),
        ("GET", "/v1/subjects/%FF?policy=promo", 400),
        ("GET", "/v1/subjects/i:u?policy=promo", 422),
        ("DELETE", "/v1/subjects/" + "x" * 513, 422),
        ("DELETE", "/v1/subjects/u?policy=promo", 422),
        ("GET", "/v1/policies?x=1", 422),
    ],
)
def test_a_path_that_is_wrong(service: Service, method: str, path: str, status: int) -> None:
    problem(service(method, path), status)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreUnavailableError("nobody is there"), 503),
        (StoreUnknownError("the answer did not come"), 503),
        (StoreDamagedError("page 7"), 500),
    ],
)
def test_an_outage_is_503_and_damage_500(error: StoreError, status: int) -> None:
    with Service([Policy("promo", ["3/day"], reservations=True)]) as service:
        door = _behind_a_door(service)
        door.down = error
        for path, form in (
            ("/v1/decide", {"subject": "u"}),
            ("/v1/peek", {"subject": "u"}),
            ("/v1/schedule", {"subject": "u"}),
            ("/v1/refund", {"subject": "u", "hit": 1}),
            ("/v1/charge", {"subject": "u"}),
            ("/v1/usage", {"subject": "u"}),
            ("/v1/settle", {"subject": "u", "hit": 1, "cost": 2}),
            ("/v1/reserve", {"subject": "u"}),
            ("/v1/commit", {"subject": "u", "hit": 1}),
            ("/v1/cancel", {"subject": "u", "hit": 1}),
            ("/v1/decide/batch", {"subjects": ["u"]}),
            ("/v1/refund/batch", {"subjects": ["u"], "hits": [1]}),
            ("/v1/decide/all", {"attempts": PARTS}),
            ("/v1/schedule/all", {"attempts": PARTS}),
            ("/v1/refund/all", {"attempts": PARTS, "hits": [1]}),
        ):
            answer = service.post(path, **({} if path.endswith("/all") else {"policy": "promo"}), **form)
            assert str(error) in problem(answer, status)
            assert answer.headers.get("Retry-After") == ("1" if status == 503 else None)
        problem(service("GET", "/readyz"), status)
        assert service("GET", "/healthz").status_code == 200
        door.down = None
        assert service("GET", "/readyz").status_code == 200
        assert service.post("/v1/decide", policy="promo", subject="u").json()["remaining"] == 2


@pytest.mark.parametrize(("choice", "allowed"), [("allow", True), ("deny", False)])
def test_the_choice_for_an_outage_is_marked(choice: str, allowed: bool) -> None:
    with Service([Policy("promo", ["3/day"])], on_store_error=choice) as service:
        door = _behind_a_door(service)
        door.down = StoreUnavailableError("nobody is there")
        ready = service("GET", "/readyz")
        assert ready.status_code == (200 if allowed else 503), "as decisions are answered, so is a balancer"
        assert "nobody is there" in ready.text
        one = service.post("/v1/decide", policy="promo", subject="u").json()
        assert (one["allowed"], one["origin"], one["limit"], one["reset_after"]) == (allowed, "fallback", None, None)
        many = service.post("/v1/decide/batch", policy="promo", subjects=["u"]).json()
        assert (many["allowed"], many["origin"]) == ([allowed], "fallback")
        problem(service.post("/v1/charge", policy="promo", subject="u"), 503)  # no answer can make up for it
        rows = service.post("/v1/decide/batch", attempts=[{"policy": "promo", "subject": "u"}]).json()
        assert (rows["allowed"], rows["origins"]) == ([allowed], {"0": "fallback"})
        door.down = StoreDamagedError("page 7")
        assert service("GET", "/readyz").status_code == 500, "damage is no outage"


def test_a_fault_of_the_service_says_nothing_of_its_inside(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_request: http.Request) -> http.Reply:
        raise KeyError("secret")

    sent: list[Any] = []
    scope = _scope() | {"method": "GET", "raw_path": b"/broken"}
    asyncio.run(http.App({"/broken": http.Route({"GET": broken})})(scope, asyncio.Event().wait, _keep(sent)))  # pyright: ignore[reportArgumentType] - no body is read
    assert sent[0]["status"] == 500
    assert b"secret" not in sent[1]["body"]
    assert "secret" in caplog.text


def _behind_a_door(service: Service) -> Door:
    inner: Any = service.limiter
    door = Door(inner._store.store)
    inner._store = AsyncLocalStore(door)  # pyright: ignore[reportArgumentType] - it has the verbs that are asked
    return door


def _scope() -> dict[str, Any]:
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    return {"type": "http", "method": "POST", "raw_path": b"/v1/decide", "query_string": b"", "headers": headers}


def _keep(sent: list[Any]) -> Any:
    async def send(message: Any) -> None:
        sent.append(message)

    return send
