"""What goes to a server and what comes back, as plain values: commands, replies, and why a reply is missing."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from capline.store.redis.io.url import Address

ASKING = b"*1\r\n$6\r\nASKING\r\n"

NO_CLIENT = 'a store on Redis or Valkey needs redis-py: pip install "capline[redis]"'


def bulk(part: bytes) -> bytes:
    """One argument in RESP."""
    return b"$%d\r\n%b\r\n" % (len(part), part)


def pack(*parts: bytes) -> bytes:
    """One command in RESP."""
    return b"*%d\r\n%b" % (len(parts), b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]))


class ServerError(msgspec.Struct, frozen=True):
    """An error reply: its first word, and the whole line."""

    code: str
    text: str


class NoReply(msgspec.Struct, frozen=True):
    """No reply came. `sent`: whether any byte of the request may have reached the server; `text`: why."""

    sent: bool
    text: str


Reply = Any
"""A reply as the parser gives it (bytes, int, list, None), or a `ServerError`, or a `NoReply`."""


class Request(msgspec.Struct, frozen=True):
    """Commands for one server, and how many replies they will have."""

    node: Address
    payload: bytes
    replies: int


# The requests of the generators to a transport. Each text says what the transport sends back.


class Write(msgspec.Struct, frozen=True):
    """Send these requests, and do not wait. Yields None; a failure shows at the `Read`."""

    requests: Sequence[Request]
    until: float
    """On the monotonic clock, when to give up."""


class Read(msgspec.Struct, frozen=True):
    """Read the replies to the oldest `Write` that was not read. Yields a list of replies for each request."""

    until: float


class Exchange(msgspec.Struct, frozen=True):
    """`Write`, then `Read`. Yields what `Read` does."""

    requests: Sequence[Request]
    until: float


class Pause(msgspec.Struct, frozen=True):
    """Wait so many seconds. Yields None."""

    seconds: float


class Work(msgspec.Struct, frozen=True):
    """Call this, which takes long and waits for nobody: others go on meanwhile. Yields what it returns."""

    run: Callable[[], Any]


_T = TypeVar("_T")
Steps: TypeAlias = "Generator[Write | Read | Exchange | Pause | Work, Any, _T]"
"""A verb, for a transport: it yields what to exchange, and returns its answer."""
