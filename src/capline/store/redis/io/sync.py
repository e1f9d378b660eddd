"""The synchronous transport: redis-py's connections, a pool for each server; it runs the generators of the verbs.

A verb holds its connections until it is done, and a connection returns to the pool only when every reply on it was
read. Anything in between (a timeout, an interrupt, a fork) closes it: the next caller would read the unread reply as
its own.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# redis-py leaves the methods of its connections untyped.

from __future__ import annotations

import inspect
import os
import select
import socket
import struct
import sys
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import Any, TypeVar

from capline.model.errors import StoreError, StoreUnavailableError
from capline.store.redis.io.client import (
    LATE_S,
    SMALL_BYTES,
    answered,
    connection_options,
    ends_connection,
    error_line,
    lost,
    server_error,
)
from capline.store.redis.io.lease import Action, Lease, Receive, Take
from capline.store.redis.io.server_check import QUESTIONS, warn
from capline.store.redis.io.wire import NO_CLIENT, Exchange, NoReply, Pause, Reply, Request, Work
from capline.support.system import at_fork

try:
    from redis.backoff import NoBackoff
    from redis.connection import Connection, SSLConnection
    from redis.exceptions import RedisError
    from redis.retry import Retry
except ModuleNotFoundError:
    raise StoreError(NO_CLIENT) from None

from collections.abc import Callable

from capline.store.redis.io.url import Address, Settings
from capline.store.redis.io.wire import Steps

_T = TypeVar("_T")
_BULK, _ERROR = b"$-"
_HALF_SENT = "no connection (it took a part of the command)"
_ERRORS = (RedisError, OSError, ValueError)
_everyone: weakref.WeakSet[Transport] = weakref.WeakSet()


class Transport:
    """Connections to any number of servers. Threads share it, processes do not: a forked child makes its own.

    `warns`: of a server's settings under which it forgets hits.
    """

    def __init__(self, settings: Settings, *, warns: bool = True) -> None:
        self._settings = settings
        self._warns = warns
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
        """One script call, one reply; without the layers of redis-py where a connection is idle."""
        try:
            connection: Any = self._idle[node].pop()
        except (KeyError, IndexError):
            return self.drive(self._asked(node, payload))
        direct: _Direct | None = connection.direct
        if direct is None and _usable(connection):
            direct = connection.direct = _direct(connection, self._settings.deadline_s)
        if direct is None or len(payload) >= SMALL_BYTES or direct[1](0):
            self.give(node, connection)
            return self.drive(self._asked(node, payload))
        clean = sent = False
        try:
            sent = os.write(direct[0], payload) == len(payload)  # a command that went out in part does not run
            reply, clean = _direct_reply(direct[0]) if sent else (NoReply(False, _HALF_SENT), False)
        except _ERRORS as error:
            reply = lost(error, sent=sent)
        finally:
            if clean:
                self.give(node, connection)
            else:
                self.discard(node, connection)
        return reply

    def _asked(self, node: Address, payload: bytes) -> Steps[Reply]:
        [[reply]] = yield Exchange([Request(node, payload, 1)], time.monotonic() + self._settings.deadline_s)
        return reply

    # --- the generators of the verbs ------------------------------------------------------------------------------

    def drive(self, steps: Steps[_T]) -> _T:
        """Run the generator to its end, and return its answer."""
        lease = Lease(self, tls=self._settings.tls, buffered=False)
        actions = lease.run(steps)
        try:
            action = next(actions)
            while True:
                action = actions.send(self._do(action))
        except StopIteration as done:
            return done.value
        finally:
            lease.end()

    def _do(self, action: Action) -> Any:
        if isinstance(action, Receive):
            return _read(action.line, action.replies, action.until)
        if isinstance(action, Pause):
            time.sleep(action.seconds)
            return None
        if isinstance(action, Work):
            return action.run()
        try:
            if isinstance(action, Take):
                return self._take(action.node, action.until)
            if len(action.payload) < SMALL_BYTES:
                action.line.send_packed_command((action.payload,), check_health=False)
            else:
                self._send_much(action.line, action.payload, action.until)
        except _ERRORS as error:
            return error

    # --- connections ----------------------------------------------------------------------------------------------

    def _take(self, node: Address, until: float) -> Connection:
        """A usable connection to the server, from the pool or new; raises why there is none."""
        if self.closed:
            raise StoreUnavailableError("the store is closed; make a new limiter")
        while True:
            with self._freed:
                idle = self._idle.setdefault(node, deque())
                while not idle and self._open.get(node, 0) >= self._settings.max_connections:
                    if not self._freed.wait(until - time.monotonic()):
                        raise TimeoutError
                if idle:
                    connection: Any = idle.pop()
                else:
                    connection = None
                    self._open[node] = self._open.get(node, 0) + 1
            if connection is None:
                return self._connect(node, until)
            _undirected(connection)
            if _usable(connection):
                return connection
            self.discard(node, connection)

    def _connect(self, node: Address, until: float) -> Connection:
        options = connection_options(self._settings, node)
        options["socket_connect_timeout"] = max(0.001, until - time.monotonic())
        kind = SSLConnection if self._settings.tls else Connection
        connection: Any = None
        try:
            connection = kind(retry=Retry(NoBackoff(), 0), **options)
            connection.direct = None
            connection.connect()
            is_new = self._warns and node not in self._met
            if is_new and not (self._settings.shape == "sentinel" and node in self._settings.seeds):
                self._met.add(node)  # first, as other threads connect at the same time
                try:
                    connection.send_packed_command((b"".join(QUESTIONS),), check_health=False)
                    warn(node, answered(_read(connection, len(QUESTIONS), until)))
                except BaseException:
                    self._met.discard(node)
                    raise
        except BaseException:
            self.discard(node, connection)
            raise
        return connection

    def _send_much(self, connection: Connection, payload: bytes, until: float) -> None:
        """Send more bytes than fit a socket buffer; the server may read them slowly."""
        wire: Any = connection._sock  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - its timeout is fixed otherwise
        wire.settimeout(max(LATE_S, until - time.monotonic()))
        connection.send_packed_command((payload,), check_health=False)
        wire.settimeout(self._settings.deadline_s)

    def give(self, node: Address, connection: Connection) -> None:
        """Take back a connection on which every reply was read."""
        if self.closed:
            connection.disconnect()
            return
        self._idle[node].append(connection)
        if self._open[node] >= self._settings.max_connections:
            with self._freed:
                self._freed.notify()

    def discard(self, node: Address, connection: Connection | None) -> None:
        """Close a connection, and make room for another; None for one that was never made."""
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


def _usable(connection: Connection) -> bool:
    """Whether it is still open and has no unread reply."""
    try:
        return not connection.can_read()
    except _ERRORS:
        return False


_Direct = tuple[int, "Callable[[int], object]"]


def _direct(connection: Connection, deadline_s: float) -> _Direct | None:
    """The descriptor, which then blocks, and a poll for what can be read: while only `ask` uses the connection.

    None where the socket is not Python's own: TLS, or one of a library that must see every wait.
    """
    wire: Any = connection._sock  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the layers above it cost as much as a script
    if type(wire).__module__ != "socket" or sys.platform == "win32":
        return None
    descriptor: int = wire.fileno()
    whole, part = divmod(max(1, int(deadline_s * 1_000_000)), 1_000_000)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", whole, part))
    os.set_blocking(descriptor, True)
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return descriptor, poller.poll


def _undirected(connection: Any) -> None:
    """Leave the connection to redis-py, whose parser may keep bytes of its own."""
    if sys.platform != "win32" and connection.direct:
        os.set_blocking(connection.direct[0], False)
        connection.direct = None


def _direct_reply(descriptor: int) -> tuple[Reply, bool]:
    """The one reply of a script, and whether nothing came after it."""
    data = b""
    while True:
        try:
            part = os.read(descriptor, 8192)
        except BlockingIOError:
            raise TimeoutError from None
        if not part:
            raise ConnectionError("Connection closed by server.")
        data = data + part if data else part
        if data[0] == _BULK:
            start = data.find(b"\r\n") + 2
            if start > 1:
                size = int(data[1 : start - 2])
                if size < 0:
                    return None, len(data) == start
                end = start + size
                if len(data) >= end + 2 > start:
                    return data[start:end], len(data) == end + 2
        elif data.endswith(b"\r\n"):
            if data[0] == _ERROR:
                error = error_line(data[1:-2].decode(errors="replace"))
                return error, not ends_connection(error)
            return int(data[1:-2]), True


def _read(connection: Connection, many: int, until: float) -> list[Reply]:
    """This many replies; after the first that does not come, all others are lost too."""
    replies: list[Reply] = []
    for _ in range(many):
        try:
            replies.append(_read_one(connection, max(LATE_S, until - time.monotonic())))
        except _ERRORS as error:
            reply = server_error(error)
            if reply is None:
                gone = lost(error, sent=True)
                replies += [gone] * (many - len(replies))
                break
            replies.append(reply)
    return replies


_TAKES_TIMEOUT = "timeout" in inspect.signature(Connection.read_response).parameters


def _read_one(connection: Connection, seconds: float) -> Reply:
    if _TAKES_TIMEOUT:
        return connection.read_response(disable_decoding=True, timeout=seconds, disconnect_on_error=False)
    wire: Any = connection._sock  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as in `_send_much`; redis-py before 8
    if wire is None:
        raise ConnectionError("the connection is closed")
    wire.settimeout(seconds)
    try:
        return connection.read_response(disable_decoding=True, disconnect_on_error=False)
    finally:
        with suppress(OSError):  # closed meanwhile
            wire.settimeout(connection.socket_timeout)


def _after_fork() -> None:
    for transport in list(_everyone):
        transport.let_go()


at_fork(after_in_child=_after_fork)
