"""Limited actors in a real worker, over dramatiq's broker for tests."""

from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage

from capline import Limiter, Policy
from capline.middleware.dramatiq import limited_actor


@pytest.fixture
def broker() -> Iterator[Any]:
    made = StubBroker()
    made.add_middleware(CurrentMessage())
    made.emit_after("process_boot")
    worker = dramatiq.Worker(made, worker_timeout=100, worker_threads=4)
    worker.start()
    yield made
    worker.stop()
    made.close()


def test_each_message_runs_in_its_slot_and_the_waiting_is_not_a_retry(broker: Any) -> None:
    ran: list[tuple[int, int]] = []
    with Limiter("memory://", policies=[Policy("psp", ["2/200ms", "1000/h"])]) as limiter:

        @dramatiq.actor(broker=broker, max_retries=1, min_backoff=1)
        @limited_actor(limiter, "psp", subject="adyen", early=0.05, late=60)
        def pay(number: int) -> None:
            message: Any = CurrentMessage.get_current_message()
            ran.append((number, message.options.get("retries", 0)))
            if number == 0 and len([one for one, _ in ran if one == 0]) == 1:
                raise dramatiq.Retry(delay=1)

        for number in range(8):
            pay.send(number)
        broker.join("default", timeout=60_000)
        assert sorted(ran) == [(0, 0), (0, 1), *((number, 0) for number in range(1, 8))]
        assert sum(hit.units for hit in limiter.explain("psp", "adyen").hits) == 9


def test_called_directly_it_waits_where_it_is() -> None:
    with Limiter("memory://", policies=[Policy("psp", ["1/h"])]) as limiter:

        @limited_actor(limiter, "psp", subject="adyen", max_wait=1)
        def pay(number: int) -> int:
            return number

        assert pay(5) == 5
        assert not limiter.peek("psp", "adyen")
