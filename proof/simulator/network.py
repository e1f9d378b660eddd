"""Connections as redis-py makes them, with nothing but the simulation behind them: bytes arrive late, or get lost.

What is sent arrives in its order on one connection. A connection ends loudly (an error at once) or silently (nothing
comes any more); what was sent before may still arrive and run, as with real sockets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from redis.exceptions import ConnectionError as Lost
from redis.exceptions import ResponseError

from capline.store.redis.io import aio
from proof.simulator.server import SENTINEL, Fleet, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["Network", "commands_of"]

ONE_WAY_S = (0.0001, 0.002)
LONG_S = (0.05, 0.6)
"""How long bytes take that are delayed: at times past the deadline."""
SILENT_SHARE = 0.4
FLUSH_RATE = 0.02
INSTANT_S = 1e-9


def commands_of(payload: bytes) -> list[list[bytes]]:
    """The commands in these bytes."""
    commands: list[list[bytes]] = []
    at = 0
    while at < len(payload):
        end = payload.index(b"\r\n", at)
        many, at = int(payload[at + 1 : end]), end + 2
        parts: list[bytes] = []
        for _ in range(many):
            end = payload.index(b"\r\n", at)
            size = int(payload[at + 1 : end])
            parts.append(payload[end + 2 : end + 2 + size])
            at = end + 4 + size
        commands.append(parts)
    return commands


class Network:
    """Which faults befall messages, by rates that the seed has drawn; `tell` gets a line for each."""

    def __init__(self, fleet: Fleet, rate: float, tell: Callable[[str], None]) -> None:
        self.fleet = fleet
        self.rate = rate
        self.tell = tell
        self.faults = 0

    @contextmanager
    def instead_of_sockets(self) -> Generator[None]:
        """The store's pool makes its connections here."""

        def connect(**options: Any) -> _Connection:
            return _Connection(self, (options["host"], options["port"]))

        with ExitStack() as patched:
            patched.enter_context(patch.object(aio, "Connection", connect))
            patched.enter_context(patch.object(aio, "_usable", _usable))
            yield

    def one_way_s(self) -> float:
        """How long bytes take."""
        return self.fleet.draw.uniform(*ONE_WAY_S)

    def strikes(self, what: str, node: object) -> bool:
        """Whether this fault befalls a message now."""
        if self.fleet.draw.random() >= self.rate:
            return False
        self.faults += 1
        self.tell(f"{what} {node}")
        return True


async def _usable(connection: _Connection) -> bool:
    return connection.is_open and not connection.inbox


