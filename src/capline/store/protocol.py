"""The protocol of stores: the same verbs for every store, each attempt one atomic step.

A store compiles each `BoundPolicy` once (`compiled`); every attempt then comes with the compiled rule. The conformance
suite in `capline.testing` is the law for every store; it compares each with `capline.window`. A store that inherits
the protocol and forgets a verb cannot be made: every verb is abstract.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from capline.model.errors import CaplineError
from capline.model.subject import Subject
from capline.window.log import Hit
from capline.window.merge import Merged, Row

if TYPE_CHECKING:
    import numpy as np  # noqa: TC004 - `Batch` is never decoded, so nobody asks for its types
    from numpy.typing import NDArray  # noqa: TC004 - as above

    from capline.model.decision import Decision, Joint
    from capline.model.policy import BoundPolicy
    from capline.model.server_state import ServerState
    from capline.store.columns import Decisions

__all__ = ["AsyncStore", "Batch", "CompiledRule", "Merge", "Page", "ScannedLog", "Store", "StoreAttempt"]


class CompiledRule(Protocol):
    """A rule in the store's own form; only its fast path is known to others."""

    decide_one: Callable[[Subject], Decision]
    """`Store.decide` with a cost of 1 and no id, bound to the rule; it checks the subject itself."""


class StoreAttempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt, resolved and checked. `fingerprint` is 64 bits of the attempt's id, 0 where it has none."""

    compiled: Any
    subject: Subject
    cost: int = 1
    fingerprint: int = 0


class Batch(msgspec.Struct, frozen=True):
    """Many attempts of one policy, as columns.

    `compiled[codes[i]]` is the rule of `subjects[i]` (no codes: `compiled[0]` for all); `cost` is the same for all.
    Integer subjects may be an int64 or uint64 array without negative numbers; for a receipt that is the same batch as a
    list of them. A `receipt` makes the batch safe to resend: the store keeps the answers under that name, in the step
    that records the hits, and returns them for the same batch for as long as the widest window, whatever limits and
    layout it then has. `asked` is the digest of what the caller passed (`capline.store.receipts`).
    """

    compiled: tuple[Any, ...]
    subjects: Sequence[Subject] | NDArray[np.integer[Any]]
    codes: NDArray[np.uint16] | None = None
    cost: int = 1
    receipt: str | None = None
    asked: bytes = b""


class Merge(msgspec.Struct, frozen=True):
    """Past hits of one subject, for every log of the rule."""

    compiled: Any
    subject: Subject
    hits: Sequence[Row]
    exported: bool = False
    """Whether they are of a store's own log: then a stamp is enough to know a hit by."""


class ScannedLog(msgspec.Struct, frozen=True):
    """One log found by a scan; `error` is set if its hits or its subject cannot be read."""

    log: str
    subject: Subject | None
    hits: Sequence[Hit] = ()
    error: CaplineError | None = None


class Page(msgspec.Struct, frozen=True):
    """A page of a scan. `after` is the store's own cursor for the next page; None at the end."""

    found: list[ScannedLog]
    after: Any = None


