"""Reports: what became of an audience, or would, by segment and by limit.

`OutcomeCounts` takes one batch at a time and keeps 8 bytes for each refused subject, to find the median. A run's report
is counted only from its store, so kills do not change it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from copy import deepcopy
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np

from capline.campaign.ledger import Ledger
from capline.campaign.store.rows import DELAYS_S, FAILED, FATES, HELD_OUT, NOT_KNOWN, REFUNDED, REFUSED, RETRIED, STATES
from capline.model.clock import SystemClock
from capline.store.columns import NEVER_US
from capline.support.instant import instant_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from capline.campaign.store.records import RunFacts, State
    from capline.campaign.store.rows import BatchRows

_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US
_MOST_HOURS = 48


class SegmentReport(msgspec.Struct, frozen=True):
    """One segment (`segment` None: subjects in none).

    audience = sent + refused + held + failed + not_known + excluded + held_out + pending + undecided. `held`: waits
    until it fits. `failed`: delivery failed for good, and hits are refunded (after a kill: by the resumed run).
    `not_known`: may have been accepted, so the hits stay. Of those `held_out` so many `would_be_refused`. `delays`: of
    those sent, how many the receiver had within so many seconds of when they were due; not of rehearsals.
    """

    segment: str | None
    audience: int
    sent: int
    refused: int
    refused_by: dict[str, int]
    failed: int
    not_known: int
    pending: int
    undecided: int
    delays: dict[str, int] = {}
    excluded: int = 0
    held_out: int = 0
    would_be_refused: int = 0
    held: int = 0


class Eligible(msgspec.Struct, frozen=True):
    """When the refused would be allowed if nothing else is recorded; in microseconds since 1970, and as text.

    `never` counts those whose cost never fits. The others are in `by_time`: by hour, above two days by day, in UTC.
    """

    earliest_us: int | None
    median_us: int | None
    latest_us: int | None
    earliest: str | None
    median: str | None
    latest: str | None
    never: int
    by: str
    by_time: list[tuple[str, int]]


class StoreFacts(msgspec.Struct, frozen=True):
    """The store before a plan or a run: its URL without a password, how many logs it held, when it was created.

    `is_new`: it has no logs. What a store cannot tell is None.
    """

    url: str
    logs: int | None
    begun: str | None
    is_new: bool | None


class Speed(msgspec.Struct, frozen=True):
    """The rate of a campaign's key now; since `changed`, when `by` someone set it. None: it is as its file says."""

    rate: str
    changed: str | None
    by: str | None


class Steering(msgspec.Struct, frozen=True):
    """When a campaign is due and over (None: never); it is in this `version` since `changed`, when `by` someone set it.

    `send_at` is None while it is paused.
    """

    send_at: str | None
    until: str | None
    version: int
    changed: str | None
    by: str | None
    speed: Speed | None = None

    @classmethod
    def of(cls, state: State) -> Self:
        """That of a run in this state."""
        rate = state.rate
        return cls(
            None if math.isinf(state.due_us) else instant_text(int(state.due_us)),
            instant_text(state.until_us) if state.until_us else None,
            1 + state.changes,
            instant_text(state.changed_us) if state.changes else None,
            state.changed_by or None,
            rate
            and Speed(rate.rate, instant_text(rate.changed_us) if rate.changed_us else None, rate.changed_by or None),
        )


class Report(msgspec.Struct, frozen=True):
    """What became of a campaign so far, or would (`state` "planned"; `sent` then counts who would be sent to).

    `failures` and `doubts` count the reasons of failed and of not known messages. Plans and runs also have `store`, and
    what was begun `steering`. `test`: a test send, which counts for nobody.
    """

    campaign: str
    run: str | None
    state: str
    policy: str
    channel: str | None
    cost: int
    total: SegmentReport
    segments: list[SegmentReport]
    failures: dict[str, int]
    doubts: dict[str, int]
    next_eligible: Eligible | None
    elapsed_s: float
    per_s: float
    store: StoreFacts | None = None
    steering: Steering | None = None
    test: bool = False


