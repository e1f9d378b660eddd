"""The synchronous transport: redis-py's connections, a pool for each server, the driving of the engine's generators.

A verb holds its connections until it is done, and a connection goes back only when every reply on it was read. Whatever
happens in between (a timeout, an interrupt, a fork) closes it: an unread reply would be the next caller's.
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

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.exceptions import RedisError
from redis.retry import Retry

from capline.model.errors import StoreUnavailableError
from capline.store.redis.advice import QUESTIONS, warn
from capline.store.redis.links import connection_options, lost, server_error
from capline.store.redis.wire import Exchange, Lost, Pause, Read, Reply, Request, Write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.store.redis.engine import Steps
    from capline.store.redis.url import Address, Settings

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
        """With no connection, as at first and in a forked child."""
        self._idle: dict[Address, deque[Connection]] = {}
        self._open: dict[Address, int] = {}
        self._freed = threading.Condition()

    def let_go(self) -> None:
        """A forked child drops what it inherited: closes its descriptors, and says nothing on them."""
        inherited = [connection for idle in self._idle.values() for connection in idle]
        self._start_afresh()
        for connection in inherited:
            connection.disconnect()

    # --- one command, the short way -------------------------------------------------------------------------------

    def ask(self, node: Address, payload: bytes) -> Reply:
        """One command, one reply, by the connection's own timeout."""
        try:
            connection = self._idle[node].pop()
        except (KeyError, IndexError):
            try:
                connection = self._take(node, time.monotonic() + self._settings.deadline_s)
            except _ERRORS as error:
                return lost(error, sent=False)
        else:
            if not _usable(connection):
                self._discard(node, connection)
                return self.ask(node, payload)
        clean = False
        try:
            connection.send_packed_command((payload,), check_health=False)
            reply = connection.read_response(disable_decoding=True)
            clean = True
        except _ERRORS as error:
            reply = server_error(error)
            clean = reply is not None
            if reply is None:
                reply = lost(error, sent=True)
        finally:
            if clean:
                self._give(node, connection)
            else:
                self._discard(node, connection)
        return reply

    # --- the engine's generators ----------------------------------------------------------------------------------

    def drive(self, steps: Steps[_T]) -> _T:
        """Do what the generator asks for, to its end."""
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
                self._met.add(node)
                connection.send_packed_command((b"".join(QUESTIONS),), check_health=False)
                warn(node, _read(connection, len(QUESTIONS), until))
        except BaseException:
            self._discard(node, connection)
            raise
        return connection

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


class _Lease:
    """The connections of one verb: one to each server for `Write` and `Read`, in order; others for `Exchange`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lines: dict[tuple[Address, bool], Connection] = {}
        self._unread: dict[tuple[Address, bool], int] = {}
        self._written: deque[list[tuple[Request, Lost | None]]] = deque()

    def do(self, asked: Write | Read | Exchange | Pause) -> Any:
        if isinstance(asked, Write):
            self._written.append(self._write(asked.requests, asked.until, side=False))
            return None
        if isinstance(asked, Read):
            return self._read(self._written.popleft(), asked.until, side=False)
        if isinstance(asked, Exchange):
            return self._read(self._write(asked.requests, asked.until, side=True), asked.until, side=True)
        time.sleep(asked.seconds)
        return None

    def _write(self, requests: Sequence[Request], until: float, *, side: bool) -> list[tuple[Request, Lost | None]]:
        return [(request, self._write_one(request, until, side=side)) for request in requests]

    def _write_one(self, request: Request, until: float, *, side: bool) -> Lost | None:
        key = (request.node, side)
        sent = False
        try:
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = self._transport._take(request.node, until)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            sent = True
            self._unread[key] = self._unread.get(key, 0) + request.replies
            line.send_packed_command((request.payload,), check_health=False)
        except _ERRORS as error:
            self._drop(key)
            return lost(error, sent=sent)
        return None

    def _read(self, written: list[tuple[Request, Lost | None]], until: float, *, side: bool) -> list[list[Reply]]:
        answers: list[list[Reply]] = []
        for request, failure in written:
            key = (request.node, side)
            line = self._lines.get(key)
            if failure is not None or line is None:
                gone = failure or Lost(True, "the connection was lost")
                answers.append([gone] * request.replies)
                continue
            replies = _read(line, request.replies, until)
            if replies and isinstance(replies[-1], Lost):
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
    """So many replies; from the first that does not come on, all are lost."""
    replies: list[Reply] = []
    for _ in range(many):
        try:
            replies.append(
                connection.read_response(disable_decoding=True, timeout=max(0.001, until - time.monotonic()))
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
