"""Every kind of limit and algorithm on a server beside the reference: random verbs, costs, ids, zones, steps of time.

Each setting is some policies that meet on the same subjects, and a scale of time at which their logs fill and windows
slide within a few steps. The law itself is in the conformance suite; this looks for what nobody thought of.
"""

import random
import re
import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.kit.server import SLOW
from tests.kit.servers import KINDS, shared
from tests.profiles import first, size, sized

from capline import Attempt, Decision, Limiter, ManualClock, Policy
from capline.model.errors import IdConflictError
from capline.testing import Reference
from capline.testing.conformance import Awaited

NOW_US = 1_700_000_000_000_000
MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
ZONES = (
    "Europe/Berlin",
    "America/Sao_Paulo",
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "UTC",
    "Pacific/Apia",
    "America/St_Johns",
)


def _at(*date: int) -> int:
    return int(datetime(*date, tzinfo=UTC).timestamp()) * 1_000_000  # type: ignore[arg-type]


VERBS = (
    *("decide",) * 7,
    *("decide_named", "schedule") * 3,
    *("peek", "refund", "joint") * 2,
    *("many", "batch", "same_history"),
)


class Setting(msgspec.Struct):
    """Policies as (name, limits, options), how far time goes in a step, where it begins, and what attempts may name."""

    policies: list[tuple[str, list[str], dict[str, Any]]]
    step_us: int
    start_us: int = NOW_US
    costs: tuple[int, ...] = (1, 1, 1, 2, 3)
    zones: tuple[str | None, ...] = (None,)
    segments: dict[str, tuple[str | None, ...]] = {}
    channels: dict[str, tuple[str | None, ...]] = {}
    warm_up: int = 0
    change_us: int | None = None
    """An instant to be at now and then: when clocks are set."""


def _calendar(start_us: int, *zones: str | None, step_us: int = 7 * HOUR_US, change_us: int | None = None) -> Setting:
    return Setting(
        [
            ("day", ["3/calendar-day", "9/calendar-week", "4/30 hours"], {"zone": "America/Sao_Paulo"}),
            ("quiet", ["not between 22:00 and 08:00", "4/calendar-day", "gap 50 minutes"], {"zone": "Europe/Berlin"}),
            (
                "two",
                ["3/12 hours", "not between 23:30 and 00:40", "not between 12:00 and 14:30"],
                {"algorithm": "bucketed", "count_denied": True},
            ),
            ("level", ["5/day", "not between 06:00 and 05:00"], {"algorithm": "gcra", "zone": "Asia/Kathmandu"}),
            ("never", ["9/day", "not between 06:00 and 18:00", "not between 17:00 and 07:00"], {}),
        ],
        step_us=step_us,
        start_us=start_us,
        zones=zones or (None, *ZONES),
        change_us=change_us,
    )


