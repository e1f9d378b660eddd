"""What comes back to a real `capline serve`: kept for `capline response`, heeded by campaigns, shown in the console."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_console import AXE, VIOLATIONS, Visitor
from tests.kit.chromium import Chromium
from tests.kit.cli import CommandLine
from tests.kit.serving import Serving

from capline.service.access.tokens import TokenFile

SETTINGS = "store: lmdb://.capline/store\ntokens: tokens.json\nqueue: sqlite://queue.sqlite\nreplies: replies\n"
JSON = {"Accept": "application/json"}
CAMPAIGN: dict[str, Any] = {
    "policies": "policies.yaml",
    "policy": "promo",
    "audience": {"csv": "users.csv"},
    "exclude": {"csv": "replies/optouts.csv"},
}


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    file = TokenFile(tmp_path / "tokens.json", create=True)
    roles = {"ann": ("read", "compose"), "provider": ("reply",), "admin": ("admin",)}
    return {name: file.create(name, of) for name, of in roles.items()}


@pytest.fixture
def service(tmp_path: Path, tokens: dict[str, str]) -> Iterator[Serving]:
    assert tokens
    (tmp_path / "policies.yaml").write_text("policies:\n  promo: {limits: [3/day]}\n", encoding="utf-8")
    (tmp_path / "users.csv").write_text("\n".join(["id", *map(str, range(200))]), encoding="utf-8")
    (tmp_path / "capline.yaml").write_text(SETTINGS, encoding="utf-8")
    with Serving(tmp_path, "--config", "capline.yaml") as service:
        service.client.headers["Authorization"] = f"Bearer {tokens['provider']}"
        yield service


def test_who_unsubscribed_is_not_sent_to_and_all_is_measured(
    tmp_path: Path, service: Serving, tokens: dict[str, str], capline: CommandLine
) -> None:
    ann = {"Authorization": f"Bearer {tokens['ann']}"}

    def sent(name: str, **more: object) -> dict[str, Any]:
        begun = service.client.post(
            "/v1/campaigns", json=CAMPAIGN | {"campaign": name, "sender": {"file": f"out-{name}"}} | more, headers=ann
        )
        assert begun.status_code == 200, begun.text
        assert capline("worker", "--queue", "sqlite://queue.sqlite", "--until-idle", "--quiet").returncode == 0
        return service.client.get(f"/v1/campaigns/{name}", headers=ann).json()

    with Visitor(service) as visitor:
        visitor.sign_in(tokens["ann"])
        first = sent("first", holdout="20%")
        assert "Nothing came back yet." in visitor.get("/console/response?name=first").text
        page = service.client.get("/v1/campaigns/first/outcomes", headers=ann).json()
        keys = {one["subject"]: one["key"] for one in page["outcomes"]}
        told = [one["subject"] for one in page["outcomes"] if one["outcome"] == "sent"]
        rows: list[tuple[str, object, str]] = [("key", keys[who], "opened") for who in told[:40]]
        rows += [("id", who, "bought") for who in told[:50]]
        rows += [("key", keys[told[0]], "unsubscribed"), ("id", told[1], "unsubscribed")]
        rows += [("id", 'a, "b"', "unsubscribed"), ("key", "none/1/2", "unsubscribed")]
        rows += [("key", f"first/{'0' * 16}/{told[2]}", "unsubscribed")]  # of another run
        events = [{kind: word, "event": event} for kind, word, event in rows]
        for added in (3, 0):  # sent twice, it counts once
            answer = service.ask("/v1/outcomes", outcomes=events)
            assert answer.json() == {"taken": 95, "opted_out": added, "unknown": 2}
        assert (tmp_path / "replies/optouts.csv").read_text().split() == ["id", *sorted(map(str, told[:2]))]
        second = sent("second")
        assert second["total"]["excluded"] == 2
        page = service.client.get("/v1/campaigns/first/response", headers=ann).json()
        shares = {(one["event"], one.get("segment")): one for one in page["campaigns"]}
        opened, bought = shares["opened", None], shares["bought", None]
        assert (opened["of"], opened["responded"]) == (first["total"]["sent"], 40)
        assert bought["against_holdout"]["held_out"]["of"] == first["total"]["held_out"]
        assert {one["campaign"] for one in page["campaigns"]} == {"first"}
        assert {one["number"] for one in page["by_number"]} == {1, 2}
        words = ("response", "first", "second", "--queue", "sqlite://queue.sqlite", "--events", "replies/by-*.jsonl")
        shown = capline.json(*words)
        assert shown["by_number"] == page["by_number"]
        assert visitor.get("/console/response?name=first", headers=JSON).json()["campaigns"] == page["campaigns"]
    admin = {"Authorization": f"Bearer {tokens['admin']}"}
    erased = service.client.delete(f"/v1/subjects/{told[0]}", headers=admin)
    assert erased.json()["replies"] == 6, "opened, bought and unsubscribed, each sent twice"
    for path in (tmp_path / "replies").glob("by-*.jsonl"):
        lines = path.read_text().splitlines()
        assert lines
        assert not [line for line in lines if f'"{told[0]}"' in line or keys[told[0]] in line]
    assert service.ask("/v1/outcomes", outcomes=events[:1]).status_code == 200
    with Chromium(tmp_path / "profile", width=390) as browser:
        browser.go(f"{service.admin}/console/campaign?name=first")
        browser.fill("input[name=secret]", tokens["ann"])
        browser.press("main button")
        browser.press('main a[href^="/console/response"]')
        assert "Who gets a 4th message is not who gets a 1st" in browser.text
        browser.ask("Runtime.evaluate", expression=AXE)
        assert (browser.told(VIOLATIONS), browser.notes) == ([], [])
        assert browser.told("document.documentElement.scrollWidth") <= 390


def test_what_no_file_could_have_is_refused_whole(tmp_path: Path, service: Serving, tokens: dict[str, str]) -> None:
    good = {"id": 1, "event": "opened"}
    wrongs: list[dict[str, Any]] = [
        {"event": "opened"},
        {"id": 1, "key": "a/b/1", "event": "opened"},
        {"id": 1, "event": "liked"},
        {"id": "a\nb", "event": "unsubscribed"},
        {"id": "\u202ea", "event": "unsubscribed"},
        {"id": "x" * 513, "event": "opened"},
        {"id": -1, "event": "opened"},
        {"key": "", "event": "opened"},
        {**good, "time": "2026-11-21T16:00:00"},
        {**good, "time": "2199-01-01T00:00:00Z"},
    ]
    for wrong in wrongs:
        assert service.ask("/v1/outcomes", outcomes=[good, wrong]).status_code == 422, wrong
    assert service.ask("/v1/outcomes", outcomes=[good] * 1001).status_code == 413
    assert sorted(path.name for path in (tmp_path / "replies").glob("[!.]*")) == ["optouts-text.csv", "optouts.csv"]
    (tmp_path / "replies/optouts.csv").write_text("who\n", encoding="utf-8")
    answer = service.ask("/v1/outcomes", outcomes=[{"id": 1, "event": "unsubscribed"}])
    assert (answer.status_code, "no column 'id'" in answer.text) == (503, True)
    key = {"Authorization": f"Bearer {tokens['ann']}"}
    assert service.client.post("/v1/outcomes", json={"outcomes": [good]}, headers=key).status_code == 403
    assert service.client.get("/v1/campaigns").status_code == 403
