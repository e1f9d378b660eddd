"""What Envoy asks, as metrics.

    capline_envoy_descriptors_total{domain,rule,outcome}   descriptors: ok, over_limit, shadow (over, but let through),
                                                           unlimited, replaced, no_limit, no_domain
    capline_envoy_near_limit_total{domain,rule}            hits above `near_limit_ratio` of their limit
    capline_envoy_reloads_total{outcome}                   changed files: taken, refused
    capline_envoy_turned_away_total{code}                  calls whose token may not ask: unauthenticated,
                                                           permission_denied, unavailable

At most 1,000 pairs of domain and rule; what comes later is counted under "other".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.observe.bounded import LABEL_SETS, Bounded

if TYPE_CHECKING:
    from capline.service.metrics.figures import Figures

_Key = tuple[str, ...]


class EnvoyMetrics:
    """Among the figures of the service."""

    def __init__(self, figures: Figures) -> None:
        def bounded(name: str, text: str, *labels: str) -> Bounded[_Key]:
            made = figures.counter(name, text, labels)
            return Bounded(LABEL_SETS, lambda key: key, lambda key: ("other", "other", *key[2:]), made)

        asked = "Descriptors that Envoy asked for, by their outcome"
        self._descriptors = bounded("capline_envoy_descriptors_total", asked, "domain", "rule", "outcome")
        near = "Hits above near_limit_ratio of their limit"
        self._near = bounded("capline_envoy_near_limit_total", near, "domain", "rule")
        changes = "Changes of the rate limit files, by outcome"
        reloads = figures.counter("capline_envoy_reloads_total", changes, ("outcome",))
        refused = "Calls whose token may not ask, by the code of the answer"
        self._turned_away = figures.counter("capline_envoy_turned_away_total", refused, ("code",))
        self._taken, self._refused = reloads(("taken",)), reloads(("refused",))

    def descriptor(self, domain: str, rule: str, outcome: str) -> None:
        """Count one."""
        self._descriptors[domain, rule, outcome](1)

    def near_limit(self, domain: str, rule: str, hits: int) -> None:
        """Count hits."""
        self._near[domain, rule](hits)

    def reload(self, *, taken: bool) -> None:
        """Count a changed configuration."""
        (self._taken if taken else self._refused)(1)

    def turned_away(self, code: str) -> None:
        """Count a call that was not answered, by its token."""
        self._turned_away((code,))(1)
