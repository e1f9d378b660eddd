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

An attempt over several subjects is one attempt for each of them at the same now: all must be allowed, then each is
recorded. Each part has a time and a stamp of its own, since the logs of one subject may be ahead of the clock and those
of another not. The logs of one part share both (decision 10).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from capline.model.clock import LATEST_US
from capline.model.decision import Decision
from capline.model.errors import IdConflictError, InvalidValueError
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
    "charge",
    "draft_logs",
    "joint",
    "peek",
    "readers_of",
    "refund",
    "settle",
    "step",
    "table_of",
    "too_many",
]

Readers = tuple[tuple[LimitReader, ...], ...]
"""For each log of a rule, the readers of its limits."""


class OpenLog(LogView, Protocol):
    """A log that can be changed."""

    def record(self, stamp_us: int, units: int, high_water_us: int, fingerprint: int = 0) -> None:
        """Add one hit, with a stamp that no other has."""
        ...

    def extend(self, stamp_us: int, units: int, high_water_us: int) -> None:
        """Move the last hit, which has no id, to this stamp, not before its own, and add units (may be negative)."""
        ...

    def units_at(self, stamp_us: int) -> int:
        """The units of the hit with this stamp; 0 for none."""
        ...

    def give_back(self, stamp_us: int, units: int) -> bool:
        """Take so many units off the hit with this stamp; False if it has fewer. Its stamp stays; its id is free."""
        ...

    def amend(self, stamp_us: int, units: int) -> None:
        """Give the hit with this stamp so many units, above 0; its id stays."""
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
    """One log of an attempt, with the readers of its limits, the cost and the zone's table.

    `changed` is set once something was recorded in the log; `binds` if the binding limit of the answer is on this log.
    """

    log: OpenLog
    log_limits: LogLimits
    readers: tuple[LimitReader, ...]
    cost: int
    table: ZoneTable = ()
    changed: bool = False
    binds: bool = False


class Slot(msgspec.Struct, frozen=True):
    """The attempt takes the next free instant, at most (None: no bound) and at least so far from now."""

    max_wait_us: int | None = None
    not_before_us: int = 0


def readers_of(rule: BoundPolicy) -> Readers:
    """The reader of each limit of the rule, by log."""
    counts_denied = rule.denied_units > 0
    return tuple(
        tuple(reader_of(limit, rule.algorithm, counts_denied=counts_denied) for limit in log_limits.limits)
        for log_limits in rule.logs
    )


def table_of(rule: BoundPolicy, now_us: int) -> ZoneTable:
    """The zone's offsets around now; empty if the rule needs no zone."""
    return zone_table(rule.zone, now_us) if rule.zone else ()


def attempt(
    logs: Sequence[BoundLog], now_us: int, fingerprint: int = 0, slot: Slot | None = None, denied_units: int = 0
) -> Decision:
    """Decide one attempt, and record it in the logs if it is allowed.

    `fingerprint` is 64 bits of the attempt's id (0: none). With `denied_units` above 0 refusals count: a refusal is
    recorded as well, and a log keeps its newest so many units. Hits with an id stay besides, so that a retry of an
    allowed attempt gets its answer however many refusals came after it.
    Raises `IdConflictError` if the id was recorded with another cost.
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
    """What `attempt` would answer, with `hit` None unless the id is known; changes nothing."""
    known = _known(logs, fingerprint, _time(logs, now_us), now_us, slot=False)
    return msgspec.structs.replace(_judge([logs], now_us)[0], hit=None) if known is None else known


def charge(logs: Sequence[BoundLog], now_us: int, fingerprint: int = 0) -> Decision:
    """Record the cost, whatever the limits say; the answer is as of after it.

    It is stamped now, before slots that are taken. Raises `InvalidValueError`, and records nothing, for more units than
    a log can count; `IdConflictError` if the id was recorded with another cost.
    """
    time_us = _time(logs, now_us)
    known = _known(logs, fingerprint, time_us, now_us, slot=False)
    if known is not None:
        return known
    stamp_us = _stamp(logs, time_us, NEVER)
    if stamp_us >= LATEST_US or not all(_has_room(bound, time_us, stamp_us, bound.cost) for bound in logs):
        raise too_many(logs[0].cost)
    for number, bound in enumerate(logs):
        _record(bound, time_us, stamp_us, 0 if number else fingerprint)
    after = _answer([(logs, stamp_us)], now_us)
    return msgspec.structs.replace(after, allowed=True, retry_after_us=0, hit=stamp_us)


def too_many(cost: int) -> InvalidValueError:
    """The error of a cost that a log cannot count."""
    return InvalidValueError(
        f"{cost} units are more than this log can count beside what it holds; charge less, or in larger units"
    )


def joint(
    parts: Sequence[Sequence[BoundLog]], now_us: int, fingerprints: Sequence[int], *, record: bool = True
) -> tuple[Decision, list[int]]:
    """One attempt over several subjects, each with its logs: the answer, and the hit of each part; no hits if refused.

    All or nothing. A part whose id is known was allowed before, and is left as it is. A refusal is never recorded.
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
    """The decision with the limit states of each part; for a known id, the states of its first answer.

    `numbers` are the states of the limits of all other parts, one part after the other.
    """
    states: list[tuple[LimitStatus, ...]] = []
    first = 0
    for logs, answer in zip(parts, known, strict=True):
        end = first + (NUMBERS * sum(len(bound.readers) for bound in logs) if answer is None else 0)
        own = states_of([bound.log_limits for bound in logs], numbers[first:end]) if answer is None else answer.limits
        states.append(own)
        first = end
    return msgspec.structs.replace(decision, _seen=(tuple, states))


