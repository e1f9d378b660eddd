"""`capline.web.fastapi`: routes limited by dependencies, beside the middleware's rules."""

import warnings
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request, WebSocket
from tests.kit.web import NOON_US, Down, left, policies

from capline import AsyncLimiter, CaplineError, ManualClock
from capline.web import Rule, key
from capline.web.fastapi import CaplineMiddleware, Limited

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette asks for another client than httpx
    from starlette.testclient import TestClient, WebSocketDenialResponse

CALLS: list[str] = []


def current_user(authorization: Annotated[str, Header()]) -> str:
    CALLS.append(authorization)
    if authorization == "nobody":
        raise HTTPException(401)
    return authorization


async def maybe_user(user: Annotated[str, Depends(current_user)]) -> str | None:
    return None if user == "root" else user


def tier(request: Request) -> str | None:
    return request.headers.get("x-tier")


def path(request: Request) -> str:
    return request.url.path


def limiter_of() -> AsyncLimiter:
    return AsyncLimiter("memory://", policies(), clock=ManualClock(NOON_US))


def client(limiter: AsyncLimiter | None = None, **options: Any) -> Any:
    app = FastAPI()
    app.add_middleware(
        CaplineMiddleware, limiter=limiter or limiter_of(), rules=[Rule("ip", key.ip(trusted=1))], **options
    )

    @app.get("/search", dependencies=[Depends(Limited("login", key=current_user))])
    def search(user: Annotated[str, Depends(current_user)]) -> str:
        return user

    @app.get("/open", dependencies=[Depends(Limited("login", key.header("X-Api-Key"), refund_if=404))])
    async def open_to_all() -> str:
        raise HTTPException(404)

    @app.get("/maybe", dependencies=[Depends(Limited("tier", key=maybe_user, segment=tier))])
    async def maybe() -> str:
        return "ok"

    @app.get("/free")
    async def free() -> str:
        return "ok"

    many = APIRouter(prefix="/many", dependencies=[Depends(Limited("user", path))])

    @many.get("/{number}", dependencies=[Depends(Limited("login", "all"))])
    async def one(number: int) -> int:
        return number

    @app.websocket("/ws", dependencies=[Depends(Limited("login", key.header("X-Api-Key")))])
    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("hello")
        await websocket.close()

    app.include_router(many)
    assert all((search, open_to_all, maybe, free, one, talk))
    return TestClient(app)


