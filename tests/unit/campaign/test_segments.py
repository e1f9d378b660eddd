"""Users who change segment between two campaigns keep their log: only the limits change."""

from pathlib import Path

import pytest
from tests.kit.campaign import AT_US, HOUR_US, Far, Site, ledger_of, with_sender

from capline import Limiter
from capline.campaign import Report, Stop, report_of, run
from capline.model.errors import CampaignError, UnknownNameError
from capline.segment import IdSet, IdSet64, Snapshot, write_snapshot


def send(site: Site, limiter: Limiter, name: str) -> tuple[Report, set[int]]:
    """Run a campaign to its end; the report, and who got it."""
    far = Far()
    job, stop = with_sender(site.job(campaign=name), far), Stop()
    with ledger_of(job, site.path / name) as ledger:
        try:
            run(job, limiter, ledger, stop)
        finally:
            stop.close()
        return report_of(ledger), set(far.delivered())


def test_who_changes_segment_keeps_the_log(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with site.limiter() as limiter:
        _, first = send(site, limiter, "one")
        assert first == set(range(400))
        before = {one: limiter.explain("promo", one).hits for one in range(400)}
        # Half of each change places: 0-49 are new now, 100-149 active; 200-249 are in no segment any more.
        day_2 = {
            "active": IdSet([*range(50, 100), *range(100, 150)]),
            "churned": IdSet(range(250, 300)),
            "new": IdSet([*range(50), *range(150, 200)]),
        }
        write_snapshot(Snapshot(day_2, "day-2"), tmp_path / "segments", replace=True)
        report, second = send(site, limiter, "two")
        # active: 3/day, and one is used. new, churned and none: 1/day, which is used, under whatever name.
        assert second == {*range(50, 150)}
        assert {part.segment: part.sent for part in report.segments} == {"active": 100, "churned": 0, "new": 0, None: 0}
        for one, hits in before.items():
            now = limiter.explain("promo", one).hits
            assert now[: len(hits)] == hits
            assert len(now) == 2 if one in second else now == hits


def test_back_and_forth_is_not_a_way_around_a_limit(tmp_path: Path) -> None:
    """Active on odd days, new on even ones: the week's limit of each sees what was sent under the other."""
    site = Site(tmp_path)
    taken: list[int] = []
    for day in range(6):
        moved = IdSet([7])
        sets = {"active": moved, "new": IdSet([1])} if day % 2 else {"active": IdSet([1]), "new": moved}
        write_snapshot(Snapshot(sets, f"day-{day}"), tmp_path / "segments", replace=True)
        site.audience([7])
        with site.limiter(AT_US + day * 25 * HOUR_US) as limiter:
            _, got = send(site, limiter, f"run-{day}")
        taken.append(len(got))
    # As new, at most 3 a week: of the even days the fifth is refused, since the odd ones counted too.
    assert taken == [1, 1, 1, 1, 0, 1]


def test_a_campaign_takes_exclusive_segments_of_ids_like_its_own(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for ids in ([1, 2**40], ["ann"]):
        site.audience(ids)
        with pytest.raises(CampaignError, match=r"the ids of the segments are uint32, the audience's (uint64|text)"):
            site.job(audience=f"{{csv: users.csv, ids: {'text' if ids == ['ann'] else 'number'}}}")
    large = {"active": IdSet64([1, 2**40]), "new": IdSet64([2])}
    write_snapshot(Snapshot(large), tmp_path / "segments", replace=True)
    site.audience([1, 2, 2**40])
    for audience in ("{csv: users.csv}", "{segments: active | new}"):
        job = site.job(audience=audience)
        assert (job.audience.kind, job.audience.ids[0:3].tolist()) == ("uint64", [1, 2, 2**40])
        assert job.audience.codes.tolist() == [1, 2, 1]
    site.audience(range(4))
    sets = {"active": IdSet([1]), "new": IdSet([1])}
    write_snapshot(Snapshot(sets, overlapping=["new"]), tmp_path / "segments", replace=True)
    with pytest.raises(UnknownNameError, match=r"has limits for segment 'new', which is not in .*; there are: active"):
        site.job()
