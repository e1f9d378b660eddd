"""`capline.web.django` and `capline.web.drf` by Django's own test clients, sync and async."""

# Django comes without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportMissingTypeArgument=false

import asyncio
import sys
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import django
import pytest
from django.conf import settings
from django.http import Http404, HttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from tests.kit.web import QUOTA_EXCEEDED, Down, left, local

from capline import AsyncLimiter, CaplineError
from capline.web import Rule, key

if not settings.configured:
    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="of tests",  # noqa: S106 - nothing is signed
        MIDDLEWARE=["capline.web.django.CaplineMiddleware"],
        INSTALLED_APPS=["rest_framework"],
        REST_FRAMEWORK={
            "DEFAULT_AUTHENTICATION_CLASSES": [],
            "UNAUTHENTICATED_USER": None,
            "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        },
        LOGGING_CONFIG=None,
    )
    django.setup()

from rest_framework.response import Response
from rest_framework.views import APIView

from capline.web.django import exempt, key_of, limited
from capline.web.drf import CaplineThrottle


def home(_: Any) -> HttpResponse:
    return HttpResponse(b"home")


@limited("login", key="post:username", refund_if=200)
def login(request: Any) -> HttpResponse:
    return HttpResponse(status=200 if request.POST.get("password") == "right" else 401)


@limited("login", key="header:X-Name")
@limited("user", key=key.header("X-Api-Key"))
async def search(_: Any) -> HttpResponse:
    return HttpResponse(b"search")


@exempt
def healthz(_: Any) -> HttpResponse:
    return HttpResponse(b"ok")


def fails(_: Any) -> HttpResponse:
    raise RuntimeError("the view's own fault")


@method_decorator(limited("login", key="ip"), name="dispatch")
class Items(View):
    def get(self, _: Any) -> HttpResponse:
        return HttpResponse(b"items")


class Burst(CaplineThrottle):
    policy, key = "login", "ip"


class Sustained(CaplineThrottle):
    policy = "user"

    def key(self: Any) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Of the request, which is its only argument."""
        return self.META["REMOTE_ADDR"]


class Numbers(APIView):
    throttle_classes = (Sustained, Burst)

    def get(self, _: Any) -> Response:
        return Response([1, 2])


def missing(_: Any) -> HttpResponse:
    raise Http404


urlpatterns = [
    path("", home),
    path("login", login),
    path("search", search),
    path("healthz", healthz),
    path("fails", fails),
    path("items", Items.as_view()),
    path("numbers", Numbers.as_view()),
    path("missing", missing),
]

IP, USER = Rule("ip", key.ip(trusted=1)), Rule("user", key.header("X-Api-Key"))


@pytest.fixture
def limiter() -> Iterator[Any]:
    """The project's, with the rule by address."""
    limiter = local()[0]
    with override_settings(ROOT_URLCONF=__name__, CAPLINE={"limiter": limiter, "rules": [IP]}):
        yield limiter
    limiter.close()


def with_rules(limiter: Any, *rules: Rule, **options: Any) -> Any:
    return override_settings(CAPLINE={"limiter": limiter, "rules": rules, **options})


class Both:
    """Asks the sync stack, or the async one."""

    def __init__(self, asynchronous: bool) -> None:
        self._asynchronous = asynchronous

    def __call__(self, where: str, method: str = "get", data: Any = None, **headers: str) -> Any:
        if not self._asynchronous:
            return getattr(Client(raise_request_exception=False), method)(where, data, headers=headers)

        async def asked() -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                return await getattr(AsyncClient(raise_request_exception=False), method)(where, data, headers=headers)

        return asyncio.run(asked())


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest, limiter: Any) -> Both:
    assert limiter
    return Both(request.param)


