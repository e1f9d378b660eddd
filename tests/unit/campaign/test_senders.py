import csv
import errno
import json
import os
import socket
import struct
from collections.abc import Generator
from contextlib import closing
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.campaign import Mailbox, Site, mail_server, receiver
from tests.kit.wire import Wire, http_wire, wire

from capline.campaign import load_campaign
from capline.campaign.senders import file as file_module
from capline.campaign.senders.find import BuiltSender
from capline.campaign.senders.protocol import (
    DELIVERED,
    PERMANENT,
    TRANSIENT,
    UNKNOWN,
    Messages,
    Outcomes,
    RunInfo,
    Sender,
)
from capline.campaign.senders.template import Template
from capline.model.errors import CampaignError
from capline.model.subject import Subject

parquet: Any = import_module("pyarrow.parquet")
RUN = RunInfo("sale", "r1", "push", ("email",))


def build(tmp_path: Path, text: str) -> Sender:
    return load_campaign(Site(tmp_path).write(sender=text)).sender.sender


def messages(*ids: int, batch: int = 0, run: RunInfo = RUN, emails: list[str] | None = None) -> Messages:
    codes = np.array([number % 2 for number in ids], np.uint16)
    columns = {"email": emails or [f"u{number}@example.org" for number in ids]}
    return Messages(run, batch, np.array(ids, np.uint32), codes, (None, "active"), columns)


# ---- messages


def test_the_key_names_campaign_run_and_subject() -> None:
    three = messages(1, 2, 4_294_967_295)
    assert three.keys() == ["sale/r1/1", "sale/r1/2", "sale/r1/4294967295"]
    assert (three[0].key, three[0].segment, three[1].segment) == ("sale/r1/1", "active", None)
    last = three.take(np.array([2]))
    assert (len(last), last[0].id, last[0].fields) == (1, 4_294_967_295, {"email": "u4294967295@example.org"})


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@given(st.lists(NAMES, min_size=1, unique=True) | st.lists(st.integers(0, 2**64 - 1), min_size=1, unique=True), NAMES)
def test_a_message_in_json_has_each_text_as_it_is(subjects: list[Subject], email: str) -> None:
    ids = np.array(subjects, object if isinstance(subjects[0], str) else np.uint64)
    columns = {"email": [email] * len(ids), 'a "b"': ["{id}"] * len(ids)}
    codes = np.arange(len(ids), dtype=np.uint16) % 2
    for fields in ({}, columns):
        several = Messages(RunInfo("sale", "r1", None, tuple(fields)), 0, ids, codes, (None, email), fields)
        for row, text in enumerate(several.envelopes()):
            assert json.loads(text) == {
                "campaign": "sale",
                "run": "r1",
                "key": several.keys()[row],
                "id": subjects[row],
                "segment": (None, email)[row % 2],
                "channel": None,
                "fields": {name: texts[row] for name, texts in fields.items()},
            }


# ---- file


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_parts_hold_who_gets_it(tmp_path: Path, form: str) -> None:
    sender = build(tmp_path, f"{{file: out, format: {form}}}")
    sender.open(RUN)
    outcomes = sender.send(messages(1, 2, batch=3, emails=["a@x", 'b"@x, Y']))
    assert outcomes.codes.tolist() == [DELIVERED, DELIVERED]
    part = tmp_path / "out" / f"part-000003.{form}"
    rows: list[dict[str, Any]]
    if form == "csv":
        rows = [{**row, "id": int(row["id"])} for row in csv.DictReader(part.read_text().splitlines())]
    else:
        rows = parquet.read_table(part).to_pylist()
    assert rows == [
        {"id": 1, "segment": "active", "key": "sale/r1/1", "email": "a@x"},
        {"id": 2, "segment": "", "key": "sale/r1/2", "email": 'b"@x, Y'},
    ]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".capline-run", part.name]


