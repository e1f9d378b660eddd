"""A single decision that is told as arguments is counted as the event would be."""

from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry
from tests.kit.limiter import behind_a_door, close, gone

from capline import Policy
from capline.model.errors import StoreError
from capline.observe import PrometheusObserver
from capline.observe.event import Decided

POLICIES = [
    Policy("promo", ["2/day"], by_segment={"new": ["1/day"]}, channels={"push": ["1/day"]}),
    Policy("p", ["9/s"]),
]
ASKED = [
    ("promo", None, None),
    ("promo", "new", None),
    ("promo", "new", "push"),
    ("p", "any", None),
    ("p", None, None),
    ("promo", None, None),
    ("promo", None, None),
]
BOTH = pytest.mark.parametrize("asynchronous", [False, True])


class Plain:
    """Takes events alone, and so keeps the limiter from telling arguments."""

    def decided(self, event: Decided) -> None:
        pass


class Raises(Plain):
    def decided_one(self, *_: object) -> None:
        raise RuntimeError


def figures(
    observers: list[object], *, asynchronous: bool = False, down: bool = False, on_store_error: str = "raise"
) -> dict[str, float]:
    registry = CollectorRegistry()
    counting = [PrometheusObserver(registry), *observers]
    limiter, door = behind_a_door(
        *POLICIES, asynchronous=asynchronous, observers=counting, on_store_error=on_store_error
    )
    limiter.decide("p", "known")
    door.down = gone() if down else None
    for policy, segment, channel in ASKED:
        for _ in range(2):
            with suppress(StoreError):
                limiter.decide(policy, "u", segment=segment, channel=channel)
    close(limiter)
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if not sample.name.endswith(("_created", "_sum", "_bucket", "errors_total"))
    }


@BOTH
def test_it_is_counted_as_the_event_would_be(asynchronous: bool) -> None:
    found = figures([], asynchronous=asynchronous)
    assert found == figures([Plain()], asynchronous=asynchronous)
    assert sum(value for name, value in found.items() if name.startswith("capline_decisions_total")) == 15


@BOTH
@pytest.mark.parametrize("on_store_error", ["raise", "allow", "deny"])
def test_an_outage_is_counted_too(on_store_error: str, asynchronous: bool) -> None:
    found = figures([], asynchronous=asynchronous, down=True, on_store_error=on_store_error)
    assert found == figures([Plain()], asynchronous=asynchronous, down=True, on_store_error=on_store_error)
    assert sum(value for name, value in found.items() if "store_seconds_count" in name) == 15


@BOTH
def test_one_that_raises_breaks_nothing(asynchronous: bool) -> None:
    assert figures([Raises()], asynchronous=asynchronous) == figures([], asynchronous=asynchronous)
