"""A campaign that is composed in the console: what the form forecasts and begins is what the API plans and begins."""

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_console import AXE, BAD, VIOLATIONS, Visitor
from tests.kit.chromium import Chromium
from tests.kit.segments import make
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving
from tests.profiles import first

from capline.campaign.store.open import open_store
from capline.model.errors import InvalidValueError
from capline.service.access.tokens import TokenFile
from capline.service.run.file import read_settings
from capline.service.verbs.campaigns import check_message

PAGE = "/console/campaigns/new"
JSON = {"Accept": "application/json"}
SETTINGS = """\
store: lmdb://.capline/store
tokens: tokens.json
queue: sqlite://queue.sqlite
audiences: uploads
messages:
  push: {policies: policies.yaml, policy: promo, priority: 7, sender: {file: out/}}
  mail: {policies: policies.yaml, audience: {columns: [mail]}, sender: {webhook: {url: "http://127.0.0.1:9/"}}}
"""
GOOD = {"message": "push", "campaign": "summer", "audience": "summer.csv", "holdout": "20%"}


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    file = TokenFile(tmp_path / "tokens.json", create=True)
    roles = {"ann": ("read", "compose", "decide"), "ben": ("read",), "hal": ("read", "steer")}
    return {name: file.create(name, of) for name, of in roles.items()}


@pytest.fixture
def service(tmp_path: Path, tokens: dict[str, str]) -> Iterator[Serving]:
    """With an upload of a hundred, of whom forty have used up what they may have."""
    (tmp_path / "policies.yaml").write_text("policies:\n  promo: {limits: [1/day]}\n", encoding="utf-8")
    (tmp_path / "capline.yaml").write_text(SETTINGS, encoding="utf-8")
    with Serving(tmp_path, "--config", "capline.yaml") as service:
        service.client.headers["Authorization"] = f"Bearer {tokens['ann']}"
        body = "\n".join(["id", *map(str, range(100))]).encode()
        digest = f"sha-256=:{b64encode(hashlib.sha256(body).digest()).decode()}:"
        sent = service.client.put("/v1/audiences/summer.csv", content=body, headers={"Content-Digest": digest})
        assert sent.status_code == 200
        for subject in range(40):
            service.ask("/v1/decide", policy="promo", subject=subject)
        yield service


@pytest.fixture
def ann(service: Serving, tokens: dict[str, str]) -> Iterator[Visitor]:
    with Visitor(service) as visitor:
        visitor.sign_in(tokens["ann"])
        yield visitor


@pytest.mark.parametrize("script", first(1, [True, False]))
def test_in_a_browser_one_composes_sees_the_forecast_and_begins(
    tmp_path: Path, service: Serving, tokens: dict[str, str], *, script: bool
) -> None:
    with Chromium(tmp_path / "profile", width=390, script=script) as browser:
        browser.go(f"{service.admin}/console/campaigns")
        browser.fill("input[name=secret]", tokens["ann"])
        browser.press("main button")
        browser.press(f'main a[href="{PAGE}"]')

        def typed(field: str, text: str, said: str) -> None:
            browser.fill(f"input[name={field}]", text)
            if not script:
                browser.press("form.compose button")
            assert soon(lambda: said in browser.text, WITHIN_S), browser.text

        browser.fill("input[name=campaign]", "summer")
        typed("audience", "summer.csv", "to 60 of 100, if nothing changes until then; 40 are refused.")
        typed("holdout", "x", "'x' is not a share")
        assert "Begin summer?" not in browser.text
        browser.told("(document.querySelector('input[name=holdout]').value = '', true)")
        typed("priority", "60", "to 60 of 100")
        if script:
            assert "&priority=60" in browser.told("location.search")
            browser.ask("Runtime.evaluate", expression=AXE)
            assert browser.told(VIOLATIONS) == []
        assert browser.told("document.documentElement.scrollWidth") <= 390
        browser.press('form[method=post][action$="/new"] button')
        assert "It is begun: workers send it when it is due." in browser.text
        assert browser.notes == []
    with closing(open_store(f"sqlite://{tmp_path}/queue.sqlite")) as store:
        run = store.find("summer")
        assert run is not None
        assert (run.facts.policy, run.priority, '"upload"' in run.text) == ("promo", 60, False)


