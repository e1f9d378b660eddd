"""The rule, as functions of (logs, attempt, now): what an attempt is answered, and what it leaves in the logs.

    An attempt of cost c at t is allowed if and only if, for every limit (quota q, window W) over its log,
        (units of hits with a stamp in (t - W, t])  +  c  <=  q
    and then one hit is recorded at t. Otherwise nothing at all is recorded. A hit exactly W old is out.

Read by position this is one look a limit: of the newest q - c + 1 units, the oldest must be out of the window, so the
attempt fits from `stamp_of_unit(q - c + 1) + W` on. That instant minus now is `retry_after`; the latest over all limits
is the next free instant, which `schedule` takes. Both answers come from the same look, whatever the quota and whatever
the costs. How a limit reads its log, and so what a calendar or another algorithm changes, is its gauge's part.

Time, per log, never runs back: t is at least the floor, and a stamp is later than every live hit's (two hits in one
instant are two hits, a microsecond apart). Where a slot is taken in the future, a plain attempt is refused until then:
nobody jumps the queue. Quiet hours come last: what is free is put off until they end.

An attempt over several subjects is one attempt for each of them at the same now: all must hold, then each is recorded.
Each part has a time and a stamp of its own, as the logs of one subject may be ahead of the clock and those of another
not. The logs of one part share both (decision 10).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from capline.model.clock import LATEST_US
from capline.model.decision import Decision
from capline.model.errors import IdConflictError
from capline.model.limit import LARGEST_QUOTA, Limit
from capline.model.limit_status import NUMBERS, LimitStatus, states_of
from capline.model.policy import LogLimits
from capline.model.zone import ZoneTable, zone_table
from capline.window.limit_reader import LevelReader, LimitReader, QuietReader, reader_of
from capline.window.log import NEVER, Draft, Log, LogView

if TYPE_CHECKING:
    from capline.model.policy import BoundPolicy

__all__ = [
    "BoundLog",
    "OpenLog",
    "Readers",
    "Slot",
    "attempt",
    "draft_logs",
    "joint",
    "peek",
    "readers_of",
    "refund",
    "step",
    "table_of",
]

Readers = tuple[tuple[LimitReader, ...], ...]
"""For each look of a rule, what reads its limits."""


class OpenLog(LogView, Protocol):
    """A log that can be changed."""

    def record(self, stamp_us: int, units: int, high_water_us: int, fingerprint: int = 0) -> None:
        """Add one hit, with a stamp that no other has."""
        ...

    def extend(self, stamp_us: int, units: int, high_water_us: int) -> None:
        """Move the last hit, which has no id, to this stamp, not before its own, with so many units more (or fewer)."""
        ...

    def units_at(self, stamp_us: int) -> int:
        """The units of the hit with this stamp; 0 for none."""
        ...

    def give_back(self, stamp_us: int, units: int) -> bool:
        """Take so many units off the hit with this stamp; False where it has fewer. Its stamp stays, its id is free."""
        ...

    def find(self, fingerprint: int, cutoff_us: int) -> int:
        """The stamp recorded under this id, later than the cutoff; `NEVER` for none."""
        ...

    def trim(self, cutoff_us: int) -> None:
        """Forget what is as old as the cutoff or older."""
        ...

    def forget(self, cutoff_us: int) -> None:
        """`trim`, but for hits that have an id."""
        ...


class BoundLog(msgspec.Struct):
    """One log that an attempt looks at, with all that it is read by.

    `changed` is on once something was recorded in it, `binds` where the limit that the answer names is read from it.
    """

    log: OpenLog
    log_limits: LogLimits
    readers: tuple[LimitReader, ...]
    cost: int
    table: ZoneTable = ()
    changed: bool = False
    binds: bool = False


class Slot(msgspec.Struct, frozen=True):
    """The next free instant is asked for: at most (None: no bound) and at least so far from now."""

    max_wait_us: int | None = None
    not_before_us: int = 0


def readers_of(rule: BoundPolicy) -> Readers:
    """What reads each limit of the rule."""
    counts_denied = rule.denied_units > 0
    return tuple(
        tuple(reader_of(limit, rule.algorithm, counts_denied=counts_denied) for limit in log_limits.limits)
        for log_limits in rule.logs
    )


def table_of(rule: BoundPolicy, now_us: int) -> ZoneTable:
    """The zone's offsets about now; empty where the rule asks for none."""
    return zone_table(rule.zone, now_us) if rule.zone else ()


