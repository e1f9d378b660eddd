"""What an answer of a provider means for the request, turn by turn; no network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capline import Decision
from capline.middleware import gate as module
from capline.middleware.gate import MOST_MISSED, Gate, Turn

if TYPE_CHECKING:
    from collections.abc import Mapping


def answered(status: int, seconds: float | None = None) -> tuple[int, Mapping[str, str]]:
    """A status, with the seconds after which to come again."""
    return status, {} if seconds is None else {"Retry-After": str(seconds)}


def turn(max_wait: float | None = None, slack: float | None = None, retries: int = 3) -> Turn:
    return Turn(Gate[str]("p", "s", str, max_wait, slack, retries))


@pytest.mark.parametrize(("seconds", "is_last"), [(4.999, False), (5.0, False), (5.001, True)])
def test_a_wait_as_long_as_the_longest_is_waited_and_a_longer_one_is_not(seconds: float, is_last: bool) -> None:
    one = turn(max_wait=5.0)
    assert one.is_last(*answered(429, seconds), repeatable=True) is is_last
    assert one.wait == seconds


def test_there_are_as_many_retries_as_said() -> None:
    one = turn(retries=2)
    assert [one.is_last(*answered(503, 1), repeatable=True) for _ in range(3)] == [False, False, True]
    assert turn().is_last(*answered(503, 1), repeatable=False)
    assert turn().is_last(*answered(200), repeatable=True)


def test_slots_are_missed_so_often_for_each_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    slot = Decision(True, None, 0, 0, 0, 1, wait_us=0)

    def missed(one: Turn) -> int:
        count = 0
        while True:
            one.begin()
            now[0] += 1.5
            if not one.is_late(slot):
                return count
            count += 1

    one = turn(slack=1.0)
    assert missed(one) == MOST_MISSED
    # Sent and asked to come again: slots may be missed anew.
    assert not one.is_last(*answered(429, 0), repeatable=True)
    assert missed(one) == MOST_MISSED


@pytest.mark.parametrize(("late", "is_late"), [(0.5, False), (1.0, False), (1.25, True)])
def test_a_slot_is_missed_where_it_is_past_by_more_than_the_slack(
    late: float, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    one = turn(slack=1.0)
    one.begin()
    now[0] += 2.0 + late
    assert one.is_late(Decision(True, None, 0, 0, 0, 1, wait_us=2_000_000)) is is_late
