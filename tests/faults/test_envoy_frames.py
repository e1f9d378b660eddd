"""Clients of the gRPC server that break HTTP/2, or flood it: each is dropped, and everybody else is answered."""

import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.kit.envoy import OK, descriptor, grpc
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving

from capline.service.envoy.messages import SERVICE, rls

pytestmark = pytest.mark.deep

FILE = "domain: edge\ndescriptors: [{key: path, rate_limit: {unit: day, requests_per_unit: 1000000}}]"
MOST_BYTES = 200 << 20
"""More than this the process may not grow by, however many of them come."""
FLOOD = 20_000

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def number(value: int, prefix_bits: int) -> bytes:
    """An integer as HPACK writes it."""
    most = (1 << prefix_bits) - 1
    if value < most:
        return bytes([value])
    rest, found = value - most, bytearray([most])
    while rest >= 128:
        found.append(rest % 128 | 128)
        rest //= 128
    return bytes([*found, rest])


def field(name: str, value: str) -> bytes:
    """A header field, literal and not indexed."""
    return b"\0" + number(len(name), 7) + name.encode() + number(len(value), 7) + value.encode()


CALL = b"".join(
    field(name, value)
    for name, value in {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/{SERVICE}/ShouldRateLimit",
        ":authority": "x",
        "content-type": "application/grpc",
        "te": "trailers",
    }.items()
)
ASKED = rls.RateLimitRequest(domain="edge", descriptors=[descriptor("path=/a")]).SerializeToString()
BEGUN = PREFACE + frame(SETTINGS, 0, 0)


def message(data: bytes, *, compressed: int = 0, size: int | None = None) -> bytes:
    """As gRPC puts one into DATA."""
    return struct.pack(">BI", compressed, len(data) if size is None else size) + data


def call(stream: int, data: bytes, head: bytes = CALL) -> bytes:
    """A whole call."""
    return frame(HEADERS, END_HEADERS, stream, head) + frame(DATA, END_STREAM, stream, data)


def streams(count: int) -> range:
    return range(1, 2 * count, 2)


ODD: dict[str, bytes] = {
    "nothing": b"",
    "an older HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "half a preface": PREFACE[:10],
    "noise": os.urandom(1 << 16),
    "a preface and noise": PREFACE + os.urandom(1 << 16),
    "a preface, and HEADERS for SETTINGS": PREFACE + frame(HEADERS, END_HEADERS, 1, CALL),
    "a frame of 16 MiB": BEGUN + b"\xff\xff\xff" + struct.pack(">BBI", DATA, 0, 1) + bytes(1 << 20),
    "frames of no known kind": BEGUN + frame(200, 255, 1, b"x" * 100) * FLOOD,
    "settings without end": BEGUN + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)) * FLOOD,
    "settings of a wrong size": BEGUN + frame(SETTINGS, 0, 0, b"xyz"),
    "settings that are no good": BEGUN + frame(SETTINGS, 0, 0, struct.pack(">HIHIHI", 4, 1 << 31, 5, 1, 2, 7)),
    "pings without end": BEGUN + frame(PING, 0, 0, b"12345678") * FLOOD,
    "a ping of a wrong size": BEGUN + frame(PING, 0, 0, b"123"),
    "HEADERS on stream 0": BEGUN + frame(HEADERS, END_HEADERS, 0, CALL),
    "HEADERS on an even stream": BEGUN + frame(HEADERS, END_HEADERS, 2, CALL),
    "DATA before HEADERS": BEGUN + frame(DATA, END_STREAM, 1, message(ASKED)),
    "CONTINUATION of nothing": BEGUN + frame(CONTINUATION, END_HEADERS, 1, CALL),
    "HEADERS without end": BEGUN
    + frame(HEADERS, 0, 1, CALL)
    + frame(CONTINUATION, 0, 1, field("x", "y" * 8000)) * 2000,
    "empty CONTINUATIONs": BEGUN + frame(HEADERS, 0, 1, CALL) + frame(CONTINUATION, 0, 1) * FLOOD,
    "HEADERS cut off by another frame": BEGUN + frame(HEADERS, 0, 1, CALL) + frame(PING, 0, 0, b"12345678"),
    "a header of 1 MiB": BEGUN
    + frame(HEADERS, 0, 1, CALL + b"\0\1x" + number(1 << 20, 7))
    + frame(CONTINUATION, 0, 1, b"y" * 16384) * 64
    + frame(CONTINUATION, END_HEADERS, 1),
    "ten thousand headers": BEGUN
    + frame(HEADERS, 0, 1, CALL)
    + frame(CONTINUATION, 0, 1, field("x", "y") * 3000) * 4
    + frame(CONTINUATION, END_HEADERS, 1)
    + frame(DATA, END_STREAM, 1, message(ASKED)),
    "a header table used again and again": BEGUN
    + frame(HEADERS, END_HEADERS, 1, CALL + b"\x40\1x" + number(4000, 7) + b"y" * 4000 + b"\xbe" * 10_000),
    "no header field": BEGUN + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"),
    "no path": BEGUN + call(1, message(ASKED), field(":method", "POST")),
    "another method": BEGUN + call(1, message(ASKED), CALL.replace(b"ShouldRateLimit", b"ShouldRateLimiu")),
    "a window of 0 more": BEGUN + frame(HEADERS, END_HEADERS, 1, CALL) + frame(WINDOW, 0, 1, bytes(4)),
    "a window past its end": BEGUN + frame(WINDOW, 0, 0, struct.pack(">I", (1 << 31) - 1)) * 2,
    "a push": BEGUN + frame(PUSH, END_HEADERS, 1, struct.pack(">I", 2) + CALL),
    "RST of what is not there": BEGUN + frame(RESET, 0, 99, struct.pack(">I", 8)),
    "rapid resets": BEGUN
    + b"".join(
        frame(HEADERS, END_HEADERS, stream, CALL) + frame(RESET, 0, stream, struct.pack(">I", 8))
        for stream in streams(FLOOD)
    ),
    "calls that are reset": BEGUN
    + b"".join(call(stream, message(ASKED)) + frame(RESET, 0, stream, bytes(4)) for stream in streams(FLOOD)),
    "half-open streams": BEGUN + b"".join(frame(HEADERS, END_HEADERS, stream, CALL) for stream in streams(FLOOD)),
    "half a message": BEGUN + call(1, message(ASKED)[:-3]),
    "a message of 4 GiB": BEGUN + call(1, message(ASKED, size=(1 << 32) - 1)),
    "a message too many": BEGUN + call(1, message(ASKED) * 2),
    "a message past the bound": BEGUN + call(1, message(bytes(1000), size=(1 << 20) + 1)),
    "compressed by nothing that is named": BEGUN + call(1, message(ASKED, compressed=1)),
    "noise for a message": BEGUN + b"".join(call(stream, message(b"\xff" * 30)) for stream in streams(100)),
    "a call after GOAWAY": BEGUN + frame(GOAWAY, 0, 0, bytes(8)) + call(1, message(ASKED)),
    "a timeout that is none": BEGUN + call(1, message(ASKED), CALL + field("grpc-timeout", "soon")),
    "a timeout that is over": BEGUN + call(1, message(ASKED), CALL + field("grpc-timeout", "1n")),
}


