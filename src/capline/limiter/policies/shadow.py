"""A policy in shadow: its log goes on as if it bound, but what it would refuse is allowed, with `origin` "shadow".

    the store's answer  ->  `shown`, or `shown_many` of columns: allowed, with `hit` None, as nothing was recorded
    several attempts    ->  those that bind, all or nothing; then each in shadow by itself; `together`: one answer

The rule: nobody is refused and nobody waits, and no header tells of its limits. Stores and their fast paths know
nothing of it: a policy in shadow has no fast path, so that others cost what they did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from capline.model.decision import Decision, Joint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from capline.model.limit_status import LimitStatus
    from capline.store.columns import Decisions
    from capline.store.protocol import Kind
else:
    from capline.model.arrays import np

SHADOW = "shadow"
NOW_US = 1000
"""A slot that is so near is now: hits of one microsecond stand one behind the other."""
_OUTAGE = "fallback"


def shown(answer: Decision, wait_us: int = 0) -> Decision:
    """What the caller is told, who wanted to wait so long by itself. In an outage `origin` stays "fallback"."""
    seen = (_marked, *answer._seen) if answer._seen else ()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - see there
    if answer.allowed and answer.wait_us <= wait_us + NOW_US:
        return msgspec.structs.replace(answer, _seen=seen)
    origin = answer.origin if answer.origin == _OUTAGE else SHADOW
    return msgspec.structs.replace(
        answer, allowed=True, retry_after_us=0, origin=origin, wait_us=wait_us, late_us=0, _seen=seen
    )


def _marked(make: Callable[..., Sequence[LimitStatus]], *read: Any) -> tuple[LimitStatus, ...]:
    return tuple(msgspec.structs.replace(state, shadow=True) for state in make(*read))


def shown_many(answers: Decisions) -> Decisions:
    """What the caller is told of these rows; errors stay."""
    refused = ~answers.allowed
    refused[list(answers.errors)] = False
    origins = {
        row: SHADOW for row in np.flatnonzero(refused).tolist() if answers.origins.get(row, answers.origin) != _OUTAGE
    }
    answers.allowed = answers.allowed | refused
    answers.retry_after_us = np.where(refused, 0, answers.retry_after_us)
    answers.origins = {**answers.origins, **origins}
    return answers


def at_once(times: Mapping[str, int | None]) -> dict[str, int | None]:
    """The times of a slot for which nobody waits longer than the caller wanted to."""
    if "not_before_us" not in times:
        return {**times}
    return {**times, "max_wait_us": (times["not_before_us"] or 0) + NOW_US}


def together(kind: Kind, count: int, binding: tuple[Joint, list[int]] | None, shadows: Mapping[int, Decision]) -> Joint:
    """The answer to so many attempts: that of those that bind, with their places; and those of the others by place.

    If one in shadow would be refused, the answer names it: of several the first.
    """
    hits: list[int | None] = [None] * count
    states: list[tuple[LimitStatus, ...]] = [()] * count
    named: Decision | Joint | None = None
    binds = 0
    if binding is not None:
        named, places = binding
        binds = places[named.binds]
        for place, hit in zip(places, named.hits, strict=False):
            hits[place] = hit
        for place, state in zip(places, named.limits, strict=False):
            states[place] = state
    for place, answer in shadows.items():
        hits[place], states[place] = answer.hit, answer.limits
        if named is None or (answer.origin == SHADOW and named.origin not in (SHADOW, _OUTAGE)):
            named, binds = answer, place
    assert named is not None  # noqa: S101 - there is an attempt # nosec B101
    waits: Decision | Joint = named if binding is None else binding[0]
    recorded = named.allowed and kind != "peek"
    return Joint(
        named.allowed,
        named.limit,
        named.remaining,
        named.retry_after_us,
        named.reset_after_us,
        tuple(hits) if recorded else (),
        binds,
        named.origin,
        waits.wait_us,
        waits.late_us,
        (tuple, tuple(states)),
    )
