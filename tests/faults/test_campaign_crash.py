"""A campaign that dies at each of its steps in turn, before the step and after it, and is taken up again.

The steps are real (limiter, ledger); only the far side is played, as one that keeps keys. What is compared is all there
is: who got a message, what the ledger reports, and every hit in the store with its stamp.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit.campaign import AT_US, HOUR_US, Far, Site, ledger_of, mixed, with_sender
from tests.profiles import first, size, sized

from capline import Limiter
from capline.campaign import Job, Report, Stop, report_of, run
from capline.campaign.report import SegmentReport
from capline.campaign.senders.protocol import PERMANENT, Messages, Outcomes
from capline.campaign.store.sqlite_store import SqliteCampaignStore

SUBJECTS = list(range(60))
STEPS = ("decide_many", "charge", "refund_many", "claim", "record", "freeze_store", "send")


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
    opts_out: int | None = None,
    settings: dict[str, str] | None = None,
) -> Any:
    """Run the campaign under this fate until it is finished; all that can be told of it, and the number of steps."""
    path.mkdir(exist_ok=True)
    site = Site(path)
    site.audience(SUBJECTS)
    more: dict[str, str | None] = {"segments": None, **(settings or {})}
    opted_out = path / "optouts.csv"
    opted_out.write_text("id\n7\n")
    if zoned:
        # Every third subject is where it is night.
        rows = "".join(f"{subject},{('', 'Asia/Tokyo', 'UTC')[subject % 3]}\n" for subject in SUBJECTS)
        (path / "users.csv").write_text(f"id,zone\n{rows}")
        (path / "policies.yaml").write_text(ZONED)
        more["audience"] = "{csv: users.csv, zone_column: zone}"

    def said(subject: int, tries: int) -> int:
        if subject == opts_out:
            opted_out.write_text(f"id\n7\n{subject + 14}\n")
        return mixed(subject, tries)

    far = Far(said, most=10)
    job = with_sender(site.job(batch="20", **more), far)
    fate = Fate(kills)
    with job.open_limiter("memory://") as limiter:
        past = Limiter.decide_many
        for subject in (5, 15, 25, 35):
            past(limiter, "promo", [subject], segment=None)
        change(job, limiter)
        for name in ("decide_many", "charge", "refund_many"):
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
            for name in ("claim", "record", "freeze_store"):
                setattr(ledger.store, name, fate.over(getattr(ledger.store, name)))
            run(job, limiter, ledger, stop, pause=lambda _s: None)
            return report_of(ledger)
    finally:
        stop.close()


def _comparable(report: Report) -> Any:
    return report.total, report.segments, report.failures, report.next_eligible


def folded(part: SegmentReport) -> SegmentReport:
    """With what is not known as failed: whatever was under way at a kill, and was never delivered."""
    return msgspec.structs.replace(part, failed=part.failed + part.not_known, not_known=0)


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return outcome(tmp_path_factory.mktemp("unkilled"), iter(()))


def agree(killed: Any, unkilled: Any) -> None:
    (total, segments, _, eligible), delivered, keys, hits, _ = killed
    assert folded(total) == unkilled[0][0]
    assert [folded(part) for part in segments] == unkilled[0][1]
    assert eligible == unkilled[0][3]
    assert delivered == unkilled[1]
    assert {len(of_one) for of_one in keys.values()} == {1}
    kept = 0
    for subject, (mine, theirs) in enumerate(zip(hits, unkilled[3], strict=True)):
        # Ids of charges name the run.
        if [(hit.stamp_us, hit.units) for hit in mine] != [(hit.stamp_us, hit.units) for hit in theirs]:
            # It was given back there, and is kept here.
            kept += 1
            assert subject not in delivered
            assert [(hit.stamp_us, hit.units) for hit in mine] == [(hit.stamp_us, hit.units or 1) for hit in theirs]
    assert kept == total.not_known


def test_the_unkilled_campaign_meets_everything(unkilled: Any) -> None:
    (total, _, failures, eligible), delivered, _, hits, steps = unkilled
    assert (total.refused, total.failed, total.sent) == (4, 10, 46)
    assert set(failures) == {"gone", "busy"}
    assert len(delivered) == 46
    assert eligible.earliest_us == AT_US + 24 * HOUR_US
    assert sum(hit.units for of_one in hits for hit in of_one) == 46 + 4
    assert steps > 100


@sized
def test_killed_at_any_one_step_it_ends_the_same(tmp_path: Path, unkilled: Any) -> None:
    kept: list[int] = []
    for step in range(1, unkilled[4] + 1, size(10, 3, 1)):
        killed = outcome(tmp_path / str(step), iter([step]))
        agree(killed, unkilled)
        kept.append(killed[0][0].not_known)
    assert 0 < max(kept) <= 3, "no more than fail of one hand-over"
    assert kept.count(0) > len(kept) / 3


def test_what_was_taken_before_a_kill_is_not_given_back_whatever_is_said_later(tmp_path: Path) -> None:
    """A far side that takes each message, and says of the second hand-over of each that there is no such user."""

    class Forgetful(Far):
        def send(self, messages: Messages) -> Outcomes:
            outcomes = Outcomes.delivered(len(messages))
            for row, subject in enumerate(messages.ids.tolist()):
                self.tries[subject] += 1
                if self.tries[subject] > 1:
                    outcomes.fail(row, PERMANENT, "gone")
            return outcomes

    site = Site(tmp_path)
    site.audience(SUBJECTS)
    far = Forgetful(most=10)
    job = with_sender(site.job(batch="20", segments=None), far)
    setattr(far, "send", Fate(iter([2])).over(far.send))  # noqa: B010 - killed when all is sent, and nothing written
    with job.open_limiter("memory://") as limiter:
        with pytest.raises(Killed):
            _once(job, limiter, tmp_path / "run", Fate(iter(())))
        report = _once(job, limiter, tmp_path / "run", Fate(iter(())))
        left = limiter.peek_many("promo", SUBJECTS)
    assert (report.total.sent, report.total.failed, report.total.not_known) == (50, 0, 10)
    assert report.doubts == {"perhaps taken before, then gone": 10}
    assert not left.allowed.any(), "who got it has a hit, whatever is known"


@pytest.fixture(scope="module")
def unkilled_in_zones(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return outcome(tmp_path_factory.mktemp("zones"), iter(()), zoned=True)


def test_where_it_is_night_nobody_is_sent_to(unkilled_in_zones: Any) -> None:
    (total, *_), delivered, _, hits, steps = unkilled_in_zones
    assert total.refused_by == {"2/calendar-day": 1, "not between 00:30 and 08:00": 19}
    assert not [subject for subject in delivered if subject % 3 == 1]
    assert sum(len(of_one) for of_one in hits) == 60 + 4, "of each a hit, or a refusal that counts; 4 had one before"
    assert steps > 60


@sized
@pytest.mark.parametrize("every", [0, *(pytest.param(number, marks=pytest.mark.deep) for number in range(1, 4))])
def test_in_zones_and_with_refusals_that_count_a_kill_changes_nothing(
    tmp_path: Path, unkilled_in_zones: Any, every: int
) -> None:
    for step in range(1 + every, unkilled_in_zones[4] + 1, size(12, 8, 4)):
        agree(outcome(tmp_path / str(step), iter([step]), zoned=True), unkilled_in_zones)


@sized
@pytest.mark.parametrize(
    ("settings", "total"),
    [
        ({"holdout": "20%", "exclude": "{csv: optouts.csv}"}, {"excluded": 2, "held_out": 17, "would_be_refused": 1}),
        ({"transactional": "true", "exclude": "{csv: optouts.csv}"}, {"excluded": 2, "refused": 0}),
    ],
)
def test_whoever_is_not_sent_to_is_so_after_a_kill(
    tmp_path: Path, settings: dict[str, str], total: dict[str, int]
) -> None:
    """One opts out meanwhile, before it is sent to."""
    unkilled = outcome(tmp_path / "unkilled", iter(()), opts_out=2, settings=settings)
    assert {name: getattr(unkilled[0][0], name) for name in total} == total
    hits = [sum(hit.units for hit in of_one) for of_one in unkilled[3]]
    assert sum(hits) == unkilled[0][0].sent + 4
    for step in range(1, unkilled[4] + 1, size(40, 10, 3)):
        killed = outcome(tmp_path / str(step), iter([step]), opts_out=2, settings=settings)
        agree(killed, unkilled)


@pytest.mark.parametrize("seed", first(3, range(20)))
def test_killed_again_and_again_it_ends_the_same(tmp_path: Path, unkilled: Any, seed: int) -> None:
    chance = random.Random(seed)
    kills = iter([chance.randint(1, 12) for _ in range(40)])
    agree(outcome(tmp_path / "killed", kills), unkilled)


def test_every_step_of_the_run_is_watched() -> None:
    assert all(hasattr(Limiter, name) or hasattr(SqliteCampaignStore, name) or hasattr(Far, name) for name in STEPS)
