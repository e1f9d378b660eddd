"""`python -m proof.model`: the long form; exit 1 where a promise is broken, or a fault is missed. Minutes, and 2 GB."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from proof.model.explore import DEBITS, LONG, SHORT, explore
from proof.model.faults import DEBIT_FAULTS, FAULTS
from proof.model.joint import FAULTS as JOINT_FAULTS
from proof.model.joint import JOINT_LONG, JOINT_SHORT, JointRule, explore_joint
from proof.model.rule import Rule
from proof.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The rule in every scope, then the rule with each fault."""
    about = "Check the rule in every state that a few callers can reach. Some five minutes, and 2 GB."
    Options("python -m proof.model", about, "").parse_args(arguments)
    wrong = 0
    for scope in LONG:
        begun = time.monotonic()
        result = explore(Rule(scope.limits), scope)
        said = "every promise kept" if result else "; ".join(result.story)
        print(
            f"{scope}: {result.states} states, {result.steps} steps: {said}; {time.monotonic() - begun:.0f} s",
            flush=True,
        )
        wrong += not result
    for fault, promises in (FAULTS | DEBIT_FAULTS).items():
        scopes = SHORT if fault in FAULTS else (DEBITS,)
        results = [explore(fault(scope.limits), scope) for scope in scopes]
        found = {result.promise for result in results if result.promise is not None}
        wrong += not found & promises
        print(f"{fault.__name__}: {'found' if found & promises else 'MISSED'}", flush=True)
    result = explore_joint(JointRule(JOINT_LONG.limits), JOINT_LONG)
    said = "every promise kept" if result else "; ".join(result.story)
    print(f"{JOINT_LONG}: {result.states} states, {result.steps} steps: {said}", flush=True)
    wrong += not result
    for fault, promises in JOINT_FAULTS.items():
        found = explore_joint(fault(JOINT_SHORT.limits), JOINT_SHORT).promise in promises
        wrong += not found
        print(f"{fault.__name__}: {'found' if found else 'MISSED'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
