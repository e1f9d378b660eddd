"""`limits=` of a rule: limits that a request brings along, in every face."""

# Django comes without types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

import asyncio
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from fastapi import Depends, FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.kit.web import NOON_US, Down, left
from tests.unit.web import test_django as _django  # it sets Django up
from tests.unit.web.test_wsgi import ask as ask_wsgi
from tests.unit.web.test_wsgi import plain

from capline import AsyncLimiter, CaplineError, Insurance, Limiter, ManualClock, Policy
from capline.limiter.steps import run, run_awaited
from capline.model.errors import InvalidTypeError, InvalidValueError, PolicyError, UnknownNameError
from capline.web import Rule, asgi, fastapi, flask, key, wsgi
from capline.web.django import limited
from capline.web.drf import CaplineThrottle
from capline.web.gate import Gate

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette asks for another client than httpx
    from starlette.testclient import TestClient


assert _django

POLICIES = [Policy("search", ["1/minute"]), Policy("ip", ["50/hour"])]
PLANS: dict[str | None, Any] = {
    "free": None,
    "pro": ["2/minute", "50/hour"],
    "same": ("50/h", "2/60s"),
    "text": "2/minute",
    "number": 5,
    "empty": [],
    "wrong": ["soon"],
}
PLAN = key.header("X-Plan")
IP = Rule("ip", key.ip())

Answer = tuple[int, "Mapping[str, str]"]
Ask = "Callable[[str], Answer]"


def of_plan(request: Any) -> Any:
    """The limits of the plan that a request names; a `KeyError` for an unknown one."""
    return PLANS[PLAN(request)]


def local(**options: Any) -> Limiter:
    return Limiter("memory://", POLICIES, clock=ManualClock(NOON_US), **options)


def awaiting() -> AsyncLimiter:
    return AsyncLimiter("memory://", POLICIES, clock=ManualClock(NOON_US))


def by_wsgi(policy: str, limits: Any) -> Callable[[str], Answer]:
    app = wsgi.CaplineMiddleware(plain, local(), [IP, Rule(policy, "a", limits=limits)])
    return lambda plan: ask_wsgi(app, HTTP_X_PLAN=plan)[:2]


def by_asgi(policy: str, limits: Any) -> Callable[[str], Answer]:
    async def later(request: Any) -> Any:
        await asyncio.sleep(0)
        return limits(request)

    rules = [IP, Rule(policy, "a", limits=later if callable(limits) else limits)]
    middleware = [Middleware(asgi.CaplineMiddleware, limiter=awaiting(), rules=rules)]
    return _asked(Starlette(routes=[Route("/", lambda _: PlainTextResponse("home"))], middleware=middleware))


def by_fastapi(policy: str, limits: Any) -> Callable[[str], Answer]:
    app = FastAPI()
    app.add_middleware(fastapi.CaplineMiddleware, limiter=awaiting(), rules=[IP])
    app.get("/", dependencies=[Depends(fastapi.Limited(policy, "a", limits=limits))])(lambda: "home")
    return _asked(app)


def by_flask(policy: str, limits: Any) -> Callable[[str], Answer]:
    app = Flask("shop")
    app.testing = True
    cap = flask.Capline(local(), [IP], app)
    app.get("/")(cap.limit(policy, "a", limits=limits)(lambda: "home"))

    def ask(plan: str) -> Answer:
        answer = app.test_client().get("/", headers={"X-Plan": plan})
        return answer.status_code, dict(answer.headers)

    return ask


def by_django(policy: str, limits: Any) -> Callable[[str], Answer]:
    def home(_: Any) -> HttpResponse:
        return HttpResponse(b"home")

    return _viewed(limited("ip", "ip")(limited(policy, lambda _: "a", limits=limits)(home)))


def by_rest_framework(policy: str, limits: Any) -> Callable[[str], Answer]:
    class Address(CaplineThrottle):
        policy, key = "ip", "ip"

    fields = {"policy": policy, "key": lambda _: "a", "limits": limits}
    throttle = type("Plan", (CaplineThrottle,), fields)

    class Home(_django.APIView):
        throttle_classes = (Address, throttle)

        def get(self, _: Any) -> Any:
            return _django.Response("home")

    # Without the middleware an answer has no limits.
    return _viewed(limited("ip", lambda _: None)(Home.as_view()))


FACES = [by_wsgi, by_asgi, by_fastapi, by_flask, by_django, by_rest_framework]


def _asked(app: Any) -> Callable[[str], Answer]:
    client: Any = TestClient(app)

    def ask(plan: str) -> Answer:
        answer = client.get("/", headers={"X-Plan": plan})
        return answer.status_code, answer.headers

    return ask


def _viewed(view: Any) -> Callable[[str], Answer]:
    def ask(plan: str) -> Answer:
        answer = view(RequestFactory().get("/", headers={"X-Plan": plan}))
        return answer.status_code, answer.headers

    return ask


@pytest.fixture(autouse=True)
def limiter() -> Iterator[None]:
    """Of Django's faces; the others make their own."""
    with override_settings(CAPLINE={"limiter": local()}):
        yield


@pytest.mark.parametrize("face", FACES)
def test_a_request_brings_its_limits_or_takes_the_policys(face: Any) -> None:
    ask = face("search", of_plan)
    plans = ["free", "free", "pro", "same", "pro", "same"]
    assert [ask(plan)[0] for plan in plans] == [200, 429, 200, 200, 429, 429]
    assert left(ask("pro")[1]) == {"ip-hour": 47, "search.limits-minute": 0, "search.limits-hour": 48}
    assert left(ask("free")[1]) == {"ip-hour": 47, "search-minute": 0}


