"""The replay engine against counting by hand, and the small parts around it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from capline import Limiter, ManualClock, Policy, UnknownNameError
from capline.replay.engine import MOST_ROWS, Batch, Tally, batches_of, replay
from capline.replay.events import Event, ReplayError

if TYPE_CHECKING:
    from pathlib import Path

POLICY = Policy("promo", ["1/10s", "3/60s"], by_segment={"vip": ["2/10s", "9/60s"]})
LIMITS = {None: [(1, 10_000_000), (3, 60_000_000)], "vip": [(2, 10_000_000), (9, 60_000_000)]}


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
    tally = Tally()
    answers: list[bool] = []
    with Limiter("memory://" if kind == "memory" else f"lmdb://{tmp_path}/store", [POLICY], clock=clock) as limiter:
        for batch, decisions in replay(limiter, clock, "promo", segments, batches_of(given, segments)):
            answers += decisions.allowed.tolist()
            tally.add(batch, decisions)
    expected = by_hand(given)
    assert answers == expected
    assert 0 < sum(expected) < len(expected)
    assert segments == [None, "vip"]
    assert tally.asked.total() == len(given)
    assert tally.refused.total() == expected.count(False)
    assert (tally.first_us, tally.last_us) == (given[0].at_us, given[-1].at_us)
    for code, limit in tally.refused:
        assert limit in POLICY.limits_for(segments[code])


def test_batches_hold_one_instant_each_and_are_bounded() -> None:
    rows = [Event(row, row, 5, None) for row in range(MOST_ROWS + 1)] + [Event(0, "x", 6, "new")]
    segments: list[str | None] = [None]
    batches = list(batches_of(rows, segments))
    assert [(batch.at_us, len(batch.subjects)) for batch in batches] == [(5, MOST_ROWS), (5, 1), (6, 1)]
    assert batches[-1] == Batch(6, ["x"], [1])


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
