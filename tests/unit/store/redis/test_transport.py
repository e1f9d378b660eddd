"""The two transports, on a server that answers as a test wants: who gets which reply, and where a connection goes."""

from __future__ import annotations

import asyncio
import re
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.wire import Wire, wire

from capline.store.redis.io.aio import AsyncTransport
from capline.store.redis.io.sync import Transport
from capline.store.redis.io.url import parse_url
from capline.store.redis.io.wire import Exchange, NoReply, Request, ServerError, Write, bulk, pack

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from capline.store.redis.io.wire import Steps

HANGS_S = 20.0
"""So long a server that hangs does so; deadlines here are a hundredth of that."""
ANSWERS: list[tuple[list[bytes], Any]] = [
    ([b"$5", b"\r\nhe", b"llo\r", b"\n"], b"hello"),
    ([b"$2\r\n\r\n\r\n"], b"\r\n"),
    ([b":-", b"7\r\n"], -7),
    ([b"-NOSCRIPT No matching", b" script.\r\n"], ServerError("NOSCRIPT", "NOSCRIPT No matching script.")),
    ([b"-ERR a: b\r\n"], ServerError("ERR", "ERR a: b")),
    ([b"$2\r\nno", b"\r\n+more\r\n"], b"no"),
    ([b"$-", b"1\r\n"], None),
]
"""The bytes of a reply as they come in, and the reply."""


def serve(connection: socket.socket, far: Wire) -> None:
    """Echo; `hang` is answered late, or with the next command; `twice` has an answer too many."""
    late = b""
    while data := connection.recv(65536):
        for word in re.findall(rb"\$\d+\r\n(INFO|CONFIG|hang|hang on|twice|early|say \w+|sent \d)\r\n", data):
            far.seen.append(word)
            if word == b"INFO":
                connection.sendall(bulk(b""))
            elif word == b"CONFIG":
                connection.sendall(b"*0\r\n")
            elif word == b"hang":
                late += bulk(b"late")
            elif word[:4] == b"sent":
                for part in ANSWERS[int(word[5:])][0]:
                    connection.sendall(part)
                    time.sleep(0.01)  # so that each is read by itself
            elif word == b"early":
                connection.sendall(b"-ERR Protocol error: unauthenticated multibulk length\r\n")
            elif word == b"hang on":
                far.ended.wait(HANGS_S)
                connection.sendall(bulk(b"late"))
            else:
                connection.sendall(late + bulk(word) * (1 + (word == b"twice")))
                late = b""


class Client:
    """A transport of either kind, to the far side; each call is a verb."""

    def __init__(self, far: Wire, *, asynchronous: bool) -> None:
        settings = parse_url(f"redis://127.0.0.1:{far.port}/0?deadline=200ms")
        self.node = settings.seeds[0]
        self.transport = AsyncTransport(settings) if asynchronous else Transport(settings)
        self._loop = asyncio.Runner()

    def drive(self, steps: Steps[Any]) -> Any:
        if isinstance(self.transport, Transport):
            return self.transport.drive(steps)
        return self._loop.run(self.transport.drive(steps))

    def say(self, word: bytes, seconds: float = HANGS_S) -> Any:
        def verb() -> Steps[Any]:
            [[reply]] = yield Exchange([self.request(word)], time.monotonic() + seconds)
            return reply

        return self.drive(verb())

    def request(self, word: bytes) -> Request:
        return Request(self.node, pack(b"ECHO", word), 1)

    @property
    def idle(self) -> int:
        return sum(map(len, self.transport._idle.values()))  # pyright: ignore[reportPrivateUsage]

    def close(self) -> None:
        if isinstance(self.transport, Transport):
            self.transport.close()
        else:
            self._loop.run(self.transport.close())
        self._loop.close()


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with wire(serve) as far:
        made = Client(far, asynchronous=request.param)
        yield made
        made.close()


def test_a_connection_is_used_again(client: Client) -> None:
    assert [client.say(b"say one"), client.say(b"say two")] == [b"say one", b"say two"]
    assert client.idle == 1


def test_a_verb_that_ends_before_its_replies_leaves_no_connection(client: Client) -> None:
    def verb() -> Steps[None]:
        yield Write([client.request(b"hang")], time.monotonic() + HANGS_S)

    client.drive(verb())
    assert client.idle == 0
    assert client.say(b"say mine") == b"say mine"


def test_after_a_timeout_the_connection_is_gone(client: Client) -> None:
    if isinstance(client.transport, Transport):
        lost = client.transport.ask(client.node, client.request(b"hang").payload)
    else:
        lost = client.say(b"hang", 0.2)
    assert isinstance(lost, NoReply)
    assert lost.sent
    assert client.idle == 0
    assert client.say(b"say mine") == b"say mine"


def test_a_connection_that_its_server_closes_is_gone_before_it_is_closed(client: Client) -> None:
    early = client.request(b"early")

    def ask() -> Any:
        if isinstance(client.transport, Transport):
            return client.transport.ask(client.node, early.payload)
        return client._loop.run(client.transport.ask(client.node, early.payload))  # pyright: ignore[reportPrivateUsage]

    for say in (lambda: client.say(b"early"), ask):
        assert client.say(b"say one") == b"say one"
        reply = say()
        assert isinstance(reply, ServerError)
        assert (reply.code, client.idle) == ("NOAUTH", 0)


def test_a_reply_that_nobody_asked_for_is_nobodys_answer(client: Client) -> None:
    assert client.say(b"twice") == b"twice"
    assert client.say(b"say mine") == b"say mine"


def test_a_reply_is_read_however_it_comes() -> None:
    """The first call of a connection by redis-py, those that follow without; between them a verb by redis-py again."""
    with wire(serve) as far:
        client = Client(far, asynchronous=False)
        assert isinstance(client.transport, Transport)
        for verb in (False, True):
            for number, (_, reply) in enumerate(ANSWERS):
                assert client.transport.ask(client.node, client.request(b"sent %d" % number).payload) == reply
                if verb:
                    assert client.say(b"say mine") == b"say mine"
        assert client.transport.ask(client.node, pack(b"ECHO", b"say mine", b"x" * 1_000_000)) == b"say mine"
        client.close()


def test_a_read_ends_by_the_deadline_of_its_verb(client: Client) -> None:
    assert isinstance(client.say(b"hang on", 0.2), NoReply)
    assert client.idle == 0


def test_what_a_connection_took_is_taken_off_the_time_for_its_first_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but a tenth of a second of the deadline goes by until there is a connection."""
    gone_s = 0.0
    connected = Transport._connect  # pyright: ignore[reportPrivateUsage] - what takes long

    def connect(self: Transport, node: Any, until: float) -> Any:
        nonlocal gone_s
        connection = connected(self, node, until)
        gone_s = 59.9
        return connection

    monkeypatch.setattr(Transport, "_connect", connect)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + gone_s, sleep=time.sleep)
    monkeypatch.setattr("capline.store.redis.io.sync.time", clock)
    with wire(serve) as far:
        settings = parse_url(f"redis://127.0.0.1:{far.port}/0?deadline=60s")
        transport, start = Transport(settings), time.monotonic()
        lost = transport.ask(settings.seeds[0], pack(b"ECHO", b"hang on"))
        assert time.monotonic() - start < HANGS_S / 2
        transport.close()
    assert lost == NoReply(True, "no answer by the deadline")
