"""A cache of overrides by subject, those who have none included: two generations, the older dropped as a whole.

The rule: a look-up that finds its subject costs one look into one dict, `Recent.young`, which a fast path may read
itself. A subject met in the older generation moves to the younger; so what is asked often stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capline.config.records import Entry
    from capline.model.limit import Limit
    from capline.model.subject import Subject

__all__ = ["MISSING", "Cached", "OverrideCache", "OwnLimits", "Recent", "Timed"]


class OwnLimits:
    """Limits of subjects of their own: one object for all who have the same, so that it is compared by identity."""

    __slots__ = ("limits",)

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self.limits = limits


class Timed:
    """An override that changes at an instant which was to come when it was read."""

    __slots__ = ("entry",)

    def __init__(self, entry: Entry) -> None:
        self.entry = entry


Cached = OwnLimits | Timed | None
"""What is known of a subject; None is no override."""


class _Missing:
    __slots__ = ()


MISSING: Any = _Missing()


class Recent:
    """Of one policy. The object stays, so that a fast path may keep it; its dicts are replaced."""

    __slots__ = ("old", "young")

    def __init__(self) -> None:
        self.young: dict[Subject, Cached] = {}
        self.old: dict[Subject, Cached] = {}


class OverrideCache:
    """At most `most` subjects of all policies together. Reading needs no lock; who writes holds one of their own."""

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._size = 0
        self._recent: dict[str, Recent] = {}

    def of(self, policy: str) -> Recent:
        """What is known of a policy's subjects."""
        return self._recent.get(policy) or self._recent.setdefault(policy, Recent())

    def put(self, policy: str, subject: Subject, known: Cached) -> None:
        """Note what is known."""
        self._size += 1
        if self._size > self._half:
            for recent in self._recent.values():
                recent.old, recent.young = recent.young, {}
            self._size = 1
        self.of(policy).young[subject] = known

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
