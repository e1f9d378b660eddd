"""Published segments where a snapshot's directory will do too: a limiter, the commands that ask, a campaign."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.kit.campaign import Site as CampaignSite
from tests.kit.cli import CommandLine
from tests.kit.s3 import S3
from tests.kit.segments import Site, directory_site, make, s3_site
from tests.kit.servers import Server, single

from capline import AsyncLimiter, Limiter, Policy
from capline.campaign import CampaignStopped, Ledger, Stop, begun_version, load_campaign, open_run, prepare, run
from capline.model.errors import CampaignError, SegmentError
from capline.segment import IdSet, Snapshot, fetch_snapshot, write_snapshot

PROMO = Policy("promo", ["3/day"], by_segment={"new": ["1/day"], "active": ["5/day"]})
POLICIES = "policies: {promo: {limits: [3/day], by_segment: {new: [1/day], active: [5/day]}}}\n"


def reach(server: S3, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A publication on this server, which the environment has the credentials of."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_site(server)


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.deep)])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    if request.param == "s3":
        return reach(request.getfixturevalue("s3"), monkeypatch)
    return Site(f"file://{directory_site(tmp_path).url}")


def publish(site: Site, path: Path, version: str | None = None) -> None:
    with site.publisher() as publisher:
        publisher.publish(path, version=version)


def test_a_limiter_looks_up_what_is_published_on_s3(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The anchor: the other tests of this page ask a directory in the fast part."""
    monkeypatch.chdir(tmp_path)
    site = reach(s3, monkeypatch)
    publish(site, make(tmp_path, "v1", new=[1], active=[2]))
    with Limiter("memory://", policies=[PROMO], segments=site.url) as limiter:
        assert [str(limiter.decide("promo", subject).limit) for subject in (1, 2, 3)] == ["1/day", "5/day", "3/day"]