SETTINGS = {
    "bucketed": Setting(
        [
            (
                "p",
                ["9/60us", "20/400us"],
                {"algorithm": "bucketed", "granularity": "7us", "by_segment": {"vip": ["15/60us", "40/900us"]}},
            ),
            ("denied", ["4/50us"], {"algorithm": "bucketed", "granularity": "10us", "count_denied": True}),
            ("fine", ["6/30us"], {"algorithm": "bucketed", "log": "p", "granularity": "3us"}),
        ],
        step_us=12,
        costs=(1, 1, 1, 2, 3, 30),
        segments={"p": (None, "vip")},
    ),
    "counter": Setting(
        [
            ("odd", ["7/11us"], {"algorithm": "sliding_counter"}),
            ("both", ["9/30us", "25/170us"], {"algorithm": "sliding_counter"}),
            ("other", ["5/30us", "9/170us"], {"algorithm": "sliding_counter", "log": "both"}),
        ],
        step_us=9,
        costs=(1, 1, 2, 4, 9),
    ),
    "gcra": Setting(
        [
            ("odd", ["7/11us"], {"algorithm": "gcra"}),
            ("both", ["9/30us", "25/170us"], {"algorithm": "gcra"}),
            ("none", ["0/30us"], {"algorithm": "gcra"}),
        ],
        step_us=9,
        costs=(1, 1, 2, 4, 9),
    ),
    "large": Setting(
        [
            ("counter", ["1000003/3s"], {"algorithm": "sliding_counter"}),
            ("most", ["4294967296/7 days"], {"algorithm": "sliding_counter"}),
            ("gcra", ["1000003/3s"], {"algorithm": "gcra"}),
            ("level", ["104729/23h"], {"algorithm": "gcra"}),
            ("quiet", ["9007199254740991/3s", "not between 08:00 and 20:00"], {}),
        ],
        step_us=1_100_000,
        costs=(1, 3, 1000, 77_777, 333_333, 1_000_003, 1_431_655_765, 4_294_967_296, 1 << 46),
    ),
    "denied": Setting(
        [
            ("p", ["3/20us", "5/90us"], {"count_denied": True, "channels": {"push": ["2/30us"], "mail": ["1/9us"]}}),
            ("q", ["4/40us"], {"log": "p"}),
        ],
        step_us=12,
        costs=(1, 1, 1, 2, 3, 200),
        channels={"p": (None, "push", "mail")},
    ),
    "denied-long": Setting(
        [("p", ["150/300us", "180/2000us"], {"count_denied": True}), ("q", ["190/900us"], {"log": "p"})],
        step_us=3,
        costs=(1, 1, 1, 1, 2, 5, 1000),
        warm_up=330,
    ),
    "bucketed-long": Setting(
        [
            ("p", ["400/400us", "1000/4000us"], {"algorithm": "bucketed", "granularity": "2us"}),
            ("d", ["300/400us"], {"algorithm": "bucketed", "granularity": "1us", "count_denied": True}),
        ],
        step_us=4,
        costs=(1, 1, 1, 2, 9),
        warm_up=400,
    ),
    "berlin-spring": _calendar(_at(2024, 3, 27)),
    "berlin-autumn": _calendar(_at(2024, 10, 23)),
    "sao-paulo-skips-midnight": _calendar(_at(2018, 11, 1)),
    "sao-paulo-midnight-twice": _calendar(_at(2018, 2, 14)),
    "casablanca": _calendar(_at(2024, 4, 10)),
    "apia-skips-a-day": _calendar(_at(2011, 12, 27)),
    "sao-paulo-skips-closely": _calendar(
        _at(2018, 11, 3, 22), "America/Sao_Paulo", step_us=30 * MINUTE_US, change_us=_at(2018, 11, 4, 3)
    ),
    "sao-paulo-twice-closely": _calendar(
        _at(2018, 2, 18), "America/Sao_Paulo", step_us=30 * MINUTE_US, change_us=_at(2018, 2, 18, 2)
    ),
    # One minute past midnight the clock goes back to one minute past eleven.
    "st-johns-closely": _calendar(
        _at(2010, 11, 7, 2), "America/St_Johns", step_us=15 * MINUTE_US, change_us=_at(2010, 11, 7, 2, 31)
    ),
}


UNITS = Setting(
    [
        ("p", ["9/90us", "20/400us"], {}),
        ("week", ["14/120us", "100/9ms", "4000/20 days"], {}),
        ("long", ["30/200us", "1000/2s"], {}),
    ],
    step_us=9,
)