def attempt(
    logs: Sequence[BoundLog], now_us: int, fingerprint: int = 0, slot: Slot | None = None, denied_units: int = 0
) -> Decision:
    """One attempt: its answer, and the sites' logs changed accordingly.

    `fingerprint` is 64 bits of the attempt's id (0: none). Where refusals count, `denied_units` is how many units of a
    log can matter: a refusal is recorded as well, and what is older than the newest so many is forgotten, but for hits
    that have an id: a retry of what was allowed gets its answer however many refusals came after it.
    Raises `IdConflictError` where the id was recorded with another cost.
    """
    time_us = _time(logs, now_us)
    known = _known(logs, fingerprint, time_us, now_us, slot=slot is not None)
    if known is not None:
        return known
    decision = _judge([logs], now_us)[0] if slot is None else _place(logs, now_us, slot)
    if decision.hit is not None:
        for number, bound in enumerate(logs):
            _record(bound, time_us, decision.hit, 0 if number else fingerprint)
    elif denied_units and slot is None:
        counted = _deny(logs, time_us, now_us, denied_units)
        return decision if counted is None else counted
    return decision


def peek(logs: Sequence[BoundLog], now_us: int, fingerprint: int = 0) -> Decision:
    """What `attempt` would answer, with no hit to name where none was recorded; changes nothing."""
    known = _known(logs, fingerprint, _time(logs, now_us), now_us, slot=False)
    return msgspec.structs.replace(_judge([logs], now_us)[0], hit=None) if known is None else known


def joint(
    parts: Sequence[Sequence[BoundLog]], now_us: int, fingerprints: Sequence[int], *, record: bool = True
) -> tuple[Decision, list[int]]:
    """One attempt over several subjects, each with its sites: the answer, and the hit of each part; none when refused.

    All or nothing; a part whose id is known was allowed before, and is left as it is. A refusal is never recorded.
    """
    known = [
        _known(logs, fingerprint, _time(logs, now_us), now_us, slot=False)
        for logs, fingerprint in zip(parts, fingerprints, strict=True)
    ]
    new = [logs for logs, answer in zip(parts, known, strict=True) if answer is None]
    if not new:
        answers = [answer for answer in known if answer is not None]
        least = min(answers, key=lambda answer: answer.remaining)
        parts[answers.index(least)][0].binds = True
        return _by_part(least, parts, known, []), [answer.hit or 0 for answer in answers]
    decision, stamps_us = _judge(new, now_us)
    numbers = decision._seen[-1]  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as `_answer` put it there
    decision = _by_part(decision, parts, known, numbers)
    if not decision.allowed:
        return decision, []
    stamps = iter(stamps_us)
    hits = [next(stamps) if answer is None else answer.hit or 0 for answer in known]
    for logs, fingerprint, answer, stamp_us in zip(parts, fingerprints, known, hits, strict=True) if record else ():
        time_us = _time(logs, now_us)
        for number, bound in enumerate(logs if answer is None else ()):
            _record(bound, time_us, stamp_us, 0 if number else fingerprint)
    return decision, hits


def _by_part(
    decision: Decision, parts: Sequence[Sequence[BoundLog]], known: Sequence[Decision | None], numbers: Sequence[int]
) -> Decision:
    """The decision with the limits of each part apart: of one whose id is known, as they were then.

    `numbers` are those of all the others' limits, one part behind the other.
    """
    told: list[tuple[LimitStatus, ...]] = []
    first = 0
    for logs, answer in zip(parts, known, strict=True):
        end = first + (NUMBERS * sum(len(bound.readers) for bound in logs) if answer is None else 0)
        own = states_of([bound.log_limits for bound in logs], numbers[first:end]) if answer is None else answer.limits
        told.append(own)
        first = end
    return msgspec.structs.replace(decision, _seen=(tuple, told))