def test_the_forecast_is_the_plan_and_is_begun_once(service: Serving, ann: Visitor) -> None:
    at = {"send_at": "2031-07-01T16:00", "zone": "Asia/Shanghai", "until": "2031-07-02T16:00", "over_cap": "hold"}
    view = ann.get(PAGE, params=GOOD | at, headers=JSON).json()
    campaign = {
        "campaign": "summer",
        "audience": {"upload": "summer.csv"},
        "policies": "policies.yaml",
        "policy": "promo",
        "sender": {"file": "out/"},
        "holdout": "20%",
        "over_cap": "hold",
        "priority": 7,
        "send_at": "2031-07-01T16:00:00+08:00",
        "until": "2031-07-02T16:00:00+08:00",
    }
    plan = service.ask("/v1/campaigns/plan", **campaign).json()
    assert (view["faults"], view["forecast"]["total"]) == ({}, plan["total"])
    assert (plan["total"]["audience"], plan["total"]["held"] > 0) == (100, True)
    page = ann.get(PAGE, params=GOOD | at).text
    assert "2031-07-01 16:00 Asia/Shanghai, which is 2031-07-01 08:00:00 UTC" in page
    assert "as 2001-07-01 08:00:00 UTC has gone by" in ann.get(PAGE, params=GOOD | {"send_at": "2001-07-01T08:00"}).text
    form = GOOD | at | {"forgery": ann.forgery(PAGE), "key": "k" * 32}
    for _ in range(2):  # as a browser that sends it again
        assert ann.post(PAGE, data=form).headers["Location"] == "/console/campaign?name=summer&done=begun"
    steering = service.client.get("/v1/campaigns/summer").json()["steering"]
    assert (steering["send_at"], steering["until"]) == ("2031-07-01T08:00:00Z", "2031-07-02T08:00:00Z")
    again = ann.post(PAGE, data=form | {"key": "other"})
    assert (again.status_code, "was begun before" in again.text) == (422, True)
    assert "was begun before" in ann.get(PAGE, params=GOOD, headers=JSON).json()["faults"]["campaign"]


UPLOAD = "/console/campaigns/audience"


@pytest.mark.parametrize("script", first(1, [True, False]))
def test_in_a_browser_one_uploads_an_audience_and_has_its_forecast(
    tmp_path: Path, service: Serving, tokens: dict[str, str], *, script: bool
) -> None:
    (file := tmp_path / "our users.csv").write_text("id,zone\n7,UTC\nx,UTC\n")
    with Chromium(tmp_path / "profile", width=390, script=script) as browser:
        browser.go(f"{service.admin}{PAGE}?message=mail&campaign=autumn&priority=9")
        browser.fill("input[name=secret]", tokens["ann"])
        browser.press("main button")
        if script:  # what was typed since stays too
            browser.fill("input[name=holdout]", "50%")
        browser.told("(document.querySelector('details.upload').open = true)")
        browser.attach("input[type=file]", file)
        browser.press("details.upload button")
        assert "our-users.csv, row 2" in browser.text, browser.text
        file.write_text("id,zone\n" + "".join(f"{user},UTC\n" for user in range(300, 310)))
        browser.attach("input[type=file]", file)
        browser.press("details.upload button")
        assert "The file is uploaded; each row has an id." in browser.text
        if script:
            browser.ask("Runtime.evaluate", expression=AXE)
            assert browser.told(VIOLATIONS) == []
        assert browser.told("document.documentElement.scrollWidth") <= 390
        assert browser.told("document.querySelector('form.compose').priority.value") == "9"
        assert browser.told("document.querySelector('form.compose').holdout.value") == ("50%" if script else "")
        browser.told("(document.querySelector('form.compose').message.value = 'push', true)")
        browser.press("form.compose > p button")
        assert soon(lambda: "goes to our-users.csv at once" in browser.text, WITHIN_S), browser.text
        assert ("to 10 of 10" in browser.text) is not script
        assert browser.notes == []
    assert (tmp_path / "uploads" / "our-users.csv").read_text() == file.read_text()


