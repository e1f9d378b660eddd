"""A test run on a copy of src: did it notice?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from proof.mutants.of_code.mutant import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["CAUGHT", "NO_VERDICT", "SURVIVED", "Trial", "run_tests"]

CAUGHT, SURVIVED, NO_VERDICT = "caught", "SURVIVED", "NO VERDICT"

LONGEST_S = 300
_PASSED, _FAILED = 0, 1
_VERDICTS = {_PASSED: SURVIVED, _FAILED: CAUGHT}


class Trial(NamedTuple):
    """`outcome` is one of the three; `output` is what pytest printed."""

    outcome: str
    output: str


def run_tests(source: Path, tests: Sequence[str], longest_s: float = LONGEST_S) -> Trial:
    """Run these tests on this copy of src.

    Only a test that ran and failed counts as caught. One that was not found, could not be imported or did not end in
    time gives no verdict. When this is interrupted, the tests are as well, so that they stop their servers.
    """
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-x", "--tb=short", *tests]
    environment = os.environ | {"PYTHONPATH": str(source)}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=longest_s)
        except subprocess.TimeoutExpired:
            _stop(process)
            return Trial(NO_VERDICT, f"the test did not end within {longest_s:g} s")
        except BaseException:
            _stop(process)
            raise
    return Trial(_VERDICTS.get(process.returncode, NO_VERDICT), output)


def _stop(process: subprocess.Popen[str]) -> None:
    """End a run and what it started: first as Ctrl-C does, then by force."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=30)
            return