def refund(logs: Sequence[BoundLog], stamp_us: int, cost: int, now_us: int) -> bool:
    """Refund the hit with this stamp, in the policy's own log (the first) and in every other; False if there is none.

    Where hits are kept as sums, `cost` units are taken off the sum, unless the hit has an id.
    """
    own = logs[0]
    if stamp_us <= max(now_us, own.log.high_water_us) - own.log_limits.retention_us:
        return False
    if own.log_limits.keeps == "sums":
        return _give_back(own, stamp_us, cost, now_us)
    units = own.log.units_at(stamp_us)
    if own.log_limits.keeps == "ids":
        if units:
            own.changed = own.log.give_back(stamp_us, units)
        elif own.log.free_stamp(stamp_us) != stamp_us:
            return False
        given_back = [_give_back(bound, stamp_us, units or cost, now_us) for bound in logs[1:]]
        return any(given_back)
    if not units:
        return False
    for bound in logs:
        bound.changed = bound.log.give_back(stamp_us, units)
    return True


def settle(logs: Sequence[BoundLog], stamp_us: int, now_us: int) -> bool:
    """Give the hit with this stamp, made as an estimate, the units that it really cost: the bound logs' `cost`.

    The hit is in the policy's own log (the first). False, and nothing changed, if it is not there: it is older than
    every window, was given back, or has no id where hits without one are kept as sums. Settled again it is changed
    again, so the same cost twice is once. Its stamp and its id stay; with a cost of 0 it is refunded. Raises
    `InvalidValueError`, and changes nothing, for more units than a log can count.
    """
    own, cost = logs[0], logs[0].cost
    time_us = max(now_us, own.log.high_water_us)
    units = own.log.units_at(stamp_us)
    if not units or stamp_us <= time_us - own.log_limits.retention_us:
        return False
    if own.log_limits.keeps != "hits" and not own.log.is_named(stamp_us):
        return False
    if not cost:
        refund(logs, stamp_us, units, now_us)
        return True
    more = cost - units
    holding = [bound for bound in logs if bound is own or own.log_limits.keeps == "ids" or bound.log.units_at(stamp_us)]
    if more > 0 and not all(_has_room(bound, time_us, time_us, more) for bound in holding):
        raise too_many(cost)
    for bound in holding if more else ():
        if bound.log_limits.keeps == "sums" and bound is not own:
            _shift(bound, stamp_us, more, time_us, now_us)
        else:
            bound.log.amend(stamp_us, cost)
            bound.changed = True
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
    """Drafts of plain logs, and the bound logs on them: run the rule on these, then read the drafts."""
    drafts, table = [Draft(log) for log in logs], table_of(rule, now_us)
    return drafts, [
        BoundLog(draft, log_limits, readers, cost, table)  # pyright: ignore[reportArgumentType] - a draft has the rest of its log
        for draft, log_limits, readers in zip(drafts, rule.logs, readers_of(rule), strict=True)
    ]


# --- the answer ---------------------------------------------------------------------------------------------------


class _Verdict(NamedTuple):
    """What one part's logs say of an attempt, before quiet hours are checked.

    `stamp_us` is the stamp that it would have now; `holds_us` is until when it is blocked (None: for ever, `NEVER`: not
    at all), and `binding` the limit that blocks it; `hit_us` is the stamp to record it under.
    """

    logs: Sequence[BoundLog]
    stamp_us: int
    holds_us: int | None
    binding: _Binding | None = None
    hit_us: int = NEVER


def _verdict(logs: Sequence[BoundLog], now_us: int) -> _Verdict:
    time_us, newest_us = _time(logs, now_us), _newest(logs)
    # A look, of no cost, is at what is left now.
    stamp_us = _stamp(logs, time_us, newest_us) if logs[0].cost else time_us
    fits_us, early_us, binding = _fits(logs, time_us)
    if fits_us is None:
        return _Verdict(logs, stamp_us, None, binding)
    queued = newest_us > time_us
    if early_us > stamp_us or queued:
        return _Verdict(logs, stamp_us, _held_until(early_us, newest_us if queued else NEVER), binding)
    return _Verdict(logs, stamp_us, NEVER, None, _stamp(logs, max(stamp_us, fits_us), newest_us))