def test_an_upload_of_the_page_is_checked_as_one_of_the_api(
    service: Serving, ann: Visitor, tokens: dict[str, str], tmp_path: Path
) -> None:
    forgery = ann.forgery(PAGE)
    rows = b"id\n1\n2\n"

    def sent(name: str, body: bytes, form: dict[str, str], visitor: Visitor = ann) -> tuple[int, str]:
        data = {"forgery": forgery, "typed": "?message=push&campaign=new"} | form
        answer = visitor.post(UPLOAD, data=data, files={"file": (name, body)})
        return answer.status_code, answer.headers.get("Location") or answer.text

    for name, body, form, status, said in (
        ("new.csv", rows, {}, 303, f"{PAGE}?message=push&campaign=new&kind=upload&audience=new.csv&done=uploaded"),
        ("new.csv", rows, {}, 422, "new.csv was uploaded before"),
        ("new.csv", b"mail\n1\n", {"replaces": "yes", "column": "mail"}, 303, "&column=mail&"),
        ("C:\\x\\..\\.more.csv", rows, {}, 303, "audience=more.csv"),
        ("big.csv", b"id\n" + b"".join(b"%d\n" % user for user in range(300_000)), {}, 303, "big.csv"),
        ("edge.csv", b"id\n1\n\r\n--", {}, 422, "edge.csv"),
        ("none.csv", b"", {}, 422, "none.csv"),
        ("none.csv", b"user\n1\n", {}, 422, "none.csv"),
        ("none.exe", rows, {}, 422, "ends in .csv"),
        ("none.csv", rows, {"forgery": "x"}, 403, "another session"),
        ("none.csv", rows, {"column": "x" * 9000}, 413, "more than 8192 bytes"),
        ("none.csv", rows, {"more": "x"}, 422, "other fields"),
        ("none.csv", rows, {"typed": "?more=x"}, 422, "no parameter"),
        ("none.csv", rows, {"typed": "\u202e"}, 400, "the query is not"),
    ):
        assert sent(name, body, form)[0] == status, (name, form)
        again = sent(name, body, form) if status != 303 else (status, ann.get(PAGE).text)
        assert said in unescape(again[1]) or status == 303, (name, form)
    assert ann.post(UPLOAD, data={"forgery": forgery}, files={"file": ("", b"")}).status_code == 422
    assert ann.post(UPLOAD, data={"forgery": forgery}).status_code == 415
    head = {"Content-Type": "multipart/form-data; boundary=b"}
    field = f'--b\r\nContent-Disposition: form-data; name="forgery"\r\n\r\n{forgery}\r\n'
    start = f'{field}--b\r\nContent-Disposition: form-data; name="file"; filename="cut.csv"\r\n\r\nid\r\n1\r\n'
    for body in (start, f"{start}--", field, "", "--b\r\n\r\nx\r\n--b--"):
        assert ann.post(UPLOAD, content=body, headers=head).status_code == 400, body
    assert ann.post(UPLOAD, content=f"{start}\r\n--b--\r\n", headers=head).status_code == 303
    for name in ("ben", "hal"):
        with Visitor(service) as visitor:
            visitor.sign_in(tokens[name])
            form = {"forgery": visitor.forgery("/console/campaigns")}
            assert sent("none.csv", rows, form, visitor)[0] == 403
    kept = {file.name for file in (tmp_path / "uploads").iterdir() if file.is_file()}
    assert kept == {"summer.csv", "new.csv", "more.csv", "big.csv", "cut.csv"}
    assert not [*(tmp_path / ".capline" / "uploads").iterdir()]


def test_each_at_their_own_time_and_without_who_is_excluded(service: Serving, ann: Visitor, tmp_path: Path) -> None:
    rows = b"id,zone\n201,UTC\n202,Asia/Tokyo\n203,UTC\n"
    form = {"forgery": ann.forgery(PAGE)}
    assert ann.post(UPLOAD, data=form, files={"file": ("zoned.csv", rows)}).status_code == 303
    typed = GOOD | {"audience": "zoned.csv", "holdout": "", "send_at": "2031-07-01T00:00", "send_at_local": "16:00"}
    view = ann.get(PAGE, params=typed, headers=JSON).json()
    assert "zone_column" in view["faults"]["send_at_local"]
    assert (
        "zone_column" in ann.get(PAGE, params=typed | {"zone_column": "id"}, headers=JSON).json()["faults"]["audience"]
    )
    typed |= {"zone_column": "zone"}
    assert ann.get(PAGE, params=typed, headers=JSON).json()["forecast"]["total"]["audience"] == 3
    assert "UTC, to each at their next 16:00: to 3 of 3" in ann.get(PAGE, params=typed).text
    assert "exclude" in ann.get(PAGE, params=typed | {"exclude": "vip"}, headers=JSON).json()["faults"]
    segments = make(tmp_path, "monday", vip=[202]).name
    settings = tmp_path / "capline.yaml"
    settings.write_text(SETTINGS.replace("policies.yaml, policy", f"policies.yaml, segments: {segments}, policy"))
    with Serving(tmp_path, "--config", "capline.yaml") as other, Visitor(other) as visitor:
        key = {"Authorization": service.client.headers["Authorization"]}
        view = visitor.get(PAGE, params=typed | {"exclude": "vip"}, headers=JSON | key).json()
        assert (view["faults"], view["forecast"]["total"]["excluded"]) == ({}, 1)


