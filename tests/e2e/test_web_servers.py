"""The examples of `examples/web` in real servers: several processes on one store, forks, no leaked sockets."""

import re
import sys
import threading
from pathlib import Path
from typing import Self

import httpx
import pytest
from tests.kit.guests import guests
from tests.kit.program import WITHIN_S, Program
from tests.kit.server import soon
from tests.kit.servers import free_port
from tests.kit.web import left, limits_said
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

ROOT = Path(__file__).parents[2]
APPS = ROOT / "examples" / "web"
_LEAK = "ResourceWarning: unclosed"
FREE = "free port"
"""Among a server's words: one that does not choose a port itself."""
_ADDRESS = re.compile(r"(?:http://|TCP address )127\.0\.0\.1:(\d+)")


class Served(Program):
    """A server on a free port of loopback; what it leaks is among what it says."""

    def __init__(self, folder: Path, *words: str, apps: Path = APPS, python: str = sys.executable) -> None:
        env = {"PYTHONPATH": f"{apps}:{ROOT / 'src'}", "PATH": "/usr/bin:/bin"}
        words = tuple(str(free_port()) if word == FREE else word for word in words)
        super().__init__(folder, "-X", "dev", "-W", "default::ResourceWarning", "-m", *words, env=env, python=python)
        self.port = int(self.says(_ADDRESS)[1])
        patient = httpx.HTTPTransport(retries=8)  # the address is said before a worker listens
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", timeout=WITHIN_S, trust_env=False, transport=patient
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.end()
        # Servers leave their own listening socket to the end of the process.
        own = f"laddr=('127.0.0.1', {self.port})>"
        wrong = [line for line in self.said if "Traceback" in line or (_LEAK in line and own not in line)]
        assert not wrong, self.said


def uvicorn(app: str, *more: str) -> tuple[str, ...]:
    return ("uvicorn", app, "--host", "127.0.0.1", "--port", "0", "--no-access-log", *more)


def gunicorn(app: str, *more: str) -> tuple[str, ...]:
    return ("gunicorn", app, "--bind", "127.0.0.1:0", "--no-control-socket", *more)


def daphne(app: str, *more: str) -> tuple[str, ...]:
    return ("daphne", "-b", "127.0.0.1", "-p", "0", *more, app)


def granian(app: str) -> tuple[str, ...]:
    # A worker that did not end would keep the pipe of its output open.
    return ("granian", "--interface", "asgi", "--host", "127.0.0.1", "--port", FREE, "--workers-kill-timeout", "5", app)


def interpreter(words: tuple[str, ...]) -> str:
    """Servers that few tests need are in a venv of their own."""
    return str(guests()) if words[0] in {"daphne", "granian"} else sys.executable


SERVERS = [
    pytest.param(uvicorn("fastapi_app:app"), id="fastapi"),
    *(
        pytest.param(words, id=name, marks=pytest.mark.deep)
        for name, words in {
            "fastapi-2-workers": uvicorn("fastapi_app:app", "--workers", "2"),
            "starlette": uvicorn("starlette_app:app"),
            "flask-preload": gunicorn("flask_app:app", "--preload", "--workers", "2"),
            "flask-threads": gunicorn("flask_app:app", "--threads", "4"),
            "wsgi": gunicorn("wsgi_app:app", "--workers", "2"),
            "django-wsgi": gunicorn("django_app:by_wsgi", "--workers", "2"),
            "django-wsgi-preload": gunicorn("django_app:by_wsgi", "--preload", "--workers", "2"),
            "django-asgi": uvicorn("django_app:by_asgi", "--lifespan", "off"),
            "starlette-daphne": daphne("starlette_app:app"),
            "django-daphne": daphne("django_app:by_asgi"),
            "fastapi-granian": granian("fastapi_app:app"),
        }.items()
    ),
]


def says_every_limit(headers: httpx.Headers, is_starlette: bool) -> None:
    """Each limit of both policies with its quota and window, what is left of it, and when its next unit is free."""
    expected = {"ip-10s": (20, 10), "ip-hour": (200, 3600), "search-minute": (3, 60)}
    if is_starlette:
        del expected["ip-hour"]
        assert headers["X-RateLimit-Limit"] == "3"
    said = limits_said(headers)
    assert {name: (one["q"], one["w"]) for name, one in said.items()} == expected
    for one in said.values():
        assert 0 <= one["r"] <= one["q"]
        assert ("t" in one) == (one["r"] < one["q"])  # what is unused has nothing that will be free
        assert 0 <= one.get("t", 0) <= one["w"]


