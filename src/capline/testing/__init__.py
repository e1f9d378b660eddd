"""The law for stores: one suite of checks and one state machine, which any store gets by one line each.

    from capline.testing import conformance, state_machine

    TestMemory = conformance("memory://")
    TestMemoryMachine = state_machine("memory://")

`{tmp}` in the URL becomes an empty directory of each test's own. Needs pytest and hypothesis (the `dev` extra).
"""

from capline.testing.conformance import conformance
from capline.testing.machine import state_machine
from capline.testing.reference import Reference

__all__ = ["Reference", "conformance", "state_machine"]