def test_every_answer_has_the_limits(ask: Both, limiter: Any) -> None:
    with with_rules(limiter, IP, USER, headers="both"):
        answers = [ask("/", **{"X-Api-Key": "ann"}) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert left(answers[3].headers) == {"ip-10s": 2, "ip-hour": 97, "user-minute": 0}
        assert (answers[3]["Content-Type"], answers[3]["Retry-After"]) == ("application/problem+json", "60")
        assert (answers[3].json()["type"], answers[3]["X-RateLimit-Remaining"]) == (QUOTA_EXCEEDED, "0")
        assert [ask(where).status_code for where in ("/nothing", "/missing", "/")] == [404, 404, 429]


def test_a_view_and_the_project_are_one_decision(ask: Both) -> None:
    answers = [ask("/login", "post", {"username": "ann"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [401, 401, 429]
    assert [left(answer.headers)["ip-10s"] for answer in answers] == [4, 3, 3]
    assert ask("/login", "post", {"username": "bob"}).status_code == 401


def test_what_should_not_count_is_given_back(ask: Both, limiter: Any) -> None:
    with with_rules(limiter):
        right = {"username": "ann", "password": "right"}
        assert [ask("/login", "post", right).status_code for _ in range(4)] == [200] * 4
    with with_rules(limiter, Rule("tier", "a", refund_if=500)):
        assert [ask("/fails").status_code for _ in range(3)] == [500] * 3


def test_an_async_view_and_rules_upon_rules(ask: Both) -> None:
    headers = {"X-Name": "n", "X-Api-Key": "k"}
    answers = [ask("/search", **headers) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert left(answers[2].headers) == {"ip-10s": 3, "ip-hour": 98, "user-minute": 1, "login-minute": 0}


def test_views_of_classes_and_exempt_ones(ask: Both, limiter: Any) -> None:
    assert [ask("/items").status_code for _ in range(3)] == [200, 200, 429]
    assert "RateLimit" not in ask("/healthz").headers
    with with_rules(limiter, IP, exempt=["/"]):
        assert "RateLimit" not in ask("/").headers


def test_a_limited_view_works_without_the_middleware(ask: Both) -> None:
    with override_settings(MIDDLEWARE=[]):
        for where, headers in (("/items", {}), ("/search", {"X-Name": "n"})):
            answers = [ask(where, **headers) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [200, 200, 429]
            assert left(answers[2].headers) == {"login-minute": 0}


def test_throttles_of_the_rest_framework(ask: Both, limiter: Any) -> None:
    answers = [ask("/numbers") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json()["detail"].startswith("Request was throttled")
    assert answers[2]["Retry-After"] == "60"
    assert left(answers[1].headers) == {"ip-10s": 3, "ip-hour": 98, "user-minute": 1, "login-minute": 0}
    assert limiter.peek("user", "127.0.0.1").remaining == 0, "two of three are consumed, and this one"
    with with_rules(limiter, on_error="deny"), Down(limiter):
        assert ask("/numbers").status_code == 503


def test_an_outage_and_a_shadow(ask: Both, limiter: Any) -> None:
    for choice, code in (("allow", 200), ("deny", 503)):
        with with_rules(limiter, IP, on_error=choice), Down(limiter):
            answer = ask("/items")
        assert answer.status_code == code
        assert "RateLimit" not in answer.headers
        assert answer.headers.get("Retry-After") == (None if code == 200 else "1")
    with with_rules(limiter, IP, shadow=True):
        assert [ask("/items").status_code for _ in range(4)] == [200] * 4


def test_bad_keys_break_nothing(ask: Both, limiter: Any) -> None:
    with with_rules(limiter, USER):
        for bad in ("k" * 600, "\xff", "a\tb"):
            assert [ask("/", **{"X-Api-Key": bad}).status_code for _ in range(4)] == [200, 200, 200, 429]
        for bad in ("", "a\r\nX: y", "k" * 600):
            assert [ask("/login", "post", {"username": bad}).status_code for _ in range(3)] == [401, 401, 429]


def test_words_for_keys() -> None:
    request: Any = RequestFactory().get("/?name=ann", REMOTE_ADDR="192.0.2.1", HTTP_X_API_KEY="k")
    for user, by_user, by_either in (
        (SimpleNamespace(pk=7, is_authenticated=True), "user:7", "user:7"),
        (SimpleNamespace(pk=None, is_authenticated=False), None, "192.0.2.1"),
    ):
        request.user = user
        assert (key_of("user")(request), key_of("user_or_ip")(request)) == (by_user, by_either)
    assert [key_of(word)(request) for word in ("ip", "header:X-Api-Key", "get:name", "get:other", "post:name")] == [
        "192.0.2.1",
        "k",
        "ann",
        None,
        None,
    ]
    for wrong in ("nobody", "get:", "header:", "header:a b"):
        with pytest.raises(CaplineError, match="key"):
            key_of(wrong)
    with pytest.raises(CaplineError, match=r"django\.contrib\.auth"):
        key_of("user")(RequestFactory().get("/"))


@pytest.mark.parametrize(
    "said",
    [
        None,
        {},
        {"limiter": local()[0], "rule": []},
        {"limiter": AsyncLimiter("memory://")},
        {"limiter": 3},
        {"limiter": local()[0], "rules": Rule("ip", "a")},
        {"limiter": local()[0], "rules": [Rule("ip", "ip")]},
        {"limiter": local()[0], "rules": [Rule("ip", "header:X-Api-Key")]},
    ],
)
def test_bad_settings_are_reported_at_the_start(said: Any) -> None:
    with override_settings(ROOT_URLCONF=__name__, CAPLINE=said), pytest.raises(CaplineError):
        Client().get("/")


def test_a_limiter_by_its_path(limiter: Any) -> None:
    name = __name__.replace(".", "_")
    sys.modules[name] = SimpleNamespace(make=lambda: limiter)  # pyright: ignore[reportArgumentType]
    try:
        with override_settings(CAPLINE={"limiter": f"{name}.make", "rules": [IP]}):
            answer: Any = Client().get("/")
            assert left(answer.headers)["ip-10s"] == 4
    finally:
        del sys.modules[name]
