"""A test run on a copy of src: did it notice?"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CAUGHT", "NO_VERDICT", "ROOT", "SURVIVED", "Trial", "run_tests"]

ROOT = Path(__file__).parents[3]
CAUGHT, SURVIVED, NO_VERDICT = "caught", "SURVIVED", "NO VERDICT"
OPTIONS = [
    *("-p", "no:cacheprovider", "-p", "no:xdist", "-x", "--tb=short"),
    "-Wignore::pytest.PytestAssertRewriteWarning",
]
_PASSED, _FAILED = 0, 1
_VERDICTS = {_PASSED: SURVIVED, _FAILED: CAUGHT}
# A process that has loaded what all tests need, and nothing of capline, forks one for each trial: half the time.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    ["pytest", "hypothesis", "hypothesis.strategies", "numpy", "lmdb", "msgspec", "redis"]
)


class Trial(NamedTuple):
    """`outcome` is one of the three; `output` is what pytest printed."""

    outcome: str
    output: str


def run_tests(source: Path, tests: Sequence[str], output: Path, longest_s: float) -> Trial:
    """Run these tests on this copy of src, up to the first that fails; what pytest prints goes to `output`.

    Only a test that ran and failed counts as caught. One that was not found, could not be imported or did not end in
    time gives no verdict. When this is interrupted, the tests are as well, so that they stop their servers.
    """
    process = _PROCESSES.Process(target=_test, args=(str(source), [*tests], str(output)))
    process.start()
    try:
        process.join(longest_s)
        if process.exitcode is None:
            return Trial(NO_VERDICT, f"the test did not end within {longest_s:g} s")
    finally:
        for number in (signal.SIGINT, signal.SIGKILL):  # first as Ctrl-C does, then by force
            if process.exitcode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid or 0, number)
                process.join(30)
    return Trial(_VERDICTS.get(process.exitcode or 0, NO_VERDICT), output.read_text(errors="replace"))


def _test(source: str, tests: list[str], output: str) -> None:
    """In the new process: pytest, with this copy of src before all else."""
    os.setsid()
    descriptor = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = source
    sys.path.insert(0, source)
    sys.dont_write_bytecode = True
    # Whoever started the process that forks this may have loaded capline there: a program has but one such process.
    for name in [name for name in sys.modules if name.partition(".")[0] in ("capline", "tests")]:
        del sys.modules[name]

    with suppress(BaseException):  # else Python's own exit code for what failed here would be that of a failed test
        code = pytest.main([*OPTIONS, *tests])
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001 - servers stop there
        os._exit(code)
    os._exit(3)
