import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kit.campaign import AT_US, HOUR_US, Far, Site, ledger_of, mixed, with_sender

from capline import Limiter, ManualClock
from capline.campaign import CampaignStopped, Job, Ledger, Report, Stop, open_run, plan, report_of, run
from capline.campaign.deliver import backoff_s
from capline.campaign.file import Retry
from capline.campaign.rate import Pace
from capline.campaign.senders.protocol import DELIVERED, PERMANENT, TRANSIENT, UNKNOWN, Messages, Outcomes
from capline.campaign.store.records import Claimed, Rate
from capline.campaign.store.rows import DELIVERED as ROW_DELIVERED
from capline.campaign.store.rows import PENDING, UNSURE, BatchRows
from capline.campaign.store.sqlite_store import SqliteCampaignStore
from capline.campaign.store_facts import claim_run, store_facts, store_input
from capline.model.clock import SystemClock
from capline.model.errors import CampaignError, StoreError, StoreFullError


def go(
    job: Job,
    limiter: Limiter,
    directory: Path,
    stop: Stop | None = None,
    pause: Callable[[float], object] = lambda _s: None,
    progress: Callable[[int], object] | None = None,
) -> Report:
    stop = stop or Stop()
    with ledger_of(job, directory) as ledger:
        try:
            run(job, limiter, ledger, stop, pause=pause, progress=progress, jitter=lambda: 0.0)
        finally:
            stop.close()
        return report_of(ledger)


def remaining(limiter: Limiter, subjects: list[int]) -> list[int]:
    """What is left of 3/day."""
    return (limiter.peek_many("promo", subjects, segment="active").remaining + 1).tolist()


