"""What `Limiter` and `AsyncLimiter` share: everything about a limiter that does not wait for a store.

    names and loose values  ->  checked ones, with a compiled rule  ->  [the store]  ->  answers in order

The rule: the two differ only in calling a store or awaiting it. Each of their verbs is a few lines: check the arguments
(here), call the store, and if it cannot answer apply the `OutagePolicy`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import msgspec

from capline.limiter.checks import check_attempt, check_subjects, count_of, fingerprint, stamp, typed
from capline.limiter.closed import CLOSED
from capline.limiter.columns import AttemptColumns, columns_of, spread
from capline.limiter.deny_cache import DenyCache, check_entries
from capline.limiter.explain import Explanation, explain
from capline.limiter.hashed_keys import keyed_hash
from capline.limiter.observed import UNSEEN, Observers, Unseen
from capline.limiter.outage import OutagePolicy
from capline.limiter.records import LogRecord, PastHit, check_rows, records_of
from capline.limiter.rules import DEFAULT_NAMESPACE, Rules
from capline.limiter.segments import SegmentLookup
from capline.limiter.unnamed import UnnamedPolicies
from capline.model.attempt import Attempt, check_cost, check_id
from capline.model.clock import check_clock
from capline.model.decision import Decision
from capline.model.errors import CaplineError, InvalidTypeError, InvalidValueError, PolicyError, StoreError, quoted
from capline.model.subject import Subject, check_subject, short_subject
from capline.store.columns import plain
from capline.store.protocol import Batch, Merge, StoreAttempt
from capline.store.redis.io.url import safe_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from capline.config.configuration import Configuration
    from capline.config.records import Totals
    from capline.limiter.insurance import Insurance
    from capline.limiter.overrides import Overridden
    from capline.limiter.records import Record
    from capline.limiter.rules import Names
    from capline.limiter.segments import SegmentSource
    from capline.model.clock import Clock
    from capline.model.limit import Limit
    from capline.model.policy import BoundPolicy, Policy
    from capline.observe.protocol import Observer
    from capline.policy.watch import PolicyWatch
    from capline.segment import Snapshot
    from capline.store.columns import Decisions
    from capline.store.protocol import CompiledRule, ScannedLog
    from capline.window.log import Hit

__all__ = ["DEFAULT_URL", "LimiterBase", "PendingBatch"]

DEFAULT_URL = "lmdb://.capline/store"
"""The store of `from_file` and of the command line where none is named: durable, below the working directory."""


MOST_SHOWN = 5
"""Policies that a limiter's `repr` names."""

LONG_SUBJECTS = ("refuse", "hash")

MOST_JOINT = 16
"""Subjects in one attempt."""


class Binder(Protocol):
    """The part of a store, sync or async, that does no I/O."""

    def compiled(self, rule: BoundPolicy) -> CompiledRule:
        """See `Store`."""
        ...

    def stats(self) -> dict[str, int]:
        """See `Store`."""
        ...


S = TypeVar("S", bound=Binder)


class PendingBatch(msgspec.Struct):
    """A batch of single attempts: those to decide, and the rows of `answers` that wait for the store.

    `named` has by row the attempts whose names are known; `seen` is the observers' block of the call.
    """

    answers: list[Decision | CaplineError | None]
    rows: list[int]
    attempts: list[Attempt]
    to_decide: list[StoreAttempt]
    denied: DenyCache
    epoch: tuple[int, int]
    named: list[Attempt | None]
    seen: Unseen = UNSEEN


