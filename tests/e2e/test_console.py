"""The console as a browser asks it: a real `capline serve`, its pages by HTTP."""

import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from html import unescape
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.kit import server_process, servers
from tests.kit.campaign_store import claimed, filled, finish
from tests.kit.chromium import Chromium
from tests.kit.cli import CommandLine
from tests.kit.program import Program, ended
from tests.kit.segments import make
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving

from capline import Configuration, Policy
from capline.campaign.store.open import open_store
from capline.service.access.tokens import TokenFile
from capline.service.console.render import seen

AXE = resources.files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
NO_TABLE_SCROLLS = "[...document.querySelectorAll('.wide')].every((each) => each.scrollWidth <= each.clientWidth)"
VIOLATIONS = "axe.run().then((found) => found.violations.map((each) => each.id + each.nodes.map((node) => node.html)))"
POLICIES = "policies:\n  promo: {limits: [1/day]}\n  wide: {limits: [50/day]}\n"
PAGES = [
    *("/console", "/console/subject", "/console/subject?id=u", "/console/subject?id=s:", "/console/campaigns"),
    *("/console/policies", "/console/policies?contains=o", "/console/policy?name=promo", "/console/segments"),
    *("/console/audit", "/console/limited"),
]
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
        assert promo["limits"] == [{"limit": "1/day", "refused": 1, "shadow": 0}]
        for page in PAGES:
            answer = visitor.get(page)
            assert answer.status_code == (422 if page.endswith("s:") else 200)
            assert 'method="post"' not in answer.text
            for heads, cells in re.findall("<thead>(.*?)</thead><tbody>(.*?)</tr>", answer.text, re.DOTALL):
                assert re.findall(r"<th[^>]*>([^<]*)<", heads) == re.findall(r'<td data-head="([^"]*)"', cells), page
        refused = visitor.post("/console/sign-out", data={"forgery": ""})
        assert (refused.status_code, "only reads" in refused.text) == (403, True)
        assert visitor.get("/console", headers={"Host": "evil.example"}).status_code == 421


def test_what_goes_wrong_under_the_console_is_a_page_for_who_reads_pages(tmp_path: Path) -> None:
    with Serving(tmp_path, "--store", "memory://") as service, Visitor(service) as visitor:
        unknown = "/console/none", "/console/a/b/c/d", "/console/%3Cscript%3E", "/console/" + "x" * 2_000
        for path, status, method in (*((path, 404, "GET") for path in unknown), ("/console/subject", 405, "POST")):
            page = visitor.request(method, path)
            assert (page.status_code, page.headers["Content-Type"]) == (status, "text/html; charset=utf-8")
            assert page.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
            assert ("<script>" in page.text, 'href="/console"' in page.text) == (False, True)
            json = visitor.request(method, path, headers={"Accept": "application/json"})
            assert (json.status_code, json.json()["status"]) == (status, status)
            assert page.headers.get("Allow") == json.headers.get("Allow")
        large = visitor.post("/console/sign-out", content=b"a" * 10_000, headers={"Content-Type": SENT})
        assert (large.status_code, "<h1>" in large.text) == (413, True)
        for path in ("/none", "/v1/none"):
            assert visitor.get(path).headers["Content-Type"] == "application/problem+json"


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


