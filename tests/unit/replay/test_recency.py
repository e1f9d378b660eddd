"""Segments by recency, against the sentences that define them."""

from random import Random

import numpy as np
import pytest

from capline.replay.demo.recency import SEGMENTS, Recency
from capline.replay.events import ReplayError


def array(*ids: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array(ids, np.uint32)


@pytest.mark.parametrize(
    ("days_since", "segment"),
    [(1, "new"), (30, "new"), (31, "active"), (90, "active"), (91, "lapsing"), (180, "lapsing"), (181, "churned")],
)
def test_one_purchase_ages_through_the_segments(days_since: int, segment: str) -> None:
    recency = Recency(array(7))
    recency.add(100, array(7))
    assert recency.snapshot(100 + days_since).segment_of(7) == segment


def test_who_has_not_bought_yet_is_in_no_segment() -> None:
    recency = Recency(array(7, 8))
    recency.add(100, array(7))
    assert recency.snapshot(101).segment_of(8) is None


def test_a_second_purchase_makes_active_and_not_new_again() -> None:
    recency = Recency(array(7))
    recency.add(100, array(7))
    recency.add(400, array(7, 7))
    assert recency.snapshot(401).segment_of(7) == "active"


def test_the_first_purchase_decides_what_is_new_however_often_one_buys() -> None:
    recency = Recency(array(7))
    for day in range(100, 131):
        recency.add(day, array(7))
    assert recency.snapshot(131).segment_of(7) == "active"


def test_a_morning_knows_nothing_of_its_own_day() -> None:
    recency = Recency(array(7))
    recency.add(100, array(7))
    with pytest.raises(ReplayError, match="cannot know"):
        recency.snapshot(100)
    with pytest.raises(ReplayError, match="in order"):
        recency.add(99, array(7))


def test_a_snapshot_is_named_by_its_day() -> None:
    snapshot = Recency(array(7)).snapshot(9862)
    assert (snapshot.version, snapshot.created_us) == ("1997-01-01", 9862 * 86_400_000_000)
    assert snapshot.names == SEGMENTS


def test_random_purchases_against_the_sentences() -> None:
    random = Random(1)
    ids = sorted(random.sample(range(1 << 32), 60))
    recency = Recency(array(*ids))
    bought: dict[int, list[int]] = {}
    for day in range(1000, 1400):
        snapshot = recency.snapshot(day)
        for one in ids:
            days = bought.get(one)
            if days is None:
                expected = None
            elif day - min(days) <= 30:
                expected = "new"
            elif day - max(days) <= 90:
                expected = "active"
            else:
                expected = "lapsing" if day - max(days) <= 180 else "churned"
            assert snapshot.segment_of(one) == expected
        buyers = random.choices(ids, k=random.choice((0, 0, 0, 1)))
        recency.add(day, array(*buyers))
        for one in buyers:
            bought.setdefault(one, []).append(day)
