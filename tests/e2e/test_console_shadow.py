"""A policy in shadow at a real `capline serve`: what is answered, counted and shown, and how it comes to bind."""

from pathlib import Path

import pytest
from tests.e2e.test_console import AXE, VIOLATIONS, tokens
from tests.kit.chromium import Chromium
from tests.kit.cli import CommandLine
from tests.kit.serving import Serving

from capline import Configuration, Limiter, Policy

assert tokens is not None  # the fixture
PROMO = Policy("promo", ["2/day"], shadow=True)


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    with Configuration(f"lmdb://{tmp_path}/config") as configuration:
        configuration.set_policies([PROMO, Policy("psp", ["100/min"])])
    (tmp_path / "capline.yaml").write_text("record: {keep: 3600}\n", encoding="utf-8")
    config = ["--config-store", f"lmdb://{tmp_path}/config", "--config", "capline.yaml"]
    return [*config, "--store", f"lmdb://{tmp_path}/logs"]


def counted(service: Serving, *labels: str) -> float:
    """The sum of the samples of decisions with these labels."""
    lines = [line for line in service.client.get(f"{service.admin}/metrics").text.splitlines() if line[:1] != "#"]
    found = [line for line in lines if line.startswith("capline_decisions_total{") and all(x in line for x in labels)]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def test_it_refuses_nobody_and_is_counted_everywhere(tmp_path: Path, settings: list[str], capline: CommandLine) -> None:
    with Serving(tmp_path, *settings) as service:
        one = {"policy": "promo", "subject": "u"}
        answers = [service.ask("/v1/decide", **one, usage=True) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert [answer.json()["origin"] for answer in answers] == ["store"] * 2 + ["shadow"] * 2
        assert not any("RateLimit" in answer.headers or "Retry-After" in answer.headers for answer in answers)
        last = answers[-1].json()
        assert (last["allowed"], last["limit"], last["hit"], last["retry_after"]) == (True, "2/day", None, 0)
        assert last["usage"][0]["shadow"] is True
        assert service.client.get("/check", params=one).status_code == 204
        rows = service.ask("/v1/decide/batch", policy="promo", subjects=["u", "v"]).json()
        assert (rows["allowed"], rows["origins"], rows["hit"][0]) == ([True, True], {"0": "shadow"}, None)
        parts = [one, {"policy": "psp", "subject": "k"}]
        joint = service.ask("/v1/decide/all", attempts=parts)
        told = joint.json()
        assert (told["allowed"], told["origin"], told["binds"], told["hits"][0]) == (True, "shadow", 0, None)
        assert joint.headers["RateLimit-Policy"] == '"psp-minute";q=100;w=60'
        assert service.ask("/v1/refund/all", attempts=parts, hits=told["hits"]).json() == {"refunded": 1}
        why = service.client.get("/v1/subjects/s:u", params={"policy": "promo"}).json()
        assert (why["shadow"], why["decision"]["origin"], len(why["hits"])) == (True, "shadow", 2)
        with Limiter(service.url) as remote:
            remote_answer = remote.decide("promo", "u")
            assert (remote_answer.allowed, remote_answer.origin, remote_answer.headers()) == (True, "shadow", {})
        assert counted(service, 'policy="promo"', 'origin="shadow"', 'limit="2/day"', 'verdict="allowed"') == 6
        assert counted(service, 'verdict="refused"') == 0
        tried = service.client.post("/v1/policies/promo/try", json={"limits": ["9/day"]}).json()
        assert (tried["decisions"], tried["now"]["refused"], tried["then"]["refused"]) == (8, 5, 0)
        assert tried["as_answered"] == 8
        ranked = service.client.get("/v1/limited").json()["policies"][0]["limits"][0]
        assert (ranked["limit"], ranked["refused"], ranked["subjects"][0]["subject"]) == ("2/day", 5, "u")
        top = capline.json("top", service.admin, "--once")["policies"]
        promo = next(each for each in top if each["policy"] == "promo")
        assert (promo["allowed"], promo["refused"], promo["shadow"]) == (3, 0, 6)
        assert promo["limits"] == [{"limit": "2/day", "refused": 0, "shadow": 6}]
        text = capline("top", service.admin, "--once").stdout
        assert "66.7%" in next(line for line in text.splitlines() if line.strip().startswith("promo"))


def test_in_a_browser_its_share_is_seen_and_it_comes_to_bind(
    tmp_path: Path, settings: list[str], tokens: dict[str, str]
) -> None:
    with Serving(tmp_path, *settings, "--tokens", "tokens.json") as service:
        service.client.headers["Authorization"] = f"Bearer {tokens['admin']}"
        for _ in range(4):
            assert service.ask("/v1/decide", policy="promo", subject="u").json()["allowed"]
        with Chromium(tmp_path / "profile", width=390) as browser:
            browser.go(f"{service.admin}/console/policies")
            browser.fill("input[name=secret]", tokens["admin"])
            browser.press("main button")
            assert "50 % in shadow" in browser.text
            for page in ("/console", "/console/policies", "/console/policy?name=promo"):
                browser.go(f"{service.admin}{page}")
                browser.ask("Runtime.evaluate", expression=AXE)
                assert browser.told(VIOLATIONS) == []
                assert browser.told("document.documentElement.scrollWidth") <= 390
            assert "in shadow: nobody is refused" in browser.text
            browser.go(f"{service.admin}/console/limited")
            assert "2 would be refused, as it is in shadow, 2 used" in browser.text
            browser.go(f"{service.admin}/console/policy?name=promo")
            browser.press('main a[href^="/console/try"]')
            browser.fill("input[name=limits]", "9/hour, ")
            browser.press("form.limits button")
            assert browser.told("document.querySelector('input[name=shadow]').checked") is True
            browser.told("document.querySelector('input[name=shadow]').click()")
            browser.fill("input[name=reason]", "it refuses whom it should")
            browser.press('form[action$="/set"] button')
            assert "These limits are in force." in browser.text
            assert "nobody is refused" not in browser.text
        bound = service.ask("/v1/decide", policy="promo", subject="u").json()
        assert (bound["allowed"], bound["origin"]) == (False, "store"), "what was counted in shadow counts"
        (now, before, *_) = service.client.get("/v1/policies/promo/versions").json()["versions"]
        assert (now["policy"].get("shadow"), before["policy"]["shadow"]) == (None, True)