def refund(logs: Sequence[BoundLog], stamp_us: int, cost: int, now_us: int) -> bool:
    """Give back the hit with this stamp, in the own log, the first, and in every other that has it; was there one?

    Where hits are kept as sums, one that has no id is given back by its `cost`, as often as the sum has that much.
    """
    own = logs[0]
    if stamp_us <= max(now_us, own.log.high_water_us) - own.log_limits.retention_us:
        return False
    if own.log_limits.keeps == "sums":
        return _give_back(own, stamp_us, cost)
    units = own.log.units_at(stamp_us)
    if own.log_limits.keeps == "ids":
        if units:
            own.changed = own.log.give_back(stamp_us, units)
        elif own.log.free_stamp(stamp_us) != stamp_us:
            return False
        given_back = [_give_back(bound, stamp_us, units or cost) for bound in logs[1:]]
        return any(given_back)
    if not units:
        return False
    for bound in logs:
        bound.changed = bound.log.give_back(stamp_us, units)
    return True


def step(
    logs: tuple[Log, ...],
    rule: BoundPolicy,
    cost: int,
    now_us: int,
    fingerprint: int = 0,
    slot: Slot | None = None,
) -> tuple[tuple[Log, ...], Decision]:
    """One attempt as a pure function: the logs it leaves, and its answer."""
    drafts, bound_logs = draft_logs(logs, rule, cost, now_us)
    decision = attempt(bound_logs, now_us, fingerprint, slot, rule.denied_units)
    return tuple(draft.log for draft in drafts), decision


def draft_logs(logs: Sequence[Log], rule: BoundPolicy, cost: int, now_us: int) -> tuple[list[Draft], list[BoundLog]]:
    """The sites of a rule on plain values, and the drafts that show what became of these."""
    drafts, table = [Draft(log) for log in logs], table_of(rule, now_us)
    return drafts, [
        BoundLog(draft, log_limits, readers, cost, table)  # pyright: ignore[reportArgumentType] - a draft has the rest of its log
        for draft, log_limits, readers in zip(drafts, rule.logs, readers_of(rule), strict=True)
    ]


# --- the answer ---------------------------------------------------------------------------------------------------


class _Verdict(NamedTuple):
    """What one part's logs say of an attempt, before quiet hours are asked.

    `stamp_us` is the stamp that it would have now; `holds_us` until when it is held up (None: for ever, `NEVER`: not at
    all), and `binding` the limit that holds it; `hit_us` the stamp to record it under.
    """

    logs: Sequence[BoundLog]
    stamp_us: int
    holds_us: int | None
    binding: _Binding | None = None
    hit_us: int = NEVER


def _verdict(logs: Sequence[BoundLog], now_us: int) -> _Verdict:
    time_us, newest_us = _time(logs, now_us), _newest(logs)
    stamp_us = _stamp(logs, time_us, newest_us)
    fits_us, early_us, binding = _fits(logs, time_us)
    if fits_us is None:
        return _Verdict(logs, stamp_us, None, binding)
    queued = newest_us > time_us
    if early_us > stamp_us or queued:
        return _Verdict(logs, stamp_us, _held_until(early_us, newest_us if queued else NEVER), binding)
    return _Verdict(logs, stamp_us, NEVER, None, _stamp(logs, max(stamp_us, fits_us), newest_us))


def _judge(parts: Sequence[Sequence[BoundLog]], now_us: int) -> tuple[Decision, list[int]]:
    """Would all of these be allowed now? And the stamp to record each part under; nothing is recorded here."""
    verdicts = [_verdict(logs, now_us) for logs in parts]
    stamped = [(one.logs, one.stamp_us) for one in verdicts]
    never = next((one for one in verdicts if one.holds_us is None), None)
    if never is not None:
        return _answer(stamped, now_us, binding=never.binding, retry_at_us=None), []
    longest = max(verdicts, key=lambda one: one.holds_us or NEVER)
    holds_us = longest.holds_us or NEVER
    opens_us, quiet = _opens(stamped, holds_us)
    if opens_us == NEVER:
        hits = [one.hit_us for one in verdicts]
        return _answer([*zip(parts, hits, strict=True)], now_us, allowed=True), hits
    binding = longest.binding or quiet or (_tightest(longest.logs, longest.stamp_us) if holds_us != NEVER else None)
    return _answer(stamped, now_us, binding=binding, retry_at_us=opens_us), []


