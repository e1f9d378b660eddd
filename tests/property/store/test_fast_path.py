"""Whatever came before: where `decide_units` or `allowed_now` answers, it answers as the rule does, states and all."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.profiles import size

from capline import Joint, Policy
from capline.limiter.rules import Rules
from capline.store.local.fast_path import decide_units, fast_rule
from capline.store.local.log import ColumnLog
from capline.window import joint as joint_module
from capline.window import rule as rule_module
from capline.window.answer import allowed_now
from capline.window.bound_log import BoundLog, readers_of, table_of
from capline.window.charge import charge, refund, settle
from capline.window.joint import joint
from capline.window.rule import Slot, attempt, judge, take_slot

if TYPE_CHECKING:
    from capline.model.policy import BoundPolicy

START_US = 1_700_000_000_000_000
DAY_US = 86_400_000_000
STEPS = size(1_500, 20_000)
POLICIES = {
    "one limit": Policy("p", ["6/300us"]),
    "alike": Policy("p", ["8/300us", "8/290us", "5/90us"]),
    "narrow and wide": Policy("p", ["20/900us", "7/200us"]),
    "sums": Policy("p", ["9/300us", "30/1200us"], algorithm="bucketed", granularity="20us"),
}


OTHERS = {
    "calendar": Policy("p", ["9/calendar day", "3/40us"], zone="Asia/Kathmandu"),
    "refusals": Policy("p", ["6/300us", "20/900us"], count_denied=True),
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
    random, rule, log, now_us, quick = Random(f"{name} {seed}"), rule_of(POLICIES[name]), ColumnLog(), START_US, 0
    compiled = fast_rule(rule)
    assert compiled is not None
    stamps: list[int] = []
    for step in range(STEPS):
        now_us = max(START_US, now_us + random.choice([0, 1, 3, 20, 20, 60, -2, 400 * (step % 37 == 0)]))
        cost = random.choice([1, 1, 2, 3, 5, 9])
        logs = one_log(log, rule, cost)
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


def asks_the_rule(logs: object, now_us: int) -> None:
    """In place of `allowed_now`."""


def answers(parts: list[list[BoundLog]], now_us: int, slot: Slot) -> list[object]:
    """What a slot, and one attempt over two subjects, are answered."""
    alone, (together, hits) = take_slot(parts[:1], now_us, slot), joint(parts, now_us, [0, 0], record=False)
    return [alone, alone.limits, together, Joint.of(together, hits, 0).limits, hits]


@pytest.mark.parametrize("name", [*POLICIES, *OTHERS])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_allowed_now_is_what_the_rule_allows(name: str, seed: int) -> None:
    policy = {**POLICIES, **OTHERS}[name]
    random, quick = Random(f"{name} {seed}"), 0
    rule = Rules([policy]).rule("p", None, next(iter(policy.channels), None))
    logs = [ColumnLog() for _ in rule.logs]
    now_us = START_US
    hits: list[int] = []

    def bound(cost: int) -> list[BoundLog]:
        limits = zip(logs, rule.logs, readers_of(rule), strict=True)
        return [BoundLog(log, of, readers, cost, table_of(rule, now_us)) for log, of, readers in limits]

    for step in range(STEPS):
        now_us = max(START_US, now_us + random.choice([0, 1, 20, 60, 120, 300, -2, DAY_US * (step % 7 == 0)]))
        cost = random.choice([1, 1, 2, 3, 5])
        units = cost * (step % 5 > 0)
        found, expected = allowed_now(bound(units), now_us), judge([bound(units)], now_us)[0]
        if found is not None:
            assert (found, found.limits) == (expected, expected.limits)
            quick += 1
            wish, parts = (
                Slot(random.choice([None, 0, 1, 60]), random.choice([0, 0, 30])),
                [bound(units), bound(random.choice([1, 2, 4]))],
            )
            quickly = answers(parts, now_us, wish)
            with pytest.MonkeyPatch.context() as patch:
                for module in (joint_module, rule_module):
                    patch.setattr(module, "allowed_now", asks_the_rule)
                assert quickly == answers(parts, now_us, wish)
        match random.randrange(12):
            case 0 if hits:
                refund(bound(cost), random.choice(hits[-9:]), cost, now_us)
            case 1:
                hits.append(charge(bound(cost), now_us).hit or 0)
            case 2 if not rule.denied_units:
                hits.append(attempt(bound(cost), now_us, 0, Slot(90)).hit or 0)
            case 3:
                for log in logs:
                    log.high_water_us = max(log.high_water_us, now_us)
            case _:
                hits.append(attempt(bound(cost), now_us, denied_units=rule.denied_units).hit or 0)
        hits[-1:] = [hit for hit in hits[-1:] if hit]
    assert quick > STEPS // 20