class Store(Protocol):
    """The verbs. Subjects and costs come checked; a store raises `StoreError` where it cannot answer."""

    may_lose_answers: bool
    """Whether a call may have run although no answer came, as with a store behind a network."""

    @abstractmethod
    def compiled(self, rule: BoundPolicy) -> CompiledRule:
        """The rule in the store's own form; called once for each rule, and again when policies are reloaded."""
        ...

    @abstractmethod
    def decide(self, compiled: Any, subject: Subject, cost: int, fingerprint: int) -> Decision:
        """Decide and record."""
        ...

    @abstractmethod
    def peek(self, compiled: Any, subject: Subject, cost: int, fingerprint: int) -> Decision:
        """What `decide` would answer; records nothing. A cost of 0 asks whether no limit is past its quota."""
        ...

    @abstractmethod
    def charge(self, compiled: Any, subject: Subject, cost: int, fingerprint: int) -> Decision:
        """Record the cost, whatever the limits say; raises `InvalidValueError` for more than a log can count."""
        ...

    @abstractmethod
    def settle(self, compiled: Any, subject: Subject, stamp_us: int, cost: int) -> bool:
        """Give the hit with this stamp this cost, as `window.refund.settle`; False if there is no such hit."""
        ...

    @abstractmethod
    def reserve(self, compiled: Any, subject: Subject, cost: int, fingerprint: int, ttl_us: int) -> Decision:
        """Decide; a hit that is recorded holds for `ttl_us` from its stamp on, unless it is committed."""
        ...

    @abstractmethod
    def commit(self, compiled: Any, subject: Subject, stamp_us: int) -> bool:
        """Make the reserved hit with this stamp an ordinary one, as `window.reservation.commit`; whether it counts."""
        ...

    @abstractmethod
    def schedule(
        self,
        compiled: Any,
        subject: Subject,
        cost: int,
        fingerprint: int,
        max_wait_us: int | None,
        not_before_us: int = 0,
    ) -> Decision:
        """Take the next free instant that is `not_before_us` away or more, if it is at most `max_wait_us` away."""
        ...

    @abstractmethod
    def refund(self, compiled: Any, subject: Subject, stamp_us: int, cost: int = 1) -> bool:
        """Refund the hit with this stamp; False if there is none in the widest window, or it was refunded before.

        `cost` is the hit's cost, for algorithms that keep sums.
        """
        ...

    @abstractmethod
    def decide_all(self, attempts: Sequence[StoreAttempt], /) -> Joint:
        """One attempt over several subjects, each on a log of its own: all or nothing."""
        ...

    @abstractmethod
    def peek_all(self, attempts: Sequence[StoreAttempt], /) -> Joint:
        """What `decide_all` would answer; records nothing."""
        ...

    @abstractmethod
    def schedule_all(
        self, attempts: Sequence[StoreAttempt], max_wait_us: int | None, not_before_us: int = 0, /
    ) -> Joint:
        """`schedule` for several logs: one instant for all, in one atomic step, or nothing; `capline.window.joint`.

        Raises `InvalidValueError` where the logs are not in one place, so that no step is atomic.
        """
        ...

    @abstractmethod
    def decide_batch(self, attempts: Sequence[StoreAttempt], /) -> list[Decision | CaplineError]:
        """Many attempts of any policies, in order; an item that fails is its error, and fails no other."""
        ...

    @abstractmethod
    def decide_many(self, batch: Batch) -> Decisions:
        """Many attempts of one policy, in order, as columns."""
        ...

    @abstractmethod
    def peek_many(self, batch: Batch) -> Decisions:
        """What `decide_many` would answer to each alone; records nothing."""
        ...

    @abstractmethod
    def refund_many(
        self, compiled: Any, subjects: Sequence[Subject], stamps_us: Sequence[int], cost: int = 1
    ) -> NDArray[np.bool_]:
        """`refund` for many hits of one policy."""
        ...

    @abstractmethod
    def recorded(self, compiled: Any, subject: Subject) -> list[list[Hit]]:
        """The hits in each log of the rule within the widest window, oldest first; refunded ones have 0 units."""
        ...

    @abstractmethod
    def merge(self, merges: Sequence[Merge], /) -> list[Merged | CaplineError]:
        """Merge past hits into logs (`capline.window.merge`), each item in one atomic step.

        An item that fails is its error, and fails no other. The same merge again adds nothing.
        """
        ...

    @abstractmethod
    def scan(self, compiled: Sequence[Any], after: Any = None) -> Page:
        """A page of the logs of these rules and their channels, with the hits within the widest window.

        The first call has no `after`, each next call that of the page before. A log that exists during the whole scan
        is found at least once, on a server perhaps twice; one that is created or removed meanwhile may be found or not.
        """
        ...

    @abstractmethod
    def erase(self, compiled: Sequence[Any], subject: Subject) -> int:
        """Forget the subject in every log of these rules, their channels' too; returns how many logs held something."""
        ...

    @abstractmethod
    def sweep(self, compiled: Sequence[Any], /) -> int:
        """Remove every log whose last hit is older than the widest window on it; returns how many.

        A store that does not list its logs looks at those of these rules.
        """
        ...

    @abstractmethod
    def stats(self) -> dict[str, int]:
        """Figures of the store itself, by name; empty if it has none. Waits for no server."""
        ...

    @abstractmethod
    def servers(self) -> list[ServerState]:
        """How each server that holds logs is doing; empty for a store of this machine."""
        ...

    @abstractmethod
    def try_write(self) -> None:
        """Raise what would keep a new log from being recorded now, such as a full disk; nothing is recorded."""
        ...

    @abstractmethod
    def now_us(self) -> int:
        """The instant that the store would decide at."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections. Safe to call twice."""
        ...


