"""How long an `acquire` goes on asking a store that cannot answer, on a clock that is told the time."""

import pytest

from capline.limiter import patience as module
from capline.limiter.patience import WaitBudget
from capline.model.decision import Decision
from capline.model.errors import StoreError, StoreUnavailableError

AWAY = StoreUnavailableError("away")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    told = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: told[0])
    monkeypatch.setattr(module.random, "uniform", max)
    return told


def test_it_pauses_as_long_as_that_ends_before_the_timeout(now: list[float]) -> None:
    one, pauses = WaitBudget(1.0, may_lose_answers=False), list[float]()
    for _ in range(4):
        pauses.append(one.pause(AWAY))
        now[0] += pauses[-1]
    assert pauses == [0.05, 0.1, 0.2, 0.4]
    # The next one would end after the timeout.
    with pytest.raises(StoreUnavailableError, match="away"):
        one.pause(AWAY)
    assert one.left() == pytest.approx(0.25)


def test_it_does_not_wait_for_what_no_waiting_helps(now: list[float]) -> None:
    with pytest.raises(StoreError, match="wrong"):
        WaitBudget(None, may_lose_answers=True).pause(StoreError("wrong"))
    given_up = WaitBudget(None, may_lose_answers=True)
    given_up.give_up()
    with pytest.raises(StoreUnavailableError):
        given_up.pause(AWAY)
    assert now == [100.0]


def test_a_slot_is_missed_where_it_is_past_by_more_than_the_slack(now: list[float]) -> None:
    one, slot = WaitBudget(None, may_lose_answers=False, slack=0.25), Decision(True, None, 0, 0, 0, 1, "store")
    one.asks()
    now[0] += 0.25
    assert not one.is_late(slot)
    now[0] += 1 / 64
    assert one.is_late(slot)