def test_a_link_signs_in_once_as_the_token_that_made_it(
    tmp_path: Path, service: Serving, tokens: dict[str, str]
) -> None:
    with Visitor(service) as visitor, Visitor(service) as other:

        def link(name: str) -> str:
            return visitor.post("/console/link", headers={"Authorization": f"Bearer {tokens[name]}"}).json()["link"]

        assert visitor.post("/console/link").status_code == 401
        assert visitor.post("/console/link", headers={"Authorization": f"Bearer {tokens['decide']}"}).status_code == 403
        first, of_read = link("admin"), link("read")
        assert visitor.head(first).headers["Location"] == "/console"
        assert visitor.get(first, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        assert visitor.get("/console").status_code == 303
        assert visitor.get(first).headers["Location"] == "/console"
        assert "Sign out" in visitor.get("/console").text
        for key in (first, "/console/link?key=0", "/console/link"):
            answer = other.get(key)
            assert (answer.status_code, "Set-Cookie" in answer.headers) == (403, False)
        TokenFile(tmp_path / "tokens.json").revoke("read")
        visitor.cookies.clear()
        assert soon(
            lambda: visitor.post("/console/link", headers={"Authorization": f"Bearer {tokens['read']}"}).is_error
        )
        assert other.get(of_read).status_code == 403


def test_over_tls_the_cookie_stays_there(tmp_path: Path, tokens: dict[str, str]) -> None:
    made = server_process.certificates(tmp_path)
    (tmp_path / "capline.yaml").write_text(
        f"store: memory://\ntokens: tokens.json\nadmin: {{tls: {{certificate: {made.cert}, key: {made.key}}}}}\n"
    )
    trusted = ssl.create_default_context(cafile=str(made.ca))
    with Serving(tmp_path, "--config", "capline.yaml") as service:
        form = {"secret": tokens["read"], "then": "/console"}
        answer = httpx.post(f"{service.admin}/console/sign-in", data=form, verify=trusted, trust_env=False)
        assert answer.headers["Set-Cookie"].endswith("; SameSite=Strict; Secure")


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


def test_the_sign_in_leads_to_the_console_alone(service: Serving, tokens: dict[str, str]) -> None:
    for then in ("//evil.example", "https://evil.example", "/consoles", "/console/\r\nX: y", "javascript:1"):
        with Visitor(service) as visitor:
            page = visitor.get("/console/sign-in", params={"then": then}).text
            assert unescape(page).count(f'value="{then}"') == 1
            led = visitor.post("/console/sign-in", data={"secret": tokens["read"], "then": then})
            assert led.headers["Location"] == "/console", then


BAD = [
    *("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'); DROP", "{{ 7 * 7 }}", "&amp;", "%3Cb%3E"),
    *("\u202euser\u202c", "a\nb\r\x00\x1b[31m", "\u05d0\u05d1\u05d2", "=1+1", " ", "../../etc"),
    *("x" * 512, "\U0001f600" * 128),
]


def test_a_subject_of_any_name_is_shown_as_text(tmp_path: Path) -> None:
    with Serving(tmp_path, "--store", "memory://") as service, Visitor(service) as visitor:
        for name in BAD:
            service.ask("/v1/decide", policy="promo", subject=name)
            asked = {"id": f"s:{name}"}
            page = visitor.get("/console/subject", params=asked)
            assert page.status_code == 200, name
            shown = re.findall('<bdi class="name">(.*?)</bdi>', page.text)
            assert unescape(shown[0]) == seen(name)
            assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f]", shown[0])
            assert len(re.findall("<(?:script|img|b)\\b", page.text)) == 1, f"our own script: {name}"
            told = visitor.get("/console/subject", params=asked, headers={"Accept": "application/json"}).json()
            assert (told["subject"], told["policies"][0]["decision"]["limit"]) == (name, "1/day")


def test_a_subject_is_found_under_all_policies(tmp_path: Path) -> None:
    lines = [f"  p{number:03}: {{limits: [2/day]}}\n" for number in range(150)]
    (tmp_path / "policies.yaml").write_text(
        f"policies:\n{''.join(lines)}  promo: {{limits: [1/day, 9/week], channels: {{push: [1/hour]}}}}\n"
    )
    with Serving(tmp_path, "--store", "memory://") as service, Visitor(service) as visitor:
        for _ in range(2):
            service.ask("/v1/decide", policy="promo", subject=42, channel="push")
        service.ask("/v1/decide", policy="p003", subject="42", cost=2)
        found = service.client.get("/v1/subjects/i:42", params={"limit": 100}).json()
        assert (found["subject"], len(found["policies"]), found["next"]) == (42, 100, "p099")
        rest = service.client.get("/v1/subjects/i:42", params={"after": "p099"}).json()
        assert [(one["policy"], one["channel"]) for one in rest["policies"][-2:]] == [
            ("promo", None),
            ("promo", "push"),
        ]
        assert rest["next"] is None
        assert [limit["used"] for limit in rest["policies"][-1]["limits"]] == [1, 1, 1]

        json = {"Accept": "application/json"}
        page = visitor.get("/console/subject", params={"id": "42", "after": "p099"}, headers=json).json()
        assert [(one["policy"], one["channel"], one["refuses"]) for one in page["policies"]] == [
            ("promo", None, True),
            ("promo", "push", False),
        ]
        text = visitor.get("/console/subject", params={"id": "42", "after": "p099"}).text
        assert "Refused by 1/day." in text
        assert re.search(r"Free again at <time>\d{4}-.* UTC</time> <span class=\"soft\">in (1 d|23 h 59 min)", text)
        assert (
            visitor.get("/console/subject", params={"id": "s:42"}, headers=json).json()["policies"][0]["policy"]
            == "p003"
        )
        assert visitor.get("/console/subject", params={"id": "7"}, headers=json).json()["policies"] == []
        assert visitor.get("/console/subject", params={"id": "99999999999999999999"}).status_code == 422


