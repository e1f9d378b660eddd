"""Workers and runs while messages are held, or a receiver is down: what is steered, stepped or begun meanwhile.

Counted at the receiver. Time is the test's: the machine's clock, and that of the server, are stepped together.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from tests.faults import test_clocks
from tests.faults.test_campaign_at_once import WITHIN_S, at_work
from tests.kit.campaign import Receiver, Site, receiver
from tests.kit.server import soon

from capline.campaign import Report, Stop, accept, load_campaign, open_run, prepare, report_of, run
from capline.campaign.ledger import Ledger, Settings
from capline.campaign.queue import worker
from capline.campaign.queue.enqueue import begin
from capline.campaign.queue.status import QueueStatus
from capline.campaign.store.open import open_store
from capline.model.clock import SystemClock
from capline.model.errors import CampaignError, UnknownNameError
from capline.support.instant import instant_text, zoned_instant_us

SECOND_US, HOUR_US = 1_000_000, 3_600_000_000
USERS = list(range(60))
library = test_clocks.library
pytestmark = pytest.mark.deep
NIGHTS = pytest.mark.parametrize(
    ("evening", "ends", "opens"),
    [
        ("2027-03-27T22:30:00Z", "2027-03-28T05:30:00Z", "2027-03-28T06:00:00Z"),
        ("2027-10-30T22:30:00Z", "2027-10-31T06:30:00Z", "2027-10-31T07:00:00Z"),
    ],
)
"""In each the clocks of Berlin change; the middle is half an hour before its 8 o'clock."""


@dataclass
class World:
    """Campaigns in one store on one log, with a receiver that says of whom it took a message, and when."""

    site: Site
    url: str
    far: Receiver
    step: Callable[[int], None]
    offset_us: int = 0

    def go_on(self, by_us: int) -> None:
        """Step the clocks between two batches: one in work has the time of before, and its server that of after."""
        soon(self.is_idle, WITHIN_S)
        self.offset_us += by_us
        self.step(self.offset_us)

    def is_idle(self) -> bool:
        with closing(open_store(self.url, make=True)) as store:
            return not any(store.state(name).in_work for name in store.ages_s())

    def go_to(self, instant: str) -> None:
        self.go_on(zoned_instant_us(instant) - SystemClock().now_us())

    def limits(self, limits: str) -> None:
        text = f"namespace: marketing\npolicies: {{promo: {{limits: [{limits}], zone: Europe/Berlin}}}}"
        (self.site.path / "policies.yaml").write_text(text)

    def write(self, name: str, ids: list[int], **settings: str | None) -> Path:
        users = self.site.path / f"{name}.csv"
        if not users.exists():
            users.write_text("id\n" + "".join(f"{user}\n" for user in ids))
        self.site.settings |= {"audience": f"{{csv: {name}.csv}}"}
        sender = f"{{webhook: {{url: '{self.far.url}', concurrency: 2}}}}"
        self.site.settings |= {"sender": sender, "batch": "20"}
        return self.site.write(**{"segments": None, "as_of": None, "campaign": name, **settings})

    def begin(self, name: str, ids: list[int] = USERS, **settings: str | None) -> None:
        self.write(name, ids, **settings)
        with closing(open_store(self.url, make=True)) as store:
            begin(accept(load_campaign(self.site.file)), store)

    def steer(self, name: str, change: Any) -> None:
        with closing(open_store(self.url)) as store:
            run = Ledger.of(store, name)
            if isinstance(change, Settings):
                run.set(change, "somebody")
            else:
                run.change(change, "somebody")

    def report(self, name: str) -> Any:
        with closing(open_store(self.url)) as store:
            return QueueStatus(store, name).report()

    def got(self) -> dict[int, list[str]]:
        """Of each user the campaigns whose message was taken, in their order."""
        by_user: defaultdict[int, list[str]] = defaultdict(list)
        for key, user in self.far.taken.items():
            by_user[user].append(key.partition("/")[0])
        return dict(by_user)

    def wait_for(self, messages: int) -> None:
        """So many were taken, and no more come."""
        assert soon(lambda: len(self.far.taken) >= messages, WITHIN_S), (len(self.far.taken), messages)
        assert not soon(lambda: len(self.far.taken) > messages, 0.7)

    def wait_until_held(self, name: str, messages: int) -> None:
        def is_so() -> bool:
            found = self.report(name)
            return found.total.held == messages and found.queue.waiting == found.queue.batches - found.queue.settled > 0

        assert soon(is_so, WITHIN_S), (self.report(name), messages)