class Pair:
    """A store and the reference, asked the same."""

    def __init__(self, url: str, setting: Setting, layout: str, seed: str, *, asynchronous: bool = False) -> None:
        self.setting = setting
        self.chance = random.Random(seed)
        self.clock = ManualClock(setting.start_us)
        laid_out: dict[str, Any] = {"layout": layout, "population": 100}
        policies = [Policy(name, limits, **laid_out | options) for name, limits, options in setting.policies]
        kind: Any = Awaited if asynchronous else Limiter
        self.limiter = kind(f"{url}?{SLOW}", policies, clock=self.clock, namespace="n" + secrets.token_hex(6))
        self.reference = Reference(policies, self.clock)
        self.hits: list[tuple[str, str | int, int, int]] = []
        self.ids: list[tuple[str, int]] = []
        self.promised_us: int | None = None
        self.names = [policy.name for policy in policies]
        self.subjects: list[str | int] = ["s", 7]

    def both(self, verb: str, *args: Any, **options: Any) -> Any:
        """The answer of both, which must be one; None where both found the id in use."""
        said = (verb, args, options, self.clock.now_us())
        try:
            expected = getattr(self.reference, verb)(*args, **options)
        except IdConflictError as error:
            with pytest.raises(IdConflictError, match=re.escape(str(error))):
                getattr(self.limiter, verb)(*args, **options)
            return None
        assert getattr(self.limiter, verb)(*args, **options) == expected, said
        retry_after_us = getattr(expected, "retry_after_us", None)
        if retry_after_us and retry_after_us < 2 * self.setting.step_us:
            self.promised_us = self.clock.now_us() + retry_after_us
        return expected

    def where(self, policy: str) -> dict[str, Any]:
        """A segment, a channel and a zone that the policy knows, or none."""
        return {
            "segment": self.chance.choice(self.setting.segments.get(policy, (None,))),
            "channel": self.chance.choice(self.setting.channels.get(policy, (None,))),
            "zone": self.chance.choice(self.setting.zones),
        }

    def place(self) -> tuple[str, str | int, int]:
        """A policy, a subject and a cost."""
        return self.chance.choice(self.names), self.chance.choice(self.subjects), self.chance.choice(self.setting.costs)

    def named(self, cost: int) -> tuple[int, str | None]:
        """A cost and an id: a new one, or one of the last, mostly with the cost that it had."""
        if not self.ids or self.chance.randrange(5) < 2:
            self.ids.append((f"id{len(self.ids)}", cost))
        name, first_cost = self.chance.choice(self.ids[-4:])
        return (first_cost if self.chance.randrange(10) else cost), name

    def step(self) -> None:
        """Time goes on, or back, and one verb is asked."""
        step_us = self.setting.step_us
        if self.promised_us is not None and not self.chance.randrange(4):
            # To the instant that a refusal named, or just before it.
            self.clock.advance_us(self.promised_us - self.clock.now_us() - self.chance.randrange(2))
            self.promised_us = None
        elif self.setting.change_us is not None and not self.chance.randrange(12):
            self.clock.advance_us(self.setting.change_us - self.clock.now_us() - self.chance.randrange(2))
        else:
            steps = (0, 0, 1, step_us // 9, self.chance.randrange(step_us), -(step_us // 5))
            self.clock.advance_us(self.chance.choice(steps))
        getattr(self, self.chance.choice(VERBS))()

    def keep(self, policy: str, subject: str | int, cost: int, answer: Decision | None) -> None:
        """Remember a hit, to be given back later."""
        if answer is not None and answer.hit is not None:
            self.hits.append((policy, subject, answer.hit, cost))

    def decide(self) -> None:
        policy, subject, cost = self.place()
        cost = self.chance.choice((cost, cost, 1))
        self.keep(policy, subject, cost, self.both("decide", policy, subject, cost, **self.where(policy)))

    def decide_named(self) -> None:
        policy, subject, cost = self.place()
        cost, name = self.named(cost)
        self.keep(policy, subject, cost, self.both("decide", policy, subject, cost, name, **self.where(policy)))

    def peek(self) -> None:
        policy, subject, cost = self.place()
        self.both("peek", policy, subject, *self.chance.choice(((cost, None), self.named(cost))), **self.where(policy))

    def schedule(self) -> None:
        policy, subject, cost = self.place()
        step_us = self.setting.step_us
        waits = {
            "max_wait": self.chance.choice((None, None, 0, step_us * 1e-6)),
            "not_before": self.chance.choice((0, 0, 0, step_us * 5e-7)),
        }
        self.keep(policy, subject, cost, self.both("schedule", policy, subject, cost, **waits, **self.where(policy)))

    def refund(self) -> None:
        if self.hits:
            policy, subject, stamp_us, cost = self.chance.choice((self.hits[-1], self.chance.choice(self.hits[-30:])))
            self.both("refund", policy, subject, stamp_us, self.chance.choice((cost, cost, cost, cost + 1, 1)))

    def joint(self) -> None:
        chance = self.chance
        places = [(policy, subject) for policy in self.names for subject in self.subjects]
        logs = {name: options.get("log", name) for name, _, options in self.setting.policies}
        parts = {(logs[one[0]], one[1]): one for one in chance.sample(places, chance.randrange(1, 4))}
        attempts = [
            Attempt(policy, subject, *chance.choice(((cost, None), self.named(cost))), **self.where(policy))
            for policy, subject in parts.values()
            for cost in [chance.choice(self.setting.costs)]
        ]
        answer = self.both("decide_all", attempts)
        for one, hit in zip(attempts, answer.hits if answer is not None else (), strict=False):
            self.hits.append((one.policy, one.subject, hit, one.cost))

    def many(self) -> None:
        """A batch as columns, each row of a kind of its own, against one by one."""
        policy, _, cost = self.place()
        kinds: list[dict[str, Any]] = [{**self.where(policy), "channel": None} for _ in range(4)]
        names: dict[str, Any] = {"zone": [kind["zone"] for kind in kinds]}
        if policy in self.setting.segments:
            names["segment"] = [kind["segment"] for kind in kinds]
        subjects = [self.chance.choice(self.subjects) for _ in range(6)]
        codes = [self.chance.randrange(4) for _ in subjects]
        mine = self.limiter.decide_many(policy, subjects, codes=codes, cost=cost, **names)
        for row, (subject, code) in enumerate(zip(subjects, codes, strict=True)):
            expected = self.reference.decide(policy, subject, cost, **kinds[code])
            assert mine[row] == expected, (policy, subject, cost, kinds[code], self.clock.now_us())
            self.keep(policy, subject, cost, expected)

    def batch(self) -> None:
        """A batch of anything, against one by one."""
        attempts: list[Attempt] = []
        for _ in range(5):
            policy, subject, cost = self.place()
            named = self.chance.choice(((cost, None), self.named(cost)))
            attempts.append(Attempt(policy, subject, *named, **self.where(policy)))
        for one, mine in zip(attempts, self.limiter.decide_batch(attempts), strict=True):
            where: dict[str, Any] = {"segment": one.segment, "channel": one.channel, "zone": one.zone}
            expected: Any
            try:
                expected = self.reference.decide(one.policy, one.subject, one.cost, one.id, **where)
            except IdConflictError as error:
                expected = error
            same = mine == expected if isinstance(expected, Decision) else str(mine) == str(expected)
            assert same, (one, mine, expected, self.clock.now_us())
            if isinstance(expected, Decision):
                self.keep(one.policy, one.subject, one.cost, expected)

    def same_history(self) -> None:
        for policy in self.names:
            for subject in self.subjects:
                mine = [(hit.stamp_us, hit.units) for hit in self.limiter.explain(policy, subject).hits]
                assert mine == self.reference.hits(policy, subject)[0], (policy, subject)
                assert sorted(set(mine)) == mine

    def run(self, steps: int) -> None:
        for _ in range(self.setting.warm_up):
            self.clock.advance_us(self.chance.choice((0, 1, 1, 2)))
            self.both("decide", self.names[0], "s")
        for _ in range(steps):
            self.step()
        self.same_history()
        assert self.hits


@pytest.fixture
def pair() -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(*args: Any, **options: Any) -> Pair:
        made.append(Pair(*args, **options))
        return made[-1]

    yield make
    for one in made:
        one.limiter.close()
        if isinstance(one.limiter, Awaited):
            one.limiter.runner.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["subject", "bucket"])
