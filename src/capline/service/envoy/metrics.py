"""What Envoy asks, as metrics.

    capline_envoy_descriptors_total{domain,rule,outcome}   descriptors: ok, over_limit, shadow (over, but let through),
                                                           unlimited, replaced, no_limit, no_domain
    capline_envoy_reloads_total{outcome}                   changed files: taken, refused

At most 1,000 pairs of domain and rule; what comes later is counted under "other".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, Counter

from capline.observe.bounded import LABEL_SETS, Bounded

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["EnvoyMetrics"]

_Key = tuple[str, str, str]


class EnvoyMetrics:
    """In a registry: prometheus-client's own, or the one given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        into = REGISTRY if registry is None else registry
        descriptors = Counter(
            "capline_envoy_descriptors_total",
            "Descriptors that Envoy asked for, by their outcome",
            ("domain", "rule", "outcome"),
            registry=into,
        )
        reloads = Counter(
            "capline_envoy_reloads_total", "Changes of the rate limit files, by outcome", ("outcome",), registry=into
        )
        self._descriptors: Bounded[_Key] = Bounded(
            LABEL_SETS, lambda key: key, _other, lambda labels: descriptors.labels(*labels).inc
        )
        self._taken, self._refused = reloads.labels("taken"), reloads.labels("refused")

    def descriptor(self, domain: str, rule: str, outcome: str) -> None:
        """Count one."""
        self._descriptors[domain, rule, outcome](1)

    def reload(self, *, taken: bool) -> None:
        """Count a changed configuration."""
        (self._taken if taken else self._refused).inc()


def _other(key: _Key) -> _Key:
    return "other", "other", key[2]