class LimiterBase(ABC, Generic[S]):
    """A limiter but for its verbs; see the module's text. `_open` says which kind of store it has."""

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
    ) -> None:
        clock = None if clock is None else check_clock(clock)
        rules = Rules(policies, namespace)
        self._outage = OutagePolicy(on_store_error, rules, clock)
        if long_subjects not in LONG_SUBJECTS:
            raise InvalidValueError(f"long_subjects is {' or '.join(LONG_SUBJECTS)}, not {quoted(long_subjects)}")
        self._hashes_long = long_subjects == "hash"
        self._keyed = None if subject_key is None else keyed_hash(subject_key)
        self._denied = DenyCache(check_entries(deny_cache))
        self._observers = Observers(observers)
        # Skip the generic checks when no cache, key hashing or observer needs the attempt.
        self._has_fast_path = not deny_cache and self._keyed is None and not self._observers
        self._counts_one = not deny_cache and self._keyed is None and self._observers.count_one
        self._watch: PolicyWatch | None = None
        # Before the store, so that there is no store to close where this fails.
        configuration = None if config is None else self._opened(config, namespace, clock)
        self._owns_config = isinstance(config, str)
        self._lookup = None
        try:
            self._lookup = None if segments is None else SegmentLookup(segments)
            self._check_segments(rules)
            self._store: S = self._open(url, clock, create=create)
        except BaseException:
            self._stop_following()
            if configuration is not None and self._owns_config:
                configuration.close()
            raise
        self._shown_url = safe_url(url)
        self._clock = clock
        self._config: Configuration | None = None
        self._follows_policies = False
        self._configured_by: tuple[object, dict[str, Totals]] | None = None
        self._configuring = threading.RLock()
        self._overrides: Overridden | None = None
        self._overridden: frozenset[str] = frozenset()
        self._turning: frozenset[str] = frozenset()
        self._next: tuple[int, Rules] | None = None
        self._take(rules)
        self._unnamed = UnnamedPolicies(self._beside)
        if configuration is not None:
            self._configure(configuration, own=self._owns_config, with_policies=not rules.policies)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        url: str = DEFAULT_URL,
        *,
        clock: Clock | None = None,
        on_store_error: str | Insurance = "raise",
        deny_cache: int = 0,
        subject_key: bytes | None = None,
        long_subjects: str = "refuse",
        observers: Iterable[Observer] = (),
        segments: str | Path | SegmentSource | Snapshot | None = None,
        create: bool = True,
        config: str | Configuration | None = None,
    ) -> Self:
        """A limiter of the policies in a YAML file, in its namespace; `reload` takes over what was changed there."""
        from capline.policy.watch import PolicyWatch  # noqa: PLC0415 - YAML is loaded where a file is read

        watch = PolicyWatch(path)
        file = watch.current
        limiter = cls(
            url,
            file.policies,
            clock=clock,
            on_store_error=on_store_error,
            namespace=file.namespace,
            deny_cache=deny_cache,
            subject_key=subject_key,
            long_subjects=long_subjects,
            observers=observers,
            segments=segments,
            create=create,
            config=config,
        )
        limiter._watch = watch
        return limiter

    @classmethod
    def from_config(
        cls,
        config: str | Configuration,
        url: str = DEFAULT_URL,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        clock: Clock | None = None,
        on_store_error: str | Insurance = "raise",
        deny_cache: int = 0,
        subject_key: bytes | None = None,
        long_subjects: str = "refuse",
        observers: Iterable[Observer] = (),
        segments: str | Path | SegmentSource | Snapshot | None = None,
        create: bool = True,
    ) -> Self:
        """A limiter of the policies and overrides in a configuration store; docs/configuration.md.

        `config` is its URL, or a `Configuration` that several limiters share and that its maker closes. A change is in
        force within two seconds. Raises `StoreError` where it does not answer now; later on what is known serves.
        """
        return cls(
            url,
            clock=clock,
            on_store_error=on_store_error,
            namespace=namespace,
            deny_cache=deny_cache,
            subject_key=subject_key,
            long_subjects=long_subjects,
            observers=observers,
            segments=segments,
            create=create,
            config=config,
        )

    @staticmethod
    @abstractmethod
    def _open(url: str, clock: Clock | None, *, create: bool) -> S: ...

    def __repr__(self) -> str:
        """Where the logs are, without the password, and a few of the policies."""
        names = list(self._rules.policies)
        more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
        shown = ", ".join(names[:MOST_SHOWN]) or "none"
        return f"<{type(self).__name__} {self._shown_url}, namespace {self.namespace}, policies {shown}{more}>"

    @property
    def policies(self) -> dict[str, Policy]:
        """The policies in force, by name."""
        self._turn()
        return dict(self._rules.policies)

    def check_policy(self, name: str) -> None:
        """Raise `UnknownNameError`, which lists those there are, unless there is a policy of this name."""
        self._rules.policy(name)

    @property
    def namespace(self) -> str:
        """The namespace of the logs."""
        return self._rules.namespace

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

    def _under(self, policy: str, limits: Sequence[Limit | str]) -> Self:
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
        other._has_fast_path = self._keyed is None and not self._observers
        other._counts_one = self._keyed is None and self._observers.count_one
        other._watch = other._lookup = None
        other._config, other._follows_policies, other._overrides, other._next = None, False, None, None
        other._overridden = other._turning = frozenset()
        other._take(rules)
        return other

    def use(self, policies: Iterable[Policy]) -> None:
        """Replace all policies at once: a decision sees all of the old or all of the new; histories stay."""
        if self._follows_policies:
            raise PolicyError("the policies of this limiter are those of its configuration store; change them there")
        rules = Rules(policies, self._rules.namespace, self._rules.overrides)
        self._check_segments(rules)
        self._outage.use(rules)
        self._take(rules)

    def reload(self) -> bool:
        """Take over the policy file if it changed; True when it did.

        A broken or missing file, or one of another namespace, raises its `PolicyError`; the last good policies stay.
        """
        if self._config is not None and self._watch is None:
            return self._config.refresh()
        if self._watch is None:
            raise PolicyError(
                "this limiter has no policy file to reload; make it with Limiter.from_file, or call use()"
            )
        changed = self._watch.poll()
        if self._watch.error is not None:
            raise self._watch.error
        if changed:
            self.use(self._watch.current.policies)
        return changed

    def beside(self, policies: Iterable[Policy]) -> Self:
        """Another limiter of these policies on the same store, in the same namespace, with the same observers.

        It raises in an outage, and keeps no refusals. It opens nothing: it ends when this one is closed, and closing
        it closes the store of both.
        """
        rules = Rules(policies, self.namespace)
        return self._view(rules, OutagePolicy("raise", rules, None))

    def _take(self, rules: Rules) -> None:
        # In this order a racing decision may be made under the old policies, but never mixes old and new in one rule,
        # and leaves nothing old in the tables that later decisions read.
        self._rules = rules
        if self._config is not None:
            self._bring_overrides(self._config, rules)
        self._unbind()

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

    def _add_looking_way(self, names: Names) -> None:
        """A fast path for names without a segment: look it up, then take the segment's own fast path."""
        # The tables before the rules: then new policies are never decided by old rules, see `_take`.
        ways, short_ways, lookup, store = self._ways, self._short_ways, self._lookup, self._store
        rules = self._rules
        name, _, channel, zone = names
        policy = rules.policy(name)
        if lookup is None or names in ways or not self._has_fast_path or not policy.by_segment:
            return
        if name in self._overridden or name in self._turning:
            return
        decide_in: dict[str | None, Callable[[Subject], Decision]] = {}

        def decide_one(subject: Subject) -> Decision:
            segment = lookup.segment_of(policy, check_subject(subject))
            known = decide_in.get(segment)
            if known is None:
                known = decide_in[segment] = store.compiled(rules.rule(name, segment, channel, zone)).decide_one
            return known(subject)

        ways[names] = decide_one
        if channel is None and zone is None:
            short_ways[name] = decide_one

    def _check_segments(self, rules: Rules) -> None:
        if self._lookup is not None:
            self._lookup.check(rules.policies.values())

    def _stop_following(self) -> None:
        """Stop what follows a publication for this limiter; may wait for a request that is under way."""
        if self._lookup is not None:
            self._lookup.close()

    # --- configuration ----------------------------------------------------------------------------------------

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
        self._configured()
        config.follow()

    def _configured(self) -> None:
        """The configuration changed: take over what of it is other rules; an override alone is none."""
        config = self._config
        if config is None:
            return
        view = config.view
        with self._configuring:
            totals = {name: msgspec.structs.replace(one, count=1) for name, one in view.totals.items() if one.count}
            known, before = view.entries if self._follows_policies else None, self._configured_by
            if before is not None and before[0] is known and before[1] == totals:
                return
            self._configured_by = known, totals
            now_us = view.now_us()
            policies = view.policies_at(now_us) if self._follows_policies else self._rules.policies.values()
            try:
                rules = Rules(policies, self._rules.namespace, totals)
                self._check_segments(rules)
                self._plan_turn(now_us, totals)
            except CaplineError as error:
                import logging  # noqa: PLC0415 - loaded where there is something to say

                logging.getLogger("capline").warning("the configuration cannot be used, the last one serves: %s", error)
                return
            self._outage.use(rules)
            self._take(rules)

    def _plan_turn(self, now_us: int, totals: Mapping[str, Totals]) -> None:
        """Prepare the rules of the next instant at which a policy changes; until then it has no fast path."""
        config = self._config
        turns = config.view.turns(now_us) if config is not None and self._follows_policies else {}
        self._turning = frozenset(turns)
        self._next = None
        if turns and config is not None:
            next_us = min(turns.values())
            self._next = next_us, Rules(config.view.policies_at(next_us), self._rules.namespace, totals)

    def _turn(self) -> None:
        """Policies whose instant has come are in force from now on."""
        config = self._config
        with self._configuring:
            while (due := self._next) is not None and config is not None and config.view.now_us() >= due[0]:
                next_us, rules = due
                self._plan_turn(next_us, rules.overrides)
                self._outage.use(rules)
                self._take(rules)

    def _bring_overrides(self, config: Configuration, rules: Rules) -> None:
        from capline.limiter.overrides import Overridden  # noqa: PLC0415 - loaded where there are any

        self._overrides = Overridden(config, rules, rules.overrides, self._store.compiled)
        self._overridden = self._overrides.policies

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

    def _override_limits(self, policy: str, limits: Sequence[Limit | str] | None) -> Sequence[Limit | str] | None:
        """The limits of an override, checked against the policy as this limiter has it."""
        from capline.config.changes import limits_of  # noqa: PLC0415 - loaded where there is one

        return limits_of(policy, self._rules.policy(policy), limits)

    def _shut(self) -> S | None:
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

    def _unbind(self) -> None:
        """Forget all compiled rules, and every cached refusal."""
        self._terms: dict[Names, CompiledRule] = {}
        self._log_terms: dict[str, CompiledRule] = {}
        self._fast_terms: dict[Names, CompiledRule] = {}
        self._ways: dict[Names, Callable[[Subject], Decision]] = {}
        self._short_ways: dict[str, Callable[[Subject], Decision]] = {}
        self._denied = self._denied.emptied()

    # --- names to terms ---------------------------------------------------------------------------------------

    def _bound(self, policy: str, segment: str | None, channel: str | None, zone: str | None = None) -> CompiledRule:
        try:
            return self._terms.get((policy, segment, channel, zone)) or self._bind(policy, segment, channel, zone)
        except TypeError as error:
            raise typed(error, policy, segment, channel, zone) from None

    def _bind(self, policy: str, segment: str | None, channel: str | None, zone: str | None) -> CompiledRule:
        """The compiled rule for these names, cached; segments and zones that make no difference share one."""
        known, fast, ways, short_ways = self._terms, self._fast_terms, self._ways, self._short_ways
        names = self._rules.known(policy, segment, channel, zone)
        compiled = known.get(names)
        if compiled is None:
            compiled = known[names] = self._store.compiled(self._rules.rule(*names))
        # Names without a segment are not all that is asked where the segment is looked up: those take no fast path.
        looks_up = self._lookup is not None and segment is None and bool(self._rules.policy(policy).by_segment)
        if looks_up or policy in self._turning:
            return compiled
        if (self._has_fast_path or self._counts_one) and policy not in self._overridden:
            fast[names] = compiled
        if self._has_fast_path:
            way = compiled.decide_one
            if policy in self._overridden and self._overrides is not None:
                way = self._overrides.fast_path(names, way)
            ways[names] = way
            if names == (policy, None, None, None):
                short_ways[policy] = way
        return compiled

    def _any_terms(self, policy: str) -> CompiledRule:
        """A compiled rule of the policy in any segment and channel: they all name the same logs."""
        return self._bound(*self._rules.any_names(policy))

    def _needs_each(self, policy: str) -> bool:
        """Whether a refund has to know whose it is: numbers are kept by limit, and subjects have their own."""
        return policy in self._overridden and not self._rules.policy(policy).keeps_log

    def _refund_terms(self, policy: str, subject: Subject) -> CompiledRule:
        """A compiled rule that names the logs that this checked subject's hits are in."""
        own = None
        if policy in self._overridden and self._overrides is not None:
            own = self._overrides.terms(self._rules.any_names(policy), subject)
        return own or self._any_terms(policy)

    # --- one --------------------------------------------------------------------------------------------------

    def _short(self, subject: Subject) -> Subject:
        """The subject, not yet checked, or its hash where it is too long and the caller chose that."""
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

    def _asked(
        self,
        policy: str,
        subject: Subject,
        cost: int,
        id: str | None,
        segment: str | None,
        channel: str | None,
        zone: str | None = None,
        *,
        look_up: bool = True,
        least: int = 1,
    ) -> Attempt:
        """The attempt, checked, without names that make no difference to its policy."""
        if self._next is not None:
            self._turn()
        try:
            names = self._rules.known(policy, segment, channel, zone)
        except TypeError as error:
            raise typed(error, policy, segment, channel, zone) from None
        if id is not None:
            check_id(id)
        segment = names[1]
        if segment is None and look_up and self._lookup is not None:
            segment = self._looked_up(self._rules.policy(policy), check_subject(self._short(subject)))
            self._add_looking_way(names)
        return Attempt(policy, self._subject(subject), check_cost(cost, least), id, segment, channel, names[3])

    def _peeked(
        self,
        policy: str,
        subject: Subject,
        cost: int,
        id: str | None,
        segment: str | None,
        channel: str | None,
        zone: str | None,
    ) -> Attempt:
        """The attempt of a `peek`, checked: its cost may be 0, and then it has no id."""
        asked = self._asked(policy, subject, cost, id, segment, channel, zone, least=0)
        if not asked.cost and id is not None:
            raise InvalidValueError("a peek of cost 0 looks at what is left; it takes no id")
        return asked

    def _arguments(self, attempt: Attempt) -> tuple[CompiledRule, Subject, int, int]:
        """A store's arguments for a checked attempt."""
        if attempt.policy in self._overridden and self._overrides is not None:
            names = attempt.policy, attempt.segment, attempt.channel, attempt.zone
            own = self._overrides.terms(names, attempt.subject)
            if own is not None:
                self._bound(*names)  # so that the next attempt finds a fast path
                return own, attempt.subject, attempt.cost, fingerprint(attempt.id)
        compiled = self._bound(attempt.policy, attempt.segment, attempt.channel, attempt.zone)
        return compiled, attempt.subject, attempt.cost, fingerprint(attempt.id)

    def _known_ids(self, ids: Sequence[str]) -> dict[int, str]:
        """The given ids by their fingerprints."""
        count_of(ids, "ids")
        return {fingerprint(one): one for one in ids}

    def _refund_pairs(self, attempts: Sequence[Attempt], hits: Sequence[int]) -> list[tuple[Attempt, int]]:
        """The attempts of a `decide_all`, each with its hit, or raise."""
        if count_of(attempts, "attempts") != count_of(hits, "hits"):
            raise InvalidValueError(f"{len(attempts)} attempts and {len(hits)} hits: one hit for each attempt")
        return [(check_attempt(one), hit) for one, hit in zip(attempts, hits, strict=True)]

    def _explained(
        self,
        attempt: Attempt,
        subject: Subject,
        now_us: int,
        decision: Decision,
        logs: list[list[Hit]],
        ids: Mapping[int, str],
    ) -> Explanation:
        names = attempt.policy, attempt.segment, attempt.channel, attempt.zone
        rule = None
        if attempt.policy in self._overridden and self._overrides is not None:
            rule = self._overrides.rule(names, attempt.subject)
        rule = rule or self._rules.rule(*names)
        return explain(rule, check_subject(self._short(subject)), now_us, decision, logs, ids)

    def _note(self, asked: Attempt, decision: Decision, denied: DenyCache, epoch: tuple[int, int]) -> None:
        """Cache a refusal, unless refusals count: then the store must record each one.

        Nor is one cached that a change of limits may end: where subjects have limits of their own, or a change is near.
        """
        if asked.policy in self._overridden or asked.policy in self._turning:
            return
        if not self._rules.policy(asked.policy).count_denied:
            denied.note(asked, decision, epoch)

    # --- joint ------------------------------------------------------------------------------------------------

    def _joint_asked(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """The parts of one attempt over several subjects, checked; raises for the first that is wrong."""
        if not 1 <= count_of(attempts, "attempts") <= MOST_JOINT:
            raise InvalidValueError(f"one attempt is over 1 to {MOST_JOINT} subjects: give a list of Attempt")
        asked = [self._asked(*_fields(one)) for one in attempts]
        logs = {(self._rules.policy(one.policy).log, one.subject) for one in asked}
        if len(logs) < len(asked):
            raise InvalidValueError("two parts of one attempt are on the same log; add up their costs in one part")
        return asked

    def _store_attempts(self, asked: Sequence[Attempt]) -> list[StoreAttempt]:
        """Checked attempts in the form that a store takes."""
        return [StoreAttempt(*self._arguments(one)) for one in asked]

    # --- many -------------------------------------------------------------------------------------------------

    def _pending(self, attempts: Sequence[Attempt]) -> PendingBatch:
        """The part of a batch that the store has to decide; a bad item is an error in its place, and fails no other."""
        rows = count_of(attempts, "attempts")
        pending = PendingBatch([None] * rows, [], [], [], self._denied, self._denied.epoch(), [None] * rows)
        for row, attempt in enumerate(attempts):
            try:
                pending.answers[row] = self._put(pending, row, attempt)
            except StoreError:
                with self._observers.rows(pending.named):
                    raise
            except CaplineError as error:
                pending.answers[row], pending.named[row] = error, None
        pending.seen = self._observers.rows(pending.named)
        return pending

    def _put(self, pending: PendingBatch, row: int, attempt: Attempt) -> Decision | None:
        """Add one attempt for the store to decide, or return its answer if the store is not needed."""
        asked = self._asked(*_fields(attempt))
        pending.named[row] = asked
        held = pending.denied.answer(asked)
        if held is not None:
            return held
        try:
            pending.to_decide.append(StoreAttempt(*self._arguments(asked)))
        except StoreError as error:
            return self._outage.decide(asked, error)
        pending.attempts.append(asked)
        pending.rows.append(row)
        return None

    def _filled(
        self, pending: PendingBatch, decided: Sequence[Decision | CaplineError]
    ) -> list[Decision | CaplineError]:
        """All answers in order, with those of the store."""
        for row, asked, answer in zip(pending.rows, pending.attempts, decided, strict=True):
            if isinstance(answer, StoreError):
                pending.answers[row] = self._outage.item(asked, answer)
                continue
            pending.answers[row] = answer
            if isinstance(answer, Decision):
                self._note(asked, answer, pending.denied, pending.epoch)
        return pending.seen([answer for answer in pending.answers if answer is not None])

    def _columns(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        segment: str | Sequence[str | None] | None,
        codes: Sequence[int] | NDArray[np.integer[Any]] | None,
        channel: str | None,
        cost: int,
        zone: str | Sequence[str | None] | None,
        receipt: str | None = None,
    ) -> AttemptColumns:
        """A caller's arguments for many subjects, checked."""
        count_of(subjects, "subjects")
        subjects = self._all_short(subjects)
        fill = None
        if self._lookup is not None:
            known = self._rules.policy(policy)
            fill = partial(self._lookup.fill, known) if known.by_segment else None
        return columns_of(policy, subjects, segment, codes, channel, cost, zone, receipt, self._keyed, fill)

    def _batch(self, asked: AttemptColumns) -> Batch:
        """A store's batch for many subjects."""
        if self._next is not None:
            self._turn()
        kinds = [
            (asked.policy, segment, asked.channel, zone)
            for segment, zone in zip(asked.segments, asked.zones, strict=True)
        ]
        compiled = tuple(self._bound(*names) for names in kinds)
        if asked.policy in self._overridden and self._overrides is not None:
            return self._overrides.batch(asked, compiled, [self._rules.known(*names) for names in kinds])
        return Batch(compiled, asked.subjects, asked.codes, asked.cost, asked.receipt)

    def _seen_many(self, asked: AttemptColumns, *, consume: bool) -> Unseen:
        """The observers' block of a call over many subjects."""
        return self._observers.many("decide_many" if consume else "peek_many", asked, self._defined)

    def _defined(self, policy: str, segment: str | None, channel: str | None) -> tuple[str, str | None, str | None]:
        """These names without those that make no difference; raises if they are not defined. Calls no store."""
        try:
            names = self._rules.known(policy, segment, channel)
            if names not in self._terms:
                self._rules.rule(*names)
        except TypeError as error:
            raise typed(error, policy, segment, channel) from None
        return names[:3]

    def _spread(self, asked: AttemptColumns, answers: Decisions, seen: Unseen, *, consume: bool) -> Decisions:
        """The store's answers among all rows; rows that it could not answer get the `OutagePolicy`'s."""
        self._outage.fix(asked, answers, consume=consume)
        return spread(asked, seen(answers))

    def _refunds(
        self,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        hits: Sequence[int] | NDArray[np.integer[Any]],
    ) -> tuple[list[Subject], list[int]]:
        """Subjects and their hits, checked; raises for the first that is wrong."""
        if count_of(subjects, "subjects") != count_of(hits, "hits"):
            raise InvalidValueError(f"{len(subjects)} subjects and {len(hits)} hits: one hit for each subject")
        checked, errors = check_subjects(self._all_short(subjects))
        for error in errors.values():
            raise error
        named = plain(checked) if self._keyed is None else [self._keyed(subject) for subject in plain(checked)]
        return named, [stamp(hit) for hit in plain(hits)]

    # --- logs -------------------------------------------------------------------------------------------------

    def _merges(self, records: Sequence[Record], first: int) -> list[Merge]:
        """A store's merges for records, the first of them number `first`; raises naming the one that is wrong."""
        merges: list[Merge] = []
        for number, record in enumerate(records, first):
            try:
                merges.append(self._merge(record))
            except StoreError:
                raise
            except InvalidTypeError as error:
                raise InvalidTypeError(f"record {number}: {error}") from None
            except CaplineError as error:
                raise InvalidValueError(f"record {number}: {error}") from None
        return merges

    def _merge(self, record: Record) -> Merge:
        if isinstance(record, LogRecord):
            if record.keyed and self._keyed is None:
                raise InvalidValueError(
                    "its subject is a keyed hash; give the limiter the subject_key it was made with"
                )
            subject = check_subject(record.subject) if record.keyed else self._subject(record.subject)
            return Merge(self._terms_of(record.log), subject, check_rows(record.hits))
        if not isinstance(record, PastHit):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
            raise InvalidTypeError(f"a record is a LogRecord or a PastHit, not {type(record).__name__}")
        names = self._asked(record.policy, record.subject, record.cost, record.id, None, record.channel, look_up=False)
        if record.channel is None:
            compiled = self._terms_of(self._rules.policy(record.policy).log)
        else:
            compiled = self._bound(record.policy, None, record.channel)
        return Merge(compiled, names.subject, check_rows([(stamp(record.at_us), names.cost, fingerprint(record.id))]))

    def _terms_of(self, log: str) -> CompiledRule:
        """A compiled rule over one log alone."""
        compiled = self._log_terms.get(log)
        if compiled is None:
            compiled = self._log_terms[log] = self._store.compiled(self._rules.log_rule(log))
        return compiled

    def _exported(
        self, found: Sequence[ScannedLog], on_fault: Callable[[CaplineError], object] | None
    ) -> Iterator[LogRecord]:
        """The records of a page; a log that cannot be read goes to `on_fault`, or raises if there is none."""
        for one in found:
            if one.error is not None:
                if on_fault is None:
                    raise one.error
                on_fault(one.error)
                continue
            yield from records_of(one, one.log.partition(":")[2], keyed=self._keyed is not None)

    def _terms_to_scan(self, policies: Sequence[str] | None) -> list[CompiledRule]:
        """Compiled rules that name the logs to export: by default all that keep every hit."""
        if policies is None:
            known = self._rules.policies.values()
            return [self._any_terms(policy.name) for policy in known if policy.algorithm == "sliding_log"]
        count_of(policies, "policies")
        for name in policies:
            self._rules.log_rule(self._rules.policy(name).log)
        return [self._any_terms(name) for name in policies]

    def _all_terms(self, subject: Subject | None = None) -> list[CompiledRule]:
        """A compiled rule of every policy: together they name all logs, and those of a subject's own limits."""
        compiled = [self._any_terms(policy) for policy in self._rules.policies]
        if subject is not None:
            # Where an algorithm keeps numbers each limit has a log; elsewhere an override has the policy's.
            policies = (self._rules.policies[name] for name in self._overridden)
            compiled += [self._refund_terms(one.name, subject) for one in policies if not one.keeps_log]
        return compiled


def _fields(attempt: Attempt) -> tuple[str, Subject, int, str | None, str | None, str | None, str | None]:
    """The fields of a caller's attempt, not checked yet."""
    attempt = check_attempt(attempt)
    return (
        attempt.policy,
        attempt.subject,
        attempt.cost,
        attempt.id,
        attempt.segment,
        attempt.channel,
        attempt.zone,
    )