def test_a_batch_that_comes_again_replaces_its_part(tmp_path: Path) -> None:
    sender = build(tmp_path, "{file: out}")
    sender.open(RUN)
    sender.send(messages(1, 2))
    (tmp_path / "out" / ".part-000000.parquet.tmp").write_text("left behind by a kill")
    sender.open(RUN)
    sender.send(messages(1, 2))
    assert [path.name for path in (tmp_path / "out").glob("*")] != []
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".capline-run", "part-000000.parquet"]


def test_the_parts_of_another_run_are_never_mixed_in(tmp_path: Path) -> None:
    sender = build(tmp_path, "{file: out}")
    sender.open(RunInfo("sale", "r0", None, ()))
    sender.open(RUN)
    sender.send(messages(1))
    with pytest.raises(CampaignError, match=r"holds the parts of another run \(r1\)"):
        sender.open(RunInfo("sale", "r2", None, ()))
    (tmp_path / "out" / ".capline-run").unlink()
    with pytest.raises(CampaignError, match="holds the parts of another run; name an empty directory"):
        sender.open(RUN)


def test_a_part_that_cannot_be_written_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = build(tmp_path, "{file: out}")
    sender.open(RUN)

    def full(path: Path, data: bytes) -> None:
        path.write_bytes(data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file_module, "create", full)
    with pytest.raises(
        CampaignError, match=r"part-000000\.parquet cannot be written: no space left on device; nothing is lost"
    ):
        sender.send(messages(1))
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".capline-run"]


def test_a_directory_that_is_none_and_a_column_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(CampaignError, match="cannot be written to: "):
        build(tmp_path, "{file: out}").open(RUN)
    with pytest.raises(CampaignError, match="audience column 'key'"):
        BuiltSender("file", build(tmp_path, "{file: other}"), "").check(("key",))


# ---- webhook


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def webhook(tmp_path: Path, url: str, more: str = "") -> Sender:
    sender = build(tmp_path, f"{{webhook: {{url: '{url}', {more}}}}}")
    sender.open(RUN)
    return sender


@pytest.mark.usefixtures("no_proxy")
def test_each_message_is_one_post_with_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", "secret")
    with (
        receiver() as far,
        closing(webhook(tmp_path, far.url, "headers: {Authorization: 'Bearer ${SHOP_KEY}'}")) as sender,
    ):
        assert sender.send(messages(1, 2)).codes.tolist() == [DELIVERED, DELIVERED]
        assert sender.send(messages(3)).codes.tolist() == [DELIVERED]
    assert far.keys == {number: {f"sale/r1/{number}"} for number in (1, 2, 3)}
    assert min(far.bodies, key=lambda body: body["id"]) == {
        "campaign": "sale",
        "run": "r1",
        "key": "sale/r1/1",
        "id": 1,
        "segment": "active",
        "channel": "push",
        "fields": {"email": "u1@example.org"},
    }


STATUSES = {
    200: DELIVERED, 202: DELIVERED, 204: DELIVERED,
    301: PERMANENT, 302: PERMANENT, 307: PERMANENT, 308: PERMANENT, 501: PERMANENT, 505: PERMANENT,
    400: PERMANENT, 401: PERMANENT, 404: PERMANENT, 410: PERMANENT, 422: PERMANENT,
    408: TRANSIENT, 425: TRANSIENT, 429: TRANSIENT, 503: TRANSIENT,
    303: UNKNOWN, 409: UNKNOWN, 500: UNKNOWN, 502: UNKNOWN, 504: UNKNOWN, 524: UNKNOWN,
    0: UNKNOWN,
}  # fmt: skip


@pytest.mark.usefixtures("no_proxy")
def test_what_an_answer_means(tmp_path: Path) -> None:
    with (
        receiver(lambda status, _tries: status, headers={"Retry-After": "7"}) as far,
        closing(webhook(tmp_path, far.url)) as sender,
    ):
        outcomes = sender.send(messages(*STATUSES))
    assert dict(zip(STATUSES, outcomes.codes.tolist(), strict=True)) == STATUSES
    assert outcomes.wait_s == 7
    assert outcomes.reasons[list(STATUSES).index(410)] == "HTTP 410"
    assert outcomes.reasons[list(STATUSES).index(0)].startswith("no answer (")


