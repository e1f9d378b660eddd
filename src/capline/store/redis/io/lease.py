"""The connections of one verb, as a generator: which are taken, written to, read, given back. It does no I/O.

    verb -> Write, Read, Exchange, Pause, Work -> lease -> Take, Send, Receive, Pause, Work -> transport

The rule: a connection goes back to the pool only when every reply on it was read; else it is closed, since the next
caller would read the unread reply as its own. So is one that its server closes: what the next caller wrote there would
be lost, and nobody would know whether it ran. Both transports run this one; each does the actions in its own way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from capline.store.redis.io.client import Failure, ends_connection, halfway, lost, no_connection
from capline.store.redis.io.url import Address
from capline.store.redis.io.wire import Exchange, NoReply, Pause, Read, Reply, Request, Steps, Work, Write

_C = TypeVar("_C")
_C_contra = TypeVar("_C_contra", contravariant=True)
_T = TypeVar("_T")


# What the transport is to do. Each text says what it sends back.


class Take(msgspec.Struct, gc=False):
    """Take a connection to this server. Yields it, or the exception that says why there is none."""

    node: Address
    until: float


class Send(msgspec.Struct, gc=False):
    """Send these bytes. Yields None, or the exception that ended it."""

    line: Any
    payload: bytes
    until: float


class Receive(msgspec.Struct, gc=False):
    """Read so many replies. Yields all of them; after the first that does not come, all others are lost too."""

    line: Any
    replies: int
    until: float


Action: TypeAlias = Take | Send | Receive | Pause | Work


class Pool(Protocol[_C_contra]):
    """Where a lease returns its connections to. Neither call waits."""

    def give(self, node: Address, connection: _C_contra) -> None:
        """Take back a connection on which every reply was read."""
        ...

    def discard(self, node: Address, connection: _C_contra) -> None:
        """Close a connection."""
        ...


_Key = tuple["Address", bool]
_Written = list[tuple[Request, _Key, _C | Failure]]


class Lease(Generic[_C]):
    """The connections of one verb: one to each server, for `Write` and `Read`, in order.

    An `Exchange` uses it too where nothing on it is unread, else another. `buffered`: a `Send` that failed may have
    sent all of its bytes; else a single command of which not every byte went out does not run.
    """

    def __init__(self, pool: Pool[_C], *, tls: bool, buffered: bool) -> None:
        self._pool = pool
        self._tls = tls
        self._buffered = buffered
        self._lines: dict[_Key, _C] = {}
        self._unread: dict[_Key, int] = {}
        self._written: deque[_Written[_C]] = deque()

    def run(self, steps: Steps[_T]) -> Generator[Action, Any, _T]:
        """Run the verb to its end, and return its answer. Call `end` afterwards, whatever happened."""
        try:
            asked = next(steps)
            while True:
                answer: Any = None
                if isinstance(asked, Exchange):
                    unread = self._unread
                    busy = {request.node for request in asked.requests if unread.get((request.node, False))}
                    written = yield from self._write(asked.requests, asked.until, busy)
                    answer = yield from self._read(written, asked.until)
                elif isinstance(asked, Write):
                    self._written.append((yield from self._write(asked.requests, asked.until, set())))
                elif isinstance(asked, Read):
                    answer = yield from self._read(self._written.popleft(), asked.until)
                else:
                    answer = yield asked
                asked = steps.send(answer)
        except StopIteration as done:
            return done.value

    def end(self) -> None:
        """Give back the connections on which nothing is unread, and close the others."""
        for key in list(self._lines):
            if self._unread.get(key):
                self._drop(key)
            else:
                self._pool.give(key[0], self._lines.pop(key))

    def _write(
        self, requests: Sequence[Request], until: float, busy: set[Address]
    ) -> Generator[Action, Any, _Written[_C]]:
        written: _Written[_C] = []
        for request in requests:
            key = (request.node, request.node in busy)
            # A server that does not accept connections must leave time for the next one.
            mine = until if request is requests[-1] else halfway(until)
            written.append((request, key, (yield from self._write_one(request, key, mine))))
        return written

    def _write_one(self, request: Request, key: _Key, until: float) -> Generator[Action, Any, _C | Failure]:
        line = self._lines.get(key)
        if line is None:
            line = yield Take(request.node, until)
            if isinstance(line, Exception):
                return no_connection(line, tls=self._tls)
            self._lines[key] = line
        self._unread[key] = self._unread.get(key, 0) + request.replies
        error = yield Send(line, request.payload, until)
        if error is None:
            return line
        self._drop(key)
        if self._buffered or request.replies > 1:  # of several commands the first may run
            return lost(error, sent=True)
        return no_connection(error, tls=self._tls)

    def _read(self, written: _Written[_C], until: float) -> Generator[Action, Any, list[list[Reply]]]:
        answers: list[list[Reply]] = []
        for request, key, line in written:
            if isinstance(line, Failure):
                answers.append([line] * request.replies)
                continue
            if self._lines.get(key) is not line:
                # The connection was lost while an earlier reply was read; a new one does not have these replies.
                answers.append([NoReply(True, "the connection was lost")] * request.replies)
                continue
            replies = yield Receive(line, request.replies, until)
            if replies and ends_connection(replies[-1]):
                self._drop(key)
            else:
                self._unread[key] -= request.replies
            answers.append(replies)
        return answers

    def _drop(self, key: _Key) -> None:
        line = self._lines.pop(key, None)
        self._unread.pop(key, None)
        if line is not None:
            self._pool.discard(key[0], line)
