"""`Limit.margin`: room for what the way to a provider differs by."""

import random
from typing import Any

import pytest

from capline import Limit, Limiter, ManualClock, Policy
from capline.model.errors import InvalidTypeError, InvalidValueError

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("strict", "jitter", "limits"),
    [
        ("20/s", "30ms", ["20/1030ms", "1/45ms"]),
        ("100/s", "20ms", ["100/1020ms", "1/9ms"]),
        ("1/s", "30ms", ["1/1030ms"]),
        ("0/s", "30ms", ["0/1030ms"]),
        ("1000/us", "1us", ["1000/2us"]),
    ],
)
def test_the_window_is_wider_and_the_calls_are_spread(strict: str, jitter: str, limits: list[str]) -> None:
    assert Limit.margin(strict, jitter=jitter) == tuple(Limit.parse(one) for one in limits)


@pytest.mark.parametrize(
    ("strict", "cost", "limits"),
    [
        ("100000/min", 4_000, ["100000/61s", "8000/4320ms"]),
        ("20/s", 2, ["20/2s", "4/180ms"]),
        ("20/s", 10, ["20/2s"]),
        ("20/s", 20, ["20/2s"]),
        ("1/s", 1, ["1/2s"]),
    ],
)
def test_a_call_of_the_largest_cost_fits_at_the_same_pace(strict: str, cost: int, limits: list[str]) -> None:
    margin = Limit.margin(strict, jitter="1s", cost=cost)
    assert margin == tuple(Limit.parse(one) for one in limits)
    with Limiter("memory://", policies=[Policy("psp", margin)]) as limiter:
        assert limiter.decide("psp", "a", cost)


@pytest.mark.parametrize("cost", [0, -1, 21, True, 1.5, "2"])
def test_a_cost_is_of_1_to_the_quota(cost: Any) -> None:
    with pytest.raises(
        (InvalidValueError, InvalidTypeError), match=r"a call takes 1 to 20 units|cost is the most units"
    ):
        Limit.margin("20/s", jitter="30ms", cost=cost)


def test_a_strict_provider_of_tokens_has_nothing_to_refuse() -> None:
    draw = random.Random(7)
    limits = Limit.margin("1000/s", jitter="30ms", cost=90)
    with Limiter("memory://", policies=[Policy("psp", limits)], clock=ManualClock(1_700_000_000 * SECOND)) as limiter:
        costs = [draw.randint(1, 90) for _ in range(300)]
        sent = [limiter.schedule("psp", "a", cost).wait_us for cost in costs]
    arrivals = [(at + draw.randrange(30_001), cost) for at, cost in zip(sent, costs, strict=True)]
    assert max(sum(cost for other, cost in arrivals if at - SECOND < other <= at) for at, _ in arrivals) <= 1000
    assert sum(costs) / (sent[-1] / SECOND) > 880, "and most of the quota is used"


@pytest.mark.parametrize(
    ("strict", "jitter", "said"),
    [
        ("3/calendar-day", "1s", "a margin is for a rolling limit"),
        ("not between 22:00 and 08:00", "1s", "a margin is for a rolling limit"),
        ("20/s", "some", "jitter"),
        ("20", "30ms", "limit '20'"),
    ],
)
def test_what_has_no_margin_says_so(strict: str, jitter: str, said: str) -> None:
    with pytest.raises(InvalidValueError, match=said):
        Limit.margin(strict, jitter=jitter)


def test_a_jitter_is_text() -> None:
    wrong: Any = 0.03
    with pytest.raises(InvalidTypeError, match="jitter is text"):
        Limit.margin("20/s", jitter=wrong)


@pytest.mark.parametrize(("limits", "kept"), [(("20/s",), False), (Limit.margin("20/s", jitter="30ms"), True)])
def test_a_strict_provider_has_nothing_to_refuse(limits: Any, kept: bool) -> None:
    draw = random.Random(7)
    with Limiter("memory://", policies=[Policy("psp", limits)], clock=ManualClock(1_700_000_000 * SECOND)) as limiter:
        arrivals = sorted(limiter.schedule("psp", "a").wait_us + draw.randrange(30_001) for _ in range(400))
    most = max(sum(at - SECOND < other <= at for other in arrivals) for at in arrivals)
    assert (most <= 20) is kept