@pytest.mark.usefixtures("no_proxy")
def test_nobody_there_is_transient(tmp_path: Path) -> None:
    with receiver() as far:
        url = far.url
    with closing(webhook(tmp_path, url)) as sender:
        outcomes = sender.send(messages(1, 2))
    assert outcomes.codes.tolist() == [TRANSIENT, TRANSIENT]
    assert set(outcomes.reasons.values()) == {"no answer (nothing answers there: is it running?)"}


def answered_with(tmp_path: Path, answer: bytes) -> tuple[int, str]:
    """What is made of an answer of exactly these bytes, after which the far side hangs up."""
    with http_wire(lambda _request: answer) as far, closing(webhook(tmp_path, far.url)) as sender:
        outcomes = sender.send(messages(1))
    assert len(far.seen) == 1
    return int(outcomes.codes[0]), outcomes.reasons.get(0, "")


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\ntaken"


@pytest.mark.usefixtures("no_proxy")
def test_a_message_that_may_have_been_taken_is_never_said_to_have_failed(tmp_path: Path) -> None:
    head = WHOLE.index(b"\r\n\r\n") + 4
    for cut in (*range(0, head, 7), head - 1, head, len(WHOLE) - 1, len(WHOLE)):
        code, reason = answered_with(tmp_path, WHOLE[:cut])
        assert code == (DELIVERED if cut >= head else UNKNOWN), (cut, reason)
        assert code == DELIVERED or reason.startswith("no answer (")


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 100\r\n\r\nbroken",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\ntaken\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\r\n" + b"x" * 200_000,
    ],
)
@pytest.mark.usefixtures("no_proxy")
def test_a_status_that_came_whole_counts_whatever_becomes_of_the_body(tmp_path: Path, body: bytes) -> None:
    assert answered_with(tmp_path, b"HTTP/1.1 202 Accepted\r\n" + body)[0] == DELIVERED
    assert answered_with(tmp_path, b"HTTP/1.1 410 Gone\r\n" + body) == (PERMANENT, "HTTP 410")
    assert answered_with(tmp_path, b"HTTP/1.1 503 Busy\r\n" + body) == (TRANSIENT, "HTTP 503")


@pytest.mark.parametrize(
    "answer", [b"garbage\r\n\r\n", b"HTTP/1.1 two hundred\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"]
)
@pytest.mark.usefixtures("no_proxy")
def test_an_answer_that_is_none_is_not_known(tmp_path: Path, answer: bytes) -> None:
    assert answered_with(tmp_path, answer)[0] == UNKNOWN


@pytest.mark.usefixtures("no_proxy")
def test_a_far_side_that_hangs_up_before_the_request_is_whole_has_not_taken_it(tmp_path: Path) -> None:
    def serve(connection: socket.socket, far: Wire) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.ended.wait(0.2)

    # It never greets: the request is never written.
    with wire(serve) as far, closing(webhook(tmp_path, far.url.replace("http", "https"))) as sender:
        outcomes = sender.send(messages(1))
    assert outcomes.codes.tolist() == [TRANSIENT]


@pytest.mark.usefixtures("no_proxy")
def test_concurrency_is_bounded(tmp_path: Path) -> None:
    with receiver() as far, closing(webhook(tmp_path, far.url, "concurrency: 3")) as sender:
        assert sender.most == 24
        sender.send(messages(*range(60)))
    assert far.requests == 60
    assert 1 <= far.busiest <= 3


# ---- smtp


@pytest.fixture
def mailbox() -> Generator[tuple[Mailbox, int]]:
    with mail_server() as served:
        yield served


def smtp(tmp_path: Path, port: int, text: str = "Hello {id} in {segment}", **more: Any) -> Sender:
    options = {
        "connections": "1",
        "server": f"127.0.0.1:{port}",
        "tls": "none",
        "from": "Shop <news@shop.example>",
        "to": "{email}",
        "subject": "For {id}",
        "text": text,
        **more,
    }
    return build(tmp_path, f"{{smtp: {json.dumps(options)}}}")


