"""`Limit.margin`: room for what the way to a provider differs by."""

from __future__ import annotations

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
