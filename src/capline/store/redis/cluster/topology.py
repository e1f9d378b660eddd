"""Which server answers for which key: one, the master that the sentinels name, or a cluster's map of slots. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capline.store.redis.io.wire import NoReply, ServerError, pack
from capline.store.redis.scripting.keys import SLOTS

if TYPE_CHECKING:
    from capline.store.redis.io.url import Address, Settings
    from capline.store.redis.io.wire import Reply

__all__ = ["Topology"]


class Topology:
    """What is known now. Threads share it: it is only ever replaced whole."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.shape = settings.shape
        self._slots: list[Address | None] = [None] * SLOTS
        self._primary: Address | None = settings.seeds[0] if self.shape == "single" else None
        self._known: tuple[Address, ...] = settings.seeds
        self.stale = self.shape != "single"
        """Whether it has to be asked again before a call; what was known serves where nobody answers."""

    @property
    def by_slot(self) -> bool:
        """Whether a script's keys must be of one slot."""
        return self.shape == "cluster"

    def node(self, slot: int) -> Address | None:
        """Who answers for the slot; None where that is not known."""
        return self._slots[slot] if self.shape == "cluster" else self._primary

    def primaries(self) -> list[Address]:
        """Every server that holds logs, as far as is known."""
        if self.shape == "cluster":
            return sorted({node for node in self._slots if node is not None})
        return [] if self._primary is None else [self._primary]

    def question(self) -> tuple[list[Address], bytes] | None:
        """Whom to ask, one after the other, and what; None where there is nothing to be found out."""
        if self.shape == "cluster":
            return [*dict.fromkeys((*self.primaries(), *self._known))], pack(b"CLUSTER", b"SLOTS")
        if self.shape == "sentinel":
            return [*self._known], pack(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._settings.master.encode())
        return None

    def learn(self, asked: Address, reply: Reply) -> str | None:
        """Take an answer in; why it is none, where it is none."""
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
            return "an answer that is not understood"
        return None

    def moved(self, slot: int, node: Address) -> None:
        """The cluster said that this slot is that server's now."""
        slots = list(self._slots)
        slots[slot] = node
        self._slots = slots

    def doubt(self) -> None:
        """What is known may no longer be so."""
        self.stale = self.shape != "single"

    def _learn_slots(self, asked: Address, reply: list[list[Any]]) -> None:
        slots: list[Address | None] = [None] * SLOTS
        for first, last, primary, *_ in reply:
            host, port = primary[:2]
            # A server that does not know its own address leaves it out: it is the one that was asked.
            node: Address = (host.decode() if host else asked[0], int(port))
            for slot in range(int(first), int(last) + 1):
                slots[slot] = node
        self._slots = slots
        self._known = tuple(dict.fromkeys((*(node for node in slots if node), *self._settings.seeds)))
