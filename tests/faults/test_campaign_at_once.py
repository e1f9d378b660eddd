"""A campaign from two sides at once, or at its very minute; what was sent is counted at the receiver."""

import json
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.kit.campaign import Receiver, Site, capline, receiver
from tests.kit.server import soon
from tests.kit.servers import single
from tests.kit.serving import Serving

from capline.campaign import accept, load_campaign, prepare
from capline.campaign.queue.enqueue import begin, retry
from capline.campaign.queue.status import QueueStatus
from capline.campaign.queue.worker import Worker
from capline.campaign.stop import CampaignStopped, Stop
from capline.campaign.store.open import open_store
from capline.model.clock import SystemClock
from capline.model.errors import CampaignError
from capline.support.instant import instant_text

NAME, WITHIN_S, HOUR_US = "summer-sale", 60, 3_600_000_000


def begun(site: Site, url: str, far: Receiver, **settings: str | None) -> None:
    site.settings |= {"sender": f"{{webhook: {{url: '{far.url}', concurrency: 2}}}}", "batch": "20"}
    site.write(segments=None, **settings)
    with closing(open_store(url, make=True)) as store:
        begin(accept(load_campaign(site.file)), store)


@contextmanager
def at_work(url: str, count: int, say: Callable[[str], object] = lambda _line: None) -> Generator[None]:
    """So many workers, each in a thread of its own."""
    stops = [Stop() for _ in range(count)]

    def work(stop: Stop) -> None:
        with closing(Worker(url, stop, takeover_s=30, say=say)) as worker, pytest.raises(CampaignStopped):
            worker.work()

    threads = [threading.Thread(target=work, args=(stop,)) for stop in stops]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        for stop, thread in zip(stops, threads, strict=True):
            stop.ask()
            thread.join()
            stop.close()


def state(url: str) -> str:
    with closing(open_store(url)) as store:
        return QueueStatus(store, NAME).report().state


def is_whole(url: str) -> bool:
    with closing(open_store(url)) as store:
        return store.state(NAME).is_whole


def at_once(count: int, do: Callable[[], object]) -> None:
    ready = threading.Barrier(count)

    def go() -> None:
        ready.wait()
        do()

    threads = [threading.Thread(target=go) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_two_workers_wait_for_the_minute_and_a_clock_that_steps_over_it_and_back_sends_nobody_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset_us = [0]
    monkeypatch.setattr(SystemClock, "now_us", lambda _self: time.time_ns() // 1000 + offset_us[0])  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]

    def step_back(count: int) -> None:
        if count == 50:
            offset_us[0] = 0

    url = f"sqlite://{tmp_path}/queue.sqlite"
    with single("redis") as server, receiver(on_request=step_back) as far:
        site = Site(tmp_path, store=server.url)
        site.audience(range(200))
        send_at = instant_text(SystemClock().now_us() + HOUR_US)
        begun(site, url, far, as_of=None, send_at=send_at)
        with at_work(url, 2):
            assert soon(lambda: is_whole(url), WITHIN_S)
            assert not soon(lambda: far.requests > 0, 1), "its minute has not come"
            offset_us[0] = HOUR_US
            assert soon(lambda: far.requests >= 50, WITHIN_S)
            assert soon(lambda: state(url) == "scheduled", WITHIN_S)
            assert far.requests < 200, "its minute is to come again"
            offset_us[0] = HOUR_US
            assert soon(lambda: state(url) == "finished", WITHIN_S)
    assert far.delivered() == list(range(200))
    assert {len(keys) for keys in far.keys.values()} == {1}


@contextmanager
def some_refused_once(folder: Path, kind: str) -> Generator[tuple[Site, str, Receiver]]:
    """A campaign of 100 that is begun, whose receiver refuses eleven of them the first time."""
    with (
        single("redis") as server,
        receiver(lambda subject, tries: 410 if (subject % 9, tries) == (4, 1) else 200) as far,
    ):
        url = server.url if kind == "redis" else f"sqlite://{folder}/queue.sqlite"
        site = Site(folder, store=server.url)
        site.audience(range(100))
        begun(site, url, far)
        yield site, url, far


def assert_tried_once_more(far: Receiver) -> None:
    assert far.delivered() == list(range(100))
    failed = [subject for subject in range(100) if subject % 9 == 4]
    assert {subject: tries for subject, tries in far.tries.items() if tries > 1} == dict.fromkeys(failed, 2)
    assert {len(keys) for keys in far.keys.values()} == {1}


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_what_failed_is_retried_by_two_at_once_and_is_tried_once_more(tmp_path: Path, kind: str) -> None:
    with some_refused_once(tmp_path, kind) as (site, url, far), at_work(url, 2):
        assert soon(lambda: state(url) == "finished", WITHIN_S)
        assert len(far.delivered()) == 89
        put: list[int] = []

        def again() -> None:
            with closing(open_store(url)) as store:
                try:
                    put.append(retry(prepare(load_campaign(site.file)), store).put)
                except CampaignError as error:
                    assert "is not finished" in str(error)  # noqa: PT017 - another was first

        at_once(2, again)
        assert sum(put) >= 1
        assert soon(lambda: state(url) == "finished", WITHIN_S)
    assert_tried_once_more(far)


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_two_processes_and_a_request_that_retry_at_once_try_what_failed_once_more(tmp_path: Path, kind: str) -> None:
    with some_refused_once(tmp_path, kind) as (site, url, far):
        answers: list[tuple[bool, str]] = []

        def type_it() -> None:
            done = capline("campaign", "enqueue", site.file, "--queue", url, "--retry-failed", "--json")
            assert done.returncode in (0, 2), done.stderr
            answers.append((not done.returncode, done.stdout or done.stderr.splitlines()[-1]))

        def post_it() -> None:
            said = serving.client.post(f"/v1/campaigns/{NAME}/retry-failed")
            assert said.status_code in (200, 409), said.text
            answers.append((said.is_success, said.text if said.is_success else said.json()["detail"]))

        waiting = iter((type_it, type_it, post_it))

        def next_of_them() -> None:
            next(waiting)()

        worker = ("worker", "--queue", url, "--until-idle", "--quiet")
        assert capline(*worker).returncode == 0
        assert len(far.delivered()) == 89
        with Serving(tmp_path, "--queue", url) as serving:
            at_once(3, next_of_them)
        assert len(answers) == 3
        assert capline(*worker).returncode == 0
    assert sum(json.loads(text)["put"] for is_done, text in answers if is_done) == 1, answers
    for is_done, text in answers:
        assert is_done or "is not finished; retry what failed when it is" in text
    assert_tried_once_more(far)
