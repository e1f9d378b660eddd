"""Preparing is a batch: who accepts a campaign reads no audience, a worker does, and it may be killed at any step."""

import random
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import pytest
from tests.kit.campaign import Site, command, environment, receiver
from tests.kit.s3 import S3
from tests.kit.servers import single

from capline.campaign import accept, load_campaign
from capline.campaign.queue.enqueue import begin
from capline.campaign.queue.status import QueueReport, QueueStatus
from capline.campaign.queue.worker import Worker
from capline.campaign.stop import Stop
from capline.campaign.store.open import open_store
from capline.campaign.store.records import PREPARE, InWork, State
from capline.segment.objects.address import open_objects

KILLS = 4
SUBJECTS, BATCH = 2000, 5
RUN = "summer-sale"


@pytest.fixture(params=["redis", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    if request.param == "sqlite":
        yield f"sqlite://{tmp_path}/campaigns.sqlite"
        return
    with single("redis") as server:
        yield server.url


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def accepted(site: Site, url: str) -> None:
    with closing(open_store(url, make=True)) as store:
        begin(accept(load_campaign(site.file)), store)


def state(url: str) -> State:
    with closing(open_store(url)) as store:
        return store.state(RUN)


def report(url: str) -> QueueReport:
    with closing(open_store(url)) as store:
        return QueueStatus(store, RUN).report()


def work(url: str) -> list[str]:
    said: list[str] = []
    with closing(Stop()) as stop, closing(Worker(url, stop, takeover_s=1, say=said.append)) as worker:
        worker.work(until_idle=True)
    return said


def worker(url: str) -> subprocess.Popen[bytes]:
    words = command("worker", "--queue", url, "--takeover", "1", "--until-idle", "--quiet")
    return subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def prepares(pid: int, found: InWork) -> bool:
    return found.batch == PREPARE and f":{pid}:" in found.worker


@pytest.mark.deep
def test_killed_while_they_prepare_nobody_is_forgotten_and_nobody_gets_two(url: str, site: Site) -> None:
    instants = random.Random()
    site.audience(range(SUBJECTS))
    caught = 0
    with receiver(lambda _id, _tries: 200) as far:
        site.settings |= {"sender": f"{{webhook: {{url: '{far.url}', concurrency: 8}}}}", "channel": "push"}
        site.write(batch=str(BATCH))
        accepted(site, url)
        for _ in range(KILLS):
            process = worker(url)
            try:
                until = time.monotonic() + 120
                while not (state(url).is_whole or any(prepares(process.pid, each) for each in state(url).in_work)):
                    assert time.monotonic() < until, "nobody prepares"
                time.sleep(instants.uniform(0, 0.15))
            finally:
                process.kill()
                process.wait()
            caught += not state(url).is_whole
        assert caught, "none was killed before the last batch was there"
        for process in [worker(url) for _ in range(2)]:
            assert process.wait(300) == 0
        assert sorted(far.taken.values()) == list(range(SUBJECTS))
        assert {len(keys) for keys in far.keys.values()} == {1}
    done = report(url)
    assert (done.state, done.total.sent, done.total.audience) == ("finished", SUBJECTS, SUBJECTS)
    assert (done.queue.batches, done.queue.settled) == (SUBJECTS // BATCH, SUBJECTS // BATCH)


def test_who_accepts_a_campaign_reads_no_audience_and_a_worker_does(url: str, site: Site) -> None:
    accepted(site, url)
    before = report(url)
    assert (before.state, before.total.audience, before.queue.batches) == ("stopped", 0, 0)
    assert work(url) == []
    assert (report(url).state, report(url).total.audience) == ("finished", 400)


def with_a_bad_id(users: Path) -> None:
    users.write_text("id\n1\nanna\n")


def with_one_more(users: Path) -> None:
    users.write_text(users.read_text() + "400\n")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (with_a_bad_id, "users.csv, row 2: id 'anna' is not a number"),
        (with_one_more, "since the campaign was accepted there is another audience (was 1493 bytes, written "),
        (Path.unlink, "users.csv: no such file"),
    ],
)
def test_an_audience_that_is_wrong_or_changed_is_refused_as_a_whole_until_it_is_mended(
    url: str, site: Site, spoil: Callable[[Path], object], said: str
) -> None:
    users = site.path / "users.csv"
    whole = users.read_text()
    if spoil is with_a_bad_id:
        spoil(users)
    accepted(site, url)
    if spoil is not with_a_bad_id:
        spoil(users)
    assert [said in line for line in work(url)] == [True]
    refused = report(url)
    assert (refused.state, refused.total.sent, refused.queue.set_aside) == ("refused", 0, {})
    assert said in (refused.queue.refused or "")
    users.write_text(whole)
    accepted(site, url)
    assert work(url) == []
    assert (report(url).state, report(url).total.audience) == ("finished", 400)


@pytest.mark.parametrize("spoiled", [b"id\n1\n2\n3\n", None])
def test_an_object_that_changes_or_vanishes_is_refused_as_a_whole_before_it_is_read_and_ignored_after(
    url: str, site: Site, own_s3: S3, monkeypatch: pytest.MonkeyPatch, spoiled: bytes | None
) -> None:
    for key, value in own_s3.environment.items():
        monkeypatch.setenv(key, value)
    own_s3.make_bucket("shop")
    bucket = open_objects("s3://shop", own_s3.options)
    whole = (site.path / "users.csv").read_bytes()

    def spoil() -> None:
        if spoiled is None:
            bucket.delete(["users.csv"])
        else:
            bucket.put("users.csv", spoiled)

    with receiver() as far:
        site.settings |= {"sender": f"{{webhook: {{url: '{far.url}', concurrency: 1}}}}", "channel": "push"}
        bucket.put("users.csv", whole)
        site.write(audience="{csv: 's3://shop/users.csv'}")
        accepted(site, url)
        spoil()
        said = "no such object" if spoiled is None else "since the campaign was accepted there is another audience"
        assert [said in line for line in work(url)] == [True]
        assert (report(url).state, far.requests) == ("refused", 0)
        bucket.put("users.csv", whole)
        accepted(site, url)
        far.on_request = lambda count: spoil() if count == 1 else None
        assert work(url) == []
        assert (report(url).state, far.requests, far.delivered()) == ("finished", 400, list(range(400)))
