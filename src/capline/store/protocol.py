"""The protocol of stores: a few instructions, and operations as values; each operation one atomic step.

A store compiles each `BoundPolicy` once (`compiled`); every operation then comes with the compiled rule. The
conformance suite in `capline.testing` is the law for every store; it compares each with `capline.window`. A store that
inherits the protocol and forgets an instruction cannot be made: every one but `stats` is abstract.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

import msgspec

from capline.model.attempt import check_kept
from capline.model.errors import CaplineError
from capline.model.subject import Subject
from capline.window.log import Hit
from capline.window.merge import Merged, Row

if TYPE_CHECKING:
    import numpy as np  # noqa: TC004 - `Batch` is never decoded, so nobody asks for its types
    from numpy.typing import NDArray  # noqa: TC004 - as above

    from capline.model.attempt import Attempt
    from capline.model.decision import Decision, Joint
    from capline.model.policy import BoundPolicy
    from capline.model.server_state import ServerState

_P = ParamSpec("_P")
_T = TypeVar("_T")

Kind = Literal["decide", "peek", "schedule", "charge", "reserve", "move", "settle", "commit", "refund"]
"""What an operation does; `Operation` says more of each. On servers its place here is its number."""

Mode = Literal["decide", "peek", "refund"]
"""The kinds that come as columns."""


class CompiledRule(Protocol):
    """A rule in the store's own form; only its fast paths are known to others."""

    rule: BoundPolicy

    @property
    def decide_one(self) -> Callable[[Subject], Decision]:
        """The step `decide` with a cost of 1 and no id, bound to the rule; it checks the subject itself."""
        ...

    @property
    def ask(self) -> Callable[..., Decision] | None:
        """Where it is faster than `step`: `decide`, `peek`, `schedule` and, on one log, `reserve`.

        A function of (subject, cost, fingerprint, kind, bound_us), which checks the subject itself; the bound is that
        of `operation_of`.
        """
        ...

    @property
    def kept(self) -> dict[Any, Any]:
        """The same rule for each `keep_free` that was asked for lately; see `kept_rule`."""
        ...


MOST_KEPT = 1024
"""Rules of one rule that are compiled for a `keep_free` of their own: more begin anew."""


def kept_rule(compiled: Any, keep_free: int | Sequence[int], compile: Callable[[BoundPolicy], Any]) -> Any:
    """The compiled rule for attempts with this `keep_free`, which it checks."""
    key = check_kept(keep_free)
    found = compiled.kept.get(key)
    if found is None:
        rule = compiled.rule.keeping(key)
        found = compiled if rule is compiled.rule else compile(rule)
        if len(compiled.kept) >= MOST_KEPT:
            compiled.kept.clear()
        compiled.kept[key] = found
    return found


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One step on the logs of one subject, resolved and checked. Times are in microseconds.

    Answered with a `Decision`:

    decide    record the cost now, if every limit allows it
    peek      what `decide` would answer; records nothing. A cost of 0 asks whether no limit is past its quota
    charge    record the cost, whatever the limits say; raises `InvalidValueError` for more than a log can count
    reserve   decide; a hit that is recorded holds for `ttl_us` from its stamp on, unless it is committed
    schedule  take the next free instant that is `not_before_us` away or more, if at most `max_wait_us` (None: no bound)
    move      move the slot of this `fingerprint` (0: of `stamp_us`) to an earlier instant that has become free, as
              `window.rule.move`; the answer is where it is now. Only under `sliding_log` without `count_denied`

    Answered with a bool, and about the hit of `stamp_us`:

    settle    give it `cost` units, as `window.charge.settle`; False if there is no such hit
    commit    make the reserved hit an ordinary one, as `window.reservation.commit`; whether it counts
    refund    give it back; False if there is none in the widest window, or it was given back before. `cost` is the
              hit's cost, for algorithms that keep sums
    """

    kind: Kind
    compiled: Any
    subject: Subject
    cost: int = 1
    fingerprint: int = 0
    """64 bits of the attempt's id, 0 where it has none."""
    stamp_us: int = 0
    ttl_us: int = 0
    max_wait_us: int | None = None
    not_before_us: int = 0


def operation_of(
    kind: Kind, compiled: Any, subject: Subject, cost: int, fingerprint: int, bound_us: int | None
) -> Operation:
    """An operation with one bound: how long a reservation holds, else how long a slot may be waited for."""
    if kind == "reserve":
        return Operation(kind, compiled, subject, cost, fingerprint, ttl_us=bound_us or 0)
    return Operation(kind, compiled, subject, cost, fingerprint, max_wait_us=bound_us)


