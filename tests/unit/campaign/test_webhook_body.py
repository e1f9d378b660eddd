"""A webhook's `body`: what push and SMS providers ask for, by stand-ins that are as strict as they are."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.campaign import Site, ledger_of
from tests.kit.wire import Wire, read_request, wire
from tests.unit.campaign.test_senders import RUN, build, messages, webhook

from capline.campaign import Stop, load_campaign, open_run, prepare, report_of, run
from capline.campaign.senders.body import Body
from capline.campaign.senders.find import BuiltSender
from capline.campaign.senders.protocol import DELIVERED, TRANSIENT, UNKNOWN, Message, Sender
from capline.forms.tree import read_tree
from capline.model.errors import CampaignError

EXAMPLES = Path(__file__).parents[3] / "examples/campaign"
SAID = ["<b>Anna</b> & Co", 'the "Fox"', "two\r\nlines", "Zoë 李 🎉", "{id} ${HOME} %41 a=b&c=d+e", "\\u0041\\", ""]


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FCM_TOKEN", "ya29.t")
    monkeypatch.setenv("SMS_BASIC", "QUM6dA==")


def answered(status: str, body: object, *headers: str) -> bytes:
    data = json.dumps(body).encode()
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(data)}"))
    return head.encode() + b"\r\n" + data


def fcm(body: bytes, head: str) -> tuple[str, str]:
    """Who gets it and its text, of a request as FCM's v1 API takes it: `messages:send`."""
    assert "authorization: bearer ya29.t\r\n" in head
    assert "content-type: application/json\r\n" in head
    message = json.loads(body)
    assert message.keys() == {"message"}
    assert message["message"].keys() <= {"token", "notification", "data", "android", "webpush", "apns"}
    assert message["message"]["notification"].keys() <= {"title", "body", "image"}
    assert all(isinstance(value, str) for value in message["message"]["data"].values())
    return message["message"]["token"], message["message"]["notification"]["body"]


def sms(body: bytes, head: str) -> tuple[str, str]:
    """The same of a form as usual SMS providers take it: `Messages.json`."""
    assert "authorization: basic quM6da==\r\n".lower() in head
    assert "content-type: application/x-www-form-urlencoded\r\n" in head
    form = dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, strict_parsing=True))
    assert form.keys() == {"To", "From", "Body"}
    return form["To"], form["Body"]


PROVIDERS = {
    "push.yaml": (fcm, {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}, {"name": "projects/shop/messages/0"}),
    "sms.yaml": (
        sms,
        {"code": 20429, "message": "Too Many Requests", "status": 429},
        {"sid": "SM0", "status": "queued"},
    ),
}
Take = Callable[[bytes, str], tuple[str, str]]
Serve = Callable[[socket.socket, Wire], None]
Got = list[tuple[str, str]]


def provider(take: Take, got: Got, refuse: Callable[[int], bytes | None], good: object) -> Serve:
    """Keeps connections; `refuse` says by how many came what is answered in place of taking it."""
    asked: list[int] = []

    def serve(connection: socket.socket, _far: Wire) -> None:
        while request := read_request(connection):
            head, _, body = request.partition(b"\r\n\r\n")
            asked.append(1)
            refused = refuse(len(asked))
            if refused is None:
                got.append(take(body, head.decode().lower() + "\r\n"))
            connection.sendall(answered("200 OK", good) if refused is None else refused)

    return serve


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize(
    "asks", ["Retry-After: 1", "Date: Fri, 27 Nov 2026 19:00:00 GMT\r\nRetry-After: Fri, 27 Nov 2026 19:00:01 GMT"]
)
@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_an_example_runs_against_its_provider_which_throttles(
    tmp_path: Path, name: str, asks: str, status: str
) -> None:
    """After an answer with Retry-After nothing more is sent until then, and everybody gets it once."""
    take, throttled, good = PROVIDERS[name]
    shutil.copytree(EXAMPLES, tmp_path / "campaign")
    file = tmp_path / "campaign" / name
    got: Got = []

    def refuse(count: int) -> bytes | None:
        return answered(status, throttled, asks) if count in (3, 6) else None

    with wire(provider(take, got, refuse, good)) as far:
        text = file.read_text()
        url = load_campaign(file).sender.sender.__dict__["_url"]
        file.write_text(text.replace(url, far.url))
        job = prepare(load_campaign(file))
        pauses: list[float] = []
        with open_run(job, tmp_path / "run") as (limiter, ledger), closing(Stop()) as stop:
            run(job, limiter, ledger, stop, pause=pauses.append)
            total = report_of(ledger).total
    assert (total.sent, total.failed, total.not_known) == (total.audience, 0, 0)
    assert len(got) == len(set(got)) == total.audience
    assert pauses
    assert set(pauses) == {1.0}