class _Connection:
    """What io/aio.py uses of redis-py's."""

    def __init__(self, network: Network, node: tuple[str, int]) -> None:
        self._network = network
        self._node = node
        self._incarnation = 0
        self._ready_at = 0.0
        self._offset = 0
        self._asking = False
        self._work: deque[list[bytes]] = deque()
        self._working = False
        self.is_open = False
        self.inbox: deque[Any] = deque()
        self._arrived = asyncio.Event()
        self._reader = None
        self._writer: Any = self  # whose `transport` is to be aborted
        self.transport = self
        self.socket_timeout: float | None = None

    # --- the caller's end -----------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Raises if the connection is refused; waits for ever if the refusal is silent."""
        network, loop = self._network, self._network.fleet.loop
        await asyncio.sleep(2 * network.one_way_s())
        if not self._is_up() or network.strikes("connection refused:", self._node):
            if network.fleet.draw.random() < SILENT_SHARE:
                await loop.create_future()
            raise ConnectionRefusedError(111, "Connection refused")
        if self._node != SENTINEL:
            self._incarnation = network.fleet.servers[self._node].incarnation
        self.is_open = True

    async def send_packed_command(self, payload: bytes, *, check_health: bool) -> None:
        """As `write`; raises if the connection is closed."""
        del check_health
        if not self.is_open:
            raise Lost("Connection closed")
        self.write(payload)

    def write(self, payload: bytes) -> None:
        """Put bytes on their way."""
        network = self._network
        delay_s = network.one_way_s()
        if network.strikes("request lost, to", self._node):
            self._break()
            return
        if network.strikes("request delayed, to", self._node):
            delay_s = network.fleet.draw.uniform(*LONG_S)
        self._later(delay_s, self._arrive, commands_of(payload))

    async def read_response(self, **_: Any) -> Any:
        """The next reply, for which it waits; error replies are raised."""
        while not self.inbox:
            self._arrived.clear()
            await self._arrived.wait()
        reply = self.inbox.popleft()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def abort(self) -> None:
        """The caller closes it; what was sent may still arrive."""
        self.is_open = False

    async def disconnect(self, *, nowait: bool) -> None:
        del nowait
        self.abort()

    # --- the server's end -----------------------------------------------------------------------------------------

    def _is_up(self) -> bool:
        return self._node == SENTINEL or self._network.fleet.servers[self._node].alive

    def _is_same(self) -> bool:
        """Whether the server process that it was connected to still runs."""
        return self._node == SENTINEL or self._network.fleet.servers[self._node].incarnation == self._incarnation

    def _break(self) -> None:
        """End the connection; now and then without telling the caller."""
        self.is_open = False
        if self._network.fleet.draw.random() >= SILENT_SHARE:
            self._put(Lost("Connection closed by server."))

    def _put(self, reply: Any) -> None:
        self.inbox.append(reply)
        self._arrived.set()

    def _arrive(self, commands: list[list[bytes]]) -> None:
        self._work += commands
        if not self._working:
            self._go_on()

    def _go_on(self) -> None:
        """Answer what has arrived; a WAIT holds up what is behind it."""
        self._working = False
        fleet = self._network.fleet
        while self._work:
            if not self._is_same() or not self._is_up():
                self._work.clear()
                self._break()
                return
            command = self._work.popleft()
            if command[0] == b"WAIT":
                self._working = True
                until = fleet.loop.time() + int(command[2]) / 1000
                self._wait(int(command[1]), until)
                return
            self._reply(self._answer(command))

    def _answer(self, command: list[bytes]) -> Any:
        fleet = self._network.fleet
        if command[0] == b"ASKING":
            self._asking = True
            return b"OK"
        server = fleet.servers.get(self._node)
        if server is not None and fleet.draw.random() < FLUSH_RATE * bool(self._network.rate):
            server.scripts.clear()
        asking, self._asking = self._asking, False
        try:
            reply = fleet.answer(self._node, command, asking=asking)
        except Refusal as refused:
            self._network.tell(f"{self._node[0]} says {refused}")
            return ResponseError(str(refused))
        if server is not None:
            self._offset = server.shard.offset
        return reply

    def _wait(self, wanted: int, until: float) -> None:
        """Answer when the replica has what was written, or the time is over."""
        loop, shard = self._network.fleet.loop, self._network.fleet.servers[self._node].shard
        if not self._is_same():
            self._go_on()
            return
        shard.replicate(loop.time())
        at = shard.replicated_at(self._offset)
        done = at is not None and at <= loop.time()
        if done or loop.time() >= until:
            self._reply(min(wanted, int(done)))
            self._go_on()
            return
        loop.call_at(min(until, loop.time() + 0.01 if at is None else at), self._wait, wanted, until)

    def _reply(self, reply: Any) -> None:
        network = self._network
        delay_s = network.one_way_s()
        if network.strikes("reply lost, from", self._node):
            self._break()
            return
        if network.strikes("reply delayed, from", self._node):
            delay_s = network.fleet.draw.uniform(*LONG_S)
        self._later(delay_s, self._deliver, reply)

    def _later(self, delay_s: float, do: Callable[[Any], None], what: Any) -> None:
        """Behind all that is on its way: the loop keeps no order among things of one instant."""
        loop = self._network.fleet.loop
        self._ready_at = max(self._ready_at + INSTANT_S, loop.time() + delay_s)
        loop.call_at(self._ready_at, do, what)

    def _deliver(self, reply: Any) -> None:
        """It reaches the caller, unless the connection ended on the way."""
        if self.is_open:
            self._put(reply)