@pytest.mark.parametrize("name", SETTINGS)
@sized
def test_a_server_answers_as_the_reference_does(pair: Callable[..., Pair], kind: str, layout: str, name: str) -> None:
    pair(shared(kind).url, SETTINGS[name], layout, f"{name} {kind} {layout}").run(size(80, 120, 220))


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_log_is_trimmed_by_age_and_by_number_at_once(pair: Callable[..., Pair], kind: str) -> None:
    both = pair(shared(kind).url, Setting([("p", ["200/1000us"], {"count_denied": True})], 10), "subject", kind)
    for _ in range(400):
        both.clock.advance_us(1)
        both.both("decide", "p", "s")
    # Half of the hits are as old as the window, and with the refusal there are more units than can matter.
    both.clock.advance_us(810)
    assert not both.both("decide", "p", "s", 215)
    both.same_history()
    for cost in (1, 3, 200):
        both.both("decide", "p", "s", cost)
        both.same_history()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("aged_us", [0, 860])
def test_the_first_id_of_a_long_log(pair: Callable[..., Pair], kind: str, aged_us: int) -> None:
    """Its entries get wider; with an age, half of them go in the same step."""
    both = pair(shared(kind).url, Setting([("p", ["400/1000us"], {})], 10), "subject", kind)
    for _ in range(300):
        both.clock.advance_us(1)
        both.both("decide", "p", "s")
    both.clock.advance_us(aged_us)
    hits = [both.both("decide", "p", "s", cost, f"id {cost}").hit for cost in (1, 2, 3)]
    assert [both.both("decide", "p", "s", cost, f"id {cost}").hit for cost in (1, 2, 3)] == hits
    both.same_history()
    assert both.both("refund", "p", "s", hits[1], 2)
    assert both.both("decide", "p", "s", 5, "id 2").hit != hits[1]
    assert both.both("decide", "p", "s", 3, "id 3").hit == hits[2]
    both.same_history()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["subject", "bucket"])
