"""Every interleaving of three callers over the rule: it keeps the promises, and with a fault in it, it is found out."""

from dataclasses import replace

import pytest
from proof.model.explore import DEBITS, SHORT, Scope, explore
from proof.model.faults import DEBIT_FAULTS, FAULTS, OnlyTheFirstLimit, SlotIgnoresMaxWait, SlotsAreJumped
from proof.model.joint import FAULTS as JOINT_FAULTS
from proof.model.joint import JOINT_SHORT, JointRule, explore_joint
from proof.model.rule import Rule
from tests.profiles import first

SCOPES = dict(zip(("one limit", "costs", "two limits"), SHORT, strict=True))
LONG = (SlotIgnoresMaxWait, SlotsAreJumped, OnlyTheFirstLimit)
"""Faults that are found late."""


@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(replace(SCOPES["costs"], moves=1), id="few moves"),
        *(pytest.param(scope, marks=pytest.mark.deep, id=name) for name, scope in SCOPES.items()),
    ],
)
def test_the_rule_keeps_every_promise_in_every_state(scope: Scope) -> None:
    result = explore(Rule(scope.limits), scope)
    assert result, result.story
    assert result.states > 1000


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[pytest.mark.deep] * (fault in LONG), id=fault.__name__) for fault in FAULTS]
)
def test_a_fault_in_the_rule_is_found(fault: type[Rule]) -> None:
    found: set[int | None] = set()
    for scope in SHORT:
        result = explore(fault(scope.limits), scope)
        found.add(result.promise)
        if result.promise in FAULTS[fault]:
            return
    pytest.fail(f"{fault.__name__} broke {found}")


def test_charges_and_settlements_keep_every_promise_in_every_state() -> None:
    result = explore(Rule(DEBITS.limits), DEBITS)
    assert result, result.story
    assert result.states > 1000


@pytest.mark.parametrize("fault", DEBIT_FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_charges_and_settlements_is_found(fault: type[Rule]) -> None:
    result = explore(fault(DEBITS.limits), DEBITS)
    assert result.promise in DEBIT_FAULTS[fault], result.story


@pytest.mark.parametrize("calls", first(1, [2, 3]))
def test_attempts_over_two_subjects_keep_every_promise_in_every_state(calls: int) -> None:
    result = explore_joint(JointRule(JOINT_SHORT.limits), JOINT_SHORT._replace(calls=calls))
    assert result, result.story
    assert result.states > 1000


@pytest.mark.parametrize("fault", JOINT_FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_joint_attempts_is_found(fault: type[JointRule]) -> None:
    result = explore_joint(fault(JOINT_SHORT.limits), JOINT_SHORT)
    assert result.promise in JOINT_FAULTS[fault], result.story