def _place(logs: Sequence[BoundLog], now_us: int, slot: Slot) -> Decision:
    """The next free instant, behind every slot taken.

    An instant that is later than it needs to be is free as well, as nothing is taken behind the last slot.
    """
    time_us, newest_us = _time(logs, now_us), _newest(logs)
    fits_us, _, binding = _fits(logs, time_us)
    if fits_us is None:
        stamped = [(logs, _stamp(logs, time_us, newest_us))]
        return _answer(stamped, now_us, binding=binding, retry_at_us=None)
    stamp_us = _stamp(logs, max(time_us, fits_us, now_us + slot.not_before_us), newest_us)
    while True:
        opens_us, quiet = _opens([(logs, stamp_us)])
        if opens_us is None:
            return _answer([(logs, stamp_us)], now_us, binding=quiet, retry_at_us=None)
        if opens_us == NEVER:
            break
        stamp_us = _stamp(logs, opens_us, newest_us)
    if slot.max_wait_us is not None and stamp_us - now_us > slot.max_wait_us:
        return _answer([(logs, stamp_us)], now_us, binding=binding, retry_at_us=stamp_us)
    return _answer([(logs, stamp_us)], now_us, allowed=True, wait_us=max(0, stamp_us - now_us))


def _deny(logs: Sequence[BoundLog], time_us: int, now_us: int, denied_units: int) -> Decision | None:
    """Record the refusal, where it counts, and answer with it: a cost fits when this one too is out.

    None, and nothing recorded, where there is no instant left to stamp it with.
    """
    stamp_us = _stamp(logs, time_us, NEVER)
    if stamp_us >= LATEST_US:
        return None
    for bound in logs:
        # More than all quotas together is as good as that, and leaves sums small.
        _record(bound, time_us, stamp_us, 0, min(bound.cost, denied_units))
        oldest_us = bound.log.stamp_of_unit(denied_units + 1)
        if oldest_us != NEVER:
            bound.log.forget(oldest_us - 1)
    stamped = [(logs, stamp_us)]
    fits_us, early_us, binding = _fits(logs, time_us)
    if fits_us is None:
        return _answer(stamped, now_us, binding=binding, retry_at_us=None)
    opens_us, quiet = _opens(stamped, _held_until(early_us, _newest(logs)))
    return _answer(stamped, now_us, binding=binding or quiet, retry_at_us=opens_us)


def _held_until(fits_us: int, last_us: int) -> int:
    """Refused until it fits, and until the last slot that is taken (`NEVER`: none)."""
    # At the instant of the last slot itself, the next stamp is already one later.
    return last_us if fits_us <= last_us + 1 else fits_us


def _known(logs: Sequence[BoundLog], fingerprint: int, time_us: int, now_us: int, *, slot: bool) -> Decision | None:
    """The answer that this id was recorded with, for a retry; None where it is new.

    Hits as old as the horizon are trimmed, or may be, and count no more in what remained. Where an algorithm keeps no
    hits, what remains is told as of now.
    """
    if not fingerprint:
        return None
    own = logs[0]
    horizon_us = time_us - own.log_limits.retention_us
    stamp_us = own.log.find(fingerprint, horizon_us)
    if stamp_us == NEVER:
        return None
    units = own.log.units_at(stamp_us)
    if units != own.cost:
        raise IdConflictError(
            f"this id was recorded with a cost of {units}, not {own.cost}; "
            "a retry repeats the attempt, a new attempt takes a new id",
        )
    left, binding, empty_us = LARGEST_QUOTA + 1, None, 0
    numbers: list[int] = []
    for bound in logs:
        for reader in bound.readers:
            rest = reader.left_then(bound.log, stamp_us, horizon_us, time_us, bound.table)
            if rest < left:
                left, binding = rest, reader.limit
            whole_us = reader.empty_us(bound.log, stamp_us, 0, bound.table) - stamp_us
            empty_us = max(empty_us, whole_us)
            more_us = reader.more_then_us(bound.log, stamp_us, horizon_us, time_us, bound.table)
            numbers += max(0, rest), more_us, max(0, whole_us) if more_us else 0
    return Decision(
        allowed=True,
        limit=binding,
        remaining=max(0, left),
        retry_after_us=0,
        reset_after_us=empty_us,
        hit=stamp_us,
        wait_us=max(0, stamp_us - now_us) if slot else 0,
        _seen=(states_of, [bound.log_limits for bound in logs], numbers),
    )