@dataclass
class Alone:
    """A `campaign run` in a thread of this process."""

    directory: Path
    thread: threading.Thread

    @classmethod
    def begun(cls, world: World, name: str, say: Callable[[str], object] = print, **settings: str | None) -> Self:
        job = prepare(load_campaign(world.write(name, USERS, **settings)))
        directory = world.site.path / f"{name}.run"

        def work() -> None:
            with closing(Stop()) as stop, open_run(job, directory) as (limiter, ledger):
                run(job, limiter, ledger, stop, waits=True, say=say)

        thread = threading.Thread(target=work)
        thread.start()
        return cls(directory, thread)

    def report(self) -> Report:
        with Ledger.read(self.directory) as ledger:
            return report_of(ledger)

    def holds(self, messages: int) -> bool:
        with suppress(CampaignError):  # it has not begun
            return self.report().total.held == messages
        return False

    def is_put_off(self) -> bool:
        """Whether each of its batches waits for longer than a second."""
        with Ledger.read(self.directory) as ledger:
            return ledger.state().next_us > SystemClock().now_us() + SECOND_US


@pytest.fixture(params=["sqlite", "redis"])
def world(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Generator[World]:
    offset_us = [0]
    with ExitStack() as stack:
        steps: list[Callable[[int], None]] = [lambda now_us: offset_us.__setitem__(0, now_us)]
        url = f"sqlite://{tmp_path}/queue.sqlite"
        if request.param == "redis":
            preload = test_clocks.Preload(request.getfixturevalue("library"), tmp_path / "offset")
            server = stack.enter_context(test_clocks.stepped_server("redis", preload, monkeypatch))
            url = server.url

            def step(now_us: int) -> None:
                preload.step(now_us)
                assert soon(lambda: abs(int(server.command("TIME")[0]) - now_us / 1e6 - time.time()) < 2)

            steps.append(step)  # a batch that is due by the server is decided at the workers' new time
        monkeypatch.setattr(SystemClock, "now_us", lambda _self: time.time_ns() // 1000 + offset_us[0])  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        far = stack.enter_context(receiver())

        def step_all(now_us: int) -> None:
            for each in steps:
                each(now_us)

        yield World(Site(tmp_path), url, far, step_all)


@NIGHTS
def test_what_is_held_over_a_night_of_changed_clocks_goes_in_the_morning_or_ends(
    world: World, evening: str, ends: str, opens: str
) -> None:
    world.limits("5/week, not between 22:00 and 08:00")
    world.go_to(evening)
    world.begin("ends", quiet="hold", until=ends)
    world.begin("stays", quiet="hold", until=instant_text(zoned_instant_us(opens) + HOUR_US))
    with at_work(world.url, 2):
        for name in ("ends", "stays"):
            world.wait_until_held(name, 60)
        world.go_on(zoned_instant_us(ends) - SECOND_US - SystemClock().now_us())
        world.wait_for(0)
        assert soon(lambda: world.report("ends").state == "cancelled", WITHIN_S)
        world.go_to(instant_text(zoned_instant_us(opens) - 5 * SECOND_US))
        assert soon(lambda: len(world.far.taken) == 60, WITHIN_S)
        assert soon(lambda: world.report("stays").state == "finished", WITHIN_S)
        assert SystemClock().now_us() > zoned_instant_us(opens)
    assert world.got() == {user: ["stays"] for user in USERS}
    assert world.report("ends").total.refused == 60
    assert sum(world.report("stays").total.delays.values()) == 60


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
@NIGHTS
def test_what_runs_hold_over_a_night_of_changed_clocks_goes_in_the_morning_or_ends(
    world: World, evening: str, ends: str, opens: str
) -> None:
    world.limits("5/week, not between 22:00 and 08:00")
    world.go_to(evening)
    until = {"ends": ends, "stays": instant_text(zoned_instant_us(opens) + HOUR_US)}
    runs = {name: Alone.begun(world, name, quiet="hold", until=until[name]) for name in until}
    for each in runs.values():
        assert soon(lambda each=each: each.holds(60), WITHIN_S)
    world.go_to(instant_text(zoned_instant_us(ends) - SECOND_US))
    world.wait_for(0)
    runs["ends"].thread.join(WITHIN_S)
    assert runs["ends"].report().state == "cancelled"
    world.go_to(instant_text(zoned_instant_us(opens) - 5 * SECOND_US))
    runs["stays"].thread.join(WITHIN_S)
    assert SystemClock().now_us() > zoned_instant_us(opens)
    assert world.got() == {user: ["stays"] for user in USERS}
    assert (runs["ends"].report().total.refused, runs["stays"].report().state) == (60, "finished")
    assert sum(runs["stays"].report().total.delays.values()) == 60


def test_workers_that_decide_the_same_users_held_messages_send_them_in_their_order(world: World) -> None:
    """Clocks step back in between: nobody gets one sooner."""
    world.limits("1/hour")
    world.begin("first", over_cap="hold")
    with at_work(world.url, 3):
        world.wait_for(60)
        for name, priority in (("second", "50"), ("third", "50"), ("urgent", "80")):
            world.begin(name, over_cap="hold", priority=priority)
            world.wait_until_held(name, 60)
        for count in (2, 3, 4):
            world.go_on(-HOUR_US // 2)
            world.wait_for(60 * (count - 1))
            world.go_on(HOUR_US // 2)
            world.wait_for(60 * (count - 1))
            world.go_on(HOUR_US)
            world.wait_for(60 * count)
        for name in ("first", "second", "third", "urgent"):
            assert soon(lambda name=name: world.report(name).state == "finished", WITHIN_S)
    assert world.got() == {user: ["first", "urgent", "second", "third"] for user in USERS}
    assert set(world.far.tries.values()) == {4}


@pytest.mark.parametrize("then", ["pause", "cancel"])
def test_who_waits_behind_one_that_is_stopped_waits_no_more(world: World, then: str) -> None:
    """Of 3 units an hour one is left: it is enough for the one behind."""
    world.limits("3/hour")
    world.begin("before", cost="2")
    with at_work(world.url, 2):
        world.wait_for(60)
        world.begin("large", cost="3", over_cap="hold", priority="80")
        world.wait_until_held("large", 60)
        world.begin("small", over_cap="hold")
        world.wait_until_held("small", 60)
        world.wait_for(60)
        world.steer("large", then)
        world.wait_for(120)
        assert world.report("large").total.sent == 0
        if then == "pause":
            world.go_on(HOUR_US)
            world.wait_for(120)
            world.steer("large", "resume")
            world.wait_for(180)
        world.go_on(2 * HOUR_US)
        for name in ("before", "small", "large"):
            state = "cancelled" if (name, then) == ("large", "cancel") else "finished"
            assert soon(lambda name=name, state=state: world.report(name).state == state, WITHIN_S)
    assert world.got() == {user: ["before", "small", *["large"] * (then == "pause")] for user in USERS}
    assert world.report("large").total.refused == (60 if then == "cancel" else 0)


@pytest.mark.parametrize("then", ["cancel", "pause", "move", "end"])
def test_what_yielded_has_its_place_at_once_where_the_higher_one_needs_it_no_more(world: World, then: str) -> None:
    """Half of the users are to get a notice in five hours, and it is one a day."""
    world.limits("1/24h")
    now_us = SystemClock().now_us()
    world.begin("notice", USERS[:30], priority="80", send_at=instant_text(now_us + 5 * HOUR_US))
    world.begin("news", yields="true")
    with at_work(world.url, 2):
        world.wait_until_held("news", 30)
        world.wait_for(30)
        assert sorted(world.got()) == USERS[30:]
        began = time.monotonic()
        moved = Settings(send_at=instant_text(now_us + 50 * HOUR_US))
        ended = Settings(until=instant_text(now_us + 4 * HOUR_US), send_at=instant_text(now_us + 3 * HOUR_US))
        world.steer("notice", {"move": moved, "end": ended}.get(then, then))
        if then == "end":
            world.wait_for(30)
            world.go_on(3 * HOUR_US + 10 * SECOND_US)
            world.wait_for(60)
            assert world.got() == {user: ["news" if user >= 30 else "notice"] for user in USERS}
            return
        assert soon(lambda: len(world.far.taken) == 60, WITHIN_S)
        assert time.monotonic() - began < 20, "a minute is for what a worker has at that instant"
        assert soon(lambda: world.report("news").state == "finished", WITHIN_S)
        world.go_on(52 * HOUR_US)
        world.wait_for(90 if then == "move" else 60)
    assert world.got() == {user: ["news", *["notice"] * (then == "move" and user < 30)] for user in USERS}


def test_a_higher_one_that_comes_after_the_lower_has_begun_gets_what_is_left(world: World) -> None:
    world.limits("1/24h")
    world.begin("news", yields="true")

    def pause(count: int) -> None:
        if count == 20:
            world.steer("news", "pause")

    world.far.on_request = pause
    with at_work(world.url, 1):
        assert soon(lambda: len(world.far.taken) >= 20, WITHIN_S)
        assert soon(lambda: not world.report("news").queue.in_work, WITHIN_S)
        had = {*world.got()}
        world.begin("notice", priority="80", send_at=instant_text(SystemClock().now_us() + HOUR_US))
        world.steer("news", "resume")
        left = len({*USERS} - had)
        assert left >= 20
        world.wait_until_held("news", left)
        world.wait_for(len(had))
        world.go_on(HOUR_US + 5 * SECOND_US)
        for name in ("news", "notice"):
            assert soon(lambda name=name: world.report(name).state == "finished", WITHIN_S)
    counts = Counter(name for [name] in world.got().values())
    assert sum(counts.values()) == 60, "each one message"
    assert counts["notice"] >= 20
    assert all(world.got()[user] == ["news"] for user in had)


def test_a_policy_that_is_lowered_counts_for_what_is_held_and_one_that_is_removed_is_refused(world: World) -> None:
    world.limits("2/hour")
    for name in ("a", "b"):
        world.begin(name)
    with at_work(world.url, 2):
        world.wait_for(120)
        world.begin("held", over_cap="hold")
        world.wait_until_held("held", 60)
        world.limits("1/2h")
        world.begin("held", over_cap="hold")
        policies = world.site.path / "policies.yaml"
        policies.write_text("namespace: marketing\npolicies: {other: {limits: [9/hour]}}")
        with pytest.raises(UnknownNameError, match="promo"):
            world.begin("held", over_cap="hold")
        world.go_on(HOUR_US + SECOND_US)
        world.wait_for(120)
        world.go_on(HOUR_US)
        world.wait_for(180)
    assert world.report("held").total.sent == 60


def test_campaigns_wait_for_a_receiver_that_is_down_for_an_hour_and_others_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker asks it once in 30 s, a hand-over of 16 twice, of either campaign, and says so once a minute.

    The campaigns take turns, so each has something to tell: the line is the receiver's.
    """
    workers, said, told_at, rounds = 1, list[str](), list[float](), 0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + world.offset_us / SECOND_US)
    monkeypatch.setattr(worker, "time", clock)
    monkeypatch.setattr(worker, "_POLL_S", 0.02)
    world.limits("9/day")
    world.far.status = lambda _id, _tries: 503
    named: Any = {"retry": "{attempts: 2, wait: 0.001, longest: 0.002}"}

    def say(line: str) -> None:
        said.append(line)
        told_at.append(clock.monotonic())

    world.begin("spring", **named)
    world.begin("autumn", **named)
    with receiver() as other, at_work(world.url, workers, say):
        others: Any = {"sender": f"{{webhook: {{url: '{other.url}'}}}}"}
        world.begin("winter", **others)
        assert soon(lambda: len(other.taken) == 60, WITHIN_S), "others go on"
        assert soon(lambda: len(said) >= workers, WITHIN_S)
        first = world.far.requests
        while world.offset_us < HOUR_US:
            before, rounds = world.far.requests, rounds + 1
            for _ in range(2):  # shorter than a lease: a worker may just have a batch
                world.go_on(16 * SECOND_US)
            assert soon(lambda before=before: world.far.requests > before, WITHIN_S), "it is asked again"
            if rounds == 60:
                world.begin("late", **others)
        assert soon(lambda: len(other.taken) == 120, WITHIN_S)
        assert not world.far.taken
        assert world.far.requests - first < workers * 40 * (rounds + 1), "a breaker by receiver"
        world.far.status = lambda _id, _tries: 200
        world.go_on(31 * SECOND_US)
        world.wait_for(120)
        for name in ("spring", "autumn", "winter", "late"):
            assert soon(lambda name=name: world.report(name).state == "finished", WITHIN_S)
            assert (world.report(name).total.sent, world.report(name).total.failed) == (60, 0)
    assert {user: sorted(names) for user, names in world.got().items()} == {
        user: ["autumn", "spring"] for user in USERS
    }
    assert {len(keys) for keys in world.far.keys.values()} == {2}
    assert {line.partition(":")[0] for line in said} <= {"spring", "autumn"}
    assert all("messages in a row were not sent by webhook (HTTP 503); it is tried again" in line for line in said)
    assert 30 < len(said) <= workers * 61
    assert min(later - at for at, later in pairwise(told_at)) > 40, "a line a minute, where a try is every 30 s"


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_a_run_waits_for_a_receiver_that_is_down_for_an_hour(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks once a minute, a hand-over of 16 twice, says so, and then each of its users gets one message."""
    said = list[str]()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + world.offset_us / SECOND_US)
    monkeypatch.setattr(worker, "time", clock)
    monkeypatch.setattr(worker, "_POLL_S", 0.02)
    world.limits("9/day")
    world.far.status = lambda _id, _tries: 503
    alone = Alone.begun(world, "spring", said.append, batch="60", retry="{attempts: 2, wait: 0.001, longest: 0.002}")
    assert soon(lambda: bool(said), WITHIN_S)
    while world.offset_us < HOUR_US:
        assert soon(alone.is_put_off, WITHIN_S)
        world.go_on(31 * SECOND_US)
        soon(lambda: not alone.is_put_off(), 0.3)
    assert not world.far.taken
    assert world.far.requests <= 40 * 61, "one batch asks"
    world.far.status = lambda _id, _tries: 200
    while alone.thread.is_alive():
        world.go_on(31 * SECOND_US)
        alone.thread.join(1)
    report = alone.report()
    assert (report.state, report.total.sent, report.total.failed) == ("finished", 60, 0)
    assert set(world.got()) == {*USERS}
    assert {len(keys) for keys in world.far.keys.values()} == {1}
    assert 30 < len(said) <= 61
    assert all("messages in a row were not sent by webhook (HTTP 503); it is tried again" in line for line in said)
