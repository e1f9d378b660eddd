"""An oracle that counts: what a limiter may answer, judged by its earlier answers alone.

It shares no code with the rule, and never sees a log. It keeps the hits of earlier answers, adds them up one by one,
and raises `AssertionError` for an answer that breaks a promise:

    an allowed attempt   no window that ends at its stamp holds more than its quota; the stamp is nobody else's, not
                         before now, and behind every hit that counts
    a refused attempt    a window was full at the stamp that it would have had, or a slot ahead was taken; at its
                         retry_after it would be allowed, and not a microsecond before
    a look               of no cost is allowed where no window is over its quota and no slot ahead is taken
    a charge             is recorded, and never refused; a hit that is settled counts what it was settled at
    a reservation        counts as any hit until it ends, and from then on only if it was committed before; a commit is
                         answered by whether the hit counts
    a slot that moves    is first than it was, and allowed as if neither it nor any hit behind it were there
    an id                is consumed once, as long as its hit counts
    a joint attempt      is allowed where each of its parts would be, and consumes in all of them or in none

It judges `sliding_log`, of `bucketed` only that no window is over its quota, of other algorithms only the ids. Where
refusals count (`count_denied`) it knows too little, and judges nothing. Costs O(hits) an answer: for tests.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias
from zoneinfo import ZoneInfo

from capline.model.attempt import Attempt
from capline.model.decision import Decision, Joint
from capline.model.limit import CalendarLimit, Limit, QuietHours
from capline.model.policy import Policy

Judge: TypeAlias = "Callable[[Attempt, int, Decision], None]"
"""One of the oracle's verbs for a single attempt, its time and its answer."""

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


@dataclass(slots=True)
class _Told:
    """One hit of an answer; `kept` until it is refunded, `over` once its reservation, of `ends_us`, has ended."""

    stamp_us: int
    units: int
    id: str | None
    channel: str | None
    kept: bool = True
    ends_us: int | None = None
    over: bool = False

    @property
    def live(self) -> bool:
        return self.kept and not self.over


@dataclass(slots=True)
class _Account:
    """The hits that answers named for one subject's log. `seen_us` is the latest instant that the log has seen.

    `aged` may be forgotten; what `holds` sees of them counts again where a wider window has come.
    """

    retention_us: int
    hits: list[_Told] = field(default_factory=list["_Told"])
    aged: list[_Told] = field(default_factory=list["_Told"])
    seen_us: int = 0
    is_loose: bool = False
    """Set by a refund from a sum: from then on the units of single hits are unknown."""

    def time_us(self, now_us: int) -> int:
        return max(now_us, self.seen_us)

    def pass_to(self, now_us: int) -> None:
        """Mark the reservations that have ended by now; where the clock stepped back, unmark them."""
        time_us = self.time_us(now_us)
        for hit in self.hits:
            hit.over = hit.ends_us is not None and hit.ends_us <= time_us

    def newest_us(self) -> int:
        return max((hit.stamp_us for hit in self.hits if hit.live), default=-1)

    def due_us(self, now_us: int) -> int:
        """The stamp that a hit would have now."""
        due_us, taken = max(self.time_us(now_us), self.newest_us() + 1), {hit.stamp_us for hit in self.hits}
        while due_us in taken:
            due_us += 1
        return due_us

    def known(self, attempt_id: str | None, now_us: int) -> _Told | None:
        """The hit of this id, where it still counts."""
        oldest_us = self.time_us(now_us) - self.retention_us
        found = [
            hit
            for hit in self.hits
            if attempt_id is not None and hit.id == attempt_id and hit.live and hit.stamp_us > oldest_us
        ]
        return found[-1] if found else None


Key: TypeAlias = "tuple[str, str | int]"