def _answer(
    stamped: _Stamped,
    now_us: int,
    *,
    allowed: bool = False,
    binding: _Binding | None = None,
    retry_at_us: int | None = 0,
    wait_us: int = 0,
) -> Decision:
    """Put the answer together, with what is left of each part at its stamp.

    What would be stamped with no instant never fits.
    """
    if allowed and any(stamp_us >= LATEST_US for _, stamp_us in stamped):
        allowed, retry_at_us, wait_us = False, None, 0
    elif retry_at_us is not None and retry_at_us >= LATEST_US:
        retry_at_us = None
    left, empty_us = LARGEST_QUOTA + 1, NEVER
    tightest: _Binding | None = None
    numbers: list[int] = []
    for logs, stamp_us in stamped:
        last_us = max(_newest(logs), stamp_us if allowed else NEVER)
        for bound in logs:
            cost = bound.cost if allowed else 0
            own_last_us = stamp_us if allowed else bound.log.newest_us()
            for reader in bound.readers:
                units = reader.left(bound.log, stamp_us, bound.table) - cost
                if units < left:
                    left, tightest = units, (reader.limit, bound)
                if last_us != NEVER:
                    empty_us = max(empty_us, reader.empty_us(bound.log, last_us, cost, bound.table))
                whole_us = more_us = reader.more_us(bound.log, stamp_us, cost, bound.table)
                if more_us != NEVER and not isinstance(reader, QuietReader):
                    whole_us = reader.empty_us(bound.log, own_last_us, cost, bound.table)
                numbers += max(0, units), max(0, more_us - now_us), max(0, whole_us - now_us)
    limit, own = binding or tightest or (None, stamped[0][0][0])
    own.binds = True
    return Decision(
        allowed=allowed,
        limit=limit,
        remaining=max(0, left),
        retry_after_us=None if retry_at_us is None else 0 if allowed else retry_at_us - now_us,
        reset_after_us=0 if empty_us == NEVER else max(0, empty_us - now_us),
        hit=stamped[0][1] if allowed else None,
        wait_us=wait_us,
        _seen=(states_of, [bound.log_limits for logs, _ in stamped for bound in logs], numbers),
    )


# --- the looks ----------------------------------------------------------------------------------------------------


def _time(logs: Sequence[BoundLog], now_us: int) -> int:
    """This attempt's now, never below a floor."""
    return max([now_us, *(bound.log.high_water_us for bound in logs)])


def _newest(logs: Sequence[BoundLog]) -> int:
    """The newest live stamp of any of the logs."""
    return max([bound.log.newest_us() for bound in logs])


def _stamp(logs: Sequence[BoundLog], time_us: int, newest_us: int) -> int:
    """The first stamp from this instant on that is later than every live hit and names no other hit in any log."""
    stamp_us = max(time_us, newest_us + 1)
    while True:
        free_us = max([bound.log.free_stamp(stamp_us) for bound in logs])
        if free_us == stamp_us:
            return stamp_us
        stamp_us = free_us


_Binding = tuple[Limit, BoundLog]
"""The limit that an answer names, and where it is read."""

_Stamped = Sequence[tuple[Sequence[BoundLog], int]]
"""The sites of each part, and the stamp that the part would have."""


def _fits(logs: Sequence[BoundLog], time_us: int) -> tuple[int | None, int, _Binding | None]:
    """From when on this fits every limit (None: never), from when on it is let in, and the limit that holds longest.

    It is let in sooner by the microseconds of a smear, to be stamped when it fits. No limit holds (None) where it would
    fit by now: what hits out of every window once held up depends on when they were forgotten.
    """
    latest_us, latest_early_us, binding = NEVER, NEVER, None
    for bound in logs:
        for reader in bound.readers:
            fits_us = reader.fits_us(bound.log, bound.cost, bound.table)
            if fits_us is None:
                return None, NEVER, (reader.limit, bound)
            latest_early_us = max(latest_early_us, fits_us - reader.stamp_shift_us(bound.log, fits_us))
            if fits_us > latest_us:
                latest_us, binding = fits_us, (reader.limit, bound) if fits_us > time_us else None
    return latest_us, latest_early_us, binding


