"""What a webhook's options promise: a limit on a request as a whole, nothing carried from one recipient to the next."""

import base64
import gzip
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trustme
from tests.kit.campaign import receiver
from tests.kit.wire import Wire, http_wire, read_request, wire
from tests.unit.campaign.test_senders import messages, webhook

from capline.campaign.senders.protocol import DELIVERED, PERMANENT, TRANSIENT, UNKNOWN
from capline.model.errors import CampaignError


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


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "a header": (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 1000, UNKNOWN),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 100, UNKNOWN),
    "words of patience": (b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 100, UNKNOWN),
    "a body": (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 1000, DELIVERED),
    "chunks": (CHUNKED, b"1\r\nx\r\n" * 100, DELIVERED),
    "an extension": (CHUNKED + b"1;", b"x" * 1000, DELIVERED),
    "trailers": (CHUNKED + b"0\r\n", b"X: y\r\n" * 100, DELIVERED),
    "a trailer": (CHUNKED + b"0\r\nX: ", b"x" * 1000, DELIVERED),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_an_answer_without_end_is_left_after_some_of_it(tmp_path: Path, what: str) -> None:
    begins, goes_on, code = ENDLESS[what]
    sent: list[int] = []

    def serve(connection: socket.socket, far: Wire) -> None:
        read_request(connection)
        connection.sendall(begins)
        while sum(sent) < 100_000_000 and not far.ended.is_set():
            connection.sendall(goes_on * 100)
            sent.append(len(goes_on) * 100)

    with wire(serve) as far, closing(webhook(tmp_path, far.url, "timeout: 20")) as sender:
        assert sender.send(messages(1)).codes.tolist() == [code]
        assert sum(sent) < 50_000_000  # most of it in the buffers of sockets


def test_an_answer_in_another_protocol_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\nother"
    with http_wire(lambda _request: answer) as far, closing(webhook(tmp_path, far.url)) as sender:
        outcomes = sender.send(messages(1))
    assert (outcomes.codes.tolist(), outcomes.reasons) == ([UNKNOWN], {0: "no answer (not HTTP)"})
    assert not caplog.records


def test_results_in_gzip_are_not_known_and_a_certificate_of_nobody_is_a_receiver_that_is_away(tmp_path: Path) -> None:
    """It was asked not to compress; an answer that says so all the same is put again, by its key."""
    body = gzip.compress(json.dumps([{"key": "sale/r1/1", "status": 200}]).encode())
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with http_wire(lambda _request: answer) as far:
        for more, code in (("batch: 5", UNKNOWN), ("batch: 0", DELIVERED)):
            with closing(webhook(tmp_path, far.url, more)) as sender:
                assert sender.send(messages(1)).codes.tolist() == [code]
    assert b"accept-encoding: identity" in far.seen[0].lower()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    def serve(connection: socket.socket, _far: Wire) -> None:
        context.wrap_socket(connection, server_side=True)

    with wire(serve) as far, closing(webhook(tmp_path, far.url.replace("http:", "https:"))) as sender:
        outcomes = sender.send(messages(1))
    assert outcomes.codes.tolist() == [TRANSIENT]
    assert outcomes.reasons[0].startswith("no answer (its certificate is not accepted (")


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


