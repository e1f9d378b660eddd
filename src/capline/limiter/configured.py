"""The policies of a limiter and where they come from: the call, a file, a configuration store with overrides.

The rule: a change is in force whole or not at all, and a broken one leaves the last good one serving.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from capline.limiter.compiled_rules import CompiledRules
from capline.limiter.rules import Rules
from capline.model.errors import CaplineError, InvalidTypeError, PolicyError, StoreError, quoted

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Mapping, Sequence

    from capline.config.configuration import Configuration
    from capline.config.records import Totals
    from capline.limiter.outage import OutagePolicy
    from capline.model.clock import Clock
    from capline.model.limit import Limit
    from capline.model.policy import Policy
    from capline.model.subject import Subject
    from capline.policy.watch import PolicyWatch

__all__ = ["Configured"]


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
    _configured_by: tuple[object, dict[str, Totals]] | None
    _configuring: threading.RLock
    _next: tuple[int, Rules] | None
    """The next instant at which a policy changes, and the rules from then on."""

    @property
    def policies(self) -> dict[str, Policy]:
        """The policies in force, by name."""
        self._turn()
        return dict(self._rules.policies)

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
            self._configured()
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
        self._configured()
        if self._keyed is not None:
            with suppress(StoreError):  # an account that may only read
                config.mark_keyed()
        config.follow()

    def _configured(self) -> None:
        """Take over a changed configuration. A further override within the known window and quota changes no rule."""
        config = self._config
        if config is None:
            return
        view = config.view
        with self._configuring:
            totals = {name: msgspec.structs.replace(one, count=1) for name, one in view.totals.items() if one.count}
            known, before = view.entries if self._follows_policies else None, self._configured_by
            if before is not None and before[0] is known and before[1] == totals:
                return
            now_us = view.now_us()
            policies = view.policies_at(now_us) if self._follows_policies else self._rules.policies.values()
            try:
                rules = Rules(policies, self._rules.namespace, totals, self._rules)
                self._plan_turn(now_us, totals)
            except CaplineError as error:
                import logging  # noqa: PLC0415 - loaded where there is something to say

                logging.getLogger("capline").warning("the configuration cannot be used, the last one serves: %s", error)
                return
            self._outage.use(rules, self._config)
            self._take(rules)
            self._configured_by = known, totals

    def _plan_turn(self, now_us: int, totals: Mapping[str, Totals]) -> None:
        """Prepare the rules from the next scheduled change on; until then that policy has no fast path."""
        config = self._config
        turns = config.view.turns(now_us) if config is not None and self._follows_policies else {}
        self._turning = frozenset(turns)
        self._next = None
        if turns and config is not None:
            next_us = min(turns.values())
            rules = Rules(config.view.policies_at(next_us), self._rules.namespace, totals, self._rules)
            self._next = next_us, rules

    def _turn(self) -> None:
        """Put scheduled changes in force whose instant has come."""
        config = self._config
        with self._configuring:
            while (due := self._next) is not None and config is not None and config.view.now_us() >= due[0]:
                next_us, rules = due
                self._plan_turn(next_us, rules.overrides)
                self._outage.use(rules, self._config)
                self._take(rules)

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
