"""What the sweep on the way may remove."""

import gc
from pathlib import Path
from typing import Any

import pytest

from capline import Attempt, Limiter, ManualClock, Policy

HOUR_US = 3_600_000_000


@pytest.mark.parametrize(("hours", "is_kept"), [(1.4, True), (1.6, False)])
def test_a_clock_that_jumps_ahead_for_less_than_half_a_window_costs_no_history(
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


@pytest.mark.parametrize(
    ("scheme", "algorithm"), [("memory", "sliding_log"), ("lmdb", "sliding_log"), ("lmdb", "gcra")]
)
@pytest.mark.parametrize("name", ["{:08d}", "{:x}"])
def test_no_more_than_twice_the_live_logs_are_kept(tmp_path: Path, scheme: str, algorithm: str, name: str) -> None:
    # Keys that grow lie at the end of a file's table; others anywhere in it.
    live, come = 300, 6_000
    clock = ManualClock(1_700_000_000_000_000)
    url = "memory://" if scheme == "memory" else f"lmdb://{tmp_path}/store?forms=next"
    with Limiter(url, [Policy("p", [f"1/{live}ms"], algorithm=algorithm)], clock=clock) as limiter:
        for number in range(come):
            limiter.decide("p", name.format(number if "08" in name else number * 2_654_435_761 % 2**32))
            clock.advance_us(1000)
        clock.advance_us(HOUR_US)
        assert live <= limiter.sweep() <= 2 * live + 128


@pytest.mark.parametrize("scheme", ["memory", "lmdb"])
def test_limits_that_come_with_the_call_leave_nothing_behind_once_their_windows_are_over(
    tmp_path: Path, scheme: str
) -> None:
    clock = ManualClock(1_700_000_000_000_000)
    url = "memory://" if scheme == "memory" else f"lmdb://{tmp_path}/store"
    with Limiter(url, [], clock=clock) as limiter:
        for number in range(1, 2_001):
            limiter.decide("p", "s", limits=[f"{number}/100ms"])
            clock.advance_us(1000)
        clock.advance_us(HOUR_US)
        # A file's names are read again when they have grown by an eighth; logs of newer names wait for that.
        kept = 2 * 100 + 128 + (2_000 // 8 if scheme == "lmdb" else 0)
        assert 100 <= limiter.sweep() <= kept
        store: Any = limiter._store  # pyright: ignore[reportPrivateUsage]
        assert scheme == "memory" or len(store._sweeper._names) <= kept


def test_a_log_that_held_nothing_for_a_while_is_swept_again(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000_000)
    policies = [Policy(f"p{i}", ["1/100ms"]) for i in range(40)]
    with Limiter(f"lmdb://{tmp_path}/store", policies, clock=clock) as limiter:
        for policy in policies:
            limiter.decide(policy.name, "s")
        clock.advance_us(HOUR_US)
        assert (limiter.sweep(), limiter.sweep()) == (40, 0)
        for number in range(3_000):
            limiter.decide("p5", number)
            clock.advance_us(1000)
        clock.advance_us(HOUR_US)
        assert limiter.sweep() <= 1_000


@pytest.mark.parametrize("scheme", ["memory", "lmdb"])
def test_whole_logs_cost_nothing_for_policies_that_nobody_used(tmp_path: Path, scheme: str) -> None:
    url = "memory://" if scheme == "memory" else f"lmdb://{tmp_path}/store"
    policies = [Policy(f"p{i}", ["1/h"], algorithm="gcra" if i % 2 else "sliding_log") for i in range(40)]
    with Limiter(url, policies) as other, Limiter(url, policies) as fresh:
        limiter = other if scheme == "memory" else fresh
        other.decide("p6", "a")
        assert [record.log for record in limiter.export()] == ["p6"]
        other.decide("p7", "a")
        assert limiter.erase("a") == 2
        assert limiter.sweep() == 0
        assert {names[0] for names in limiter._rules_by_names} <= {"p6", "p7"}  # pyright: ignore[reportPrivateUsage]
        other.decide("p8", "a", id="one")
        assert limiter.erase("a") == 1


@pytest.mark.parametrize("scheme", ["memory", "lmdb"])
def test_a_rule_is_few_objects(tmp_path: Path, scheme: str) -> None:
    """A full collection of garbage, for which every thread waits, looks at each object of each rule."""
    url = "memory://" if scheme == "memory" else f"lmdb://{tmp_path}/store"
    with Limiter(url, [Policy(f"p{i}", ["9/h"]) for i in range(100)]) as limiter:
        gc.collect()
        before = len(gc.get_objects())
        limiter.decide_batch([Attempt(f"p{i}", "a") for i in range(100)])
        gc.collect()
        assert len(gc.get_objects()) - before < 25 * 100