MOST_TURNS = 64
"""How often quiet hours may hand over to each other before it is clear that they leave no room."""


def _opens(stamped: _Stamped, at_us: int = NEVER) -> tuple[int | None, _Binding | None]:
    """From when on, not before this instant, no quiet hours forbid any part's stamp, and the last that did.

    None: they leave no room. `at_us` itself (`NEVER`: now) where none forbid it.
    """
    quiet = [
        (reader, bound, stamp_us)
        for logs, stamp_us in stamped
        for bound in logs
        for reader in bound.readers
        if isinstance(reader, QuietReader)
    ]
    binding = None
    for _ in range(MOST_TURNS if quiet else 0):
        before_us = at_us
        for reader, bound, stamp_us in quiet:
            asked_us = max(at_us, stamp_us)
            opens_us = reader.opens_us(asked_us, bound.table)
            if opens_us > asked_us:
                at_us, binding = opens_us, (reader.limit, bound)
        if at_us == before_us:
            return at_us, binding
    return (None, binding) if quiet else (at_us, None)


def _tightest(logs: Sequence[BoundLog], stamp_us: int) -> _Binding | None:
    """The limit of this part that has the least left."""
    found = [
        (reader.left(bound.log, stamp_us, bound.table), (reader.limit, bound))
        for bound in logs
        for reader in bound.readers
    ]
    return min(found, key=itemgetter(0))[1] if found else None


# --- what is recorded ---------------------------------------------------------------------------------------------


def _record(bound: BoundLog, time_us: int, stamp_us: int, fingerprint: int, units: int | None = None) -> None:
    """Put the hit into the log, as its algorithm keeps it."""
    log, log_limits = bound.log, bound.log_limits
    units = bound.cost if units is None else units
    if log_limits.keeps == "ids" and not fingerprint:
        return
    # The floor that a hit leaves is its own stamp, so that time goes on from there; a slot in the future, only now.
    high_water_us = stamp_us if stamp_us <= time_us + 1 else time_us
    log.trim(time_us - log_limits.retention_us)
    last_us = log.last_us()
    reader = bound.readers[0] if bound.readers else None
    if isinstance(reader, LevelReader):
        level = reader.level(log, stamp_us) + units * reader.rise
        if last_us == NEVER:
            log.record(stamp_us, level, high_water_us)
        else:
            log.extend(stamp_us, level - log.units_at(last_us), high_water_us)
    elif log_limits.keeps == "sums" and not fingerprint and _is_sum_of(log, log_limits, last_us, stamp_us):
        log.extend(stamp_us, units, high_water_us)
    else:
        log.record(stamp_us, units, high_water_us, fingerprint)
    bound.changed = True


def _is_sum_of(log: OpenLog, log_limits: LogLimits, last_us: int, stamp_us: int) -> bool:
    """Whether the last hit is a sum that this one belongs to; a hit with an id stands alone."""
    same = NEVER < last_us < stamp_us and last_us // log_limits.grain_us == stamp_us // log_limits.grain_us
    return same and not log.is_named(last_us)


def _give_back(bound: BoundLog, stamp_us: int, cost: int) -> bool:
    """Take a cost out of the sum, or the level, that the hit with this stamp went into."""
    log, log_limits = bound.log, bound.log_limits
    reader = bound.readers[0]
    if isinstance(reader, LevelReader):
        last_us = log.last_us()
        rest = 0 if last_us == NEVER else log.units_at(last_us)
        if rest:
            log.give_back(last_us, min(rest, cost * reader.rise))
            bound.changed = True
        return rest > 0
    if log.next_stamp(stamp_us) == stamp_us:
        bound.changed = log.give_back(stamp_us, log.units_at(stamp_us) if log.is_named(stamp_us) else cost)
        return bound.changed
    # A sum is stamped with the newest of its hits.
    end_us = stamp_us - stamp_us % log_limits.grain_us + log_limits.grain_us
    at_us = log.next_stamp(stamp_us)
    while at_us != NEVER and at_us < end_us and not bound.changed:
        bound.changed = not log.is_named(at_us) and log.give_back(at_us, cost)
        at_us = log.next_stamp(at_us + 1)
    return bound.changed
