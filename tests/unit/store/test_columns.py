"""Rows of a batch's answers, named as the rows of a list are."""

import pytest

from capline.model.decision import Decision
from capline.model.errors import StoreUnknownError
from capline.store.columns import Decisions

ROWS = [Decision(True, None, left, 0, 0, left + 1) for left in range(3)]


def test_rows_are_counted_from_the_end_too_and_errors_with_them() -> None:
    answers = Decisions.of(ROWS, ())
    answers.errors[2] = StoreUnknownError("lost")
    answers.origins[1] = "fallback"
    assert answers[-3].hit == answers[0].hit == 1
    assert answers[-2].origin == "fallback"
    for row in (2, -1):
        with pytest.raises(StoreUnknownError, match="lost"):
            answers[row]


@pytest.mark.parametrize("row", [3, -4])
def test_a_row_that_is_not_there_is_an_index_error(row: int) -> None:
    with pytest.raises(IndexError):
        Decisions.of(ROWS, ())[row]
