"""Whatever came before: where a fast path answers, it answers as the rule does, states and all.

`decide_units` is compared on one log; then whole limiters, one of which has no fast path.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.profiles import size, sized

from capline import AsyncLimiter, Attempt, CaplineError, Decision, Joint, Limiter, ManualClock, Policy
from capline.limiter.policies.rules import Rules
from capline.model.policy import BoundPolicy
from capline.model.subject import Subject
from capline.policy.joint import JointPolicy
from capline.store.local.fast_path import decide_units, fast_rule
from capline.store.local.log import ColumnLog
from capline.store.local.numbers import StoredNumbers
from capline.store.local.numbers_path import numbers_path
from capline.store.local.pace import Pace
from capline.store.local.transaction import LogTransaction
from capline.store.protocol import CompiledRule, Operation
from capline.support.override import override
from capline.window.bound_log import BoundLog, readers_of
from capline.window.carry import NumberRow
from capline.window.charge import charge, refund, settle
from capline.window.counters import level_of
from capline.window.rule import Slot, attempt

pytestmark = sized
START_US = 1_700_000_000_000_000
DAY_US = 86_400_000_000
STEPS = size(500, 1_500, 6_000)
UNITS = 3
"""A subject whose hits are single units, none of them refunded."""
POLICIES = {
    "one limit": Policy("p", ["6/300us"]),
    "alike": Policy("p", ["8/300us", "8/290us", "5/90us"]),
    "narrow and wide": Policy("p", ["20/900us", "7/200us"]),
    "sums": Policy("p", ["9/300us", "30/1200us"], algorithm="bucketed", granularity="20us"),
}


LIMITERS = {
    "reservations": Policy("p", ["9/300us", "20/900us"], reservations=True),
    "one counter": Policy("p", ["9/300us"], algorithm="sliding_counter"),
    "one window": Policy("p", ["9/300us"], algorithm="fixed_window"),
    "one level": Policy("p", ["9/301us"], algorithm="gcra"),
    "level of few": Policy("p", ["5/77us", "11/1000us"], algorithm="gcra"),
    "days and hours": Policy("p", ["9/calendar week", "6/300us", "not between 05:00 and 21:00"], zone="Africa/Cairo"),
    "days of sums": Policy("p", ["30/calendar day", "9/300us"], algorithm="bucketed", granularity="20us", zone="UTC"),
    "refusals of sums": Policy("p", ["9/300us"], algorithm="bucketed", granularity="20us", count_denied=True),
    "days of a channel": Policy("p", ["9/300us"], channels={"c": ["30/calendar day"]}, zone="UTC", reservations=True),
    "refusals of a channel": Policy("p", ["9/300us"], channels={"c": ["20/900us"]}, count_denied=True),
    "a loose channel": Policy("p", ["6/300us"], channels={"c": ["20/900us"]}),
    "numbers and quiet hours": Policy("p", ["9/300us", "not between 05:00 and 21:00"], algorithm="fixed_window"),
}

ALGORITHMS: tuple[Any, ...] = ("sliding_log", "bucketed", "fixed_window", "sliding_counter", "gcra")


OTHERS = {
    "calendar": Policy("p", ["9/calendar day", "3/40us"], zone="Asia/Kathmandu"),
    "refusals": Policy("p", ["6/300us", "20/900us"], count_denied=True),
    "quiet hours": Policy("p", ["9/300us", "not between 05:00 and 21:00"], zone="Asia/Kathmandu"),
    "channel": Policy("p", ["9/300us"], channels={"push": ["4/200us", "9/500us"]}),
    **{
        algorithm: Policy("p", ["7/300us", "20/1200us"], algorithm=algorithm)
        for algorithm in ("fixed_window", "sliding_counter", "gcra")
    },
}


def rule_of(policy: Policy) -> BoundPolicy:
    return Rules([policy]).rule("p", None, None)


def one_log(log: ColumnLog, rule: BoundPolicy, cost: int) -> list[BoundLog]:
    return [BoundLog(log, rule.logs[0], readers_of(rule)[0], cost)]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_as_the_rule_answers(name: str, seed: int) -> None:
    random, plain, log, now_us, quick = Random(f"{name} {seed}"), rule_of(POLICIES[name]), ColumnLog(), START_US, 0
    kept = [0, 0, 1, 3, [2, *[0] * (len(plain.logs[0].limits) - 1)]]
    stamps: list[int] = []
    for step in range(STEPS):
        now_us = max(START_US, now_us + random.choice([0, 1, 3, 20, 20, 60, -2, 400 * (step % 37 == 0)]))
        cost, rule = random.choice([1, 1, 2, 3, 5, 9]), plain.keeping(random.choice(kept))
        logs, compiled = one_log(log, rule, cost), fast_rule(rule.logs[0])
        assert compiled is not None
        found = decide_units(log, compiled, cost, now_us)
        expected = attempt(one_log(deepcopy(log), rule, cost), now_us)
        if found is not None:
            assert (found, found.limits) == (expected, expected.limits)
            quick += 1
        match random.randrange(12):
            case 0 if stamps:
                refund(logs, random.choice(stamps[-9:]), cost, now_us)
            case 1 if stamps:
                settle(one_log(log, rule, cost), random.choice(stamps[-9:]), now_us)
            case 2:
                stamps.append(charge(logs, now_us).hit or 0)
            case 3:
                stamps.append(attempt(logs, now_us, 0, Slot(90)).hit or 0)
            case 4:
                stamps.append(attempt(logs, now_us, step + 1).hit or 0)
            case _:
                stamps.append(attempt(logs, now_us).hit or 0)
    assert quick > STEPS // 3


@pytest.mark.parametrize("units", [1, 2])
def test_a_level_is_read_from_the_newest_hit_with_units_where_the_last_was_given_back(units: int) -> None:
    """As in a log that an algorithm of other numbers has left: it has a hit for each of its windows."""
    rule, log = rule_of(Policy("p", ["9/1000us"], algorithm="gcra")), ColumnLog()
    reader = level_of(rule.logs[-1].limits[0])
    for stamp_us, level in ((START_US, 500), (START_US + 1, units * reader.rise), (START_US + 2, 7)):
        log.record(stamp_us, level, stamp_us)
    log.give_back(START_US + 2, 7)
    for at_us in (START_US + 3, START_US + 40, START_US + 900):
        found = numbers_path([reader], rule.logs)(StoredNumbers([NumberRow(reader, log)]), 1, 0, "peek", None, at_us)
        assert found is not None
        assert found.remaining == reader.left(log, at_us, ()) - 1


class General(Limiter):
    """A limiter whose store asks the rule, whatever the attempt."""

    def __init__(self, policy: Policy, clock: ManualClock, url: str) -> None:
        super().__init__(url, [policy], clock=clock)
        store, compiled = self._store, self._store.compiled

        def without_fast_path(rule: BoundPolicy) -> CompiledRule:
            bound: Any = compiled(rule)
            bound.single = bound.units = bound.quick = bound.ask = None
            bound.decide_one = partial(general, bound)
            return bound

        def general(bound: CompiledRule, subject: Subject) -> Decision:
            return store.step(Operation("decide", bound, subject))

        store.compiled = without_fast_path

    @override
    def _free_slot(self, *_: object, **__: object) -> None:
        return None


class Awaited:
    """An `AsyncLimiter` that is waited for."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self._limiter, self._runner = AsyncLimiter(*args, **named), asyncio.Runner()

    def __getattr__(self, name: str) -> Any:
        return partial(self._result, getattr(self._limiter, name))

    def _result(self, verb: Callable[..., Any], *args: Any, **named: Any) -> Any:
        asked = verb(*args, **named)
        if hasattr(asked, "__aenter__"):
            return self._slot(asked)
        return self._runner.run(listed(asked) if hasattr(asked, "__anext__") else asked)

    @contextmanager
    def _slot(self, slot: Any) -> Generator[Decision]:
        yield self._runner.run(slot.__aenter__())

    def close(self) -> None:
        with self._runner:
            self._runner.run(self._limiter.close())


