"""Counts what a policy would have allowed and refused of a file of events, in simulated time.

For rolling limits on one log, a list of stamps for each subject is enough (`UnitCore`, below 1 µs an event). For other
policies a limiter decides event by event (some 6 µs). A property test compares `UnitCore` with the specification in
`capline.window`.

Memory: the newest hits of each subject, at most twice as many as the largest quota, and what `blocks` keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from capline.limiter.policies.rules import Rules
from capline.limiter.policies.shadow import SHADOW
from capline.model.limit import DAY_US
from capline.store.local.fast_path import unit_rules

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from capline.limiter.limiter import Limiter
    from capline.model.clock import ManualClock
    from capline.model.decision import Decision
    from capline.model.limit import Limit
    from capline.model.policy import Policy
    from capline.model.subject import Subject
    from capline.replay.blocks import EventFile
    from capline.replay.ordered import Events, OrderedEvents

_Key = TypeVar("_Key")

ALLOWED = -1
"""The answer to an allowed event; any other answer is an index into a list of refusals."""

MOST_BARS = 90
"""Stretches of time that counts are kept for, at most."""

_WIDTHS_S = (
    *(1, 5, 15, 60, 300, 900),
    *(hours * 3600 for hours in (1, 3, 6, 12)),
    *(days * 86_400 for days in (1, 7, 28, 91, 364)),
)


class Refusal(NamedTuple):
    """A kind of refusal: its segment, the first limit of the policy that refuses, and the one with the longest wait."""

    segment: str | None
    first: Limit
    binding: Limit


class ReplayCounts:
    """What a policy did with the events of a file, which `events` has in order of time."""

    def __init__(self, policy: Policy, events: OrderedEvents, width_us: int) -> None:
        self.policy = policy
        self.first_us, self.last_us = events.first_us, events.last_us
        self.width_us = width_us
        """The width of the bars of `over_time` and `refused_over_time`; the first begins at `start_us`."""
        self.start_us = self.first_us - self.first_us % min(width_us, DAY_US)
        bars = (self.last_us - self.start_us) // width_us + 1
        self.over_time, self.refused_over_time = np.zeros(bars, np.int64), np.zeros(bars, np.int64)
        self.asked: Counter[str | None] = Counter()
        """By segment; None, for no segment."""
        self.refusals: Counter[Refusal] = Counter()
        self.refused_of: NDArray[np.int64] = np.zeros(events.subjects, np.int64)
        """Refusals of each subject, by its code."""

    @property
    def events(self) -> int:
        """How many events there were."""
        return self.asked.total()

    @property
    def refused(self) -> Counter[tuple[str | None, Limit]]:
        """By segment and binding limit."""
        return self._by(lambda refusal: (refusal.segment, refusal.binding))

    def by_limit(self, *, binding: bool = False) -> dict[str, int]:
        """Refusals by the first limit of the policy that refuses, or by that with the longest wait."""
        found = self._by(lambda refusal: str(refusal.binding if binding else refusal.first))
        return {name: found[name] for name in map(str, self.policy.all_limits())}

    def _by(self, key: Callable[[Refusal], _Key]) -> Counter[_Key]:
        found: Counter[_Key] = Counter()
        for refusal, count in self.refusals.items():
            found[key(refusal)] += count
        return found

    def top_refused(self, subjects: Sequence[Subject], most: int = 10) -> list[tuple[Subject, int]]:
        """The subjects with the most refusals, and how many: by number, then by subject, integers first."""
        codes = most_refused(self.refused_of, subjects.__getitem__, most)
        return [(subjects[code], int(self.refused_of[code])) for code in codes]

    def add(
        self, events: Events, segments: Sequence[str | None], answers: NDArray[np.int64], refusals: Sequence[Refusal]
    ) -> None:
        """Count these events (at least one): `answers` are indexes into `refusals`, or `ALLOWED`."""
        for kind, count in enumerate(np.bincount(events.kinds, minlength=len(segments)).tolist()):
            self.asked[segments[kind]] += count
        refused = answers != ALLOWED
        numbers, times = np.unique(answers[refused], return_counts=True)
        for number, count in zip(numbers.tolist(), times.tolist(), strict=True):
            self.refusals[refusals[number]] += count
        bars, size = (events.at_us - self.start_us) // self.width_us, len(self.over_time)
        self.over_time += np.bincount(bars, minlength=size)
        self.refused_over_time += np.bincount(bars[refused], minlength=size)
        self.refused_of += np.bincount(events.subjects[refused], minlength=len(self.refused_of))


def most_refused(refused: NDArray[np.integer[Any]], subject_of: Callable[[int], Subject], most: int = 10) -> list[int]:
    """The places of the largest of these numbers of refusals: by number, then by subject, integers first."""
    least = max([1, *np.sort(refused)[-most:][:1].tolist()])
    places: list[int] = np.flatnonzero(refused >= least).tolist()

    def order(place: int) -> tuple[int, bool, Subject]:
        subject = subject_of(place)
        return -int(refused[place]), isinstance(subject, str), subject

    return nsmallest(most, places, order)


class UnitCore:
    """Decides events of one unit on one log of single units, as `store.local.fast_path` does, without the store."""

    def __init__(self, policy: Policy) -> None:
        self._rules, self._name = Rules([policy]), policy.name
        self._limits: list[tuple[int, int, tuple[tuple[int, int, int], ...]]] = []
        self._stamps: list[list[int]] = []
        self._kept = max(limit.quota for limit in policy.all_limits())
        self.refusals: list[Refusal] = []
        """The kinds of refusal, by the number that `decide` returns."""

    @staticmethod
    def covers(policy: Policy) -> bool:
        """Whether this can decide the policy, in all its segments."""
        rules = Rules([policy])
        segments = [*policy.by_segment, *([None] if policy.limits else [])]
        covered = [unit_rules(rules.rule(policy.name, name, None)) for name in segments]
        return bool(covered) and all(units is not None and len(units) == 1 for units in covered)

    def add_kind(self, segment: str | None) -> None:
        """Add the next kind of event, numbered from 0; raises like a limiter for an unknown segment."""
        units = unit_rules(self._rules.rule(self._name, segment, None))
        limits = units[0][0] if units else ()
        numbered = tuple((i, quota, window_us) for i, (quota, window_us, *_) in enumerate(limits))
        self._limits.append((len(self.refusals), len(limits), numbered))
        self.refusals += [
            Refusal(segment, first, binding) for _, _, first, *_ in limits for _, _, binding, *_ in limits
        ]

    def decide(self, subjects: Sequence[int], at_us: Sequence[int], kinds: Sequence[int]) -> list[int]:
        """Decide these events, in order of time: for each `ALLOWED` or an index into `refusals`."""
        limits, stamps_of = self._limits, self._stamps
        kept, most = self._kept, 2 * self._kept
        stamps_of += [[] for _ in range(max(subjects, default=-1) + 1 - len(stamps_of))]
        answers: list[int] = []
        answer = answers.append
        for subject, now_us, kind in zip(subjects, at_us, kinds, strict=True):
            stamps = stamps_of[subject]
            if not stamps:
                stamps.append(now_us)
                answer(ALLOWED)
                continue
            # Stamps of one log strictly increase.
            fits_us = stamp_us = now_us if now_us > stamps[-1] else stamps[-1] + 1
            first, n = ALLOWED, len(stamps)
            binding = 0
            start, count, of_kind = limits[kind]
            for place, quota, window_us in of_kind:
                if n >= quota and stamps[-quota] + window_us > fits_us:
                    fits_us, binding = stamps[-quota] + window_us, place
                    if first == ALLOWED:
                        first = place
            if first != ALLOWED:
                answer(start + first * count + binding)
            else:
                answer(ALLOWED)
                stamps.append(stamp_us)
                if n >= most:
                    # No limit looks further back than its quota.
                    del stamps[: n + 1 - kept]
        return answers


class Trial(NamedTuple):
    """A policy to put to events: its name in a limiter on a new store in memory, and that limiter's clock."""

    limiter: Limiter
    clock: ManualClock
    policy: str

    def at(self, at_us: int) -> Limiter:
        """The limiter at this instant, which is not before the last one."""
        self.clock.advance_us(at_us - self.clock.now_us())
        return self.limiter