def test_who_may_forgets_a_subject_and_overrides_it_for_a_while(tmp_path: Path, tokens: dict[str, str]) -> None:
    store = f"lmdb://{tmp_path}/configuration"
    with Configuration(store) as configuration:
        configuration.set_policies([Policy("promo", ["1/day"])])
    words = ("--tokens", "tokens.json", "--store", "memory://", "--config-store", store)
    with Serving(tmp_path, *words) as service, Visitor(service) as reader, Visitor(service) as admin:
        reader.sign_in(tokens["read"])
        admin.sign_in(tokens["admin"])
        key = {"Authorization": f"Bearer {tokens['admin']}"}

        def decide() -> bool:
            asked = {"policy": "promo", "subject": 42}
            return service.client.post("/v1/decide", json=asked, headers=key).json()["allowed"]

        page = "/console/subject?id=42"
        assert (decide(), decide()) == (True, False)
        assert "/console/subject/erase" not in reader.get(page).text
        for action, form in (("erase", {}), ("override", {"policy": "promo", "limits": "2/day", "hours": "1"})):
            sent = {"forgery": reader.forgery(page), "id": "42", **form}
            assert reader.post(f"/console/subject/{action}", data=sent).status_code == 403
        form = {"forgery": admin.forgery(page), "id": "42", "policy": "promo", "limits": "2/day", "hours": "1"}
        for bad in (
            *({"hours": "0"}, {"hours": "745"}, {"limits": " , "}, {"limits": "2/moon"}, {"policy": "none"}),
            *({"policy": "<b>"}, {"limits": '"><img>'}, {"policy": "\u202e"}, {"hours": "1e9"}),
        ):
            shown = admin.post("/console/subject/override", data=form | bad)
            (field, word), typed = *bad.items(), form | bad
            assert (shown.status_code, shown.text.count('role="alert"')) == (422, 1)
            assert re.search(f'<input name="{field}"[^>]*><small class="bad" role="alert">', shown.text), bad
            for name in ("policy", "limits", "hours"):
                kept = re.search(f'<input name="{name}"[^>]* value="([^"]*)"', shown.text)
                assert (kept and unescape(kept[1])) == typed[name]
            assert "<details open><summary>Give it limits" in shown.text
            told = admin.post("/console/subject/override", data=typed, headers={"Accept": "application/json"})
            assert (told.status_code, [*told.json()["faults"]]) == (422, [field]), word
        assert not decide()
        done = admin.post("/console/subject/override", data=form)
        assert (done.status_code, "for a while" in admin.get(done.headers["Location"]).text) == (303, True)
        (override,) = service.client.get("/v1/overrides/promo", headers=key).json()["overrides"]
        assert (override["limits"], override["next"], override["who"]) == (["2/day"], None, "admin")
        assert override["effective_at"] is not None
        assert (decide(), decide()) == (True, False)
        done = admin.post("/console/subject/erase", data={"forgery": form["forgery"], "id": "42"})
        assert "is forgotten" in admin.get(done.headers["Location"]).text
        assert decide()