def test_what_comes_between_two_answers_is_no_answer(tmp_path: Path) -> None:
    """A server that gives up an idle connection says 408 there, or anything."""
    stray = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    def serve(connection: socket.socket, far: Wire) -> None:
        while request := read_request(connection):
            far.seen.append(request)
            connection.sendall(b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n" + stray)

    with wire(serve) as far, closing(webhook(tmp_path, far.url, "concurrency: 1")) as sender:
        for number in range(3):
            assert sender.send(messages(number, number + 10)).codes.tolist() == [PERMANENT, PERMANENT]
    assert len(far.seen) == 6


def test_what_comes_while_nothing_is_asked_is_no_answer(tmp_path: Path) -> None:
    said, asked = threading.Event(), threading.Event()

    def serve(connection: socket.socket, far: Wire) -> None:
        while request := read_request(connection):
            far.seen.append(request)
            connection.sendall(b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n")
            if asked.wait(60) and len(far.seen) == 1:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                said.set()

    with wire(serve) as far, closing(webhook(tmp_path, far.url, "concurrency: 1")) as sender:
        for number in range(2):
            assert sender.send(messages(number)).codes.tolist() == [PERMANENT]
            asked.set()
            assert said.wait(60)
    assert len(far.seen) == 2


def test_an_answer_in_chunks_after_a_word_of_patience_keeps_its_connection(tmp_path: Path) -> None:
    connections: list[int] = []
    answer = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

    def serve(connection: socket.socket, far: Wire) -> None:
        connections.append(1)
        while request := read_request(connection):
            far.seen.append(request)
            result = json.dumps(
                [{"key": each["key"], "status": 200} for each in json.loads(request.split(b"\r\n\r\n")[1])]
            )
            for piece in (answer, b"5\r\n", f"{result[:5]}\r\n".encode(), f"{len(result) - 5:x};a=b\r\n".encode()):
                connection.sendall(piece)
            connection.sendall(f"{result[5:]}\r\n0\r\nTrailer: x\r\n\r\n".encode())

    with wire(serve) as far, closing(webhook(tmp_path, far.url, "concurrency: 1, batch: 2")) as sender:
        assert sender.send(messages(1, 2, 3, 4)).codes.tolist() == [DELIVERED] * 4
    assert (len(far.seen), len(connections)) == (2, 1)


def test_a_proxy_of_the_environment_is_asked_for_the_whole_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with http_wire(lambda _request: b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as far:
        monkeypatch.setenv("http_proxy", f"127.0.0.1:{far.port}".replace("127", "ann:s%20cret@127"))
        with closing(webhook(tmp_path, "http://bob:pass@shop.example:81/push?to=all")) as sender:
            assert sender.send(messages(1)).codes.tolist() == [DELIVERED]
    head = far.seen[0].partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert head[0] == b"POST http://shop.example:81/push?to=all HTTP/1.1"
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"ann:s cret") in head
    assert b"Authorization: Basic " + base64.b64encode(b"bob:pass") in head


@pytest.mark.parametrize("is_let_through", [True, False])
def test_a_proxy_makes_a_tunnel_for_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_let_through: bool) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("shop.example").configure_cert(context)

    def serve(connection: socket.socket, far: Wire) -> None:
        far.seen.append(read_request(connection))
        if not is_let_through:
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with context.wrap_socket(connection, server_side=True) as secured:
            while request := read_request(secured):
                far.seen.append(request)
                secured.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with wire(serve) as far:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{far.port}")
        with closing(webhook(tmp_path, "https://shop.example/push", "concurrency: 1")) as sender:
            codes = sender.send(messages(1, 2)).codes.tolist()
    assert far.seen[0].startswith(b"CONNECT shop.example:443 HTTP/1.1\r\n")
    assert (codes, len(far.seen)) == (([DELIVERED] * 2, 3) if is_let_through else ([TRANSIENT] * 2, 2))


def test_a_proxy_of_another_kind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(CampaignError, match=r"names a socks5:// proxy for shop\.example; it can be http://"):
        webhook(tmp_path, "https://shop.example/push")
    monkeypatch.setenv("no_proxy", "shop.example")
    webhook(tmp_path, "https://shop.example/push").close()


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with (
        receiver() as elsewhere,
        receiver(lambda _id, _tries: 307, headers={"Location": elsewhere.url}) as far,
        closing(webhook(tmp_path, far.url)) as sender,
    ):
        assert sender.send(messages(1)).codes.tolist() == [PERMANENT]
    assert elsewhere.requests == 0
