"""What a webhook's options promise: a limit on a request as a whole, nothing carried from one recipient to the next."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.kit.campaign import receiver
from tests.kit.wire import Wire, http_wire, read_request, wire
from tests.unit.campaign.test_senders import messages, webhook

from capline.campaign.senders.protocol import DELIVERED, PERMANENT, UNKNOWN


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("at_once", "code"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Padding: ", UNKNOWN),
        (b"HTTP/1.1 200 OK\r\n\r\n", DELIVERED),
        pytest.param(b"HTTP/1.1 410 Gone\r\n\r\n", PERMANENT, marks=pytest.mark.deep),
    ],
)
def test_a_far_side_that_trickles_is_left_at_the_timeout(tmp_path: Path, at_once: bytes, code: int) -> None:
    """Each byte comes in time, and all of them would take ten minutes."""

    def serve(connection: socket.socket, far: Wire) -> None:
        if read_request(connection):
            connection.sendall(at_once)
            for _ in range(6000):
                if far.ended.wait(0.1):
                    break
                connection.sendall(b"x")

    with wire(serve) as far:
        with closing(webhook(tmp_path, far.url, "timeout: 1")) as sender:
            began = time.monotonic()
            outcomes = sender.send(messages(1))
        took_s = time.monotonic() - began
    assert outcomes.codes.tolist() == [code]
    assert outcomes.reasons.get(0, "") == {UNKNOWN: "no answer (timeout)", PERMANENT: "HTTP 410"}.get(code, "")
    assert took_s < 60


def cookies_of(requests: Iterator[bytes]) -> list[bytes]:
    return [line for request in requests for line in request.split(b"\r\n") if line.lower().startswith(b"cookie:")]


def test_no_cookie_of_one_recipient_goes_out_with_the_next(tmp_path: Path) -> None:
    answer = (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nSet-Cookie: session=of-the-first; Path=/\r\nContent-Length: 0\r\n\r\n"
    )
    with http_wire(lambda _request: answer) as far, closing(webhook(tmp_path, far.url, "concurrency: 1")) as sender:
        for number in range(3):
            sender.send(messages(number, number + 10, batch=number))
    assert len(far.seen) == 6
    assert cookies_of(iter(far.seen)) == []


def test_a_connection_is_kept_from_one_hand_over_to_the_next(tmp_path: Path) -> None:
    connections: list[int] = []

    def serve(connection: socket.socket, far: Wire) -> None:
        connections.append(1)
        while request := read_request(connection):
            far.seen.append(request)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with wire(serve) as far, closing(webhook(tmp_path, far.url, "concurrency: 1")) as sender:
        for number in range(3):
            sender.send(messages(number, number + 10))
    assert (len(far.seen), len(connections)) == (6, 1)


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with (
        receiver() as elsewhere,
        receiver(lambda _id, _tries: 307, headers={"Location": elsewhere.url}) as far,
        closing(webhook(tmp_path, far.url)) as sender,
    ):
        assert sender.send(messages(1)).codes.tolist() == [PERMANENT]
    assert elsewhere.requests == 0