@pytest.mark.parametrize("asks", ["5", "Fri, 27 Nov 2026 19:00:05 GMT"])
def test_nothing_more_of_a_batch_is_handed_over_before_the_pause_that_was_asked_for(tmp_path: Path, asks: str) -> None:
    got: Got = []
    head = f"Date: Fri, 27 Nov 2026 19:00:00 GMT\r\nRetry-After: {asks}"
    asked_before: list[int] = []
    pauses: list[float] = []

    def refuse(count: int) -> bytes | None:
        asked_before.append(count)
        return answered("429 Too Many Requests", {}, head) if count == 2 else None

    def taken(body: bytes, _head: str) -> tuple[str, str]:
        return json.loads(body)["to"], ""

    with wire(provider(taken, got, refuse, {})) as far:
        sender = f"{{webhook: {{url: '{far.url}', concurrency: 1, body: {{to: '{{id}}'}}}}}}"
        site = Site(tmp_path)
        site.audience(range(50))
        job = site.job(sender=sender, retry="{attempts: 2, wait: 0.001, longest: 9}")

        def pause(wait_s: float) -> None:
            pauses.append(wait_s)
            assert len(asked_before) == 8, "the hand-over is finished, and no other begins"

        with (
            job.open_limiter("memory://") as limiter,
            ledger_of(job, tmp_path / "run") as ledger,
            closing(Stop()) as stop,
        ):
            run(job, limiter, ledger, stop, pause=pause)
            assert report_of(ledger).total.sent == 50
    assert pauses == [5.0]
    assert sorted(int(to) for to, _ in got) == list(range(50))


def body(text: str, *, as_form: bool = False) -> Body:
    node, faults = read_tree(text)
    assert node is not None
    assert not faults
    return Body(node, as_form=as_form)


def message(name: str) -> Message:
    return Message(7, "sale/r1/7", "active", {"name": name})


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_whatever_a_field_holds_it_arrives_as_that_text(name: str) -> None:
    for value in (name, *SAID):
        as_json = body("{to: '{id}', list: ['{name}', '-{name}-'], ttl: 60, urgent: true, at: null, n: '60'}")
        assert json.loads(as_json.fill(message(value))) == {
            "to": "7", "list": [value, f"-{value}-"], "ttl": 60, "urgent": True, "at": None, "n": "60",
        }  # fmt: skip
        as_form = body("{To: '{id}', Body: 'Dear {name}', Tag: ['{name}', b], ttl: 60}", as_form=True)
        assert parse_qsl(as_form.fill(message(value)).decode("ascii"), keep_blank_values=True) == [
            ("To", "7"), ("Body", f"Dear {value}"), ("Tag", value), ("Tag", "b"), ("ttl", "60"),
        ]  # fmt: skip
        assert as_form.fill(message(value)).decode().startswith(urlencode({"To": "7", "Body": f"Dear {value}"}))


def test_a_number_is_posted_as_it_is_written() -> None:
    assert body("{a: 1.10, b: -0, c: 1e400, d: 010, e: yes, f: .5}").fill(message("")) == (
        b'{"a":1.10,"b":-0,"c":1e400,"d":"010","e":"yes","f":".5"}'
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("body: {a: '{}'}", "a placeholder is a plain name"),
        ("body: hello", "expected a mapping"),
        ("body: {a: {b: c}}, format: form", "a form is a mapping of texts"),
        ("body: [a], format: form", "a form is a mapping of texts"),
        ("body: {a: ~}, format: form", "a form is a mapping of texts"),
        ("format: form", "there is none"),
        ("body: {a: b}, batch: 5", "a request has one message"),
    ],
)
def test_a_body_that_is_none(tmp_path: Path, options: str, said: str) -> None:
    with pytest.raises(CampaignError) as caught:
        build(tmp_path, f"{{webhook: {{url: 'http://x/', {options}}}}}")
    assert said in str(caught.value)


def test_a_place_in_a_body_that_nothing_fills_is_seen_at_once(tmp_path: Path) -> None:
    file = Site(tmp_path).write(sender="{webhook: {url: 'http://x/', body: {a: [{b: '{nane}'}]}}}")
    with pytest.raises(CampaignError, match=r"nothing fills \{nane\}"):
        prepare(load_campaign(file))


def test_what_a_provider_may_have_taken_is_sent_again_only_where_that_is_asked_for(tmp_path: Path) -> None:
    def made(more: str) -> Sender:
        return build(tmp_path, f"{{webhook: {{url: 'http://x/', {more}}}}}")

    options = "", "again: false", "body: {a: b}", "body: {a: b}, again: true"
    assert [BuiltSender("", made(more), "").asks_again for more in options] == [True, False, False, True]


def test_a_refusal_of_a_provider_is_one_message_s(tmp_path: Path) -> None:
    answers = {2: "404 Not Found", 3: "500 Internal Server Error", 4: "429 Too Many Requests"}

    def refuse(count: int) -> bytes | None:
        return answered(answers[count], {}) if count in answers else None

    with (
        wire(provider(lambda body, _head: (body.decode(), ""), [], refuse, {})) as far,
        closing(webhook(tmp_path, far.url, "concurrency: 1, body: {to: '{id}'}")) as sender,
    ):
        outcomes = sender.send(messages(1, 2, 3, 4, run=RUN))
    assert outcomes.codes.tolist() == [DELIVERED, 1, UNKNOWN, TRANSIENT]
