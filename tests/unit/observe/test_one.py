"""A single decision that is told as arguments is counted as the event would be."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from capline import AsyncLimiter, Policy
from capline.model.errors import StoreError, StoreUnavailableError
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


async def _down(*_: object) -> None:
    raise StoreUnavailableError("away")


class Plain:
    """Takes events alone, and so keeps the limiter from telling arguments."""

    def decided(self, event: Decided) -> None:
        pass


class Raises(Plain):
    def decided_one(self, *_: object) -> None:
        raise RuntimeError


def figures(observers: list[object], *, down: bool = False, on_store_error: str = "raise") -> dict[str, float]:
    registry = CollectorRegistry()

    async def ask() -> None:
        counting = PrometheusObserver(registry)
        async with AsyncLimiter(
            "memory://",
            POLICIES,
            observers=[counting, *observers],  # pyright: ignore[reportArgumentType] - of either kind
            on_store_error=on_store_error,
        ) as limiter:
            await limiter.decide("p", "known")
            if down:
                limiter._store.decide = _down  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage] - as a server that is away
            for policy, segment, channel in ASKED:
                for _ in range(2):
                    try:
                        await limiter.decide(policy, "u", segment=segment, channel=channel)
                    except StoreError:
                        continue

    asyncio.run(ask())
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if not sample.name.endswith(("_created", "_sum", "_bucket", "errors_total"))
    }


def test_it_is_counted_as_the_event_would_be() -> None:
    assert figures([]) == figures([Plain()])
    assert sum(value for name, value in figures([]).items() if name.startswith("capline_decisions_total")) == 15


@pytest.mark.parametrize("on_store_error", ["raise", "allow", "deny"])
def test_an_outage_is_counted_too(on_store_error: str) -> None:
    found = figures([], down=True, on_store_error=on_store_error)
    assert found == figures([Plain()], down=True, on_store_error=on_store_error)
    assert sum(value for name, value in found.items() if "store_seconds_count" in name) == 15


def test_one_that_raises_breaks_nothing() -> None:
    assert figures([Raises()]) == figures([])
