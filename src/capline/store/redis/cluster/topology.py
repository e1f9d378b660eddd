"""Which server serves which key: the only one, the sentinels' master, or by a cluster's map of slots. No I/O."""

from typing import Any

from capline.store.redis.io.url import Address, Settings
from capline.store.redis.io.wire import NoReply, Reply, ServerError, pack
from capline.store.redis.scripting.keys import SLOTS


class Topology:
    """The servers as known now. Threads share it: each change replaces a whole value."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.shape = settings.shape
        self._slots: list[Address | None] = [None] * SLOTS
        self._primary: Address | None = settings.seeds[0] if self.shape == "single" else None
        self._known: tuple[Address, ...] = settings.seeds
        self.stale = self.shape != "single"
        """Whether to read the topology before the next call; if no server answers, the known one stays in use."""

    @property
    def by_slot(self) -> bool:
        """Whether the keys of one script call must be in one slot."""
        return self.shape == "cluster"

    def node(self, slot: int) -> Address | None:
        """The server of the slot; None if unknown."""
        return self._slots[slot] if self.shape == "cluster" else self._primary

    def primaries(self) -> list[Address]:
        """Every known server that holds logs."""
        if self.shape == "cluster":
            return sorted({node for node in self._slots if node is not None})
        return [] if self._primary is None else [self._primary]

    def question(self) -> tuple[list[Address], bytes] | None:
        """Servers to query in this order, and the command; None for a single server, whose topology is fixed."""
        if self.shape == "cluster":
            return [*dict.fromkeys((*self.primaries(), *self._known))], pack(b"CLUSTER", b"SLOTS")
        if self.shape == "sentinel":
            return [*self._known], pack(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._settings.master.encode())
        return None

    def learn(self, asked: Address, reply: Reply) -> str | None:
        """Take over the topology in a reply; returns why if the reply has none."""
        if isinstance(reply, (ServerError, NoReply)):
            return reply.text
        try:
            if self.shape == "sentinel":
                if reply is None:
                    return f"the sentinel does not know a master named {self._settings.master!r}"
                self._primary = (reply[0].decode(), int(reply[1]))
            else:
                self._learn_slots(asked, reply)
            self.stale = False
        except (TypeError, ValueError, IndexError, AttributeError, UnicodeDecodeError):
            return "an answer that capline does not understand"
        return None

    def moved(self, slot: int, node: Address) -> None:
        """A MOVED redirect: this slot is now on that server."""
        slots = list(self._slots)
        slots[slot] = node
        self._slots = slots

    def doubt(self) -> None:
        """Mark the topology as possibly out of date."""
        self.stale = self.shape != "single"

    def _learn_slots(self, asked: Address, reply: list[list[Any]]) -> None:
        slots: list[Address | None] = [None] * SLOTS
        for first, last, primary, *_ in reply:
            host, port = primary[:2]
            # A server that does not know its own address leaves it out: it is the one that answered.
            node: Address = (host.decode() if host else asked[0], int(port))
            for slot in range(int(first), int(last) + 1):
                slots[slot] = node
        self._slots = slots
        self._known = tuple(dict.fromkeys((*(node for node in slots if node), *self._settings.seeds)))