def test_a_subject_s_page_says_who_used_each_unit_and_what_was_refused_and_gives_units_back(
    tmp_path: Path, tokens: dict[str, str], capline: CommandLine
) -> None:
    (tmp_path / "capline.yaml").write_text("record: {keep: 3600}\n", encoding="utf-8")
    (tmp_path / "ids.csv").write_text("id\n42\n43\n", encoding="utf-8")
    scoped = TokenFile(tmp_path / "tokens.json").create("scoped", ("read",), policies=["promo"])
    queue, logs = f"sqlite://{tmp_path}/queue.sqlite", f"lmdb://{tmp_path}/logs"
    form: dict[str, Any] = {
        "campaign": "sale",
        "policy": "wide",
        "policies": "policies.yaml",
        "audience": {"csv": "ids.csv"},
        "store": logs,
        "sender": {"file": "sent"},
    }
    words = ("--tokens", "tokens.json", "--store", logs, "--config", "capline.yaml", "--queue", queue)
    with Serving(tmp_path, *words) as service, Visitor(service) as reader, Visitor(service) as admin:
        reader.sign_in(tokens["read"])
        admin.sign_in(tokens["admin"])

        def headers(secret: str) -> dict[str, str]:
            return {"Authorization": f"Bearer {secret}"}

        def ask(path: str, role: str, **body: Any) -> Any:
            return service.client.post(path, json=body, headers=headers(tokens[role])).json()

        def remaining() -> int:
            return ask("/v1/peek", "admin", policy="wide", subject=42)["remaining"]

        def count(secret: str) -> tuple[int, int]:
            messages, attempts = (
                service.client.get(f"/v1/subjects/i:42/{what}", headers=headers(secret)).json()
                for what in ("messages", "attempts")
            )
            return len(messages["messages"]), len(attempts["allowed"])

        assert ask("/v1/campaigns", "admin", **form)["campaign"] == "sale"
        assert capline("worker", "--queue", queue, "--until-idle", "--quiet").returncode == 0
        ask("/v1/charge", "admin", policy="wide", subject=42, cost=3)
        ask("/v1/decide", "decide", policy="wide", subject=42, cost=2, id="order-7")
        first, refused = (ask("/v1/decide", "decide", policy="promo", subject=42) for _ in range(2))
        assert (first["allowed"], refused["allowed"]) == (True, False)
        page, json = "/console/subject?id=42", {"Accept": "application/json"}
        told = reader.get(page, headers=json).json()
        (wide,) = (each for each in told["policies"] if each["policy"] == "wide")
        assert [(hit["units"], hit["campaign"], hit["who"], hit["id"]) for hit in wide["hits"]] == [
            *((1, "sale", "", None), (3, None, "", None)),
            (2, None, "decide", "order-7"),
        ]
        (attempt,) = told["refused"]
        assert (attempt["policy"], attempt["limit"], attempt["who"]) == ("promo", "1/day", "decide")
        assert [(message["campaign"], message["outcome"]) for message in told["messages"]] == [("sale", "sent")]
        assert (count(tokens["read"]), count(scoped)) == ((1, 2), (0, 1))
        shown = reader.get(page).text
        assert ("The last refusals" in shown, "order-7" in shown) == (True, True)
        assert ('href="/console/campaign?name=sale"' in shown, "/console/subject/refund" in shown) == (True, False)
        hit = {"id": "42", "policy": "wide", "hit": str(wide["hits"][-1]["hit"]), "units": "2"}
        assert reader.post("/console/subject/refund", data=hit | {"forgery": reader.forgery(page)}).status_code == 403
        hit["forgery"] = admin.forgery(page)
        assert admin.get(page).text.count('action="/console/subject/refund"') == 4
        assert admin.post("/console/subject/refund", data=hit | {"hit": "x"}).status_code == 422
        before = remaining()
        for sentence in ("It is given back", "Nothing is given back"):
            done = admin.post("/console/subject/refund", data=hit)
            assert sentence in admin.get(done.headers["Location"]).text
            assert remaining() == before + 2
        other = reader.get("/console/subject?id=7", headers=json).json()
        assert (other["refused"], other["messages"]) == ([], [])


def test_campaigns_are_seen_and_steered_by_who_may(tmp_path: Path, tokens: dict[str, str]) -> None:
    queue = f"sqlite://{tmp_path}/queue.sqlite"
    with closing(open_store(queue, make=True)) as store:
        filled(store)
        assert finish(store, claimed(store, "w"))
    words = ("--tokens", "tokens.json", "--store", "memory://", "--queue", queue)
    with Serving(tmp_path, *words) as service, Visitor(service) as reader, Visitor(service) as steerer:
        reader.sign_in(tokens["read"])
        steerer.sign_in(tokens["steer"])
        page, json = "/console/campaign?name=sale", {"Accept": "application/json"}
        assert 'href="/console/campaign?name=sale"' in reader.get("/console/campaigns").text
        report = reader.get(page, headers=json).json()
        assert (report["total"]["sent"], report["total"]["undecided"], report["queue"]["batches"]) == (3, 6, 3)
        with closing(open_store(queue, make=False)) as store:
            batch = claimed(store, "<b>host:1")
            assert "&lt;b&gt;host:1" in (shown := reader.get(page).text)
            assert finish(store, batch)
        assert ('<span class="good">works' in shown, "silent since" in shown) == (True, False)
        assert "/console/campaign/pause" not in reader.get(page).text
        assert reader.get("/console/campaign?name=none").status_code == 404
        assert reader.get("/console/campaign").headers["Location"] == "/console/campaigns"
        assert reader.get("/console/campaigns?after=sale", headers=json).json()["campaigns"] == []
        forgery = steerer.forgery(page)
        for action, state in (("pause", "paused"), ("resume", "stopped"), ("cancel", "cancelled")):
            form = {"name": "sale", "forgery": reader.forgery()}
            assert reader.post(f"/console/campaign/{action}", data=form).status_code == 403
            assert steerer.post(f"/console/campaign/{action}", data=form).status_code == 403
            assert f'action="/console/campaign/{action}"' in steerer.get(page).text
            done = steerer.post(f"/console/campaign/{action}", data=form | {"forgery": forgery})
            assert done.headers["Location"] == f"/console/campaign?name=sale&done={action}"
            report = steerer.get(page, headers=json).json()
            assert (report["state"].replace("finished", "cancelled"), report["steering"]["by"]) == (state, "steer")
        again = steerer.post("/console/campaign/pause", data={"name": "sale", "forgery": forgery})
        assert (again.status_code, "<h1>Conflict" in again.text) == (409, True)


