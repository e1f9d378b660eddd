"""The rule, as functions of (logs, attempt, now): the answer to an attempt, and what is recorded.

    An attempt of cost c at t is allowed if and only if, for every limit (quota q, window W) over its log,
        (units of hits with a stamp in (t - W, t])  +  c  <=  q
    and then one hit is recorded at t. Otherwise nothing at all is recorded. A hit exactly W old is out.

The check is by position, one read for each limit: of the newest q - c + 1 units the oldest must be out of the window,
so the attempt fits from `stamp_of_unit(q - c + 1) + W` on. That instant minus now is `retry_after`. The latest such
instant over all limits is the next free slot, which `schedule` takes. How one limit reads its log is a `LimitReader`;
calendars and other algorithms differ in nothing else.

The time of a log never runs back: t is at least its high-water mark, and a new stamp is later than every hit's. So two
hits of one instant are two hits, a microsecond apart. While a slot in the future is taken, a plain attempt is refused
until then: nobody jumps the queue. Quiet hours come last: a free instant is put off until they end.

Units that must stay free (`keep_free`, k of a limit) are judged with the cost and never recorded: where c stands above,
there is c + k.

Here one attempt is judged, and recorded or refused; a slot is taken, the next free instant, so that each of many who
wait has an instant of its own; and it is moved to an earlier one that has become free. `joint` judges several attempts
as one. `charge` records whatever the limits say, refunds and settles. Below them: `answer` (what logs say together, and
the answer made of it), `recording` (how a hit is added to a log) and `bound_log` (what all of these are given).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from capline.model.clock import LATEST_US
from capline.model.decision import Decision
from capline.model.policy import BoundPolicy
from capline.window.answer import (
    Binding,
    Stamped,
    answer_then,
    build_answer,
    fits_all,
    newest_of,
    opens_from,
    parts_of,
    replayed_answer,
    stamp_from,
    tightest_of,
    time_of,
)
from capline.window.bound_log import BoundLog, draft_logs
from capline.window.charge import record_all
from capline.window.limit_reader import MOST_SHIFTED_US
from capline.window.log import DENIED, NEVER, Log, LogBefore
from capline.window.recording import record_hit


class Slot(msgspec.Struct, frozen=True):
    """Ask for the next free instant, at most `max_wait_us` (None: no bound) and at least `not_before_us` from now."""

    max_wait_us: int | None = None
    not_before_us: int = 0


def take_slot(parts: Sequence[Sequence[BoundLog]], now_us: int, slot: Slot) -> Decision:
    """The next free instant after every slot that is taken in any of these logs, and from which every part fits.

    One instant for all parts, at the time of the log that is furthest ahead. Nothing is taken after the last slot, so
    every later instant is free as well. Records nothing.
    """
    logs = [bound for part in parts for bound in part]
    time_us, newest_us = time_of(logs, now_us), newest_of(logs)

    def stamped(at_us: int) -> Stamped:
        return [(part, at_us) for part in parts]

    fits_us, _, binding = fits_all(logs, time_us)
    if fits_us is None:
        return build_answer(stamped(stamp_from(logs, time_us, newest_us)), now_us, binding=binding, retry_at_us=None)
    stamp_us = stamp_from(logs, max(time_us, fits_us, now_us + slot.not_before_us), newest_us)
    while True:
        opens_us, quiet = opens_from(stamped(stamp_us))
        if opens_us is None:
            return build_answer(stamped(stamp_us), now_us, binding=quiet, retry_at_us=None)
        if opens_us == NEVER:
            break
        stamp_us = stamp_from(logs, opens_us, newest_us)
    if slot.max_wait_us is not None and stamp_us - now_us > slot.max_wait_us:
        # What is left is as of now, and not as of the slot.
        return build_answer(stamped(time_us), now_us, binding=binding, retry_at_us=stamp_us)
    return build_answer(stamped(stamp_us), now_us, allowed=True, wait_us=max(0, stamp_us - now_us))


def attempt(
    logs: Sequence[BoundLog], now_us: int, fingerprint: int = 0, slot: Slot | None = None, denied_units: int = 0
) -> Decision:
    """Decide one attempt, and record it in the logs if it is allowed.

    `fingerprint` is 64 bits of the attempt's id (0: none). With `denied_units` above 0 refusals count: a refusal is
    recorded as well, marked as one, and refusals behind the newest so many units of a log are forgotten. What was
    allowed stays: its quota may be raised again, and a retry gets its answer however many refusals came after it. A
    refusal that only `keep_free` caused is not recorded: it would take the units that are to stay free.
    Raises `IdConflictError` if the id was recorded with another cost, `InvalidValueError` for more units than a log can
    count, as it may hold those of windows that are over.
    """
    time_us, logs[0].named = time_of(logs, now_us), bool(fingerprint)
    replayed = replayed_answer(logs, fingerprint, time_us, now_us, slot=slot is not None)
    if replayed is not None:
        return replayed
    decision = _judged(logs, now_us) if slot is None else take_slot([logs], now_us, slot)
    if decision.hit is not None:
        record_all(logs, now_us, decision.hit, fingerprint)
    elif denied_units and slot is None and not _fits_unkept(logs, now_us):
        counted = _deny(logs, time_us, now_us, denied_units)
        return decision if counted is None else counted
    return decision


def move(
    logs: Sequence[BoundLog], stamp_us: int, now_us: int, fingerprint: int = 0, not_before_us: int = 0
) -> Decision:
    """Move a slot that lies ahead to where `take_slot` places it in front of itself, if that is earlier.

    The place is later than every hit with units in front of it, so a gap is for the first of those that wait behind it;
    hits behind it find fewer units in their windows. The slot has the new stamp from then on, with its id, and none at
    its old one, which stays nobody's. Stamps strictly increase in the order of the decisions, but for this.

    It is named by its id (0: none), or else by its stamp. The answer is the slot where it is now. A slot whose time has
    come stays, and so does a hit that is not in all of these logs; of one that is unknown or refunded the answer is
    that it is not allowed. Only for logs that keep single hits, and where refusals do not count.
    """
    own, time_us = logs[0].log, time_of(logs, now_us)
    horizon_us = time_us - logs[0].log_limits.retention_us
    if fingerprint:
        stamp_us = own.find(fingerprint, horizon_us)
    units = own.units_at(stamp_us) if stamp_us > horizon_us else 0
    if not units:
        return build_answer([(logs, time_us)], now_us, retry_at_us=None)
    if stamp_us > time_us and all(bound.log.units_at(stamp_us) == units for bound in logs):
        for bound in logs:
            bound.cost = units
        in_front = [msgspec.structs.replace(bound, log=LogBefore(bound.log, stamp_us)) for bound in logs]
        moved_us = take_slot([in_front], now_us, Slot(None, not_before_us)).hit
        if moved_us is not None and moved_us < stamp_us:
            fingerprint = own.name_of(stamp_us)
            for number, bound in enumerate(logs):
                bound.log.give_back(stamp_us, units)
                record_hit(bound, time_us, moved_us, 0 if number else fingerprint)
            stamp_us = moved_us
    return answer_then(logs, stamp_us, time_us, now_us, slot=True)


def peek(logs: Sequence[BoundLog], now_us: int, fingerprint: int = 0) -> Decision:
    """What `attempt` would answer, with `hit` None unless the id is known; changes nothing."""
    logs[0].named = bool(fingerprint)
    replayed = replayed_answer(logs, fingerprint, time_of(logs, now_us), now_us, slot=False)
    if replayed is not None:
        return replayed
    return msgspec.structs.replace(_judged(logs, now_us), hit=None)


def step(
    logs: tuple[Log, ...], rule: BoundPolicy, cost: int, now_us: int, fingerprint: int = 0, slot: Slot | None = None
) -> tuple[tuple[Log, ...], Decision]:
    """One attempt as a pure function: the logs it leaves, and its answer."""
    drafts, bound_logs = draft_logs(logs, rule, cost, now_us)
    decision = attempt(bound_logs, now_us, fingerprint, slot, rule.denied_units)
    return tuple(draft.log for draft in drafts), decision


class _Verdict(NamedTuple):
    """What one part's logs say of an attempt, before quiet hours are checked.

    `stamp_us` is the stamp that it would have now; `holds_us` is until when it is blocked (None: for ever, `NEVER`: not
    at all), and `binding` the limit that blocks it; `hit_us` is the stamp to record it under. The last slot that is
    taken is that of `newest_us` (`NEVER`: none).
    """

    logs: Sequence[BoundLog]
    stamp_us: int
    holds_us: int | None
    binding: Binding | None = None
    hit_us: int = NEVER
    newest_us: int = NEVER

    def goes_at(self, at_us: int) -> bool:
        """Whether it is allowed at this instant, from the next one on it is: the next one's stamp may be this one's."""
        if at_us < self.newest_us:
            return False
        if self.logs[0].cost and any(bound.log.next_stamp(at_us) == at_us for bound in self.logs):
            return True
        return (self.holds_us or NEVER) <= at_us and opens_from([(self.logs, at_us)])[0] == NEVER


def _verdict(logs: Sequence[BoundLog], now_us: int) -> _Verdict:
    time_us, newest_us = time_of(logs, now_us), newest_of(logs)
    # A peek of cost 0 takes no new stamp: it reads what is left now.
    stamp_us = stamp_from(logs, time_us, newest_us) if logs[0].cost else time_us
    fits_us, early_us, binding = fits_all(logs, time_us)
    if fits_us is None:
        return _Verdict(logs, stamp_us, None, binding)
    slot_us = newest_us if newest_us > time_us else NEVER
    if early_us > stamp_us or slot_us != NEVER:
        holds_us = _held_until(early_us, slot_us, logs[0].cost)
        return _Verdict(logs, stamp_us, holds_us, binding, newest_us=slot_us)
    hit_us = max(stamp_us, fits_us)
    return _Verdict(logs, stamp_us, NEVER, None, stamp_from(logs, hit_us, newest_us) if logs[0].cost else hit_us)


def judge(parts: Sequence[Sequence[BoundLog]], now_us: int) -> tuple[Decision, list[int]]:
    """Whether all parts are allowed now, and the stamp to record each under. Records nothing."""
    verdicts = [_verdict(logs, now_us) for logs in parts]
    stamped = [(verdict.logs, verdict.stamp_us) for verdict in verdicts]
    never = next((verdict for verdict in verdicts if verdict.holds_us is None), None)
    if never is not None:
        return build_answer(stamped, now_us, binding=never.binding, retry_at_us=None), []
    longest = max(verdicts, key=lambda verdict: verdict.holds_us or NEVER)
    holds_us = longest.holds_us or NEVER
    opens_us, quiet = _opens_from(verdicts, holds_us)
    if opens_us == NEVER:
        hits = [verdict.hit_us for verdict in verdicts]
        return build_answer([*zip(parts, hits, strict=True)], now_us, allowed=True), hits
    binding = longest.binding or quiet or (tightest_of(longest.logs, longest.stamp_us) if holds_us != NEVER else None)
    return build_answer(stamped, now_us, binding=binding, retry_at_us=opens_us), []


def _opens_from(verdicts: Sequence[_Verdict], holds_us: int) -> tuple[int | None, Binding | None]:
    """When all are allowed, as `opens_from` says it; where stamps just before it are taken, from the first of them."""
    opens_us, quiet = opens_from([(verdict.logs, verdict.stamp_us) for verdict in verdicts], holds_us)
    if opens_us is None or opens_us == NEVER:
        return opens_us, quiet
    for before_us in range(opens_us - 1, opens_us - MOST_SHIFTED_US - 1, -1):
        if not all(verdict.goes_at(before_us) for verdict in verdicts):
            return before_us + 1, quiet
    return opens_us - MOST_SHIFTED_US, quiet


def _judged(logs: Sequence[BoundLog], now_us: int) -> Decision:
    """The answer to an attempt on these logs. Of several policies each is judged at its own time; the stamp is one.

    It is the latest of theirs. In a log that is behind, the hit is as a slot in the future: it counts from now on, and
    nobody jumps the queue before its stamp.
    """
    parts = parts_of(logs, now_us)
    if len(parts) == 1:
        return judge(parts, now_us)[0]
    decision, hits = judge(parts, now_us)
    if not hits:
        return decision
    stamp_us = stamp_from(logs, max(hits), NEVER)
    return build_answer([(part, stamp_us) for part in parts], now_us, allowed=True)


def _fits_unkept(logs: Sequence[BoundLog], now_us: int) -> bool:
    """Whether an attempt that is refused would be allowed if nothing had to stay free."""
    if logs[0].log_limits.keep_free is None:
        return False
    replace = msgspec.structs.replace
    return judge([[replace(bound, log_limits=replace(bound.log_limits, keep_free=None)) for bound in logs]], now_us)[
        0
    ].allowed


def _deny(logs: Sequence[BoundLog], time_us: int, now_us: int, denied_units: int) -> Decision | None:
    """Record a refusal that counts, and answer as of after it: `retry_after` includes this refusal's own units.

    None, and nothing recorded, if no stamp is left for it.
    """
    stamp_us = stamp_from(logs, time_us, NEVER)
    if stamp_us >= LATEST_US:
        return None
    for bound in logs:
        if bound.log.units_after(stamp_us) >= denied_units:
            continue  # it would be forgotten at once
        # More units than that change no answer, and would let sums grow.
        record_hit(bound, time_us, stamp_us, DENIED, min(bound.cost, denied_units))
        oldest_us = bound.log.stamp_of_unit(denied_units + 1)
        if oldest_us != NEVER:
            bound.log.forget(oldest_us - 1)
    stamped = [(logs, stamp_us)]
    fits_us, early_us, binding = fits_all(logs, time_us)
    if fits_us is None:
        return build_answer(stamped, now_us, binding=binding, retry_at_us=None)
    newest_us = newest_of(logs)
    holds_us = _held_until(early_us, newest_us, 1)
    opens_us, quiet = _opens_from([_Verdict(logs, stamp_us, holds_us, newest_us=newest_us)], holds_us)
    return build_answer(stamped, now_us, binding=binding or quiet, retry_at_us=opens_us)


def _held_until(fits_us: int, last_us: int, cost: int) -> int:
    """When a refused attempt is allowed: when it fits, but not before the last slot that is taken (`NEVER`: none)."""
    # At the instant of the last slot itself the next stamp is a microsecond later; a peek of cost 0 takes none.
    return last_us if fits_us <= last_us + min(1, cost) else fits_us
