"""Many messages in a request: what is posted, and what is made of the results."""

import json
import os
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.campaign import Site, ledger_of
from tests.kit.wire import Wire, http_wire, read_request, wire
from tests.unit.campaign.test_senders import STATUSES, messages, webhook

from capline.campaign import Stop, report_of, run
from capline.campaign.senders.protocol import DELIVERED, PERMANENT, TRANSIENT, UNKNOWN, Answer
from capline.campaign.senders.webhook_batch import answers_of

KEYS = [f"sale/r1/{number}" for number in range(1, 6)]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def result(key: str, status: int) -> dict[str, Any]:
    return {"key": key, "status": status}


def taking(status: Callable[[str], int], far_keys: list[list[str]]) -> Callable[[socket.socket, Wire], None]:
    """Keeps the connection, and answers each array with a result for each of its messages."""

    def serve(connection: socket.socket, _far: Wire) -> None:
        while request := read_request(connection):
            head, _, body = request.partition(b"\r\n\r\n")
            assert b"idempotency-key" not in head.lower()
            posted = json.loads(body)
            far_keys.append([each["key"] for each in posted])
            answer = json.dumps([result(each["key"], status(each["key"])) for each in reversed(posted)]).encode()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)

    return serve


def test_an_array_is_posted_and_each_message_has_its_own_result(tmp_path: Path) -> None:
    posted: list[list[str]] = []
    said = {"sale/r1/2": 410, "sale/r1/4": 503, "sale/r1/5": 500}
    with (
        wire(taking(lambda key: said.get(key, 202), posted)) as far,
        closing(webhook(tmp_path, far.url, "batch: 3, concurrency: 2")) as sender,
    ):
        assert sender.most == 6
        outcomes = sender.send(messages(*range(1, 8)))
    ends = [DELIVERED, PERMANENT, DELIVERED, TRANSIENT, UNKNOWN, DELIVERED, DELIVERED]
    assert outcomes.codes.tolist() == ends
    assert outcomes.reasons == {1: "HTTP 410", 3: "HTTP 503", 4: "HTTP 500"}
    assert sorted(map(len, posted)) == [1, 3, 3]
    assert sorted(key for keys in posted for key in keys) == [f"sale/r1/{number}" for number in range(1, 8)]


def test_a_message_in_an_array_is_what_it_is_by_itself(tmp_path: Path) -> None:
    bodies: dict[str, Any] = {}
    for more in ("batch: 0", "batch: 2"):
        with (
            http_wire(lambda _request: b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as far,
            closing(webhook(tmp_path, far.url, more)) as sender,
        ):
            sender.send(messages(7))
        bodies[more] = json.loads(far.seen[0].partition(b"\r\n\r\n")[2])
    assert bodies["batch: 2"] == [bodies["batch: 0"]]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the answer is not an array of results"),
        (b"ok", "the answer is not an array of results"),
        (b'{"key": "sale/r1/1", "status": 200}', "the answer is not an array of results"),
        (b'[{"key": "sale/r1/1"}]', "the answer is not an array of results"),
        (b'[{"key": "sale/r1/1", "status": "200"}]', "the answer is not an array of results"),
        (b'[{"key": "sale/r1/1", "status": 200}', "the answer is not an array of results"),
        (b"\xff\xfe", "the answer is not an array of results"),
        (b'[{"more": ' + b"[" * 50_000, "the answer is not an array of results"),
        (b"[]", "no result in the answer"),
        (b'[{"key": "sale/r1/2", "status": 200}]', "no result in the answer"),
        (b'[{"key": "sale/r1/1", "status": 200}, {"key": "sale/r1/1", "status": 410}]', "no result in the answer"),
        (b'[{"key": "sale/r1/1", "status": 0}]', "HTTP 0"),
        (b'[{"key": "sale/r1/1", "status": -200}]', "HTTP -200"),
    ],
)
def test_a_message_without_a_sound_result_is_not_known(body: bytes, reason: str) -> None:
    assert answers_of(Answer(DELIVERED, body=body), KEYS[:1]) == {0: Answer(UNKNOWN, reason)}


def test_a_result_that_is_said_twice_counts_and_what_nobody_asked_for_does_not() -> None:
    body = json.dumps([result(KEYS[0], 200), result("other", 410), result(KEYS[0], 200), result(KEYS[1], 410)]).encode()
    answers = answers_of(Answer(DELIVERED, body=body), KEYS[:2])
    assert {row: answer.code for row, answer in answers.items()} == {1: PERMANENT}


def test_results_that_break_off_or_never_end_are_not_known(tmp_path: Path) -> None:
    whole = json.dumps([result(f"sale/r1/{number}", 200) for number in (1, 2)]).encode()
    answers = [
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(whole) + whole[:-1],
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b" " * 1_000_000,
        b"HTTP/1.1 200 OK\r\n\r\n" + whole[:-1],
    ]
    for answer in answers:
        with (
            http_wire(lambda _request, answer=answer: answer) as far,
            closing(webhook(tmp_path, far.url, "batch: 10")) as sender,
        ):
            assert sender.send(messages(1, 2)).codes.tolist() == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("status", [status for status in STATUSES if status >= 300])
def test_a_status_that_is_no_success_holds_for_all(status: int) -> None:
    said = Answer(STATUSES[status], f"HTTP {status}", 3.0, b"[]")
    assert answers_of(said, KEYS) == dict.fromkeys(range(5), said)


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([200, 202, 410, 503, 500])), max_size=8))
def test_every_message_has_one_answer_and_is_sent_only_where_its_results_agree(said: list[tuple[str, int]]) -> None:
    body = json.dumps([result(key, status) for key, status in said]).encode()
    answers = answers_of(Answer(DELIVERED, body=body), KEYS)
    for row, key in enumerate(KEYS):
        code = answers[row].code if row in answers else DELIVERED
        mine = {status for of, status in said if of == key}
        assert (code == DELIVERED) == (len(mine) == 1 and mine <= {200, 202})
        assert (code == UNKNOWN) == (len(mine) != 1 or mine == {500})


def test_a_campaign_posts_arrays_and_asks_again_by_key(tmp_path: Path) -> None:
    posted: list[list[str]] = []
    taken: set[str] = set()

    def status(key: str) -> int:
        """Takes a message at the first time and loses the answer of every third."""
        is_new = key not in taken
        taken.add(key)
        return 500 if is_new and int(key.rsplit("/", 1)[1]) % 3 == 0 else 200

    site = Site(tmp_path)
    with wire(taking(status, posted)) as far:
        job = site.job(sender=f"{{webhook: {{url: '{far.url}', batch: 25, concurrency: 2}}}}", batch="100")
        stop = Stop()
        with job.open_limiter("memory://") as limiter, ledger_of(job, tmp_path / "run") as ledger:
            run(job, limiter, ledger, stop, pause=lambda _s: None)
            report = report_of(ledger)
        stop.close()
    assert (report.total.sent, report.total.not_known, len(taken)) == (400, 0, 400)
    assert sum(map(len, posted)) == 400 + 134
