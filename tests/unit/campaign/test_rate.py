"""The rate of sending, and the delays, on a clock that only sleep, the store and the receiver advance."""

import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.kit.campaign import AT_US, Far, Site, ledger_of, with_sender

from capline import Limiter, ManualClock
from capline.campaign import Report, Stop, open_run, report_of, run
from capline.campaign.ledger import Ledger, Settings
from capline.campaign.rate import Pace
from capline.campaign.senders.protocol import Messages, Outcomes
from capline.campaign.store.records import Rate
from capline.campaign.store.sqlite_store import SqliteCampaignStore
from capline.model.clock import SystemClock
from capline.model.errors import CampaignConflictError

RATE, WINDOW_US = 100, 1_000_000
WEBHOOK = "{webhook: {url: 'http://127.0.0.1:1/'}}"


@dataclass
class Timed(Far):
    """Notes when each message arrived; an answer takes a while."""

    at_once: int = 10
    clock: ManualClock = field(default_factory=lambda: ManualClock(start_us=AT_US))
    arrived_us: list[int] = field(default_factory=list[int])
    on_send: Callable[[int], object] = lambda _sent: None

    def send(self, messages: Messages) -> Outcomes:
        self.arrived_us += [self.clock.now_us()] * len(messages)
        self.on_send(len(self.arrived_us))
        self.clock.advance_us(3000)
        return super().send(messages)

    def most_in_a_window(self, start: int = 0, stop: int | None = None) -> int:
        at_us = self.arrived_us[start:stop]
        return max(place + 1 - bisect_right(at_us, at - WINDOW_US) for place, at in enumerate(at_us))


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Timed:
    timed = Timed()
    monkeypatch.setattr(time, "sleep", lambda seconds: timed.clock.advance_us(round(seconds * 1e6)))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    monkeypatch.setattr(time, "monotonic", lambda: timed.clock.now_us() / 1e6)
    return timed


def go(site: Site, far: Timed, limiter: Limiter | None = None) -> Report:
    job = with_sender(site.job(as_of=None, rate=f"{RATE}/s", sender=WEBHOOK), far)
    with (
        closing(Stop()) as stop,
        limiter or Limiter("memory://", job.policies.policies, clock=far.clock, namespace="marketing") as limits,
        ledger_of(job, site.path / "run") as ledger,
    ):
        run(job, limits, ledger, stop, pause=lambda seconds: far.clock.advance_us(round(seconds * 1e6)))
        return report_of(ledger)


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_the_receiver_sees_nearly_the_rate_and_never_more(tmp_path: Path, far: Timed, at_once: int) -> None:
    site, far.at_once = Site(tmp_path), at_once
    site.audience(range(1000))
    assert go(site, far).total.sent == 1000
    assert max(map(len, far.hand_overs)) == {1: 1, 7: 5}.get(at_once, 10)
    assert RATE * 0.95 < far.most_in_a_window() <= RATE
    assert far.arrived_us[-1] - AT_US < 1000 / (0.95 * RATE) * 1e6


@pytest.mark.parametrize("rate", [20, 5, 400])
def test_a_rate_that_is_changed_is_heeded_by_the_next_hand_over(tmp_path: Path, far: Timed, rate: int) -> None:
    site, changed_at = Site(tmp_path, {"batch": "5000"}), list[int]()
    site.audience(range(2000 if rate > RATE else 700))

    def change(sent: int) -> None:
        if sent >= 500 and not changed_at:
            changed_at.append(sent)
            with Ledger.read(site.path / "run", steer=True) as steered:
                steered.set(Settings(rate=f"{rate}/s"), "ann")

    far.on_send = change
    steering = go(site, far).steering
    assert steering is not None
    assert steering.speed is not None
    assert (steering.speed.rate, steering.speed.by, steering.version) == (f"{rate}/second", "ann", 2)
    (sent,) = changed_at
    assert 0.95 * RATE < far.most_in_a_window(0, sent) <= RATE
    window = bisect_right(far.arrived_us, far.arrived_us[sent - 1] + WINDOW_US)
    assert 0.94 * rate <= far.most_in_a_window(window) <= rate
    assert far.most_in_a_window() <= max(rate, RATE)


def test_a_slot_that_the_disk_missed_is_not_used(tmp_path: Path, far: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    record: Callable[..., Any] = SqliteCampaignStore.record

    def slowly(*args: Any, **named: Any) -> Any:
        far.clock.advance_us(30_000 if len(far.hand_overs) % 3 == 1 else 100)
        return record(*args, **named)

    turn, slots_us = Pace.turn, list[int]()

    def noted(pace: Pace, messages: int) -> float:
        until = turn(pace, messages)
        slots_us.append(far.clock.now_us())
        return until

    monkeypatch.setattr(SqliteCampaignStore, "record", slowly)
    monkeypatch.setattr(Pace, "turn", noted)
    assert go(Site(tmp_path), far).total.sent == 400
    assert len(slots_us) > len(far.hand_overs)
    assert all(at - slots_us[bisect_right(slots_us, at) - 1] <= 10_000 for at in far.arrived_us)


def test_others_of_the_key_are_waited_for_and_nobody_is_handed_over_meanwhile(tmp_path: Path, far: Timed) -> None:
    site = Site(tmp_path)
    job = with_sender(site.job(as_of=None, rate=f"{RATE}/s", sender=WEBHOOK), Timed(at_once=3))
    with Limiter("memory://", job.policies.policies, clock=far.clock, namespace="marketing") as limits:
        # Another campaign of the key, of slots up to far ahead.
        pace = Pace.of("summer-sale", Rate(f"{RATE}/s"), 3, limits)
        assert pace is not None
        while pace.limiter.schedule("capline-rate", "summer-sale", 2).wait < 10:
            pass
        assert go(site, far, limits).total.sent == 400
    assert far.arrived_us[0] >= AT_US + 10 * WINDOW_US
    assert set(far.tries.values()) == {1}


def test_a_key_has_one_rate(tmp_path: Path) -> None:
    site = Site(tmp_path, {"sender": WEBHOOK, "rate_key": "far"})
    for campaign, rate in (("one", "100/s"), ("two", "100/1s")):
        with open_run(site.job(as_of=None, campaign=campaign, rate=rate), tmp_path / f"{campaign}.run"):
            pass
    third = site.job(as_of=None, campaign="third", rate="200/s")
    with (
        pytest.raises(CampaignConflictError, match=r"rate_key 'far' has another rate than 200/s"),
        open_run(third, tmp_path / "third.run"),
    ):
        pass
    assert not (tmp_path / "third.run").exists()
    with open_run(site.job(as_of=None, campaign="third", rate="200/s", rate_key=None), tmp_path / "third.run"):
        pass


def test_the_delay_of_each_message_is_in_the_report_by_segment_and_goes_on_with_the_run(
    tmp_path: Path, far: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Due at 16:00, begun then: the first window's at once, the last ones after three seconds."""
    monkeypatch.setattr(SystemClock, "now_us", lambda _self: far.clock.now_us())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    report = go(Site(tmp_path), far)
    by_name = {part.segment: part.delays for part in report.segments}
    assert by_name["active"] == {"1 s": 100}
    assert by_name[None] == {"5 s": 100}
    assert report.total.delays == {"1 s": 100, "5 s": 300}
    far.clock.advance_us(20 * WINDOW_US)
    site = Site(tmp_path)
    with ledger_of(site.job(as_of=None, rate=f"{RATE}/s", sender=WEBHOOK), site.path / "run") as ledger:
        assert report_of(ledger).total.delays == report.total.delays
