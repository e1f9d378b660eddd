"""A worker and the store of its campaign: which failures are one outage, and how long that may last."""

from collections.abc import Iterator
from contextlib import closing, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from capline.campaign.queue import worker as module
from capline.campaign.queue.worker import OUTAGE_S, Worker
from capline.campaign.stop import Stop
from capline.campaign.store.records import Claimed
from capline.model.errors import CampaignError, StoreUnavailableError

BATCH = Claimed("sale", "r1", 0, 1, 1, b"", None, None)


class Alone(Worker):
    """A worker of one campaign whose store does not answer, without a queue; pauses take no time of ours."""

    def __init__(self, stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.said: list[str] = []
        super().__init__("redis://127.0.0.1:1/0", stop, takeover_s=60, say=self.said.append)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(stop, "wait", self.pause)
        monkeypatch.setattr(self._queue, "release", Mock(return_value=True))
        monkeypatch.setattr(self._lease_keeper, "renewing", Mock(return_value=nullcontext()))
        run: Any = SimpleNamespace(
            info=SimpleNamespace(run_id="r1"),
            read=Mock(return_value=(None, None)),
            delivery=self.delivery,
            close=stop.check,
        )
        self._runs["sale"] = run

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def delivery(self, _steps: Any) -> Any:
        raise StoreUnavailableError("no server")

    def meet(self) -> None:
        """Claim a batch, and fail at it."""
        self._deliver(BATCH)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Alone]:
    with closing(Stop()) as stop, closing(Alone(stop, monkeypatch)) as made:
        yield made


def until_it_ends(worker: Alone) -> float:
    """How long the worker goes on."""
    began = worker.now
    while True:
        try:
            worker.meet()
        except StoreUnavailableError:
            return worker.now - began


def test_an_outage_ends_a_worker_after_half_a_minute_and_is_told_once(worker: Alone) -> None:
    assert OUTAGE_S <= until_it_ends(worker) < OUTAGE_S + 3
    assert len(worker.said) == 1


def test_an_outage_long_after_another_is_one_of_its_own(worker: Alone) -> None:
    """Others delivered what there was meanwhile, so this worker never saw the store come back."""
    worker.meet()
    worker.now += 3600
    assert until_it_ends(worker) >= OUTAGE_S
    assert len(worker.said) == 2


def test_an_attempt_that_takes_long_to_fail_is_the_same_outage(worker: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_steps: Any) -> Any:
        worker.now += 2 * OUTAGE_S
        raise StoreUnavailableError("no server")

    monkeypatch.setattr(worker._runs["sale"], "delivery", slow)  # pyright: ignore[reportPrivateUsage]
    worker.meet()
    with pytest.raises(StoreUnavailableError):
        worker.meet()


@pytest.mark.parametrize("takeover_s", [0.9, -1, 86_401, float("inf"), float("nan")])
def test_a_takeover_time_that_cannot_be(takeover_s: float) -> None:
    with closing(Stop()) as stop, pytest.raises(CampaignError, match=r"taken over after 1 to 86400 s, not "):
        Worker("redis://127.0.0.1:1/0", stop, takeover_s=takeover_s)
