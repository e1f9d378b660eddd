"""The policies of a limiter and where they come from: the call, a file, a configuration store with overrides.

The rule: a change is in force whole or not at all, and a broken one leaves the last good one serving.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from capline.limiter.policies.compiled_rules import CompiledRules
from capline.limiter.policies.rules import Rules
from capline.model.errors import CaplineError, InvalidTypeError, PolicyError, StoreError, quoted

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Sequence

    from capline.config.configuration import Configuration
    from capline.limiter.outage.outage import OutagePolicy
    from capline.model.clock import Clock
    from capline.model.limit import Limit
    from capline.model.policy import Policy
    from capline.model.subject import Subject
    from capline.policy.watch import PolicyWatch


class Configured(CompiledRules):
    """A limiter's policies, and the configuration store that it follows."""

    _watch: PolicyWatch | None
    _reload_due: bool = False
    """Whether a good policy file was read that is not in force."""
    _outage: OutagePolicy
    _clock: Clock | None
    _shown_url: str
    _owns_config: bool
    _follows_policies: bool
    """Whether the configuration store has the policies too, or the overrides alone."""
    _changed: set[str]
    """Policies of the configuration store of which something is new that is not in force here."""
    _configuring: threading.RLock
    _next: tuple[int, Rules] | None
    """The next instant at which a policy changes, and the rules from then on."""

    @property
    def policies(self) -> dict[str, Policy]:
        """The policies in force, by name."""
        self._turn()
        policies = self._rules.policies.items()
        return dict(sorted(policies) if self._follows_policies else policies)

    @property
    def missing_segments(self) -> dict[str, list[str]]:
        """Segments that policies in force list and the served version lacks, by policy: nobody is in them now.

        They may be misspelt, or be published later; policies and segments come into force independently.
        """
        return {} if self._lookup is None else self._lookup.missing(self._rules.policies.values())

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
            # How many there are makes no difference.
            totals = {name: msgspec.structs.replace(t, count=1) if t and t.count else None for name, t in found.items()}
            totals = {name: t for name, t in totals.items() if t != self._rules.overrides.get(name)}
            try:
                changes = self._policies_at(now_us, names, self._rules)
                rules = self._rules.having(changes, totals)
                self._plan_turn(now_us, rules, names)
            except CaplineError as error:
                import logging  # noqa: PLC0415 - loaded where there is something to say

                logging.getLogger("capline").warning("the configuration cannot be used, the last one serves: %s", error)
                return
            self._changed.clear()
            if changes or totals or self._turning != turning:
                self._outage.use(rules, self._config, names)
                self._take(rules, names)

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

    def _check_override(self, policy: str, limits: Sequence[Limit | str] | None, granularity: str | None) -> None:
        """Raise for an override that the policy, as this limiter has it, cannot have."""
        from capline.config.changes import own_of  # noqa: PLC0415 - loaded where there is one

        own_of(policy, self._rules.policy(policy), limits, granularity)