def test_a_route_and_the_app_are_one_answer() -> None:
    asked = client()
    CALLS.clear()
    answers = [asked.get("/search", headers={"authorization": "ann"}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert left(answers[1].headers) == {"ip-10s": 3, "ip-hour": 98, "login-minute": 0}
    assert left(answers[3].headers) == {"ip-10s": 3, "ip-hour": 98, "login-minute": 0}, "given back"
    assert answers[3].json()["violated-policies"] == ["login-minute"]
    assert len(answers[3].headers.get_list("ratelimit")) == 1
    assert CALLS == ["ann"] * 4, "a dependency is called once a request"
    assert left(asked.get("/free").headers) == {"ip-10s": 2, "ip-hour": 97}


def test_the_schema_of_a_route_shows_its_own_parameters_alone() -> None:
    paths = client().get("/openapi.json").json()["paths"]
    assert [one["name"] for one in paths["/search"]["get"]["parameters"]] == ["authorization"]
    assert "parameters" not in paths["/open"]["get"]


def test_a_dependency_that_refuses_is_the_apps_own_answer() -> None:
    asked = client()
    assert asked.get("/search", headers={"authorization": "nobody"}).status_code == 401
    assert asked.get("/search").status_code == 422


def test_none_skips_and_a_segment_is_taken() -> None:
    asked = client()
    assert [asked.get("/maybe", headers={"authorization": "root"}).status_code for _ in range(3)] == [200] * 3
    codes = [
        asked.get("/maybe", headers={"authorization": "ann", "x-tier": tier}).status_code for tier in ("paid", "paid")
    ]
    assert codes == [200, 200], "four a minute, not one"


def test_what_should_not_count_is_given_back() -> None:
    asked = client()
    assert [asked.get("/open", headers={"X-Api-Key": "k"}).status_code for _ in range(4)] == [404] * 4


def test_rules_of_a_router_and_of_a_route() -> None:
    asked = client()
    assert [asked.get(f"/many/{number}").status_code for number in (1, 1, 2)] == [200, 200, 429]
    assert left(asked.get("/many/2").headers)["user-minute"] == 3, "what the router's rule consumed is given back"


def test_a_websocket_route() -> None:
    asked = client()
    for _ in range(2):
        with asked.websocket_connect("/ws", headers={"X-Api-Key": "k"}) as talking:
            assert talking.receive_text() == "hello"
    refused: Any
    with pytest.raises(WebSocketDenialResponse) as refused, asked.websocket_connect("/ws", headers={"X-Api-Key": "k"}):
        pass
    assert refused.value.status_code == 429
    assert left(asked.get("/free").headers)["ip-10s"] == 2, "the middleware's unit of the refused one is given back"


def test_exempt_shadow_and_outage() -> None:
    asked = client(exempt=["/many/*"])
    assert [asked.get("/many/1").status_code for _ in range(4)] == [200] * 4
    asked = client(shadow=True)
    assert [asked.get("/search", headers={"authorization": "a"}).status_code for _ in range(4)] == [200] * 4
    limiter = limiter_of()
    asked = client(limiter, on_error="deny")
    with Down(limiter):
        assert asked.get("/search", headers={"authorization": "a"}).status_code == 503


def test_a_limited_route_needs_the_middleware_and_a_policy() -> None:
    def app() -> FastAPI:
        made = FastAPI()

        @made.get("/", dependencies=[Depends(Limited("nobody", "a"))])
        async def index() -> str:
            return "ok"

        assert index
        return made

    ask: Any = TestClient
    with pytest.raises(CaplineError, match="needs the middleware"):
        ask(app()).get("/")
    limited = app()
    limited.add_middleware(CaplineMiddleware, limiter=limiter_of())
    with pytest.raises(CaplineError, match="no policy 'nobody'"):
        ask(limited).get("/")


@pytest.mark.parametrize("where", ["app", "router", "route", "below", "websocket"])
def test_a_rule_of_a_route_that_is_wrong_ends_the_server_when_it_starts(where: str) -> None:
    wrong = Depends(Limited("nobody", key.ip()))

    def below(_: Any = wrong) -> None:
        pass

    depends = {name: [wrong] if name == where else [] for name in ("app", "router", "route", "websocket")}
    app = FastAPI(dependencies=depends["app"])
    app.add_middleware(CaplineMiddleware, limiter=limiter_of())
    router = APIRouter(dependencies=depends["router"])

    @router.get("/", dependencies=[*depends["route"], *([Depends(below)] if where == "below" else [])])
    async def home() -> str:
        return "home"

    @router.websocket("/ws", dependencies=depends["websocket"])
    async def talk(_: WebSocket) -> None: ...

    app.include_router(router, prefix="/in")
    ask: Any = TestClient
    with pytest.raises(CaplineError, match="no policy 'nobody'"), ask(app):
        pass


async def units(request: Request) -> int:
    return (await request.json())["units"]


async def test_a_rule_of_a_route_reads_the_body_beside_the_route() -> None:
    app = FastAPI()
    app.add_middleware(CaplineMiddleware, limiter=limiter_of())
    limited = [Depends(Limited("user", "a", cost=units))]

    @app.post("/typed", dependencies=limited)
    async def typed(order: dict[str, int]) -> int:
        return order["units"]

    @app.post("/raw", dependencies=limited)
    async def raw(request: Request) -> int:
        return await units(request)

    assert typed
    assert raw
    for path, left_over in (("/typed", 2), ("/raw", 1)):
        parts, answers = [b'{"units"', b": 1}"], list[Any]()

        async def receive(parts: list[bytes] = parts) -> Any:
            body = parts.pop(0)  # a server would wait for more
            return {"type": "http.request", "body": body, "more_body": bool(parts)}

        async def send(message: Any, answers: list[Any] = answers) -> None:
            answers.append(message)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        await app(scope, receive, send)
        assert answers[1]["body"] == b"1"
        assert f";r={left_over};".encode() in dict(answers[0]["headers"])[b"ratelimit"]


def test_a_maker_of_keys_is_no_key() -> None:
    with pytest.raises(CaplineError, match=r"call it, like key.ip\(\)"):
        Limited("ip", key.ip)
