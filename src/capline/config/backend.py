"""Where a configuration is stored: one head, whose version counts commits, and tables of rows.

    commit    moves the head from `expected` to the next version in one atomic step: adds the commit to the feed, its
              rows to the pending ones, and changes totals. Returns False and does nothing if the version differs
    put       writes rows to their tables; a row is never replaced by one of a lower version
    settle    marks the rows of a version as written, and so no longer pending

The rule: after `commit` the change is made, even if its author is killed. Its rows are read from the pending ones until
any process has put and settled them; both may be repeated, and may come late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from capline.config.records import Row
    from capline.model.server_state import ServerState

MOST_FEED = 1024
"""Commits in the feed. A process that is further behind reads everything again."""


class Head(NamedTuple):
    """The head at one instant. `feed` has the commits since the known version, or is None if some are missing."""

    version: int
    now_us: int
    feed: list[bytes] | None
    pending: list[bytes]


class Backend(Protocol):
    """The storage of a configuration. Raises `StoreError` if it does not answer; threads may share it."""

    shared: bool
    """Whether other processes may change it."""

    def head(self, seen: int) -> Head:
        """The head, with the commits since version `seen`; its time is the server's, or this machine's."""
        ...

    def commit(self, expected: int, token: bytes, commit: bytes, pending: bytes, totals: Mapping[str, bytes]) -> bool:
        """See the module's text. Repeated with the same `token`, it returns True and does nothing."""
        ...

    def put(self, rows: Sequence[Row]) -> None:
        """See the module's text."""
        ...

    def settle(self, version: int) -> None:
        """See the module's text."""
        ...

    def get(self, table: str, names: Sequence[bytes]) -> list[bytes | None]:
        """Rows by name, in order, without the pending ones."""
        ...

    def policies(self) -> Iterable[tuple[bytes, bytes]]:
        """The names and rows of all policies; rows that are written meanwhile may be missing."""
        ...

    def overrides(self, policy: str, after: bytes = b"") -> Iterable[tuple[bytes, bytes]]:
        """Those of a policy's overrides, in an order that stays: after this name, whether or not it is there."""
        ...

    def totals(self, policies: Sequence[str] | None = None) -> dict[str, bytes]:
        """The totals of these policies, or of all."""
        ...

    def servers(self) -> list[ServerState]:
        """How each server is doing; empty where it is on this machine. Raises for none that is away."""
        return []

    def close(self) -> None:
        """Close files and connections."""
        ...
