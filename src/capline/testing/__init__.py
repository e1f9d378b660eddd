"""The law for stores: one suite of checks and one state machine, which any store gets by one line each.

    from capline.testing import conformance, state_machine

    TestMemory = conformance("memory://")
    TestMemoryMachine = state_machine("memory://")

`{tmp}` in the URL becomes an empty directory of each test's own. Needs pytest and hypothesis (the `dev` extra).
"""

import pytest

# Before they are imported: a check that fails is to show what it compared, as a test's own lines do.
pytest.register_assert_rewrite("capline.testing.law", "capline.testing.machine")

from capline.testing.conformance import conformance  # noqa: E402
from capline.testing.machine import state_machine  # noqa: E402
from capline.testing.reference import Reference  # noqa: E402

__all__ = ["Reference", "conformance", "state_machine"]
