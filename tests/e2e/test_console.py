"""The console as a browser asks it: a real `capline serve`, its pages by HTTP."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import httpx
import pytest
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving

from capline.service.access.tokens import TokenFile

POLICIES = "policies:\n  promo: {limits: [1/day]}\n  wide: {limits: [50/day]}\n"
PAGES = ["/console"]
SENT = "application/x-www-form-urlencoded"


class Visitor(httpx.Client):
    """A browser at the admin address, which keeps its cookies."""

    def __init__(self, service: Serving) -> None:
        super().__init__(base_url=service.admin, timeout=WITHIN_S, trust_env=False, headers={"Accept": "text/html"})

    def sign_in(self, secret: str, name: str = "") -> httpx.Response:
        return self.post("/console/sign-in", data={"secret": secret, "name": name, "then": "/console"})

    def forgery(self, page: str = "/console") -> str:
        found = re.search('name="forgery" value="([^"]+)"', self.get(page).text)
        assert found is not None
        return found[1]


@pytest.fixture(autouse=True)
def _policies(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(POLICIES, encoding="utf-8")


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    """A token of each role, called as it is."""
    file = TokenFile(tmp_path / "tokens.json", create=True)
    roles = {"read": ("read",), "decide": ("decide",), "steer": ("read", "steer"), "admin": ("admin",)}
    return {name: file.create(name, of) for name, of in roles.items()}


@pytest.fixture
def service(tmp_path: Path, tokens: dict[str, str]) -> Iterator[Serving]:
    assert tokens
    with Serving(tmp_path, "--tokens", "tokens.json", "--store", "memory://") as serving:
        yield serving


def test_without_tokens_it_reads_and_changes_nothing(tmp_path: Path) -> None:
    with Serving(tmp_path, "--store", "memory://") as service, Visitor(service) as visitor:
        assert visitor.get("/").headers["Location"] == "/console"
        for subject in ("u", "u", "v"):
            service.ask("/v1/decide", policy="promo", subject=subject)
        told = visitor.get("/console", headers={"Accept": "application/json"}).json()
        (promo,) = told["policies"]
        assert (promo["policy"], promo["allowed"], promo["refused"]) == ("promo", 2, 1)
        assert promo["limits"] == [{"limit": "1/day", "refused": 1}]
        for page in PAGES:
            answer = visitor.get(page)
            assert answer.status_code == 200
            assert 'method="post"' not in answer.text
        refused = visitor.post("/console/sign-out", data={"forgery": ""})
        assert (refused.status_code, "only reads" in refused.text) == (403, True)
        assert visitor.get("/console", headers={"Host": "evil.example"}).status_code == 421


def test_every_page_is_kept_apart_from_other_sites(service: Serving, tokens: dict[str, str]) -> None:
    with Visitor(service) as visitor:
        visitor.sign_in(tokens["admin"])
        for page in (*PAGES, "/console/sign-in", "/console/sign-out"):
            headers = visitor.get(page).headers
            if page != "/console/sign-out":  # which is no page
                assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style-src")
                assert (headers["X-Frame-Options"], headers["Cache-Control"]) == ("DENY", "no-store")
        text = visitor.get("/console").text
        assert not re.search(r"<script(?! src)|style=|javascript:| on\w+=|https?://", text)
        loaded = re.findall(r'(?:src|href)="(/console/console-[^"]+)"', text)
        assert [visitor.get(path).headers["Content-Type"][:8] for path in loaded] == ["text/css", "text/jav"]
        weight = len(text) + sum(len(visitor.get(path).content) for path in loaded)
        assert weight < 150_000


def test_a_session_is_its_tokens_and_ends_with_it(tmp_path: Path, service: Serving, tokens: dict[str, str]) -> None:
    with Visitor(service) as visitor, Visitor(service) as other:
        led = visitor.get("/console", params={"q": "a&b"})
        assert (led.status_code, led.headers["Location"]) == (303, "/console/sign-in?then=%2Fconsole%3Fq%3Da%2526b")
        assert visitor.get("/console", headers={"Accept": "application/json"}).status_code == 401
        told = visitor.get(
            "/console", headers={"Accept": "application/json", "Authorization": f"Bearer {tokens['read']}"}
        )
        assert told.json()["policy_count"] == 2
        for wrong, status in (("cap_read_0", 401), (tokens["decide"], 403), ("", 401), ("\u202e", 401)):
            answer = visitor.sign_in(wrong)
            assert (answer.status_code, "Set-Cookie" in answer.headers) == (status, False)
        answer = visitor.sign_in(tokens["read"])
        assert (answer.status_code, answer.headers["Location"]) == (303, "/console")
        assert re.search(r"Path=/console; .*HttpOnly; SameSite=Strict$", answer.headers["Set-Cookie"])
        assert visitor.get("/console").status_code == 200
        assert other.get("/console").status_code == 303
        other.cookies = visitor.cookies  # stolen
        assert other.get("/console").status_code == 200
        TokenFile(tmp_path / "tokens.json").revoke("read")
        assert soon(lambda: other.get("/console").status_code == 303, WITHIN_S)
        visitor.sign_in(tokens["admin"])
        visitor.post("/console/sign-out", data={"forgery": visitor.forgery()})
        assert visitor.get("/console").status_code == 303


def test_a_form_comes_from_a_page_of_the_session(service: Serving, tokens: dict[str, str]) -> None:
    with Visitor(service) as visitor, Visitor(service) as other:
        foreign = {"Origin": "http://evil.example"}
        assert visitor.post("/console/sign-in", data={"secret": tokens["read"]}, headers=foreign).status_code == 403
        visitor.sign_in(tokens["admin"])
        other.sign_in(tokens["read"])
        good = visitor.forgery()
        for form, headers in (
            ({}, {}),
            ({"forgery": "ü"}, {}),
            ({"forgery": other.forgery()}, {}),
            ({"forgery": good}, foreign),
            ({"forgery": good}, {"Origin": "null"}),
            ({"forgery": good}, {"Sec-Fetch-Site": "cross-site"}),
        ):
            assert visitor.post("/console/sign-out", data=form, headers=headers).status_code == 403
        assert visitor.post("/console/sign-out", data={"forgery": good, "more": "1"}).status_code == 422
        assert visitor.post("/console/sign-out", content=b"\xff", headers={"Content-Type": SENT}).status_code == 400
        assert (
            visitor.post("/console/sign-out", content=b"a" * 10_000, headers={"Content-Type": SENT}).status_code == 413
        )
        assert visitor.get("/console").status_code == 200


@pytest.mark.parametrize(
    "then", ["//evil.example", "https://evil.example", "/consoles", "/console/\r\nX: y", "javascript:1"]
)
def test_the_sign_in_leads_to_the_console_alone(service: Serving, tokens: dict[str, str], then: str) -> None:
    with Visitor(service) as visitor:
        page = visitor.get("/console/sign-in", params={"then": then}).text
        assert unescape(page).count(f'value="{then}"') == 1
        led = visitor.post("/console/sign-in", data={"secret": tokens["read"], "then": then})
        assert led.headers["Location"] == "/console"
