"""Refusals counted by columns equal the specification, event by event, for every set of quotas."""

from random import Random
from typing import Any

import numpy as np
import pytest
from tests.profiles import size

from capline import Policy
from capline.limiter.policies.rules import Rules
from capline.replay.suggest import histories as past
from capline.replay.suggest import refusals as columns
from capline.replay.suggest import suggestion
from capline.replay.suggest.histories import Histories, window_of
from capline.replay.suggest.refusals import refusals
from capline.replay.suggest.suggestion import curve_of
from capline.window.log import Log
from capline.window.rule import step

WIDTHS = (1, 2, 3, 10, 50)


def by_rule(rows: list[tuple[int, int]], limits: list[str]) -> dict[int, int]:
    """Refusals of each subject that has some."""
    bound = Rules([Policy("p", limits)]).rule("p", None, None)
    logs: dict[int, tuple[Log, ...]] = {}
    refused: dict[int, int] = {}
    for subject, now_us in rows:
        logs[subject], decision = step(logs.get(subject, (Log(),)), bound, 1, now_us)
        if not decision.allowed:
            refused[subject] = refused.get(subject, 0) + 1
    return refused


def history(random: Random, scale: int) -> list[tuple[int, int]]:
    """Events of a few subjects: bursts, pauses, many in one microsecond, many exactly a window apart."""
    at_us, rows = 0, list[tuple[int, int]]()
    gaps = random.choice(((0, 1), (0, 1, 2, 5, 10), (1, 3, 40), (10,)))
    for _ in range(random.randrange(1, 90)):
        at_us += random.choice(gaps) * scale
        rows.append((random.randrange(3), at_us))
    return rows


@pytest.mark.parametrize("seed", range(size(150, 3000)))
def test_each_count_is_the_specification_s(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    scale = random.choice((1, 100))  # below it a stamp that is a microsecond late may change an answer
    rows = history(random, scale)
    width, other = random.sample(WIDTHS, 2)
    # Room for all runs at once, or for hardly one; each run alone, or never.
    monkeypatch.setattr(columns, "MOST_CELLS", cells := random.choice((40, 9999)))
    monkeypatch.setattr(columns, "_BLOCK_CELLS", cells)
    monkeypatch.setattr(columns, "_LEAST_AHEAD", random.choice((0, 99)))
    monkeypatch.setattr(suggestion, "_FEW_QUOTAS", random.choice((1, 99)))
    monkeypatch.setattr(suggestion, "_COLUMNS", random.choice((2, 16)))
    # Windows and steps are looked up in each of two ways.
    monkeypatch.setattr(past, "_STEPS_BACK", random.choice((1, 2, 8)))
    monkeypatch.setattr(columns, "_FEW_STEPS", random.choice((1, 1 << 20)))
    # One number has room for all subjects and times, or for few of them; events are sorted in a block or in many.
    monkeypatch.setattr(past, "_ROOM", random.choice((1 << 62, 400_000)))
    monkeypatch.setattr(past, "_BLOCK_EVENTS", random.choice((1 << 20, 7)))
    apart = random.choice((1, 70_000))  # codes of 16 bits, or of more
    rows = [(subject * apart, at_us) for subject, at_us in rows]
    read = random.choice((rows, random.sample(rows, len(rows))))
    subjects, instants = (np.array(column) for column in zip(*read, strict=True))
    histories = Histories(subjects.astype(np.int32), instants)
    windows = [window_of(histories, each * scale) for each in (width, other)]
    curve = curve_of(histories, windows[0])
    for quota in range(1, len(curve.events) + 1):
        refused = by_rule(rows, [f"{quota}/{windows[0].width_us}us"])
        worst = max(refused.values(), default=0)
        found = [int(column[quota - 1]) for column in curve]
        assert found == [sum(refused.values()), len(refused), worst]
        assert bool(refused) == (quota < len(curve.events))
    sets = np.array([(1, 2, 3, 1, 9), (3, 2, 1, 9, 9)], np.int32)
    counted = refusals(histories, windows, sets)
    for column in range(sets.shape[1]):
        limits = [f"{quota}/{window.width_us}us" for quota, window in zip(sets[:, column], windows, strict=True)]
        found = zip(histories.codes[counted.places].tolist(), counted.counts[:, column].tolist(), strict=True)
        assert {subject: count for subject, count in found if count} == by_rule(rows, limits)


@pytest.mark.parametrize("width", [7_200, 21_600, 86_400])
def test_what_is_counted_for_a_busy_subject_grows_less_than_its_events(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def counting(*asked: Any) -> columns.Refusals:
        counted.append(asked[2].shape[1] * len(asked[3]))
        return refusals(*asked)

    monkeypatch.setattr(suggestion, "refusals", counting)
    work: list[int] = []
    for events in (5_000, 20_000):
        at_us = np.sort(np.random.default_rng(1).integers(0, 86_400_000_000, events))
        histories = Histories(np.zeros(events, np.int32), at_us)
        counted.clear()
        curve_of(histories, window_of(histories, width * 1_000_000))
        work.append(sum(counted))
    assert work[1] / work[0] < 9  # of every quota at every instant it would be 16
