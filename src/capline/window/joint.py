"""One attempt over several subjects: an attempt for each of them at the same now, all or nothing (decision 10).

Each part has a time and a stamp of its own, since the logs of one subject may be ahead of the clock and those of
another not. The logs of one part share both. A slot is one instant, so there all parts share the stamp (decision 13).
"""

from collections.abc import Sequence

import msgspec

from capline.model.decision import Decision
from capline.model.errors import IdConflictError
from capline.model.limit_status import NUMBERS, LimitStatus, states_of
from capline.window.answer import replayed_answer, time_of
from capline.window.bound_log import BoundLog
from capline.window.charge import check_room
from capline.window.log import NEVER
from capline.window.recording import record_hit
from capline.window.rule import Slot, judge, take_slot

SLOTS_DIFFER = (
    "these ids are known in some of the logs only, or at several instants, so they name no one slot; "
    "give back what they have, or take new ids"
)


def joint(
    parts: Sequence[Sequence[BoundLog]], now_us: int, fingerprints: Sequence[int], *, record: bool = True
) -> tuple[Decision, list[int]]:
    """One attempt over several subjects, each with its logs: the answer, and the hit of each part; no hits if refused.

    All or nothing. A part whose id is known was allowed before, and is left as it is. A refusal is never recorded.
    """
    replayed = _replayed(parts, now_us, fingerprints, slot=False)
    new = [logs for logs, answer in zip(parts, replayed, strict=True) if answer is None]
    if not new:
        answers = [answer for answer in replayed if answer is not None]
        least = min(answers, key=lambda answer: answer.remaining)
        parts[answers.index(least)][0].binds = True
        return _by_part(least, parts, replayed), [answer.hit or 0 for answer in answers]
    decision, stamps_us = judge(new, now_us)
    decision = _by_part(decision, parts, replayed)
    if not decision.allowed:
        return decision, []
    stamps = iter(stamps_us)
    hits = [next(stamps) if answer is None else answer.hit or 0 for answer in replayed]
    if record:
        new_hits = [NEVER if answer else hit for answer, hit in zip(replayed, hits, strict=True)]
        _record(parts, now_us, fingerprints, new_hits)
    return decision, hits


def joint_slot(
    parts: Sequence[Sequence[BoundLog]], now_us: int, fingerprints: Sequence[int], slot: Slot
) -> tuple[Decision, list[int]]:
    """One slot for several parts, each with its logs: recorded at the same instant in all of them, or in none.

    The answer, and the hit of each part; no hits if refused. A slot whose ids are known is answered again, also where
    it is so old that some of its logs have forgotten it. Raises `IdConflictError` where the ids name no one slot.
    """
    replayed = _replayed(parts, now_us, fingerprints, slot=True)
    if any(replayed):
        return _known_slot(parts, replayed, now_us)
    decision = _by_part(take_slot(parts, now_us, slot), parts, replayed)
    if decision.hit is None:
        return decision, []
    hits = [decision.hit] * len(parts)
    _record(parts, now_us, fingerprints, hits)
    return decision, hits


def _replayed(
    parts: Sequence[Sequence[BoundLog]], now_us: int, fingerprints: Sequence[int], *, slot: bool
) -> list[Decision | None]:
    """The answer of each part whose id is known."""
    for logs, fingerprint in zip(parts, fingerprints, strict=True):
        logs[0].named = bool(fingerprint)
    return [
        replayed_answer(logs, fingerprint, time_of(logs, now_us), now_us, slot=slot)
        for logs, fingerprint in zip(parts, fingerprints, strict=True)
    ]


def _record(parts: Sequence[Sequence[BoundLog]], now_us: int, fingerprints: Sequence[int], hits: Sequence[int]) -> None:
    """Record the hit of each part (`NEVER`: it has one), at the time of the part's own logs; its id in the first."""
    for logs, stamp_us in zip(parts, hits, strict=True):
        if stamp_us != NEVER:
            check_room(logs, time_of(logs, now_us), stamp_us)
    for logs, fingerprint, stamp_us in zip(parts, fingerprints, hits, strict=True):
        time_us = time_of(logs, now_us)
        for number, bound in enumerate(logs if stamp_us != NEVER else ()):
            record_hit(bound, time_us, stamp_us, 0 if number else fingerprint)


def _known_slot(
    parts: Sequence[Sequence[BoundLog]], replayed: Sequence[Decision | None], now_us: int
) -> tuple[Decision, list[int]]:
    answers = [answer for answer in replayed if answer is not None]
    stamps = {answer.hit or 0 for answer in answers}
    slot_us = max(stamps)
    for logs, answer in zip(parts, replayed, strict=True):
        horizon_us = time_of(logs, now_us) - logs[0].log_limits.retention_us
        if len(stamps) > 1 or (answer is None and slot_us > horizon_us):
            raise IdConflictError(SLOTS_DIFFER)
    least = min(answers, key=lambda answer: answer.remaining)
    parts[replayed.index(least)][0].binds = True
    # A log that has forgotten the slot has no state of then to show.
    forgotten = msgspec.structs.replace(least, _seen=())
    return _by_part(least, parts, [answer or forgotten for answer in replayed]), [slot_us] * len(parts)


def _by_part(decision: Decision, parts: Sequence[Sequence[BoundLog]], replayed: Sequence[Decision | None]) -> Decision:
    """The decision with the limit states of each part; for a known id those that it is told."""
    # The states of the limits of all other parts, one part after the other, as `build_answer` put them there.
    numbers = decision._seen[-1]  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    states: list[tuple[LimitStatus, ...]] = []
    first = 0
    for logs, answer in zip(parts, replayed, strict=True):
        end = first + (NUMBERS * sum(len(bound.readers) for bound in logs) if answer is None else 0)
        own = states_of([bound.log_limits for bound in logs], numbers[first:end]) if answer is None else answer.limits
        states.append(own)
        first = end
    return msgspec.structs.replace(decision, _seen=(tuple, states))
