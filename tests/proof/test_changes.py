"""`python -m proof.changes` drives the stores that it is told, so far as it is told."""

import re

import pytest
from hypothesis import Phase, settings
from proof.changes.__main__ import main
from tests.profiles import load_profile

from capline.testing.machine import StoreMachine


def test_a_store_is_driven_by_changing_policies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--steps", "60", "--store", "memory"]) == 0
    [taken] = re.findall("^memory: ([0-9]+) steps, no difference; ", capsys.readouterr().out)
    assert int(taken) >= 60


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