@pytest.mark.deep  # a worker is silent after ten seconds
def test_in_a_browser_a_worker_that_was_killed_is_silent(tmp_path: Path, tokens: dict[str, str]) -> None:
    (tmp_path / "ids.csv").write_text("id\n1\n2\n", encoding="utf-8")
    queue = f"sqlite://{tmp_path}/queue.sqlite"
    with socket.create_server(("127.0.0.1", 0)) as far, Serving(tmp_path, "--queue", queue) as service:
        form = {
            "campaign": "sale",
            "policy": "promo",
            "policies": "policies.yaml",
            "audience": {"csv": "ids.csv"},
            "sender": {"webhook": {"url": f"http://127.0.0.1:{far.getsockname()[1]}/", "timeout": 600}},
        }
        assert service.client.post("/v1/campaigns", json=form).status_code == 200
        worker = Program(tmp_path, "-m", "capline.cli", "worker", "--queue", queue)
        try:
            far.settimeout(WITHIN_S)
            with closing(far.accept()[0]), Chromium(tmp_path / "profile", width=390) as browser:
                browser.go(f"{service.admin}/console/campaign?name=sale")
                assert f"{socket.gethostname()}:" in browser.text
                assert "works" in browser.text
                browser.go(f"{service.admin}/console")
                assert soon(lambda: re.search(r":\w+\s+works\s+sale", browser.text) is not None, WITHIN_S)
                told = service.client.get("/v1/campaign-workers").json()
                assert [(one["campaign"], one["is_silent"]) for one in told["workers"]] == [("sale", False)]
                worker.end(signal.SIGKILL)
                killed_at = time.time()
                soon(lambda: "silent since" in _reloaded(browser, f"{service.admin}/console/campaign?name=sale"))
                found = re.search(r"silent since (\d\d):(\d\d):(\d\d) UTC", browser.text)
                assert found is not None
                said_s = 3600 * int(found[1]) + 60 * int(found[2]) + int(found[3])
                assert abs((said_s - killed_at + 43_200) % 86_400 - 43_200) < 5
                browser.go(f"{service.admin}/console")
                assert f"A worker of sale is silent: {socket.gethostname()}:" in browser.text
                assert re.search(r"silent since \d\d:\d\d:\d\d UTC\s+sale", browser.text), browser.text
                browser.ask("Runtime.evaluate", expression=AXE)
                assert browser.told(VIOLATIONS) == []
        finally:
            worker.end(signal.SIGKILL)
    assert tokens


def _reloaded(browser: Chromium, url: str) -> str:
    browser.go(url)
    return browser.text