FAULTS = [
    ({"campaign": ""}, "campaign"),
    ({"campaign": "a b"}, "campaign"),
    ({"message": "<b>"}, "message"),
    ({"message": "mail"}, "policy"),
    ({"policy": "none"}, "policy"),
    ({"audience": " "}, "audience"),
    ({"audience": "none"}, "audience"),
    ({"audience": "none.csv"}, "audience"),
    ({"audience": "../x.csv", "kind": "csv"}, "audience"),
    ({"audience": "new", "kind": "segments"}, "audience"),
    ({"kind": "sender"}, "audience"),
    ({"send_at": "tomorrow"}, "send_at"),
    ({"send_at": "0001-01-01T00:00", "zone": "Asia/Shanghai"}, "send_at"),
    ({"send_at": "2031-03-30T02:30", "zone": "Europe/Berlin"}, "send_at"),
    ({"send_at": "2031-03-30T02:30", "zone": "Mars/Base"}, "zone"),
    ({"send_at": "2031-01-02T00:00", "until": "2031-01-01T00:00"}, "until"),
    ({"priority": "101"}, "priority"),
    ({"priority": "-1"}, "priority"),
    ({"rate": "5/moon"}, "rate"),
    ({"over_cap": "wait"}, "over_cap"),
    ({"policy": "${HOME}"}, "policy"),
]


def test_what_is_wrong_is_said_at_its_field(ann: Visitor) -> None:
    faults = ann.get(PAGE, params=GOOD | {"column": "none"}, headers=JSON).json()["faults"]
    assert faults == {"column": "summer.csv: no column 'none'; its columns are: id"}
    forgery = ann.forgery(PAGE)
    for wrong, field in FAULTS:
        view = ann.get(PAGE, params=GOOD | wrong, headers=JSON).json()
        assert ([*view["faults"]], view["forecast"]) == ([field], None)
        assert "uploads/" not in view["faults"][field]
        page = ann.post(PAGE, data=GOOD | wrong | {"forgery": forgery, "key": "k"})
        assert (page.status_code, f'data-part="told-{field}" role="alert"' in page.text) == (422, True)
    assert ann.get("/console/campaigns", headers=JSON).json()["campaigns"] == []


def test_whatever_is_typed_is_shown_as_text(ann: Visitor) -> None:
    for text in BAD:
        typed = dict.fromkeys(("campaign", "audience", "policy", "column", "rate", "zone", "send_at"), text)
        for message in ("push", text):
            answer = ann.get(PAGE, params={"message": message, **typed})
            assert (answer.status_code, 'role="alert"' in answer.text) == (200, True)
            assert len(re.findall("<(?:script|img|b)\\b", answer.text)) == 1, "our own script"
            told = re.findall(r'<small class="bad"[^>]*>(.*?)</small>', answer.text)
            assert len(told) == answer.text.count('<small class="bad"')
            assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x1f]", unescape("".join(told)))


def test_only_who_may_compose_does(service: Serving, ann: Visitor, tokens: dict[str, str]) -> None:
    assert f'href="{PAGE}"' in ann.get("/console/campaigns").text
    for name in ("ben", "hal"):
        with Visitor(service) as visitor:
            visitor.sign_in(tokens[name])
            assert f'href="{PAGE}"' not in visitor.get("/console/campaigns").text
            assert visitor.get(PAGE, params=GOOD).status_code == 403
            form = GOOD | {"key": "k", "forgery": visitor.forgery("/console/campaigns")}
            assert visitor.post(PAGE, data=form).status_code == 403
    for forgery in ({}, {"forgery": "x"}):
        assert ann.post(PAGE, data=GOOD | {"key": "k"} | forgery).status_code == 403
    key = {"Authorization": f"Bearer {tokens['ann']}"}
    with Visitor(service) as other:
        assert other.get(PAGE, params=GOOD, headers=JSON | key).json()["forecast"]["total"]["audience"] == 100
    assert service.client.get("/v1/campaigns").json()["campaigns"] == []


