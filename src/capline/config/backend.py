"""Where a configuration is written: one head, whose version counts commits, and tables of rows.

    commit    the head moves from `expected` to the next version, in one atomic step: the commit joins the feed, its
              rows become pending, totals change. False, and nothing happens, where the version is another one
    put       rows go to their places; a row is never replaced by one of a lower version
    settle    the rows of that version are in their places, and no longer pending

The rule: from `commit` on a change is made, whatever happens to who made it. Its rows are read from `pending` until
somebody, who may be anybody, has put and settled them: both may be done twice, and late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from capline.config.records import Row

__all__ = ["MOST_FEED", "Backend", "Head"]

MOST_FEED = 1024
"""Commits in the feed; who is further behind reads everything again."""


class Head(NamedTuple):
    """The head at one instant: `feed` has the commits since the version that was named, None if it has not all."""

    version: int
    now_us: int
    feed: list[bytes] | None
    pending: list[bytes]


class Backend(Protocol):
    """A configuration's place. Verbs raise `StoreError` where it does not answer; threads may share it."""

    shared: bool
    """Whether others may change what is there."""

    def head(self, known: int) -> Head:
        """The head, with the commits since the version `known`; its time is the server's, or this machine's."""
        ...

    def commit(self, expected: int, token: bytes, commit: bytes, pending: bytes, totals: Mapping[str, bytes]) -> bool:
        """See the module's text. The same `token` again is the same commit: True, and nothing happens."""
        ...

    def put(self, rows: Sequence[Row]) -> None:
        """See the module's text."""
        ...

    def settle(self, version: int) -> None:
        """See the module's text."""
        ...

    def get(self, table: str, names: Sequence[bytes]) -> list[bytes | None]:
        """Rows by name, in order; what is pending is not among them."""
        ...

    def walk(self, table: str, prefix: bytes = b"") -> Iterable[tuple[bytes, bytes]]:
        """All rows of a table whose names begin so; those written meanwhile may be among them or not."""
        ...

    def totals(self, policies: Sequence[str] | None = None) -> dict[str, bytes]:
        """The totals of these policies, or of all that have any."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...
