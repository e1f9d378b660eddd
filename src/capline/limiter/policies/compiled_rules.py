"""Names to compiled rules: the tables that a decision looks into, and what fills them.

    (policy, segment, channel, zone)  ->  known names  ->  BoundPolicy  ->  the store's form  ->  its fast path

The rule: a table has what was compiled from the rules in force; new rules take out what is of others (`_take`). Names
that make no difference to a policy share one compiled rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from capline.limiter.arguments.checks import count_of, typed
from capline.model.subject import Subject, check_subject, short_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from capline.config.configuration import Configuration
    from capline.limiter.policies.deny_cache import DenyCache
    from capline.limiter.policies.overrides import Overridden, Unit
    from capline.limiter.policies.rules import Names, Rules
    from capline.limiter.policies.segments import SegmentLookup
    from capline.model.attempt import Attempt
    from capline.model.policy import Policy
    from capline.store.protocol import CompiledRule, Store
    from capline.support.fork import ForkLock


class CompiledRules(ABC):
    """The compiled rules of a limiter. `_units` has the fast paths, by names; by the policy alone where that is all.

    `_direct` has, by the same, the rules under which an attempt goes straight to the store: nothing else looks at it.
    """

    _store: Store
    """Of an awaited limiter an `AsyncStore`: each of its calls is awaited where the verb yields it."""
    _rules: Rules
    _config: Configuration | None
    _lookup: SegmentLookup | None
    _denied: DenyCache
    _overrides: Overridden | None
    _overridden: frozenset[str]
    """Policies that have overrides."""
    _turning: frozenset[str]
    """Policies with a scheduled change: until its instant they have no fast path."""
    _binding: ForkLock
    _hashes_long: bool
    _keyed: Callable[[Subject], Subject] | None

    @property
    @abstractmethod
    def _has_units(self) -> bool:
        """Whether one unit may take a fast path: no cache, key hashing or observer needs the attempt."""

    @property
    @abstractmethod
    def _observed(self) -> bool:
        """Whether there are observers."""

    @abstractmethod
    def _unit_of(self, names: Names, compiled: CompiledRule) -> Unit:
        """The fast path of one unit under these names; only where there are any."""

    @abstractmethod
    def _general(self, names: Names) -> Unit:
        """One unit under these names in the general way."""

    def _take(self, rules: Rules, names: AbstractSet[str] | None = None) -> None:
        """Put other rules in force: of these policies and of those that share a log with them, or of all."""
        if names is not None:
            names = names | self._rules.sharing(names) | rules.sharing(names)
        # In this order a racing decision may be made under the old policies, but never mixes old and new in one rule,
        # and leaves nothing old in the tables that later decisions read: it fills them under the lock of `_unbind`.
        self._rules = rules
        if self._config is not None:
            self._bring_overrides(self._config, rules, names)
        self._unbind(names)

    def segment_of(self, policy: str, subject: Subject) -> str | None:
        """The segment whose limits bind this subject now, as `decide` looks it up; costs what a look-up costs.

        None where it is in no segment that the policy lists, where the policy does not differ by segment, and where the
        limiter has no segments.
        """
        subject = check_subject(self._short(subject))
        return self._looked_up(self._rules.policy(policy), subject)

    def _looked_up(self, policy: Policy, subject: Subject) -> str | None:
        if self._lookup is None or not policy.by_segment:
            return None
        return self._lookup.segment_of(policy, subject)

    def _add_fast_path_by_segment(self, names: Names) -> None:
        """A fast path for names without a segment: look it up, then take the segment's own fast path."""
        units, lookup, store, (name, _, channel, zone) = self._units, self._lookup, self._store, names
        if lookup is None or names in units or not self._has_units:
            return
        in_force = self._rules
        rules = in_force.only(name)  # those of others would be kept with these
        policy = rules.policy(name)
        if not policy.by_segment or name in self._overridden or name in self._turning:
            return
        unit_in: dict[str | None, Unit] = {}

        def unit_by_segment(subject: Subject) -> Any:
            segment = lookup.segment_of(policy, check_subject(subject))
            unit = unit_in.get(segment)
            if unit is None:
                of_segment = name, segment, channel, zone
                unit = unit_in[segment] = self._unit_of(of_segment, store.compiled(rules.rule(*of_segment)))
            return unit(subject)

        with self._binding:
            if self._rules is in_force:
                self._add_unit(names, unit_by_segment)

    def _check_segments(self, rules: Rules) -> None:
        if self._lookup is not None:
            self._lookup.check(rules.policies.values())

    def _stop_following(self) -> None:
        """Stop following the segments' publication; may wait for a request that is under way."""
        if self._lookup is not None:
            self._lookup.close()

    def _unbind(self, policies: AbstractSet[str] | None = None) -> None:
        """Forget the compiled rules of these policies, or all, and every cached refusal."""
        self._denied = self._denied.emptied()
        with self._binding:
            self._log_rules: dict[str, CompiledRule] = {}
            if policies is None:
                self._bound_names: dict[str, set[Names]] = {}
                self._rules_by_names: dict[Names, CompiledRule] = {}
                self._units: dict[Names | str, Unit] = {}
                self._direct: dict[Names | str, CompiledRule] = {}
            tables: list[dict[Any, Any]] = [self._rules_by_names, self._units, self._direct]
            for policy in policies or ():
                for names in (policy, *self._bound_names.pop(policy, ())):
                    for table in tables:
                        table.pop(names, None)

    def _add_unit(self, names: Names, unit: Unit, direct: CompiledRule | None = None) -> None:
        self._bound_names.setdefault(names[0], set()).add(names)
        for key in (names, names[0]) if names == (names[0], None, None, None) else (names,):
            self._units[key] = unit
            if direct is not None:
                self._direct[key] = direct

    def _direct_rule(self, attempt: Attempt) -> CompiledRule | None:
        """The rule under which an attempt goes straight to the store; None where it goes the general way."""
        try:
            return self._direct.get(attempt.names)
        except TypeError:
            return None  # a name has no hash, which the general way says

    def _bound(self, names: Names) -> CompiledRule:
        try:
            return self._rules_by_names.get(names) or self._bind(names)
        except TypeError as error:
            raise typed(error, *names) from None

    def _bind(self, names: Names) -> CompiledRule:
        """The compiled rule for these names, cached; segments and zones that make no difference share one."""
        names = self._rules.known(*names)
        policy, segment = names[:2]
        compiled = self._rules_by_names.get(names)
        if compiled is not None:
            return compiled
        with self._binding:
            compiled = self._rules_by_names[names] = self._store.compiled(self._rules.rule(*names))
            self._bound_names.setdefault(policy, set()).add(names)
            # Names without a segment are not all that counts where it is looked up: those take no fast path.
            looks_up = self._lookup is not None and segment is None and bool(self._rules.policy(policy).by_segment)
            if looks_up or policy in self._turning or not self._has_units:
                return compiled
            unit = self._unit_of(names, compiled)
            if policy in self._overridden and self._overrides is not None:
                unit_of = partial(self._unit_of, names)
                unit = self._overrides.fast_path(names, unit, unit_of, self._general(names))
            elif not self._observed and not self._hashes_long:
                self._add_unit(names, unit, compiled)
                return compiled
            self._add_unit(names, unit)
        return compiled

    def _any_rule(self, policy: str) -> CompiledRule:
        """A compiled rule of the policy in any segment and channel: they all name the same logs."""
        return self._bound(self._rules.any_names(policy))

    def _needs_each(self, policy: str) -> bool:
        """Whether a refund needs its subject's own rule, which says to which log, or sum of one, the hit was added."""
        return policy in self._overridden and self._rules.policy(policy).algorithm != "sliding_log"

    def _rule_of_hits(self, policy: str, subject: Subject) -> CompiledRule:
        """A compiled rule over the logs of this checked subject's hits."""
        own = None
        if policy in self._overridden and self._overrides is not None:
            own = self._overrides.compiled(self._rules.any_names(policy), subject)
        return own or self._any_rule(policy)

    def _with_own_logs(self, policy: str) -> list[Subject]:
        """The subjects whose overrides have logs of their own. Reads all overrides of the policy."""
        if self._config is None or policy not in self._overridden or self._rules.policy(policy).keeps_log:
            return []
        return [subject for subject, _ in self._config.overrides(policy)]

    def _rule_of_log(self, log: str) -> CompiledRule:
        """A compiled rule over one log alone."""
        compiled = self._log_rules.get(log)
        if compiled is None:
            with self._binding:
                compiled = self._log_rules[log] = self._store.compiled(self._rules.log_rule(log))
        return compiled

    def _rules_to_scan(self, policies: Sequence[str] | None) -> list[CompiledRule]:
        """Compiled rules that name the logs to export: by default all that keep every hit."""
        if policies is None:
            known = self._rules.policies.values()
            return [self._any_rule(policy.name) for policy in known if policy.algorithm == "sliding_log"]
        count_of(policies, "policies")
        for name in policies:
            self._rules.log_rule(self._rules.policy(name).log)
        return [self._any_rule(name) for name in policies]

    def _all_rules(self, subject: Subject | None = None) -> list[CompiledRule]:
        """A compiled rule of every policy: together they name all logs, those of the subject's overrides included."""
        compiled = [self._any_rule(policy) for policy in self._rules.policies]
        if subject is not None:
            # Where an algorithm keeps numbers each limit has a log; elsewhere an override has the policy's.
            policies = (self._rules.policies[name] for name in self._overridden)
            compiled += [self._rule_of_hits(one.name, subject) for one in policies if not one.keeps_log]
        return compiled

    def _short(self, subject: Subject) -> Subject:
        """The unchecked subject; its hash if it is too long and `long_subjects` is "hash"."""
        return short_subject(subject) if self._hashes_long else subject

    def _all_short(self, subjects: Any) -> Any:
        """`_short` of many; only a list can hold text."""
        if not self._hashes_long or hasattr(subjects, "dtype"):
            return subjects
        return [short_subject(subject) for subject in subjects]

    def _subject(self, subject: Subject) -> Subject:
        """The subject, checked, in the form that the store gets: hashed if there is a `subject_key`."""
        subject = check_subject(self._short(subject))
        return subject if self._keyed is None else self._keyed(subject)

    def _bring_overrides(self, config: Configuration, rules: Rules, names: AbstractSet[str] | None) -> None:
        from capline.limiter.policies.overrides import Overridden  # noqa: PLC0415 - loaded where there are any

        if names is None or self._overrides is None:
            self._overrides = Overridden(config, rules, self._store.compiled)
        else:
            self._overrides.use(rules, names)
        self._overridden = self._overrides.policies
