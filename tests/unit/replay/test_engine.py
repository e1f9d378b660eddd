"""The replay engine against counting by hand, and the small parts around it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from random import Random

import pytest

from capline import Limiter, ManualClock, Policy, UnknownNameError
from capline.model.subject import Subject
from capline.replay.engine import replay
from capline.replay.events import Event, ReplayError

POLICY = Policy("promo", ["1/10s", "3/60s"], by_segment={"vip": ["2/10s", "9/60s"]})
LIMITS = {None: [(1, 10_000_000), (3, 60_000_000)], "vip": [(2, 10_000_000), (9, 60_000_000)]}


@dataclass
class Batch:
    at_us: int
    subjects: list[Subject]
    codes: list[int]


def batches_of(given: list[Event], segments: list[str | None]) -> Iterator[Batch]:
    """Events by instant; segments that were not met before are added to the list."""
    for at_us, group in groupby(given, key=lambda event: event.at_us):
        rows = list(group)
        for row in rows:
            if row.segment not in segments:
                segments.append(row.segment)
        yield Batch(at_us, [row.subject for row in rows], [segments.index(row.segment) for row in rows])


def events(seed: int, rows: int = 3000) -> list[Event]:
    random = Random(seed)
    at_us = 0
    made: list[Event] = []
    for row in range(1, rows + 1):
        at_us += random.choice((0, 0, 1, 1_000_000, 4_999_999, 5_000_000))
        made.append(Event(row, random.randrange(12), at_us, random.choice((None, "vip"))))
    return made


def by_hand(given: list[Event]) -> list[bool]:
    """The rule, word by word: units with stamp in (t - W, t], plus one, at most q; stamps strictly increase."""
    logs: dict[object, list[int]] = {}
    answers: list[bool] = []
    for event in given:
        log = logs.setdefault(event.subject, [])
        stamp = max(event.at_us, log[-1] + 1) if log else event.at_us
        fits = all(sum(stamp - window < at for at in log) < quota for quota, window in LIMITS[event.segment])
        if fits:
            log.append(stamp)
        answers.append(fits)
    return answers


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_a_replay_is_the_rule_row_by_row(kind: str, tmp_path: Path) -> None:
    given = events(3)
    clock = ManualClock()
    segments: list[str | None] = [None]
    answers: list[bool] = []
    with Limiter("memory://" if kind == "memory" else f"lmdb://{tmp_path}/store", [POLICY], clock=clock) as limiter:
        for _, decisions in replay(limiter, clock, "promo", segments, batches_of(given, segments)):
            answers += decisions.allowed.tolist()
    expected = by_hand(given)
    assert answers == expected
    assert 0 < sum(expected) < len(expected)
    assert segments == [None, "vip"]


def test_a_batch_out_of_order_is_refused() -> None:
    clock = ManualClock(10)
    with Limiter("memory://", [POLICY], clock=clock) as limiter, pytest.raises(ReplayError, match="order of time"):
        list(replay(limiter, clock, "promo", [None], [Batch(9, [1], [0])]))


def test_the_clock_shows_the_time_of_the_batch_and_no_other() -> None:
    clock = ManualClock()
    shown: list[int] = []
    with Limiter("memory://", [POLICY], clock=clock) as limiter:
        batches = [Batch(at_us, [1], [0]) for at_us in (0, 5, 5, 7)]
        shown.extend(clock.now_us() for _ in replay(limiter, clock, "promo", [None], batches))
    assert shown == [0, 5, 5, 7]


def test_a_segment_that_the_policy_does_not_know_is_refused() -> None:
    clock = ManualClock()
    with Limiter("memory://", [POLICY], clock=clock) as limiter, pytest.raises(UnknownNameError, match="vip"):
        list(replay(limiter, clock, "promo", ["gold"], [Batch(9, [1], [0])]))


def test_a_subject_that_cannot_be_one_ends_the_replay() -> None:
    clock = ManualClock()
    with Limiter("memory://", [POLICY], clock=clock) as limiter, pytest.raises(ValueError, match="512"):
        list(replay(limiter, clock, "promo", [None], [Batch(9, [1, "x" * 600], [0, 0])]))


@pytest.mark.parametrize("algorithm", ["bucketed", "sliding_counter", "gcra"])
def test_a_replay_takes_any_algorithm_and_refusals_that_count(algorithm: str) -> None:
    for policy in (
        Policy("p", ["5/10s", "20/60s"], algorithm=algorithm),
        Policy("p", ["5/10s", "20/60s"], count_denied=True),
    ):
        given = [Event(row, 1, row * 700_000, None) for row in range(100)]
        clocks = [ManualClock(), ManualClock()]
        with (
            Limiter("memory://", [policy], clock=clocks[0]) as one,
            Limiter("memory://", [policy], clock=clocks[1]) as two,
        ):
            expected: list[bool] = []
            for event in given:
                clocks[0].advance_us(event.at_us - clocks[0].now_us())
                expected.append(one.decide("p", 1).allowed)
            segments: list[str | None] = [None]
            found = [
                bool(decisions.allowed[0])
                for _, decisions in replay(two, clocks[1], "p", segments, batches_of(given, segments))
            ]
        assert found == expected
        assert 0 < sum(expected) < 100
