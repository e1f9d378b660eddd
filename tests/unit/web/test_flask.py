"""`capline.web.flask` by Flask's own test client."""

from typing import Any

import flask
import pytest
from flask.views import MethodView
from tests.kit.web import QUOTA_EXCEEDED, Down, left, local

from capline import AsyncLimiter, CaplineError, Limiter
from capline.web import Rule, key
from capline.web.flask import Capline

IP = Rule("ip", key.ip(trusted=1))


def made(*rules: Rule, limiter: Limiter | None = None, **options: Any) -> tuple[flask.Flask, Capline]:
    app = flask.Flask("shop")
    cap = Capline(limiter or local()[0], rules=rules, **options)
    cap.init_app(app)

    @app.get("/")
    def home() -> str:
        return "home"

    @app.post("/login")
    @cap.limit("login", key=lambda request: request.form.get("username"), refund_if=200)
    def login() -> tuple[str, int]:
        return "", 200 if flask.request.form.get("password") == "right" else 401

    @cap.limit("login", key="all")
    @cap.limit("user", key=key.header("X-Api-Key"))
    @app.get("/above")
    def above() -> str:
        return "above"

    def hiding(view: Any) -> Any:
        def hidden() -> Any:
            return view()

        return hidden

    @app.get("/hidden")
    @hiding
    @cap.limit("login", key="hidden")
    def hidden() -> str:
        return "hidden"

    @app.get("/healthz")
    @cap.exempt
    def healthz() -> str:
        return "ok"

    @app.get("/fails")
    @cap.limit("login", key="fails", refund_if=500)
    def fails() -> str:
        raise RuntimeError("the view's own fault")

    class Items(MethodView):
        decorators = [cap.limit("login", key="items")]  # noqa: RUF012 - as Flask has it

        def get(self) -> str:
            return "items"

    app.add_url_rule("/items", view_func=Items.as_view("items"))
    assert all((home, login, above, hidden, healthz, fails))
    return app, cap


def client(*rules: Rule, **options: Any) -> Any:
    return made(*rules, **options)[0].test_client()


def codes(asked: Any, path: str, times: int, **options: Any) -> list[int]:
    return [asked.get(path, **options).status_code for _ in range(times)]


def test_every_answer_has_the_limits() -> None:
    asked = client(IP, Rule("user", key.header("X-Api-Key")), headers="both")
    answers = [asked.get("/", headers={"X-Api-Key": "ann"}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert left(answers[3].headers) == {"ip-10s": 2, "ip-hour": 97, "user-minute": 0}
    assert answers[3].headers["X-RateLimit-Remaining"] == "0"
    assert (answers[3].mimetype, answers[3].headers["Retry-After"]) == ("application/problem+json", "60")
    assert (answers[3].json["type"], answers[3].json["status"]) == (QUOTA_EXCEEDED, 429)
    assert left(asked.get("/nothing").headers)["ip-10s"] == 1, "a page that is not there counts too"


def test_a_view_and_the_app_are_one_decision() -> None:
    asked = client(IP)
    answers = [asked.post("/login", data={"username": "ann"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [401, 401, 429]
    assert [left(answer.headers)["ip-10s"] for answer in answers] == [4, 3, 3]
    assert asked.post("/login", data={"username": "bob"}).status_code == 401
    assert asked.post("/login").status_code == 401, "no name, no rule"


def test_what_should_not_count_is_given_back() -> None:
    asked = client(IP)
    right = {"username": "ann", "password": "right"}
    assert [asked.post("/login", data=right).status_code for _ in range(4)] == [200] * 4
    assert codes(client(IP), "/fails", 4) == [500] * 4


def test_an_exception_that_leaves_the_app_is_given_back_too() -> None:
    app, cap = made()
    app.testing = True
    for _ in range(3):
        with pytest.raises(RuntimeError):
            app.test_client().get("/fails")
    assert cap


@pytest.mark.parametrize("path", ["/above", "/hidden", "/items"])
def test_a_view_is_limited_however_it_was_decorated(path: str) -> None:
    asked = client(IP)
    assert codes(asked, path, 4) == [200, 200, 429, 429]
    answer = asked.get(path)
    assert left(answer.headers) == {"ip-10s": 3, "ip-hour": 98, "login-minute": 0}
    assert len(answer.headers.getlist("RateLimit")) == 1


def test_an_exempt_view_or_path_is_under_no_rule() -> None:
    asked = client(IP, exempt=["/hidden"])
    for path in ("/healthz", "/hidden"):
        assert codes(asked, path, 7) == [200] * 7
        assert "RateLimit" not in asked.get(path).headers


def test_bad_keys_break_nothing() -> None:
    asked = client(Rule("user", key.header("X-Api-Key")))
    for bad in ("k" * 600, "\xff\xfe", "a\tb", "%0d%0aSet-Cookie: c=1"):
        assert codes(asked, "/", 4, headers={"X-Api-Key": bad}) == [200, 200, 200, 429]
    assert codes(asked, "/", 4, headers={"X-Api-Key": ""}) == [200] * 4
    for bad in ("", "a\r\nX: y", "\x00"):
        assert [asked.post("/login", data={"username": bad}).status_code for _ in range(3)] == [401, 401, 429]


def test_a_function_that_raises_is_the_views_own_fault() -> None:
    def refusing(_: Any) -> str:
        flask.abort(400, "no tenant")

    asked = client(IP, Rule("user", refusing))
    assert codes(asked, "/", 2) == [400, 400]
    assert codes(client(Rule("user", lambda _: 1 // 0)), "/", 1) == [500]  # pyright: ignore[reportUnknownLambdaType]


def test_an_outage_and_a_shadow() -> None:
    for choice, code in (("allow", 200), ("deny", 503)):
        limiter = local()[0]
        asked = client(IP, limiter=limiter, on_error=choice)
        with Down(limiter):
            answer = asked.get("/above")
        assert answer.status_code == code
        assert "RateLimit" not in answer.headers
        assert answer.headers.get("Retry-After") == (None if code == 200 else "1")
    assert codes(client(IP, shadow=True), "/above", 7) == [200] * 7


def test_bad_settings_are_reported_at_once() -> None:
    app, cap = made(IP)
    for wrong in (
        lambda: cap.limit("nobody", "a"),
        lambda: cap.init_app(app),
        lambda: cap.limit("login", "a")(MethodView),
        lambda: Capline(AsyncLimiter("memory://")),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(CaplineError):
            wrong()
