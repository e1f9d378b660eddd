"""A cache of overrides by subject, also of subjects without one. It has two generations and drops the older as a whole.

The rule: a hit costs one look-up in the dict `Recent.young`, which a fast path may read itself. A subject found in the
older generation moves to the younger, so frequent subjects stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capline.config.records import Entry
    from capline.model.limit import Limit
    from capline.model.subject import Subject


class OwnLimits:
    """The limits of an override, and its granularity. Equal ones are one object, so they are compared by identity."""

    __slots__ = ("__weakref__", "granularity", "limits")

    def __init__(self, limits: tuple[Limit, ...], granularity: str | None = None) -> None:
        self.limits, self.granularity = limits, granularity


class Timed:
    """An override that was to change at a later instant when it was read."""

    __slots__ = ("entry",)

    def __init__(self, entry: Entry) -> None:
        self.entry = entry


Cached = OwnLimits | Timed | None
"""A cached override; None for a subject without one."""


MISSING: Any = object()


class Recent:
    """The cached subjects of one policy. The object stays, so a fast path may keep it; its dicts are replaced."""

    __slots__ = ("old", "young")

    def __init__(self) -> None:
        self.young: dict[Subject, Cached] = {}
        self.old: dict[Subject, Cached] = {}


class OverrideCache:
    """At most `most` subjects of all policies together. Reading needs no lock; writers need one of their own."""

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._size = 0
        self._recent: dict[str, Recent] = {}

    def of(self, policy: str) -> Recent:
        """The cached subjects of a policy."""
        return self._recent.get(policy) or self._recent.setdefault(policy, Recent())

    def put(self, policy: str, subject: Subject, cached: Cached) -> None:
        """Cache what is known of a subject."""
        self._size += 1
        if self._size > self._half:
            for recent in self._recent.values():
                recent.old, recent.young = recent.young, {}
            self._size = 1
        self.of(policy).young[subject] = cached

    def forget(self, policy: str, subject: Subject | None = None) -> None:
        """Forget one subject of a policy, or all."""
        recent = self.of(policy)
        if subject is None:
            recent.young, recent.old = {}, {}
        else:
            recent.young.pop(subject, None)
            recent.old.pop(subject, None)

    def clear(self) -> None:
        """Forget all."""
        for policy in self._recent:
            self.forget(policy)
