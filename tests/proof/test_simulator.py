"""The simulator: the real server store keeps its promises under faults by seed, and wrong engines are found."""

from collections.abc import Callable
from typing import Any

import pytest
from proof.simulator.network import commands_of
from proof.simulator.run import KINDS, Scenario, run
from proof.simulator.wrong import WRONG, find
from tests.profiles import first, size, sized

from capline.store.redis.io.wire import pack

WORDS = (
    *("NOSCRIPT", "LOADING", "MOVED", "ASK ", "TRYAGAIN", "READONLY", "connection refused", "writes are lost"),
    *("request lost", "request delayed", "reply lost", "reply delayed", "StoreUnknown", "StoreUnavailable"),
)
"""Every way of not answering, as a trace tells it."""


@sized
def test_the_store_keeps_every_promise_under_faults_of_every_kind() -> None:
    faults = answers = 0
    said = ""
    for seed in range(size(48, 150, 420)):
        outcome = run(seed)
        said += "\n".join(outcome.trace)
        assert outcome, outcome.text()
        faults += outcome.faults + outcome.server_faults
        answers += outcome.told.answers
    assert faults > 50
    assert answers > 300
    assert [word for word in WORDS if word not in said] == []


@sized
def test_what_is_settled_outlives_a_failover() -> None:
    outcomes = [run(seed) for seed in range(KINDS.index("settled"), size(3, 4, 8) * len(KINDS), len(KINDS))]
    assert any(outcome.lost for outcome in outcomes)
    assert [outcome.text() for outcome in outcomes if not outcome] == []


def test_every_kind_of_scenario_has_its_turn() -> None:
    scenarios = [Scenario.of(seed) for seed in range(24)]
    assert {one.kind for one in scenarios} == set(KINDS)
    assert {one.shape for one in scenarios} == {"cluster", "sentinel"}
    assert {one.buckets for one in scenarios} == {False, True}


def test_a_seed_plays_the_same_again() -> None:
    first, again = run(13), run(13)
    assert first.trace == again.trace
    assert first.told.recorder.lines == again.told.recorder.lines
    assert first.trace != run(18).trace


@pytest.mark.parametrize("wrong", first(4, WRONG), ids=lambda wrong: wrong.__name__)
def test_a_wrong_engine_is_found(wrong: Callable[[], Any]) -> None:
    assert find(wrong) is not None, f"{wrong.__name__} was not found"


def test_commands_are_read_as_the_wire_has_them() -> None:
    commands = [[b"EVALSHA", b"\r\n$3\r\n", b""], [b"TIME"]]
    assert commands_of(b"".join([pack(*command) for command in commands])) == commands
