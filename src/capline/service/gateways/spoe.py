"""An SPOE agent (protocol 2.0): HAProxy asks it whether a request may go on, over a connection that stays open.

    4 bytes length, then type, 4 bytes of flags, stream and frame as varints, then
    HELLO    pairs of a name and a typed value, both ways
    NOTIFY   messages: a name, the number of its arguments, pairs                     from HAProxy
    ACK      actions: 1 (set-var), 3, scope, name, typed value                        same stream and frame

A message is one attempt: its arguments `policy`, `subject`, `cost`, `segment`, `channel`, `zone` are as in `check`. The
answer is variables of the transaction, to which HAProxy adds its prefix:

    allowed       true or false; not set in an outage, and where no answer is possible: then `error` says why
    retry_after   seconds, on a refusal             ratelimit, ratelimit_policy      the headers' values

The rule: the frames of a connection are answered in order, and none is longer than `LARGEST_FRAME_BYTES`. A protocol
error ends its own connection only.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from ipaddress import ip_address

from capline.limiter.aio import AsyncLimiter
from capline.model.errors import CaplineError, InvalidValueError
from capline.service.gateways.check import decide
from capline.service.http.app import ASKER

LARGEST_FRAME_BYTES = 16_380

_HELLO, _DISCONNECT, _NOTIFY = 1, 2, 3
_AGENT_HELLO, _AGENT_DISCONNECT, _ACK = 101, 102, 103
_FIN = b"\0\0\0\1"
_SET_VAR, _OF_TRANSACTION = 1, 2
_BOOL, _INT32, _UINT64, _IPV4, _IPV6, _TEXT, _BYTES = 1, 2, 5, 6, 7, 8, 9
_TRUE = 0x10
_ONE_BYTE = 240

_Value = str | int | bool | None

log = logging.getLogger("capline.service")


@asynccontextmanager
async def spoe_server(limiter: AsyncLimiter, listening: socket.socket) -> AsyncGenerator[asyncio.Server]:
    """Answer HAProxy on a socket, which workers may share, for as long as the block lasts.

    Closing the server that it gives ends no connection: the block's end does.
    """
    open_now: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:  # asyncio calls this in a task
            return
        open_now.add(task)
        try:
            await _serve(limiter, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        except InvalidValueError as error:
            log.warning("a connection of SPOE was ended: %s", error)
        finally:
            open_now.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, sock=listening)
    try:
        yield server
    finally:
        server.close()
        for task in open_now:
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)


async def _serve(limiter: AsyncLimiter, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        (size,) = struct.unpack(">I", await reader.readexactly(4))
        if size > LARGEST_FRAME_BYTES:
            raise InvalidValueError(f"a frame of {size} bytes; at most {LARGEST_FRAME_BYTES}")
        answer = await answered(limiter, await reader.readexactly(size))
        if answer is None:
            return
        writer.write(struct.pack(">I", len(answer)) + answer)
        await writer.drain()


async def answered(limiter: AsyncLimiter, frame: bytes) -> bytes | None:
    """The frame that answers this one; None ends the connection. `InvalidValueError` if the bytes are not a frame."""
    data = Data(frame)
    kind = data.byte()
    data.take(4)
    name = varint(data.varint()) + varint(data.varint())
    if kind == _DISCONNECT:
        return None
    if kind == _HELLO:
        said = dict(data.pairs())
        size = said.get("max-frame-size")
        size = min(LARGEST_FRAME_BYTES, size) if isinstance(size, int) else LARGEST_FRAME_BYTES
        hello = (("version", "2.0"), ("max-frame-size", size), ("capabilities", "pipelining"))
        return bytes([_AGENT_HELLO]) + _FIN + name + b"".join(_text(key) + _typed(value) for key, value in hello)
    if kind != _NOTIFY:
        raise InvalidValueError(f"a frame of type {kind}, which HAProxy does not send")
    actions = b""
    while data.more():
        data.text()
        arguments = dict(data.pairs(data.byte()))
        for key, value in (await _variables(limiter, arguments)).items():
            actions += bytes([_SET_VAR, 3, _OF_TRANSACTION]) + _text(key) + _typed(value)
    return bytes([_ACK]) + _FIN + name + actions


async def _variables(limiter: AsyncLimiter, arguments: dict[str, _Value]) -> dict[str, _Value]:
    named = {key: str(value) for key, value in arguments.items() if value not in (None, "")}
    ASKER.set("HAProxy")
    try:
        decision = await decide(limiter, named)
    except CaplineError as error:
        log.warning("HAProxy asked what has no answer now: %s", error)
        return {"error": str(error)[:200]}
    headers = decision.headers("draft-11")
    said: dict[str, _Value] = {"allowed": decision.allowed}
    for key, header in (("ratelimit", "RateLimit"), ("ratelimit_policy", "RateLimit-Policy")):
        said[key] = headers.get(header, "")
    return said if decision.allowed else {**said, "retry_after": headers.get("Retry-After", "")}


class Data:
    """Reads a frame from its start; raises where it ends too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def more(self) -> bool:
        """Whether anything is left."""
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        """The next bytes."""
        piece = self._data[self._at : self._at + size]
        if len(piece) < size:
            raise InvalidValueError("a frame that ends too early")
        self._at += size
        return piece

    def byte(self) -> int:
        """The next byte."""
        return self.take(1)[0]

    def varint(self) -> int:
        """A number."""
        number = self.byte()
        if number < _ONE_BYTE:
            return number
        for shift in range(4, 64, 7):
            byte = self.byte()
            number += byte << shift
            if byte < 128:  # noqa: PLR2004 - the highest bit says that another follows
                return number
        raise InvalidValueError("a number of more than 64 bits")

    def text(self) -> str:
        """A text behind its length."""
        try:
            return self.take(self.varint()).decode()
        except UnicodeDecodeError:
            raise InvalidValueError("a text that is not UTF-8") from None

    def pairs(self, most: int = -1) -> list[tuple[str, _Value]]:
        """At most so many names and values, by default all that are left."""
        pairs: list[tuple[str, _Value]] = []
        while self.more() and len(pairs) != most:
            pairs.append((self.text(), self.typed()))
        return pairs

    def typed(self) -> _Value:
        """A value behind its type."""
        flags = self.byte()
        kind = flags & 0x0F
        if kind == 0:
            return None
        if kind == _BOOL:
            return bool(flags & _TRUE)
        if _INT32 <= kind <= _UINT64:
            return self.varint()
        if kind in (_IPV4, _IPV6):
            return str(ip_address(self.take(4 if kind == _IPV4 else 16)))
        if kind in (_TEXT, _BYTES):
            return self.text()
        raise InvalidValueError(f"a value of type {kind}")


def varint(number: int) -> bytes:
    """A number of up to 64 bits: four bits in the first byte above 239, then seven a byte."""
    if number < _ONE_BYTE:
        return bytes([number])
    out = [(number & 0xFF) | 0xF0]
    number = (number - _ONE_BYTE) >> 4
    while number >= 128:  # noqa: PLR2004 - seven bits a byte
        out.append((number & 0x7F) | 0x80)
        number = (number - 128) >> 7
    return bytes([*out, number])


def _text(text: str) -> bytes:
    data = text.encode()
    return varint(len(data)) + data


def _typed(value: _Value) -> bytes:
    if value is None:
        return b"\0"
    if isinstance(value, bool):
        return bytes([_BOOL | (_TRUE if value else 0)])
    if isinstance(value, int):
        return bytes([3]) + varint(value)
    return bytes([_TEXT]) + _text(value)
