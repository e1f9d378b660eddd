"""How long a batch may take."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from capline import Attempt, Limiter, Policy
from capline.store.redis.cluster.router import Router


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 0.1001), (10_000, 1.1), (30_000, 2.0)])
def test_each_attempt_of_a_batch_adds_to_its_deadline_up_to_that_of_bulk(
    monkeypatch: pytest.MonkeyPatch, attempts: int, seconds: float
) -> None:
    seen: list[float] = []

    def start(_: Router, calls: Sequence[Any], until: float, replicas: int = 0) -> Any:
        assert calls
        assert replicas == 0
        seen.append(until)
        raise ConnectionError

    monkeypatch.setattr("capline.store.redis.session.time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(Router, "start", start)
    limiter = Limiter("redis://127.0.0.1:1?deadline=100ms&bulk_deadline=2s", [Policy("p", ["3/day"])])
    with limiter, pytest.raises(ConnectionError):
        limiter.decide_batch([Attempt("p", number) for number in range(attempts)])
    assert seen == [pytest.approx(seconds)]
