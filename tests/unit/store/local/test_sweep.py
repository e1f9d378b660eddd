"""What the sweep on the way may remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capline import Limiter, ManualClock, Policy

if TYPE_CHECKING:
    from pathlib import Path

HOUR_US = 3_600_000_000


@pytest.mark.parametrize(("hours", "is_kept"), [(1.5, True), (2.5, False)])
def test_a_clock_that_jumps_ahead_for_less_than_a_window_costs_no_history(
    tmp_path: Path, hours: float, is_kept: bool
) -> None:
    clock = ManualClock(1_700_000_000_000_000)
    with Limiter(f"lmdb://{tmp_path}/store", [Policy("p", ["1/h"])], clock=clock) as limiter:
        assert limiter.decide("p", "a")
        clock.advance_us(int(hours * HOUR_US))
        # Each new subject is a step towards the next sweep, which begins with the first key.
        for number in range(200):
            limiter.decide("p", f"b{number}")
        clock.advance_us(-int(hours * HOUR_US))
        assert bool(limiter.explain("p", "a").hits) is is_kept
        assert limiter.decide("p", "a").allowed is not is_kept
