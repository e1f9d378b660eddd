"""The flat script beside the general rule on one server: both answer the same, states and all, whatever came before."""

import random
import secrets
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from hiredis import Reader
from redis import Redis
from tests.kit.servers import KINDS, shared
from tests.profiles import size, sized

from capline import Attempt, CaplineError, Limiter, ManualClock, Policy
from capline.model.policy import BoundPolicy
from capline.policy.joint import JointPolicy
from capline.store.protocol import Operation
from capline.store.redis.scripting.requests import joint_call, one_payload
from capline.store.redis.scripting.scripts import JOINT, ONE

START_US = 1_700_000_000_000_000
STEPS = size(250, 500, 1_500)
LIMITS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "a log": (["20/900us", "7/200us"], {}),
    "a log of hundreds": (["400/900us"], {}),
    "sums": (["9/300us", "30/1200us"], {"algorithm": "bucketed", "granularity": "20us"}),
    **{
        f"{algorithm} {limits}": (limits, {"algorithm": algorithm})
        for algorithm in ("fixed_window", "sliding_counter", "gcra")
        for limits in (["7/300us", "20/1200us"], ["300/100us"], ["5/77us", "11/1000us"])
    },
}
TERMS = struct.Struct(">BHBQQQBQ")
"""The first terms of one.lua. With a least quota and a kind of flat.lua of 0, no fast path is taken."""
ALONE = ONE.text.decode().replace("if said then return said end", "return said or 'general'")
"""one.lua without its general rule."""
TOGETHER_ALONE = JOINT.text.decode().replace(
    "local function pack_answer", "if now then return 'general' end local function pack_answer"
)
"""joint.lua without its own."""


class General(Limiter):
    """A limiter that asks the general rule, whatever the attempt."""

    def __init__(self, url: str, policies: list[Policy], clock: ManualClock, namespace: str) -> None:
        super().__init__(url, policies, clock=clock, namespace=namespace)
        store: Any = self._store
        compiled = store.session.compiled

        def general(rule: BoundPolicy) -> Any:
            bound = compiled(rule)
            bound.short = bound.flat = False
            head, text = TERMS.unpack_from(bound.unit_terms), bound.unit_terms
            no_path = TERMS.pack(*head[:5], 0, 0, head[7]) + bytes(16 * len(bound.limits))
            bound.unit_terms = no_path + text[len(text) - head[2] :]
            return bound

        store.session.compiled = general


def outcome(call: Callable[[], Any]) -> tuple[object, object]:
    """The answer with its states, or the error."""
    try:
        answer = call()
    except CaplineError as error:
        return str(error), ()
    if isinstance(answer, list):
        rows = cast("list[Any]", answer)
        return [str(row) if isinstance(row, CaplineError) else (row, row.limits) for row in rows], ()
    return answer, getattr(answer, "limits", ())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["subject", "bucket"])
