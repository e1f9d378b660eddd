"""What `Limiter` and `AsyncLimiter` share below their verbs: options, the policies in force, their compiled rules.

    LimiterBase -> CheckedCalls (what a call names, checked) -> Verbs (every verb) -> Limiter, AsyncLimiter

    the call, a file or a configuration store  ->  Rules
    (policy, segment, channel, zone)  ->  known names  ->  BoundPolicy  ->  the store's form  ->  its fast path

The rule: a change of policies is in force whole or not at all, and a broken one leaves the last good one serving. A
table has what was compiled from the rules in force; new rules take out what is of others (`_take`). Names that make no
difference to a policy share one compiled rule.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import msgspec

from capline.limiter.arguments.checks import count_of, typed
from capline.limiter.arguments.hashed_keys import keyed_hash
from capline.limiter.observed import Observers
from capline.limiter.outage.closed import CLOSED
from capline.limiter.outage.outage import OutagePolicy
from capline.limiter.policies.deny_cache import DenyCache, check_entries
from capline.limiter.policies.rules import DEFAULT_NAMESPACE, Rules
from capline.limiter.policies.segments import SegmentLookup
from capline.limiter.policies.unnamed import UnnamedPolicies
from capline.model.clock import check_clock
from capline.model.errors import CaplineError, InvalidTypeError, InvalidValueError, PolicyError, StoreError, quoted
from capline.model.subject import Subject, check_subject, short_subject
from capline.store.open import DEFAULT_URL
from capline.store.protocol import kept_rule
from capline.store.redis.io.url import safe_url
from capline.support.fork import ForkLock
from capline.support.lazy import LazyModule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from capline.config.configuration import Configuration
    from capline.limiter.outage.insurance import Insurance
    from capline.limiter.policies.layered import InOrder
    from capline.limiter.policies.overrides import Overridden, Unit
    from capline.limiter.policies.rules import Names
    from capline.limiter.policies.segments import SegmentSource
    from capline.model.attempt import Attempt
    from capline.model.clock import Clock
    from capline.model.limit import Limit
    from capline.model.policy import Policy
    from capline.observe.protocol import Observer
    from capline.policy.watch import PolicyWatch
    from capline.segment import Snapshot
    from capline.store.protocol import CompiledRule, Store

MOST_SHOWN = 5
"""Policies that a limiter's `repr` names."""

MOST_JOINT = 16
"""Subjects in one attempt."""

_ZERO = 0
_AT_SERVICE: Any = LazyModule("capline.limiter.over_http.limiter")
LONG_SUBJECTS = ("refuse", "hash")


class Options(TypedDict, total=False):
    """What `from_file` and `from_config` hand on to the limiter that they make; `Limiter` says what each does."""

    clock: Clock | None
    on_store_error: str | Insurance
    deny_cache: int
    subject_key: bytes | None
    long_subjects: str
    observers: Iterable[Observer]
    segments: str | Path | SegmentSource | Snapshot | None
    create: bool