def _judge(parts: Sequence[Sequence[BoundLog]], now_us: int) -> tuple[Decision, list[int]]:
    """Whether all parts are allowed now, and the stamp to record each under. Records nothing."""
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
    """Take the next free instant after every slot that is taken.

    Nothing is taken after the last slot, so every later instant is free as well.
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
        # What is left is as of now, and not as of the slot.
        return _answer([(logs, time_us)], now_us, binding=binding, retry_at_us=stamp_us)
    return _answer([(logs, stamp_us)], now_us, allowed=True, wait_us=max(0, stamp_us - now_us))


def _deny(logs: Sequence[BoundLog], time_us: int, now_us: int, denied_units: int) -> Decision | None:
    """Record a refusal that counts, and answer as of after it: `retry_after` includes this refusal's own units.

    None, and nothing recorded, if no stamp is left for it.
    """
    stamp_us = _stamp(logs, time_us, NEVER)
    if stamp_us >= LATEST_US:
        return None
    for bound in logs:
        # More units than that change no answer, and would let sums grow.
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
    """When a refused attempt is allowed: when it fits, but not before the last slot that is taken (`NEVER`: none)."""
    # At the instant of the last slot itself the next stamp is a microsecond later.
    return last_us if fits_us <= last_us + 1 else fits_us


def _known(logs: Sequence[BoundLog], fingerprint: int, time_us: int, now_us: int, *, slot: bool) -> Decision | None:
    """The first answer of this id, for a retry; None for a new id.

    Hits as old as the horizon may have been trimmed, so they do not count in `remaining`. For an algorithm that keeps
    no hits `remaining` is as of now.
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
    """Build the answer, with the units left for each part at its stamp.

    Stamps end at `LATEST_US`: an attempt that would be stamped later never fits.
    """
    if allowed and any(stamp_us >= LATEST_US for _, stamp_us in stamped):
        allowed, retry_at_us, wait_us = False, None, 0
    elif retry_at_us is not None and retry_at_us >= LATEST_US:
        retry_at_us = None
    left, empty_us = LARGEST_QUOTA + 1, NEVER
    tightest: _Binding | None = None
    numbers: list[int] = []
    for logs, stamp_us in stamped:
        consumes = allowed and logs[0].cost > 0
        last_us = max(_newest(logs), stamp_us if consumes else NEVER)
        for bound in logs:
            cost = bound.cost if consumes else 0
            own_last_us = stamp_us if consumes else bound.log.newest_us()
            for reader in bound.readers:
                units = reader.left(bound.log, stamp_us, bound.table) - cost
                if units < left:
                    left, tightest = units, (reader.limit, bound)
                if last_us != NEVER:
                    empty_us = max(empty_us, reader.empty_us(bound.log, last_us, cost, bound.table))
                whole_us = more_us = reader.more_us(bound.log, stamp_us, cost, bound.table)
                if more_us != NEVER and not isinstance(reader, QuietReader):
                    whole_us = reader.empty_us(bound.log, own_last_us, cost, bound.table)
                numbers += units, max(0, more_us - now_us), max(0, whole_us - now_us)
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


# --- reading the logs ---------------------------------------------------------------------------------------------


def _time(logs: Sequence[BoundLog], now_us: int) -> int:
    """The attempt's time: now, or the latest high-water mark of its logs."""
    return max([now_us, *(bound.log.high_water_us for bound in logs)])


def _newest(logs: Sequence[BoundLog]) -> int:
    """The newest stamp of a hit with units in any of the logs."""
    return max([bound.log.newest_us() for bound in logs])


def _stamp(logs: Sequence[BoundLog], time_us: int, newest_us: int) -> int:
    """The first stamp at or after this instant that is later than every hit with units and free in every log."""
    stamp_us = max(time_us, newest_us + 1)
    while True:
        free_us = max([bound.log.free_stamp(stamp_us) for bound in logs])
        if free_us == stamp_us:
            return stamp_us
        stamp_us = free_us


_Binding = tuple[Limit, BoundLog]
"""The binding limit of an answer, and the log that it is on."""

_Stamped = Sequence[tuple[Sequence[BoundLog], int]]
"""The logs of each part, and the stamp that its hit would have."""