def test_an_async_limiter_does_too(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    publish(site, make(tmp_path, "v1", new=[1], active=[2]))

    async def ask() -> list[str]:
        async with AsyncLimiter("memory://", policies=[PROMO], segments=site.url) as limiter:
            return [str((await limiter.decide("promo", subject)).limit) for subject in (1, 2, 3)]

    assert asyncio.run(ask()) == ["1/day", "5/day", "3/day"]


def test_the_commands_ask_an_address(capline: CommandLine, site: Site, tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(POLICIES, encoding="utf-8")
    publish(site, make(tmp_path, "v1", new=[1, 5], active=[2]), "monday")
    said = capline.json("segments", "contains", site.url, "1", "2", "3")
    assert said["version"] == "monday"
    assert [each["segment"] for each in said["ids"]] == ["new", "active", None]
    page = capline.json("segments", "members", site.url, "new", "--limit", "1", "--cache", "cache")
    assert (page["version"], page["ids"], page["next"]) == ("monday", [1], 1)
    assert capline.json("segments", "counts", site.url)["cardinalities"] == {"new": 2, "active": 1}
    assert capline("segments", "counts", site.url, "--expression", "new | active").stdout == "3\n"
    answer = capline.json("decide", "promo", "2", "--segments", site.url)
    assert (answer["allowed"], answer["limit"]) == (True, "5/day")
    assert capline.json("explain", "promo", "2", "--segments", site.url)["segment"] == "active"
    both = capline.json("peek", "promo", "2", "--and", "promo:2=1", "--segments", site.url)
    assert (both["allowed"], both["limit"]) == (False, "1/day"), "the further subject is looked up too"
    none = capline("segments", "counts", f"{site.url}-nowhere")
    assert (none.returncode, none.stderr.count("\n")) == (2, 1)
    assert "nothing is published there" in none.stderr


class StopAfter(Stop):
    """Asks to stop once so many batches are done."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.left = batches

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise CampaignStopped(15)


def test_a_campaign_goes_on_with_the_version_it_began_with(site: Site, tmp_path: Path) -> None:
    home = tmp_path / "campaign"
    home.mkdir()
    campaign = CampaignSite(home)
    publish(site, home / "segments", "monday")
    file = load_campaign(campaign.write(segments=site.url))
    directory = home / "campaign.run"
    assert Ledger.begun_inputs(directory) == ()
    job = prepare(file)
    with open_run(job, directory) as (limiter, ledger), closing(StopAfter(6)) as stop:
        with pytest.raises(CampaignStopped):
            run(job, limiter, ledger, stop)
        assert 0 < ledger.state().done < len(job.audience)
    assert begun_version(Ledger.begun_inputs(directory)) == "monday"

    moved = {"active": IdSet.from_range(100, 199), "new": IdSet.from_range(0, 99), "churned": IdSet([7000])}
    write_snapshot(Snapshot(moved, "day-2"), home / "later")
    publish(site, home / "later")
    with (
        pytest.raises(CampaignError, match=r"another snapshot \(was monday, is day-2\)"),
        open_run(prepare(file), directory),
    ):
        pass
    job = prepare(file, begun_version(Ledger.begun_inputs(directory)))
    with open_run(job, directory) as (limiter, ledger), closing(Stop()) as stop:
        run(job, limiter, ledger, stop)
        assert ledger.is_finished
        assert dict(ledger.facts.segments) == {None: 100, "active": 100, "churned": 100, "new": 100}


def test_the_command_resumes_with_that_version(capline: CommandLine, site: Site, tmp_path: Path) -> None:
    campaign = CampaignSite(tmp_path)
    publish(site, tmp_path / "segments", "monday")
    campaign.write(segments=site.url)
    first = capline.json("campaign", "run", "campaign.yaml")
    moved = {"active": IdSet([1]), "new": IdSet([2]), "churned": IdSet([3])}
    write_snapshot(Snapshot(moved, "day-2"), tmp_path / "later")
    publish(site, tmp_path / "later")
    planned = capline.json("campaign", "plan", "campaign.yaml")
    assert {part["segment"]: part["audience"] for part in planned["segments"]}["active"] == 1
    again = capline.json("campaign", "run", "campaign.yaml")
    assert (again["run"], again["segments"]) == (first["run"], first["segments"])
    assert capline.json("explain", "promo", "150", "--campaign", "campaign.yaml")["segment"] == "new"


@pytest.fixture
def redis_server() -> Iterator[Server]:
    with single("redis") as server:
        yield server


@pytest.mark.deep
def test_workers_get_the_version_that_was_queued_first(
    capline: CommandLine, redis_server: Server, tmp_path: Path
) -> None:
    site = Site(f"file://{directory_site(tmp_path).url}")
    campaign = CampaignSite(tmp_path)
    publish(site, tmp_path / "segments", "monday")
    campaign.write(segments=site.url)
    queue = ("--queue", redis_server.url)
    assert capline.json("campaign", "enqueue", "campaign.yaml", *queue)["state"] == "new"
    moved = {"active": IdSet([1]), "new": IdSet([2]), "churned": IdSet([3])}
    write_snapshot(Snapshot(moved, "day-2"), tmp_path / "later")
    publish(site, tmp_path / "later")
    assert capline.json("campaign", "enqueue", "campaign.yaml", *queue)["state"] == "continued"


def test_a_version_that_is_in_the_cache_needs_no_address(site: Site, tmp_path: Path) -> None:
    publish(site, make(tmp_path, "v1", new=[1], active=[2]))
    cache = tmp_path / "cache"
    assert fetch_snapshot(site.url, cache, version="v1")[1] == "v1"
    site.delete("pointer.json")
    snapshot, version = fetch_snapshot(site.url, cache, version="v1")
    assert (version, snapshot.segment_of(2)) == ("v1", "active")
    with pytest.raises(SegmentError, match="nothing is published there"):
        fetch_snapshot(site.url, cache)
    other: Any = "v2"
    with pytest.raises(SegmentError, match="nothing is published there"):
        fetch_snapshot(site.url, cache, version=other)