def test_a_mail_has_its_message_id_and_key(tmp_path: Path, mailbox: tuple[Mailbox, int]) -> None:
    box, port = mailbox
    with closing(smtp(tmp_path, port)) as sender:
        sender.open(RUN)
        for _ in range(2):
            assert sender.send(messages(1)).codes.tolist() == [DELIVERED]
    (to, text), again = box.mails
    assert to == "u1@example.org"
    assert "Message-ID: <r1.1@shop.example>" in text
    assert "X-Capline-Key: sale/r1/1" in text
    assert "Subject: For 1" in text
    assert "Hello 1 in active" in text
    assert "<r1.1@shop.example>" in again[1]


def test_each_mail_has_its_own_outcome(tmp_path: Path, mailbox: tuple[Mailbox, int]) -> None:
    box, port = mailbox
    with closing(smtp(tmp_path, port)) as sender:
        sender.open(RUN)
        emails = ["a@x.org", "gone@x.org", "later@x.org", "", "two@at@x.org", "b@x.org", "c@x.org\nBcc: all@x.org"]
        outcomes = sender.send(messages(*range(7), emails=emails))
    assert outcomes.codes.tolist() == [DELIVERED, PERMANENT, TRANSIENT, PERMANENT, PERMANENT, DELIVERED, PERMANENT]
    assert outcomes.reasons[1] == "SMTP 550"
    assert outcomes.reasons[2] == "SMTP 451"
    assert [to for to, _ in box.mails] == ["a@x.org", "b@x.org"]


def test_a_connection_that_breaks_is_made_again(tmp_path: Path, mailbox: tuple[Mailbox, int]) -> None:
    box, port = mailbox
    with closing(smtp(tmp_path, port, text="{email}")) as sender:
        sender.open(RUN)
        outcomes = sender.send(messages(1, 2, 3, emails=["a@x.org", "hang up <b@x.org>", "c@x.org"]))
        assert outcomes.codes.tolist()[0] == DELIVERED
        assert outcomes.codes.tolist()[1] in (TRANSIENT, UNKNOWN)  # by whether the server's 421 came before it hung up
        outcomes = sender.send(messages(3, emails=["c@x.org"]))
    assert outcomes.codes.tolist() == [DELIVERED]
    assert "c@x.org" in [to for to, _ in box.mails]


SESSION = (b"220 hi\r\n", b"250 hello\r\n", b"250 from\r\n", b"250 to\r\n", b"354 go on\r\n")


def mailed(tmp_path: Path, steps: int, last: bytes) -> tuple[int, str]:
    """What is made of a server that answers so many lines well, then this, and hangs up."""

    def serve(connection: socket.socket, far: Wire) -> None:
        connection.sendall(SESSION[0])
        for answer in (*SESSION[1:steps], last):
            data = b""
            while not data.endswith(b"\r\n.\r\n" if len(far.seen) == len(SESSION) - 1 else b"\r\n"):
                data += connection.recv(65536)
            far.seen.append(data)
            connection.sendall(answer)

    with wire(serve) as far, closing(smtp(tmp_path, far.port)) as sender:
        sender.open(RUN)
        outcomes = sender.send(messages(1))
    return int(outcomes.codes[0]), outcomes.reasons.get(0, "")


@pytest.mark.parametrize("last", [b"", b"2", b"25", b"garbage\r\n", b"250-half\r\n"])
def test_a_mail_whose_last_answer_is_lost_is_not_known(tmp_path: Path, last: bytes) -> None:
    assert mailed(tmp_path, 5, last)[0] == UNKNOWN
    for steps in (2, 3, 4):  # the server cannot have the mail
        assert mailed(tmp_path, steps, last)[0] == TRANSIENT


