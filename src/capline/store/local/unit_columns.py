"""Single units of many subjects at one instant, judged in columns as `fast_path.decide_one` judges each.

    log of subject 1    .  .  s  s      the stamps at the right, before them what is older than any window: so the q-th
    log of subject 2    s  s  s  s      newest is in the same column of every row, and what is in a window is above an
    log of subject 3    .  .  .  s      instant

For plain logs of single units, none of them long, as a matrix is as wide as the longest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capline.model.clock import LATEST_US
from capline.model.limit import LARGEST_QUOTA
from capline.store.columns import NO_HIT, Decisions

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.limit import Limit
    from capline.store.local.fast_path import FastRule
else:
    from capline.model.arrays import np

_PAST_US = -(1 << 62)


def judge_columns(
    logs: Sequence[Sequence[array[int]]],
    rules: Sequence[Sequence[FastRule]],
    codes: NDArray[Any],
    limits: tuple[Limit, ...],
    now_us: int,
) -> tuple[Decisions, NDArray[np.bool_]]:
    """The answers to a unit on `logs[k][row]` by `rules[codes[row]][k]`, and the rows that are left to the rule."""
    rows, place_of = len(codes), {id(limit): place for place, limit in enumerate(limits)}
    stamp_us = fits_us = np.full(rows, now_us)
    newest_us, late = np.full(rows, _PAST_US), np.zeros(rows, np.bool_)
    left, place, binds = np.full(rows, LARGEST_QUOTA + 1), np.full(rows, -1), np.full(rows, -1)
    for k, of_log in enumerate(logs):
        counts = np.fromiter(map(len, of_log), np.int64, rows)
        width = int(counts.max()) or 1
        stamps = np.full((rows, width), _PAST_US)
        stamps[np.arange(width) >= width - counts[:, None]] = np.frombuffer(b"".join(of_log), np.int64)
        last_us = stamps[:, -1]
        newest_us = np.maximum(newest_us, last_us)
        if len(logs) > 1:
            late |= last_us >= now_us  # else all are behind now: one stamp in each
        else:
            stamp_us = fits_us = np.maximum(now_us, last_us + 1)
        for at in range(max([len(rule[k][0]) for rule in rules])):
            facts = [_facts_of(rule[k], at, place_of) for rule in rules]
            edge, window_us, quota, limit = np.array(facts).T[:, codes]
            column = width - edge
            at_us = np.where(column < 0, _PAST_US, stamps[np.arange(rows), np.maximum(column, 0)]) + window_us
            longer = at_us > fits_us
            fits_us, binds = np.where(longer, at_us, fits_us), np.where(longer, limit, binds)
            free = quota - np.count_nonzero(stamps > (stamp_us - window_us)[:, None], axis=1)
            less = free < left
            left, place = np.where(less, free, left), np.where(less, limit, place)
    allowed = binds < 0
    keeps = np.array([any(unit[4].keep_free for unit in rule) for rule in rules])
    late |= (fits_us >= LATEST_US) | (~allowed & keeps[codes])
    widest_us = np.array([max([unit[1] for unit in rule]) for rule in rules])
    answers = Decisions(
        limits,
        allowed,
        np.where(allowed, place, binds).astype(np.int16),
        np.where(allowed, left - 1, 0),
        np.where(allowed, 0, fits_us - now_us),
        np.where(allowed, stamp_us, newest_us) + widest_us[codes] - now_us,
        np.where(allowed, stamp_us, NO_HIT),
    )
    return answers, late


def _facts_of(unit: FastRule, at: int, place_of: dict[int, int]) -> tuple[int, int, int, int]:
    """Edge, window, quota and place of the rule's limit of this number; if it has fewer, of one that never binds."""
    if at >= len(unit[0]):
        return 1 << 60, 0, 1 << 60, -1
    edge, window_us, limit, quota = unit[0][at]
    return edge, window_us, quota, place_of[id(limit)]