def test_what_is_configured_is_seen_page_by_page(tmp_path: Path) -> None:
    store, json = f"lmdb://{tmp_path}/configuration", {"Accept": "application/json"}
    with Configuration(store) as configuration:
        configuration.set_policies([Policy(f"p{number:03}", ["3/day"]) for number in range(120)], who="<b>ann</b>")
        for subject in range(60):
            configuration.override("p007", subject, ["5/day"], who="bob")
    segments = str(make(tmp_path, "monday", active=range(9)))
    words = ("--store", "memory://", "--config-store", store, "--segments", segments)
    with Serving(tmp_path, *words) as service, Visitor(service) as visitor:
        for _ in range(6):
            service.ask("/v1/decide", policy="p007", subject=7)
        page = visitor.get("/console/policies?contains=p00", headers=json).json()
        assert ([one["name"] for one in page["policies"]][-1], page["next"]) == ("p009", None)
        assert page["policies"][7]["use"]["refused"] == 1
        page = visitor.get("/console/policies", headers=json).json()
        assert (len(page["policies"]), page["next"]) == (50, "p049")
        assert 'href="/console/policies?after=p049"' in visitor.get("/console/policies").text
        assert (
            service.client.get("/v1/policies", params={"after": "p118", "limit": 5}).json()["policies"][0]["name"]
            == "p119"
        )
        assert len(service.client.get("/v1/policies").json()["policies"]) == 120

        policy = visitor.get("/console/policy?name=p007", headers=json).json()
        assert ([one["who"] for one in policy["versions"]], len(policy["overrides"])) == (["<b>ann</b>"], 50)
        rest = visitor.get("/console/policy", params={"name": "p007", "after": policy["next"]}, headers=json).json()
        assert (len(rest["overrides"]), rest["count"]) == (10, 60)
        assert "&lt;b&gt;ann&lt;/b&gt;" in visitor.get("/console/policy?name=p007").text
        assert visitor.get("/console/policy?name=none").status_code == 404

        told = service.client.get("/v1/commits", params={"limit": 2}).json()
        assert [(one["version"], one["who"], one["changes"][0]["subject"]) for one in told["commits"]] == [
            (61, "bob", 59),
            (60, "bob", 58),
        ]
        first = service.client.get("/v1/commits", params={"before": 2}).json()
        assert (len(first["commits"][0]["changes"]), first["next"]) == (120, None)
        assert service.client.get("/v1/commits", params={"before": "x"}).status_code == 422
        assert len(visitor.get("/console/audit", headers=json).json()["commits"]) == 50
        assert "and 110 more" in visitor.get("/console/audit?before=2").text
        assert visitor.get("/console/segments", headers=json).json()["segments"][0]["count"] == 9

        with Configuration(store) as configuration:
            configuration.set_policies([Policy("p008", ["3/day"], by_segment={"vip": ["5/day"]}, shadow=True)])
            configuration.set_policies([Policy("p008", ["2/day"], by_segment={"vip": ["5/day", "9/week"]})])
        policy = visitor.get("/console/policy?name=p008", headers=json).json()
        differs = [[*map(tuple, one["differs"])] for one in policy["versions"]]
        assert differs == [
            [("limits", "3/day", "2/day"), ("shadow", "True", ""), ("by_segment vip", "5/day", "5/day, 9/week")],
            [("shadow", "", "True"), ("by_segment vip", "", "5/day")],
            [("limits", "", "3/day")],
        ]
        page = visitor.get("/console/policy?name=p008").text
        assert "segment vip</bdi> <del>" in page


def test_the_page_says_as_of_when_while_the_store_is_away(tmp_path: Path) -> None:
    json = {"Accept": "application/json"}
    with ExitStack() as stack:
        server = stack.enter_context(servers.single("redis"))
        service = stack.enter_context(Serving(tmp_path, "--store", server.url))
        visitor = stack.enter_context(Visitor(service))
        assert soon(lambda: visitor.get("/console", headers=json).json()["store"]["up"], WITHIN_S)
        server.kill()
        assert soon(lambda: not visitor.get("/console", headers=json).json()["store"]["up"], WITHIN_S)
        text = visitor.get("/console").text
        assert re.search(r"away</span>, as of \d\d:\d\d:\d\d UTC", text)
        assert "The store does not answer" in text
        gone = visitor.get("/console/subject?id=u")
        assert (gone.status_code, "Service Unavailable" in gone.text) == (503, True)


@pytest.mark.parametrize(
    ("script", "dark"),
    [(True, False), *(pytest.param(*each, marks=pytest.mark.deep) for each in ((True, True), (False, False)))],
)
def test_in_a_browser_who_may_finds_why_and_pauses(
    tmp_path: Path, tokens: dict[str, str], *, script: bool, dark: bool
) -> None:
    queue = f"sqlite://{tmp_path}/queue.sqlite"
    with closing(open_store(queue, make=True)) as store:
        filled(store)
    words = ("--tokens", "tokens.json", "--store", "memory://", "--queue", queue)
    key = {"Authorization": f"Bearer {tokens['admin']}"}
    with Serving(tmp_path, *words) as service:
        for _ in range(2):
            service.client.post("/v1/decide", json={"policy": "promo", "subject": 42}, headers=key)
        with Chromium(tmp_path / "profile", width=390, dark=dark, script=script) as browser:
            browser.go(f"{service.admin}/console/subject?id=42")
            browser.fill("input[name=secret]", tokens["steer"])
            browser.press("main button")
            assert "Refused by 1/day. Free again at" in browser.text
            browser.go(f"{service.admin}/console/campaign?name=sale")
            browser.press('form[action$="/pause"] button')
            assert "Nothing more of it is sent until it is resumed." in browser.text
            assert "sale paused" in browser.text
            for page in (
                "",
                "/campaigns",
                "/policies",
                "/policy?name=promo",
                "/subject?id=42",
                "/segments",
                "/audit",
                "/limited",
            ):
                browser.go(f"{service.admin}/console{page}")
                assert browser.told("document.documentElement.scrollWidth") <= 390
                assert browser.told(NO_TABLE_SCROLLS), page
                if script:
                    browser.ask("Runtime.evaluate", expression=AXE)
                    assert browser.told(VIOLATIONS) == []
            browser.press('form[action$="/sign-out"] button')
            assert "Sign in" in browser.text
            assert browser.notes == []


