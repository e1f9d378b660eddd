"""Campaigns that hold what is refused, on both stores: a worked example, and random histories beside a naive oracle."""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.kit.campaign import HOUR_US, Far, Site, with_sender
from tests.kit.servers import Server, single
from tests.profiles import size, sized

from capline import Limiter, ManualClock
from capline.campaign import Job, Stop, report_of, room
from capline.campaign.breaker import Breaker
from capline.campaign.deliver import AllHeld, Delivery, Paused, StepRecorder
from capline.campaign.ledger import Ledger
from capline.campaign.outcomes import outcome_of
from capline.campaign.pending import wake_others
from capline.campaign.queue.enqueue import begin, enqueue
from capline.campaign.senders.protocol import Messages, Outcomes
from capline.campaign.store.open import open_store
from capline.campaign.store.protocol import CampaignStore
from capline.campaign.store.records import Claimed, Over
from capline.campaign.store.sqlite_store import SqliteCampaignStore
from capline.campaign.store_facts import store_input
from capline.model.errors import CampaignConflictError, CampaignError
from capline.policy.file import load
from capline.policy.joint import JointPolicy

SECOND_US = 1_000_000
START_US = (time.time_ns() // 1000 // (24 * HOUR_US) - 5000) * 24 * HOUR_US + 16 * HOUR_US
"""Long ago: to a server, whose clock is its own, all that is due in a history is due."""
SENDS = (9, 13, 17, 32, 33 + 1 / 60, 34, 35, 38)
"""Hours of two days."""


class Killed(BaseException):
    """What kill -9 is to a process."""


@dataclass
class Noted(Far):
    """A receiver that keeps keys, and says what came that was not there."""

    note: Callable[[list[int]], object] = print

    def send(self, messages: Messages) -> Outcomes:
        taken = {*self.taken}
        outcomes = super().send(messages)
        self.note([subject for key, subject in self.taken.items() if key not in taken])
        return outcomes


@dataclass
class World:
    """Campaigns in one store and on one log, in a time of their own."""

    path: Path
    store: CampaignStore
    clock: ManualClock
    limits: str
    others: str = ""
    sent: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    due_us: dict[str, int] = field(default_factory=dict[str, int])
    paused: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.site = Site(self.path)
        self.site.settings.pop("segments")
        policies = self.path / "policies.yaml"
        promo = f"promo: {{limits: [{self.limits}], channels: {{push: [9/24h]}}}}"
        policies.write_text(f"namespace: marketing\npolicies: {{{promo}{self.others}}}")
        file = load(policies)
        by_name = {policy.name: policy for policy in file.policies}
        both = [JointPolicy([by_name["promo"], by_name["tag"]])] if "tag" in by_name else []
        self.limiter = Limiter(self.site.store, [*file.policies, *both], namespace=file.namespace, clock=self.clock)

    def begin(self, name: str, ids: Sequence[int], *, due_us: int = 0, **settings: str) -> None:
        def note(ids: list[int]) -> None:
            self.sent += [(self.clock.now_us(), name, subject) for subject in ids]

        self.site.audience(ids)
        self.jobs[name] = with_sender(self.site.job(campaign=name, as_of=None, **settings), Noted(note=note))
        enqueue(self.jobs[name], self.store)
        self.store.freeze_store(name, store_input(self.limiter))
        self.store.steer(name, due_us=due_us or self.clock.now_us())
        self.due_us.setdefault(name, due_us or self.clock.now_us())
        self.settle()

    def settle(self) -> None:
        """Whatever is due now, higher priority first."""
        while due := [
            name for name, at in self.due_us.items() if at <= self.clock.now_us() and name not in self.paused
        ]:
            jobs = self.jobs
            self.deliver(min(due, key=lambda name: (-jobs[name].file.priority, [*jobs].index(name))))

    def deliver(self, name: str) -> None:
        job = self.jobs[name]
        claimed = self.store.claim(name, "w", 60)
        if isinstance(claimed, Over):
            del self.due_us[name]
            return
        assert isinstance(claimed, Claimed), claimed
        run = self.store.find(name)
        assert run is not None
        with closing(Stop()) as stop:
            delivery = Delivery(run, job.file, job.policy, self.limiter, Breaker(0))
            try:
                delivery.deliver(StepRecorder(self.store, claimed, stop), *delivery.read(claimed))
            except AllHeld as held:
                in_time = isinstance(self.store, SqliteCampaignStore)
                self.store.release(claimed, "give_back", wait_s=held.wait_s if in_time else 0)
                self.due_us[name] = self.clock.now_us() + round(held.wait_s * 1e6)
            except Paused:
                self.store.release(claimed, "give_back")
            except Killed:
                pass  # the same worker is given the same batch again

    def go_on(self, until_us: int) -> None:
        while True:
            nexts = [at for name, at in self.due_us.items() if name not in self.paused]
            if not nexts or min(nexts) > until_us:
                break
            self.clock.advance_us(max(0, min(nexts) - self.clock.now_us()))
            self.settle()
        self.clock.advance_us(until_us - self.clock.now_us())

    def steer(self, name: str, change: Any) -> None:
        try:
            self.steered(lambda: Ledger.of(self.store, name).change(change, "somebody"))
        except CampaignConflictError:
            return
        if change == "pause":
            self.paused.add(name)
        else:
            self.paused.discard(name)
        if change == "cancel" and name in self.due_us:
            self.due_us[name] = self.clock.now_us()
        self.settle()

    def steered(self, steer: Callable[[], object]) -> None:
        """What others hold is due, since it may have waited for the one that is steered."""
        wake = self.store.wake

        def woken(other: str, numbers: Sequence[int]) -> None:
            wake(other, numbers)
            self.due_us[other] = self.clock.now_us()

        with pytest.MonkeyPatch.context() as noted:
            noted.setattr(self.store, "wake", woken)
            steer()


@dataclass(order=True)
class Message:
    """A held message, in the order of its turn."""

    rank: int
    first_us: int
    campaign: str
    subject: int
    cost: int = field(compare=False)
    due_us: int = field(compare=False)
    yields: bool = field(compare=False)
    policies: tuple[str, ...] = field(compare=False)
    begun: bool = field(default=False, compare=False)


@dataclass
class Naive:
    """The rule, one message at a time: no batches, no stores."""

    limits: dict[str, list[tuple[int, int]]]
    now_us: int
    hits: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    held: list[Message] = field(default_factory=list[Message])
    sent: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])
    paused: set[str] = field(default_factory=set[str])
    policies: dict[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    def stamp_us(self, policies: Sequence[str], subject: int, at_us: int) -> int:
        """The stamps of a log are all different, a hit is judged at its own, and has one in all logs."""
        stamps = [stamp_us for policy in policies for stamp_us, _ in self.hits[policy, subject]]
        return max(at_us, 1 + max(stamps, default=0))

    def fits(
        self, policies: Sequence[str], subject: int, cost: int, at_us: int, higher: Sequence[Message] = ()
    ) -> bool:
        at_us = self.stamp_us(policies, subject, at_us)
        return all(
            cost
            + sum(units for stamp_us, units in self.hits[policy, subject] if at_us - stamp_us < window_us)
            + sum(each.cost for each in higher if policy in each.policies and each.due_us < self.now_us + window_us)
            <= quota
            for policy in policies
            for quota, window_us in self.limits[policy]
        )

    def fits_at(self, policies: Sequence[str], subject: int, cost: int, higher: Sequence[Message]) -> int:
        """When it fits; those of a higher priority may be decided when they are due, or go meanwhile."""
        ends = {
            stamp_us + window_us
            for policy in policies
            for stamp_us, _ in self.hits[policy, subject]
            for _, window_us in self.limits[policy]
        }
        fits = [end for end in ends if self.fits(policies, subject, cost, end, higher)]
        next_us = (self.now_us // SECOND_US + 1) * SECOND_US
        fits += [min(max(each.due_us, next_us), self.now_us + room.LOOK_AGAIN_US) for each in higher]
        return -(-min(fits) // SECOND_US) * SECOND_US

    def record(self, policies: Sequence[str], subject: int, cost: int) -> None:
        stamp_us = self.stamp_us(policies, subject, self.now_us)
        for policy in policies:
            self.hits[policy, subject].append((stamp_us, cost))

    def begin(
        self,
        name: str,
        ids: Sequence[int],
        *,
        priority: int,
        cost: int,
        due_us: int = 0,
        yields: bool = False,
        policies: tuple[str, ...] = ("promo",),
    ) -> None:
        due_us = due_us or self.now_us
        self.policies[name] = policies
        self.held += [Message(-priority, due_us, name, subject, cost, due_us, yields, policies) for subject in ids]
        self.settle()

    def wants_the_same(self, one: Message, other: Message) -> bool:
        """Whether the other is due while a hit of now counts, on some log of both."""
        return any(
            other.due_us < self.now_us + window_us
            for policy in {*one.policies} & {*other.policies}
            for _, window_us in self.limits[policy]
        )

    def settle(self) -> None:
        while ready := [each for each in self.active() if each.due_us <= self.now_us]:
            one = min(ready)
            if not one.begun:
                one.begun, one.first_us = True, self.now_us
            others = [each for each in self.active() if each.subject == one.subject and each is not one]
            others = [each for each in others if {*each.policies} & {*one.policies}]
            before = [each for each in others if each.begun and each < one]
            higher = [each for each in others if one.yields and each.rank < one.rank]
            higher = [each for each in higher if self.wants_the_same(one, each)]
            if before:
                later = (self.now_us // SECOND_US + 1) * SECOND_US
                one.due_us = max(each.due_us + 1000 if each.due_us > self.now_us else later for each in before)
            elif self.fits(one.policies, one.subject, one.cost, self.now_us, higher):
                self.record(one.policies, one.subject, one.cost)
                self.sent.append((self.now_us, one.campaign, one.subject))
                self.held.remove(one)
            else:
                one.due_us = self.fits_at(one.policies, one.subject, one.cost, higher)

    def steer(self, name: str, change: str, *, is_open: bool) -> None:
        """Whatever the others hold may have waited for this one."""
        (self.paused.add if change == "pause" else self.paused.discard)(name)
        if change == "cancel":
            self.held = [each for each in self.held if each.campaign != name]
        for each in self.active():
            on_one_log = {*each.policies} & {*self.policies[name]}
            if is_open and change != "resume" and each.begun and each.campaign != name and on_one_log:
                each.due_us = self.now_us
        self.settle()

    def active(self) -> list[Message]:
        return [each for each in self.held if each.campaign not in self.paused]

    def go_on(self, until_us: int) -> None:
        while (next_us := min((each.due_us for each in self.active()), default=until_us + 1)) <= until_us:
            self.now_us = max(self.now_us, next_us)
            self.settle()
        self.now_us = until_us


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with single("redis") as running:
        yield running


@pytest.fixture(params=["sqlite", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[tuple[CampaignStore, ManualClock]]:
    clock = ManualClock(start_us=START_US)
    if request.param == "sqlite":
        with SqliteCampaignStore(tmp_path / "campaigns.sqlite", clock=clock) as store:
            yield store, clock
    else:
        server = request.getfixturevalue("server")
        server.command("FLUSHALL")
        with closing(open_store(server.url, make=True)) as store:
            yield store, clock


@pytest.mark.parametrize("over_cap", ["drop", "hold"])
def test_the_worked_example(opened: tuple[CampaignStore, ManualClock], tmp_path: Path, over_cap: str) -> None:
    """The example of docs/howto/winning.md: 3 in 24 hours, 8 campaigns for the same 20 people."""
    store, clock = opened
    world = World(tmp_path, store, clock, "3/24h")
    start_us = START_US - START_US % (24 * HOUR_US) + 24 * HOUR_US
    for number, hour in enumerate(SENDS):
        world.go_on(start_us + round(hour * 60) * HOUR_US // 60)
        if number == 4 and over_cap == "hold":
            report = report_of(Ledger.of(store, "c3"))
            assert (report.total.sent, report.total.held, report.state) == (20, 0, "finished")
        world.begin(f"c{number}", range(20), over_cap=over_cap)
    world.go_on(start_us + 80 * HOUR_US)
    sent = {name: (at_us - start_us) / HOUR_US for at_us, name, _ in world.sent}
    hours = {"drop": {0: 9, 1: 13, 2: 17, 4: SENDS[4], 7: 38}, "hold": dict(enumerate((9, 13, 17, 33, 37, 41, 57, 61)))}
    assert sent == {f"c{number}": hour for number, hour in hours[over_cap].items()}
    assert len(world.sent) == 20 * len(sent)
    world.limiter.close()


def outcome(world: World, name: str, subject: int) -> tuple[str, str | None, bool]:
    found = outcome_of(Ledger.of(world.store, name), subject)
    assert found is not None
    return found.outcome, found.limit, found.hit_us is not None


def test_what_quiet_hours_refuse_is_held_apart_from_what_a_cap_refuses(
    opened: tuple[CampaignStore, ManualClock], tmp_path: Path
) -> None:
    store, clock = opened
    world = World(tmp_path, store, clock, "2/48h, not between 22:00 and 08:00")
    day_us = START_US - START_US % (24 * HOUR_US) + 24 * HOUR_US
    world.go_on(day_us + 23 * HOUR_US)
    world.begin("over-night", [1, 2], quiet="hold")
    world.begin("dropped", [1, 2], over_cap="hold")
    assert [outcome(world, name, 1)[0] for name in ("over-night", "dropped")] == ["held", "refused"]
    world.begin("first", [1], quiet="hold", priority="90")
    world.begin("second", [1], quiet="hold", priority="80")
    world.go_on(day_us + 33 * HOUR_US)
    assert {at_us // SECOND_US * SECOND_US - day_us for at_us, *_ in world.sent} == {32 * HOUR_US}
    assert [name for _, name, subject in world.sent if subject == 1] == ["first", "second"]
    assert [name for _, name, subject in world.sent if subject == 2] == ["over-night"]
    assert outcome(world, "over-night", 1) == ("refused", "2/2 days", False)
    world.limiter.close()


def test_a_held_message_takes_nothing_and_ends_with_its_campaign_or_its_recipient(
    opened: tuple[CampaignStore, ManualClock], tmp_path: Path
) -> None:
    store, clock = opened
    world = World(tmp_path, store, clock, "1/24h")
    (tmp_path / "optouts.csv").write_text("id\n99\n")
    world.begin("before", [1, 2, 3], over_cap="hold")
    world.begin("higher", [1], over_cap="hold", priority="90")
    world.begin("held", [1, 2, 3], over_cap="hold", exclude="{csv: optouts.csv}")
    assert [outcome(world, "held", subject) for subject in (1, 2)] == [("held", "1/day", False)] * 2
    assert [len(world.limiter.explain("promo", subject).hits) for subject in (1, 2)] == [1, 1]
    (tmp_path / "new.csv").write_text("id\n2\n")
    (tmp_path / "new.csv").replace(tmp_path / "optouts.csv")
    world.go_on(START_US + 25 * HOUR_US)
    assert {*world.sent[3:]} == {(START_US + 24 * HOUR_US, "higher", 1), (START_US + 24 * HOUR_US, "held", 3)}
    assert [outcome(world, "held", subject) for subject in (1, 2)] == [
        ("held", "1/day", False),
        ("excluded", None, False),
    ]
    world.steer("held", "cancel")
    assert outcome(world, "held", 1) == ("refused", "1/day", False)
    assert store.state("held").finished
    world.go_on(START_US + 100 * HOUR_US)
    assert len(world.sent) == 5
    world.limiter.close()


SAME, SENT, REFUSED = ("held", "1/day", False), ("sent", None, True), ("refused", "1/day", False)
NOTICE = {"priority": "80", "exclude": "{csv: out.csv}"}


@pytest.mark.parametrize(
    ("notice", "later_h", "then", "meanwhile", "ends"),
    [
        ({}, 5, None, SAME, REFUSED),
        ({}, 5, "cancel", SAME, SENT),
        ({}, 5, "pause", SAME, SENT),
        ({}, 5, "move", SAME, SENT),
        ({}, 24, None, SENT, SENT),
        ({}, 24 - 1 / HOUR_US, None, SAME, REFUSED),
        ({"priority": "50"}, 5, None, SENT, SENT),
        ({"channel": "push"}, 5, None, SAME, REFUSED),
        ({"policy": "other"}, 5, None, SENT, SENT),
        ({"exclude": "{csv: users.csv}"}, 5, None, SENT, SENT),
        ({"holdout": "99.999999999999%"}, 5, None, SENT, SENT),
    ],
)
def test_a_campaign_yields_to_a_pending_one_of_higher_priority(
    opened: tuple[CampaignStore, ManualClock],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    notice: dict[str, str],
    later_h: float,
    then: str | None,
    meanwhile: tuple[str, str | None, bool],
    ends: tuple[str, str | None, bool],
) -> None:
    """A notice is due later; a newsletter is asked for now, for one user more. What happens an hour later?"""
    store, clock = opened
    monkeypatch.setattr(room, "LOOK_AGAIN_US", HOUR_US)
    world = World(tmp_path, store, clock, "1/24h", ", other: {limits: [1/24h]}")
    (tmp_path / "out.csv").write_text("id\n99\n")
    due_us = clock.now_us() + round(later_h * HOUR_US)
    world.begin("notice", [1, 2], due_us=due_us, **{**NOTICE, **notice})
    world.begin("news", [1, 2, 3], yields="true")
    assert [outcome(world, "news", subject) for subject in (1, 3)] == [meanwhile, SENT]
    world.go_on(clock.now_us() + HOUR_US)
    assert outcome(world, "news", 1) == meanwhile
    if then == "move":
        assert store.steer("notice", due_us=due_us + 48 * HOUR_US)  # whose time has come by a server's clock
        world.steered(lambda: wake_others(store, Ledger.of(store, "notice").run))
        world.due_us["notice"] += 48 * HOUR_US
    elif then is not None:
        world.steer("notice", then)
    world.settle()
    assert outcome(world, "news", 1) == (ends if then else meanwhile), "at once"
    world.go_on(due_us + SECOND_US)
    assert outcome(world, "news", 2) == ends
    assert store.state("news").finished
    world.limiter.close()


def test_what_is_left_free_is_of_each_limit(opened: tuple[CampaignStore, ManualClock], tmp_path: Path) -> None:
    """One due tomorrow does not take of a day, one due next week not of a week; one begun later takes what is left."""
    store, clock = opened
    world = World(tmp_path, store, clock, "1/calendar-day, 2/168h, not between 22:00 and 23:00")
    world.begin("tomorrow", [1], due_us=clock.now_us() + 9 * HOUR_US, priority="80")
    world.begin("later", [1], due_us=clock.now_us() + 100 * HOUR_US, priority="90", over_cap="hold")
    world.begin("news", [1, 2], yields="true")
    assert [outcome(world, "news", subject) for subject in (1, 2)] == [("held", "2/week", False), SENT]
    world.begin("first", [1])
    assert outcome(world, "first", 1) == SENT
    world.go_on(clock.now_us() + 200 * HOUR_US)
    assert [name for _, name, subject in world.sent if subject == 1] == ["first", "tomorrow", "later"]
    assert outcome(world, "news", 1) == ("refused", "2/week", False)
    world.begin("news-again", [1], yields="true")
    world.begin("late", [1], due_us=clock.now_us() + HOUR_US, priority="80")
    world.go_on(clock.now_us() + 2 * HOUR_US)
    assert [outcome(world, name, 1)[0] for name in ("news-again", "late")] == ["sent", "refused"]
    world.limiter.close()


def test_whom_a_higher_one_wants_is_waited_for(opened: tuple[CampaignStore, ManualClock], tmp_path: Path) -> None:
    store, clock = opened
    world = World(tmp_path, store, clock, "1/24h")
    world.site.audience([1])
    notice = world.site.job(campaign="notice", as_of=None, priority="80")
    begin(notice, store)
    world.begin("news", [1, 2], yields="true")
    assert {each[0] for each in (outcome(world, "news", 1), outcome(world, "news", 2))} == {"held"}
    world.site.audience([1])
    enqueue(notice, store)
    store.steer("notice", due_us=clock.now_us() + HOUR_US)
    world.go_on(clock.now_us() + SECOND_US)
    assert [outcome(world, "news", subject)[0] for subject in (1, 2)] == ["held", "sent"]
    world.limiter.close()


def test_a_policy_that_changed_meanwhile_decides(opened: tuple[CampaignStore, ManualClock], tmp_path: Path) -> None:
    store, clock = opened
    world = World(tmp_path, store, clock, "1/24h")
    world.begin("before", [1], over_cap="hold")
    world.begin("held", [1], over_cap="hold")
    policies = tmp_path / "policies.yaml"
    policies.write_text("namespace: marketing\npolicies: {promo: {limits: [1/30h]}}")
    world.limiter.close()
    world.limiter = Limiter.from_file(policies, world.site.store, clock=clock)
    world.begin("held", [1], over_cap="hold")
    run = store.find("held")
    assert run is not None
    assert b"1/30h" in run.policies
    world.go_on(START_US + 40 * HOUR_US)
    assert [at_us - START_US for at_us, *_ in world.sent] == [0, 30 * HOUR_US]
    with pytest.raises(CampaignError, match="enqueued with another over_cap"):
        world.begin("held", [1])
    world.limiter.close()


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"transactional": "true", "over_cap": "hold"}, "a transactional message goes to everyone"),
        ({"transactional": "true", "quiet": "drop"}, "a transactional message goes to everyone"),
        ({"transactional": "true", "yields": "true"}, "a transactional message goes to everyone"),
        ({"as_of": "2026-01-01T00:00:00Z", "over_cap": "hold"}, "a rehearsal waits for nothing"),
        ({"as_of": "2026-01-01T00:00:00Z", "yields": "true"}, "a rehearsal waits for nothing"),
        ({"yields": "true", "policy": "barred"}, "counts what it refuses"),
        ({"over_cap": "wait"}, "over_cap"),
        ({"over_cap": "hold", "policy": "barred"}, "counts what it refuses"),
    ],
)
def test_what_cannot_be_held(tmp_path: Path, settings: dict[str, str], what: str) -> None:
    site = Site(tmp_path)
    barred = "barred: {limits: [1/24h], count_denied: true}"
    (tmp_path / "policies.yaml").write_text(f"namespace: marketing\npolicies: {{promo: {{limits: [1/24h]}}, {barred}}}")
    with pytest.raises(CampaignError, match=what):
        site.job(**{"segments": None, "as_of": None, **settings})


@sized
@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize(("yielding", "several"), [(0, 0), (0.8, 0), (0, 0.5), (0.8, 0.5)])
def test_random_histories_end_as_the_rule_says(
    opened: tuple[CampaignStore, ManualClock],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dies: bool,
    yielding: float,
    several: float,
) -> None:
    store, clock = opened
    monkeypatch.setattr(room, "LOOK_AGAIN_US", HOUR_US)
    for seed in range(size(2 if not several else 1, 8 if yielding or several else 12, 25)):
        with pytest.MonkeyPatch.context() as kills:
            history(tmp_path / str(seed), store, clock, random.Random(seed), kills if dies else None, yielding, several)


def beginning(
    path: Path, store: CampaignStore, clock: ManualClock, rng: random.Random, several: float
) -> tuple[World, Naive]:
    """Two policies, of which campaigns have one or, where there are several, both."""
    limits = {"promo": rng.choice([[(2, 24)], [(3, 24), (4, 48)], [(1, 1), (3, 12)], [(2, 6)]])}
    limits["tag"] = rng.choice([[(2, 12)], [(2, 8), (3, 72)]]) if several else limits["promo"]
    texts = [", ".join(f"{quota}/{hours}h" for quota, hours in own) for own in limits.values()]
    of_policies = {name: [(quota, hours * HOUR_US) for quota, hours in own] for name, own in limits.items()}
    world = World(path, store, clock, texts[0], f", tag: {{limits: [{texts[1]}]}}")
    return world, Naive(of_policies, clock.now_us())


def history(
    path: Path,
    store: CampaignStore,
    clock: ManualClock,
    rng: random.Random,
    kills: pytest.MonkeyPatch | None,
    yielding: float,
    several: float,
) -> None:
    path.mkdir()
    world, naive = beginning(path, store, clock, rng, several)
    least = min(quota for own in naive.limits.values() for quota, _ in own)
    names: list[str] = []
    if kills is not None:
        dying(world, kills, rng)
    for _ in range(25):
        at_us = clock.now_us() + rng.randrange(1, 8 * 60) * 60 * SECOND_US + rng.randrange(SECOND_US)
        world.go_on(at_us)
        naive.go_on(at_us)
        kind = rng.choice(["begin", "begin", "begin", "call", "pause", "resume", "cancel"])
        if kind == "begin":
            names.append(name := f"{path.name}-{len(names)}")
            ids, priority = sorted(rng.sample(range(8), rng.randrange(1, 6))), rng.choice([20, 50, 50, 80])
            cost = rng.choice([1, 1, 1, least])
            yields, later_us = rng.random() < yielding, rng.randrange(1, 20 * HOUR_US)
            due_us = clock.now_us() + later_us if rng.random() < yielding else 0
            named = {"over_cap": "hold", "priority": str(priority), "cost": str(cost), "yields": str(yields).lower()}
            policies = ("promo",) if rng.random() >= several else rng.choice([("promo", "tag"), ("tag",)])
            named["policy"] = f"[{', '.join(policies)}]"
            world.begin(name, ids, due_us=due_us, **named)
            naive.begin(name, ids, priority=priority, cost=cost, due_us=due_us, yields=yields, policies=policies)
        elif kind == "call":
            subject, policy = rng.randrange(8), "tag" if rng.random() < several else "promo"
            allowed = world.limiter.decide(policy, subject).allowed
            assert allowed == naive.fits([policy], subject, 1, naive.now_us)
            if allowed:
                naive.record([policy], subject, 1)
        elif names:
            name = rng.choice(names)
            is_open = not (store.state(name).finished or store.state(name).cancelled)
            world.steer(name, kind)
            naive.steer(name, kind, is_open=is_open)
        assert not (apart := sorted({*world.sent} ^ {*naive.sent})), (path.name, kind, apart)
    for name in names:
        world.steer(name, "resume")
        naive.steer(name, "resume", is_open=True)
    end_us = naive.now_us + 2000 * HOUR_US
    world.go_on(end_us)
    naive.go_on(end_us)
    assert not (apart := sorted({*world.sent} ^ {*naive.sent})), (path.name, apart)
    assert not naive.held
    assert all(store.state(name).finished for name in names)
    if kills is not None:
        kills.undo()
    world.limiter.close()


def dying(world: World, kills: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Steps of a batch die now and then, before or after they are done."""

    def over(owner: type, name: str) -> None:
        step: Callable[..., Any] = getattr(owner, name)

        def taken(*args: Any, **named: Any) -> Any:
            if rng.random() < 0.1:
                raise Killed
            answer = step(*args, **named)
            if rng.random() < 0.1:
                raise Killed
            return answer

        kills.setattr(owner, name, taken)

    over(Limiter, "decide_many")
    over(type(world.store), "record")
    over(Noted, "send")
