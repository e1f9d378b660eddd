"""What each role sees in a real browser while parts fail: the store goes and comes, an instance lags."""

import os
import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.test_console import AXE, VIOLATIONS, Visitor
from tests.kit import servers
from tests.kit.chromium import Chromium
from tests.kit.segments import make
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving
from tests.profiles import first

from capline import Configuration, Policy
from capline.service.access.tokens import TokenFile

ROLES = ["read", "admin"]


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    file = TokenFile(tmp_path / "tokens.json", create=True)
    return {name: file.create(name, (name,)) for name in ROLES}


@pytest.mark.parametrize("role", first(1, ROLES))
def test_each_role_sees_the_store_go_and_come_and_an_instance_that_lags(
    tmp_path: Path, tokens: dict[str, str], role: str
) -> None:
    with ExitStack() as stack:
        logs, kept = (stack.enter_context(servers.single("redis")) for _ in range(2))
        configuration = stack.enter_context(Configuration(kept.url))
        configuration.set_policies([Policy("promo", ["1/day"])])
        words = ("--tokens", "tokens.json", "--store", logs.url, "--config-store", kept.url)
        service = stack.enter_context(Serving(tmp_path, *words))
        key = {"Authorization": f"Bearer {tokens['admin']}"}
        for _ in range(2):
            service.client.post("/v1/decide", json={"policy": "promo", "subject": 42}, headers=key)
        browser = stack.enter_context(Chromium(tmp_path / "profile", width=390))

        def says(text: str) -> bool:
            return soon(lambda: re.search(text, browser.text) is not None, WITHIN_S)

        browser.go(f"{service.admin}/console/subject?id=42")
        browser.fill("input[name=secret]", tokens[role])
        browser.press("main button")
        assert "Refused by 1/day. Free again at" in browser.text
        assert ("Forget it…" in browser.text) is (role == "admin")
        for other in {*ROLES} - {role}:
            with Visitor(service) as visitor:
                visitor.sign_in(tokens[other])
                assert ("Forget it…" in visitor.get("/console/subject?id=42").text) is (other == "admin")
        logs.kill()
        assert says(r"not now: Service Unavailable; as of \d\d:\d\d:\d\d UTC"), browser.text
        assert "Refused by 1/day." in browser.text, "what was known is still read"
        browser.go(f"{service.admin}/console")
        assert says(r"The store does not answer(.|\n)*away, as of \d\d:\d\d:\d\d UTC"), browser.text
        browser.go(f"{service.admin}/console/subject?id=42")
        assert re.search(r"This has no answer now(.|\n)*as of \d\d:\d\d:\d\d UTC", browser.text)
        browser.ask("Runtime.evaluate", expression=AXE)
        assert browser.told(VIOLATIONS) == []
        browser.go(f"{service.admin}/console")
        logs.start()
        assert soon(lambda: "away" not in browser.text and "does not answer" not in browser.text, WITHIN_S), (
            browser.text
        )
        kept.pause()
        assert says("Of the configuration the last known serves: its store has been away for"), browser.text
        assert re.search(r"configuration version 1, as of \d\d:\d\d:\d\d UTC", browser.text)
        kept.resume()
        configuration.set_policies([Policy("promo", ["2/day"])])
        assert soon(
            lambda: "configuration version 2\n" in browser.text and "the last known serves" not in browser.text,
            WITHIN_S,
        ), browser.text
        assert browser.notes == []


def served(stack: ExitStack, folder: Path, quota: int, store: str) -> Serving:
    """An instance with its own file of policies."""
    folder.mkdir()
    (folder / "policies.yaml").write_text(f"policies:\n  promo: {{limits: [{quota}/day]}}\n")
    return stack.enter_context(Serving(folder, "--store", store))


def test_an_instance_with_older_policies_is_marked_until_it_has_the_others(tmp_path: Path) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(servers.single("redis")).url
        older = served(stack, tmp_path / "older", 1, store)
        os.utime(tmp_path / "older" / "policies.yaml", (1_000_000_000, 1_000_000_000))
        older.stop()
        older = stack.enter_context(Serving(tmp_path / "older", "--store", store))
        served(stack, tmp_path / "newer", 2, store)
        browser = stack.enter_context(Chromium(tmp_path / "profile", width=390))
        browser.go(f"{older.admin}/console")
        assert soon(lambda: "serves an older version: policies" in browser.text, WITHIN_S), browser.text
        assert len(re.findall(rf"{socket.gethostname()}:\d+:\w+\s+serves heard", browser.text)) == 2, "one ended"
        assert browser.text.count("behind") == 1
        browser.ask("Runtime.evaluate", expression=AXE)
        assert browser.told(VIOLATIONS) == []
        (tmp_path / "older" / "policies.yaml").write_bytes((tmp_path / "newer" / "policies.yaml").read_bytes())
        assert soon(lambda: "behind" not in browser.text, WITHIN_S), browser.text


@pytest.mark.deep  # one is silent after a hundred seconds
def test_an_instance_that_was_killed_is_silent(tmp_path: Path) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(servers.single("redis")).url
        one, other = (served(stack, tmp_path / name, 1, store) for name in ("one", "other"))
        browser = stack.enter_context(Chromium(tmp_path / "profile"))
        browser.go(f"{one.admin}/console")
        assert soon(lambda: len(re.findall(r"serves heard \d\d:", browser.text)) == 2, WITHIN_S), browser.text
        other.end(signal.SIGKILL)
        assert soon(lambda: "was not heard for" in browser.text, 180), browser.text
        assert re.search(r"silent since \d\d:\d\d:\d\d UTC", browser.text)
        assert len(re.findall(r"serves heard \d\d:", browser.text)) == 1


def test_a_text_is_found_where_segments_have_numbers(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(
        "policies:\n  plain: {limits: [1/day]}\n  promo: {limits: [1/day], by_segment: {vip: [2/day]}}\n"
    )
    segments = str(make(tmp_path, "monday", vip=[42]))
    with Serving(tmp_path, "--store", "memory://", "--segments", segments) as service, Visitor(service) as visitor:
        for subject in (42, "ann"):
            for _ in range(3):
                service.ask("/v1/decide", policy="plain", subject=subject)
                service.ask("/v1/decide", policy="promo", subject=subject)
        page = visitor.get("/console/subject?id=42").text
        assert page.count("Refused by") == 2
        page = visitor.get("/console/subject?id=ann").text
        assert page.count("Refused by") == 1
        assert re.search('Not asked: <bdi class="name">promo</bdi>. Limits differ by segment', page)
        told = service.client.get("/v1/subjects/ann").json()
        assert ([one["policy"] for one in told["policies"]], told["unasked"]) == (["plain"], ["promo"])
        assert service.client.get("/v1/subjects/i:42").json()["unasked"] == []
