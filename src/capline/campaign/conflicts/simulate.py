"""One subject of each pattern, decided by a limiter on a store in memory: in the order of time, priority and name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from capline.campaign.attempts import Attempts
from capline.campaign.part import Part
from capline.campaign.room import Room
from capline.campaign.store.rows import DELIVERED, HELD, PENDING, REFUSED, BatchRows
from capline.limiter.limiter import Limiter
from capline.limiter.policies.rules import Rules
from capline.model.clock import ManualClock
from capline.model.policy import POPULATION
from capline.policy.joint import JointPolicy
from capline.window.bound_log import readers_of, table_of
from capline.window.limit_reader import WindowReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from capline.campaign.conflicts.planned import Planned
    from capline.limiter.arguments.records import LogRecord
    from capline.model.limit import Limit
    from capline.model.policy import Policy

_NONE_US = np.iinfo(np.int64).min
_LATER = -1
"""The fate of a message that was held and then sent; the others are those of `rows`."""

Place = tuple[str, str, str, str | None]
"""Who loses it, who takes it, the limit, and the segment."""


@dataclass(slots=True)
class Tally:
    """What came of a simulation: messages by campaign and fate, those that lost a place, and the places taken."""

    sent: Counter[str] = field(default_factory=Counter[str])
    later: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    losing: Counter[str] = field(default_factory=Counter[str])
    taken: Counter[Place] = field(default_factory=Counter[Place])
    taken_for_now: Counter[Place] = field(default_factory=Counter[Place])
    """Those of `taken` whose message is sent later."""


class Simulation:
    """Campaigns that share logs, on one subject of each pattern.

    `kinds` has a row for each campaign and a column for each pattern, `counts` how many subjects a pattern stands for.
    `past` are the logs that they begin with, at `now_us`; its subjects are the patterns' numbers.
    """

    def __init__(
        self,
        planned: Sequence[Planned],
        kinds: NDArray[np.int64],
        counts: NDArray[np.int64],
        past: Iterable[LogRecord],
        now_us: int,
    ) -> None:
        self._planned, self._counts = planned, counts
        # They differ where a policy was changed between two campaigns: each is decided by its own.
        policies = [_in_memory(each.policy, str(number)) for number, each in enumerate(planned)]
        every = [policy for of_one in policies for policy in of_one]
        namespace = planned[0].policies.namespace
        self._clock = ManualClock(start_us=now_us)
        self._limiter = Limiter("memory://", every, clock=self._clock, namespace=namespace)
        self._rules = Rules(every, namespace)
        self._limiter.load(past)
        self._attempts = [
            Attempts(self._limiter, each.file, of_one[0], each.segments, each.zones)
            for each, of_one in zip(planned, policies, strict=True)
        ]
        self._logs = [
            {on.log for on in self._rules.rule(str(number), None, each.file.channel).logs}
            for number, each in enumerate(planned)
        ]
        self._shares = np.array([[not mine.isdisjoint(other) for other in self._logs] for mine in self._logs])
        pairs, zones = (np.array([[getattr(each, of)] for each in planned]) for of in ("pairs", "zones_told_apart"))
        held, of_pairs = np.divmod(np.maximum(kinds - 1, 0), pairs)
        self._codes, self._zones = np.divmod(of_pairs, zones)
        self._hits = np.full(kinds.shape, _NONE_US, np.int64)
        self._fates = np.full(kinds.shape, REFUSED, np.int16)
        self._losing = np.zeros(kinds.shape, bool)
        self._held_us = np.zeros(kinds.shape, np.int64)
        self._due_us = np.zeros(kinds.shape, np.int64)
        self._first_us = np.zeros(kinds.shape, np.int64)
        self._was_refused = np.zeros(kinds.shape, bool)
        self._places: list[tuple[int, int, str, NDArray[np.intp]]] = []
        self._due: list[tuple[int, int, int, str, int, int, NDArray[np.intp]]] = []
        self._numbers = count()
        self._wanted = kinds > 0
        for number, each in enumerate(planned):
            holds = [*each.holds]
            places: list[int] = np.unique(held[number][held[number] > 0]).tolist()
            for place in places:
                until_us, since_us = holds[place - 1]
                rows = np.flatnonzero(held[number] == place)
                self._hold(number, since_us, rows, np.full(rows.size, until_us))
            rows = np.flatnonzero(self._wanted[number] & (held[number] == 0))
            zone_of = self._zones[number, rows]
            for zone in np.unique(zone_of).tolist():
                at_us = each.due_in(zone)
                self._put(number, at_us, at_us, rows[zone_of == zone])

    def run(self, tally: Tally) -> None:
        """Decide everything, and add what came of it."""
        with self._limiter:
            while self._due:
                at_us, _, first_us, _, _, number, rows = heappop(self._due)
                self._clock.advance_us(at_us - self._clock.now_us())
                self._decide(number, at_us, first_us, rows)
        for number, each in enumerate(self._planned):
            wanted, fates = self._wanted[number], self._fates[number]
            for counter, which in (
                (tally.sent, (fates == DELIVERED) | (fates == _LATER)),
                (tally.later, fates == _LATER),
                (tally.refused, fates == REFUSED),
                (tally.losing, self._losing[number]),
            ):
                counter[each.name] += int(self._counts[wanted & which].sum())
        for taker, number, limit, rows in self._places:
            later = self._fates[number, rows] == _LATER
            loser, by = self._planned[number], self._planned[taker].name
            for counter, some in ((tally.taken, rows), (tally.taken_for_now, rows[later])):
                sums = np.bincount(self._codes[number, some], self._counts[some])
                for code in np.flatnonzero(sums).tolist():
                    counter[loser.name, by, limit, loser.segments[code]] += int(sums[code])

    def _put(self, number: int, at_us: int, first_us: int, rows: NDArray[np.intp]) -> None:
        """These are due then, and were due first at another time."""
        each = self._planned[number]
        self._due_us[number, rows] = at_us if not 0 < each.until_us <= at_us else 0
        order = at_us, -each.file.priority, first_us, each.name
        heappush(self._due, (*order, next(self._numbers), number, rows))

    def _decide(self, number: int, at_us: int, first_us: int, rows: NDArray[np.intp]) -> None:
        each = self._planned[number]
        self._held_us[number, rows] = self._due_us[number, rows] = 0
        if 0 < each.until_us <= at_us:
            return
        if each.file.holds_any:
            until_us = self._turns_of(number, at_us, first_us, rows)
            self._hold(number, first_us, rows, until_us)
            rows = rows[until_us == 0]
        if not rows.size:
            return
        codes, zones = self._codes[number, rows].astype(np.uint16), self._zones[number, rows].astype(np.uint16)
        batch = BatchRows.undecided(0, at_us, rows.astype(np.uint32), codes)
        part = Part(0, batch.ids, codes, {}, zones)
        everyone, receipt = np.arange(rows.size), str(next(self._numbers))
        higher: dict[int, NDArray[np.bool_]] = {}
        keep_free = None
        if each.file.yields:
            batch.room, higher = self._room(number, at_us, part, rows)
            keep_free = batch.room[:, 1:]
        answers = self._attempts[number].decide(part, everyone, receipt, keep_free)
        batch.take_decisions(everyone, answers, each.file.holds, None, each.file.cost)
        allowed = batch.in_state(PENDING)
        # Where the cost is above the quota nobody takes a place, as there is none.
        fits = (answers.retry_after_us >= 0) | (answers.remaining >= each.file.cost)
        refused = np.flatnonzero(~answers.allowed & ~self._was_refused[number, rows] & fits)
        self._was_refused[number, rows[refused]] = True
        places: list[int] = np.unique(answers.limit_index[refused]).tolist()
        for place in places:
            some = refused[answers.limit_index[refused] == place]
            self._note_takers(number, at_us, answers.limits[place], rows[some])
            yielding = some[answers.remaining[some] >= each.file.cost]
            for other, counts in higher.items():
                self._note(other, number, answers.limits[place], rows[yielding[counts[yielding]]])
        self._fates[number, rows[allowed]] = np.where(self._first_us[number, rows[allowed]], _LATER, DELIVERED)
        self._hits[number, rows[allowed]] = answers.hit[allowed]
        held = batch.in_state(HELD)
        self._first_us[number, rows[held]] = first_us
        self._hold(number, first_us, rows[held], batch.held_until_us[held])

    def _hold(self, number: int, first_us: int, rows: NDArray[np.intp], until_us: NDArray[np.int64]) -> None:
        """These are due again then; 0 is not at all."""
        for again_us in np.unique(until_us[until_us > 0]).tolist():
            some = rows[until_us == again_us]
            self._held_us[number, some], self._first_us[number, some] = again_us, first_us
            self._put(number, again_us, first_us, some)

    def _turns_of(self, number: int, at_us: int, first_us: int, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """Until when each of these waits for a message that is held before it; 0 for none."""
        until_us = np.zeros(rows.size, np.int64)
        mine = self._planned[number]
        for other, each in enumerate(self._planned):
            if other == number or not self._shares[number, other] or each.file.priority < mine.file.priority:
                continue
            held_us, since_us = self._held_us[other, rows], self._first_us[other, rows]
            before = held_us > at_us
            if each.file.priority == mine.file.priority:
                before &= (since_us < first_us) | ((since_us == first_us) & (each.name < mine.name))
            until_us = np.maximum(until_us, np.where(before, held_us, 0))
        return until_us

    def _note_takers(self, number: int, at_us: int, limit: Limit, rows: NDArray[np.intp]) -> None:
        """Who has units in the window of the limit that refused these."""
        # The instant that the attempt was judged at: after the newest hit in its logs, whatever the clock says.
        hits_us = self._hits[np.ix_(self._shares[number], rows)]
        stamps_us = np.maximum(hits_us.max(axis=0) + 1, at_us)
        zones = self._zones[number, rows]
        for zone, stamp_us in np.unique(np.stack([zones, stamps_us]), axis=1).T.tolist():
            some = rows[(zones == zone) & (stamps_us == stamp_us)]
            cutoff_us, takers = self._window(number, limit, zone, stamp_us, self._codes[number, some[0]])
            for taker in takers:
                self._note(taker, number, limit, some[self._hits[taker, some] > cutoff_us])

    def _note(self, taker: int, number: int, limit: Limit, rows: NDArray[np.intp]) -> None:
        if rows.size:
            self._losing[number, rows] = True
            self._places.append((taker, number, str(limit), rows))

    def _room(
        self, number: int, at_us: int, part: Part, rows: NDArray[np.intp]
    ) -> tuple[NDArray[np.int64], dict[int, NDArray[np.bool_]]]:
        """The units that these leave free, as in `BatchRows.room`; and for which campaigns of a higher priority.

        They look again when the first of those is due: nobody is cancelled here.
        """
        mine, everyone = self._planned[number].file, np.arange(rows.size)
        room = Room(self._attempts[number], part, everyone, at_us)
        found: dict[int, NDArray[np.bool_]] = {}
        for other, each in enumerate(self._planned):
            if each.file.priority > mine.priority:
                shares = room.counted_by(each.logs, each.file.channel)
                found[other] = room.leave(everyone, self._due_us[other, rows], shares, each.file.cost)
        return room.table, found

    def _window(self, number: int, limit: Limit, zone: int, stamp_us: int, code: int) -> tuple[int, list[int]]:
        """After which instant hits count for a limit, and of which campaigns."""
        each, policy = self._planned[number], self._attempts[number].policy
        segment = each.segments[code] if each.segments[code] in policy.by_segment else None
        zone_name = each.zones[zone] if policy.needs_zone else None
        rule = self._rules.rule(policy.name, segment, each.file.channel, zone_name)
        table = table_of(rule, stamp_us)
        for over, readers in zip(rule.logs, readers_of(rule), strict=True):
            for reader in readers:
                if reader.limit == limit and isinstance(reader, WindowReader):
                    on_it = [other for other, logs in enumerate(self._logs) if over.log in logs]
                    return reader.cutoff_us(stamp_us, table), on_it
        return 0, []


def _in_memory(policy: Policy, name: str) -> list[Policy]:
    """The policy under this name, as a store in memory keeps it; and those that it is made of, as `0.1`."""
    plain: dict[str, Any] = {"layout": "subject", "wait_replicas": 0, "population": POPULATION, "reservations": False}
    if not isinstance(policy, JointPolicy):
        return [policy.having(name=name, log=policy.log, **plain)]
    # What it says of a limit has the members' own names.
    members = [member.having(log=member.log, **plain) for member in policy.members]
    renamed = [member.having(name=f"{name}.{place}", log=member.log) for place, member in enumerate(members)]
    return [JointPolicy(members, name), *renamed]
