"""Wrong limiters, each of which the checker has to catch, by the fault that it has; and right ones, which pass."""

import secrets
from pathlib import Path

import pytest
from proof.checker import check, read
from proof.mutants import in_memory, on_redis
from proof.mutants.history import POLICIES, Clock, play
from proof.mutants.of_capline import Capline
from proof.mutants.right import Right
from tests.kit.servers import shared
from tests.profiles import first

SEEDS = range(4)
MOST_RUNS = 20
"""Of real threads, whose turns are chance: each run shows the fault nearly always."""


@pytest.mark.parametrize("mutant", in_memory.MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_limiter_is_caught_by_the_fault_that_it_has(mutant: type[Right]) -> None:
    found: set[str] = set()
    for seed in SEEDS:
        report = check(read(play(lambda clock: mutant(clock.now_us, POLICIES), seed=seed)), 0)
        found |= report.kinds()
        if in_memory.MUTANTS[mutant] <= found:
            return
    pytest.fail(f"it was caught only by {found}")


@pytest.mark.parametrize("mutant", on_redis.MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_limiter_on_a_server_is_caught_with_callers_at_the_same_time(mutant: type[on_redis.Caller]) -> None:
    found: set[str] = set()
    for _ in range(MOST_RUNS):
        found |= check(read(on_redis.run(mutant, shared("redis").url, secrets.token_hex(8)))).kinds()
        if on_redis.MUTANTS[mutant] <= found:
            return
    pytest.fail(f"{MOST_RUNS} runs showed only {found}")


@pytest.mark.parametrize("seed", first(4, range(12)))
def test_a_right_limiter_passes(seed: int) -> None:
    report = check(read(play(lambda clock: Right(clock.now_us, POLICIES), seed=seed)), 0)
    assert report, report.text()
    assert report.hits > 100
    assert report.refused > 100


@pytest.mark.parametrize("store", ["memory", "lmdb", "redis", "valkey"])
def test_capline_passes(store: str, tmp_path: Path) -> None:
    url = {"memory": "memory://", "lmdb": f"lmdb://{tmp_path}"}.get(store) or f"{shared(store).url}?deadline=10s"
    made: list[Capline] = []

    def make(clock: Clock) -> Capline:
        made.append(Capline(url, clock, POLICIES, namespace=f"t{secrets.token_hex(8)}"))
        return made[-1]

    for seed in SEEDS:
        report = check(read(play(make, seed=seed)), 0)
        assert report, report.text()
    for one in made:
        one.close()
