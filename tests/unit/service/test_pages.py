"""Where no tokens are set, what a web page on this machine may ask: nothing, unless it is the service's own."""

from pathlib import Path

import pytest
from tests.kit.service import Service

from capline import Policy
from capline.service.access.guard import Guard
from capline.service.access.tokens import TokenFile
from capline.service.http.pages import Pages
from capline.service.http.problems import Problem

GATEWAY = [("X-Capline-Subject", "s:ip:192.0.2.1")]


def status(*headers: tuple[str, str], hosts: tuple[str, ...] = ("capline.internal", "[2001:db8::1]")) -> int:
    try:
        Pages(hosts).check([(name.lower().encode(), value.encode("latin-1")) for name, value in headers])
    except Problem as problem:
        return problem.status
    return 200


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8080",
        "127.9.9.9:1",
        "[::1]",
        "[::1]:8080",
        "localhost",
        "LocalHost:65535",
        "capline.internal",
        "Capline.Internal:8443",
        "[2001:db8::1]:80",
    ],
)
def test_a_host_of_this_machine_or_one_that_is_listed(host: str) -> None:
    assert status(("Host", host)) == status(("Host", host), ("Origin", f"http://{host}")) == 200
    assert status(("Host", host), ("Origin", "http://evil.example")) == 403


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "0.0.0.0",  # noqa: S104 - nothing listens there
            "10.0.0.1",
        ),
        *("", ":8080", "[::1", "::1", "[127.0.0.1]", "127.0.0.1:", "127.0.0.1:80:80", "127.0.0.1:8o", "user@localhost"),
        *("[::2]", "[::]", "localhost:80, evil.example", "internal", "x.capline.internal", "2130706433", "\xff"),
    ],
)
def test_any_other_host_whatever_else_is_sent(host: str) -> None:
    own = [("Origin", f"http://{host}"), ("Sec-Fetch-Site", "same-origin"), *GATEWAY]
    if host != "127.0.0.1:":
        assert status(("Host", host)) == status(("Host", host), *own) == 421


def test_a_host_that_is_missing_or_there_twice() -> None:
    assert status() == status(*GATEWAY) == status(("Host", "localhost"), ("Host", "localhost"), *GATEWAY) == 421


@pytest.mark.parametrize(
    "page",
    [
        [("Sec-Fetch-Site", "cross-site")],
        [("Sec-Fetch-Site", "same-site")],
        [("Sec-Fetch-Site", "anything")],
        [("Sec-Fetch-Site", "none"), ("Sec-Fetch-Site", "cross-site")],
        [("Origin", "http://evil.example")],
        [("Origin", "http://localhost:3000")],
        [("Origin", "http://127.0.0.1:8080")],
        [("Origin", "null")],
        [("Origin", "")],
        [("Origin", "http://localhost:8080"), ("Origin", "http://evil.example")],
        [("Origin", "http://localhost:8080"), ("Sec-Fetch-Site", "cross-site")],
        [("Origin", "http://localhost:3000"), ("Sec-Fetch-Site", "same-origin")],
    ],
)
def test_a_page_of_another_site_but_through_a_gateway(page: list[tuple[str, str]]) -> None:
    assert status(("Host", "localhost:8080"), *page) == 403
    assert status(("Host", "localhost:8080"), *page, ("X-Capline-Subject", "")) == 403
    assert status(("Host", "localhost:8080"), *page, ("X-Caplin-Subject", "s:1")) == 403
    assert status(("Host", "localhost:8080"), *page, *GATEWAY) == 200
    assert status(*GATEWAY, *page, ("Host", "localhost:8080")) == 200


@pytest.mark.parametrize(
    "own",
    [
        [],
        [("Sec-Fetch-Site", "none")],
        [("Sec-Fetch-Site", "same-origin"), ("Origin", "http://localhost:8080")],
        [("Origin", "https://LOCALHOST:8080")],
    ],
)
def test_programs_the_address_bar_and_pages_of_its_own_pass(own: list[tuple[str, str]]) -> None:
    assert status(("Host", "localhost:8080"), *own) == 200


def test_nothing_is_consumed_changed_or_shown_on_any_path() -> None:
    with Service([Policy("promo", ["3/day"])]) as service:
        form = {"policy": "promo", "subject": "u"}
        for refused, headers in (
            (403, {"Sec-Fetch-Site": "cross-site"}),
            (403, {"Origin": "http://evil.example"}),
            (421, {"Host": "evil.example", "Origin": "http://evil.example", "X-Capline-Subject": "u"}),
        ):
            for method, path in (
                ("GET", "/check?policy=promo&subject=u"),
                ("GET", "/healthz"),
                ("GET", "/docs"),
                ("GET", "/nothing"),
                ("OPTIONS", "/v1/decide"),
                ("DELETE", "/v1/subjects/u"),
            ):
                assert service(method, path, headers=headers).status_code == refused, path
            assert service("POST", "/v1/decide", headers=headers, json=form).status_code == refused
        assert service.post("/v1/decide", **form).json()["remaining"] == 2


def test_with_tokens_any_host_and_origin_may_ask(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json", create=True)
    said = {
        "Authorization": f"Bearer {tokens.create('shop', ['read'])}",
        "Host": "a.example",
        "Origin": "http://b.example",
    }
    with Service([Policy("promo", ["3/day"])], guard=Guard(tokens)) as service:
        assert service("GET", "/v1/policies", headers=said).status_code == 200
