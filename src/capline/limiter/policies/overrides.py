"""Overrides, compiled: the limits that single subjects have in place of their policy's.

    decide("promo", "user:42")  ->  a policy without overrides: the fast path, as ever; nothing here is called
                                ->  one with overrides: one look into a dict by the subject, then a fast path

The rule: an override takes the place of the policy's limits, whatever the segment; a channel's limits hold beside it.
The logs are the same, so history stays, and a log keeps its hits for the widest window of any override.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capline.config.cache import MISSING, OwnLimits
from capline.model.errors import PolicyError, UnknownNameError
from capline.model.subject import check_subject
from capline.store.columns import plain
from capline.store.protocol import Batch, kept_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    import numpy as np

    from capline.config.configuration import Configuration
    from capline.limiter.arguments.columns import AttemptColumns
    from capline.limiter.policies.rules import Names, Rules
    from capline.model.limit import Limit
    from capline.model.policy import BoundPolicy
    from capline.model.subject import Subject
    from capline.store.protocol import CompiledRule
else:
    from capline.model.arrays import np

if TYPE_CHECKING:
    Unit = Callable[[Subject], Any]
    """Decides on one unit of the subject: a `Decision`, or for an awaited limiter an awaitable one."""

MOST_COMPILED = 1 << 14
"""Compiled rules of overrides that are kept, of 2 to 4 KB each. One more, and all are compiled again when needed."""
MOST_CODES = 1 << 16
_ZERO = 0


class Overridden:
    """The overrides of one configuration under one set of rules; `policies` has those that have any.

    `share` maps a policy's limits to those in force here: `Insurance` divides them among its hosts.
    """

    def __init__(
        self,
        configuration: Configuration,
        rules: Rules,
        compiled: Callable[[BoundPolicy], CompiledRule],
        share: Callable[[str, Sequence[Limit]], Sequence[Limit]] | None = None,
    ) -> None:
        self.policies: frozenset[str] = frozenset()
        self._view = configuration.view
        self._compile = compiled
        self._share = share
        self._kept: dict[Names, tuple[dict[OwnLimits, CompiledRule | None], dict[Any, Unit]]] = {}
        """By names: the compiled rules and fast paths of overrides."""
        self._compiled = 0
        self.use(rules, frozenset(rules.overrides))

    def use(self, rules: Rules, names: AbstractSet[str]) -> None:
        """Take over other rules: what was compiled of these policies is forgotten."""
        # The rules before the table, which `_bound` reads first: so it puts nothing old into the new one.
        self._rules = rules
        for kept in self._kept.copy():
            if kept[0] in names:
                del self._kept[kept]
        self.policies = (self.policies - names) | (names & rules.overrides.keys() & rules.policies.keys())

    def compiled(self, names: Names, subject: Subject) -> CompiledRule | None:
        """The compiled rule of a checked subject's own limits; None where the policy's hold."""
        own = self._own(names[0], subject)
        return None if own is None else self._bound(own, names)

    def rule(self, names: Names, subject: Subject) -> BoundPolicy | None:
        """The rule of a subject's own limits; None where the policy's hold."""
        own = self._own(names[0], subject)
        return None if own is None else self._rule(own, names)

    def knows(self, policy: str, subject: Subject) -> bool:
        """Whether `compiled` would answer without asking the configuration's store."""
        return self._view.knows(policy, (subject,))

    def learn(self, policy: str, subject: Subject) -> None:
        """Ask it, so that `compiled` need not."""
        self._view.own(policy, subject)

    def fast_path(self, names: Names, common: Unit, unit_of: Callable[[CompiledRule], Unit], general: Unit) -> Unit:
        """A fast path for a policy with overrides: the override's own, or `common` for a subject without one.

        A subject whose override is not cached goes the `general` way, which reads it.
        """
        recent = self._view.recent(names[0])
        _, units = self._kept_of(names)

        def unit_by_subject(subject: Subject) -> Any:
            try:
                own = recent.young.get(subject, MISSING)
                if own is None:
                    return common(subject)
                unit = units.get(own)
            except TypeError:
                check_subject(subject)  # raises: it has no hash
                raise
            if unit is None:
                if not isinstance(own, OwnLimits):
                    return general(subject)
                compiled = self._bound(own, names)
                unit = units[own] = common if compiled is None else unit_of(compiled)
            return unit(subject)

        return unit_by_subject

    def batch(self, columns: AttemptColumns, common: tuple[CompiledRule, ...], names: list[Names]) -> Batch:
        """A store's batch: the common rules, then one for each override among the rows."""
        owns = self._view.owns(columns.policy, plain(columns.subjects))
        rows = [row for row, own in enumerate(owns) if own is not None]
        if not rows:
            return Batch(common, columns.subjects, columns.codes, columns.cost, columns.receipt, columns.asked)
        compiled = list(common)
        codes = np.zeros(len(owns), np.uint16) if columns.codes is None else columns.codes.copy()
        known: dict[tuple[int, OwnLimits], int] = {}
        for row in rows:
            own, code = owns[row], int(codes[row])
            assert own is not None  # noqa: S101 - as `rows` says # nosec B101
            place = known.get((code, own))
            if place is None:
                rule = self._bound(own, names[code])
                if rule is not None and columns.keeps[code] is not _ZERO:
                    rule = kept_rule(rule, columns.keeps[code], self._compile)
                place = known[code, own] = code if rule is None else len(compiled)
                if rule is not None:
                    compiled.append(rule)
                if len(compiled) > MOST_CODES:
                    raise PolicyError(f"more than {MOST_CODES} sets of limits in one batch; send smaller ones")
            codes[row] = place
        return Batch(tuple(compiled), columns.subjects, codes, columns.cost, columns.receipt, columns.asked)

    def _own(self, policy: str, subject: Subject) -> OwnLimits | None:
        return self._view.own(policy, subject) if policy in self.policies else None

    def _bound(self, own: OwnLimits, names: Names) -> CompiledRule | None:
        known, _ = self._kept_of(names)
        try:
            return known[own]
        except KeyError:
            self._compiled += 1
        if self._compiled > MOST_COMPILED:
            self._compiled = 1
            for rules, units in self._kept.copy().values():
                rules.clear()
                units.clear()
        rule = self._rule(own, names)
        compiled = known[own] = None if rule is None else self._compile(rule)
        return compiled

    def _kept_of(self, names: Names) -> tuple[dict[OwnLimits, CompiledRule | None], dict[Any, Unit]]:
        return self._kept.get(names) or self._kept.setdefault(names, ({}, {}))

    def _rule(self, own: OwnLimits, names: Names) -> BoundPolicy | None:
        try:
            limits = own.limits if self._share is None else self._share(names[0], own.limits)
            return self._rules.rule(*names, limits=limits, granularity=own.granularity)
        except UnknownNameError:
            raise
        except PolicyError:
            return None  # the policy changed and cannot have them any more: its own limits hold
