"""Limits that the decisions suggest which a real `capline serve` recorded: over HTTP, in the console, in Chromium."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.e2e.test_console import AXE, VIOLATIONS, Visitor, tokens
from tests.kit.chromium import Chromium
from tests.kit.segments import make
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving
from tests.profiles import first

from capline import Configuration, Policy

assert tokens is not None  # the fixture
RECORD = "record: {keep: 3600}\n"
BAD = "<img src=x onerror=alert(1)>\u202e"
PAGE, API, JSON = "/console/suggest", "/v1/policies/promo/suggest", {"Accept": "application/json"}


def curve(events: Counter[str]) -> list[list[int]]:
    """What each quota refuses in a window that outlasts the test: whatever is above it."""
    quotas = range(1, max(events.values()) + 1)
    return [
        [quota, sum(max(0, many - quota) for many in events.values()), sum(many > quota for many in events.values())]
        for quota in quotas
    ]


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    """A configuration store with overrides, segments, a record of an hour."""
    store = f"lmdb://{tmp_path}/configuration"
    policies = [
        Policy("promo", ["3/day", "2/calendar-week"], channels={"push": ["4/hour"]}),
        Policy("tiers", ["3/day"], by_segment={"vip": ["5/day"]}),
        Policy("counted", ["3/day"], count_denied=True),
    ]
    with Configuration(store) as configuration:
        configuration.set_policies(policies)
        configuration.override("promo", "own", ["99/day"])
    (tmp_path / "capline.yaml").write_text(RECORD, encoding="utf-8")
    segments = make(tmp_path, "segments", vip=[1, 2], new=[3])
    words = ("--config", "capline.yaml", "--store", f"lmdb://{tmp_path}/logs", "--config-store", store)
    return [*words, "--segments", str(segments)]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_each_price_is_what_one_counts(tmp_path: Path, settings: list[str], workers: str) -> None:
    random, names = Random(11), [1, 2, 3, 42, BAD, *(f"u{number}" for number in range(20))]
    asked = random.choices(names, weights=[9, 8, 7, 6, 5, *[1] * 20], k=150)
    with Serving(tmp_path, *settings, "--workers", workers) as service:

        def told(**form: Any) -> dict[str, Any]:
            return service.ask(API, **form).json()

        def counted() -> int:
            return (told()["suggested"] or {"events": 0})["events"]

        for subject in asked[:60]:
            service.ask("/v1/decide", policy="promo", subject=subject)
        service.ask("/v1/decide/batch", policy="promo", subjects=asked[60:])
        for _ in range(2):  # sent again with its id: one event
            service.ask("/v1/decide", policy="promo", subject="twice", id="m1")
        service.ask("/v1/decide", policy="promo", subject="heavy", cost=2)
        for subject in ("own", "own", "gone"):
            service.ask("/v1/decide", policy="promo", subject=subject)
        service.ask("/v1/decide", policy="counted", subject="other")
        assert service.client.delete("/v1/subjects/gone").status_code == 200
        events = Counter(map(str, [*asked, "twice"]))
        assert soon(lambda: counted() == events.total(), WITHIN_S)

        found = told(windows=["day"], refuse_at_most="10%")
        assert [found[key] for key in ("left_out", "overridden", "older", "of_segments")] == [1, 1, 0, 0]
        day, expected = found["suggested"]["windows"]["day"], curve(events)
        assert day["quotas"] == expected
        price = {"limit": "3/day", "refused_events": expected[2][1], "refused_subjects": expected[2][2]}
        assert day["in_force"] == price
        for of, column in (("events", 1), ("subjects", 2)):
            total = events.total() if of == "events" else len(events)
            for most in ("0", "1", "10%", "100%"):
                bound = total * int(most[:-1]) // 100 if "%" in most else int(most)
                (one,) = told(windows=["day"], refuse_at_most=most, of=of)["suggested"]["windows"].values()
                row = next(row for row in expected if row[column] <= bound)
                assert one["suggested"] == {
                    "limit": f"{row[0]}/day",
                    "refused_events": row[1],
                    "refused_subjects": row[2],
                }, (of, most)
        top = {str(subject): (refused, of) for subject, refused, of in day["top_refused"]}
        quota = int(day["suggested"]["limit"].partition("/")[0])
        assert top == {who: (many - quota, many) for who, many in events.items() if many > quota}

        both = told()["suggested"]  # the windows of the policy's limits, of its channels too; not of calendars
        assert [*both["windows"]] == ["hour", "day"]
        assert all(pair[1] == both["together"]["refused_events"] for pair in both["frontier"])
        parts = told(windows=["day"], by_segment=True)
        of = {name: part["windows"]["day"] for name, part in parts["segments"].items()}
        assert {name: part["quotas"] for name, part in of.items()} == {
            name: curve(Counter({who: many for who, many in events.items() if (who in ids) is inside}))
            for name, ids, inside in (("vip", "12", True), ("new", "3", True), ("-", "123", False))
        }
        service.ask("/v1/decide/batch", policy="tiers", subjects=[1, 1, 3])

        def now() -> dict[str, str]:
            tiers = service.ask("/v1/policies/tiers/suggest", by_segment=True).json()["segments"]
            return {name: part["windows"]["day"]["in_force"]["limit"] for name, part in tiers.items()}

        assert soon(lambda: now() == {"vip": "5/day", "new": "3/day"}, WITHIN_S)


def test_what_cannot_be_suggested_says_why(tmp_path: Path, settings: list[str]) -> None:
    with Serving(tmp_path, *settings) as service, Visitor(service) as visitor:
        for form, said in (
            ({"windows": ["month"]}, "windows: a month has no fixed length"),
            ({"windows": ["s", "min", "h", "d"]}, "at most 3 windows"),
            ({"refuse_at_most": "101%"}, "refuse_at_most is a share like 1%"),
            ({"of": "people"}, "of"),
            ({"more": 1}, "more"),
        ):
            refused = service.ask(API, **form)
            assert (refused.status_code, said in refused.json()["detail"]) == (422, True), refused.text
        assert service.ask("/v1/policies/none/suggest").status_code == 404
        assert "counts refusals too" in service.ask("/v1/policies/counted/suggest").json()["detail"]
        assert service.ask(API).json()["suggested"] is None
        assert "No decision of this policy was recorded" in visitor.get(f"{PAGE}?name=promo&refuse_at_most=1%25").text
        assert "a month has no fixed length" in visitor.get(f"{PAGE}?name=promo&windows=month&refuse_at_most=1").text
        assert visitor.get(f"{PAGE}?name=none").status_code == 404
        assert visitor.get(f"{PAGE}?name=promo&more=1").status_code == 422
        assert visitor.get(PAGE).headers["Location"] == "/console/policies"
    (tmp_path / "policies.yaml").write_text("policies: {promo: {limits: [1/day]}}\n", encoding="utf-8")
    with Serving(tmp_path, "--store", "memory://") as service, Visitor(service) as visitor:
        assert service.ask(API).status_code == 409
        assert "records no decisions" in visitor.get(f"{PAGE}?name=promo&refuse_at_most=1").text


@pytest.fixture
def service(tmp_path: Path, settings: list[str], tokens: dict[str, str]) -> Iterator[Serving]:
    with Serving(tmp_path, *settings, "--tokens", "tokens.json") as service:
        service.client.headers["Authorization"] = f"Bearer {tokens['admin']}"
        for subject, many in ((BAD, 7), ("u", 4), (1, 6), *((f"u{number}", 1) for number in range(30))):
            service.ask("/v1/decide/batch", policy="promo", subjects=[subject] * many)
        yield service


def test_who_only_reads_may_look_and_names_do_no_harm(service: Serving, tokens: dict[str, str]) -> None:
    for role, status in (("read", 200), ("decide", 403)):
        answer = service.client.post(API, json={}, headers={"Authorization": f"Bearer {tokens[role]}"})
        assert answer.status_code == status
    with Visitor(service) as reader:
        reader.sign_in(tokens["read"])
        page = f"{PAGE}?name=promo&windows=day&refuse_at_most=4&by_segment=on"
        text = reader.get(page).text
        assert ("&lt;img src=x onerror=alert(1)&gt;\\u202e" in text, "<img" in text) == (True, False)
        told = reader.get(page, headers=JSON).json()
        assert told["result"] | {"until": ""} == service.ask(
            API, windows=["day"], refuse_at_most="4", by_segment=True
        ).json() | {"until": "", "since": told["result"]["since"]}
        # The limits over other windows stay; each segment has a line of its own.
        assert told["take"] == {
            "limits": "4/day, 2/calendar-week",
            "by_segment": "vip: 2/day",
            "channels": "push: 4/hour",
        }


def test_a_hashed_record_names_nobody(tmp_path: Path, settings: list[str]) -> None:
    (tmp_path / "capline.yaml").write_text("record: {hashed: true}\n", encoding="utf-8")
    with Serving(tmp_path, *settings) as service:
        service.ask("/v1/decide/batch", policy="promo", subjects=["somebody"] * 5)
        assert soon(lambda: service.ask(API).json()["suggested"] is not None, WITHIN_S)
        told = service.ask(API, windows=["day"], refuse_at_most="2")
        (day,) = told.json()["suggested"]["windows"].values()
        assert ("somebody" in told.text, day["top_refused"][0][0][:5], day["top_refused"][0][1:]) == (
            False,
            "hash:",
            [2, 5],
        )


@pytest.mark.parametrize("script", first(1, [True, False]))
def test_in_a_browser_one_asks_compares_and_tries(
    tmp_path: Path, service: Serving, tokens: dict[str, str], *, script: bool
) -> None:
    with Chromium(tmp_path / "profile", width=390, script=script) as browser:
        browser.go(f"{service.admin}/console/try?name=promo")
        browser.fill("input[name=secret]", tokens["admin"])
        browser.press("main button")
        browser.press('main a[href^="/console/suggest"]')
        assert browser.told("document.querySelector('[name=windows]').value") == "day"
        browser.told("document.querySelector('[name=refuse_at_most]').value = ''")
        browser.fill("input[name=refuse_at_most]", "5")
        browser.press('form[action="/console/suggest"] button')
        assert "Take 4/day: 5 of 47 events refused, 2 of 33 subjects feel it." in browser.text
        assert "4/day refuses 10.6 % of events, and 2 subjects feel it; 3/day, in force, 17.0 %" in browser.text
        browser.told("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        if script:
            browser.ask("Runtime.evaluate", expression=AXE)
            assert browser.told(VIOLATIONS) == []
        assert browser.told("document.documentElement.scrollWidth") <= 390
        browser.press('main form[action="/console/try"] button')
        assert "Of 47 decisions of 33 subjects the limits in force refuse" in browser.text
        fields = "[...document.querySelectorAll('form.limits [name]')].map(one => one.value)"
        assert browser.told(fields) == ["promo", "4/day, 2/calendar-week", "", "push: 4/hour"]
        assert browser.notes == []