def count_events(
    trials: Sequence[Trial],
    file: EventFile,
    events: OrderedEvents,
    progress: Callable[[int], object] = lambda _events: None,
) -> list[ReplayCounts]:
    """Count the events of a file under each policy; `progress` gets how many are done.

    Raises what a limiter raises for names that nobody defined.
    """
    span_us = events.last_us - events.first_us
    width_us = next(
        (width * 1_000_000 for width in _WIDTHS_S if span_us <= width * 1_000_000 * (MOST_BARS - 1)), span_us
    )
    deciders: list[tuple[_Decider, ReplayCounts]] = []
    for trial in trials:
        policy = Rules(trial.limiter.policies.values()).policy(trial.policy)
        decider = _ByCore(UnitCore(policy), file) if UnitCore.covers(policy) else _ByLimiter(trial, file)
        deciders.append((decider, ReplayCounts(policy, events, width_us)))
    segments = [segment for segment, _ in file.kinds()]
    done = 0
    for block in events.blocks():
        for decider, counts in deciders:
            answers = np.asarray(decider.decide(block), np.int64)
            counts.add(block, segments, answers, decider.refusals)
        done += len(block.at_us)
        progress(done)
    return [counts for _, counts in deciders]


class _ByCore:
    def __init__(self, core: UnitCore, file: EventFile) -> None:
        self._core, self.refusals = core, core.refusals
        for segment, _ in file.kinds():
            core.add_kind(segment)

    def decide(self, block: Events) -> list[int]:
        return self._core.decide(block.subjects.tolist(), block.at_us.tolist(), block.kinds.tolist())


class _ByLimiter:
    def __init__(self, trial: Trial, file: EventFile) -> None:
        self._trial = trial
        self._subjects, self._kinds = file.subjects(), file.kinds()
        self._numbers: dict[Refusal, int] = {}
        self.refusals: list[Refusal] = []

    def decide(self, block: Events) -> list[int]:
        answers: list[int] = []
        trial, subjects = self._trial, self._subjects
        codes: list[int] = block.subjects.tolist()
        instants_us: list[int] = block.at_us.tolist()
        kinds_asked: list[int] = block.kinds.tolist()
        for subject, at_us, kind in zip(codes, instants_us, kinds_asked, strict=True):
            segment, zone = self._kinds[kind]
            decision = trial.at(at_us).decide(trial.policy, subjects[subject], segment=segment, zone=zone)
            answers.append(
                ALLOWED if decision.allowed and decision.origin != SHADOW else self._number(segment, decision)
            )
        return answers

    def _number(self, segment: str | None, decision: Decision) -> int:
        binding = cast("Limit", decision.limit)
        first = next((state.limit for state in decision.limits if not state.remaining), binding)
        refusal = Refusal(segment, first, binding)
        if refusal not in self._numbers:
            self._numbers[refusal] = len(self.refusals)
            self.refusals.append(refusal)
        return self._numbers[refusal]


_Decider = _ByCore | _ByLimiter
