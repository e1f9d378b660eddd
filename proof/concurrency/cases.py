"""The cases: so many callers of one kind on one store under one limit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LIMITS", "STORES", "SUBJECTS", "Case", "cases"]

LIMITS = {"1/50ms": (1, 50_000), "10/s": (10, 1_000_000), "1000/5s": (1000, 5_000_000)}
STORES = ("lmdb", "redis", "valkey", "redis cluster", "valkey cluster")
SUBJECTS: tuple[str, ...] = ("{s}:0", "{s}:1", "{s}:2")
"""Only the first, but in joint cases."""
SLOTS = (("memory", "threads"), ("redis", "threads"), ("lmdb", "tasks"), ("redis cluster", "tasks"))
JOINT = (
    ("memory", "threads", False),
    ("memory", "tasks", True),
    ("redis", "threads", False),
    ("valkey cluster", "tasks", False),
    ("lmdb", "threads", True),
    ("redis cluster", "threads", True),
)
"""The last says whether they take slots too."""
OPTIONS = ("charges", "reservations", "settlements", "moves")
KINDS = ("threads", "tasks", "processes")
"""Each option on every store, with callers of these kinds in turn; but memory is of one process."""


@dataclass(frozen=True)
class Case:
    """So many callers of one kind on one store under one limit, for a while."""

    store: str
    limit: str
    kind: str
    callers: int
    seconds: float
    slots: bool = False
    joint: bool = False
    charges: bool = False
    reservations: bool = False
    settlements: bool = False
    moves: bool = False

    @property
    def name(self) -> str:
        """For people."""
        more = [word for word in ("slots", "joint", *OPTIONS) if getattr(self, word)]
        return ", ".join([self.store, f"{self.callers} {self.kind}", self.limit, *more])

    @property
    def subjects(self) -> tuple[str, ...]:
        """Who is asked for."""
        return SUBJECTS if self.joint else SUBJECTS[:1]


def cases() -> Iterator[Case]:
    """The long form."""
    for limit, (_, window_us) in LIMITS.items():
        seconds = max(2.0, 2.4 * window_us / 1e6)
        for store in STORES:
            for callers in (2, 8, 32):
                yield Case(store, limit, "processes", callers, seconds)
        for store in ("memory", "lmdb", "redis", "valkey cluster"):
            yield Case(store, limit, "threads", 64, seconds)
            yield Case(store, limit, "tasks", 64, seconds)
        for store in STORES:
            yield Case(store, limit, "processes", 8, seconds, slots=True)
        for store, kind in SLOTS:
            yield Case(store, limit, kind, 64, seconds, slots=True)
        for store in STORES:
            yield Case(store, limit, "processes", 8, seconds, joint=True)
        for store, kind, slots in JOINT:
            yield Case(store, limit, kind, 64, seconds, slots=slots, joint=True)
        yield from _with_options(limit, seconds)


def _with_options(limit: str, seconds: float) -> Iterator[Case]:
    for turn, option in enumerate(OPTIONS):
        for place, store in enumerate(("memory", *STORES)):
            case = Case(store, limit, KINDS[(turn + place) % 3 if place else turn % 2], 8, seconds)
            both = option == "settlements" and place % 2 == 0
            yield replace(case, **{option: True}, **({"reservations": True} if both else {}))
