"""One connection: uvicorn's HTTP/1.1 protocol, with bounds that it does not have, and a shorter way to an answer.

    a head that is larger than `header_bytes`, or does not come within `header_within`     431, or the end
    trailers, or what is said of one chunk, that are larger than `header_bytes`            431
    more connections than `connections`                                                    closed at once

The rule: a client that sends nothing, or sends slowly, holds a connection for a bounded time. All connections are
checked once a second, so that no request needs a timer.

**Directly.** A decision takes two microseconds, the scope, task and cycle that ASGI makes for a request ten. So a POST
to one of `App.direct` whose head and body arrive in one read, on an idle connection, is answered by the connection
itself: it asks `App.answer`, as ASGI's side of `App` does, and writes the same bytes. Any other request is handed to
uvicorn, as if it came only then.

**Heads seen before.** A client's heads are the same bytes each time, but for the length of the body. So the parse of a
head that was answered directly is cached by its bytes: the parse alone, never who asks or what they may. If a later
head is one of these and exactly its body follows, it is not parsed again. That holds only where a request begins and
the parser has read nothing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from time import perf_counter
from types import coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from capline.service.http.app import Request, log

if TYPE_CHECKING:
    from capline.service.http.app import App, Reply
    from capline.service.settings.values import Bounds

    _Answer = tuple[Reply, bytes]

_HEAD_END = b"\r\n\r\n"
_HEADS, _HEAD_BYTES = 1024, 1024
"""The most heads in the cache, which is then cleared, and the longest one."""
_FIELD = b": \r\n"
"""What a field has beside its name and value."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Head(NamedTuple):
    """A head that was seen before, parsed; and the length of the body that follows it."""

    url: bytes
    headers: list[tuple[bytes, bytes]]
    body_bytes: int


