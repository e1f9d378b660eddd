"""A far side that takes nothing stops a campaign early; a few that cannot be reached do not. And: progress."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.campaign import Far, Site, ledger_of, with_sender

from capline import Limiter
from capline.campaign import Job, Report, Stop, load_campaign, report_of, run
from capline.campaign.breaker import Breaker, SenderFailingError
from capline.campaign.senders.protocol import DELIVERED as TAKEN
from capline.campaign.senders.protocol import PERMANENT, TRANSIENT, UNKNOWN
from capline.campaign.store.rows import DELIVERED, FAILED, RETRY
from capline.model.errors import CampaignError


def go(
    job: Job,
    limiter: Limiter,
    directory: Path,
    pause: Callable[[float], object] = lambda _s: None,
    progress: Callable[[int], object] | None = None,
) -> Report:
    stop = Stop()
    with ledger_of(job, directory) as ledger:
        try:
            run(job, limiter, ledger, stop, pause=pause, progress=progress, jitter=lambda: 0.0)
        finally:
            stop.close()
        return report_of(ledger)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60), st.integers(1, 9))
def test_it_counts_first_tries_in_a_row_however_they_are_handed_over(rows: list[tuple[bool, bool]], size: int) -> None:
    breaker = Breaker(3)
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        states = np.array([DELIVERED if sent else RETRY for sent, _ in some], np.uint8)
        breaker.count(states, np.array([first for _, first in some]))
    in_a_row = 0
    for sent, first in rows:
        in_a_row = 0 if sent else in_a_row + first
    assert breaker.in_a_row == in_a_row
    assert breaker.is_failing == (in_a_row >= 3)


def test_a_breaker_of_nothing_never_fails() -> None:
    breaker = Breaker(0)
    breaker.count(np.full(1000, FAILED, np.uint8), np.ones(1000, np.bool_))
    assert not breaker.is_failing


@pytest.mark.parametrize(("code", "tries"), [(TRANSIENT, 4), (PERMANENT, 1), (UNKNOWN, 4)])
def test_a_dead_receiver_stops_the_campaign_early_and_the_same_command_goes_on(
    tmp_path: Path, code: int, tries: int
) -> None:
    said = {"code": code}
    far = Far(lambda _subject, _tries: said["code"], most=30)
    job = with_sender(Site(tmp_path).job(), far, breaker=20)
    pauses: list[float] = []
    with job.open_limiter("memory://") as limiter:
        with pytest.raises(SenderFailingError, match=r"30 messages in a row were not sent by far \((gone|busy|no )"):
            go(job, limiter, tmp_path / "run", pause=pauses.append)
        assert sum(map(len, far.hand_overs)) == 30 * tries, "the rest of the batch is not burnt"
        assert len(pauses) == tries - 1
        with pytest.raises(SenderFailingError):
            go(job, limiter, tmp_path / "run")
        said["code"] = TAKEN
        report = go(job, limiter, tmp_path / "run")
        left = limiter.peek_many("promo", list(range(30)), segment="active").remaining + 1
    failed = 60 if code == PERMANENT else 0  # two stops; what may yet be sent has not failed
    assert (report.total.sent, report.total.failed, report.total.not_known) == (400 - failed, failed, 0)
    assert set(left.tolist()) == ({3} if failed else {2})


def test_a_receiver_that_comes_back_between_two_tries_costs_nothing(tmp_path: Path) -> None:
    said = {"code": TRANSIENT}
    far = Far(lambda _subject, _tries: said["code"], most=30)
    job = with_sender(Site(tmp_path).job(), far, breaker=20)

    def come_back(_seconds: float) -> None:
        said["code"] = TAKEN

    with job.open_limiter("memory://") as limiter:
        report = go(job, limiter, tmp_path / "run", pause=come_back)
    assert (report.total.sent, report.total.failed) == (400, 0)


@pytest.mark.parametrize("code", [TRANSIENT, UNKNOWN])
def test_many_that_cannot_be_reached_among_others_do_not_stop_it(tmp_path: Path, code: int) -> None:
    """40 of a batch of 100 never get it, and all retries are theirs: no outage."""
    far = Far(lambda subject, _tries: code if subject % 5 < 2 else TAKEN, most=30)
    job = with_sender(Site(tmp_path).job(), far, breaker=20)
    with job.open_limiter("memory://") as limiter:
        go(job, limiter, tmp_path / "run")
        report = go(job, limiter, tmp_path / "run")  # asks again about what is not known
    assert (report.total.sent, report.total.failed + report.total.not_known) == (240, 160)


def test_an_answer_that_was_lost_once_and_a_message_that_is_refused_for_good_are_no_outage(tmp_path: Path) -> None:
    def said(subject: int, tries: int) -> int:
        return PERMANENT if subject % 100 == 10 else UNKNOWN if subject % 100 >= 50 and tries == 1 else TAKEN

    far = Far(said, most=100, request_size=50)
    job = with_sender(Site(tmp_path).job(), far, breaker=20)
    with job.open_limiter("memory://") as limiter:
        report = go(job, limiter, tmp_path / "run")
    assert (report.total.sent, report.total.failed) == (396, 4)


def test_who_is_refused_for_good_beside_others_that_may_yet_be_sent_does_not_stop_it(tmp_path: Path) -> None:
    far = Far(lambda subject, tries: PERMANENT if subject % 40 == 5 else TRANSIENT if tries == 1 else TAKEN, most=40)
    job = with_sender(Site(tmp_path).job(), far, breaker=20)
    with job.open_limiter("memory://") as limiter:
        report = go(job, limiter, tmp_path / "run")
    assert (report.total.sent, report.total.failed) == (390, 10)


def test_a_dead_receiver_of_many_messages_in_a_request_stops_the_campaign(tmp_path: Path) -> None:
    far = Far(lambda _subject, _tries: TRANSIENT, most=40, request_size=10)
    job = with_sender(Site(tmp_path).job(), far, breaker=6)
    refused = pytest.raises(SenderFailingError, match="8 requests in a row")
    with job.open_limiter("memory://") as limiter, refused:
        go(job, limiter, tmp_path / "run")


def test_a_run_of_failures_may_cross_batches(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.audience(range(100))
    job = with_sender(site.job(batch="7"), Far(lambda _subject, _tries: PERMANENT), breaker=20)
    with job.open_limiter("memory://") as limiter, pytest.raises(SenderFailingError, match="21 messages in a row"):
        go(job, limiter, tmp_path / "run")


def test_the_threshold_is_an_option_of_every_sender(tmp_path: Path) -> None:
    site = Site(tmp_path)
    breakers: dict[str, int] = {}
    digests: set[str] = set()
    for more in ("", ", breaker: 7", ", breaker: 0"):
        built = load_campaign(site.write(sender=f"{{webhook: 'http://x/'{more}}}")).sender
        breakers[more] = built.breaker
        digests.add(built.digest)
        assert load_campaign(site.write(sender=f"{{file: out{more}}}")).sender.breaker == built.breaker
    assert list(breakers.values()) == [20, 7, 0]
    assert len(digests) == 1, "it may change when a run is gone on with"
    with pytest.raises(CampaignError, match="breaker: expected a whole number from 0"):
        load_campaign(site.write(sender="{file: out, breaker: many}"))


def test_progress_moves_while_a_batch_is_delivered(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.seed()
    site.audience(range(400))
    job = with_sender(site.job(batch="400", store=f"lmdb://{tmp_path}/store"), Far(most=50))
    seen: list[int] = []
    with job.open_limiter() as limiter:
        report = go(job, limiter, tmp_path / "run", progress=seen.append)
    assert report.total.refused > 0
    assert seen[0] == report.total.refused, "as soon as it is decided"
    assert len(seen) == 1 + -(-report.total.sent // 50)
    assert (seen == sorted(seen), seen[-1]) == (True, 400)