class LimiterBase(ABC):
    """A limiter without its verbs; see the module's docstring. `_open` opens its kind of store.

    `_units` has the fast paths, by names; by the policy alone where that is all. `_direct` has, by the same, the rules
    under which an attempt goes straight to the store: nothing else looks at it.
    """

    _most_joint = MOST_JOINT
    _reload_due = False
    """Whether a good policy file was read that is not in force."""

    def __init__(
        self,
        url: str,
        policies: Iterable[Policy] = (),
        *,
        clock: Clock | None = None,
        on_store_error: str | Insurance = "raise",
        namespace: str = DEFAULT_NAMESPACE,
        deny_cache: int = 0,
        subject_key: bytes | None = None,
        long_subjects: str = "refuse",
        observers: Iterable[Observer] = (),
        segments: str | Path | SegmentSource | Snapshot | None = None,
        create: bool = True,
        config: str | Configuration | None = None,
        token: str | None = None,
    ) -> None:
        if token is not None:
            raise InvalidValueError("token= is for a service, like http://host:8080; a store has none")
        clock = None if clock is None else check_clock(clock)
        rules = Rules(policies, namespace)
        self._outage = OutagePolicy(on_store_error, rules, clock)
        if long_subjects not in LONG_SUBJECTS:
            raise InvalidValueError(f"long_subjects is {' or '.join(LONG_SUBJECTS)}, not {quoted(long_subjects)}")
        self._hashes_long = long_subjects == "hash"
        self._keyed = None if subject_key is None else keyed_hash(subject_key)
        self._denied = DenyCache(check_entries(deny_cache))
        self._observers = Observers(observers)
        self._watch: PolicyWatch | None = None
        # Before the store, so that there is no store to close where this fails.
        configuration = None if config is None else self._opened(config, namespace, clock)
        self._owns_config = isinstance(config, str)
        self._lookup = None
        try:
            self._lookup = None if segments is None else SegmentLookup(segments)
            self._store: Store = self._open(url, clock, create=create)
        except BaseException:
            self._stop_following()
            if configuration is not None and self._owns_config:
                configuration.close()
            raise
        self._shown_url = safe_url(url)
        self._clock = clock
        self._config: Configuration | None = None
        self._follows_policies = False
        self._changed: set[str] = set()
        self._configuring, self._binding = ForkLock(threading.RLock), ForkLock()
        self._overrides: Overridden | None = None
        self._overridden: frozenset[str] = frozenset()
        self._in_shadow: frozenset[str] = frozenset()
        self._turning: frozenset[str] = frozenset()
        self._next: tuple[int, Rules] | None = None
        self._take(rules)
        self._check_segments(rules)
        self._unnamed = UnnamedPolicies(self._beside)
        if configuration is not None:
            self._configure(configuration, own=self._owns_config, with_policies=not rules.policies)

    if not TYPE_CHECKING:  # checkers read `__init__` alone, and so does `inspect`

        @wraps(__init__)
        def __new__(cls, *args: Any, **named: Any) -> Self:
            """At `http://` and `https://` the limiter whose verbs that service answers."""
            url = args[0] if args else named.get("url")
            at_service = isinstance(url, str) and url.lower().startswith(("http://", "https://"))
            return object.__new__(_AT_SERVICE.LIMITERS.get(cls, cls) if at_service else cls)

    @classmethod
    def from_file(
        cls,
        path: str | Path | PolicyWatch,
        url: str = DEFAULT_URL,
        *,
        config: str | Configuration | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """A limiter of the policies in a YAML file, in its namespace; `reload` takes over what was changed there.

        `path` is the file's, or a `PolicyWatch` of it that nobody else polls. The options are those of `Limiter`.
        """
        from capline.policy.watch import PolicyWatch  # noqa: PLC0415 - YAML is loaded where a file is read

        watch = path if isinstance(path, PolicyWatch) else PolicyWatch(path)
        file = watch.current
        limiter = cls(url, file.policies, namespace=file.namespace, config=config, **options)
        limiter._watch = watch
        return limiter

    @classmethod
    def from_config(
        cls,
        config: str | Configuration,
        url: str = DEFAULT_URL,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        **options: Unpack[Options],
    ) -> Self:
        """A limiter of the policies and overrides in a configuration store; docs/reference/configuration.md.

        `config` is its URL, or a `Configuration` that several limiters share and that its maker closes. A change is in
        force within two seconds. Raises `StoreError` if it does not answer now; in a later outage what is known serves.
        The options are those of `Limiter`.
        """
        return cls(url, namespace=namespace, config=config, **options)

    @staticmethod
    @abstractmethod
    def _open(url: str, clock: Clock | None, *, create: bool) -> Any: ...

    def __repr__(self) -> str:
        """Where the logs are, without the password, and a few of the policies."""
        names = list(self._rules.policies)
        more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
        shown = ", ".join(names[:MOST_SHOWN]) or "none"
        return f"<{type(self).__name__} {self._shown_url}, namespace {self.namespace}, policies {shown}{more}>"

    @property
    def observer_errors(self) -> int:
        """How often an observer of this limiter raised; the decisions went on."""
        return self._observers.failed

    def stats(self) -> dict[str, int]:
        """Figures of the store itself, by name; {} for memory and servers, which have none or tell their own.

        The embedded store's: `logs` (subjects with a log), `begun_us` (when it was made), `identity` (drawn then),
        `readers`, `oldest_reader` (transactions ago), `used_pages`, `free_pages`, `page_bytes`, `file_bytes`. It takes
        some twenty microseconds, between two transactions.
        """
        return self._store.stats()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A limiter has connections and locks of one process, so it is neither pickled nor copied."""
        raise InvalidTypeError(
            f"a limiter cannot be pickled or copied: make one in each process, like "
            f"{type(self).__name__}(url, policies=...) in a pool's initializer; threads share one"
        )

    def _with_limits(self, policy: str, limits: Sequence[Limit | str]) -> Self:
        """A limiter of this one policy on the same store; see `limiter.unnamed`."""
        if isinstance(policy, str) and policy in self._rules.policies:  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
            raise InvalidValueError(f"policy {quoted(policy)} is defined; leave limits= out, or use another name")
        return self._unnamed.get(policy, limits)

    def _beside(self, policy: Policy) -> Self:
        """A limiter of another policy on this one's store, with the same choice for an outage."""
        rules = Rules([policy], self._rules.namespace)
        return self._view(rules, self._outage.beside(rules))

    def _view(self, rules: Rules, outage: OutagePolicy) -> Self:
        """A limiter of other rules on this one's store, which it does not close. It caches no refusals."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other._outage = outage
        other._denied = DenyCache(0)
        other._watch = other._lookup = other._config = other._overrides = other._next = None
        other._follows_policies = False
        other._overridden = other._turning = frozenset()
        other._take(rules)
        return other

    def beside(self, policies: Iterable[Policy], *, title: str | None = None, most_joint: int = MOST_JOINT) -> Self:
        """Another limiter of these policies on the same store, in the same namespace, with the same observers.

        In an outage it raises, and it has no deny cache. It opens nothing: closing either closes the store of both.
        With a `title` observers are told of one policy of that name, without limits, whichever was asked for: callers
        may then make policies without end. `most_joint` is how many subjects one attempt of it may be over.
        """
        rules = Rules(policies, self.namespace)
        other = self._view(rules, OutagePolicy("raise", rules, None))
        other._most_joint = most_joint  # noqa: SLF001 - of its kind
        if title is not None and self._observers:
            other._observers = self._observers.under(title)  # noqa: SLF001 - of its kind
        # Limits that come with a call raise in an outage too.
        other._unnamed = UnnamedPolicies(other._beside)  # noqa: SLF001 - of its kind
        return other

    def _shut(self) -> Any:
        """Make every verb raise `StoreClosedError`; returns the store to close, or None if it was closed before."""
        config, self._config = self._config, None
        if config is not None:
            config.view.changed.remove(self._configured)
            if self._owns_config:
                config.close()
        store, self._store = self._store, CLOSED
        self._unbind()
        self._unnamed.clear()
        return None if store is CLOSED else store

    # --- the policies, and the configuration store that is followed --------------------------------------------------

    @property
    def policies(self) -> InOrder[Policy]:
        """The policies in force, by name, as they are now."""
        self._turn()
        return self._rules.in_order

    @property
    def missing_segments(self) -> dict[str, list[str]]:
        """Segments that policies in force list and the served version lacks, by policy: nobody is in them now.

        They may be misspelt, or be published later; policies and segments come into force independently.
        """
        return {} if self._lookup is None else self._lookup.missing(self._rules.policies)

    def check_policy(self, name: str) -> None:
        """Raise `UnknownNameError`, which lists those there are, unless there is a policy of this name."""
        self._rules.policy(name)

    @property
    def namespace(self) -> str:
        """The namespace of the logs."""
        return self._rules.namespace

    def use(self, policies: Iterable[Policy]) -> None:
        """Replace all policies at once: a decision sees all of the old or all of the new; histories stay."""
        if self._follows_policies:
            raise PolicyError("the policies of this limiter are those of its configuration store; change them there")
        with self._configuring:
            rules = Rules(policies, self._rules.namespace, self._rules.overrides, self._rules)
            self._check_segments(rules)
            self._outage.use(rules, self._config)
            self._take(rules)

    def reload(self) -> bool:
        """Take over the policy file if it changed; True when it did.

        A broken or missing file, or one of another namespace, raises its `PolicyError`. The last good policies stay,
        and each call tries again. Of a configuration store what is new is read now; what cannot be used is a warning in
        the log, and tried again by each call. A segment that is not served keeps nothing back: `missing_segments`.
        """
        if self._config is not None and self._watch is None:
            changed = self._config.refresh()
            self._configured(())
            return changed
        if self._watch is None:
            raise PolicyError(
                "this limiter has no policy file to reload; make it with Limiter.from_file, or call use()"
            )
        self._reload_due |= self._watch.poll()
        if self._watch.error is not None:
            raise self._watch.error
        changed = self._reload_due
        if changed:
            self.use(self._watch.current.policies)
            self._reload_due = False
        return changed

    @property
    def configuration(self) -> Configuration | None:
        """The configuration store of this limiter, if it has one."""
        return self._config

    def _opened(self, config: str | Configuration, namespace: str, clock: Clock | None) -> Configuration:
        from capline.config.configuration import Configuration  # noqa: PLC0415 - loaded where there is one

        if isinstance(config, str):
            return Configuration(config, namespace=namespace, clock=clock)
        if not isinstance(config, Configuration):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
            raise InvalidTypeError(
                f"config is the URL of a configuration store, or a Configuration, not {quoted(config)}"
            )
        if config.namespace != namespace:
            raise PolicyError(
                f"the configuration is of namespace {config.namespace!r}, the limiter of {namespace!r}; give the same"
            )
        return config

    def _configure(self, config: Configuration, *, own: bool, with_policies: bool) -> None:
        self._config, self._owns_config, self._follows_policies = config, own, with_policies
        config.view.changed.append(self._configured)
        self._configured({**config.view.entries, **config.view.totals})
        if self._keyed is not None:
            with suppress(StoreError):  # an account that may only read
                config.mark_keyed()
        config.follow()

    def _configured(self, names: Iterable[str]) -> None:
        """Take over what is new of these policies. A further override within the known window and quota is nothing new.

        Costs by what changed: others keep their compiled rules.
        """
        config = self._config
        if config is None:
            return
        view = config.view
        with self._configuring:
            self._changed.update(names)
            names, turning, now_us = self._changed | self._turning, self._turning, view.now_us()
            found = {name: view.totals.get(name) for name in names}
            # How many there are and when they end makes no difference.
            same = partial(msgspec.structs.replace, count=1, ends={})
            totals = {name: same(t) if t and t.count else None for name, t in found.items()}
            totals = {name: t for name, t in totals.items() if t != self._rules.overrides.get(name)}
            try:
                changes = self._policies_at(now_us, names, self._rules)
                rules = self._rules.having(changes, totals)
                self._plan_turn(now_us, rules, names)
            except CaplineError as error:
                import logging  # noqa: PLC0415 - loaded where there is something to say

                logging.getLogger("capline").warning("the configuration cannot be used, the last one serves: %s", error)
                return
            if changes or totals or self._turning != turning:
                self._outage.use(rules, self._config, names)
                self._take(rules, names)
            self._changed.clear()

    def _policies_at(self, at_us: int, names: Iterable[str], rules: Rules) -> dict[str, Policy | None]:
        """Those of these policies that are others then than in the rules; None is one that is deleted."""
        if self._config is None or not self._follows_policies:
            return {}
        entries = self._config.view.entries
        found = {name: entries[name].at(at_us) if name in entries else None for name in names}
        return {name: policy for name, policy in found.items() if policy != rules.policies.get(name)}

    def _plan_turn(self, now_us: int, rules: Rules, names: Iterable[str]) -> None:
        """Prepare what follows these rules at the next scheduled change; until then that policy has no fast path."""
        config = self._config
        entries = config.view.entries if config is not None and self._follows_policies else {}
        turns = {name: entries[name].effective_us for name in names if name in entries}
        turns = {name: at_us for name, at_us in turns.items() if at_us > now_us}
        self._turning, self._next = frozenset(turns), None
        if turns:
            next_us = min(turns.values())
            self._next = next_us, rules.having(self._policies_at(next_us, turns, rules), {})

    def _turn(self) -> None:
        """Put scheduled changes in force whose instant has come."""
        config = self._config
        with self._configuring:
            while (due := self._next) is not None and config is not None and config.view.now_us() >= due[0]:
                next_us, rules = due
                names = self._turning
                self._plan_turn(next_us, rules, names)
                self._outage.use(rules, self._config, names)
                self._take(rules, names)

    def _override_in(self, policy: str, subject: Subject) -> tuple[Configuration, Subject]:
        """The configuration to write an override to, and its subject as the store gets it."""
        self._turn()
        self._rules.policy(policy)
        if self._config is None:
            if not self._shown_url.startswith("memory:"):
                raise PolicyError(
                    "this limiter has no configuration store to keep overrides in; make it with config='lmdb:///path' "
                    "or config='redis://…'"
                )
            self._configure(self._opened("memory://", self.namespace, self._clock), own=True, with_policies=False)
        config = self._config
        assert config is not None  # noqa: S101 - as the lines above # nosec B101
        return config, self._subject(subject)

    # --- names to compiled rules -------------------------------------------------------------------------------------

    @property
    def _has_units(self) -> bool:
        """Whether one unit may take a fast path: no cache, key hashing or observer needs the attempt."""
        observers = self._observers
        return self._keyed is None and not self._denied.most and (observers.count_one or not observers)

    @property
    def _only_hashes(self) -> bool:
        """Whether one unit may take a fast path once its subject is hashed."""
        return self._keyed is not None and not self._denied.most and not self._observers

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
        self._rules, self._in_shadow = rules, rules.in_shadow
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
        if not policy.by_segment or policy.shadow or name in self._overridden or name in self._turning:
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
            self._lookup.check(rules.policies)

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
            plain = attempt.segment is None and attempt.channel is None and attempt.zone is None
            compiled = self._direct.get(attempt.policy if plain else attempt.names)
            keeps = compiled is not None and attempt.keep_free is not _ZERO
            return self._keeping(compiled, attempt.keep_free) if keeps else compiled
        except TypeError:
            return None  # a name has no hash, which the general way says

    def _keeping(self, compiled: Any, keep_free: int | Sequence[int]) -> Any:
        """The compiled rule for attempts with this `keep_free`."""
        return kept_rule(compiled, keep_free, self._store.compiled)

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
            general = policy in self._turning or policy in self._in_shadow
            if looks_up or general or not (self._has_units or self._only_hashes):
                return compiled
            unit = self._unit_of(names, compiled)
            if self._only_hashes:
                if policy not in self._overridden:
                    self._add_unit(names, lambda subject: unit(self._subject(subject)))
                return compiled
            if policy in self._overridden and self._overrides is not None:
                unit_of = partial(self._unit_of, names)
                unit = self._overrides.fast_path(names, unit, unit_of, self._general(names))
            elif not self._observers and not self._hashes_long:
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
        names = self._rules.any_names(policy)
        return (self._overrides and self._overrides.compiled(names, subject)) or self._bound(names)

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

    def _rules_to_scan(self, policies: Sequence[str] | None, filled: Collection[str] | None) -> list[CompiledRule]:
        """Compiled rules that name the logs to export: by default all that keep every hit, of those that hold any."""
        if policies is None:
            known = self._rules.on_logs(filled)
            return [self._any_rule(policy.name) for policy in known if policy.algorithm == "sliding_log"]
        count_of(policies, "policies")
        for name in policies:
            self._rules.log_rule(self._rules.policy(name).log)
        return [self._any_rule(name) for name in policies]

    def _all_rules(self, policies: Sequence[Policy], subject: Subject | None = None) -> list[CompiledRule]:
        """A compiled rule of each policy: together they name all logs, those of the subject's overrides included."""
        compiled = [self._any_rule(policy.name) for policy in policies]
        if subject is not None:
            # Where an algorithm keeps numbers each limit has a log; elsewhere an override has the policy's.
            own = (policy.name for policy in policies if policy.name in self._overridden and not policy.keeps_log)
            compiled += [self._rule_of_hits(name, subject) for name in own]
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