def test_the_last_answer_of_a_mail_counts_where_it_is_whole(tmp_path: Path) -> None:
    assert mailed(tmp_path, 5, b"250 taken\r\n") == (DELIVERED, "")
    assert mailed(tmp_path, 5, b"251 taken\r\n") == (DELIVERED, "")
    assert mailed(tmp_path, 5, b"451 later\r\n") == (TRANSIENT, "SMTP 451")
    assert mailed(tmp_path, 5, b"554 never\r\n") == (PERMANENT, "SMTP 554")


def test_a_mail_is_sent_again_in_doubt_only_where_that_is_asked_for(tmp_path: Path) -> None:
    with mail_server() as (_, port):
        senders = smtp(tmp_path, port), smtp(tmp_path, port, again=True), build(tmp_path, "{file: out}")
    assert [BuiltSender("", sender, "").asks_again for sender in senders] == [False, True, True]


def test_a_server_that_is_not_there_is_seen_before_anything_is_consumed(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        with pytest.raises(CampaignError, match=r"sender smtp: 127\.0\.0\.1:\d+: no answer \(nothing answers there"):
            smtp(tmp_path, int(taken.getsockname()[1])).open(RUN)


def test_a_place_that_nothing_fills_is_seen_at_once(tmp_path: Path, mailbox: tuple[Mailbox, int]) -> None:
    with pytest.raises(CampaignError, match=r"nothing fills \{email\}; there are: id, key, segment, name"):
        BuiltSender("smtp", smtp(tmp_path, mailbox[1]), "").check(("name",))


def test_a_template() -> None:
    message = messages(1)[0]
    assert Template("{{{id}}} {segment} {email} {key}").fill(message.texts) == "{1} active u1@example.org sale/r1/1"
    for bad in ("{}", "{0}", "{id.x}", "{id[0]}", "{id!r}", "{id:9}", "{", "}"):
        with pytest.raises(CampaignError):
            Template(bad)


# ---- third parties


class Pigeon:
    main = "loft"
    tuning: frozenset[str] = frozenset()
    most = 2

    def __init__(self, options: Any) -> None:
        self.loft = options.text("loft")

    def open(self, run: RunInfo) -> None: ...

    def send(self, messages: Messages) -> Outcomes:
        return Outcomes.delivered(len(messages))

    def close(self) -> None: ...


def test_a_sender_of_another_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = metadata.EntryPoint("pigeon", f"{__name__}:Pigeon", "capline.senders")
    broken = metadata.EntryPoint("broken", "no.such.module:X", "capline.senders")
    ours = metadata.EntryPoint("file", f"{__name__}:Pigeon", "capline.senders")

    def entry_points(**wanted: Any) -> metadata.EntryPoints:
        return metadata.EntryPoints((point, broken, ours)).select(**wanted)

    def load(point: metadata.EntryPoint) -> object:
        return Pigeon if point.value.endswith("Pigeon") else import_module("no_such")

    monkeypatch.setattr("capline.campaign.senders.find.entry_points", entry_points)
    monkeypatch.setattr(metadata.EntryPoint, "load", load)
    assert isinstance(build(tmp_path, "{pigeon: north}"), Pigeon)
    assert not isinstance(build(tmp_path, "{file: out}"), Pigeon)
    with pytest.raises(CampaignError, match="it needs no_such, which is not installed"):
        build(tmp_path, "{broken: {}}")
    with pytest.raises(CampaignError, match="there are: broken, file, kafka, pigeon, redis_streams, smtp, sqs,"):
        build(tmp_path, "{carrier: {}}")


def test_tuning_may_change_between_two_parts_of_a_run_and_nothing_else(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        return load_campaign(Site(tmp_path).write(sender=text)).sender.digest

    first = digest("{webhook: {url: 'http://x/', concurrency: 4}}")
    assert digest("{webhook: {url: 'http://x/', concurrency: 9, timeout: 3}}") == first
    assert digest("{webhook: {url: 'http://y/', concurrency: 4}}") != first
    assert digest("{webhook: {url: 'http://x/', headers: {A: b}}}") != first
