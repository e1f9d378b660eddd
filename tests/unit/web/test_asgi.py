"""`capline.web.asgi` under Starlette and Litestar, by their own test clients, and plain."""

import asyncio
import warnings
from typing import Any

import pytest
from litestar import Litestar, get
from litestar.middleware import DefineMiddleware
from litestar.testing import TestClient as LitestarClient
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from tests.kit.web import NOON_US, QUOTA_EXCEEDED, Down, left, limits_said, policies, sent_by

from capline import AsyncLimiter, CaplineError, Limiter, ManualClock
from capline.web import Rule, key
from capline.web.asgi import CaplineMiddleware, Request

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette asks for another client than httpx
    from starlette.testclient import TestClient, WebSocketDenialResponse


def limiter_of(**options: Any) -> AsyncLimiter:
    return AsyncLimiter("memory://", policies(), clock=ManualClock(NOON_US), **options)


async def home(request: StarletteRequest) -> PlainTextResponse:
    return PlainTextResponse(f"{request.method} {len(await request.body())}")


async def fails(_: StarletteRequest) -> PlainTextResponse:
    raise RuntimeError("the app's own fault")


async def status(request: StarletteRequest) -> PlainTextResponse:
    return PlainTextResponse("", request.path_params["code"])


async def talk(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("hello")
    await websocket.close()


def client(*rules: Rule, limiter: AsyncLimiter | None = None, **options: Any) -> Any:
    app = Starlette(
        routes=[
            Route("/", home, methods=["GET", "POST"]),
            Route("/healthz", home),
            Route("/fails", fails),
            Route("/status/{code:int}", status),
            WebSocketRoute("/ws", talk),
        ],
        middleware=[Middleware(CaplineMiddleware, limiter=limiter or limiter_of(), rules=rules, **options)],
    )
    return TestClient(app, raise_server_exceptions=False)


IP, USER = Rule("ip", key.ip(trusted=1)), Rule("user", key.header("X-Api-Key"))


def test_every_answer_has_the_limits_and_a_refusal_consumes_of_none() -> None:
    asked = client(IP, USER)
    answers = [asked.get("/", headers={"X-Api-Key": "ann"}) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert limits_said(answers[0].headers) == {
        "ip-10s": {"q": 5, "w": 10, "r": 4, "t": 10},
        "ip-hour": {"q": 100, "w": 3600, "r": 99, "t": 3600},
        "user-minute": {"q": 3, "w": 60, "r": 2, "t": 60},
    }
    assert [left(answer.headers)["ip-10s"] for answer in answers] == [4, 3, 2, 2, 2]
    assert answers[-1].headers["Retry-After"] == "60"
    assert answers[-1].headers["Content-Type"] == "application/problem+json"
    body = answers[-1].json()
    assert (body["type"], body["violated-policies"]) == (QUOTA_EXCEEDED, ["user-minute"])
    assert asked.get("/nothing").status_code == 404
    assert asked.head("/").status_code == 200


def test_a_spoofed_address_helps_nobody() -> None:
    asked = client(IP)
    codes = [
        asked.get("/", headers={"X-Forwarded-For": f"6.6.6.{number}, 203.0.113.7"}).status_code for number in range(7)
    ]
    assert codes == [200] * 5 + [429] * 2
    assert asked.get("/", headers={"X-Forwarded-For": "203.0.113.7, 203.0.113.8"}).status_code == 200


@pytest.mark.parametrize("bad", [b"", b"k" * 600, b"\xff\xfe", b"a\tb", b"%0d%0aSet-Cookie: c=1"])
def test_a_bad_key_breaks_nothing(bad: bytes) -> None:
    asked = client(USER)
    answers = [asked.get("/", headers=[(b"x-api-key", bad)]) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429 if bad else 200]
    assert {"set-cookie"} & set(answers[-1].headers) == set()


def test_exempt_paths_say_nothing() -> None:
    asked = client(IP, exempt=["/healthz"])
    assert [asked.get("/healthz").status_code for _ in range(7)] == [200] * 7
    assert "RateLimit" not in asked.get("/healthz").headers
    assert left(asked.get("/").headers)["ip-10s"] == 4


def test_a_cost_by_the_body_leaves_it_to_the_app() -> None:
    async def items(request: Request) -> int:
        return len((await request.json())["items"])

    asked = client(Rule("ip", "a", cost=items))
    answer = asked.post("/", json={"items": [1, 2, 3]})
    assert (answer.text, left(answer.headers)["ip-10s"]) == (f"POST {len(answer.request.content)}", 2)
    assert asked.post("/", json={"items": [1, 2, 3]}).status_code == 429
    for body in (b"{", b'"\xff"', b"[" * 100_000):
        broken = asked.post("/", content=body)
        assert (broken.status_code, broken.json()["title"]) == (400, "Bad Request")
    large = asked.post("/", content=b"[" * ((1 << 20) + 1))
    assert (large.status_code, large.json()["title"]) == (413, "Content Too Large")
    assert asked.post("/", json={}).status_code == 500, "the function's own fault"
    assert left(asked.post("/", json={"items": [1]}).headers)["ip-10s"] == 1, "none of these consumed"
    assert asked.post("/", content=b'{"items": [1]}'.ljust(1 << 20)).text == f"POST {1 << 20}", "as large as may be"


def test_what_the_functions_of_a_rule_see() -> None:
    seen: list[Any] = []

    def who(request: Request) -> str:
        seen.append((request.method, request.path, request.headers["x-a"], request.query, request.scope["type"]))
        return "a"

    client(Rule("ip", who)).get("/status/204?q=1&q=2", headers={"X-A": "b"})
    assert seen == [("GET", "/status/204", "b", {"q": ["1", "2"]}, "http")]


def test_an_exception_of_http_is_answered_and_any_other_raised() -> None:
    def forbidden(_: Any) -> str:
        raise HTTPException(403, "no\r\nkey")

    answer = client(Rule("ip", forbidden)).get("/")
    assert (answer.status_code, answer.json()["detail"]) == (403, "no\r\nkey")

    def unauthorized(_: Any) -> str:
        raise HTTPException(401, headers={"WWW-Authenticate": "Bearer", "content-type": "a/b", "Content-Length": "9"})

    answer = client(Rule("ip", unauthorized)).get("/")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.headers["content-type"] == "application/problem+json", "of the body, which is ours"
    assert answer.headers["content-length"] == str(len(answer.content))

    def unknown(_: Any) -> str:
        gone = HTTPException(400)
        gone.status_code = 499
        raise gone

    answer = client(Rule("ip", unknown)).get("/")
    assert (answer.status_code, answer.json()["title"]) == (499, "Bad Request")

    def wrong(_: Any) -> str:
        raise HTTPException(503)

    assert client(Rule("ip", wrong)).get("/").status_code == 500


@pytest.mark.parametrize("rules", [(IP,), (IP, USER)])
def test_an_outage_is_503_or_let_through(rules: tuple[Rule, ...]) -> None:
    for choice, code in (("allow", 200), ("deny", 503)):
        limiter = limiter_of()
        asked = client(*rules, limiter=limiter, on_error=choice)
        with Down(limiter):
            answer = asked.get("/", headers={"X-Api-Key": "ann"})
        assert answer.status_code == code
        assert answer.headers.get("Retry-After") == (None if code == 200 else "1")
        assert "RateLimit" not in answer.headers
        assert asked.get("/").status_code == 200


def test_what_should_not_count_is_given_back_before_the_answer_leaves() -> None:
    asked = client(Rule("login", "a", refund_if=range(500, 600)))
    for path in ("/fails", "/status/500", "/status/503", "/fails"):
        assert asked.get(path).status_code >= 500
    assert [asked.get("/status/401").status_code for _ in range(3)] == [401, 401, 429]


async def test_an_answer_that_has_begun_is_not_given_back() -> None:
    limiter = limiter_of()

    async def breaks(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("in the middle of its body")

    middleware = CaplineMiddleware(breaks, limiter, [Rule("login", "a", refund_if=range(500, 600))])
    with pytest.raises(RuntimeError):
        await sent_by(middleware, {"type": "http", "method": "GET", "path": "/", "headers": []})
    assert (await limiter.peek("login", "a")).remaining == 0, "this one and the next are all there are"


def test_a_websocket_is_decided_when_it_connects() -> None:
    asked = client(Rule("login", key.header("X-Api-Key")))
    for number in range(2):
        with asked.websocket_connect("/ws", headers={"X-Api-Key": "ann"}) as talking:
            assert talking.receive_text() == "hello"
            said = {name.decode(): value.decode() for name, value in talking.extra_headers or ()}
            assert said["ratelimit"] == f'"login-minute";r={1 - number};t=60'
    refused: Any
    with (
        pytest.raises(WebSocketDenialResponse) as refused,
        asked.websocket_connect("/ws", headers={"X-Api-Key": "ann"}),
    ):
        pass
    assert (refused.value.status_code, refused.value.headers["Retry-After"]) == (429, "60")
    with asked.websocket_connect("/ws") as talking:
        assert talking.receive_text() == "hello"


async def test_a_refused_head_has_no_body() -> None:
    scope: dict[str, Any] = {"type": "http", "method": "HEAD", "path": "/", "headers": []}
    sent = await sent_by(client(Rule("ip", "a", cost=9)).app, scope, {"type": "http.request"})
    assert [sent[0]["status"], sent[1]["body"]] == [429, b""]


async def test_a_server_that_cannot_answer_a_websocket_closes_it() -> None:
    asked = client(Rule("tier", "a"))
    scope: dict[str, Any] = {"type": "websocket", "path": "/ws", "headers": [], "query_string": b""}
    first, second = [await sent_by(asked.app, dict(scope), {"type": "websocket.connect"}) for _ in range(2)]
    assert [sent[-1]["type"] for sent in (first, second)] == ["websocket.close"] * 2
    assert ("code" in first[-1] and first[-1]["code"], second[-1]["code"]) == (1000, 1008)


async def test_a_client_that_goes_away_ends_nothing() -> None:
    async def body(request: Request) -> str:
        return (await request.body()).decode()

    reached: list[Any] = []

    async def app(*arguments: Any) -> None:
        reached.append(arguments)

    middleware = CaplineMiddleware(app, limiter_of(), [Rule("ip", body)])
    await sent_by(middleware, {"type": "http", "path": "/", "headers": []}, {"type": "http.disconnect"})
    await sent_by(middleware, {"type": "lifespan"})
    assert [scope["type"] for scope, *_ in reached] == ["lifespan"]


def test_other_middleware_may_be_around_it() -> None:
    async def through(request: Any, call_next: Any) -> Any:
        answer = await call_next(request)
        answer.headers["X-Seen"] = "1"
        return answer

    asked = client(IP)
    asked.app.add_middleware(BaseHTTPMiddleware, dispatch=through)
    answers = [asked.get("/") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    assert answers[-1].headers["X-Seen"] == "1"


def test_a_limiter_outlives_an_event_loop() -> None:
    limiter = limiter_of()
    for remaining in (4, 3):
        with client(IP, limiter=limiter) as asked:
            assert left(asked.get("/").headers)["ip-10s"] == remaining


def test_litestar() -> None:
    @get("/", sync_to_thread=False)
    def index() -> dict[str, int]:
        return {"ok": 1}

    middleware = DefineMiddleware(CaplineMiddleware, limiter=limiter_of(), rules=[IP, USER], headers="both")
    with LitestarClient(Litestar([index], middleware=[middleware])) as asked:
        answers = [asked.get("/", headers={"X-Api-Key": "ann"}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert left(answers[2].headers) == {"ip-10s": 2, "ip-hour": 97, "user-minute": 0}
    assert answers[2].headers["X-RateLimit-Limit"] == "3"


def test_settings_that_are_wrong_end_the_server_when_it_starts() -> None:
    ask: Any = TestClient
    asked = client(Rule("nobody", "a"))
    with pytest.raises(CaplineError, match="no policy 'nobody'"), asked:
        pass
    with pytest.raises(CaplineError, match="no policy 'nobody'"):
        ask(asked.app).get("/")

    async def start(*arguments: Any) -> None:
        with pytest.raises(CaplineError):
            await asked.app(*arguments)

    sent = asyncio.run(sent_by(start, {"type": "lifespan"}, {"type": "lifespan.startup"}))
    assert sent == [
        {"type": "lifespan.startup.failed", "message": "capline: no policy 'nobody'; there are: ip, login, tier, user"}
    ]


def test_it_takes_an_async_limiter() -> None:
    with pytest.raises(CaplineError, match="an AsyncLimiter here, not a Limiter"):
        CaplineMiddleware(home, Limiter("memory://"))  # pyright: ignore[reportArgumentType]
