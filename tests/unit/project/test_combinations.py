"""What the fast part of the tests has at least."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.combinations import ALWAYS

ROOT = Path(__file__).parents[3]


def test_every_law_is_checked_on_memory_and_on_lmdb_all_day() -> None:
    listed = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "--collect-only",
            "-m",
            "not deep",
            "tests/conformance/test_stores.py",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    asked = [line.split("::")[1:] for line in listed.splitlines() if "::" in line]
    laws = {store: {law for name, law in asked if name == store} for store in ALWAYS}
    assert len(laws["TestMemory"]) > 150
    # A store in a process is not asked by several processes at once.
    assert laws["TestMemory"] <= laws["TestLmdb"]
    assert {law for _, law in asked} == laws["TestLmdb"]