@pytest.mark.parametrize("name", LIMITS)
def test_as_the_general_rule_answers(kind: str, layout: str, name: str) -> None:
    limits, options = LIMITS[name]
    chance, clock, server = random.Random(f"{layout} {name}"), ManualClock(START_US), shared(kind)
    policy, url = Policy("p", limits, layout=layout, **options), f"{server.url}?deadline=20s"
    mine, other = (f"n{secrets.token_hex(4)}" for _ in range(2))
    hits: list[tuple[str, int]] = []
    quick = 0
    with (
        Limiter(url, [policy], clock=clock, namespace=mine) as limiter,
        General(url, [policy], clock, other) as general,
        Redis(port=server.port) as client,
    ):
        compiled: Any = limiter._bound(("p", None, None, None))  # pyright: ignore[reportPrivateUsage]
        for step in range(STEPS):
            clock.advance_us(chance.choice([0, 0, 1, 3, 20, 60, 120, 300, -2, -90, 2_000 * (step % 53 == 0)]))
            subject, cost = f"s{chance.randrange(2)}", chance.choice([1, 1, 1, 2, 3, 5, 9])
            id = chance.choice([*[None] * 8, f"{chance.randrange(40)}"]) if step > STEPS // 2 else None
            reader = Reader()
            reader.feed(one_payload(compiled, subject, b"%d" % clock.now_us(), "peek", cost)[1])
            quick += client.eval(ALONE, *reader.gets()[2:]) != b"general"
            hit, slot = chance.choice(hits[-9:] or [(subject, START_US)]), chance.choice([None, 0, 0.00006])
            answers: list[tuple[object, object]] = []
            verb = chance.randrange(16)
            for one in (limiter, general):
                match verb:
                    case 0:
                        call = partial(one.refund, "p", *hit)
                    case 1 if step % 3 == 0:
                        call = partial(one.charge, "p", subject, cost, id)
                    case 2:
                        call = partial(one.schedule, "p", subject, cost, id, max_wait=slot)
                    case 3 | 4 | 5:
                        call = partial(one.peek, "p", subject, cost, id)
                    case 6:
                        call = partial(one.decide_batch, [Attempt("p", f"s{i}", cost, id) for i in (0, step % 2, 1)])
                    case 7:
                        call = partial(one.decide_batch, [Attempt("p", f"s{i}", cost, id) for i in (0, 1)])
                    case _:
                        call = partial(one.decide, "p", subject, cost, id)
                answers.append(outcome(call))
            assert answers[0] == answers[1], (step, verb, subject, cost, id)
            answer: Any = answers[0][0]
            if getattr(answer, "hit", None):
                hits.append((subject, answer.hit))
    assert quick > STEPS // 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["subject", "bucket"])
def test_attempts_over_several_subjects_are_answered_as_by_the_general_rule(kind: str, layout: str) -> None:
    chance, clock, server = random.Random(f"together {layout}"), ManualClock(START_US), shared(kind)
    url, mine, other = f"{server.url}?deadline=20s", *(f"n{secrets.token_hex(4)}" for _ in range(2))
    policies = [
        Policy(f"p{number}", limits, layout=layout, **options)  # pyright: ignore[reportArgumentType]
        for number, (limits, options) in enumerate([*LIMITS.values()][:1] + [*LIMITS.values()][2::3])
    ]
    hits: list[tuple[str, str, int]] = []
    quick = refused = 0
    with (
        Limiter(url, policies, clock=clock, namespace=mine) as limiter,
        General(url, policies, clock, other) as general,
        Redis(port=server.port) as client,
    ):
        bound: Any = limiter._bound  # pyright: ignore[reportPrivateUsage]
        for step in range(STEPS):
            clock.advance_us(chance.choice([1, 2, 3, 7, 20]) - 25 * (step % 31 == 0))
            id = f"{chance.randrange(40)}" if step > STEPS // 2 else None
            names = [policy.name for policy in chance.sample(policies, chance.choice([1, 2, 2, 3]))]
            parts = [
                Attempt(
                    name, f"s{chance.randrange(2)}", chance.choice([1, 1, 1, 1, 2, 3]), id if name == "p0" else None
                )
                for name in names
            ]
            asked = [Operation("peek", bound((one.policy, None, None, None)), one.subject, one.cost) for one in parts]
            reader = Reader()
            reader.feed(joint_call(asked, b"%d" % clock.now_us()).payload)
            said: Any = client.eval(TOGETHER_ALONE, *reader.gets()[2:])
            quick += said != b"general"
            refused += said != b"general" and not said[8]
            hit, far, verb = (
                chance.choice(hits[-9:] or [("p0", "s0", START_US)]),
                None if step % 40 == 0 else 0,
                chance.randrange(16),
            )
            answers: list[tuple[object, object]] = []
            for one in (limiter, general):
                match verb:
                    case 0:
                        call = partial(one.refund, *hit)
                    case 1:
                        call = partial(one.charge, parts[0].policy, parts[0].subject, parts[0].cost)
                    case 2:
                        call = partial(one.schedule_all, parts, max_wait=far)
                    case 3 | 4:
                        call = partial(one.peek_all, parts)
                    case 5:
                        call = partial(one.decide, "p0", "s0")
                    case _:
                        call = partial(one.decide_all, parts)
                answers.append(outcome(call))
            assert answers[0] == answers[1], (step, verb, parts)
            answer: Any = answers[0][0]
            stamps: tuple[int, ...] = getattr(answer, "hits", ())
            hits += [(part.policy, str(part.subject), stamp) for part, stamp in zip(parts, stamps, strict=False)]
    assert quick > STEPS // 2
    assert refused > STEPS // 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["subject", "bucket"])