class Batch(msgspec.Struct, frozen=True):
    """Many operations of one kind and one policy, as columns.

    `compiled[codes[i]]` is the rule of `subjects[i]` (no codes: `compiled[0]` for all); `cost` is the same for all.
    Integer subjects may be an int64 or uint64 array without negative numbers; for a receipt that is the same batch as a
    list of them. A `receipt` makes the batch safe to resend: the store keeps the answers under that name, in the step
    that records the hits, and returns them for the same batch for as long as the widest window, whatever limits and
    layout it then has. `asked` is the digest of what the caller passed (`capline.store.receipts`).
    `stamps_us` has the hit of each row that is refunded.
    """

    compiled: tuple[Any, ...]
    subjects: Sequence[Subject] | NDArray[np.integer[Any]]
    codes: NDArray[np.uint16] | None = None
    cost: int = 1
    receipt: str | None = None
    asked: bytes = b""
    stamps_us: Sequence[int] | NDArray[np.int64] = ()


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
    """The instructions. Subjects and costs come checked; a store raises `StoreError` where it cannot answer."""

    may_lose_answers: bool
    """Whether a call may have run although no answer came, as with a store behind a network."""

    @abstractmethod
    def compiled(self, rule: BoundPolicy, /) -> CompiledRule:
        """The rule in the store's own form; called once for each rule, and again when policies are reloaded."""
        ...

    @abstractmethod
    def step(self, operation: Operation, /) -> Any:
        """One operation in one atomic step; `Operation` says what the answer is."""
        ...

    @abstractmethod
    def joint(self, operations: Sequence[Operation], /) -> Joint:
        """Operations of one kind (decide, peek, schedule), each on logs of its own: all or nothing, in one atomic step.

        A slot is one instant for all (`capline.window.joint`); its bounds are those of the first operation. Raises
        `InvalidValueError` for a slot where the logs are not in one place, so that no step is atomic.
        """
        ...

    def units(self, rules: Mapping[Any, Any], attempts: Sequence[Attempt], /) -> Joint | None:  # noqa: ARG002 - for stores
        """`joint` of these attempts, not checked, by the rules of policies; None where that is to be asked.

        A store has it where it is faster: for a unit each, with nothing else said, that is allowed.
        """
        return None

    @abstractmethod
    def rows(self, operations: Sequence[Operation], /) -> list[Any]:
        """Many operations of any kinds and policies, each a step of its own, in order.

        Each has its answer; one that fails has its `CaplineError`, and fails no other.
        """
        ...

    @abstractmethod
    def columns(self, batch: Batch, mode: Mode, /) -> Any:
        """Many operations of one kind and one policy, in order: `Decisions`, or for refunds an array of bool.

        A peek is alone: it knows nothing of the rows before. Refunds raise the first error after all were tried.
        """
        ...

    @abstractmethod
    def recorded(self, compiled: Any, subject: Subject, /) -> list[list[Hit]]:
        """The hits in each log of the rule within the widest window, oldest first; refunded ones have 0 units."""
        ...

    @abstractmethod
    def merge(self, merges: Sequence[Merge], /) -> list[Merged | CaplineError]:
        """Merge past hits into logs (`capline.window.merge`), each item in one atomic step.

        An item that fails is its error, and fails no other. The same merge again adds nothing.
        """
        ...

    @abstractmethod
    def scan(self, compiled: Sequence[Any], after: Any = None, /) -> Page:
        """A page of the logs of these rules and their channels, with the hits within the widest window.

        The first call has no `after`, each next call that of the page before. A log that exists during the whole scan
        is found at least once, on a server perhaps twice; one that is created or removed meanwhile may be found or not.
        """
        ...

    def filled(self, most: int, /) -> Collection[str] | None:  # noqa: ARG002 - for stores
        """The full names of all logs that hold something, if they are no more than so many; None: any log may."""
        return None

    @abstractmethod
    def erase(self, compiled: Sequence[Any], subject: Subject, /) -> int:
        """Forget the subject in every log of these rules, their channels' too; returns how many logs held something."""
        ...

    @abstractmethod
    def sweep(self, compiled: Sequence[Any], /) -> int:
        """Remove every log whose last hit is older than the widest window on it; returns how many.

        A store that does not list its logs looks at those of these rules.
        """
        ...

    def stats(self) -> dict[str, int]:
        """Figures of the store itself, by name; empty if it has none. Waits for no server."""
        return {}

    @abstractmethod
    def servers(self, /) -> list[ServerState]:
        """How each server that holds logs is doing; empty for a store of this machine."""
        ...

    @abstractmethod
    def try_write(self, /) -> None:
        """Raise what would keep a new log from being recorded now, such as a full disk; nothing is recorded."""
        ...

    @abstractmethod
    def now_us(self, /) -> int:
        """The instant that the store would decide at."""
        ...

    @abstractmethod
    def close(self, /) -> None:
        """Let go of files and connections. Safe to call twice."""
        ...


def _awaited(
    instruction: Callable[Concatenate[Store, _P], _T],
) -> Callable[Concatenate[AsyncStore, _P], Coroutine[Any, Any, _T]]:
    """The same instruction, awaited; abstract as it is."""

    @wraps(instruction)
    async def forgotten(store: AsyncStore, /, *args: _P.args, **named: _P.kwargs) -> _T:
        raise NotImplementedError(store, args, named)

    return forgotten


class AsyncStore(Protocol):
    """The instructions of `Store`, awaited, with the same meaning. `compiled` and `stats` do no I/O."""

    may_lose_answers: bool
    """Whether a call may have run although no answer came."""

    @abstractmethod
    def compiled(self, rule: BoundPolicy, /) -> CompiledRule:
        """The rule in the store's own form; its fast paths may be called while the store is at hand."""
        ...

    def stats(self) -> dict[str, int]:
        """Figures of the store itself, by name; empty if it has none."""
        return {}

    def at_hand(self) -> Store | None:
        """The store under this one, where it answers now and without a wait; None: what it does is awaited."""
        return None

    async def filled(self, most: int, /) -> Collection[str] | None:  # noqa: ARG002 - for stores
        """As `Store.filled`."""
        return None

    step = _awaited(Store.step)
    joint = _awaited(Store.joint)
    rows = _awaited(Store.rows)
    columns = _awaited(Store.columns)
    recorded = _awaited(Store.recorded)
    merge = _awaited(Store.merge)
    scan = _awaited(Store.scan)
    erase = _awaited(Store.erase)
    sweep = _awaited(Store.sweep)
    servers = _awaited(Store.servers)
    try_write = _awaited(Store.try_write)
    now_us = _awaited(Store.now_us)
    close = _awaited(Store.close)

    async def aclose(self) -> None:
        """As `close`, for `contextlib.aclosing`."""
        await self.close()
