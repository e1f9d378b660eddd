"""A large batch on this machine gives way: other callers get their turn between its parts, however long a row takes."""

# pyright: reportPrivateUsage=false

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capline import Attempt, Limiter, ManualClock, Policy
from capline.store.local import batches

ROWS = 4000
JOBS: dict[str, Callable[[Limiter], object]] = {
    "many subjects": lambda limiter: limiter.decide_many("p", range(ROWS)),
    "one subject": lambda limiter: limiter.decide_many("p", ["s"] * ROWS),
    "a receipt": lambda limiter: limiter.decide_many("p", range(ROWS), receipt="r"),
    "a peek": lambda limiter: limiter.peek_many("p", range(ROWS)),
    "attempts": lambda limiter: limiter.decide_batch([Attempt("p", row) for row in range(ROWS)]),
    "refunds": lambda limiter: limiter.refund_many("p", range(ROWS), [1] * ROWS),
}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_another_caller_is_answered_between_two_parts(
    kind: str, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (kind, job) == ("lmdb", "a receipt"):
        pytest.skip("its answers are kept in the transaction of its hits: all of them or none")
    clock = ManualClock(1_000_000)
    answered = 0
    with Limiter(
        f"lmdb://{tmp_path}" if kind == "lmdb" else "memory://", [Policy("p", [f"{ROWS}/day"])], clock=clock
    ) as limiter:
        store: Any = limiter._store
        lock = store._lock if kind == "memory" else store._environment._lock

        def single(seconds: float) -> None:
            nonlocal answered
            assert seconds > 0, "a free lock goes to who asks first, so the batch has to wait"
            assert lock.try_acquire(False), "the batch keeps all others waiting"
            lock.release()
            assert limiter.decide("p", "other").allowed
            answered += 1

        monkeypatch.setattr(batches, "sleep", single)
        monkeypatch.setattr(batches, "thread_time", iter(n / 50 for n in range(1000)).__next__)  # each part 20 ms
        JOBS[job](limiter)
    assert answered == -(-ROWS // batches._FEWEST_ROWS) - 1


def test_a_batch_under_a_receipt_does_not_sleep_in_its_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On disk its answers are kept in the transaction of its hits: all others would wait for the pauses as well."""
    slept: list[float] = []
    monkeypatch.setattr(batches, "sleep", slept.append)
    with Limiter(f"lmdb://{tmp_path}", [Policy("p", [f"{ROWS}/day"])]) as limiter:
        JOBS["a receipt"](limiter)
    assert slept == []


@pytest.mark.parametrize(("row_us", "largest"), [(1, 8192), (2.5, 4000), (24, 416), (200, 256)])
def test_a_part_takes_some_10_ms(row_us: float, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spent_s = 0.0
    monkeypatch.setattr(batches, "thread_time", lambda: spent_s)
    monkeypatch.setattr(batches, "sleep", float)
    parts: list[slice] = []
    for part in batches.parts_of(100_000):
        parts.append(part)
        spent_s += (part.stop - part.start) * row_us / 1e6
    sizes = [part.stop - part.start for part in parts]
    assert sum(sizes) == 100_000
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert max(sizes) == pytest.approx(largest, rel=0.01)


def test_a_small_batch_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "sleep", pytest.fail)
    assert [*batches.parts_of(0)] == []
    assert [*batches.parts_of(3)] == [slice(0, 3)]