def test_rows_of_several_policies_are_answered_as_in_memory(kind: str, layout: str) -> None:
    """One unit each, most of them refused, by limits that often bind together."""
    chance, server = random.Random(layout), shared(kind)
    refused = 0
    for turn in range(STEPS // 25):
        clock, namespace = ManualClock(START_US), f"n{secrets.token_hex(4)}"
        shape: Any = {"layout": layout, "population": 64}
        policies = [
            Policy(
                name,
                [
                    f"{chance.randint(1, 3)}/{chance.choice([60, 90])}us",
                    f"{chance.randint(2, 5)}/{chance.choice([110, 150])}us",
                ],
                **shape,
            )
            for name in "abc"[: 2 + turn % 2]
        ]
        joint = JointPolicy(policies)
        with (
            Limiter(f"{server.url}?deadline=20s", [*policies, joint], clock=clock, namespace=namespace) as limiter,
            Limiter("memory://", [*policies, joint], clock=clock) as memory,
        ):
            for step in range(25):
                name = chance.choice([joint.name, joint.name, *(policy.name for policy in policies)])
                rows, cost = chance.sample(range(6), chance.randint(1, 5)), 1 + (step % 9 == 8)
                answers = [list(each.decide_many(name, rows, cost=cost)) for each in (limiter, memory)]
                assert answers[0] == answers[1], (turn, step, name, rows)
                refused += sum(not answer.allowed for answer in answers[0])
                clock.advance_us(chance.choice([0, 1, 7, 30, 61, 151, -2]))
    assert refused > STEPS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", ["100/600us", "3/30us"])
@sized
def test_slots_behind_a_crowd_are_those_of_the_general_rule(kind: str, limit: str) -> None:
    chance, clock, server = random.Random(f"crowd {limit}"), ManualClock(START_US), shared(kind)
    policy, url = Policy("p", [limit]), f"{server.url}?deadline=20s"
    mine, other = (f"n{secrets.token_hex(4)}" for _ in range(2))
    hits: list[int] = []
    with (
        Limiter(url, [policy], clock=clock, namespace=mine) as limiter,
        General(url, [policy], clock, other) as general,
    ):
        for step in range(200 + STEPS):
            leap = chance.randrange(-400, 400) * (step % 9 == 0)
            clock.advance_us(chance.choice([0, 0, 1, 5]) + leap)
            hit = chance.choice([*hits[-1:], *hits[-2:], *hits[-102:-96], START_US])
            far, cost = chance.randrange(9_000) / 1e6, 1 + step % 2
            answers: list[tuple[object, object]] = []
            verb = 20 if step < 200 else chance.randrange(40)
            for one in (limiter, general):
                match verb:
                    case 0 | 1 | 2 | 3:
                        call = partial(one.refund, "p", "s", hit)
                    case 4 | 5 | 6 | 7 | 8:
                        call = partial(one.peek, "p", "s", cost)
                    case 9 | 10:
                        call = partial(one.schedule, "p", "s", max_wait=far)
                    case 11:
                        call = partial(one.schedule, "p", "s", cost, not_before=far)
                    case 12:
                        call = partial(one.decide, "p", "s")
                    case _:
                        call = partial(one.schedule, "p", "s")
                answers.append(outcome(call))
            assert answers[0] == answers[1], (step, verb, hit, far)
            answer: Any = answers[0][0]
            if getattr(answer, "hit", None):
                hits.append(answer.hit)
