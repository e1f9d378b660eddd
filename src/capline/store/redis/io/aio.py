"""The asynchronous transport: what `sync` does, awaited. A cancelled task closes the connections that it held."""

from __future__ import annotations

import asyncio
import os
import time
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
    lost,
    no_connection,
    server_error,
)
from capline.store.redis.io.lease import Action, Lease, Receive, Take
from capline.store.redis.io.server_check import QUESTIONS, warn
from capline.store.redis.io.wire import NO_CLIENT, Pause, Reply, Work
from capline.support.system import readable

try:
    from redis.asyncio.connection import Connection, SSLConnection
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError
except ModuleNotFoundError:
    raise StoreError(NO_CLIENT) from None

from capline.store.redis.io.url import Address, Settings
from capline.store.redis.io.wire import Steps

_T = TypeVar("_T")
_ERRORS = (RedisError, OSError, ValueError, asyncio.IncompleteReadError)
_inherited: list[object] = []
"""In a forked child, the parent's connections, kept alive: closing them would remove them from the epoll that both
processes share, and the parent would wait for ever."""


class AsyncTransport:
    """Connections to any number of servers, of one event loop; on another loop, or after a fork, it begins afresh."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._met: set[Address] = set()
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._idle: dict[Address, deque[Connection]] = {}
        self._room: dict[Address, asyncio.Semaphore] = {}
        self.closed = False

    async def drive(self, steps: Steps[_T]) -> _T:
        """Run the generator to its end, and return its answer."""
        self._come_home()
        lease = Lease(self, tls=self._settings.tls, buffered=True)
        actions = lease.run(steps)
        try:
            action = next(actions)
            while True:
                action = actions.send(await self._do(action))
        except StopIteration as done:
            return done.value
        finally:
            lease.end()

    async def ask(self, node: Address, payload: bytes) -> Reply:
        """One script call of few bytes, one reply; without the lease and the steps of a verb."""
        self._come_home()
        until = time.monotonic() + self._settings.deadline_s
        try:
            connection = await self._take(node, until)
        except _ERRORS as error:
            return no_connection(error, tls=self._settings.tls)
        reply: Reply = None
        clean = False
        try:
            connection._writer.write(payload)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess] - it is connected; its layers cost as much
            [reply] = await _read(connection, 1, until)
            clean = not ends_connection(reply)
        finally:
            (self.give if clean else self.discard)(node, connection)
        return reply

    async def _do(self, action: Action) -> Any:
        if isinstance(action, Receive):
            return await _read(action.line, action.replies, action.until)
        if isinstance(action, Pause):
            await asyncio.sleep(action.seconds)
            return None
        if isinstance(action, Work):
            return await asyncio.to_thread(action.run)
        try:
            if isinstance(action, Take):
                return await self._take(action.node, action.until)
            if len(action.payload) < SMALL_BYTES:
                await action.line.send_packed_command(action.payload, check_health=False)  # into the buffer, at once
            else:
                async with asyncio.timeout(max(0.001, action.until - time.monotonic())):
                    await action.line.send_packed_command(action.payload, check_health=False)
        except _ERRORS as error:
            return error

    def _come_home(self) -> None:
        home = (os.getpid(), asyncio.get_running_loop())
        if self._home != home:
            # Connections belong to the loop that made them: another's are left to it, and never used here.
            if self._home is not None and self._home[0] != home[0]:
                _inherited.append(self._idle)
            else:
                self._clear_after_loop()
            self._home, self._idle, self._room = home, {}, {}

    async def _take(self, node: Address, until: float) -> Connection:
        """A usable connection to the server, from the pool or new; raises why there is none."""
        if self.closed:
            raise StoreUnavailableError("the store is closed; make a new limiter")
        room = self._room.setdefault(node, asyncio.Semaphore(self._settings.max_connections))
        if room.locked():
            async with asyncio.timeout(max(0.001, until - time.monotonic())):
                await room.acquire()
        else:
            await room.acquire()  # at once
        try:
            idle = self._idle.setdefault(node, deque())
            while idle:
                connection = idle.pop()
                usable = False
                try:
                    usable = await _usable(connection)  # redis-py before 8 waits there, and may be cancelled
                finally:
                    if not usable:
                        self._shut(connection)
                if usable:
                    return connection
            return await self._connect(node, until)
        except BaseException:
            room.release()
            raise

    async def _connect(self, node: Address, until: float) -> Connection:
        options = connection_options(self._settings, node)
        options["socket_connect_timeout"] = max(0.001, until - time.monotonic())
        kind = SSLConnection if self._settings.tls else Connection
        connection = kind(retry=Retry(NoBackoff(), 0), **options)
        try:
            async with asyncio.timeout(max(0.001, until - time.monotonic())):  # the log-in too
                await connection.connect()
            connection.socket_timeout = None  # from here on the deadlines are ours
            if node not in self._met and not (self._settings.shape == "sentinel" and node in self._settings.seeds):
                self._met.add(node)  # first, as others connect at the same time
                try:
                    await connection.send_packed_command(b"".join(QUESTIONS), check_health=False)
                    warn(node, answered(await _read(connection, len(QUESTIONS), until)))
                except BaseException:
                    self._met.discard(node)
                    raise
        except BaseException:
            self._shut(connection)
            raise
        return connection

    def give(self, node: Address, connection: Connection) -> None:
        """Take back a connection on which every reply was read."""
        if self.closed:
            self._shut(connection)
        else:
            self._idle[node].append(connection)
        self._room[node].release()

    def discard(self, node: Address, connection: Connection) -> None:
        """Close a connection without waiting: the task may be cancelled."""
        self._shut(connection)
        self._room[node].release()

    def _shut(self, connection: Connection) -> None:
        writer = connection._writer  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - `disconnect` has to be awaited
        if writer is not None:
            writer.transport.abort()
        connection._reader = connection._writer = None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - so that it is not used again

    def _clear_after_loop(self) -> None:
        """Close the connections of a closed loop, which cannot close them any more; test clients leave such loops."""
        if self._home is not None and self._home[0] == os.getpid() and self._home[1].is_closed():
            for idle in self._idle.values():
                while idle:
                    _close_without_loop(idle.pop())

    async def close(self) -> None:
        """Close every connection that is not in use, and the others when they come back."""
        self.closed = True
        if self._home != (os.getpid(), asyncio.get_running_loop()):
            self._clear_after_loop()
            return
        for idle in self._idle.values():
            while idle:
                await idle.pop().disconnect(nowait=True)
        # asyncio closes a socket one or two turns of the loop after `close`, also after a failed handshake.
        for _ in range(3):
            await asyncio.sleep(0)


async def _can_read(connection: Connection) -> bool:
    """Whether unread bytes wait. redis-py before 8 consumes them to find out; such a connection is closed."""
    look: Any = getattr(connection, "can_read", None) or connection.can_read_destructive
    return await look()


def _close_without_loop(connection: Connection) -> None:
    """Close the socket itself; asyncio has no public way to, and its garbage is closed with a ResourceWarning."""
    writer = connection._writer  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as in `_shut`
    connection._reader = connection._writer = None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as in `_shut`
    transport: Any = None if writer is None else writer.transport
    while transport is not None:
        with suppress(RuntimeError):
            transport.abort()  # marked as closed, before it finds the loop closed
        if getattr(transport, "_sock", None) is not None:
            transport._sock.close()  # noqa: SLF001 - see above
            transport._sock = None  # noqa: SLF001
        # TLS is a transport upon another.
        transport = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)


async def _usable(connection: Connection) -> bool:
    """Whether it is still open and has no unread reply."""
    try:
        writer = connection._writer  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - no public way to the socket
        if writer is None or await _can_read(connection):
            return False
        # The loop may not have seen yet that a connection ended while the loop was busy.
        return not readable(writer.get_extra_info("socket"))
    except _ERRORS:
        return False


async def _read(connection: Connection, many: int, until: float) -> list[Reply]:
    """This many replies; after the first that does not come, all others are lost too."""
    replies: list[Reply] = []
    try:
        # redis-py's own timeout is off: it would return None, which is also a reply.
        async with asyncio.timeout(max(LATE_S, until - time.monotonic())):
            while len(replies) < many:
                try:
                    replies.append(await connection.read_response(disable_decoding=True, disconnect_on_error=False))
                except RedisError as error:
                    reply = server_error(error)
                    if reply is None:
                        raise
                    replies.append(reply)
    except _ERRORS as error:
        replies += [lost(error, sent=True)] * (many - len(replies))
    return replies