def test_a_page_left_open_is_renewed_says_when_not_and_takes_over_a_newer_style(tmp_path: Path) -> None:
    with (
        Serving(tmp_path, "--store", "memory://") as service,
        Chromium(tmp_path / "profile", width=390) as browser,
    ):
        service.ask("/v1/decide", policy="promo", subject="u")
        browser.go(f"{service.admin}/console/subject?id=u")

        def is_renewed() -> bool:
            shown = browser.told("document.querySelector('time').textContent")
            return soon(lambda: browser.told("document.querySelector('time').textContent") != shown, WITHIN_S)

        browser.told("(document.querySelector('details').open = true, true)")
        assert is_renewed()
        assert browser.told("document.querySelector('details').open")
        tab = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
        for _ in range(20):
            if browser.told("!!document.querySelector('main :focus-visible')"):
                break
            browser.ask("Input.dispatchKeyEvent", type="keyDown", **tab)
        assert soon(lambda: "not renewed while you are in it" in browser.text, WITHIN_S)
        browser.told("(document.activeElement.blur(), true)")
        assert soon(lambda: "not renewed" not in browser.text, WITHIN_S)
        browser.told("(window.older = true, document.querySelector('link[rel=stylesheet]').href += '?older', true)")
        assert soon(lambda: not browser.told("!!window.older"), WITHIN_S)
        assert browser.notes == []


def test_top_shows_the_same_in_a_terminal(
    tmp_path: Path, service: Serving, tokens: dict[str, str], capline: CommandLine
) -> None:
    (tmp_path / "token").write_text(tokens["read"], encoding="utf-8")
    headers = {"Authorization": f"Bearer {tokens['decide']}"}
    for _ in range(2):
        service.client.post("/v1/decide", json={"policy": "promo", "subject": "\u202eu"}, headers=headers)
    words = ("top", service.admin, "--token-file", "token", "--once", "--subject", "\u202eu")
    seen = capline.json(*words)
    assert (seen["policies"][0]["policy"], seen["policies"][0]["refused"], seen["away"]) == ("promo", 1, "")
    assert [limit["used"] for policy in seen["subject"]["policies"] for limit in policy["limits"]] == [1]
    text = capline(*words).stdout
    assert re.search(r"promo +1/day +\S+ +\S+ +50.0%", text)
    assert re.search(r"subject \\u202eu[^\n]*\n promo +1/day +1 +0 +(1 d|23 h 59 min)", text)
    for more, said in (
        ((service.admin,), "a token"),
        ((service.admin, "--token-file", "none"), "none: the token cannot be read"),
        (("http://127.0.0.1:1",), "cannot be reached"),
        (("localhost",), "cannot be read"),
        ((service.admin, "--every", "0"), "--every"),
    ):
        done = capline("top", "--once", *more)
        assert (done.returncode, said in done.stderr, done.stdout) == (2, True, ""), done


@pytest.mark.parametrize("kind", servers.KINDS)
def test_the_overview_shows_each_server_and_what_it_forgets(tmp_path: Path, capline: CommandLine, kind: str) -> None:
    full = "maxmemory 8mb", "maxmemory-policy allkeys-lru", "save 3600 1"
    with servers.single(kind, *full) as primary, servers.single(kind, f"replicaof {primary.address.replace(':', ' ')}"):
        assert soon(primary.is_replicated, WITHIN_S)
        with Serving(tmp_path, "--store", primary.url) as service, Visitor(service) as visitor:

            def server() -> dict[str, Any]:
                (told,) = visitor.get("/console", headers={"Accept": "application/json"}).json()["servers"]
                return told

            assert soon(lambda: server()["replica_lag_s"] in (0, 1) and server()["script_mean_us"], WITHIN_S)
            assert (server()["evicted_keys"], server()["faults"]) == (0, {})
            for number in range(120):
                with suppress(servers.ReplyError):  # what waits for the replica counts as memory too
                    primary.command("SET", f"filler {number}", "x" * 100_000)
            assert soon(lambda: "evicted_keys" in server()["faults"], WITHIN_S)
            text = re.sub(' data-head="[^"]*"', "", visitor.get("/console").text)
            assert re.search(r'<td class="bad">\d+</td>\s+<td class="text">\d+ s ago</td>\s+<td>[\d.]+ ms</td>', text)
            assert re.search(r"of 8.39 MB</span></td>\s+<td>\d+</td>\s+<td>1</td>\s+<td>[01] s, ", text)
            said = f"{primary.address}: {server()['evicted_keys']} keys were evicted, their hits are lost"
            assert said in text
            assert said in capline("top", service.admin, "--once").stdout
            assert said in capline("top", "--store", primary.url, "--once").stdout