class Oracle:
    """Call it after each answer, with the time of the answer."""

    def __init__(self, policies: Iterable[Policy]) -> None:
        self._policies: dict[str, Policy] = {}
        self._blinded = False
        self._carried = 0  # by how many microseconds changes may have moved the time of a log
        self.use(policies)
        self._accounts: dict[Key, _Account] = {}

    def use(self, policies: Iterable[Policy]) -> None:
        """Other policies are in force."""
        before, self._policies = self._policies, {policy.name: policy for policy in policies}
        for name, policy in self._policies.items():
            # What numbers took over, what hits do not know of numbers, and refusals that count, are not judged.
            if name in before and (policy.algorithm != before[name].algorithm or before[name].count_denied):
                self._blinded = True
                self._carried += 1  # what is taken over is recorded at the log's next instant

    def decided(self, attempt: Attempt, now_us: int, decision: Decision) -> None:
        """An answer to `decide`, or a row of a batch."""
        account, first = self._of(attempt, now_us)
        if first is not None:
            _check(decision.allowed and decision.hit == first.stamp_us, 4, attempt, f"{decision}, not {first} again")
        elif decision.allowed:
            _check(not self._queued(account, now_us) or self._blind(attempt), 0, attempt, "jumped the queue")
            self._granted(attempt, account, now_us, decision.hit)
        else:
            _check(decision.hit is None, 3, attempt, "refused, and recorded")
            self._refused([attempt], now_us, decision.retry_after_us)
            if self._policies[attempt.policy].count_denied:
                self._age(account, now_us)
                for hit in account.hits:
                    hit.id = None  # the refusal's own stamp, which is not told, may have moved the log's time past it

    def reserved(self, attempt: Attempt, now_us: int, decision: Decision, ttl_us: int) -> None:
        """An answer to `reserve`."""
        account, first = self._of(attempt, now_us)
        self.decided(attempt, now_us, decision)
        if first is None and decision.hit is not None:
            account.hits[-1].ends_us = decision.hit + ttl_us

    def committed(self, policy: str, subject: str | int, stamp_us: int, now_us: int, *, done: bool) -> None:
        """An answer to `commit`."""
        account = self._account(policy, subject, now_us)
        oldest_us = account.time_us(now_us) - account.retention_us
        live = [hit for hit in account.hits if hit.live and hit.stamp_us == stamp_us > oldest_us]
        # Under sums the hit may have become a part of a later one, and a stamp of what was erased may be a sum's.
        right = done == bool(live) or self._blinded
        _check(right, 5, policy, f"the commit of {stamp_us} was answered {done}, beside {account.hits}")
        for hit in live if done else ():
            hit.ends_us = None

    def peeked(self, attempt: Attempt, now_us: int, decision: Decision) -> None:
        """An answer to `peek`."""
        _, first = self._of(attempt, now_us)
        if first is not None:
            _check(decision.allowed and decision.hit == first.stamp_us, 4, attempt, f"{decision}, not {first} again")
        elif decision.allowed:
            _check(self._blind(attempt) or self._may(attempt, now_us), 1, attempt, "there is no room")
        else:
            self._refused([attempt], now_us, decision.retry_after_us)

    def scheduled(self, attempt: Attempt, now_us: int, decision: Decision) -> None:
        """An answer to `schedule`, without an id."""
        account, _ = self._of(attempt, now_us)
        if decision.allowed:
            self._granted(attempt, account, now_us, decision.hit)
        else:
            _check(decision.hit is None, 3, attempt, "refused, and recorded")

    def moved(self, attempt: Attempt, stamp_us: int, now_us: int, decision: Decision) -> None:
        """An answer to `move` of the slot, without an id, that this attempt was given with this stamp."""
        account, _ = self._of(attempt, now_us)
        if self._blind(attempt):
            return
        oldest_us = account.time_us(now_us) - account.retention_us
        slot = next((hit for hit in account.hits if hit.live and hit.stamp_us == stamp_us > oldest_us), None)
        _check(decision.allowed == (slot is not None), 5, attempt, f"{decision} of {stamp_us}, beside {account.hits}")
        if slot is not None and decision.hit != stamp_us:
            _check(account.time_us(now_us) < stamp_us, 0, attempt, f"the time of {stamp_us} had come")
            _check((decision.hit or 0) < stamp_us, 0, attempt, f"moved back, from {stamp_us} to {decision.hit}")
            behind = [hit for hit in account.hits if hit.stamp_us >= stamp_us]
            account.hits = [hit for hit in account.hits if hit.stamp_us < stamp_us]
            self._granted(attempt, account, now_us, decision.hit)
            slot.kept = False
            account.hits += behind

    def looked(self, attempt: Attempt, now_us: int, decision: Decision) -> None:
        """An answer to `peek` with a cost of 0."""
        _check(decision.hit is None, 3, attempt, "a look was recorded")
        if self._blind(attempt):
            return
        account = self._account(attempt.policy, attempt.subject, now_us)
        time_us = account.time_us(now_us)
        may = not self._queued(account, now_us) and self._fits(attempt, account, time_us)
        _check(decision.allowed == may, 2, attempt, f"{decision}, beside {account.hits}")

    def charged(self, attempt: Attempt, now_us: int, decision: Decision) -> None:
        """An answer to `charge`."""
        account, first = self._of(attempt, now_us)
        _check(decision.allowed, 2, attempt, "a charge was refused")
        if first is not None:
            _check(decision.hit == first.stamp_us, 4, attempt, f"{decision}, not {first} again")
            return
        time_us = account.time_us(now_us)
        stamp_us = decision.hit
        assert stamp_us is not None, f"{attempt} was charged, and names no hit"
        if not self._blind(attempt):
            taken = {hit.stamp_us for hit in account.hits}
            free_us = next(at_us for at_us in range(time_us, time_us + len(taken) + 1) if at_us not in taken)
            _check(stamp_us == free_us, 1, attempt, f"{stamp_us} is not the first free instant {free_us}")
        self._recorded(attempt, account, now_us, stamp_us)

    def settled(
        self, policy: str, subject: str | int, stamp_us: int, cost: int, *, done: bool, now_us: int | None = None
    ) -> None:
        """An answer to `settle`; the time is needed where there are reservations."""
        account = self._account(policy, subject, now_us)
        if self._policies[policy].algorithm != "sliding_log":
            account.is_loose = True
        elif not self._blinded and not self._policies[policy].count_denied:
            live = [hit for hit in account.hits if hit.live and hit.stamp_us == stamp_us]
            _check(done <= bool(live), 5, policy, f"{stamp_us} was settled, which is no hit's")
        for hit in account.hits if done else ():
            if hit.stamp_us == stamp_us:
                self._took_along(account, changed=hit.units != cost)
                hit.kept, hit.units = cost > 0, cost

    def decided_all(self, attempts: Sequence[Attempt], now_us: int, joint: Joint) -> None:
        """An answer to `decide_all`, of one atomic step."""
        found = [self._of(attempt, now_us) for attempt in attempts]
        if not joint.allowed:
            _check(joint.hits == (), 3, attempts, f"refused, and recorded {joint.hits}")
            new = [attempt for attempt, (_, first) in zip(attempts, found, strict=True) if first is None]
            _check(bool(new), 4, attempts, "refused, though each id is known")
            self._refused(new, now_us, joint.retry_after_us)
            return
        _check(len(joint.hits) == len(attempts), 1, attempts, f"{joint.hits} is not one hit for each")
        for attempt, (account, first), hit in zip(attempts, found, joint.hits, strict=True):
            if first is not None:
                _check(hit == first.stamp_us, 4, attempt, f"{hit}, not {first} again")
            else:
                _check(not self._queued(account, now_us) or self._blind(attempt), 0, attempt, "jumped the queue")
                self._granted(attempt, account, now_us, hit)

    def scheduled_all(
        self, attempts: Sequence[Attempt], now_us: int, joint: Joint, max_wait_us: int | None, not_before_us: int
    ) -> None:
        """An answer to `schedule_all`, of one atomic step."""
        found = [self._of(attempt, now_us) for attempt in attempts]
        if not joint.allowed:
            _check(joint.hits == (), 3, attempts, f"refused, and recorded {joint.hits}")
            return
        _check(len(joint.hits) == len(attempts) and len(set(joint.hits)) == 1, 1, attempts, f"{joint.hits} is no slot")
        slot_us = joint.hits[0]
        assert slot_us is not None, f"{attempts} were given a slot, and no stamp"
        new = [account for account, first in found if first is None]
        # A known slot is answered again, also where some of its logs have forgotten it.
        if len(new) == len(found) and not any(self._blind(attempt) for attempt in attempts):
            near = max_wait_us is None or slot_us - now_us <= max_wait_us
            _check(near and slot_us - now_us >= not_before_us, 1, attempts, f"{slot_us} is not in time")
            first_us = max(now_us + not_before_us, *(max(log.time_us(now_us), log.newest_us() + 1) for log in new))
            sooner = slot_us > first_us and all(
                self._fits(attempt, account, slot_us - 1) and all(hit.stamp_us != slot_us - 1 for hit in account.hits)
                for attempt, (account, _) in zip(attempts, found, strict=True)
            )
            _check(not sooner, 2, attempts, f"there was room before {slot_us}")
        for attempt, (account, first) in zip(attempts, found, strict=True):
            if first is not None:
                _check(slot_us == first.stamp_us, 4, attempt, f"{slot_us}, not {first} again")
            elif len(new) == len(found) and slot_us >= now_us:  # else it is forgotten there, and not recorded again
                self._granted(attempt, account, now_us, slot_us)

    def refunded(
        self, policy: str, subject: str | int, stamp_us: int, *, done: bool, now_us: int | None = None
    ) -> None:
        """An answer to `refund`; the time is needed where there are reservations."""
        account = self._account(policy, subject, now_us)
        exact = self._policies[policy].algorithm == "sliding_log"
        account.is_loose = account.is_loose or not exact
        for hit in account.hits if done or not exact else ():
            if hit.stamp_us == stamp_us:
                # Under sums a hit whose units were not taken off is there still, and may be given back under hits.
                _check(hit.live or account.is_loose, 5, policy, f"{hit} was given back twice")
                hit.kept = False
                self._took_along(account, changed=done)

    def gave_back(self, policy: str, subject: str | int, stamp_us: int, more: int) -> None:
        """Compare what a refund took off the log, beyond the cost that it named, with the hit."""
        account = self._account(policy, subject)
        told = [hit.units for hit in (*account.aged, *account.hits) if hit.stamp_us == stamp_us]
        units = max([1, *told])
        _check(more < units or not told, 5, (policy, subject), f"{stamp_us} of {units} gave back {more} more")

    def erased(self, subject: str | int) -> None:
        """`erase` was called."""
        for key in [key for key in self._accounts if key[1] == subject]:
            del self._accounts[key]

    def swept(self, now_us: int) -> None:
        """`sweep` was called: a log that is out of every window is forgotten, and with it the time that it had seen."""
        for key, account in list(self._accounts.items()):
            last_us = max([account.seen_us, *(hit.stamp_us for hit in account.hits)])
            if last_us + account.retention_us <= now_us:
                del self._accounts[key]

    def holds(self, policy: str, subject: str | int, now_us: int, hits: Iterable[tuple[int, int]]) -> None:
        """Compare the log of the store, as (stamp, units), with the hits that were named and not refunded."""
        if self._blinded or self._policies[policy].algorithm != "sliding_log" or self._policies[policy].count_denied:
            return
        account, kept = self._account(policy, subject), [hit for hit in hits if hit[1]]
        from_us = min(kept, default=(math.inf,))[0]
        account.hits = [hit for hit in account.aged if hit.stamp_us >= from_us] + account.hits
        account.aged = [hit for hit in account.aged if hit.stamp_us < from_us]
        account.pass_to(now_us)
        oldest_us = account.time_us(now_us) - account.retention_us
        named = [(hit.stamp_us, hit.units) for hit in account.hits if hit.live and hit.stamp_us > oldest_us]
        _check(sorted(named) == kept, 5, (policy, subject), f"{named} were named, the log holds {kept}")

    # --- what is counted ------------------------------------------------------------------------------------------

    def _took_along(self, account: _Account, *, changed: bool) -> None:
        """A change to a log drops its ended reservations for good."""
        for hit in account.hits if changed else ():
            hit.kept = hit.live

    def _account(self, policy: str, subject: str | int, now_us: int | None = None) -> _Account:
        log = self._policies[policy].log
        retention_us = max(
            limit.reach_us * (1 + (policy.algorithm == "sliding_counter"))
            for policy in self._policies.values()
            if policy.log == log
            for limit in policy.all_limits()
        )
        account = self._accounts.setdefault((log, subject), _Account(retention_us))
        account.retention_us = retention_us
        if now_us is not None:
            account.pass_to(now_us)
        return account

    def _of(self, attempt: Attempt, now_us: int) -> tuple[_Account, _Told | None]:
        account = self._account(attempt.policy, attempt.subject, now_us)
        counted = self._policies[attempt.policy].count_denied
        first = None if counted else account.known(attempt.id, now_us)
        if first is not None and first.stamp_us <= account.time_us(now_us) + self._carried - account.retention_us:
            first.id, first = None, None  # it may have aged, or not
        return account, first

    def _blind(self, attempt: Attempt) -> bool:
        """Whether the policy's refusals and slots are not judged."""
        policy = self._policies[attempt.policy]
        return self._blinded or policy.algorithm != "sliding_log" or policy.count_denied

    def _queued(self, account: _Account, now_us: int) -> bool:
        return account.newest_us() > account.time_us(now_us)

    def _may(self, attempt: Attempt, now_us: int) -> bool:
        """Whether the attempt would be allowed at this time, by all earlier answers."""
        account = self._account(attempt.policy, attempt.subject)
        return not self._queued(account, now_us) and self._fits(attempt, account, account.due_us(now_us))

    def _fits(self, attempt: Attempt, account: _Account, at_us: int) -> bool:
        """The rule, word for word: the units in each window that ends at this instant, cost, what stays free."""
        policy = self._policies[attempt.policy]
        channels: list[tuple[tuple[Limit, ...], str | None]] = [(policy.limits_for(attempt.segment), None)]
        if attempt.channel is not None:
            channels.append((policy.limits_on(attempt.channel), attempt.channel))
        keep_free, place = attempt.keep_free, 0
        for limits, channel in channels:
            hits = [hit for hit in account.hits if hit.live and channel in (None, hit.channel)]
            for limit in limits:
                since_us = _window_from(limit, at_us, attempt.zone or policy.zone)
                used = sum(hit.units for hit in hits if since_us < hit.stamp_us <= at_us)
                if isinstance(limit, QuietHours):
                    if since_us == at_us:
                        return False
                elif (
                    used + attempt.cost + (keep_free if isinstance(keep_free, int) else keep_free[place]) > limit.quota
                ):
                    return False
                place += 1
        return True

    def _granted(self, attempt: Attempt, account: _Account, now_us: int, stamp_us: int | None) -> None:
        policy = self._policies[attempt.policy]
        assert stamp_us is not None, f"{attempt} was allowed, and names no hit"
        if not policy.count_denied and not account.is_loose and not self._blinded:
            _check(stamp_us >= now_us, 1, attempt, f"{stamp_us} is before {now_us}")
            _check(stamp_us > account.newest_us(), 0, attempt, f"{stamp_us} is before {account.newest_us()}")
            _check(all(hit.stamp_us != stamp_us for hit in account.hits), 1, attempt, f"{stamp_us} is another's")
            if policy.algorithm in ("sliding_log", "bucketed"):
                fits = self._fits(attempt, account, stamp_us)
                _check(fits, 1, attempt, f"{stamp_us} is one too many beside {account.hits}")
        self._recorded(attempt, account, now_us, stamp_us)

    def _recorded(self, attempt: Attempt, account: _Account, now_us: int, stamp_us: int) -> None:
        self._age(account, now_us)
        # A slot in the future is nothing that the log has seen; the next microsecond of a burst is.
        if stamp_us <= account.seen_us + 1:
            account.seen_us = stamp_us
        if not self._carried or all((hit.stamp_us, hit.units) != (stamp_us, attempt.cost) for hit in account.hits):
            account.hits.append(_Told(stamp_us, attempt.cost, attempt.id, attempt.channel))

    def _age(self, account: _Account, now_us: int) -> None:
        """Something is recorded at this time: from here on nothing looks further back than the log's hits are kept.

        A clock that only stepped ahead may step back.
        """
        account.seen_us = account.time_us(now_us)
        oldest_us = account.seen_us - account.retention_us
        account.aged += [hit for hit in account.hits if hit.stamp_us <= oldest_us]
        account.hits = [hit for hit in account.hits if hit.stamp_us > oldest_us]

    def _refused(self, attempts: Sequence[Attempt], now_us: int, after_us: int | None) -> None:
        """One refusal of these, which are new, together."""
        if any(self._blind(attempt) for attempt in attempts):
            return
        _check(not all(self._may(attempt, now_us) for attempt in attempts), 2, attempts, "refused, and there is room")
        if after_us is None:
            return
        at_us = now_us + after_us
        _check(all(self._may(attempt, at_us) for attempt in attempts), 2, attempts, f"no room after {after_us} us")
        sooner = all(self._may(attempt, at_us - 1) for attempt in attempts)
        _check(not sooner, 2, attempts, f"room before {after_us} us are over")


def _window_from(limit: Limit, at_us: int, zone: str | None) -> int:
    """Hits as old as this are out of the limit's window; of quiet hours this is `at_us` itself where it is quiet."""
    if not isinstance(limit, (CalendarLimit, QuietHours)):
        return at_us - limit.window_us
    local = datetime.fromtimestamp(at_us // SECOND_US, ZoneInfo(zone or "UTC"))
    midnight = local.replace(hour=0, minute=0, second=0)
    if isinstance(limit, QuietHours):
        shown_us = round((local.replace(tzinfo=None) - midnight.replace(tzinfo=None)).total_seconds()) * SECOND_US
        since_us = (shown_us + at_us % SECOND_US - limit.from_us) % DAY_US
        return at_us if since_us < limit.window_us else at_us - 1
    if limit.window_us > DAY_US:
        midnight -= timedelta(days=local.weekday())
    return round(midnight.timestamp()) * SECOND_US - 1


def _check(kept: bool, promise: int, what: object, why: str) -> None:
    assert kept, f"promise {promise} is broken for {what}: {why}"