def test_the_allowed_are_delivered_and_the_refused_are_counted_by_limit(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.seed()
    far = Far()
    job = with_sender(site.job(), far)
    with site.limiter() as limiter:
        report = go(job, limiter, tmp_path / "run")
    by_name = {part.segment: part for part in report.segments}
    assert report.state == "finished"
    # Active: 3/day holds, whoever they are. The others: one in the last day is one too many, two in the week as well.
    assert by_name["active"].sent == 100
    assert by_name["new"].refused_by == {"1/day": 13, "3/week": 1}  # 140 had three
    for name, ids in ((None, range(300, 400)), ("churned", range(200, 300))):
        twice = {i for i in ids if i % 10 == 0 or (i % 5 == 0 and i % 7 == 0)}
        once = {i for i in ids if i % 7 == 0} - twice
        assert by_name[name].refused_by["2/week"] == len(twice)
        assert by_name[name].refused_by["1/day"] == len(once)
    assert report.total.sent == len(far.delivered()) == 400 - report.total.refused
    assert report.next_eligible is not None
    assert report.next_eligible.earliest_us == AT_US + 22 * HOUR_US


def test_what_became_of_a_hand_over_is_stored_with_the_next_one_in_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = SqliteCampaignStore.record
    stored: list[list[int]] = []

    def counted(store: SqliteCampaignStore, claimed: Claimed, rows: BatchRows, *, decided: bool) -> bool:
        stored.append([rows.in_state(state).size for state in (PENDING, UNSURE, ROW_DELIVERED)])
        return record(store, claimed, rows, decided=decided)

    monkeypatch.setattr(SqliteCampaignStore, "record", counted)
    site = Site(tmp_path)
    site.audience(range(6))
    job = with_sender(site.job(), Far(most=2))
    with job.open_limiter("memory://") as limiter:
        go(job, limiter, tmp_path / "run")
    assert stored == [[6, 0, 0], [4, 2, 0], [2, 2, 2], [0, 2, 4], [0, 0, 6]]


def test_a_store_is_new_until_a_recipient_is_counted_in_it(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.audience([1])
    job = site.job(as_of=None, rate="5/s", rate_key="gateway", sender="{webhook: http://127.0.0.1:1/}")
    found: list[object] = []
    with job.open_limiter() as limiter:
        for step in (
            lambda: None,
            lambda: claim_run(limiter, job.file, "ab", Rate("5/second")),
            lambda: Pace.of("gateway", Rate("5/second"), 1, limiter).turn(1),  # pyright: ignore[reportOptionalMemberAccess]
            lambda: limiter.decide("promo", 1),
        ):
            step()
            facts = store_facts(job.file.store, limiter)
            found.append((facts.logs, facts.is_new))
        assert limiter.stats()["logs"] == 4
    assert found == [(0, True)] * 3 + [(1, False)]


def test_a_failure_is_stored_before_its_hit_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refund_many, before = Limiter.refund_many, list[tuple[int, int]]()
    site = Site(tmp_path)
    site.audience(range(6))
    job = with_sender(site.job(), Far(lambda subject, _tries: PERMANENT if subject == 3 else DELIVERED, most=2))

    def seen(limiter: Limiter, *said: Any) -> Any:
        with Ledger.read(tmp_path / "run") as ledger:
            total = report_of(ledger).total
            before.append((total.failed, total.sent))
        return refund_many(limiter, *said)

    monkeypatch.setattr(Limiter, "refund_many", seen)
    with job.open_limiter("memory://") as limiter:
        report = go(job, limiter, tmp_path / "run")
    assert (before, report.total.failed) == ([(1, 3)], 1)


@pytest.mark.parametrize("settings", [{}, {"channel": "push"}, {"channel": "email"}, {"segments": None}])
def test_the_plan_is_what_the_run_then_does(tmp_path: Path, settings: dict[str, str | None]) -> None:
    site = Site(tmp_path)
    site.seed()
    if settings.get("segments", "") is None:
        (tmp_path / "policies.yaml").write_text(
            "namespace: marketing\npolicies: {promo: {limits: [1/day, 2/week], channels: {push: [2/day]}}}"
        )
    job = with_sender(site.job(**settings), Far())
    before = site.content()
    forecast = plan(job)
    assert site.content() == before
    with site.limiter() as limiter:
        report = go(job, limiter, tmp_path / "run")
    assert forecast.total == report.total
    assert forecast.segments == report.segments
    assert forecast.next_eligible == report.next_eligible
    assert forecast.total.refused > 0
    again = plan(job)
    assert again.total.sent < forecast.total.sent


def test_a_plan_makes_no_store_and_no_ledger(tmp_path: Path) -> None:
    site = Site(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    seen: list[int] = []
    assert plan(site.job(), seen.append).total.sent == 400
    assert sorted(tmp_path.rglob("*")) == sorted([*before])
    assert seen == [100, 200, 300, 400]


def test_a_failed_delivery_is_given_back_and_a_busy_one_tried_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    far = Far(mixed, most=30)
    job = with_sender(site.job(), far)
    with job.open_limiter("memory://") as limiter:
        report = go(job, limiter, tmp_path / "run")
        gone = [i for i in range(400) if i % 10 == 3]
        busy = [i for i in range(400) if i % 15 == 4 and i not in gone]
        assert report.total.failed == len(gone) + len(busy)
        assert report.failures == {"gone": len(gone), "busy": len(busy)}
        assert far.delivered() == [i for i in range(400) if i not in gone and i not in busy]
        assert {far.tries[i] for i in gone} == {1}
        assert {far.tries[i] for i in busy} == {4}
        assert {far.tries[i] for i in range(400) if i % 10 == 6} - {1, 4} == {3}
        assert {len(keys) for keys in far.keys.values()} == {1}
        assert set(remaining(limiter, gone + busy)) == {3}
        assert set(remaining(limiter, far.delivered())) == {2}
    assert max(map(len, far.hand_overs)) == 30


def test_a_permanent_failure_is_given_back_before_the_others_are_tried_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.audience([1, 2])
    job = with_sender(site.job(), Far(lambda subject, tries: PERMANENT if subject == 1 else TRANSIENT * (tries < 3)))
    seen: list[list[int]] = []
    with job.open_limiter("memory://") as limiter:
        go(job, limiter, tmp_path / "run", pause=lambda _s: seen.append(remaining(limiter, [1, 2])))
    assert seen == [[3, 2], [3, 2]]


def test_what_is_not_known_keeps_its_hit_and_is_asked_about_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.audience(range(40))
    said = {"code": UNKNOWN}
    far = Far(lambda subject, _tries: said["code"] if subject % 4 == 0 else DELIVERED, most=15)
    job = with_sender(site.job(batch="20"), far)
    with job.open_limiter("memory://") as limiter:
        report = go(job, limiter, tmp_path / "run")
        assert (report.state, report.total.sent, report.total.failed, report.total.not_known) == ("finished", 30, 0, 10)
        assert report.doubts == {"no answer": 10}
        assert set(remaining(limiter, list(range(40)))) == {2}
        assert {far.tries[subject] for subject in range(0, 40, 4)} == {4}
        # Only "delivered" ends the doubt: not "gone", nor "busy".
        for code, tries in ((PERMANENT, 5), (TRANSIENT, 9)):
            said["code"] = code
            report = go(job, limiter, tmp_path / "run")
            assert (report.total.sent, report.total.failed, report.total.not_known) == (30, 0, 10)
            assert {far.tries[subject] for subject in range(0, 40, 4)} == {tries}
        assert report.doubts == {"perhaps taken before, then busy": 10}
        said["code"] = DELIVERED
        report = go(job, limiter, tmp_path / "run")
        assert (report.total.sent, report.total.failed, report.total.not_known) == (40, 0, 0)
        hand_overs = len(far.hand_overs)
        assert go(job, limiter, tmp_path / "run") == report
        assert set(remaining(limiter, list(range(40)))) == {2}
    assert len(far.hand_overs) == hand_overs
    assert {len(keys) for keys in far.keys.values()} == {1}


def test_a_far_side_that_would_take_it_twice_is_not_asked_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.audience(range(4))
    far = Far(lambda subject, _tries: UNKNOWN if subject == 2 else DELIVERED, asks_again=False)
    job = with_sender(site.job(), far)
    with job.open_limiter("memory://") as limiter:
        for _ in range(2):
            report = go(job, limiter, tmp_path / "run")
            assert (report.total.sent, report.total.not_known) == (3, 1)
    assert set(far.tries.values()) == {1}


def test_asking_again_may_be_stopped_and_goes_on(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.audience(range(60))
    said = {"code": UNKNOWN}
    far = Far(lambda _subject, _tries: said["code"], most=10)
    job = with_sender(site.job(batch="20"), far)
    with job.open_limiter("memory://") as limiter:
        assert go(job, limiter, tmp_path / "run").total.not_known == 60
        said["code"] = TRANSIENT
        stop = Stop()
        with pytest.raises(CampaignStopped):
            go(job, limiter, tmp_path / "run", stop=stop, pause=lambda _s: stop.ask(signal.SIGTERM))
        with Ledger.read(tmp_path / "run") as ledger:
            assert (ledger.is_finished, ledger.state().settled) == (False, 0)
        said["code"] = DELIVERED
        report = go(job, limiter, tmp_path / "run")
    assert (report.state, report.total.sent) == ("finished", 60)


def test_waits_grow_up_to_the_longest_with_jitter() -> None:
    retry = Retry(10, 1.0, 60.0)
    assert [backoff_s(tries, retry, 0.0, 0.0) for tries in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff_s(3, retry, 0.0, 1.0) == 2
    assert backoff_s(10_000, retry, 0.0, 0.0) == 60
    assert backoff_s(1, retry, 7.0, 0.5) == 7
    assert backoff_s(1, retry, 3600.0, 0.5) == 60


def test_the_pauses_between_tries_heed_what_was_asked(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.audience([1])
    pauses: list[float] = []
    for wait_s in (0.0, 0.0015):
        job = with_sender(site.job(), Far(lambda _id, _tries: TRANSIENT, wait_s=wait_s))
        with job.open_limiter("memory://") as limiter:
            go(job, limiter, tmp_path / f"run-{wait_s}", pause=pauses.append)
    assert pauses == [0.001, 0.002, 0.002, 0.0015, 0.002, 0.002]


def test_a_finished_run_does_nothing_more(tmp_path: Path) -> None:
    far = Far()
    job = with_sender(Site(tmp_path).job(), far)
    with job.open_limiter("memory://") as limiter:
        first = go(job, limiter, tmp_path / "run")
        assert go(job, limiter, tmp_path / "run") == first
    assert set(far.tries.values()) == {1}


def test_another_ledger_is_no_other_run_and_another_name_is_one_under_the_same_limits(tmp_path: Path) -> None:
    far = Far()
    site = Site(tmp_path)
    job = with_sender(site.job(), far)
    with job.open_limiter("memory://") as limiter:
        first = go(job, limiter, tmp_path / "run")
        with pytest.raises(CampaignError, match=r"'summer-sale' has another run, of 2026-11-21T16:00:00Z; .*--ledger"):
            go(job, limiter, tmp_path / "again")
        other = go(with_sender(site.job(campaign="again"), far), limiter, tmp_path / "other")
    assert (first.total.sent, other.total.sent) == (400, 100)
    assert {len(far.keys[i]) for i in range(100)} == {2}


def test_a_future_instant_is_refused_on_a_store_that_may_be_in_use(tmp_path: Path) -> None:
    site = Site(tmp_path)
    later = {"as_of": "2199-01-01T00:00:00Z"}
    with open_run(site.job(**later, campaign="first"), tmp_path / "first") as (limiter, _):
        limiter.decide("promo", 1)
    refusal = pytest.raises(CampaignError, match=r"'as_of:' is in the future, .* 'rehearsal: true'")
    with refusal, open_run(site.job(**later), tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()
    with open_run(site.job(**later, rehearsal="true"), tmp_path / "run") as (limiter, ledger):
        ledger.freeze_inputs(store_input(limiter))
    with open_run(site.job(**later), tmp_path / "run"):
        pass  # what is in the store may be its own


def test_it_stops_between_two_hand_overs_and_goes_on_there(tmp_path: Path) -> None:
    stop = Stop()

    class Stopping(Far):
        def send(self, messages: Messages) -> Outcomes:
            if len(self.hand_overs) == 4:
                stop.ask(signal.SIGTERM)
            return super().send(messages)

    far = Stopping(most=30)
    job = with_sender(Site(tmp_path).job(), far)
    seen: list[int] = []
    with job.open_limiter("memory://") as limiter:
        with pytest.raises(CampaignStopped) as stopped:
            go(job, limiter, tmp_path / "run", stop=stop, progress=seen.append)
        assert stopped.value.signum == signal.SIGTERM
        assert (seen[0], seen[-1]) == (0, 130)
        assert sum(map(len, far.hand_overs)) == 130
        report = go(job, limiter, tmp_path / "run", progress=seen.append)
    assert report.total.sent == 400
    assert set(far.tries.values()) == {1}
    assert (seen == sorted(seen), seen[-1]) == (True, 400)


def test_nothing_is_decided_before_it_is_due_and_a_pause_is_heeded_before_the_next_hand_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the run waits, another process looks at its ledger, and steers it."""
    site = Site(tmp_path)
    far = Far(most=30)
    due = "2254-01-01T00:00:00Z"
    job = with_sender(site.job(as_of=None, send_at=due), far)
    stop = Stop()
    waits: list[tuple[float, str, int]] = []

    def wait(seconds: float) -> None:
        with Ledger.read(tmp_path / "run", steer=True) as other:
            waits.append((seconds, report_of(other).state, len(far.hand_overs)))
            if len(waits) == 2:
                other.store.steer(other.name, due_us=1)
            elif len(waits) == 4:
                other.change("resume", "ann")

    def progress(_done: int) -> None:
        if len(far.hand_overs) == 5 and len(waits) == 2:
            with Ledger.read(tmp_path / "run", steer=True) as other:
                other.change("pause", "ann")

    monkeypatch.setattr(stop, "wait", wait)
    with job.open_limiter("memory://") as limiter:
        report = go(job, limiter, tmp_path / "run", stop, progress=progress)
    assert waits == [(0.5, "scheduled", 0), (0.5, "scheduled", 0), (0.5, "paused", 5), (0.5, "paused", 5)]
    assert (report.state, report.total.sent) == ("finished", 400)


def test_a_cancelled_run_gives_back_what_it_did_not_send_and_is_over(tmp_path: Path) -> None:
    """Another process cancels it after 70 messages: two further ones may have been taken, and stay."""
    site = Site(tmp_path)
    far = Far(
        lambda subject, _tries: UNKNOWN if subject in (61, 62) else TRANSIENT if subject == 5 else DELIVERED, most=35
    )
    job = with_sender(site.job(retry="{attempts: 9}"), far)

    def progress(_done: int) -> None:
        if len(far.hand_overs) == 2:
            with Ledger.read(tmp_path / "run", steer=True) as other:
                other.change("cancel", "ann")

    with job.open_limiter("memory://") as limiter:
        report = go(job, limiter, tmp_path / "run", progress=progress)
        assert (report.state, report.total.undecided) == ("cancelled", 300)
        assert (report.total.sent, report.total.failed, report.total.not_known) == (67, 31, 2)
        assert report.failures == {"the campaign was cancelled": 31}
        assert far.delivered() == [subject for subject in range(70) if subject not in (5, 61, 62)]
        used = [1 - int(limiter.peek("promo", subject, segment="active").remaining == 2) for subject in range(100)]
        assert [subject for subject in range(100) if used[subject]] == sorted({*far.delivered(), 61, 62})
        hand_overs = len(far.hand_overs)
        assert go(job, limiter, tmp_path / "run") == report, "it cannot go on"
    assert len(far.hand_overs) == hand_overs


def test_what_is_not_sent_when_its_time_is_over_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end comes while the second hand-over is under way; batches that are not decided stay so."""
    end_us = 8_900_000_000_000_000
    now_us = [end_us - 1]

    def fixed(_clock: SystemClock) -> int:
        return now_us[0]

    monkeypatch.setattr(SystemClock, "now_us", fixed)

    class Slow(Far):
        def send(self, messages: Messages) -> Outcomes:
            now_us[0] += len(self.hand_overs)
            return super().send(messages)

    far = Slow(most=35)
    job = with_sender(Site(tmp_path).job(as_of=None, until="2252-01-12T06:13:20Z"), far)
    assert job.file.until_us == end_us
    with job.open_limiter("memory://") as limiter:
        report = go(job, limiter, tmp_path / "run")
        assert (report.state, report.total.sent, report.total.failed) == ("cancelled", 70, 30)
        assert report.total.undecided == 300
        assert [limiter.peek("promo", subject, segment="active").remaining for subject in (0, 69, 70)] == [1, 1, 2]
        assert go(with_sender(job, far), limiter, tmp_path / "run").state == "cancelled"
    late = with_sender(Site(tmp_path).job(campaign="late", as_of=None, until="2252-01-12T06:13:20Z"), Far())
    with late.open_limiter("memory://") as limiter:
        report = go(late, limiter, tmp_path / "late")
    assert (report.state, report.total.undecided) == ("cancelled", 400)


def test_a_pause_ends_when_a_stop_is_asked_for() -> None:
    with closing(Stop()) as stop:
        with stop.on_signals(lambda _signum: None, lambda _signum: None):
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(CampaignStopped, match="SIGINT"):
                stop.wait(60)
            with pytest.raises(CampaignStopped):
                stop.check()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Broken(Far):
    def __init__(self, outcome: Any) -> None:
        super().__init__()
        self.outcome = outcome

    def send(self, messages: Messages) -> Outcomes:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (ZeroDivisionError("a\nb"), r"sender 'far' failed \(ZeroDivisionError: a b\); nothing is lost"),
        (CampaignError("no more paper"), "no more paper"),
        (Outcomes.delivered(3), "gave no valid outcome for each of 100 messages"),
        (Outcomes(np.full(100, 7, np.uint8)), "gave no valid outcome"),
    ],
)
def test_a_sender_that_breaks_stops_the_run_which_goes_on_later(tmp_path: Path, outcome: Any, said: str) -> None:
    site = Site(tmp_path)
    with with_sender(site.job(), Far()).open_limiter("memory://") as limiter:
        with pytest.raises(CampaignError, match=said):
            go(with_sender(site.job(), Broken(outcome)), limiter, tmp_path / "run")
        far = Far()
        assert go(with_sender(site.job(), far), limiter, tmp_path / "run").total.sent == 400
        assert set(remaining(limiter, far.delivered())) == {2}


def test_a_store_that_cannot_answer_stops_the_run_which_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Far()
    job = with_sender(Site(tmp_path).job(), far)

    def full(*_args: Any, **_more: Any) -> Any:
        raise StoreFullError("no room")

    with job.open_limiter("memory://") as limiter:
        with monkeypatch.context() as broken:
            broken.setattr(limiter, "decide_many", full)
            with pytest.raises(StoreError, match="no room; nothing is lost: fix it and run"):
                go(job, limiter, tmp_path / "run")
        assert go(job, limiter, tmp_path / "run").total.sent == 400


def test_answers_out_of_a_receipt_are_reported_as_of_the_time_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    clock = ManualClock(start_us=AT_US)
    job = with_sender(site.job(as_of=None, segments=None), Far())
    with Limiter("memory://", job.policies.policies, clock=clock, namespace="marketing") as limiter:
        limiter.decide_many("promo", [5, 6])
        clock.advance_us(HOUR_US)

        def killed(*_args: Any, **_more: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as dying:
            dying.setattr(SqliteCampaignStore, "record", killed)
            with pytest.raises(KeyboardInterrupt):
                go(job, limiter, tmp_path / "run")
        clock.advance_us(5 * HOUR_US)
        eligible = go(job, limiter, tmp_path / "run").next_eligible
    assert eligible is not None
    assert (eligible.earliest_us, eligible.latest_us) == (AT_US + 24 * HOUR_US,) * 2


def test_costs_and_channels_are_what_the_file_says(tmp_path: Path) -> None:
    site = Site(tmp_path)
    job = with_sender(site.job(channel="push", cost="2"), Far())
    with job.open_limiter("memory://") as limiter:
        report = go(job, limiter, tmp_path / "run")
        assert {part.segment: part.sent for part in report.segments} == {None: 0, "active": 100, "churned": 0, "new": 0}
        assert limiter.peek("promo", 1, segment="active", channel="push").allowed is False
        assert remaining(limiter, [1]) == [1]
    assert report.next_eligible is not None
    assert report.next_eligible.never == report.total.refused == 300
    assert report.next_eligible.earliest is None