class Connection(HttpToolsProtocol):
    """A connection to `service`; `waits` says that its store is on a server, so that every answer is awaited."""

    bounds: Bounds
    service: App
    waits: bool
    heads: dict[bytes, Head]
    """The heads seen before, on any connection of this listener."""
    head_since: float | None = None
    """When the head began that has not ended; else None."""
    idle_since: float | None = None
    """When the last request was answered directly, if nothing came since."""
    _in_head = True
    _head_bytes = 0
    """What was read since the head began or a piece of the body came: the parser holds it until it makes sense."""
    _field_bytes = 0
    """The fields of a head, or of trailers, that have come whole: several can be in one read with what they follow."""
    _default: tuple[list[tuple[bytes, bytes]], bytes] = [], b""
    """uvicorn's headers of every answer, which it makes anew each second, and their bytes."""
    _held: list[bytes] | None = None
    """The pieces of the body of a request that may be answered directly; else None."""
    _at_start = False
    """Whether the parser is where a request begins: all that it has read was answered directly."""
    _received = b""
    """The data being read, if it began with a request; else b""."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A client came."""
        super().connection_made(transport)
        self.head_since = self.loop.time()
        self._at_start = True
        if len(self.connections) > self.bounds.connections:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self.idle_since = None
        if self._at_start:
            end = data.find(_HEAD_END) + len(_HEAD_END)
            head = self.heads.get(data[:end])
            if head is not None and len(data) == end + head.body_bytes and self._is_idle():
                self.head_since, self._head_bytes, self._in_head = None, 0, False
                self.url, self.headers, _ = head
                self._answer(data[end:])
                return
            self._received = data
        self._head_bytes += len(data)
        super().data_received(data)
        self._received = b""
        if self._held is not None:
            self._leave_to_uvicorn()
        if self._in_head and self.head_since is None:
            self.head_since = self.loop.time()
        if self._head_bytes > self.bounds.header_bytes:
            self._end_too_large()

    def send_400_response(self, msg: str) -> None:
        """The parser stopped: the bytes are not HTTP, or a bound is reached."""
        if self._field_bytes > self.bounds.header_bytes:
            self._end_too_large()
        elif not self.transport.is_closing():
            super().send_400_response(msg)

    def on_url(self, url: bytes) -> None:
        """A piece of the target came."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of a head came, or of trailers, which nobody reads."""
        self._count(len(name) + len(value) + len(_FIELD))
        if self._in_head:
            super().on_header(name, value)

    def on_message_begin(self) -> None:
        """A head begins. uvicorn hears of it when it has ended."""
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._in_head, self._at_start, self._field_bytes = True, False, 0

    def on_headers_complete(self) -> None:
        """A head has ended."""
        self.head_since, self._head_bytes, self._in_head, self._field_bytes = None, 0, False, 0
        if self.transport.is_closing() or (self.url in self.service.direct and self._is_plain()):
            self._held = []
        else:
            self._tell_uvicorn()

    def on_body(self, body: bytes) -> None:
        """A piece of a body came."""
        self._head_bytes = 0
        if self._held is None:
            super().on_body(body)
        else:
            self._held.append(body)

    def on_message_complete(self) -> None:
        """A request has ended."""
        self._head_bytes = 0
        if self._held is None:
            super().on_message_complete()
            return
        body, self._held = b"".join(self._held), None
        if not self.transport.is_closing():  # else it came behind the last one that is answered
            self._at_start = True
            self._keep_head(len(body))
            self._answer(body)

    def end_if_slow(self, now: float) -> None:
        """End the connection where its head began too long ago, or where nothing came after an answer."""
        if self.head_since is not None and self.head_since < now - self.bounds.header_within:
            self.transport.abort()
        elif self.idle_since is not None and self.idle_since < now - self.timeout_keep_alive:
            self.transport.close()

    def _count(self, size_bytes: int) -> None:
        self._field_bytes += size_bytes
        if self._field_bytes > self.bounds.header_bytes:
            raise ValueError  # which stops the parser

    def _end_too_large(self) -> None:
        if self.transport.is_closing():
            return
        if not getattr(self.cycle, "response_started", False) or self.cycle.response_complete:
            self.transport.write(_TOO_LARGE)
        self.transport.close()

    def _is_plain(self) -> bool:
        """Whether a request may be answered directly, for all that its head says and the connection has under way."""
        parser: Any = self.parser
        return (
            parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and not self.expect_100_continue
            and self._is_idle()
        )

    def _is_idle(self) -> bool:
        """Whether the connection has nothing under way, and may go on."""
        under_way: Any = self.cycle
        return (
            (under_way is None or under_way.response_complete)
            and not self.pipeline
            and not self.flow.write_paused
            and not self.transport.is_closing()
        )

    def _keep_head(self, body_bytes: int) -> None:
        """Keep the head of a request that is answered directly, where it came with its body and nothing else."""
        end = self._received.find(_HEAD_END) + len(_HEAD_END)
        if end > _HEAD_BYTES or len(self._received) != end + body_bytes:
            return
        names = [name for name, _ in self.headers]
        if names.count(b"content-length") != 1 or b"transfer-encoding" in names:
            return
        if len(self.heads) >= _HEADS:
            self.heads.clear()
        self.heads[self._received[:end]] = Head(self.url, self.headers, body_bytes)

    def _leave_to_uvicorn(self) -> None:
        held, self._held = self._held or [], None
        if not self.transport.is_closing():
            self._tell_uvicorn()
            for piece in held:
                super().on_body(piece)

    def _tell_uvicorn(self) -> None:
        """Of a head that has ended."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def _answer(self, body: bytes) -> None:
        began = perf_counter()
        client = self.service.client(self.client, self.headers)
        request = Request("POST", self.url, b"", self.headers, client, self.transport.is_closing, body)
        answering: Any = self.service.answer(request)  # never None, as the body is there
        if self.waits:
            self._wait(answering, request, began)
            return
        try:
            waited_for = answering.send(None)
        except StopIteration as done:
            self.idle_since = self.loop.time()
            self.server_state.total_requests += 1
            reply, body = done.value
            self._write(reply, body)
            self.service.answered(request, reply.status, len(body), perf_counter() - began)
        else:
            self._wait(_rest_of(answering, waited_for), request, began)

    def _wait(self, answering: Awaitable[_Answer], request: Request, began: float) -> None:
        """Answer in a task; until then uvicorn sees a request under way."""
        cycle = self.cycle = _Cycle()
        task = self.loop.create_task(self._later(answering, cycle, request, began))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _later(self, answering: Awaitable[_Answer], cycle: _Cycle, request: Request, began: float) -> None:
        reply, body = await answering
        if not cycle.disconnected:
            self._write(reply, body, keep_alive=cycle.keep_alive)
        self.service.answered(request, reply.status, len(body), perf_counter() - began)
        cycle.response_complete = True
        if self.pipeline or self.transport.is_closing():
            self.on_response_complete()
            return
        self.server_state.total_requests += 1  # as uvicorn does, but without a timer of its own
        self.idle_since = self.loop.time()

    def _write(self, reply: Reply, body: bytes, *, keep_alive: bool = True) -> None:
        head = f"content-type: {reply.type}\r\ncontent-length: {len(body)}\r\n"
        lines = 2 + len(reply.headers)
        for name, value in reply.headers.items():
            head += f"{name.lower()}: {value}\r\n"
        if head.count("\n") != lines or head.count("\r") != lines:
            log.error("a header's value has a line's end, and would begin another header: %r", reply.headers)
            self.transport.close()
            return
        made = self.server_state.default_headers
        if self._default[0] is not made:
            self._default = made, b"".join([b"%b: %b\r\n" % header for header in made])
        keep_alive = keep_alive and not self.service.draining.is_set()
        last = "\r\n" if keep_alive else "connection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[reply.status] + self._default[1] + (head + last).encode("latin-1") + body)
        if not keep_alive:
            self.transport.close()


class _Cycle(RequestResponseCycle):
    """Stands for uvicorn's cycle while a request is answered directly: later ones wait, and a disconnect is noted."""

    message_event = asyncio.Event()

    def __init__(self) -> None:  # pyright: ignore[reportMissingSuperCall] - it has no part in ASGI
        self.response_complete = self.disconnected = False
        self.keep_alive = True


@coroutine
def _rest_of(answering: Coroutine[Any, Any, Any], waited_for: Any) -> Generator[Any, Any, Any]:
    """Finish, in a task, a coroutine that has begun and waits for `waited_for`."""
    try:
        while True:
            try:
                sent = yield waited_for
            except BaseException as error:  # noqa: BLE001 - as a task does, whatever it is
                waited_for = answering.throw(error)
            else:
                waited_for = answering.send(sent)
    except StopIteration as done:
        return done.value