@pytest.mark.parametrize("words", SERVERS)
def test_an_example_in_a_real_server(words: tuple[str, ...], tmp_path: Path) -> None:
    with Served(tmp_path, *words, python=interpreter(words)) as served:
        for number in range(3):
            answer = served.client.get(
                "/search", headers={"X-User": "ann", "X-Forwarded-For": f"6.6.6.{number}, 1.1.1.1"}
            )
            assert answer.status_code == 200, answer.text
            says_every_limit(answer.headers, "starlette_app:app" in words)
            assert left(answer.headers)["search-minute"] == 2 - number
        refused = [served.client.get("/search", headers={"X-User": "ann"}) for _ in range(4)]
        assert {answer.status_code for answer in refused} == {429}
        assert refused[0].json()["violated-policies"] == ["search-minute"]
        says_every_limit(refused[0].headers, "starlette_app:app" in words)
        assert left(refused[0].headers)["search-minute"] == 0
        assert 1 <= int(refused[0].headers["Retry-After"]) <= 60
        assert served.client.get("/nowhere").status_code == 404
        bad = served.client.get("/search", headers=[(b"X-User", b"\xff" * 600)])
        assert left(bad.headers)["search-minute"] == 2
        # In threads, on keep-alive connections and new ones: exactly three of thirty.
        codes: list[int] = []

        def ask() -> None:
            with httpx.Client(base_url=served.client.base_url, timeout=WITHIN_S, trust_env=False) as own:
                codes.extend(own.get("/search", headers={"X-User": "bob"}).status_code for _ in range(5))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(codes) == [200] * 3 + [429] * 12


@pytest.mark.deep
@pytest.mark.parametrize(
    ("words", "said_after_the_end"),
    [
        pytest.param(
            uvicorn("fastapi_app:app", "--reload", "--reload-dir", "."), "Started server process", id="uvicorn"
        ),
        pytest.param(("flask", "--app", "flask_app", "run", "--debug", "--port", "0"), "Restarting with", id="flask"),
    ],
)
def test_a_reloader_keeps_what_was_counted(words: tuple[str, ...], said_after_the_end: str, tmp_path: Path) -> None:
    for app in APPS.glob("*.py"):
        (tmp_path / app.name).write_text(app.read_text(encoding="utf-8"), encoding="utf-8")
    with Served(tmp_path, *words, apps=tmp_path) as served:
        answer = served.client.get("/search", headers={"X-User": "ann"})
        assert left(answer.headers)["search-minute"] == 2
        # Of another length: Python takes its own bytecode for a file of the same length in the same second.
        for app in tmp_path.glob("*.py"):
            code = app.read_text(encoding="utf-8")
            app.write_text(code.replace('Policy("search", ["3/minute"])', 'Policy("search", ["50/minute"])'))
        served.says(re.compile("Reloading|reloading"))
        # Not asked before the old process has ended: flask's has a thread for each request, and CPython crashes where
        # a thread begins while its interpreter ends.
        served.says(re.compile(said_after_the_end))

        def has_new_limit() -> bool:
            answer = served.client.get("/search", headers={"X-User": "bob"})
            return limits_said(answer.headers)["search-minute"]["q"] == 50

        assert soon(has_new_limit)
        answer = served.client.get("/search", headers={"X-User": "ann"})
        assert left(answer.headers)["search-minute"] == 48


WEBSOCKETS = """
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from capline import AsyncLimiter, Policy
from capline.web import Rule, key
from capline.web.asgi import CaplineMiddleware

async def talk(websocket):
    await websocket.accept()
    await websocket.send_text("hello")
    await websocket.close()

app = Starlette(routes=[WebSocketRoute("/", talk)])
limiter = AsyncLimiter("memory://", [Policy("ws", ["2/minute"])])
app.add_middleware(CaplineMiddleware, limiter=limiter, rules=[Rule("ws", key.ip())], exempt=["/ready"])
"""


@pytest.mark.deep
@pytest.mark.parametrize(
    ("words", "says_accepted", "code"),
    [
        pytest.param(uvicorn("talking:app", "--ws", "websockets-sansio"), True, 429, id="uvicorn"),
        pytest.param(granian("talking:app"), False, 429, id="granian"),
        pytest.param(daphne("talking:app"), False, 403, id="daphne"),
    ],
)
def test_websockets_in_a_real_server(words: tuple[str, ...], says_accepted: bool, code: int, tmp_path: Path) -> None:
    (tmp_path / "talking.py").write_text(WEBSOCKETS, encoding="utf-8")
    with Served(tmp_path, *words, apps=tmp_path, python=interpreter(words)) as served:
        assert served.client.get("/ready").status_code == 404, "a worker listens"
        for number in range(2):
            with connect(f"ws://127.0.0.1:{served.port}/") as talking:
                assert talking.recv() == "hello"
                assert talking.response is not None
                if says_accepted:
                    assert talking.response.headers["ratelimit"] == f'"ws-minute";r={1 - number};t=60'
        with pytest.raises(InvalidStatus) as refused, connect(f"ws://127.0.0.1:{served.port}/"):
            pass
        answer = refused.value.response
        assert answer.status_code == code
        if code == 429:
            assert answer.headers["ratelimit"] == '"ws-minute";r=0;t=60'
            assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_an_example_has_at_most_fifteen_lines_and_is_in_the_docs() -> None:
    howto = ROOT / "docs" / "howto"
    page = "".join((howto / f"{name}.md").read_text(encoding="utf-8") for name in ("web", "fastapi", "flask", "django"))
    apps = sorted(APPS.glob("*_app.py"))
    assert len(apps) == 5
    for app in apps:
        code = app.read_text(encoding="utf-8")
        lines = [line for line in code.splitlines() if line.strip()]
        assert len(lines) <= 15, app.name
        assert f"```py\n{code}```" in page, app.name
