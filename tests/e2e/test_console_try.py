"""Other limits, tried on the decisions that a real `capline serve` recorded, and set from the console."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from html import escape
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.e2e.test_console import AXE, VIOLATIONS, Visitor, tokens
from tests.kit.chromium import Chromium
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving
from tests.profiles import first

from capline import Configuration, Limiter, Policy

assert tokens is not None  # the fixture
RECORD = "record: {keep: 3600}\n"
BAD = "<img src=x onerror=alert(1)>\u202e"
JSON = {"Accept": "application/json"}
PROMO = Policy("promo", ["3/day", "9/week"])


Event = tuple[str, str, int]
"""A subject, what happened, and units: "ask", or an id that was asked with; "back", asked and given back; "had", units
that came from elsewhere."""


def counted(events: list[Event], quota: int) -> Counter[str]:
    """Refusals by subject under one limit whose window outlasts the test: told from the events alone, by counting."""
    used: dict[str, int] = defaultdict(int)
    refused: Counter[str] = Counter()
    ids: set[tuple[str, str]] = set()
    for subject, what, units in events:
        if (subject, what) in ids:
            continue
        if what != "had" and used[subject] + units > quota:
            refused[subject] += 1
        elif what != "back":
            used[subject] += units
            ids |= {(subject, what)} if what.startswith("id") else set()
    return refused


def traffic(service: Serving, number: int, subject: str, others: list[str], units: int) -> list[Event]:
    """One call of some kind, and what happened by it."""
    one = {"policy": "promo", "subject": subject}
    match number % 10:
        case 0:  # over several subjects: not recorded, but in the logs
            told = service.ask("/v1/decide/all", attempts=[{**one, "cost": units}]).json()
            return [(subject, "had", units)] * told["allowed"]
        case 1:
            told = service.ask("/v1/decide", **one).json()
            if told["allowed"]:
                assert service.ask("/v1/refund", **one, hit=told["hit"]).json()["refunded"]
            return [(subject, "back" if told["allowed"] else "ask", 1)]
        case 2:  # sent twice: the same id is one attempt
            for _ in range(2):
                service.ask("/v1/decide", **one, id=f"id{number}")
            return [(subject, f"id{number}", 1)] * 2
        case 3:
            service.ask("/v1/decide/batch", policy="promo", subjects=others, cost=units)
            return [(other, "ask", units) for other in others]
        case 4:
            service.ask("/v1/decide/batch", attempts=[{**one, "cost": units}] * 2)
            return [(subject, "ask", units)] * 2
        case 5:
            service.client.get("/check", params={**one, "cost": units})
        case _:
            service.ask("/v1/decide", **one, cost=units)
    return [(subject, "ask", units)]


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    (tmp_path / "policies.yaml").write_text("policies:\n  promo: {limits: [3/day, 9/week]}\n", encoding="utf-8")
    (tmp_path / "capline.yaml").write_text(RECORD, encoding="utf-8")
    return ["--config", "capline.yaml", "--store", f"lmdb://{tmp_path}/logs"]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_other_limits_are_counted_as_one_counts_them(tmp_path: Path, settings: list[str], workers: str) -> None:
    random, events = Random(7), list[Event]()
    names = [f"u{number}" for number in range(30)]
    with Limiter(f"lmdb://{tmp_path}/logs", [PROMO]) as before:
        for subject in ("u1", "u2", "u2"):
            assert before.decide("promo", subject)
            events.append((subject, "had", 1))
    with Serving(tmp_path, *settings, "--workers", workers) as service:
        for number in range(120):
            others = random.choices(names, k=20)
            events += traffic(service, number, random.choice(names), others, 1 + number % 7 // 6)
        for subject in ("u3", "u4"):  # erased: nothing of it is known any more
            assert service.client.delete(f"/v1/subjects/{subject}").status_code == 200
            events = [event for event in events if event[0] != subject]
            events += traffic(service, 9, subject, [], 2) + traffic(service, 9, subject, [], 2)

        def tried(*limits: str) -> dict[str, Any]:
            return service.ask("/v1/policies/promo/try", limits=limits).json()

        asked = sum(what != "had" for _, what, _ in events)
        assert soon(lambda: tried("3/day")["decisions"] == asked, WITHIN_S)
        now = counted(events, 3)
        for quota in (1, 2, 3, 4, 8):
            told, then = tried(f"{quota}/day", "99/week"), counted(events, quota)
            assert told["as_answered"] == asked
            for part, expected in (("now", now), ("then", then)):
                assert (told[part]["refused"], told[part]["subjects"]) == (expected.total(), len(expected))
            assert told["then"]["limits"] == ({f"{quota}/day": then.total()} if then else {})
            for part, one, other in (("newly_refused", then, now), ("newly_free", now, then)):
                turned = Counter({subject: count for subject, count in one.items() if not other[subject]})
                assert told[part]["subjects"] == len(turned)
                assert {row["subject"]: row["refused"] for row in told[part]["some"]}.items() <= turned.items()


def test_a_hashed_record_counts_and_names_nobody(tmp_path: Path, settings: list[str]) -> None:
    (tmp_path / "capline.yaml").write_text("record: {hashed: true}\n", encoding="utf-8")
    with Serving(tmp_path, *settings) as service:
        for _ in range(5):
            service.ask("/v1/decide", policy="promo", subject="somebody")
        told = service.ask("/v1/policies/promo/try", limits=["4/day"]).json()
        assert (told["as_answered"], told["now"]["refused"], told["then"]["refused"]) == (5, 2, 1)
        assert service.ask("/v1/policies/promo/try", limits=["5/day"]).json()["newly_free"]["subjects"] == 1
        assert "somebody" not in str(service.ask("/v1/policies/promo/try", limits=["5/day"]).json())


@pytest.mark.parametrize("hashed", [False, True])
def test_who_is_limited_is_counted_as_one_counts_it(tmp_path: Path, settings: list[str], *, hashed: bool) -> None:
    (tmp_path / "capline.yaml").write_text(f"record: {{hashed: {str(hashed).lower()}}}\n", encoding="utf-8")
    random, names = Random(3), [BAD, "x" * 512, 42, "42", "\x1b[31m\n", *(f"u{number}" for number in range(9))]
    asked = random.choices(names, weights=[9, 8, 7, 6, 5, *[1] * 9], k=120)
    with Serving(tmp_path, *settings, "--workers", "2") as service, Visitor(service) as visitor:
        for subject in asked[:40]:
            service.ask("/v1/decide", policy="promo", subject=subject)
        service.ask("/v1/decide/batch", policy="promo", subjects=asked[40:80])
        service.ask("/v1/decide/batch", attempts=[{"policy": "promo", "subject": each} for each in asked[80:]])
        exact = {subject: max(0, many - 3) for subject, many in Counter(asked).items()}

        def told() -> dict[str, Any]:
            return service.client.get("/v1/limited").json()

        assert soon(lambda: told()["decisions"] == len(asked), WITHIN_S)
        (promo,) = told()["policies"]
        (by_day,) = promo["limits"]
        assert (told()["short_by"], by_day["limit"], by_day["refused"]) == (0, "3/day", sum(exact.values()))
        counts = {one["subject"]: one["count"] for one in by_day["subjects"]}
        if hashed:
            assert sorted(counts.values()) == sorted(count for count in exact.values() if count)
            assert all(name.startswith("hash:") for name in counts)
        else:
            assert counts == {subject: count for subject, count in exact.items() if count}
            used = {one["subject"]: one["count"] for one in promo["most_used"]}
            assert used == {subject: min(3, many) for subject, many in Counter(asked).items()}
        page = visitor.get("/console/limited").text
        assert ("onerror" not in page) if hashed else ("&lt;img src=x onerror" in page)
        assert "\u202e" not in page
        assert "\x1b" not in page
        assert visitor.get("/console/limited", headers=JSON).json()["policies"] == [promo]
        assert "No decision under" in visitor.get("/console/limited?policy=none").text
        assert visitor.get("/console/limited?policy=<b>").status_code == 422
        assert visitor.get("/console/limited?more=1").status_code == 422
        service.client.delete("/v1/subjects/i:42")
        assert soon(lambda: told()["decisions"] == len(asked) - asked.count(42), WITHIN_S)


def test_what_cannot_be_tried_says_why(tmp_path: Path, settings: list[str]) -> None:
    with Serving(tmp_path, *settings) as service, Visitor(service) as visitor:
        assert service.ask("/v1/policies/none/try", limits=["1/day"]).status_code == 404
        assert service.ask("/v1/policies/promo/try", limits=["1/moon"]).status_code == 422
        assert "No decision of this policy was recorded." in visitor.get("/console/try?name=promo&limits=1/day").text
        page = visitor.get("/console/try?name=promo&limits=7/day&by_segment=vip")
        assert (page.status_code, 'value="7/day"' in page.text, "write a name, a colon" in page.text) == (
            422,
            True,
            True,
        )
        assert "are in a file here" in visitor.get("/console/try?name=promo").text
    with Serving(tmp_path, "--store", "memory://") as service, Visitor(service) as visitor:
        refused = service.ask("/v1/policies/promo/try", limits=["1/day"])
        assert (refused.status_code, "record: {keep: 3600}" in refused.json()["detail"]) == (409, True)
        assert "records no decisions" in visitor.get("/console/try?name=promo&limits=1/day").text
        assert service.client.get("/v1/limited").status_code == 409
        assert "records no decisions" in visitor.get("/console/limited").text
        assert visitor.get("/console/try").headers["Location"] == "/console/policies"


@pytest.fixture
def service(tmp_path: Path, tokens: dict[str, str]) -> Iterator[Serving]:
    """With a policy in a configuration store: two decisions of a subject with a bad name, one of another."""
    store = f"lmdb://{tmp_path}/configuration"
    with Configuration(store) as configuration:
        configuration.set_policies([Policy("promo", ["1/day"], by_segment={"vip": ["2/day"]}, layout="bucket")])
    (tmp_path / "capline.yaml").write_text(RECORD, encoding="utf-8")
    words = ("--config", "capline.yaml", "--tokens", "tokens.json", "--store", "memory://", "--config-store", store)
    with Serving(tmp_path, *words) as service:
        service.client.headers["Authorization"] = f"Bearer {tokens['admin']}"
        for subject in (BAD, BAD, "u"):
            service.ask("/v1/decide", policy="promo", subject=subject)
        yield service


def test_who_may_not_tries_and_does_not_set(service: Serving, tokens: dict[str, str]) -> None:
    with Visitor(service) as reader, Visitor(service) as admin:
        reader.sign_in(tokens["read"])
        admin.sign_in(tokens["admin"])
        decider = {"Authorization": f"Bearer {tokens['decide']}"}
        tried = service.client.post("/v1/policies/promo/try", json={"limits": ["2/day"]}, headers=decider)
        assert tried.status_code == 403
        page = "/console/try?name=promo&limits=2/day"
        told = reader.get(page, headers=JSON).json()
        assert [told["result"][part]["refused"] for part in ("now", "then")] == [1, 0]
        text = reader.get(page).text
        assert ("&lt;img src=x onerror=alert(1)&gt;\\u202e" in text, "<img" in text) == (True, False)
        assert "/console/try/set" not in text
        form = {"name": "promo", "limits": "2/day", "version": "1", "reason": "why"}
        for visitor, forgery in ((reader, reader.forgery(page)), (admin, reader.forgery()), (admin, "")):
            assert visitor.post("/console/try/set", data=form | {"forgery": forgery}).status_code == 403
        assert service.client.get("/v1/policies/promo").json()["version"] == 1


def test_what_is_set_has_a_reason_and_leaves_the_rest(service: Serving, tokens: dict[str, str]) -> None:
    with Visitor(service) as admin:
        admin.sign_in(tokens["admin"])
        form = {"name": "promo", "limits": "2/day", "version": "1", "reason": BAD[:-1], "by_segment": "vip: 4/day"}
        form["forgery"] = admin.forgery()
        for field, word in (
            *(("reason", " "), ("reason", "a\nb"), ("reason", "\u202e"), ("reason", "ü" * 150)),
            *(("limits", "2/moon"), ("limits", " , "), ("by_segment", "vip"), ("by_segment", "vip: 2/moon")),
            *(("by_segment", "v p: 2/day"), ("channels", "push: x"), ("channels", "push: 1/day, 1/day")),
        ):
            shown = admin.post("/console/try/set", data=form | {field: word}, headers={"Accept": "text/html"})
            assert (shown.status_code, shown.text.count('role="alert"')) == (422, 1), word
            at_field = rf'name="{field}"[^>]*>([^<]*</textarea>)?<small class="bad" role="alert">'
            assert re.search(at_field, shown.text), (word, shown.text)
            typed = form | {field: word}
            assert f'name="limits" value="{escape(typed["limits"])}"' in shown.text
            assert f' value="{escape(typed["reason"])}">' in shown.text
            told = admin.post("/console/try/set", data=typed, headers=JSON)
            assert (told.status_code, [*told.json()["faults"]]) == (422, [field])
        assert admin.post("/console/try/set", data=form | {"version": "x"}).status_code == 422
        assert admin.post("/console/try/set", data=form).headers["Location"] == "/console/policy?name=promo&done=set"
        (now, *_) = service.client.get("/v1/policies/promo/versions").json()["versions"]
        assert now["policy"] == {"limits": ["2/day"], "by_segment": {"vip": ["4/day"]}, "layout": "bucket"}
        (commit, *_) = service.client.get("/v1/commits").json()["commits"]
        assert (commit["who"], commit["verb"], commit["reason"]) == ("admin", "set", BAD[:-1])
        audit = admin.get("/console/audit").text
        assert ("&lt;img src=x" in audit, "<img" in audit) == (True, False)


@pytest.mark.parametrize("script", first(1, [True, False]))
def test_in_a_browser_one_tries_sets_and_sees_who_was_faster(
    tmp_path: Path, service: Serving, tokens: dict[str, str], *, script: bool
) -> None:
    with Chromium(tmp_path / "profile", width=390, script=script) as browser:
        browser.go(f"{service.admin}/console/policy?name=promo")
        browser.fill("input[name=secret]", tokens["admin"])
        browser.press("main button")
        browser.press('main a[href^="/console/try"]')
        browser.fill("input[name=limits]", "9/hour, ")
        browser.press("form.limits button")
        assert "Of 3 decisions of 2 subjects the limits in force refuse 1. These would have refused 1." in browser.text
        if script:
            browser.ask("Runtime.evaluate", expression=AXE)
            assert browser.told(VIOLATIONS) == []
        assert browser.told("document.documentElement.scrollWidth") <= 390
        service.client.put("/v1/policies/promo", json={"limits": ["5/day"], "who": "somebody else"})
        browser.fill("input[name=reason]", "an hour apart")
        browser.press('form[action$="/set"] button')
        assert "It was changed meanwhile" in browser.text
        assert "In force: 5/day. Version 2" in browser.text
        assert "9/hour" in browser.told("document.querySelector('input[name=limits]').value")
        browser.fill("input[name=reason]", "an hour apart")
        browser.press('form[action$="/set"] button')
        assert "These limits are in force." in browser.text
        browser.go(f"{service.admin}/console/audit")
        assert "an hour apart" in browser.text
        assert browser.notes == []