class AsyncStore(Protocol):
    """The verbs of `Store`, awaited, with the same meaning. `compiled` and `stats` do no I/O and are not awaited."""

    may_lose_answers: bool
    """Whether a call may have run although no answer came."""

    @abstractmethod
    def compiled(self, rule: BoundPolicy) -> CompiledRule:
        """The rule in the store's own form; its fast path is of no use here, as it is not awaited."""
        ...

    @abstractmethod
    async def decide(self, compiled: Any, subject: Subject, cost: int, fingerprint: int) -> Decision:
        """Decide and record."""
        ...

    @abstractmethod
    async def peek(self, compiled: Any, subject: Subject, cost: int, fingerprint: int) -> Decision:
        """What `decide` would answer; records nothing. A cost of 0 asks whether no limit is past its quota."""
        ...

    @abstractmethod
    async def charge(self, compiled: Any, subject: Subject, cost: int, fingerprint: int) -> Decision:
        """Record the cost, whatever the limits say; raises `InvalidValueError` for more than a log can count."""
        ...

    @abstractmethod
    async def settle(self, compiled: Any, subject: Subject, stamp_us: int, cost: int) -> bool:
        """Give the hit with this stamp this cost, as `window.refund.settle`; False if there is no such hit."""
        ...

    @abstractmethod
    async def reserve(self, compiled: Any, subject: Subject, cost: int, fingerprint: int, ttl_us: int) -> Decision:
        """Decide; a hit that is recorded holds for `ttl_us` from its stamp on, unless it is committed."""
        ...

    @abstractmethod
    async def commit(self, compiled: Any, subject: Subject, stamp_us: int) -> bool:
        """Make the reserved hit with this stamp an ordinary one, as `window.reservation.commit`; whether it counts."""
        ...

    @abstractmethod
    async def schedule(
        self,
        compiled: Any,
        subject: Subject,
        cost: int,
        fingerprint: int,
        max_wait_us: int | None,
        not_before_us: int = 0,
    ) -> Decision:
        """Take the next free instant that is `not_before_us` away or more, if it is at most `max_wait_us` away."""
        ...

    @abstractmethod
    async def refund(self, compiled: Any, subject: Subject, stamp_us: int, cost: int = 1) -> bool:
        """Refund the hit with this stamp; False if there is none in the widest window, or it was refunded before."""
        ...

    @abstractmethod
    async def decide_all(self, attempts: Sequence[StoreAttempt], /) -> Joint:
        """One attempt over several subjects, each on a log of its own: all or nothing."""
        ...

    @abstractmethod
    async def peek_all(self, attempts: Sequence[StoreAttempt], /) -> Joint:
        """What `decide_all` would answer; records nothing."""
        ...

    @abstractmethod
    async def schedule_all(
        self, attempts: Sequence[StoreAttempt], max_wait_us: int | None, not_before_us: int = 0, /
    ) -> Joint:
        """`schedule` for several logs: one instant for all, in one atomic step, or nothing."""
        ...

    @abstractmethod
    async def decide_batch(self, attempts: Sequence[StoreAttempt], /) -> list[Decision | CaplineError]:
        """Many attempts of any policies, in order; an item that fails is its error, and fails no other."""
        ...

    @abstractmethod
    async def decide_many(self, batch: Batch) -> Decisions:
        """Many attempts of one policy, in order, as columns."""
        ...

    @abstractmethod
    async def peek_many(self, batch: Batch) -> Decisions:
        """What `decide_many` would answer to each alone; records nothing."""
        ...

    @abstractmethod
    async def refund_many(
        self, compiled: Any, subjects: Sequence[Subject], stamps_us: Sequence[int], cost: int = 1
    ) -> NDArray[np.bool_]:
        """`refund` for many hits of one policy."""
        ...

    @abstractmethod
    async def recorded(self, compiled: Any, subject: Subject) -> list[list[Hit]]:
        """The hits in each log of the rule within the widest window, oldest first; refunded ones have 0 units."""
        ...

    @abstractmethod
    async def merge(self, merges: Sequence[Merge], /) -> list[Merged | CaplineError]:
        """Merge past hits into logs (`capline.window.merge`), each item in one atomic step."""
        ...

    @abstractmethod
    async def scan(self, compiled: Sequence[Any], after: Any = None) -> Page:
        """A page of the logs of these rules and their channels, with the hits within the widest window."""
        ...

    @abstractmethod
    async def erase(self, compiled: Sequence[Any], subject: Subject) -> int:
        """Forget the subject in every log of these rules, their channels' too; returns how many logs held something."""
        ...

    @abstractmethod
    async def sweep(self, compiled: Sequence[Any], /) -> int:
        """Remove every log whose last hit is older than the widest window on it; returns how many."""
        ...

    @abstractmethod
    def stats(self) -> dict[str, int]:
        """Figures of the store itself, by name; empty if it has none."""
        ...

    @abstractmethod
    async def servers(self) -> list[ServerState]:
        """How each server that holds logs is doing; empty for a store of this machine."""
        ...

    @abstractmethod
    async def try_write(self) -> None:
        """As `Store.try_write`."""
        ...

    @abstractmethod
    async def now_us(self) -> int:
        """The instant that the store would decide at."""
        ...

    @abstractmethod
    async def close(self) -> None:
        """Let go of files and connections. Safe to call twice."""
        ...

    async def aclose(self) -> None:
        """As `close`, for `contextlib.aclosing`."""
        await self.close()
