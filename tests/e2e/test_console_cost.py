"""What the console costs: with however much there is, a page is bounded; left open, it grows neither here nor there."""

import os
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.test_console import Visitor
from tests.kit import servers
from tests.kit.campaign_store import FACTS, RUN
from tests.kit.chromium import Chromium
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving
from tests.profiles import size, sized

from capline import Configuration, Policy
from capline.campaign.store.open import open_store
from capline.service.access.tokens import TokenFile

MOST_COMMANDS, MOST_BYTES, MOST_ROWS = 3_000, 120_000, 110
CHUNK = 1_000
POLLS, DAY = 25, 17_280
SMALL, LARGE = (1_000, 3_000, 300), (100_000, 200_000, 10_000)
PAGES = [
    *("", "?over=week", "/policies", "/policies?after=p0500", "/policies?contains=99", "/policy?name=p0001"),
    *("/policy?name=p0002", "/subject?id=7", "/campaigns", "/campaigns?after=c00200", "/campaign?name=c00001"),
    *("/audit", "/limited", "/try?name=p0001"),
]


@pytest.mark.parametrize("sizes", [SMALL, pytest.param(LARGE, marks=[pytest.mark.deep, pytest.mark.timeout(1800)])])
def test_each_page_is_bounded_with_however_much_there_is(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    policies, overrides, campaigns = sizes
    with ExitStack() as stack:
        server = stack.enter_context(servers.single("redis"))
        configuration = stack.enter_context(Configuration(server.url))
        for first in range(0, policies, CHUNK):
            configuration.set_policies([Policy(f"p{n:04}", ["3/day"]) for n in range(first, first + CHUNK)])
        for first in range(0, overrides, CHUNK):
            configuration.override_many("p0001", {subject: ["5/day"] for subject in range(first, first + CHUNK)})
        with closing(open_store(server.url, make=True)) as queue:
            for n in range(campaigns):
                queue.begin(replace(RUN, facts=replace(FACTS, campaign=f"c{n:05}", policy="p0001")))
        words = ("--store", server.url, "--config-store", server.url, "--queue", server.url)
        service = stack.enter_context(Serving(tmp_path, *words))
        visitor = stack.enter_context(Visitor(service))
        for page in PAGES:
            for accept in ("text/html", "application/json"):
                before = int(server.info("stats")["total_commands_processed"])
                answer = visitor.get(f"/console{page}", headers={"Accept": accept})
                commands = int(server.info("stats")["total_commands_processed"]) - before
                assert answer.status_code == 200, page
                assert (commands < MOST_COMMANDS, len(answer.content) < MOST_BYTES) == (True, True), (page, commands)
                assert answer.text.count("<tr") < MOST_ROWS, page
        policy = visitor.get("/console/policy?name=p0001", headers={"Accept": "application/json"}).json()
        assert (len(policy["overrides"]), policy["next"] is not None) == (50, True)


@sized
@pytest.mark.timeout(1800)
def test_a_page_left_open_for_a_day_grows_nothing_and_says_when_its_session_ends(tmp_path: Path) -> None:
    """The service has each poll of a day; the page, ten times as slow, enough to see one node more in 45 polls."""
    (tmp_path / "policies.yaml").write_text("policies:\n  promo: {limits: [1/day]}\n")
    file = TokenFile(tmp_path / "tokens.json", create=True)
    secret = file.create("ann", ("read",))
    with (
        Serving(tmp_path, "--store", "memory://", "--tokens", "tokens.json") as service,
        Chromium(tmp_path / "profile") as browser,
        Visitor(service) as visitor,
    ):
        browser.go(f"{service.admin}/console")
        browser.fill("input[name=secret]", secret)
        browser.press("main button")
        visitor.sign_in(secret)

        def open_for(polls: int) -> None:
            some = f"(async () => {{ for (let n = 0; n < {POLLS}; n++) await renew(); return true; }})()"
            for _ in range(0, polls, POLLS):
                assert browser.told(some)

        def alive() -> tuple[int, int]:
            """Nodes and listeners."""
            browser.ask("HeapProfiler.collectGarbage")
            told = browser.ask("Memory.getDOMCounters")
            return told["nodes"], told["jsEventListeners"]

        def resident() -> int:
            return int(Path(f"/proc/{service.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        open_for(100)
        before, bytes_before, polls = [alive() for _ in range(9)], resident(), size(200, 2_000)
        nodes, listeners = map(min, zip(*before, strict=True))
        open_for(polls)  # of these the page before may live for a while
        assert soon(lambda: alive()[0] - nodes <= polls // 45, WITHIN_S, 0.2), (nodes, alive())
        assert alive()[1] <= listeners
        for _ in range(size(400, DAY) - polls):
            visitor.get("/console")
        assert visitor.get("/console").text.count("Sign out") == 1
        assert resident() - bytes_before < 12_000_000
        assert "stale" not in browser.told("document.querySelector('.as-of').className")
        file.revoke("ann")
        there = "location.pathname + ' ' + (document.body?.innerText ?? '')"
        assert soon(lambda: browser.told(there).startswith("/console/sign-in ") and "Sign in" in browser.text, WITHIN_S)
        assert browser.notes == []