@sized
def test_units_of_several_subjects_as_time_goes_on(pair: Callable[..., Pair], kind: str, layout: str) -> None:
    """Logs that are short and long, kept for a second and for weeks, mostly free at the instant of the asking."""
    both = pair(shared(kind).url, UNITS, layout, f"units {kind} {layout}")
    places = [(policy, subject) for policy in ("p", "week", "long") for subject in ("s", 7)]
    allowed = 0
    steps = size(250, 400, 700)
    for step in range(steps):
        both.clock.advance_us(both.chance.choice((1, 2, 3, 9, 40)))
        asked = [Attempt(*place) for place in both.chance.sample(places, both.chance.randrange(1, 4))]
        if step % 50 == 49:
            both.both("schedule", *both.chance.choice(places), not_before=60e-6)
        if step % 7 == 0:
            both.both("decide", "p", "s")
        looked = both.limiter.peek_all(asked)
        answer = both.both("decide_all", asked)
        assert looked == msgspec.structs.replace(answer, hits=())
        allowed += bool(answer)
    assert steps // 7 < allowed < steps - 5
    both.same_history()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", first(1, ["decide", "schedule", "joint"]))
def test_a_long_log_whose_hits_are_old_is_short_again(pair: Callable[..., Pair], kind: str, verb: str) -> None:
    both = pair(shared(kind).url, Setting([("p", ["300/250us"], {})], 10), "subject", kind)
    for hits in (200, 80, 150, 250):
        for _ in range(hits):
            both.clock.advance_us(1)
            if verb == "joint":
                both.both("decide_all", [Attempt("p", "s")])
            else:
                both.both(verb, "p", "s")
        both.same_history()
        both.clock.advance_us(1000)


@pytest.mark.parametrize("url", ["memory://", "redis"])
def test_a_hit_let_in_early_takes_no_stamp_of_a_slot_given_back(url: str) -> None:
    clock = ManualClock(NOW_US)
    place = url if url == "memory://" else shared(url).url
    with Limiter(
        place, [Policy("p", ["3/12us"], count_denied=True)], clock=clock, namespace=secrets.token_hex(4)
    ) as limiter:
        first = limiter.decide("p", "s")
        slot = limiter.schedule("p", "s", not_before=13e-6)
        assert first.hit is not None
        assert slot.hit == NOW_US + 13
        assert not limiter.decide("p", "s")
        assert not limiter.decide("p", "s")
        assert limiter.refund("p", "s", slot.hit)
        assert limiter.refund("p", "s", first.hit)
        clock.advance_us(11)
        assert limiter.schedule("p", "s")
        assert limiter.decide("p", "s").hit == NOW_US + 14
        stamps = [hit.stamp_us for hit in limiter.explain("p", "s").hits]
        assert stamps == sorted(set(stamps))


@pytest.mark.parametrize("layout", ["subject", "bucket"])
@pytest.mark.parametrize("name", ["bucketed", "gcra", "berlin-autumn"])
def test_the_same_awaited(pair: Callable[..., Pair], layout: str, name: str) -> None:
    pair(shared("valkey").url, SETTINGS[name], layout, f"{name} {layout}", asynchronous=True).run(80)