class Asked:
    """The service, and how it is: its port, an ordinary client, its memory."""

    def __init__(self, service: Serving, port: int) -> None:
        self.port, self._pid = port, service.process.pid
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._method = self.channel.unary_unary(
            f"/{SERVICE}/ShouldRateLimit", response_deserializer=rls.RateLimitResponse.FromString
        )

    def answers(self) -> bool:
        return self._method(ASKED, timeout=WITHIN_S).overall_code == OK

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self._pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE")

    def files(self) -> int:
        return len(list(Path(f"/proc/{self._pid}/fd").iterdir()))

    def send(self, data: bytes) -> None:
        """All of it, or as much as it takes; then what it says is read until it closes, or says no more."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=WITHIN_S) as client:
            client.settimeout(0.3)
            try:
                while data:
                    data = data[client.send(data[: 1 << 16]) :]
                    _read(client)
            except OSError:
                return
            client.settimeout(0.2)
            while True:
                try:
                    if not client.recv(1 << 16):
                        return
                except OSError:
                    return


def _read(client: socket.socket) -> None:
    """What is there now."""
    try:
        while client.recv(1 << 16, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    folder = tmp_path_factory.mktemp("envoy")
    (folder / "policies.yaml").write_text("policies: {api: {limits: [3/hour]}}", encoding="utf-8")
    (folder / "edge.yaml").write_text(FILE, encoding="utf-8")
    with Serving(folder, "--store", "memory://", "--grpc", "127.0.0.1:0", "--envoy", "edge.yaml") as service:
        assert soon(lambda: any("by gRPC at port" in line for line in service.said), WITHIN_S)
        port = next(int(found[1]) for line in service.said if (found := re.search("gRPC at port ([0-9]+)", line)))
        client = Asked(service, port)
        with client.channel:
            yield client
        assert not [line for line in service.said if "Traceback" in line]
        assert service.stop() == 0


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_client_that_breaks_the_protocol_ends_nothing_but_itself(asked: Asked, odd: bytes) -> None:
    assert asked.answers()
    before = asked.rss_bytes()
    asked.send(odd)
    assert asked.answers()
    assert asked.rss_bytes() - before < MOST_BYTES


@pytest.mark.parametrize("begun", [b"", PREFACE[:10], BEGUN, BEGUN + frame(HEADERS, END_HEADERS, 1, CALL)])
def test_connections_that_say_no_more_leave_room_for_others(asked: Asked, begun: bytes) -> None:
    files = asked.files()
    with ExitStack() as stack:
        for _ in range(300):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", asked.port), timeout=WITHIN_S))
            client.sendall(begun)
        assert asked.answers()
        assert soon(lambda: asked.files() >= files + 300, WITHIN_S)
    assert soon(lambda: asked.files() <= files + 5, WITHIN_S)
    assert asked.answers()


def test_a_call_that_is_whole_is_answered_on_such_a_connection(asked: Asked) -> None:
    """So that the frames above are what they are meant to be."""
    with socket.create_connection(("127.0.0.1", asked.port), timeout=WITHIN_S) as client:
        client.sendall(BEGUN + call(1, message(ASKED)))
        said, deadline = b"", time.monotonic() + WITHIN_S
        while b"grpc-status" not in said and time.monotonic() < deadline:
            said += client.recv(1 << 16)
    assert re.search(rb"\0\0\0\0.\x08\x01\x12", said, re.DOTALL)  # a message: OK, and a status
