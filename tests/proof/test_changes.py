"""`python -m proof.changes` drives the stores that it is told, so far as it is told."""

import re

import pytest
from hypothesis import Phase, settings
from proof.changes.__main__ import main
from tests.kit.servers import shared
from tests.profiles import load_profile

from capline.model.attempt import Attempt
from capline.model.policy import Policy
from capline.testing.machine import StoreMachine


def test_stores_are_driven_by_changing_policies(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--steps", "60", "--store", "memory", "--store", "lmdb"]) == 0
    taken = dict(re.findall("^([a-z]+): ([0-9]+) steps, no difference; ", capfd.readouterr().out, re.MULTILINE))
    assert sorted(taken) == ["lmdb", "memory"]
    assert all(int(steps) >= 60 for steps in taken.values())


def test_a_difference_ends_it_with_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def teardown(_: object) -> None:
        raise AssertionError("another answer")

    monkeypatch.setattr(StoreMachine, "teardown", teardown)
    settings.register_profile("unshrunk", settings.default, phases=[Phase.generate])
    settings.load_profile("unshrunk")
    assert main(["--steps", "1", "--store", "memory"]) == 1
    load_profile()
    out = capsys.readouterr().out
    assert ", a difference with --steps 1; seed " in out
    assert "another answer" in out


def test_what_aged_under_a_change_is_learnt_when_the_clock_steps_back() -> None:
    class OnRedis(StoreMachine):
        store_url = staticmethod(lambda: shared("redis").url)
        changing = True

    narrow, wide = Policy("p", ["5/10us"]), Policy("p", ["3/40us", "9/90us"])
    machine = OnRedis()
    machine.begin([narrow, wide], narrow)
    try:
        for gap_us in (0, 11):
            machine.step_clock(gap_us)
            machine.ask("charge", machine.oracle.charged, Attempt("p", 9))
        machine.step_clock(82)
        machine.put_in_force(wide)
        machine.step_clock(-5)
        machine.ask("charge", machine.oracle.charged, Attempt("p", 9))
    finally:
        machine.teardown()
