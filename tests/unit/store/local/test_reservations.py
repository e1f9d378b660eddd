"""What the record of reservations holds: what is pending, and nothing more. So a decision costs O(pending)."""

# pyright: reportPrivateUsage=false

from pathlib import Path
from typing import Any

import pytest

from capline import InvalidValueError, Limiter, ManualClock, Policy
from capline.model.limit import LARGEST_QUOTA
from capline.window.reservation import Pending, pending_in

SECOND_US = 1_000_000


def recorded(limiter: Limiter) -> list[Pending]:
    """The record of "s"."""
    store: Any = limiter._store
    compiled: Any = limiter._bound(("p", None, None, None))

    def read(logs: Any) -> list[Pending]:
        return pending_in(logs.load(compiled.record, "s").recorded())

    return store._transact(read)


@pytest.mark.parametrize("scheme", ["memory", "lmdb"])
@pytest.mark.parametrize("channel", [None, "push"])
def test_a_dead_caller_keeps_no_later_entry(tmp_path: Path, scheme: str, channel: str | None) -> None:
    clock = ManualClock(1_700_000_000 * SECOND_US)
    url = "memory://" if scheme == "memory" else f"lmdb://{tmp_path}/store"
    policy = Policy("p", ["5000/day"], reservations=True, channels={"push": ["4000/day"]})
    with Limiter(url, [policy], clock=clock) as limiter:
        dead = limiter.reserve("p", "s", ttl=86_400, channel=channel).hit
        for _ in range(100):
            clock.advance_us(SECOND_US)
            assert limiter.commit("p", "s", limiter.reserve("p", "s", ttl=60, channel=channel).hit)
            assert limiter.cancel("p", "s", limiter.reserve("p", "s", ttl=60, channel=channel).hit)
        assert [entry.stamp_us for entry in recorded(limiter)] == [dead]
        for _ in range(100):
            limiter.reserve("p", "s", ttl=0.5, channel=channel)
        assert len(recorded(limiter)) == 101
        clock.advance_us(SECOND_US)
        assert limiter.decide("p", "s", channel=channel), "who records takes along what ended"
        assert [entry.stamp_us for entry in recorded(limiter)] == [dead]


def test_what_ended_on_a_channel_stays_until_that_is_written_or_it_ages() -> None:
    clock = ManualClock(1_700_000_000 * SECOND_US)
    policy = Policy("p", ["50/h"], reservations=True, channels={"push": ["2/h"], "mail": ["9/h"]})
    with Limiter("memory://", [policy], clock=clock) as limiter:
        for channel in ("push", "mail", None):
            limiter.reserve("p", "s", ttl=1, channel=channel)
        clock.advance_us(2 * SECOND_US)
        for channel, left in (("mail", 1), (None, 1), ("push", 0)):
            assert limiter.decide("p", "s", channel=channel)
            assert len(recorded(limiter)) == left, channel
        limiter.reserve("p", "s", ttl=1, channel="push")
        clock.advance_us(3601 * SECOND_US)
        assert limiter.decide("p", "s")
        assert recorded(limiter) == []


def test_more_than_the_record_can_count_is_not_reserved() -> None:
    clock = ManualClock(1_700_000_000 * SECOND_US)
    with Limiter("memory://", [Policy("p", ["9/day"], reservations=True)], clock=clock) as limiter:
        hit = limiter.reserve("p", "s", ttl=60).hit
        store: Any = limiter._store
        compiled: Any = limiter._bound(("p", None, None, None))
        store.load(compiled.record, "s").amend(hit, LARGEST_QUOTA - 59 * SECOND_US)
        with pytest.raises(InvalidValueError):
            limiter.reserve("p", "s", ttl=60)
        assert len(recorded(limiter)) == 1
        assert limiter.usage("p", "s")[0].used == 1
        assert limiter.reserve("p", "s", ttl=59)
