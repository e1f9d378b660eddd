"""kill -9 of a real campaign process, at random points, against a run that nobody killed.

The points are chosen by what can be seen from outside: so many requests at the far side, so many changes of the
ledger's log or of the parts, each with a small random delay, so that they fall into all steps: deciding, writing
down, delivering, giving back. (`test_campaign_crash` goes through every step by number.) The clock is fixed (`as_of:`),
so both runs decide at one instant.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.kit import forked
from tests.kit.campaign import (
    MIXED_STATUS,
    Receiver,
    Site,
    answer,
    comparable,
    environment,
    folded,
    kept_in_doubt,
    mixed,
    receiver,
    stored,
)
from tests.kit.forked import Command
from tests.profiles import size

from capline.campaign import Ledger

parquet: Any = import_module("pyarrow.parquet")

KILLS = size(7, 7, 20)
SUBJECTS = 1600
BATCH = 80
Trigger = Callable[[], bool]


def answered(subject: int, tries: int) -> int:
    return MIXED_STATUS[mixed(subject, tries)]


def by_webhook(site: Site, far: Receiver) -> None:
    site.audience(range(SUBJECTS))
    site.write(sender=f"{{webhook: '{far.url}', concurrency: 4}}", channel="push", batch=str(BATCH))


def start(site: Site) -> Command:
    return forked.start("campaign", "run", site.file, env=environment())


def changes_of(path: Path) -> tuple[int, int]:
    """What changes with a file: its size and its time of change."""
    with contextlib.suppress(OSError):
        stat = path.stat()
        return stat.st_size, stat.st_mtime_ns
    return 0, 0


def kill_when(process: Command, trigger: Trigger, delay_s: float) -> bool:
    """Watch until the trigger, kill; whether there was still a process to kill."""
    until = time.monotonic() + 60
    while process.poll() is None and not trigger():
        assert time.monotonic() < until, "the campaign does not move"
        os.sched_yield()
    pause_until = time.monotonic() + delay_s
    while time.monotonic() < pause_until:
        os.sched_yield()
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return alive


def ledger_trigger(site: Site, count: int) -> Trigger:
    """After so many changes of the ledger's write-ahead log: a step was just written down, and the next one begins."""
    path = site.path / "campaign.run" / "ledger.sqlite-wal"
    seen = [changes_of(path)]
    left = [count]

    def happened() -> bool:
        now = changes_of(path)
        if now != seen[0]:
            seen[0] = now
            left[0] -= 1
        return left[0] <= 0

    return happened


def requests_trigger(far: Receiver, count: int) -> Trigger:
    """After so many more requests: messages are under way."""
    target = far.requests + count
    return lambda: far.requests >= target


@pytest.mark.deep
def test_killed_at_many_points_it_ends_as_if_it_was_not(tmp_path: Path) -> None:
    chance = random.Random(20_261_121)
    (tmp_path / "unkilled").mkdir()
    unkilled = Site(tmp_path / "unkilled")
    unkilled.seed()
    with receiver(answered) as far:
        by_webhook(unkilled, far)
        expected = answer("campaign", "run", unkilled.file)
        expected_delivered = far.delivered()
    assert expected["total"]["failed"] > 100
    assert expected["total"]["refused"] > 10

    (tmp_path / "killed").mkdir()
    killed = Site(tmp_path / "killed")
    killed.seed()
    kills = 0
    with receiver(answered) as far:
        by_webhook(killed, far)
        while kills < KILLS:
            process = start(killed)
            trigger = (
                ledger_trigger(killed, chance.randint(1, 12))
                if chance.random() < 0.6
                else requests_trigger(far, chance.randint(1, 2 * BATCH))
            )
            alive = kill_when(process, trigger, chance.choice([0.0, 0.0, chance.uniform(0, 0.004)]))
            assert alive, "the campaign was over before the last kill: give it more subjects"
            kills += 1
        progress = answer("campaign", "status", killed.file)
        assert progress["state"] == "stopped"
        report = answer("campaign", "run", killed.file)

    assert folded(report) == folded(expected)
    assert far.delivered() == expected_delivered
    assert len(far.taken) == report["total"]["sent"]
    assert {len(keys) for keys in far.keys.values()} == {1}
    doubted = kept_in_doubt(stored(killed, SUBJECTS), stored(unkilled, SUBJECTS))
    assert len(doubted) == report["total"]["not_known"] <= KILLS * 4 * 8
    # And not only the same, but right: whoever got it has a hit, whoever surely did not has it back.
    not_sent = set(far.keys) - set(far.delivered())
    with killed.limiter() as limiter:
        units = {subject: limiter.explain("promo", subject, channel="push").hits[-1].units for subject in far.keys}
    assert {subject for subject, left in units.items() if left == 0} == not_sent - doubted
    assert len(not_sent - doubted) == report["total"]["failed"]


@pytest.mark.deep
def test_killed_while_it_writes_parts_the_parts_are_the_same(tmp_path: Path) -> None:
    chance = random.Random(7)
    parts: dict[str, list[tuple[str, list[int]]]] = {}
    reports: dict[str, Any] = {}
    for name, kills in (("unkilled", 0), ("killed", 5)):
        (tmp_path / name).mkdir()
        site = Site(tmp_path / name)
        site.seed()
        site.audience(range(SUBJECTS))
        site.write(batch="20")
        for _ in range(kills):
            process = start(site)
            assert kill_when(process, ledger_trigger(site, chance.randint(2, 25)), chance.uniform(0, 0.002))
        reports[name] = comparable(answer("campaign", "run", site.file))
        found = sorted((site.path / "out").iterdir())
        assert not [path.name for path in found if path.name.endswith(".tmp")]
        parts[name] = [
            (path.name, parquet.read_table(path)["id"].to_pylist()) for path in found if path.suffix == ".parquet"
        ]
    assert reports["killed"] == reports["unkilled"]
    assert parts["killed"] == parts["unkilled"]


def test_killed_between_the_store_and_the_ledger_nobody_is_consumed_twice(tmp_path: Path) -> None:
    """The one gap that nothing but the receipt closes: the store has decided, and the ledger does not know yet."""
    size, batch = 60_000, 20_000
    outcomes: dict[str, Any] = {}
    gaps = 0
    for name, kills in (("unkilled", 0), ("killed", 3)):
        (tmp_path / name).mkdir()
        site = Site(tmp_path / name)
        site.audience(range(size))
        site.write(batch=str(batch), segments=None)
        with site.limiter() as limiter:
            for number in range(kills):
                # The last subject of the batch gets its hit in the same transaction as all of them.
                last = (number + 1) * batch - 1
                process = start(site)
                assert kill_when(process, lambda last=last, limiter=limiter: not limiter.peek("promo", last), 0.0)
                gaps += _batches_in(site) == number
        report = answer("campaign", "run", site.file)
        with site.limiter() as limiter:
            left = limiter.peek_many("promo", list(range(size)))
            hits = [len(limiter.explain("promo", subject).hits) for subject in range(0, size, 97)]
        outcomes[name] = comparable(report), left.retry_after_us.tolist(), hits
    assert outcomes["killed"] == outcomes["unkilled"]
    assert outcomes["killed"][0]["total"]["sent"] == size
    assert set(outcomes["killed"][2]) == {1}
    assert gaps, "none of three kills fell into the gap"


def _batches_in(site: Site) -> int:
    with Ledger.read(site.path / "campaign.run") as ledger:
        return sum(1 for _ in ledger.batches())
