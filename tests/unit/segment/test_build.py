"""Building: disjoint sets, or an error that says who is not."""

import numpy as np
import pytest

from capline.model.errors import SegmentError
from capline.segment import IdSet, build_segments
from capline.segment.build import build as build_module
from capline.segment.build.source import Rows


def rows(*given: tuple[int, str]) -> Rows:
    names = tuple(dict.fromkeys(name for _, name in given))
    codes = np.array([names.index(name) for _, name in given], dtype=np.int32)
    return Rows(np.array([one for one, _ in given], dtype=np.uint32), codes, names)


def test_names_are_sorted_and_the_same_row_twice_is_no_offence() -> None:
    sets = build_segments([rows((5, "new"), (1, "active"), (5, "new")), rows((2, "new"), (1, "active"))])
    assert list(sets.items()) == [("active", IdSet([1])), ("new", IdSet([2, 5]))]


def test_who_is_in_two_segments_is_listed_and_counted() -> None:
    both = [rows((n, "new"), (n, "active")) for n in range(20, 8, -1)]
    with pytest.raises(SegmentError) as caught:
        build_segments([*both, rows((9, "old"), (1, "old"))])
    assert str(caught.value) == (
        "12 ids are in two segments or more: 9 (active and new and old), 10 (active and new), 11 (active and new), "
        "12 (active and new), 13 (active and new), 14 (active and new), 15 (active and new), 16 (active and new), "
        "17 (active and new), 18 (active and new), …; "
        "fix the rows, or state which segment wins (first_wins, --first-wins)"
    )
    with pytest.raises(SegmentError, match=r"^1 id is in two segments or more: 3 \(a and b\); fix"):
        build_segments([rows((3, "b"), (3, "a"))])


def test_the_stated_order_settles_whatever_the_order_of_the_rows() -> None:
    given = [rows((1, "new"), (1, "active"), (2, "old")), rows((2, "active"), (3, "old"), (1, "old"))]
    for batches in (given, given[::-1]):
        sets = build_segments(batches, first_wins=["active", "new", "old", "none-today"])
        assert list(sets.items()) == [
            ("active", IdSet([1, 2])),
            ("new", IdSet()),
            ("old", IdSet([3])),
            ("none-today", IdSet()),
        ]


def test_an_order_that_cannot_settle() -> None:
    with pytest.raises(SegmentError, match="segment 'old' is not in the order new,active; the order names every"):
        build_segments([rows((1, "old"))], first_wins=["new", "active"])
    with pytest.raises(SegmentError, match="segment 'new' is named twice"):
        build_segments([rows((1, "new"))], first_wins=["new", "new"])
    with pytest.raises(SegmentError, match="segment name '' is not 1 to 64"):
        build_segments([rows((1, "new"))], first_wins=["new", ""])


def test_a_mixed_up_column_is_noticed() -> None:
    many = [rows(*((n, f"s{n}") for n in range(start, start + 100))) for start in range(0, 1100, 100)]
    with pytest.raises(SegmentError, match="more than 1024 different segments; is the segment column the right one"):
        build_segments(many)
    assert len(build_segments(many[:10])) == 1000


@pytest.mark.parametrize("gathered", [1, 3, 4_000_000])
def test_progress_counts_rows_and_gathering_changes_nothing(monkeypatch: pytest.MonkeyPatch, gathered: int) -> None:
    monkeypatch.setattr(build_module, "_GATHERED", gathered)
    seen: list[int] = []
    sets = build_segments([rows((1, "a"), (9, "b")), rows((7, "a")), rows((3, "b"), (2, "a"))], progress=seen.append)
    assert sets == {"a": IdSet([1, 2, 7]), "b": IdSet([3, 9])}
    assert seen == [2, 3, 5]