async def listed(rows: AsyncIterator[object]) -> list[object]:
    return [row async for row in rows]


def outcome(call: Callable[[], object]) -> tuple[object, object]:
    """The answer with its states, or the error."""
    try:
        answer = call()
    except CaplineError as error:
        return str(error), ()
    return answer, answer.limits if isinstance(answer, Decision | Joint) else ()


def entered(slot: AbstractContextManager[Decision]) -> Decision:
    """What the block is given."""
    with slot as taken:
        return taken


@pytest.mark.parametrize("name", [*POLICIES, *OTHERS, *LIMITERS])
@pytest.mark.parametrize("store", ["memory", "memory, awaited", "lmdb", "lmdb, awaited"])
def test_a_limiter_answers_as_one_without_fast_paths(  # noqa: C901, PLR0912, PLR0915 - each verb a case
    name: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Numbers take over from hits where no stale ones are left, and which are left depends on how many were counted.
    monkeypatch.setattr(Pace, "every", 10**9)
    policy = {**POLICIES, **OTHERS, **LIMITERS}[name]
    random, clock = Random(f"{name} {store}"), ManualClock(START_US)
    # Where names are given it takes another way.
    named: dict[str, Any] = {}
    on_lmdb, is_awaited = store.startswith("lmdb"), store.endswith("awaited")
    urls = [f"lmdb://{tmp_path}/{way}" if on_lmdb else "memory://" for way in ("fast", "general")]
    fast = (Awaited if is_awaited else Limiter)(urls[0], [policy], clock=clock)
    limiters: list[Any] = [fast, General(policy, clock, urls[1])]
    # Beside it in attempts over two.
    beside = Policy("q", ["8/290us"], algorithm=random.choice(ALGORITHMS))

    def use(policy: Policy) -> None:
        for limiter in vars(fast).get("_limiter", fast), limiters[1]:
            limiter.use([policy, beside])

    use(policy)
    steps = STEPS // 3 if on_lmdb or is_awaited else STEPS
    hits: list[tuple[int, int]] = []
    allowed = refused = 0
    for step in range(steps):
        if policy.channels:  # its own log is now and then ahead of the channel's
            named = {"channel": next(iter(policy.channels))} if step % 4 else {}
        elif step % 50 == 49:
            changed = policy if step % 100 == 99 else Policy("p", ["8/310us"], algorithm=random.choice(ALGORITHMS))
            use(changed)
        clock.advance_us(random.choice([0, 0, 1, 20, 60, 120, 300, -2, -90, DAY_US // 3 * (step % 53 == 0)]))
        # The first subject has no id: numbers with ids beside them are another path. The last has single units alone.
        subject, cost = random.choice([0, 1, 2, UNITS]), random.choice([1, 1, 1, 2, 3, 5, 9])
        cost = 1 if subject == UNITS else cost
        id = random.choice([None, None, None, f"{random.randrange(40)}"]) if subject in {1, 2} else None
        hit = random.choice(hits[-9:]) if hits else (subject, START_US)
        wait, verb = random.choice([{}, {}, {"max_wait": 0}, {"max_wait": 0.00006}]), random.randrange(20)
        kept: dict[str, Any] = random.choice([{}, {}, {"keep_free": random.choice([0, 1, 3, 9])}])
        parts = [
            Attempt("p", subject, cost, id, **named, **kept),
            Attempt("q", random.choice([0, 1]), random.choice([1, 1, 4])),
        ]
        random.shuffle(parts)
        if verb == 8:
            batch = random.choices([0, 1, 2, UNITS], [1, 1, 1, 5], k=random.randrange(9))
            free = random.choices([0, 0, 1, 3], k=len(batch))
            many = [*fast.decide_many("p", batch, **named, keep_free=free if step % 2 else 1)]
            rows = zip(batch, free if step % 2 else [1] * len(batch), strict=True)
            assert many == [limiters[1].decide("p", one, **named, keep_free=units) for one, units in rows], step
            hits += [
                (one, decision.hit) for one, decision in zip(batch, many, strict=True) if one < UNITS and decision.hit
            ]
            continue
        answers: list[tuple[object, object]] = []
        for limiter in limiters:
            match verb:
                case 0:
                    call = partial(limiter.refund, "p", *hit, cost)
                case 1:
                    call = partial(limiter.settle, "p", *hit, cost)
                case 2 if step % 3 == 0:
                    call = partial(limiter.charge, "p", subject, cost, id, **named)
                case 3 | 4:
                    call = partial(limiter.schedule, "p", subject, cost, id, **named, **wait)
                case 5 | 6:
                    asked = subject if step % 3 else f"new {step}"
                    call = partial(limiter.peek, "p", asked, cost, id, **named, **kept)
                case 14 | 15:
                    call = partial(entered, limiter.acquire("p", subject, cost, id, **named, timeout=0))
                case 16 | 17:
                    call = partial(limiter.decide_all, parts)
                case 18:
                    call = partial(limiter.peek_all, parts)
                case 9 | 10 | 19 if policy.reservations and step % 3:
                    call = partial(limiter.reserve, "p", subject, cost, id, ttl=0.0002, **named)
                case 9 | 10 | 19 if policy.reservations:
                    call = partial(limiter.commit if step % 2 else limiter.cancel, "p", *hit)
                case 7 if step % 29 == 0:
                    call = partial(limiter.erase, subject)
                case _:
                    call = partial(limiter.decide, "p", subject, cost, id, **named, **kept)
            answers.append(outcome(call))
        assert answers[0] == answers[1], (step, verb)
        looks = [outcome(partial(limiter.peek, "p", subject, **named)) for limiter in limiters]
        assert looks[0] == looks[1], step
        decision = answers[0][0]
        if isinstance(decision, Decision):
            allowed, refused = allowed + decision.allowed, refused + (not decision.allowed)
            hits += [(subject, decision.hit)] if decision.hit and subject < UNITS else []
    assert min(allowed, refused) > steps // 30
    rows = [[*limiter.export()] for limiter in limiters] if policy.algorithm == "sliding_log" else []
    assert rows[:1] == rows[1:]
    for limiter in limiters:
        limiter.close()


SEVERAL = {
    "p": Policy("p", ["6/300us"]),
    "q": Policy("q", ["8/300us", "8/290us", "5/90us"]),
    "gap": Policy("gap", ["9/400us", "gap 2us"]),
    "sums": Policy("sums", ["9/300us"], algorithm="bucketed", granularity="20us"),
}


@pytest.mark.parametrize("seed", range(4))
def test_single_units_of_several_are_answered_together_as_by_the_rule(seed: int) -> None:
    random, clock, quick = Random(seed), ManualClock(START_US), 0
    fast, general = Limiter("memory://", [], clock=clock), General(SEVERAL["p"], clock, "memory://")
    for limiter in fast, general:
        limiter.use(SEVERAL.values())
    store: Any = vars(fast)["_store"]
    together = store.units

    def counted(*asked: Any) -> object:
        nonlocal quick
        answer = together(*asked)
        quick += answer is not None
        return answer

    store.units = counted
    hits: list[Any] = []
    kept: list[tuple[Any, ...]] = []
    for step in range(STEPS):
        clock.advance_us(random.choice([0, 1, 5, 20, 60, 90, -2, 600 * (step % 31 == 0)]))
        names = random.choices([*SEVERAL], [9, 9, 9, 1], k=random.choice([1, 2, 2, 3]))
        subjects = random.choices(["a", "b", 1, True] if step % 20 == 0 else ["a", "b", 1], k=len(names))
        more: list[dict[str, Any]] = [{}, {"cost": 2}, {"id": f"{step % 9}"}, {"keep_free": 2}, {"limits": ["4/300us"]}]
        others = random.choices(more, [30, 1, 3, 1, 1], k=len(names))
        parts = [Attempt(name, subject, **other) for name, subject, other in zip(names, subjects, others, strict=True)]
        hit = random.choice(hits[-9:]) if hits else ("p", "a", START_US)
        answers: list[Any] = []
        for limiter in fast, general:
            match step % 12:
                case 3 | 9 if step % 5:
                    call = partial(limiter.schedule, names[0], subjects[0], not_before=step % 4 / 20_000)
                case 7 if step % 5 == 0:
                    call = partial(limiter.refund, *hit)
                case 11 if step % 7 == 0:
                    call = partial(limiter.erase, "b")
                case _:
                    call = partial(limiter.decide_all, parts)
            answers.append(outcome(call))
        assert answers[0] == answers[1], step
        joint = answers[0][0]
        if isinstance(joint, Joint):
            hits += [(*part, stamp or 0) for *part, stamp in zip(names, subjects, joint.hits, strict=False)]
            kept.append((joint, joint.limits))
    assert quick > STEPS // 24
    # An answer's states are made when they are asked for, from arrays that later hits were added to.
    assert all(joint.limits == states for joint, states in kept)
    assert [*fast.export(["p", "q", "gap"])] == [*general.export(["p", "q", "gap"])]


@pytest.mark.parametrize("keep_free", [0, 3])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_first_hits_of_a_subject_are_those_of_the_rule(algorithm: Any, keep_free: int) -> None:
    random, clock, policy = Random(algorithm), ManualClock(START_US), Policy("p", ["9/301us"], algorithm=algorithm)
    limiters = [Limiter("memory://", [policy], clock=clock), General(policy, clock, "memory://")]
    for step in range(STEPS // 3):
        clock.advance_us(random.choice([1, 7, 200]))
        cost, id = random.choice([1, 1, 2, 7, 9, 10]), random.choice([None, None, "id"])
        for verb in random.choices(["decide", "decide", "schedule", "peek", "acquire"], k=4):
            clock.advance_us(random.choice([0, 0, 1, -5]))
            kept = (
                {"keep_free": keep_free} if verb in {"decide", "peek"} else {"timeout": 0} if verb == "acquire" else {}
            )
            answers = [
                outcome(partial(first_answer, limiter, verb, f"new {step}", cost, id, kept)) for limiter in limiters
            ]
            assert answers[0] == answers[1], (step, verb)
    rows = [[*limiter.export()] for limiter in limiters] if algorithm == "sliding_log" else []
    assert rows[:1] == rows[1:]


def first_answer(limiter: Limiter, verb: str, *asked: Any) -> Decision:
    """What the verb answers, or the slot of `acquire`."""
    *named, more = asked
    answer = getattr(limiter, verb)("p", *named, **more)
    return entered(answer) if verb == "acquire" else answer


def test_what_is_refused_leaves_a_reservation_that_ended_to_be_given_back() -> None:
    policy = Policy("p", ["9/300us"], channels={"c": ["30/calendar day"]}, zone="UTC", reservations=True)
    clock = ManualClock(START_US)
    with Limiter("memory://", [policy, Policy("q", ["9/300us"])], clock=clock) as limiter:
        assert limiter.reserve("p", "one", 5, ttl=0.0002, channel="c")
        clock.advance_us(400)
        assert limiter.decide("p", "one")  # the policy's own log forgets the hit, which has aged there
        clock.advance_us(1)
        assert not limiter.decide_all([Attempt("p", "one", 9, channel="c"), Attempt("q", "one")])
        assert limiter.peek("p", "one", channel="c").limits[1].remaining == 29


ASKS: list[Callable[[Limiter], Any]] = [
    lambda limiter: limiter.decide("p", "s"),
    lambda limiter: limiter.decide("p", "s", id="i"),
    lambda limiter: limiter.peek("p", "s"),
    lambda limiter: limiter.decide_all([Attempt("q", "s"), Attempt("p", "s")]),
    lambda limiter: limiter.decide_many("p", ["s"])[0],
    lambda limiter: limiter.peek_many("p", ["s"])[0],
]


@pytest.mark.parametrize("quota", [2, 3])
@pytest.mark.parametrize("ask", ASKS)
def test_who_knows_no_reservations_gives_back_those_that_ended(ask: Callable[[Limiter], Any], quota: int) -> None:
    policy, clock = Policy("p", [f"{quota}/day"]), ManualClock(START_US)
    with Limiter("memory://", [policy, Policy("q", ["9/day"])], clock=clock) as limiter:
        assert limiter.decide("p", "s")
        assert limiter.decide("q", "s")
        reserving = limiter.beside([Policy("p", [f"{quota}/day"], reservations=True)])
        assert reserving.reserve("p", "s", ttl=1)
        clock.advance_us(1_000_001)
        answer = ask(limiter)
        assert (answer.allowed, answer.remaining) == (True, quota - 2)


@pytest.mark.parametrize("url", ["memory://", "lmdb://{}"])
def test_a_batch_forgets_what_is_out_of_every_window(url: str, tmp_path: Path) -> None:
    clock = ManualClock(START_US)
    with Limiter(url.format(tmp_path), [Policy("p", ["2/300us", "3/900us"])], clock=clock) as limiter:
        for _ in range(3):
            limiter.decide_many("p", range(40))
            clock.advance_us(600)
        inside: Any = limiter
        store, ref = inside._store, inside._bound(("p", None, None, None)).refs[0]

        def stored(transaction: LogTransaction) -> Any:
            return transaction.stored(ref, 7)

        log = store._transact(stored)
        assert [*log.stamps[log.start :]] == [START_US + 600, START_US + 1200]


def test_a_unit_beside_what_must_stay_free_is_decided_in_order() -> None:
    """A row that the rule is asked for comes before the later one of its subject."""
    clock = ManualClock(START_US)
    with Limiter("memory://", [Policy("p", ["3/day"])], clock=clock) as limiter:
        assert limiter.decide("p", 7)
        clock.advance_us(1)
        first, second = limiter.decide_many("p", [7, 7], keep_free=[2, 0])
        assert (first.allowed, first.remaining) == (False, 2)
        assert (second.allowed, second.remaining) == (True, 1)


def test_a_peek_at_numbers_that_take_over_from_hits_counts_them() -> None:
    with Limiter("memory://", [Policy("p", ["2/day"])], clock=ManualClock(START_US)) as limiter:
        assert [limiter.decide("p", "one").allowed for _ in range(3)] == [True, True, False]
        limiter.use([Policy("p", ["2/day"], algorithm="fixed_window")])
        assert [limiter.peek("p", subject).remaining for subject in ("two", "one", "one")] == [1, 0, 0]
        assert not limiter.peek("p", "one")


@pytest.mark.parametrize("cost", [0, 1, 2, "together"])
@pytest.mark.parametrize("algorithm", ["sliding_log", "bucketed"])
def test_hits_that_are_out_of_every_window_are_forgotten(cost: Any, algorithm: Any) -> None:
    clock = ManualClock(START_US)
    with Limiter("memory://", [Policy("p", ["9/300us"], algorithm=algorithm)], clock=clock) as limiter:
        for _ in range(1000):
            clock.advance_us(100)
            if cost == "together":
                assert limiter.decide_all([Attempt("p", 7)])
            else:
                assert limiter.decide("p", 7, cost) if cost else limiter.decide_many("p", [7]).allowed
        store: Any = vars(limiter)["_store"]
        [table] = store._tables.values()
        assert len(table.logs[7].stamps) < 200


@pytest.mark.parametrize("pace_us", [10, 400])
@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_counter", "gcra"])
def test_numbers_stay_one_sum_for_each_window(algorithm: Any, pace_us: int) -> None:
    clock = ManualClock(START_US)
    with Limiter("memory://", [Policy("p", ["90/300us"], algorithm=algorithm)], clock=clock) as limiter:
        for _ in range(1000):
            clock.advance_us(pace_us)
            assert limiter.decide("p", 7)
        store: Any = vars(limiter)["_store"]
        [log] = [row.log for table in store._filled.values() for row in table.logs[7].rows]
        assert len(log) <= 3
        assert len(log.stamps) < 200


@pytest.mark.parametrize("limit", ["2/calendar day", "3/day"])
def test_rows_of_one_subject_stay_in_order_whatever_their_segments(limit: str) -> None:
    policy = Policy("p", ["3/day"], by_segment={"s": [limit]}, zone="Asia/Kathmandu")
    with Limiter("memory://", [policy], clock=ManualClock(START_US)) as limiter:
        many = limiter.decide_many("p", [7] * 5, segment=[None, "s"], codes=[1, 0, 1, 0, 1])
        assert [one.remaining for one in many] == ([1, 1, 0, 0, 0] if limit[0] == "2" else [2, 1, 0, 0, 0])


BATCHES = {
    "one log": [Policy("p", ["4/300us", "9/900us"], by_segment={"s": ["2/200us"]})],
    "several logs": [
        Policy("p", ["4/300us"], by_segment={"s": ["2/300us", "6/700us"]}),
        Policy("q", ["7/900us", "3/100us"]),
        Policy("r", ["5/200us"], by_segment={"s": ["4/200us"]}),
    ],
}


@pytest.mark.parametrize("url", ["memory://", "lmdb://{}/{}"])
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("seed", range(3))
def test_rows_of_a_batch_are_answered_as_one_by_one(  # noqa: C901 - each verb a case
    name: str, url: str, seed: int, tmp_path: Path
) -> None:
    """Whatever is on the logs: slots ahead, costs, ids, refunds, a clock that steps back, a subject twice."""
    random, clock = Random(f"{name} {seed}"), ManualClock(START_US)
    policies = BATCHES[name]
    asked = policies[0].name if len(policies) == 1 else "+".join(policy.name for policy in policies)
    with (
        Limiter(url.format(tmp_path, "fast"), [], clock=clock) as fast,
        General(policies[0], clock, url.format(tmp_path, "general")) as general,
    ):
        for limiter in fast, general:
            limiter.use(policies if len(policies) == 1 else [*policies, JointPolicy(policies)])
        hits: list[tuple[str, int, int]] = []
        allowed = refused = 0
        for step in range(STEPS // 3):
            clock.advance_us(random.choice([0, 1, 20, 60, 90, 200, -2, 1500 * (step % 31 == 0)]))
            policy, subject = random.choice(policies).name, random.randrange(40)
            number = random.choice([0, 0, 0, 1, 2, 3, 4, 4, 5, 6, 7, 8])
            rows = random.sample(range(40), 24) + [subject] * (step % 3)
            named: dict[str, Any] = {"segment": [None, "s"], "codes": [random.randrange(2) for _ in rows]}
            if step % 4 == 0:
                named["keep_free"] = [random.choice([0, 0, 1, 2]) for _ in rows]
            receipt = None if step % 5 else f"{step}"
            answers: list[Any] = []
            for limiter in fast, general:
                match number:
                    case 0:
                        answers.append(limiter.schedule(policy, subject).hit)
                    case 1 if hits:
                        answers.append(limiter.refund(*hits[-1 - step % min(9, len(hits))]))
                    case 2 | 5:
                        answers.append(limiter.decide(policy, subject, 2 if number == 2 else 1).hit)
                    case 3:
                        answers.append(limiter.decide(policy, subject, id=f"{step % 9}").hit)
                    case 4:
                        answers.append([*limiter.peek_many(asked, rows, **named)])
                    case _:
                        many = limiter.decide_many(asked, rows, receipt=receipt, **named)
                        answers.append([*many])
                        allowed, refused = allowed + int(many.allowed.sum()), refused + int((~many.allowed).sum())
            assert answers[0] == answers[1], step
            if number in (0, 2, 3, 5) and answers[0]:
                hits.append((policy, subject, answers[0]))
            elif number > 5:
                hits += [(policies[0].name, row, one.hit) for row, one in zip(rows, answers[0], strict=True) if one.hit]
        assert min(allowed, refused) > STEPS // 5
        names = [policy.name for policy in policies]
        assert sorted(fast.export(names), key=repr) == sorted(general.export(names), key=repr)


@pytest.mark.parametrize("seed", range(3))
def test_units_of_a_channel_are_answered_as_by_the_rule(seed: int) -> None:
    random, clock, quick = Random(seed), ManualClock(START_US), 0
    policy = Policy("p", ["4/300us", "9/900us"], channels={"c": ["2/200us"], "d": ["8/900us"]})
    fast, general = Limiter("memory://", [policy], clock=clock), General(policy, clock, "memory://")
    for step in range(STEPS):
        clock.advance_us(random.choice([0, 1, 20, 40, 60, -2, 1500 * (step % 31 == 0)]))
        subject, channel = random.randrange(3), random.choice([None, "c", "d"])
        free, verb = random.choice([0, 0, 0, 1]), random.choice(["decide", "decide", "peek"])
        answers = [getattr(one, verb)("p", subject, channel=channel, keep_free=free) for one in (fast, general)]
        assert answers[0] == answers[1], step
        assert answers[0].limits == answers[1].limits, step
        quick += not answers[0] and channel is not None
    assert quick > STEPS // 20
    assert sorted(fast.export(), key=repr) == sorted(general.export(), key=repr)