@pytest.mark.parametrize("face", FACES)
def test_where_no_policy_has_the_name_none_is_no_limit(face: Any) -> None:
    ask = face("plan", of_plan)
    assert [ask(plan)[0] for plan in ["free", "free", "pro", "pro", "pro", "free"]] == [200, 200, 200, 200, 429, 200]
    assert left(ask("pro")[1]) == {"ip-hour": 45, "plan-minute": 0, "plan-hour": 48}


@pytest.mark.parametrize("face", FACES)
def test_limits_may_be_stated_where_no_policy_is_made(face: Any) -> None:
    ask = face("plan", ["2/minute"])
    assert [ask("any")[0] for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("plan", "error", "match"),
    [
        ("text", InvalidTypeError, r"limits come as a list, like \['10/minute'\], not '2/minute'"),
        ("number", InvalidTypeError, "limits come as a list"),
        ("empty", PolicyError, "policy 'plan' has no limit at all"),
        ("wrong", PolicyError, "policy 'plan': limit 'soon'"),
        ("unknown", KeyError, "unknown"),
    ],
)
def test_a_function_that_raises_or_returns_what_is_none_consumes_nothing(
    face: Any, plan: str, error: type[Exception], match: str
) -> None:
    ask = face("plan", of_plan)
    with pytest.raises(error, match=match) as raised:
        ask(plan)
    assert "\n" not in str(raised.value)
    spent = face in (by_fastapi, by_django, by_rest_framework)  # as the view itself had raised: that rule was decided
    assert left(ask("pro")[1])["ip-hour"] == (48 if spent else 49)


@pytest.mark.parametrize("policy", ["search", "plan"])
def test_what_is_given_back_is_of_the_same_limits(policy: str) -> None:
    class Answered:
        status_code = 500

    rules = [Rule(policy, "a", limits=lambda _: ["3/minute"], refund_if=500), IP]

    async def play() -> list[int]:
        async with awaiting() as limiter:
            gate = Gate(limiter, AsyncLimiter, [rules[0]], may_await=True)
            seen: list[int] = []
            for status in (500, 500, 200):
                visit, Answered.status_code = gate.visit(), status
                assert await run_awaited(visit.enter(None, gate.rules)) is None
                await run_awaited(visit.leave(Answered))
                seen += left(visit.headers()).values()
            return seen

    assert asyncio.run(play()) == [3, 3, 2]
    gate = Gate(local(), Limiter, [rules[0]])
    refusing = Rule("ip", "b", cost=99)
    for status, remaining in ((500, 3), (200, 2), (500, 2)):
        visit, Answered.status_code = gate.visit(), status
        run(visit.enter(None, gate.rules))
        run(visit.leave(Answered))
        assert list(left(visit.headers()).values()) == [remaining]
    visit = gate.visit()
    assert run(visit.enter(None, gate.rules)) is None
    assert run(visit.enter(None, [refusing])) is not None, "which gives back what the rule before it consumed"
    name = f"{policy}.limits" if policy == "search" else policy
    assert gate.limiter.peek(name, "a", 0, limits=["3/minute"]).remaining == 2


def test_rules_of_the_same_limits_are_one_attempt_and_of_others_each_its_own() -> None:
    gate = Gate(
        local(),
        Limiter,
        [
            Rule("plan", "a", limits=["9/minute", "20/h"]),
            Rule("plan", "a", limits=lambda _: ["20/h", "9/60s"], cost=2),
            Rule("plan", "a", limits=["4/minute"]),
            Rule("search", "a", limits=["9/minute"]),
            Rule("search", "a"),
        ],
    )
    visit = gate.visit()
    assert run(visit.enter(None, gate.rules)) is None
    said = left(visit.headers())
    assert sorted(said.values()) == [0, 3, 6, 8, 17]


@pytest.mark.parametrize("choice", ["allow", "deny", Insurance(hosts=1)])
def test_the_limiters_choice_for_an_outage_holds_for_them_too(choice: Any) -> None:
    limiter = local(on_store_error=choice)
    gate = Gate(limiter, Limiter, [Rule("plan", "a", limits=of_plan), IP])
    asking: Any = type("Asking", (), {"environ": {"HTTP_X_PLAN": "pro"}})
    statuses: list[int] = []
    with Down(limiter):
        for _ in range(3):
            refusal = run(gate.visit().enter(asking, gate.rules))
            statuses.append(200 if refusal is None else refusal.status)
    assert statuses == {"allow": [200] * 3, "deny": [503] * 3}.get(choice, [200, 200, 429])


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Rule("plan", "a", limits="2/minute"), InvalidTypeError),
        (lambda: Rule("plan", "a", limits=5), InvalidTypeError),  # pyright: ignore[reportArgumentType]
        (lambda: Rule("plan", "a", limits=[]), PolicyError),
        (lambda: Rule("plan", "a", limits=["soon"]), PolicyError),
        (lambda: Rule("p" * 60, "a", limits=of_plan), PolicyError),
        (lambda: Rule("plan", "a", limits=of_plan, channel="sms"), InvalidValueError),
        (lambda: Gate(local(), Limiter, [Rule("plan", "a")]), UnknownNameError),
    ],
)
def test_what_cannot_be_is_told_before_any_request(make: Any, error: type[CaplineError]) -> None:
    with pytest.raises(error) as raised:
        make()
    assert "\n" not in str(raised.value)
