"""Refusals counted by columns equal the specification, event by event, for every set of quotas."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.profiles import size

from capline import Policy
from capline.limiter.policies.rules import Rules
from capline.replay.suggest import refusals as columns
from capline.replay.suggest.histories import Histories, window_of
from capline.replay.suggest.refusals import refusals
from capline.replay.suggest.suggestion import curve_of
from capline.window.log import Log
from capline.window.rule import step

WIDTHS = (1, 2, 3, 10, 50)
EVENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=60)


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


@settings(max_examples=size(40, 400), derandomize=True, deadline=None)
@given(EVENTS, st.sampled_from(WIDTHS), st.sampled_from(WIDTHS), st.sampled_from((1, 7)), st.sampled_from((40, 9999)))
@example([(0, 0), (0, 1), (0, 9), (0, 0)], 10, 50, 1, 40)  # a stamp a microsecond late frees what lies at the far end
@example([(0, 0)] * 9, 3, 1, 1, 40)  # as many in one microsecond as the window is wide
def test_each_count_is_the_specification_s(
    events: list[tuple[int, int]], width: int, other: int, scale: int, cells: int
) -> None:
    at_us, rows = 0, list[tuple[int, int]]()
    for subject, later_us in events:
        at_us += later_us * scale
        rows.append((subject, at_us))
    subjects, instants = (np.array(column) for column in zip(*rows, strict=True))
    histories = Histories(subjects.astype(np.int32), instants)
    windows = [window_of(histories, each * scale) for each in dict.fromkeys((width, other))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "MOST_CELLS", cells)  # room for all runs at once, or for hardly one
        curve = curve_of(histories, windows[0])
    for quota in range(1, len(curve.events) + 1):
        refused = by_rule(rows, [f"{quota}/{windows[0].width_us}us"])
        worst = max(refused.values(), default=0)
        found = [int(column[quota - 1]) for column in curve]
        assert found == [sum(refused.values()), len(refused), worst]
        assert bool(refused) == (quota < len(curve.events))
    sets = np.array([(1, 2, 3, 1, 9), (3, 2, 1, 9, 9)], np.int32)[: len(windows)]
    counted = refusals(histories, windows, sets)
    for column in range(sets.shape[1]):
        limits = [f"{quota}/{window.width_us}us" for quota, window in zip(sets[:, column], windows, strict=True)]
        found = zip(histories.codes[counted.places].tolist(), counted.counts[:, column].tolist(), strict=True)
        assert {subject: count for subject, count in found if count} == by_rule(rows, limits)
