"""The synchronous transport: redis-py's connections, a pool for each server; it runs the generators of the verbs.

A verb holds its connections until it is done, and a connection returns to the pool only when every reply on it was
read. Anything in between (a timeout, an interrupt, a fork) closes it: the next caller would read the unread reply as
its own.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# redis-py leaves the methods of its connections untyped.

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from capline.model.errors import StoreError, StoreUnavailableError
from capline.store.redis.io.client import (
    LATE_S,
    SMALL_BYTES,
    Failure,
    answered,
    connection_options,
    halfway,
    lost,
    no_connection,
    server_error,
)
from capline.store.redis.io.server_check import QUESTIONS, warn
from capline.store.redis.io.wire import NO_CLIENT, Exchange, NoReply, Pause, Read, Reply, Request, Write

try:
    from redis.backoff import NoBackoff
    from redis.connection import Connection, SSLConnection
    from redis.exceptions import RedisError
    from redis.retry import Retry
except ModuleNotFoundError:
    raise StoreError(NO_CLIENT) from None

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.store.redis.io.url import Address, Settings
    from capline.store.redis.io.wire import Steps

__all__ = ["Transport"]

_T = TypeVar("_T")
_ERRORS = (RedisError, OSError, ValueError)
_everyone: weakref.WeakSet[Transport] = weakref.WeakSet()


class Transport:
    """Connections to any number of servers. Threads share it, processes do not: a forked child makes its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._met: set[Address] = set()
        self._start_afresh()
        self.closed = False
        _everyone.add(self)

    def _start_afresh(self) -> None:
        """Begin with no connections: at first, and in a forked child."""
        self._idle: dict[Address, deque[Connection]] = {}
        self._open: dict[Address, int] = {}
        self._freed = threading.Condition()

    def let_go(self) -> None:
        """In a forked child: close the inherited descriptors without sending anything on them."""
        inherited = [connection for idle in self._idle.values() for connection in idle]
        self._start_afresh()
        for connection in inherited:
            connection.disconnect()

    # --- one command, the fast path -------------------------------------------------------------------------------

    def ask(self, node: Address, payload: bytes) -> Reply:
        """One command, one reply, by the connection's own timeout."""
        try:
            connection = self._idle[node].pop()
        except (KeyError, IndexError):
            connection = None
        if connection is None or not _usable(connection):
            try:
                if connection is not None:
                    self._discard(node, connection)
                connection = self._take(node, time.monotonic() + self._settings.deadline_s)
            except _ERRORS as error:
                return no_connection(error, tls=self._settings.tls)
        clean = sent = False
        try:
            connection.send_packed_command((payload,), check_health=False)
            sent = True  # a command of which not every byte went out does not run
            reply = connection.read_response(disable_decoding=True, disconnect_on_error=False)
            clean = True
        except _ERRORS as error:
            reply = server_error(error)
            clean = reply is not None
            if reply is None:
                reply = lost(error, sent=sent)
        finally:
            if clean:
                self._give(node, connection)
            else:
                self._discard(node, connection)
        return reply

    # --- the generators of the verbs ------------------------------------------------------------------------------

    def drive(self, steps: Steps[_T]) -> _T:
        """Run the generator to its end, and return its answer."""
        lease = _Lease(self)
        try:
            asked = next(steps)
            while True:
                asked = steps.send(lease.do(asked))
        except StopIteration as done:
            return done.value
        finally:
            lease.end()

    # --- connections ----------------------------------------------------------------------------------------------

    def _take(self, node: Address, until: float) -> Connection:
        """A connection of the server's, fresh from the pool or new; raises what kept it from being one."""
        if self.closed:
            raise StoreUnavailableError("the store is closed; make a new limiter")
        while True:
            with self._freed:
                idle = self._idle.setdefault(node, deque())
                while not idle and self._open.get(node, 0) >= self._settings.max_connections:
                    if not self._freed.wait(until - time.monotonic()):
                        raise TimeoutError
                if idle:
                    connection = idle.pop()
                else:
                    connection = None
                    self._open[node] = self._open.get(node, 0) + 1
            if connection is None:
                return self._connect(node, until)
            if _usable(connection):
                return connection
            self._discard(node, connection)

    def _connect(self, node: Address, until: float) -> Connection:
        options = connection_options(self._settings, node)
        options["socket_connect_timeout"] = max(0.001, until - time.monotonic())
        kind = SSLConnection if self._settings.tls else Connection
        connection = None
        try:
            connection = kind(retry=Retry(NoBackoff(), 0), **options)
            connection.connect()
            if node not in self._met and not (self._settings.shape == "sentinel" and node in self._settings.seeds):
                connection.send_packed_command((b"".join(QUESTIONS),), check_health=False)
                warn(node, answered(_read(connection, len(QUESTIONS), until)))
                self._met.add(node)
        except BaseException:
            self._discard(node, connection)
            raise
        return connection

    def _send_much(self, connection: Connection, payload: bytes, until: float) -> None:
        """Send more bytes than fit a socket buffer; the server may read them slowly."""
        wire: Any = connection._sock  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - its timeout is fixed otherwise
        wire.settimeout(max(LATE_S, until - time.monotonic()))
        connection.send_packed_command((payload,), check_health=False)
        wire.settimeout(self._settings.deadline_s)

    def _give(self, node: Address, connection: Connection) -> None:
        if self.closed:
            connection.disconnect()
            return
        self._idle[node].append(connection)
        if self._open[node] >= self._settings.max_connections:
            with self._freed:
                self._freed.notify()

    def _discard(self, node: Address, connection: Connection | None) -> None:
        with self._freed:
            self._open[node] = self._open.get(node, 1) - 1
            self._freed.notify()
        if connection is not None:
            connection.disconnect()

    def close(self) -> None:
        """Close every connection that is not in use, and the others when they come back."""
        self.closed = True
        for idle in list(self._idle.values()):
            while idle:
                idle.pop().disconnect()


