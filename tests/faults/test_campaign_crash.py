"""A campaign that dies at each of its steps in turn, before the step and after it, and is taken up again.

The steps are real (limiter, ledger); only the far side is played, as one that keeps keys. What is compared is all there
is: who got a message, what the ledger reports, and every hit in the store with its stamp.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.campaign_kit import AT_US, HOUR_US, Far, Site, ledger_of, mixed, with_sender

from capline import Limiter
from capline.campaign import Job, Ledger, Report, Stop, report_of, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SUBJECTS = list(range(60))
STEPS = ("decide_many", "refund_many", "add", "save", "finish", "send")


class Killed(BaseException):
    """What kill -9 is to a process: nothing in it gets to run any more."""


class Fate:
    """Counts steps, and kills at the chosen ones."""

    def __init__(self, kills: Iterator[int]) -> None:
        self._kills = kills
        self._next: int = next(kills, -1)
        self.count = 0

    def pass_by(self) -> None:
        self.count += 1
        if self.count == self._next:
            self.count, self._next = 0, next(self._kills, -1)
            raise Killed

    def over(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def taken(*args: Any, **named: Any) -> Any:
            self.pass_by()
            answer = step(*args, **named)
            self.pass_by()
            return answer

        return taken


def outcome(
    path: Path,
    kills: Iterator[int],
    change: Callable[[Job, Limiter], None] = lambda _job, _limiter: None,
    *,
    zoned: bool = False,
) -> Any:
    """Run the campaign under this fate until it is finished; all that can be told of it, and the number of steps."""
    path.mkdir(exist_ok=True)
    site = Site(path)
    site.audience(SUBJECTS)
    more: dict[str, str | None] = {"segments": None}
    if zoned:
        # Every third subject is where it is night.
        rows = "".join(f"{subject},{('', 'Asia/Tokyo', 'UTC')[subject % 3]}\n" for subject in SUBJECTS)
        (path / "users.csv").write_text(f"id,zone\n{rows}")
        (path / "policies.yaml").write_text(ZONED)
        more["audience"] = "{csv: users.csv, zone_column: zone}"
    far = Far(mixed, most=10)
    job = with_sender(site.job(batch="20", **more), far)
    fate = Fate(kills)
    with job.open_limiter("memory://") as limiter:
        past = Limiter.decide_many
        for subject in (5, 15, 25, 35):
            past(limiter, "promo", [subject], segment=None)
        change(job, limiter)
        for name in ("decide_many", "refund_many"):
            setattr(limiter, name, fate.over(getattr(limiter, name)))
        setattr(far, "send", fate.over(far.send))  # noqa: B010 - pyright would not let a method be set
        while True:
            try:
                report = _once(job, limiter, path / "run", fate)
            except Killed:
                continue
            hits = [limiter.explain("promo", subject).hits for subject in SUBJECTS]
            return _comparable(report), far.delivered(), far.keys, hits, fate.count


ZONED = """
namespace: marketing
policies: {promo: {limits: [2/calendar-day, not between 00:30 and 08:00], zone: Europe/Berlin, count_denied: true}}
"""


def _once(job: Job, limiter: Limiter, directory: Path, fate: Fate) -> Report:
    stop = Stop()
    try:
        with ledger_of(job, directory) as ledger:
            for name in ("add", "save", "finish"):
                setattr(ledger, name, fate.over(getattr(ledger, name)))
            run(job, limiter, ledger, stop, pause=lambda _s: None)
            return report_of(ledger)
    finally:
        stop.close()


def _comparable(report: Report) -> Any:
    return report.total, report.segments, report.failures, report.next_eligible


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return outcome(tmp_path_factory.mktemp("unkilled"), iter(()))


def agree(killed: Any, unkilled: Any) -> None:
    report, delivered, keys, hits, _ = killed
    assert report == unkilled[0]
    assert delivered == unkilled[1]
    assert {len(of_one) for of_one in keys.values()} == {1}
    assert hits == unkilled[3]


def test_the_unkilled_campaign_meets_everything(unkilled: Any) -> None:
    (total, _, failures, eligible), delivered, _, hits, steps = unkilled
    assert (total.refused, total.failed, total.sent) == (4, 10, 46)
    assert set(failures) == {"gone", "busy"}
    assert len(delivered) == 46
    assert eligible.earliest_us == AT_US + 24 * HOUR_US
    assert sum(hit.units for of_one in hits for hit in of_one) == 46 + 4
    assert steps > 100


def test_killed_at_any_one_step_it_ends_the_same(tmp_path: Path, unkilled: Any) -> None:
    for step in range(1, unkilled[4] + 1):
        agree(outcome(tmp_path / str(step), iter([step])), unkilled)


@pytest.fixture(scope="module")
def unkilled_in_zones(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return outcome(tmp_path_factory.mktemp("zones"), iter(()), zoned=True)


def test_where_it_is_night_nobody_is_sent_to(unkilled_in_zones: Any) -> None:
    (total, *_), delivered, _, hits, steps = unkilled_in_zones
    assert total.refused_by == {"2/calendar-day": 1, "not between 00:30 and 08:00": 19}
    assert not [subject for subject in delivered if subject % 3 == 1]
    assert sum(len(of_one) for of_one in hits) == 60 + 4, "of each a hit, or a refusal that counts; 4 had one before"
    assert steps > 60


@pytest.mark.parametrize("every", range(4))
def test_in_zones_and_with_refusals_that_count_a_kill_changes_nothing(
    tmp_path: Path, unkilled_in_zones: Any, every: int
) -> None:
    for step in range(1 + every, unkilled_in_zones[4] + 1, 4):
        agree(outcome(tmp_path / str(step), iter([step]), zoned=True), unkilled_in_zones)


@pytest.mark.parametrize("seed", range(20))
def test_killed_again_and_again_it_ends_the_same(tmp_path: Path, unkilled: Any, seed: int) -> None:
    chance = random.Random(seed)
    kills = iter([chance.randint(1, 12) for _ in range(40)])
    agree(outcome(tmp_path / "killed", kills), unkilled)


def test_every_step_of_the_run_is_watched() -> None:
    assert all(hasattr(Limiter, name) or hasattr(Ledger, name) or hasattr(Far, name) for name in STEPS)
