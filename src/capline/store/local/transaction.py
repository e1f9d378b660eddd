"""What the verbs use of a store on this machine: a transaction, the logs in it, a rule with the store's handles."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from capline.model.decision import Decision
from capline.model.policy import RESERVED, BoundPolicy, LogLimits
from capline.model.subject import Subject, check_subject
from capline.store.local.fast_path import FastRule, Quick, logs_path, unit_rules
from capline.store.local.log import ColumnLog, StoredLog
from capline.store.local.numbers_path import numbers_path
from capline.store.protocol import Operation
from capline.support.lazy import made_once
from capline.window.limit_reader import LimitReader

__all__ = ["SWEEP_RECEIPTS", "LocalRule", "LogRef", "LogTransaction", "StoredLog", "take_up"]

SWEEP_RECEIPTS = 2
"""For each receipt that comes so many others are checked, and removed where they have expired."""


class LogRef(msgspec.Struct, gc=False):
    """One log of a rule, with the store's own handle of it."""

    log_limits: LogLimits
    readers: tuple[LimitReader, ...]
    handle: object = None

    @property
    def name(self) -> str:
        """The log's."""
        return self.log_limits.log

    @property
    def retention_us(self) -> int:
        """How long its hits are kept."""
        return self.log_limits.retention_us


class Paths(Protocol):
    """A store as its rules see it: what makes their fast paths."""

    keeps_rows: bool
    """Whether all numbers of a policy are one value, and no limit has a log of its own."""

    def unit_path(self, compiled: LocalRule, unit: FastRule) -> Callable[[Subject], Decision] | None:
        """`decide` for one unit without an id on one log, a function of the subject alone; None where it has none."""
        ...

    def ask_path(self, compiled: LocalRule, quick: Quick) -> Callable[..., Decision] | None:
        """See `CompiledRule.ask`."""
        ...

    def step(self, operation: Operation, /) -> Any:
        """One atomic step."""
        ...


class LocalRule(msgspec.Struct, dict=True):
    """A rule with the handles of its logs.

    `record` is where its reservations are, and `numbers` where all its numbers are; None where it has none. `begins` if
    numbers of a subject who has none there go there; `meters` are their readers. `former` are logs that its policy had
    before it was changed and does not read: they are erased with the others. `left` is where those numbers are that one
    of several policies had before, by the place of its own log, and `before` where each number had a log of its own.
    `names` is how many logs the store had begun when it was last asked which of them are beside these; see `learn`. A
    path is made when it is first asked for: there may be many rules, and most need one.
    """

    store: Paths
    rule: BoundPolicy
    refs: tuple[LogRef, ...]
    channel_refs: tuple[LogRef, ...]
    record: LogRef | None = None
    numbers: LogRef | None = None
    begins: bool = False
    meters: Sequence[LimitReader] = ()
    former: tuple[LogRef, ...] = ()
    left: Mapping[int, LogRef] = {}
    before: Mapping[int, Sequence[LogRef]] = {}
    names: int = 0

    @made_once
    def kept(self) -> dict[Any, LocalRule]:
        """See `CompiledRule`."""
        return {}

    @made_once
    def single(self) -> FastRule | None:
        """The rule of its only log for the fast path of one unit; None where that does not apply."""
        return self.units[0] if self.units and len(self.units) == 1 else None

    @made_once
    def units(self) -> tuple[FastRule, ...] | None:
        """The same of each of its logs."""
        return unit_rules(self.rule) if self._is_plain and self.record is None else None

    @made_once
    def quick(self) -> Quick | None:
        """Its fast path on a log, or on numbers, in hand."""
        if self.meters:
            return numbers_path(self.meters, self.rule.logs)
        return logs_path(self.rule) if self._is_plain and (self.record is None or self.rule.reserved) else None

    @made_once
    def ask(self) -> Callable[..., Decision] | None:
        """See `CompiledRule`."""
        return None if self.quick is None else self.store.ask_path(self, self.quick)

    @made_once
    def decide_one(self) -> Callable[[Subject], Decision]:
        """See `CompiledRule`."""
        path = None if self.single is None else self.store.unit_path(self, self.single)
        return path or self.ask or self._decide

    def _decide(self, subject: Subject) -> Decision:
        return self.store.step(Operation("decide", self, check_subject(subject)))

    @property
    def _is_plain(self) -> bool:
        """Whether there are no numbers beside its logs."""
        return self.numbers is None and not self.left and not self.before

    @property
    def every_ref(self) -> dict[str, LogRef]:
        """All its logs, by name."""
        beside = [ref for ref in (self.record, self.numbers, *self.left.values()) if ref is not None]
        before = [ref for refs in self.before.values() for ref in refs]
        return {ref.name: ref for ref in (*self.refs, *self.channel_refs, *beside, *before, *self.former)}


class LogTransaction(Protocol):
    """The logs as one transaction sees them."""

    __slots__ = ()

    @abstractmethod
    def learn(self, compiled: LocalRule) -> None:
        """Take up what others began beside the logs of this rule."""
        ...

    @abstractmethod
    def stored(self, ref: LogRef, subject: Subject) -> StoredLog | None:
        """The subject's log, None if it has none."""
        ...

    def load(self, ref: LogRef, subject: Subject) -> StoredLog:
        """The subject's log, empty if it has none."""
        log = self.stored(ref, subject)
        return ColumnLog() if log is None else log

    @abstractmethod
    def save(self, ref: LogRef, subject: Subject, log: StoredLog) -> None:
        """Keep the changed log."""
        ...

    @abstractmethod
    def remove(self, ref: LogRef, subject: Subject) -> bool:
        """Forget the subject's log; whether there was one."""
        ...

    def remove_all(self, refs: Iterable[LogRef], subject: Subject) -> int:
        """Forget the subject's logs of these names; how many there were."""
        return sum([self.remove(ref, subject) for ref in refs])

    @abstractmethod
    def receipt(self, name: bytes) -> bytes | None:
        """The answers kept under this name; None if there are none or they expired."""
        ...

    @abstractmethod
    def keep_receipt(self, name: bytes, value: bytes, expires_us: int) -> None:
        """Keep the value under this name until then."""
        ...


def take_up(compiled: LocalRule, beside: Iterable[tuple[str, Any]]) -> None:
    """Give the rule the logs beside its own, each with a handle: reservations, channels, and what it does not read."""
    rule, own, known = compiled.rule, compiled.refs[0], compiled.every_ref
    for name, handle in beside:
        ref = LogRef(LogLimits(name, (), own.retention_us), (), handle)
        if name == f"{own.name}/{RESERVED}":
            compiled.record = ref
        elif name not in known and rule.algorithm == "sliding_log" and name != rule.numbers:
            compiled.channel_refs += (ref,)
        elif name not in known:
            compiled.former += (ref,)