_Key = tuple["Address", bool]


class _Lease:
    """The connections of one verb: one to each server, for `Write` and `Read`, in order.

    An `Exchange` uses it too where nothing on it is unread, else another.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lines: dict[_Key, Connection] = {}
        self._unread: dict[_Key, int] = {}
        self._written: deque[list[tuple[Request, _Key, Connection | Failure]]] = deque()

    def do(self, asked: Write | Read | Exchange | Pause) -> Any:
        if isinstance(asked, Write):
            self._written.append(self._write(asked.requests, asked.until, set()))
            return None
        if isinstance(asked, Read):
            return self._read(self._written.popleft(), asked.until)
        if isinstance(asked, Exchange):
            busy = {request.node for request in asked.requests if self._unread.get((request.node, False))}
            return self._read(self._write(asked.requests, asked.until, busy), asked.until)
        time.sleep(asked.seconds)
        return None

    def _write(
        self, requests: Sequence[Request], until: float, busy: set[Address]
    ) -> list[tuple[Request, _Key, Connection | Failure]]:
        written: list[tuple[Request, _Key, Connection | Failure]] = []
        for request in requests:
            key = (request.node, request.node in busy)
            # A server that does not accept connections must leave time for the next one.
            mine = until if request is requests[-1] else halfway(until)
            written.append((request, key, self._write_one(request, key, mine)))
        return written

    def _write_one(self, request: Request, key: _Key, until: float) -> Connection | Failure:
        sent = False
        try:
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = self._transport._take(request.node, until)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            sent = request.replies > 1  # as above, but of several commands the first may run
            self._unread[key] = self._unread.get(key, 0) + request.replies
            if len(request.payload) < SMALL_BYTES:
                line.send_packed_command((request.payload,), check_health=False)
            else:
                self._transport._send_much(line, request.payload, until)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        except _ERRORS as error:
            self._drop(key)
            if sent:
                return lost(error, sent=True)
            tls = self._transport._settings.tls  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            return no_connection(error, tls=tls)
        return line

    def _read(self, written: list[tuple[Request, _Key, Connection | Failure]], until: float) -> list[list[Reply]]:
        answers: list[list[Reply]] = []
        for request, key, line in written:
            if isinstance(line, Failure):
                answers.append([line] * request.replies)
                continue
            if self._lines.get(key) is not line:
                # The connection was lost while an earlier reply was read; a new one does not have these replies.
                answers.append([NoReply(True, "the connection was lost")] * request.replies)
                continue
            replies = _read(line, request.replies, until)
            if replies and isinstance(replies[-1], NoReply):
                self._drop(key)
            else:
                self._unread[key] -= request.replies
            answers.append(replies)
        return answers

    def _drop(self, key: tuple[Address, bool]) -> None:
        line = self._lines.pop(key, None)
        self._unread.pop(key, None)
        if line is not None:
            self._transport._discard(key[0], line)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]

    def end(self) -> None:
        for key in list(self._lines):
            if self._unread.get(key):
                self._drop(key)
            else:
                self._transport._give(key[0], self._lines.pop(key))  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


def _usable(connection: Connection) -> bool:
    """Whether nothing waits on it: neither its end nor a reply that nobody read."""
    try:
        return not connection.can_read()
    except _ERRORS:
        return False


def _read(connection: Connection, many: int, until: float) -> list[Reply]:
    """This many replies; after the first that does not come, all others are lost too."""
    replies: list[Reply] = []
    for _ in range(many):
        try:
            replies.append(
                connection.read_response(
                    disable_decoding=True, timeout=max(LATE_S, until - time.monotonic()), disconnect_on_error=False
                )
            )
        except _ERRORS as error:
            reply = server_error(error)
            if reply is None:
                gone = lost(error, sent=True)
                replies += [gone] * (many - len(replies))
                break
            replies.append(reply)
    return replies


def _after_fork() -> None:
    for transport in list(_everyone):
        transport.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
