"""The recount must find what is wrong with a record, and nothing in one that is right."""

from __future__ import annotations

import numpy as np
import pytest

from capline import Limit
from capline.replay.record import Record
from capline.replay.recount import recount

TWO = Limit.parse("2/10s")
WEEK = Limit.parse("3/60s")
SECOND = 1_000_000


def record(*rows: tuple[int, float, Limit | None], origin_us: int = 0) -> Record:
    """Rows of (subject, second, who refused): a send is stamped as the rule says."""
    newest: dict[int, int] = {}
    hits: list[int] = []
    for subject, second, refused in rows:
        at_us = origin_us + int(second * SECOND)
        stamp = max(at_us, newest.get(subject, -1) + 1)
        if refused is None:
            newest[subject] = stamp
        hits.append(-1 if refused else stamp)
    limits = (TWO, WEEK)
    return Record(
        np.array([subject for subject, _, _ in rows], np.uint32),
        np.array([origin_us + int(second * SECOND) for _, second, _ in rows], np.int64),
        np.zeros(len(rows), np.uint8),
        np.zeros(len(rows), np.uint8),
        np.array(hits, np.int64),
        np.array([-1 if refused is None else limits.index(refused) for _, _, refused in rows], np.int16),
        limits,
    )


@pytest.mark.parametrize("origin_us", [0, 850_000_000_000_000])
def test_a_right_record_holds_and_says_how_full_it_was(origin_us: int) -> None:
    right = record(
        (1, 0, None),
        (2, 1, None),
        (1, 9, None),
        (1, 9.999999, TWO),
        (1, 10, None),  # the first hit is exactly 10 s old: out
        (1, 59.999999, WEEK),
        (1, 60, None),
        origin_us=origin_us,
    )
    found = recount(right, [(TWO, WEEK)])
    assert found.holds
    assert (found.over, found.unjustified) == (0, 0)
    assert found.fullest == {"2/10s": 2, "3/minute": 3}
    assert found.windows == 5 * 2 + 2


def test_one_send_too_many_is_found() -> None:
    found = recount(record((1, 0, None), (1, 5, None), (1, 9.999999, None)), [(TWO, WEEK)])
    assert (found.holds, found.over, found.unjustified) == (False, 1, 0)
    assert found.fullest["2/10s"] == 3


def test_a_refusal_without_cause_is_found() -> None:
    found = recount(record((1, 0, None), (1, 5, TWO)), [(TWO, WEEK)])
    assert (found.holds, found.over, found.unjustified) == (False, 0, 1)


def test_a_refusal_by_the_wrong_limit_is_found() -> None:
    found = recount(record((1, 0, None), (1, 5, None), (1, 6, WEEK)), [(TWO, WEEK)])
    assert found.unjustified == 1


def test_a_refusal_is_not_excused_by_sends_after_it() -> None:
    found = recount(record((1, 0, None), (1, 5, TWO), (1, 5, None)), [(TWO, WEEK)])
    assert found.unjustified == 1


def test_sends_of_one_instant_are_counted_each() -> None:
    assert recount(record((1, 0, None), (1, 0, None), (1, 0, TWO)), [(TWO, WEEK)]).holds
    assert recount(record((1, 0, None), (1, 0, None), (1, 0, None)), [(TWO, WEEK)]).over == 1


def test_subjects_do_not_see_each_other_even_in_the_longest_window() -> None:
    long = Limit.parse("1/3660 days")
    found = recount(record(*((subject, 0, None) for subject in (1, 2, 3, 1 << 31))), [(long,)])
    assert found.holds
    assert found.fullest == {str(long): 1}


def test_each_send_is_held_to_the_limits_of_its_segment_then() -> None:
    given = record((1, 0, None), (1, 1, None))
    given.codes[1] = 1
    assert recount(given, [(TWO,), (Limit.parse("1/10s"),)]).over == 1
    assert recount(given, [(Limit.parse("1/10s"),), (TWO,)]).over == 0
