"""Routes calls, sends them to all servers at once, and resends those that did not run. No I/O.

Each function is a generator: it yields what to exchange (see `wire`) and is sent the replies. What follows when a call
gets no ordinary answer:

    answer                                      did it run?      what follows
    ──────────────────────────────────────────  ───────────────  ─────────────────────────────────────────────────────
    NOSCRIPT                                    no               the script is loaded and the call sent again
    MOVED, ASK                                  no               sent to the server that was named (ASK: this once);
                                                                 by one that is no cluster's: an error
    TRYAGAIN, CLUSTERDOWN, LOADING, BUSY, …     no               sent again after a pause, until the deadline
    READONLY, no connection                     no               the topology is read again, and the call sent again
    OOM, NOPERM, a full connection table, …     no               an error that says so: nothing was recorded
    connection lost, no answer by the deadline  nobody knows     `StoreUnknownError`; repeatable calls are sent again
    too few replicas have it (WAIT)             yes, here        `StoreUnknownError`

A script is refused whole or runs whole: its first line makes the server check memory and role before it starts.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence

import msgspec

from capline.model.errors import (
    CaplineError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    StoreUnknownError,
)
from capline.store.redis.cluster.breaker import Breaker
from capline.store.redis.cluster.topology import Topology
from capline.store.redis.io.url import Address, Settings
from capline.store.redis.io.wire import (
    ASKING,
    Exchange,
    NoReply,
    Pause,
    Read,
    Reply,
    Request,
    ServerError,
    Steps,
    Write,
    pack,
)
from capline.store.redis.scripting.scripts import Call, Script

_REDIRECTS = ("MOVED", "ASK")
_LATER = frozenset(("TRYAGAIN", "CLUSTERDOWN", "LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "UNKILLABLE"))
_REFUSED = {
    "OOM": "the server's memory is full; raise maxmemory (with maxmemory-policy noeviction) or add a server",
    "MISCONF": "the server takes no writes, as it cannot save to its disk",
    "NOPERM": "the user may not do this; docs/reference/stores.md has the ACL line that is needed",
    "NOAUTH": "the server wants a password; put it in the URL",
    "WRONGPASS": "the server did not take the user name or password of the URL",
    "CROSSSLOT": "keys of one call lie in different slots",
    "WRONGTYPE": "a key is of another kind",
    **dict.fromkeys(_REDIRECTS, "this server is part of a cluster; write redis+cluster:// for redis:// in the URL"),
}
FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.1
WAIT_MS = 600
"""WAIT gets this share of the remaining deadline; connecting and the reply need the rest."""
MOST_REDIRECTS = 16
"""Resends in a row without a pause; then there is one, since servers may redirect in circles."""


class UnderReplicated(msgspec.Struct, frozen=True):
    """A reply whose writes too few replicas have: its allowed rows may be lost in a failover."""

    reply: Reply
    error: StoreUnknownError


class InFlight(msgspec.Struct):
    """Calls in flight.

    `sent` has for each request: its server, its calls' numbers, whether it follows an ASK, the scripts that it loads,
    and the names that it tells first.
    """

    calls: Sequence[Call]
    outcomes: list[Reply]
    sent: list[tuple[Address, list[int], bool, list[bytes], list[bytes]]]
    replicas: int = 0
    todo: list[int] = msgspec.field(default_factory=list[int])

    def fail(self, i: int, error: StoreError) -> None:
        """Set the error of call i, unless a resend answers it. A call that may have run stays unknown."""
        if not isinstance(self.outcomes[i], StoreUnknownError):
            self.outcomes[i] = error


class Names(msgspec.Struct):
    """Names that are to lie in a hash of a server: they go along with the next calls to it, and again on the way."""

    key: bytes
    slot: int
    names: dict[bytes, bytes] = {}
    missing: dict[bytes, bytes] = {}
    """Those that no answer has confirmed, or not for so long."""
    least_ms: int = sys.maxsize
    """The shortest time that what a name stands for lives, and the longest: they are told twice in the shortest."""
    most_ms: int = 0
    due_s: float = 0.0

    def add(self, name: bytes, lives_ms: int) -> None:
        """Tell this name from now on."""
        self.least_ms, self.most_ms = min(self.least_ms, lives_ms), max(self.most_ms, lives_ms)
        if name not in self.names:
            self.names[name] = self.missing[name] = b""

    def due(self) -> list[bytes]:
        """Those to tell now."""
        now = time.monotonic()
        if now >= self.due_s:
            self.due_s = now + self.least_ms / 2000
            self.missing.update(self.names)
        return [*self.missing]

    def commands(self, names: list[bytes]) -> list[bytes]:
        """What tells these; the hash outlives what is written before they are told again."""
        lives = b"%d" % (3 * self.most_ms)
        put = pack(b"HSET", self.key, *(part for name in names for part in (name, b"")))
        return [put, *(pack(b"PEXPIRE", self.key, lives, when) for when in (b"NX", b"GT"))]


class Router:
    """One store's view of its servers. Threads share it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.topology = Topology(settings)
        self.breakers: dict[Address, Breaker] = {}
        self._loaded: set[tuple[Address, bytes]] = set()
        """Which server was sent which script; it may have flushed it since."""
        self.names: Names | None = None
        self._why_unknown = ""

    def breaker(self, node: Address) -> Breaker:
        """The server's circuit breaker."""
        found = self.breakers.get(node)
        if found is None:
            found = self.breakers.setdefault(node, Breaker())
        return found

    def untold(self, node: Address) -> list[bytes]:
        """The names to tell this server now."""
        names = self.names
        return names.due() if names is not None and self.topology.node(names.slot) == node else []

    def straight(self, call: Call, replicas: int) -> Address | None:
        """The server to ask by this call and nothing else; None where there is more to do."""
        node = self.topology.node(call.slot)
        if replicas or node is None or self.topology.stale or self.breaker(node).failures or self.untold(node):
            return None
        return node

    def run(self, calls: Sequence[Call], until: float, replicas: int = 0) -> Steps[list[Reply | CaplineError]]:
        """Every call's reply, or the error that it ends with; in order."""
        flight = yield from self.start(calls, until, replicas)
        return (yield from self.finish(flight, until))

    def start(self, calls: Sequence[Call], until: float, replicas: int = 0) -> Steps[InFlight]:
        """Send the calls; `finish` reads the replies. Several may be in flight; finish them in order."""
        flight = InFlight(calls, [None] * len(calls), [], replicas, [*range(len(calls))])
        yield from self._know(until)
        requests = self._requests(flight, {}, set(), until)
        yield Write(requests, until)
        return flight

    def resume(self, call: Call, reply: Reply, node: Address, until: float) -> Steps[Reply | CaplineError]:
        """Go on from the first reply to a single call, which was no answer."""
        flight = InFlight([call], [None], [(node, [0], False, [], [])])
        outcomes = yield from self._go_on(flight, [[reply]], until)
        return outcomes[0]

    def finish(self, flight: InFlight, until: float) -> Steps[list[Reply | CaplineError]]:
        """Read the replies, and send again what did not run."""
        answers = yield Read(until)
        return (yield from self._go_on(flight, answers, until))

    def _go_on(self, flight: InFlight, answers: list[list[Reply]], until: float) -> Steps[list[Reply | CaplineError]]:
        pause_s, redirects, round_trip_s = FIRST_PAUSE_S, 0, 0.0
        while True:
            again, asking, load, wait = self._sort(flight, answers, until)
            if not again:
                return flight.outcomes
            redirects += 1
            if wait or redirects == MOST_REDIRECTS:
                redirects = 0
                wait_s = pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
                # A resend too late for its answer would turn "not recorded" into "unknown".
                if time.monotonic() + wait_s + max(wait_s, 2 * round_trip_s) > until:
                    return flight.outcomes
                yield Pause(wait_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            flight.todo = again
            yield from self._know(until)
            requests = self._requests(flight, asking, load, until)
            sent_at = time.monotonic()
            answers = (yield Exchange(requests, until)) if requests else []
            round_trip_s = time.monotonic() - sent_at

    def _know(self, until: float) -> Steps[None]:
        """Read the topology if it is in doubt; without an answer the known one stays in use."""
        if not self.topology.stale:
            return
        question = self.topology.question()
        if question is None:
            return
        nodes, payload = question
        now = time.monotonic()
        for node in nodes:
            if now >= until:
                return
            if self.breaker(node).blocks(now):
                continue
            # One that hangs must leave time for the next.
            mine = now + (until - now) / 2
            [[reply]] = yield Exchange([Request(node, payload, 1)], mine)
            self._tell_breaker(node, [reply])
            now = time.monotonic()
            why = self.topology.learn(node, reply)
            self._why_unknown = f" ({_place(node)}: {why})" if why else ""
            if why is None:
                return

    def _requests(
        self, flight: InFlight, asking: dict[int, Address], load: set[Address], until: float
    ) -> list[Request]:
        """The calls to send, by server; a call without a reachable server gets its error at once."""
        by_node: dict[tuple[Address, bool], list[int]] = {}
        now = time.monotonic()
        for i in flight.todo:
            ask = asking.get(i)
            node = ask or self.topology.node(flight.calls[i].slot)
            if node is None:
                self.topology.doubt()
                seeds = ", ".join(map(_place, self.settings.seeds[:3]))
                error = f"{seeds}: no server says who serves this key{self._why_unknown}"
                flight.fail(i, StoreUnavailableError(f"{error}; nothing was recorded"))
                continue
            by_node.setdefault((node, ask is not None), []).append(i)
        requests: list[Request] = []
        flight.sent = []
        for (node, ask), numbers in by_node.items():
            if self.breaker(node).blocks(now):
                error = StoreUnavailableError(
                    f"{_place(node)}: {self.breaker(node).why}; it is left alone for a moment; nothing was recorded"
                )
                for i in numbers:
                    flight.fail(i, error)
                continue
            names = self.untold(node)
            told = self.names.commands(names) if self.names and names else []
            parts = [*told]
            scripts: dict[bytes, Script] = {}
            if node in load:
                scripts = {one.sha: one for i in numbers if (one := flight.calls[i].script)}
            elif flight.replicas:
                # The NOSCRIPT of a missing script would come only after a WAIT that took most of the deadline.
                given = self._loaded
                scripts = {
                    one.sha: one for i in numbers if (one := flight.calls[i].script) and (node, one.sha) not in given
                }
            parts += [pack(b"SCRIPT", b"LOAD", one.text) for one in scripts.values()]
            parts += [(ASKING if ask else b"") + flight.calls[i].payload for i in numbers]
            if flight.replicas:
                parts.append(pack(b"WAIT", b"%d" % flight.replicas, b"%d" % max(1, int((until - now) * WAIT_MS))))
            replies = len(told) + len(scripts) + len(numbers) * (2 if ask else 1) + (1 if flight.replicas else 0)
            requests.append(Request(node, b"".join(parts), replies))
            flight.sent.append((node, numbers, ask, [*scripts], names))
        return requests

    def _sort(
        self, flight: InFlight, answers: list[list[Reply]], until: float
    ) -> tuple[list[int], dict[int, Address], set[Address], bool]:
        """Assign each reply to its call.

        Returns which calls to resend, which of them follow an ASK, where a script is missing, and whether to pause.
        """
        again: list[int] = []
        asking: dict[int, Address] = {}
        load: set[Address] = set()
        wait = False
        in_time = time.monotonic() < until
        for (node, numbers, ask, loaded, names), all_replies in zip(flight.sent, answers, strict=True):
            self._tell_breaker(node, all_replies)
            replies = self._behind_names(all_replies, names)
            if loaded:
                refused = next((one for one in replies[: len(loaded)] if isinstance(one, (ServerError, NoReply))), None)
                replies = replies[len(loaded) :]
                if refused is None:
                    self._loaded.update((node, sha) for sha in loaded)
                else:
                    # But for calls whose script somebody else loaded: they ran.
                    replies = [
                        refused if isinstance(one, ServerError) and one.code == "NOSCRIPT" else one for one in replies
                    ]
            short = self._short_of_replicas(flight.replicas, replies, node)
            for at, i in enumerate(numbers):
                call, reply = flight.calls[i], replies[2 * at + 1 if ask else at]
                if not isinstance(reply, (ServerError, NoReply)):
                    flight.outcomes[i] = reply if short is None else UnderReplicated(reply, short)
                    continue
                flight.fail(i, self._error(node, reply))
                verdict = self._verdict(call, reply, node, asking, i)
                if verdict == "no" or not in_time:
                    continue
                again.append(i)
                if verdict == "load":
                    load.add(node)
                    if ask:
                        asking[i] = node
                elif verdict == "later":
                    wait = True
        return again, asking, load, wait

    def _behind_names(self, replies: list[Reply], told: list[bytes]) -> list[Reply]:
        """The replies without those to these names, which are told again where one of them is an error."""
        if self.names is None or not told:
            return replies
        own = len(self.names.commands(told))
        if not any(isinstance(reply, (ServerError, NoReply)) for reply in replies[:own]):
            for name in told:
                self.names.missing.pop(name, None)
        return replies[own:]

    def _verdict(  # noqa: PLR0911 - one line for each line of the table above
        self, call: Call, reply: ServerError | NoReply, asked: Address, asking: dict[int, Address], i: int
    ) -> str:
        """What to do with a call that was not answered: `load` the script, resend `now` or `later`, or `no` resend."""
        if isinstance(reply, NoReply):
            self.topology.doubt()
            if not reply.sent:
                return "later"
            call.resent = call.repeatable
            return "later" if call.repeatable else "no"
        if reply.code == "NOSCRIPT":
            return "load"
        if reply.code in _REDIRECTS:
            if not self.topology.by_slot:
                return "no"
            words = reply.text.split()
            host, _, port = words[2].rpartition(":")
            node = (host or asked[0], int(port))
            if reply.code == "ASK":
                asking[i] = node
            else:
                self.topology.moved(int(words[1]), node)
                self.topology.doubt()
            return "now"
        if reply.code == "READONLY":
            self.topology.doubt()
            return "later"
        if reply.code in _LATER or _no_room(reply):
            if reply.code == "CLUSTERDOWN":
                self.topology.doubt()
            return "later"
        return "no"

    def _short_of_replicas(self, wanted: int, replies: list[Reply], node: Address) -> StoreUnknownError | None:
        if not wanted or not replies:
            return None
        have = replies[-1]
        if isinstance(have, int) and have >= wanted:
            return None
        count = (
            f"{have} of {wanted} replicas have it" if isinstance(have, int) else "whether replicas have it is not known"
        )
        return StoreUnknownError(f"{_place(node)}: recorded, but {count} by the deadline; a failover may lose it")

    def _error(self, node: Address, reply: ServerError | NoReply) -> StoreError:  # noqa: PLR0911 - as `_verdict`
        """The error of a call that is not sent again."""
        place = _place(node)
        if isinstance(reply, NoReply):
            if reply.sent:
                return StoreUnknownError(f"{place}: {reply.text}; whether the attempt was recorded is not known")
            return StoreUnavailableError(f"{place}: {reply.text}; nothing was recorded")
        if reply.code == "OOM":
            return StoreFullError(f"{place}: {_REFUSED['OOM']}; nothing was recorded")
        if reply.code == "WRONGTYPE":
            return StoreDamagedError(f"{place}: {_REFUSED['WRONGTYPE']} than capline writes; nothing was recorded")
        if reply.code == "CERTIFICATE":
            return StoreUnavailableError(
                f"{place}: its certificate is not trusted ({reply.text}); name one to trust: ca=; nothing was recorded"
            )
        if reply.code == "CONNECT":
            fix = "; name a database that it has" if "DB index" in reply.text else ""
            return StoreUnavailableError(
                f"{place}: it refuses the connection ({reply.text}){fix}; nothing was recorded"
            )
        followed = _REDIRECTS if self.topology.by_slot else ()
        if reply.code in _LATER or reply.code in ("READONLY", "NOSCRIPT", *followed):
            return StoreUnavailableError(f"{place}: {reply.text}; nothing was recorded")
        if reply.code in _REFUSED:
            return StoreUnavailableError(f"{place}: {_REFUSED[reply.code]}; nothing was recorded")
        if _no_room(reply):
            return StoreUnavailableError(
                f"{place}: the server has no connection left (maxclients); nothing was recorded"
            )
        return StoreUnknownError(f"{place}: {reply.text}; whether the attempt was recorded is not known")

    def _tell_breaker(self, node: Address, replies: list[Reply]) -> None:
        breaker = self.breaker(node)
        gone = next((reply for reply in replies if isinstance(reply, NoReply)), None)
        if gone is not None:
            breaker.failed(time.monotonic(), gone.text)
        else:
            breaker.answered()


def _no_room(reply: ServerError) -> bool:
    """Whether the server has no connection left (`maxclients`)."""
    return reply.code == "ERR" and "max number of clients" in reply.text


def _place(node: Address) -> str:
    return f"{node[0]}:{node[1]}" if ":" not in node[0] else f"[{node[0]}]:{node[1]}"
