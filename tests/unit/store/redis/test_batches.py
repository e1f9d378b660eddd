"""How long a batch may take, and that others go on meanwhile."""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from capline import Attempt, Limiter, Policy
from capline.store.redis.cluster.router import Router
from capline.store.redis.io.wire import Steps, Work


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


def test_calls_over_one_subject_with_ids_are_sent_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: Router, calls: Sequence[Any], *_until: float) -> Any:
        raise ConnectionError(len(calls))

    monkeypatch.setattr(Router, "start", start)
    # A server stays with a client for all that it has read of it.
    with (
        Limiter("redis://127.0.0.1:1", [Policy("p", ["3/day"])]) as limiter,
        pytest.raises(ConnectionError, match=r"^5$"),
    ):
        limiter.decide_batch([Attempt("p", "s", id=f"{row}") for row in range(1000)])


class FirstStep:
    """A transport that takes the first step of a verb, and no more."""

    closed = False

    def __init__(self) -> None:
        self.asked: Any = None

    def drive(self, steps: "Steps[Any]") -> Any:
        self.asked = next(steps)
        raise ConnectionError

    def ask(self, _node: object, _payload: bytes) -> Any:
        raise AssertionError("a batch is driven")

    def close(self) -> None:
        pass


BATCHES: dict[str, Callable[[Limiter, int], object]] = {
    "integers": lambda limiter, rows: limiter.decide_many("p", range(rows)),
    "texts": lambda limiter, rows: limiter.decide_many("p", [f"{row}" for row in range(rows)]),
    "attempts": lambda limiter, rows: limiter.decide_batch([Attempt("p", row) for row in range(rows)]),
    "refunds": lambda limiter, rows: limiter.refund_many("p", range(rows), [1] * rows),
}


@pytest.mark.parametrize("batch", BATCHES)
def test_a_large_batch_is_built_while_others_go_on(batch: str) -> None:
    with Limiter("redis://127.0.0.1:1", [Policy("p", ["3/day"])]) as limiter:
        store: Any = limiter._store
        store.transport = transport = FirstStep()
        for rows in (1000, 1001):
            with pytest.raises(ConnectionError):
                BATCHES[batch](limiter, rows)
            assert isinstance(transport.asked, Work) is (rows > 1000)
