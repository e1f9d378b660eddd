"""What `Limiter` and `AsyncLimiter` share: everything about a limiter that does not wait for a store.

    CompiledRules  names to compiled rules
    Configured     where the policies come from
    Prepared       the caller's arguments for the store, the store's answers for the caller
    LimiterBase    made and closed, with its options

The rule: the two differ only in calling a store or awaiting it. Each of their verbs is a few lines: check the arguments
(here), call the store, and if it cannot answer apply the `OutagePolicy`.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Self

from capline.limiter.arguments.hashed_keys import keyed_hash
from capline.limiter.observed import Observers
from capline.limiter.outage.closed import CLOSED
from capline.limiter.outage.outage import OutagePolicy
from capline.limiter.policies.deny_cache import DenyCache, check_entries
from capline.limiter.policies.rules import DEFAULT_NAMESPACE, Rules
from capline.limiter.policies.segments import SegmentLookup
from capline.limiter.policies.unnamed import UnnamedPolicies
from capline.limiter.prepared import MOST_JOINT, Prepared
from capline.model.clock import check_clock
from capline.model.errors import InvalidTypeError, InvalidValueError, quoted
from capline.store.redis.io.url import safe_url
from capline.support.fork import ForkLock

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from capline.config.configuration import Configuration
    from capline.limiter.outage.insurance import Insurance
    from capline.limiter.policies.overrides import Overridden
    from capline.limiter.policies.segments import SegmentSource
    from capline.model.clock import Clock
    from capline.model.limit import Limit
    from capline.model.policy import Policy
    from capline.observe.protocol import Observer
    from capline.policy.watch import PolicyWatch
    from capline.segment import Snapshot

DEFAULT_URL = "lmdb://.capline/store"
"""The store of `from_file` and of the command line where none is named: durable, below the working directory."""

MOST_SHOWN = 5
"""Policies that a limiter's `repr` names."""

LONG_SUBJECTS = ("refuse", "hash")


class LimiterBase(Prepared):
    """A limiter without its verbs; see the module's docstring. `_open` opens its kind of store."""

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
        self._watch: PolicyWatch | None = None
        # Before the store, so that there is no store to close where this fails.
        configuration = None if config is None else self._opened(config, namespace, clock)
        self._owns_config = isinstance(config, str)
        self._lookup = None
        try:
            self._lookup = None if segments is None else SegmentLookup(segments)
            self._store = self._open(url, clock, create=create)
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
        self._configuring, self._binding = threading.RLock(), ForkLock()
        self._overrides: Overridden | None = None
        self._overridden: frozenset[str] = frozenset()
        self._turning: frozenset[str] = frozenset()
        self._next: tuple[int, Rules] | None = None
        self._take(rules)
        self._check_segments(rules)
        self._unnamed = UnnamedPolicies(self._beside)
        if configuration is not None:
            self._configure(configuration, own=self._owns_config, with_policies=not rules.policies)

    @classmethod
    def from_file(
        cls,
        path: str | Path | PolicyWatch,
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
        """A limiter of the policies in a YAML file, in its namespace; `reload` takes over what was changed there.

        `path` is the file's, or a `PolicyWatch` of it that nobody else polls.
        """
        from capline.policy.watch import PolicyWatch  # noqa: PLC0415 - YAML is loaded where a file is read

        watch = path if isinstance(path, PolicyWatch) else PolicyWatch(path)
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
        """A limiter of the policies and overrides in a configuration store; docs/reference/configuration.md.

        `config` is its URL, or a `Configuration` that several limiters share and that its maker closes. A change is in
        force within two seconds. Raises `StoreError` if it does not answer now; in a later outage what is known serves.
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
        other._watch = other._lookup = None
        other._config, other._follows_policies, other._overrides, other._next = None, False, None, None
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
