"""Which verbs wait for replicas: a failover that loses what they write could admit too much."""

from types import SimpleNamespace
from typing import Any

import pytest

from capline.store.protocol import Kind, Operation
from capline.store.redis.steps import replicas_of

COMPILED: Any = SimpleNamespace(family=SimpleNamespace(replicas=2))
WAITING: list[Kind] = ["decide", "charge", "schedule", "reserve", "commit", "settle"]
GIVING: list[tuple[Kind, int]] = [("peek", 1), ("refund", 1), ("move", 1), ("settle", 0)]


@pytest.mark.parametrize("kind", WAITING)
def test_what_could_later_admit_too_much_waits(kind: Kind) -> None:
    assert replicas_of(Operation(kind, COMPILED, "s", 9)) == 2


@pytest.mark.parametrize(("kind", "cost"), GIVING)
def test_what_gives_room_back_does_not_wait(kind: Kind, cost: int) -> None:
    assert replicas_of(Operation(kind, COMPILED, "s", cost)) == 0