def _fits(logs: Sequence[BoundLog], time_us: int) -> tuple[int | None, int, _Binding | None]:
    """When the attempt fits every limit (None: never), when it is allowed, and the limit that blocks it longest.

    It is allowed earlier than it fits by the stamp shift (`LimitReader.stamp_shift_us`), and stamped when it fits. The
    limit is None if the attempt fits already: an earlier block would depend on which old hits happen to be trimmed.
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
"""Quiet hours that follow each other so often leave no free instant."""


def _opens(stamped: _Stamped, at_us: int = NEVER) -> tuple[int | None, _Binding | None]:
    """The first instant at or after `at_us` that no quiet hours forbid for any part, and the last quiet hours that did.

    None if there is no such instant. `at_us` itself (`NEVER`: now) if none forbid it.
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
    """The limit of this part with the fewest units left."""
    found = [
        (reader.left(bound.log, stamp_us, bound.table), (reader.limit, bound))
        for bound in logs
        for reader in bound.readers
    ]
    return min(found, key=itemgetter(0))[1] if found else None


# --- what is recorded ---------------------------------------------------------------------------------------------


def _record(bound: BoundLog, time_us: int, stamp_us: int, fingerprint: int, units: int | None = None) -> None:
    """Record the hit in the log, in the way of the log's algorithm."""
    log, log_limits = bound.log, bound.log_limits
    units = bound.cost if units is None else units
    if log_limits.keeps == "ids" and not fingerprint:
        return
    # A hit raises the high-water mark to its own stamp; a slot in the future only to now.
    log.trim(time_us - log_limits.retention_us)
    last_us = log.last_us()
    reader = bound.readers[0] if bound.readers else None
    level = 0
    if isinstance(reader, LevelReader):
        stamp_us, level = reader.raised(log, stamp_us, units)
    high_water_us = stamp_us if stamp_us <= time_us + 1 else time_us
    if isinstance(reader, LevelReader):
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
    """Whether the last hit is the sum that this one belongs to. A hit with an id is never part of a sum."""
    same = NEVER < last_us < stamp_us and last_us // log_limits.grain_us == stamp_us // log_limits.grain_us
    return same and not log.is_named(last_us)


def _has_room(bound: BoundLog, time_us: int, stamp_us: int, units: int) -> bool:
    """Whether the log can count so many units more."""
    horizon_us = time_us - bound.log_limits.retention_us
    if bound.log_limits.keeps == "sums":
        return all(reader.fits_in(bound.log, stamp_us, units, horizon_us) for reader in bound.readers)
    return bound.log.units_after(horizon_us) + units <= LARGEST_QUOTA


def _shift(bound: BoundLog, stamp_us: int, units: int, time_us: int, now_us: int) -> None:
    """Add so many units (may be negative) to the sum, or the level, that the hit with this stamp was added to."""
    log, reader = bound.log, bound.readers[0]
    if units < 0:
        _give_back(bound, stamp_us, -units, now_us)
    elif isinstance(reader, LevelReader):
        _record(bound, time_us, time_us, 0, units)
    else:
        sum_us = _sum_of(bound, stamp_us)
        if sum_us != NEVER:
            log.amend(sum_us, log.units_at(sum_us) + units)
            bound.changed = True


def _sum_of(bound: BoundLog, stamp_us: int) -> int:
    """The stamp of the sum that the hit with this stamp was added to, which is that of its newest hit."""
    grain_us = bound.log_limits.grain_us
    end_us = stamp_us - stamp_us % grain_us + grain_us
    at_us = bound.log.next_stamp(stamp_us)
    while at_us != NEVER and bound.log.is_named(at_us):
        at_us = bound.log.next_stamp(at_us + 1)
    return at_us if at_us < end_us else NEVER


def _give_back(bound: BoundLog, stamp_us: int, cost: int, now_us: int) -> bool:
    """Take the cost off the sum, or the level, that the hit with this stamp was added to."""
    log, log_limits = bound.log, bound.log_limits
    reader = bound.readers[0]
    if isinstance(reader, LevelReader):
        last_us = log.last_us()
        rest = 0 if last_us == NEVER else log.units_at(last_us)
        if rest:
            lower_us, level = reader.lowered(log, max(now_us, log.high_water_us), cost)
            log.extend(lower_us, level - rest, 0)
            bound.changed = True
        return rest > 0
    if log.next_stamp(stamp_us) == stamp_us:
        bound.changed = log.give_back(stamp_us, log.units_at(stamp_us) if log.is_named(stamp_us) else cost)
        return bound.changed
    # A sum has the stamp of its newest hit.
    end_us = stamp_us - stamp_us % log_limits.grain_us + log_limits.grain_us
    at_us = log.next_stamp(stamp_us)
    while at_us != NEVER and at_us < end_us and not bound.changed:
        bound.changed = not log.is_named(at_us) and log.give_back(at_us, cost)
        at_us = log.next_stamp(at_us + 1)
    return bound.changed