def test_messages_are_checked_when_the_service_starts(tmp_path: Path) -> None:
    file = tmp_path / "capline.yaml"
    file.write_text(SETTINGS, encoding="utf-8")
    assert read_settings(file, {}, {}).messages["push"]["sender"] == {"file": "out/"}
    for text, said in (("messages: {push: {}}", "give 'queue:' too"), ("messages: [a]\nqueue: sqlite://q", "mapping")):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidValueError, match=said):
            read_settings(file, {}, {})
    wrong: list[tuple[dict[str, Any], str]] = [({}, "policies"), ({"policies": "p", "sender": {}, "more": "1"}, "more")]
    for message, said in wrong:
        with pytest.raises(InvalidValueError, match=f"messages: push: .*{said}"):
            check_message("push", message)


def test_what_is_to_come_is_in_order_with_who_takes_whose_place(service: Serving, ann: Visitor) -> None:
    page = "/console/campaigns/waiting"
    assert soon(lambda: "No campaign waits." in ann.get(page).text, WITHIN_S)
    for name, day, minute in (("later", "02", "00"), ("second", "01", "30"), ("first", "01", "00")):
        at = {"campaign": name, "send_at": f"2031-07-{day}T16:{minute}", "holdout": ""}
        form = GOOD | at | {"forgery": ann.forgery(PAGE), "key": name}
        assert ann.post(PAGE, data=form).headers["Location"].endswith("done=begun")
    key = {"history": "true"}
    assert soon(lambda: ann.get(page, params=key, headers=JSON).json()["count"] == 3, WITHIN_S)
    told = ann.get(page, params=key, headers=JSON).json()
    assert told == told | service.client.get("/v1/campaign-conflicts", params=key).json()
    assert soon(lambda: ann.get(page, headers=JSON).json()["count"] == 3, WITHIN_S)
    assert [one["campaign"] for one in told["campaigns"]] == ["first", "second", "later"]
    text = re.sub(' data-head="[^"]*"', "", ann.get(page).text)
    assert re.findall(r"<h2>(2031-\S+)</h2>", text) == ["2031-07-01", "2031-07-02"]
    lost = r'second</bdi></td><td class="text"><bdi class="name">first</bdi></td><td class="text"><code>1/day</code>'
    assert re.search(rf"{lost}.*?<td>100</td>", text, re.DOTALL)
    assert f'href="{page}"' in ann.get("/console/campaigns").text
    assert ann.get(page, params={"history": "maybe"}).status_code == 422


def test_what_is_to_come_is_a_page_at_a_time(tmp_path: Path, service: Serving, ann: Visitor) -> None:
    page, count = "/console/campaigns/waiting", 60
    for number in range(count):
        campaign = {
            "campaign": f"c{number:02}",
            "policies": "policies.yaml",
            "policy": "promo",
            "store": "lmdb://.capline/store",
            "audience": {"upload": "summer.csv"},
            "send_at": f"2099-07-{1 + number // 30:02}T16:00:00Z",
            "priority": 99 - number,
            "sender": {"file": "out/"},
        }
        assert service.client.post("/v1/campaigns", json=campaign).status_code == 200

    def told(query: str = "") -> dict[str, Any]:
        return ann.get(f"{page}?{query}", headers=JSON).json()

    assert soon(lambda: told()["count"] == count, WITHIN_S)
    first, rest = told(), told("after=c49")
    assert [each["campaign"] for each in (*first["campaigns"], *rest["campaigns"])] == [
        f"c{n:02}" for n in range(count)
    ]
    assert (first["next"], rest["next"], first["unread"], first["away"]) == ("c49", None, {}, "")
    assert first["conflict_count"] == len(first["conflicts"]) > 0
    assert {each["campaign"] for each in rest["conflicts"]} == {f"c{number}" for number in range(50, 60)}
    assert told("after=none")["campaigns"] == first["campaigns"]
    assert soon(lambda: told("history=true")["count"] == count, WITHIN_S)
    assert told("history=true&after=c49")["history"] is True
    text = ann.get(page).text
    assert "50 of 60 campaigns" in text
    assert f'href="{page}?after=c49"' in text
    assert "Further campaigns" not in ann.get(f"{page}?after=c49").text
