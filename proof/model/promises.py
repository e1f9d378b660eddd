"""What an answer must be, by what the callers were told before, without reading the log.

The promises are DESIGN's, by number: 1 no window over its quota; 2 refusals are justified, and a charge is never
refused; 3 a refusal changes nothing; 4 one id, one consumption; 5 a refund gives back that hit, once, and a settlement
changes its units alone; 6 a batch is its attempts one by one; 0 is first come, first served: nobody is given an instant
before one that was given earlier, and a slot is the first that is free; a charge alone waits for nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from capline import Decision
    from capline.window.log import Log
    from proof.model.rule import Rule

__all__ = [
    "BrokenPromiseError",
    "Told",
    "Tolds",
    "check_charge",
    "check_content",
    "check_decide",
    "check_refund",
    "check_settle",
    "check_slot",
]


class BrokenPromiseError(Exception):
    """The number of the promise, and what happened."""

    def __init__(self, promise: int, what: str) -> None:
        super().__init__(f"promise {promise}: {what}")
        self.promise = promise


class Told(NamedTuple):
    """One hit that a caller was told of."""

    stamp_us: int
    units: int
    id: str
    live: bool = True


class Tolds(NamedTuple):
    """All that was told of one log, by stamp, and the latest instant at which something was recorded."""

    hits: tuple[Told, ...] = ()
    high_water_us: int = 0

    def live(self) -> list[Told]:
        """What was not given back."""
        return [hit for hit in self.hits if hit.live]

    def newest_us(self) -> int:
        """The last live stamp."""
        return max((hit.stamp_us for hit in self.hits if hit.live), default=-1)

    def first_us(self, now_us: int) -> int:
        """The stamp that an attempt would have now, were there room."""
        return self.free_us(max(now_us, self.high_water_us, self.newest_us() + 1))

    def free_us(self, stamp_us: int) -> int:
        """The first stamp from this on that no hit has, nor one that was given back."""
        taken = {hit.stamp_us for hit in self.hits}
        while stamp_us in taken:
            stamp_us += 1
        return stamp_us

    def fits(self, rule: Rule, cost: int, at_us: int) -> bool:
        """The rule, word for word."""
        return all(
            sum(hit.units for hit in self.hits if hit.live and at_us - window_us < hit.stamp_us <= at_us) + cost
            <= quota
            for quota, window_us in rule.limits
        )

    def with_hit(self, decision: Decision, cost: int, attempt_id: str, now_us: int) -> Tolds:
        """One hit more."""
        return self.with_stamp(decision.hit or 0, cost, attempt_id, now_us)

    def with_stamp(self, stamp_us: int, cost: int, attempt_id: str, now_us: int) -> Tolds:
        """One hit more, of this stamp."""
        time_us = max(now_us, self.high_water_us)
        high_water_us = stamp_us if stamp_us <= time_us + 1 else time_us
        return Tolds(tuple(sorted((*self.hits, Told(stamp_us, cost, attempt_id)))), high_water_us)

    def known(self, rule: Rule, attempt_id: str, now_us: int) -> Told | None:
        """The hit that a retry of this id has to be told of."""
        oldest_us = max(now_us, self.high_water_us) - rule.retention_us
        found = [hit for hit in self.live() if attempt_id and hit.id == attempt_id and hit.stamp_us > oldest_us]
        return found[-1] if found else None


def check_decide(
    rule: Rule, log: Log, after: Log, tolds: Tolds, cost: int, attempt_id: str, now_us: int, decision: Decision
) -> Tolds:
    """The answer to `decide`; returns what has been told now. Raises `BrokenPromiseError`."""
    known = tolds.known(rule, attempt_id, now_us)
    if known is not None:
        if not decision.allowed or decision.hit != known.stamp_us:
            raise BrokenPromiseError(4, f"a retry of {known} was answered by {decision}")
        if after != log:
            raise BrokenPromiseError(4, f"a retry of {known} changed the log")
        return tolds
    time_us = max(now_us, tolds.high_water_us)
    queued = tolds.newest_us() > time_us
    due_us = tolds.first_us(now_us)
    if not decision.allowed:
        _check_refusal(
            rule, log, after, tolds, cost, now_us, decision, full=queued or not tolds.fits(rule, cost, due_us)
        )
        return tolds
    if queued:
        raise BrokenPromiseError(0, f"{decision.hit} was given before the slot {tolds.newest_us()}")
    _check_grant(rule, tolds, cost, decision)
    if decision.hit != due_us:
        raise BrokenPromiseError(1, f"a hit of {due_us} is stamped {decision.hit}")
    return tolds.with_hit(decision, cost, attempt_id, now_us)


def check_slot(
    rule: Rule, log: Log, after: Log, tolds: Tolds, cost: int, max_wait_us: int | None, now_us: int, decision: Decision
) -> Tolds:
    """The answer to `slot`."""
    never = any(cost > quota for quota, _ in rule.limits)
    first_us = tolds.first_us(now_us)
    taken = {hit.stamp_us for hit in tolds.hits}
    while not never and (first_us in taken or not tolds.fits(rule, cost, first_us)):
        first_us += 1
    if not decision.allowed:
        if not never and (max_wait_us is None or first_us - now_us <= max_wait_us):
            raise BrokenPromiseError(2, f"a slot at {first_us} was refused")
        if decision.retry_after_us != (None if never else first_us - now_us):
            raise BrokenPromiseError(2, f"a slot at {first_us} was told for {decision.retry_after_us} us later")
        if after != log:
            raise BrokenPromiseError(3, "a slot that was refused changed the log")
        return tolds
    _check_grant(rule, tolds, cost, decision)
    if decision.hit != first_us or decision.wait_us != max(0, first_us - now_us):
        raise BrokenPromiseError(0, f"a slot at {first_us} was given as {decision}")
    return tolds.with_hit(decision, cost, "", now_us)


def check_charge(tolds: Tolds, cost: int, now_us: int, decision: Decision) -> Tolds:
    """The answer to `charge`: it is never refused, and stamped now, before slots that are taken."""
    due_us = tolds.free_us(max(now_us, tolds.high_water_us))
    if not decision.allowed:
        raise BrokenPromiseError(2, f"a charge of {cost} units was refused")
    if decision.hit != due_us:
        raise BrokenPromiseError(0, f"a charge of {due_us} is stamped {decision.hit}")
    return tolds.with_hit(decision, cost, "", now_us)


def check_settle(rule: Rule, tolds: Tolds, stamp_us: int, cost: int, now_us: int, *, done: bool) -> Tolds:
    """The answer to `settle` of a hit that was told; at a cost of 0 it is a refund."""
    hit = next(one for one in tolds.hits if one.stamp_us == stamp_us)
    due = hit.live and stamp_us > max(now_us, tolds.high_water_us) - rule.retention_us
    if done != due:
        raise BrokenPromiseError(5, f"{hit} settled at {cost} units was answered {done}")
    settled = hit._replace(units=cost) if cost else hit._replace(live=False)
    hits = tuple(settled if one is hit and due else one for one in tolds.hits)
    return Tolds(hits, tolds.high_water_us)


def check_refund(rule: Rule, tolds: Tolds, stamp_us: int, now_us: int, *, done: bool) -> Tolds:
    """The answer to `refund` of a hit that was told."""
    hit = next(one for one in tolds.hits if one.stamp_us == stamp_us)
    due = hit.live and stamp_us > max(now_us, tolds.high_water_us) - rule.retention_us
    if done != due:
        raise BrokenPromiseError(5, f"a refund of {hit} was answered {done}")
    hits = tuple(one._replace(live=False) if one.stamp_us == stamp_us and due else one for one in tolds.hits)
    return Tolds(hits, tolds.high_water_us)


def check_content(rule: Rule, log: Log, tolds: Tolds, now_us: int) -> None:
    """The log holds what was told and not given back, as far as any window reaches; and nothing else."""
    oldest_us = max(now_us, tolds.high_water_us) - rule.retention_us
    told = [(hit.stamp_us, hit.units) for hit in tolds.live() if hit.stamp_us > oldest_us]
    kept = [(hit.stamp_us, hit.units) for hit in log.hits if hit.units and hit.stamp_us > oldest_us]
    if told != kept:
        raise BrokenPromiseError(5, f"{told} were told and not given back, the log holds {kept}")


def _check_grant(rule: Rule, tolds: Tolds, cost: int, decision: Decision) -> None:
    stamp_us = decision.hit
    if stamp_us is None or any(hit.stamp_us == stamp_us for hit in tolds.hits):
        raise BrokenPromiseError(1, f"{decision} has the stamp of another hit, or none")
    if stamp_us <= tolds.newest_us():
        raise BrokenPromiseError(0, f"{stamp_us} was given after {tolds.newest_us()}")
    if not tolds.fits(rule, cost, stamp_us):
        raise BrokenPromiseError(1, f"{cost} units at {stamp_us} beside {tolds.live()}")


def _check_refusal(
    rule: Rule, log: Log, after: Log, tolds: Tolds, cost: int, now_us: int, decision: Decision, *, full: bool
) -> None:
    if not full:
        raise BrokenPromiseError(2, f"{cost} units were refused at {now_us} beside {tolds.live()}")
    if after != log:
        raise BrokenPromiseError(3, "a refusal changed the log")
    after_us = decision.retry_after_us
    if any(cost > quota for quota, _ in rule.limits):
        if after_us is not None:
            raise BrokenPromiseError(2, f"a cost that never fits was told {after_us} us")
        return
    if after_us is None or after_us < 1:
        raise BrokenPromiseError(2, f"a refusal was told a retry_after of {after_us} us")
    at_us = now_us + after_us
    before, at = rule.decide(log, cost, at_us - 1)[1], rule.decide(log, cost, at_us)[1]
    if before.allowed or not at.allowed:
        raise BrokenPromiseError(2, f"a retry_after of {after_us} us at {now_us} is not the first instant that fits")
