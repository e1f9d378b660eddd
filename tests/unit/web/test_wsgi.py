"""`capline.web.wsgi` by plain WSGI apps, checked by the standard library's validator."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from itertools import islice
from types import SimpleNamespace
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from tests.kit.web import Down, left, local

from capline import AsyncLimiter, CaplineError
from capline.web import Rule, key
from capline.web.wsgi import CaplineMiddleware, Request

TEXT = [("Content-Type", "text/plain")]


def plain(environ: dict[str, Any], start_response: Any) -> Any:
    write = start_response(environ.get("HTTP_X_STATUS", "200 OK"), TEXT)
    write(b"written ")
    return [b"home", environ["wsgi.input"].read(9)]


def raising(_: dict[str, Any], __: Any) -> Any:
    raise RuntimeError("the app's own fault")


def failing_when_read(_: dict[str, Any], __: Any) -> Iterator[bytes]:
    raise RuntimeError("the app's own fault")
    yield b""


def failing_before_its_first_byte(_: dict[str, Any], start_response: Any) -> Iterator[bytes]:
    start_response("200 OK", TEXT)
    yield b""
    raise RuntimeError("the app's own fault")


def failing_in_the_middle(_: dict[str, Any], start_response: Any) -> Iterator[bytes]:
    start_response("200 OK", TEXT)
    yield b"half"
    raise RuntimeError("the app's own fault")


def failing_after_it_wrote(_: dict[str, Any], start_response: Any) -> Iterator[bytes]:
    start_response("200 OK", TEXT)(b"half")
    yield b""
    raise RuntimeError("the app's own fault")


def ask(app: Any, path: str = "/", body: bytes = b"", **environ: Any) -> tuple[int, dict[str, str], bytes]:
    environ = {"PATH_INFO": path, "QUERY_STRING": "", "REMOTE_ADDR": "192.0.2.1", "SCRIPT_NAME": "", **environ}
    if body:
        environ = {"CONTENT_LENGTH": str(len(body)), **environ}
    environ["wsgi.input"] = BytesIO(body)
    setup_testing_defaults(environ)
    said: list[Any] = []
    sent: list[bytes] = []

    def start_response(status: str, fields: Any, _: Any = None) -> Any:
        said[:] = [int(status[:3]), dict(fields)]
        return sent.append

    validated: Any = validator
    with closing(validated(app)(environ, start_response)) as answer:
        sent += answer
    return said[0], said[1], b"".join(sent)


def opened(app: Any) -> Any:
    """The answer, unread."""
    environ: dict[str, Any] = {"wsgi.input": BytesIO()}
    setup_testing_defaults(environ)

    def start_response(*_: Any) -> Any:
        return bytearray().extend

    return app(environ, start_response)


def app_of(*rules: Rule, app: Any = plain, **options: Any) -> Any:
    return CaplineMiddleware(app, options.pop("limiter", None) or local()[0], rules, **options)


IP, USER = Rule("ip", key.ip()), Rule("user", key.header("X-Api-Key"))


def test_every_answer_has_the_limits_and_exempt_paths_have_none() -> None:
    app = app_of(IP, USER, exempt=["/healthz"])
    answers = [ask(app, HTTP_X_API_KEY="ann") for _ in range(4)]
    assert [answer[0] for answer in answers] == [200, 200, 200, 429]
    assert answers[0][2] == b"written home"
    assert left(answers[3][1]) == {"ip-10s": 2, "ip-hour": 97, "user-minute": 0}
    assert answers[3][1]["Retry-After"] == "60"
    assert json.loads(answers[3][2])["violated-policies"] == ["user-minute"]
    assert "RateLimit" not in ask(app, "/healthz")[1]
    assert ask(app, HTTP_X_API_KEY="ann", REQUEST_METHOD="HEAD")[2] == b""


def test_what_the_functions_of_a_rule_see() -> None:
    seen: list[Any] = []

    def who(request: Request) -> str:
        seen.append((request.method, request.path, request.headers["x-a"], request.query, request.environ["HTTP_X_A"]))
        return "a"

    ask(app_of(Rule("ip", who)), "/caf\xc3\xa9", QUERY_STRING="q=1&q=2", HTTP_X_A="b")
    assert seen == [("GET", "/café", "b", {"q": ["1", "2"]}, "b")]


def test_a_cost_by_the_body_leaves_it_to_the_app() -> None:
    app = app_of(Rule("ip", "a", cost=lambda request: request.json()["items"]))
    status, fields, said = ask(app, body=b'{"items":3}')
    assert (status, said, left(fields)["ip-10s"]) == (200, b'written home{"items":', 2)
    chunked: dict[str, Any] = {"CONTENT_LENGTH": "", "wsgi.input_terminated": True}
    assert ask(app, body=b'{"items":3}', **chunked)[0] == 429
    large = b"[" * ((1 << 20) + 1)
    assert [ask(app, body=b"{")[0], ask(app, body=large)[0], ask(app, body=large, **chunked)[0]] == [400, 413, 413]
    assert ask(app, body=b'{"items":1}', CONTENT_LENGTH="")[0] == 400, "no length is no body"
    assert ask(app, body=b'{"items":2}'.ljust(1 << 20))[0] == 200, "as large as may be, and none of these consumed"


@pytest.mark.parametrize(("status", "title"), [(403, "Forbidden"), (499, "Bad Request")])
def test_an_exception_of_http_is_answered_and_any_other_raised(status: int, title: str) -> None:
    class HTTPError(Exception):
        status_code, detail, headers = status, "no key", SimpleNamespace()

    def refusing(_: Any) -> str:
        raise HTTPError

    answered, fields, said = ask(app_of(Rule("ip", refusing)))
    assert (answered, fields["Content-Type"], json.loads(said)["title"]) == (status, "application/problem+json", title)
    HTTPError.status_code = 503
    with pytest.raises(HTTPError):
        ask(app_of(Rule("ip", refusing)))


def test_an_outage_is_503_or_let_through_and_a_shadow_refuses_nothing() -> None:
    seen: list[str] = []
    for options, code in (({}, 200), ({"on_error": "deny"}, 503), ({"on_error": "deny", "shadow": True}, 200)):
        limiter = local()[0]
        app = app_of(IP, limiter=limiter, on_outcome=seen.append, **options)
        with Down(limiter):
            answer = ask(app)
        assert (answer[0], answer[1].get("Retry-After")) == (code, None if code == 200 else "1")
    assert seen == ["failed-open", "failed-closed", "failed-open"]
    for choice, code in (("allow", 200), ("deny", 503)):
        limiter = local(on_store_error=choice)[0]
        app = app_of(IP, limiter=limiter)
        with Down(limiter):
            assert ask(app)[0] == code, "the limiter's own choice"
    app = app_of(IP, shadow=True, on_outcome=seen.append)
    assert [ask(app)[0] for _ in range(6)] == [200] * 6
    assert (seen[-1], "RateLimit" in ask(app)[1]) == ("shadow-refused", False)


@pytest.mark.parametrize(
    ("failing", "remaining"),
    [
        (raising, 2),
        (failing_when_read, 2),
        (failing_before_its_first_byte, 2),
        (failing_in_the_middle, 1),
        (failing_after_it_wrote, 1),
    ],
)
def test_the_apps_own_exception_is_passed_on_and_given_back_unless_the_answer_has_begun(
    failing: Any, remaining: int
) -> None:
    limiter = local()[0]
    with pytest.raises(RuntimeError, match="the app's own fault"):
        ask(app_of(Rule("login", "a", refund_if=range(500, 600)), app=failing, limiter=limiter))
    assert limiter.usage("login", "a")[0].remaining == remaining
    with pytest.raises(RuntimeError, match="the app's own fault"):
        ask(app_of(IP, app=failing))


def test_what_should_not_count_is_given_back_before_the_answer_leaves() -> None:
    app = app_of(Rule("login", lambda request: request.query["name"][0], refund_if=range(500, 600)))
    down = [ask(app, QUERY_STRING="name=ann", HTTP_X_STATUS="503 Down") for _ in range(4)]
    assert [(answer[0], left(answer[1])) for answer in down] == [(503, {"login-minute": 2})] * 4
    assert [ask(app, QUERY_STRING="name=ann")[0] for _ in range(3)] == [200, 200, 429]


def test_an_answer_that_is_begun_anew_counts_as_the_last_one() -> None:
    passed: list[Any] = []

    def begins_anew(_: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", TEXT)
        try:
            raising({}, None)
        except RuntimeError:
            start_response("500 Sorry", TEXT, sys.exc_info())
        return [b"sorry"]

    def server(environ: dict[str, Any], start_response: Any) -> Any:
        def starting(status: str, fields: Any, exc_info: Any = None) -> Any:
            passed.append(exc_info and exc_info[0])
            return start_response(status, fields, exc_info)

        return app(environ, starting)

    app = app_of(Rule("login", "a", refund_if=500), app=begins_anew)
    status, fields, said = ask(server)
    assert (status, left(fields), said) == (500, {"login-minute": 2}, b"sorry")
    assert passed == [None, RuntimeError]


class Closing:
    """An answer that counts how often it is closed."""

    closed = 0

    def __call__(self, _: dict[str, Any], start_response: Any) -> "Closing":
        start_response("200 OK", TEXT)
        return self

    def __iter__(self) -> Iterator[bytes]:
        yield b"one"
        yield b"two"

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("refund_if", [None, 500])
@pytest.mark.parametrize("pieces", [0, 1, 2])
def test_the_apps_answer_is_closed_once_however_much_was_read(refund_if: int | None, pieces: int) -> None:
    closing = Closing()
    answer = opened(app_of(Rule("login", "a", refund_if=refund_if), app=closing))
    assert list[bytes](islice(answer, pieces)) == [b"one", b"two"][:pieces]
    assert closing.closed == 0
    answer.close()
    assert closing.closed == 1


def test_a_list_stays_one_as_servers_take_its_length() -> None:
    assert opened(app_of(Rule("login", "a", refund_if=500))) == [b"home", b""]


async def later(_: Any) -> str:
    return ""


@pytest.mark.parametrize(
    "make",
    [
        lambda: app_of(Rule("ip", later)),
        lambda: app_of(Rule("ip", "a", cost=later)),
        lambda: app_of(Rule("nobody", "a")),
        lambda: app_of(on_error="raise"),
        lambda: CaplineMiddleware(plain, AsyncLimiter("memory://")),  # pyright: ignore[reportArgumentType]
    ],
)
def test_wrong_settings_are_told_when_it_is_made(make: Any) -> None:
    with pytest.raises(CaplineError):
        make()