@pytest.mark.parametrize("kind", ["lmdb", "redis"])
def test_top_asks_a_store_without_a_service(tmp_path: Path, capline: CommandLine, kind: str) -> None:
    with ExitStack() as stack:
        url = f"lmdb://{tmp_path}/logs" if kind == "lmdb" else stack.enter_context(servers.single("redis")).url
        if kind == "lmdb":
            assert "no store" in capline("top", "--store", url, "--once").stderr
        with Serving(tmp_path, "--store", url) as service:
            for subject in ("\u202eu", "\u202eu", "v"):
                service.ask("/v1/decide", policy="promo", subject=subject)
            assert service.stop() == 0
        seen = capline.json("top", "--store", url, "--once", "--subject", "\u202eu")
        assert [(one["policy"], one["allowed"], one["refused"]) for one in seen["policies"]] == [("promo", 2, 1)]
        assert [limit["used"] for one in seen["subject"]["policies"] for limit in one["limits"]] == [1]
        text = capline("top", "--store", url, "--once", "--subject", "\u202eu").stdout
        server = r"127\.0\.0\.1:\d+ +up +3 +\S+ .B +0 .*us *\n"
        assert re.search("2 subjects' logs" if kind == "lmdb" else server, text)
        assert re.search(r"promo +1/day +\S+ +\S+ +33.3%", text)
        assert re.search(r"subject \\u202eu[^\n]*\n promo +1/day +1 +0", text)
    for words, said in (
        (("http://127.0.0.1:1", "--store", url), "not both"),
        (("--store", "redis://127.0.0.1:1"), "127.0.0.1:1"),
        (("--store", "nothing"), "unknown kind"),
        (("--store", "memory://", "--subject", ""), "subject"),
        (("--store", "memory://", "--subject", "u", "--policies", "none.yaml"), "none.yaml"),
    ):
        done = capline("top", "--once", *words)
        assert (done.returncode, said in done.stderr, done.stdout) == (2, True, ""), done


def test_top_goes_on_and_says_so_while_the_service_is_away(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    with ExitStack() as stack:
        service = stack.enter_context(Serving(tmp_path, "--store", "memory://"))
        top = subprocess.Popen(
            [sys.executable, "-m", "capline.cli", "top", service.admin, "--every", "0.5"],
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        stack.callback(ended, top)
        stack.callback(os.close, ours)
        os.close(theirs)

        def says(word: bytes) -> bool:
            said = b""
            while word not in said:
                assert select.select([ours], [], [], WITHIN_S)[0], said
                said += os.read(ours, 4096)
            return True

        assert says(b"2 policies")
        service.__exit__()
        assert says(b"it does not answer")
        assert says(b"store was up")
        assert says(b"2 policies")
        top.send_signal(signal.SIGINT)
        assert says(b"\x1b[?25h")  # the cursor is shown again
        assert top.wait(WITHIN_S) == 130


@pytest.mark.parametrize("store", ["lmdb", "redis"])
def test_history_survives_a_restart_and_is_of_all_instances(tmp_path: Path, store: str) -> None:
    json = {"Accept": "application/json"}

    def refused(service: Serving, over: str) -> tuple[float, float, str]:
        with Visitor(service) as visitor:
            told = visitor.get(f"/console?over={over}", headers=json).json()
            rows = [one["refused"] for one in told["policies"] if one["policy"] == "promo"]
            return sum(rows), sum(told["history"]["refused"]), told["history"]["away"]

    with ExitStack() as stack:
        url = f"lmdb://{tmp_path}/logs"
        if store == "redis":
            url = stack.enter_context(servers.single("redis")).url
        with Serving(tmp_path, "--store", url, "--workers", "2") as first, Serving(tmp_path, "--store", url) as second:
            for service, many in ((first, 4), (second, 7)):
                for _ in range(many):
                    service.ask("/v1/decide", policy="promo", subject="u")
            assert soon(lambda: refused(first, "5m")[0] == 3, WITHIN_S)
            assert (first.stop(), second.stop()) == (0, 0)
        with Serving(tmp_path, "--store", url) as third, Visitor(third) as visitor:
            for over in ("5m", "hour", "day", "week"):
                assert refused(third, over) == (10, 10, "")
            third.ask("/v1/decide", policy="promo", subject="u")
            assert refused(third, "hour") == (11, 11, "")
            assert visitor.get("/console?over=moon").status_code == 422
            text = visitor.get("/console?over=week").text
            assert re.search(r'aria-current="true">week</a>', text)
            assert visitor.get("/console/policies", headers=json).json()["policies"][0]["use"]["refused"] == 11