class OutcomeCounts:
    """Counts by segment, over any number of batches."""

    def __init__(self, segments: Sequence[tuple[str | None, int]]) -> None:
        self._segments = segments
        self._states = np.zeros((len(segments), STATES), np.int64)
        self._refused_by: dict[str, NDArray[np.int64]] = {}
        self._delays = np.zeros((len(segments), len(DELAYS_S) + 1), np.int64)
        self._would_be_refused = np.zeros(len(segments), np.int64)
        self._failures: dict[str, int] = {}
        self._doubts: dict[str, int] = {}
        self._eligible_us: list[NDArray[np.int64]] = []
        self._never = 0

    def add(self, rows: BatchRows) -> None:
        """Count a batch."""
        size = len(self._segments)
        # A retried row counts in its later batch, or as still to come.
        counted = rows.state != RETRIED
        kinds = rows.codes[counted].astype(np.int64) * STATES + rows.state[counted]
        self._states += np.bincount(kinds, minlength=size * STATES).reshape(size, STATES)
        refused = rows.state == REFUSED
        for index, limit in enumerate(rows.limits):
            counts = np.bincount(rows.codes[refused & (rows.limit == index)], minlength=size)
            if counts.any():
                # Two limits with the same text (a channel's and the policy's) share a line.
                self._refused_by[limit] = self._refused_by.get(limit, np.zeros(size, np.int64)) + counts
        capped = (rows.state == HELD_OUT) & (rows.limit >= 0)
        self._would_be_refused += np.bincount(rows.codes[capped], minlength=size)
        for code, counts in rows.delays.items():
            self._delays[code] += counts[:-1]
        _count_reasons(self._failures, rows, (rows.state == FAILED) | (rows.state == REFUNDED))
        _count_reasons(self._doubts, rows, rows.state == NOT_KNOWN)
        retry_us = rows.retry_us[refused]
        fits = retry_us != NEVER_US
        self._never += int(retry_us.size - fits.sum())
        self._eligible_us.append(rows.at_us + retry_us[fits])

    def report(self, facts: RunFacts, state: State | None = None) -> Report:
        """The counts so far of a run in this state; None is of a plan."""
        segments = [self._segment(code) for code in range(len(self._segments))]
        counts = [name for name in SegmentReport.__struct_fields__ if name not in ("segment", "refused_by", "delays")]
        sums = {name: sum(getattr(part, name) for part in segments) for name in counts}
        refused_by = {limit: int(counts.sum()) for limit, counts in sorted(self._refused_by.items())}
        total = SegmentReport(None, refused_by=refused_by, delays=_delays(self._delays.sum(0)), **sums)
        seconds = 0.0 if state is None else state.elapsed_us / 1e6
        done = total.audience - total.pending - total.held - total.undecided
        return Report(
            facts.campaign,
            facts.run_id or None,
            "planned" if state is None else state_now(state),
            facts.policy,
            facts.channel,
            facts.cost,
            total,
            [part for part in segments if part.segment is not None or part.audience],
            _most_first(self._failures),
            _most_first(self._doubts),
            self._eligible(),
            round(seconds, 3),
            round(done / seconds, 1) if seconds else 0.0,
            steering=None if state is None else Steering.of(state),
            test=facts.is_test,
        )

    def _segment(self, code: int) -> SegmentReport:
        name, audience = self._segments[code]
        states: list[int] = self._states[code].tolist()
        became: dict[str, int] = defaultdict(int)
        for fate, count in zip(FATES, states, strict=True):
            became["pending" if fate.outcome == "under way" else fate.outcome.replace(" ", "_")] += count
        return SegmentReport(
            segment=name,
            audience=audience,
            refused_by={limit: int(counts[code]) for limit, counts in sorted(self._refused_by.items()) if counts[code]},
            undecided=audience - sum(states),
            delays=_delays(self._delays[code]),
            would_be_refused=int(self._would_be_refused[code]),
            **became,
        )

    def _eligible(self) -> Eligible | None:
        at_us: NDArray[np.int64] = np.concatenate([np.empty(0, np.int64), *self._eligible_us])
        if not at_us.size:
            return Eligible(None, None, None, None, None, None, self._never, "hour", []) if self._never else None
        earliest_us, latest_us = int(at_us.min()), int(at_us.max())
        middle = (at_us.size - 1) // 2
        median_us = int(np.partition(at_us, middle)[middle])
        by_hour = latest_us // _HOUR_US - earliest_us // _HOUR_US < _MOST_HOURS
        unit_us = _HOUR_US if by_hour else _DAY_US
        starts, counts = np.unique(at_us // unit_us, return_counts=True)
        return Eligible(
            earliest_us,
            median_us,
            latest_us,
            instant_text(earliest_us),
            instant_text(median_us),
            instant_text(latest_us),
            self._never,
            "hour" if by_hour else "day",
            [
                (instant_text(start * unit_us), count)
                for start, count in zip(starts.tolist(), counts.tolist(), strict=True)
            ],
        )


class RunStatus:
    """The reports of a run, each as it is then. A finished batch does not change, and is read once.

    For ten million subjects the first report reads some 100 MB; each later one reads only what is not finished.
    """

    def __init__(self, run: Ledger) -> None:
        self._run = run
        self._batches = 0
        self._settled = 0
        self._not_done: set[int] = set()
        self._done = OutcomeCounts(run.facts.segments)

    def read(self) -> tuple[Report, State]:
        """The report now, and the state that it is of."""
        # State before steps: where the run moves on in between, the state lags behind the counts, never ahead of them.
        state = self._run.state()
        if state.batches != self._batches or state.settled < self._settled:
            # It is new here, its audience was read, or some of it is done again.
            self._run = Ledger.of(self._run.store, self._run.name)
            self._done = OutcomeCounts(self._run.facts.segments)
            self._not_done = set(range(state.batches))
        self._batches, self._settled = state.batches, state.settled
        under_way: list[BatchRows] = []
        for rows in self._run.store.steps(self._run.name, sorted(self._not_done)):
            if rows.is_done:
                self._done.add(rows)
                self._not_done.discard(rows.number)
            else:
                under_way.append(rows)
        counts = deepcopy(self._done)
        for rows in under_way:
            counts.add(rows)
        return counts.report(self._run.facts, state), state


def report_of(run: Ledger) -> Report:
    """The report of a run; about 1 ms for a batch of 10,000."""
    return RunStatus(run).read()[0]


def state_now(state: State) -> str:
    """The state of a run in a word."""
    if state.finished:
        return "cancelled" if state.cancelled else "finished"
    if state.refused is not None:
        return "refused"
    if state.due_us > SystemClock().now_us() and not state.cancelled:
        return "paused" if math.isinf(state.due_us) else "scheduled"
    if state.is_worked_on:
        return "running" if state.is_whole else "preparing"
    waits = state.is_whole and state.waiting and not state.in_work and state.next_us > SystemClock().now_us()
    return "waiting" if waits else "stopped"


def _delays(counts: NDArray[np.int64]) -> dict[str, int]:
    names = [*(f"{bound} s" for bound in DELAYS_S), "later"]
    return {name: count for name, count in zip(names, counts.tolist(), strict=True) if count}


def _count_reasons(counts: dict[str, int], rows: BatchRows, where: NDArray[np.bool_]) -> None:
    for index, count in enumerate(np.bincount(rows.reason[where], minlength=1).tolist()):
        if count and index:
            reason = rows.reasons[index - 1]
            counts[reason] = counts.get(reason, 0) + count


def _most_first(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
