"""Where the operators make mistakes, the tests that have to catch them, and those that nothing can catch."""

from __future__ import annotations

from pathlib import Path

from proof.mutants.of_code.operators import Mutation, mutations
from proof.mutants.of_code.trials import ROOT

__all__ = ["SOURCE", "of_core", "of_file", "read_judged", "tests_of"]

SOURCE = ROOT / "src/capline"
JUDGED = Path(__file__).with_name("judged.txt")
_LAW = "tests/conformance/test_stores.py::TestMemory"
_SERVER = "tests/conformance/test_server_stores.py::TestRedis"
CORE = ["window/charge.py charge "]
"""Every mutant of these functions is killed or judged; one comes here with its survivors judged."""
_TESTS = {
    "window/": ("tests/unit/window", _LAW, "tests/property/window"),
    "store/local/": ("tests/unit/store/local", _LAW, "tests/conformance/test_stores.py::TestLmdb"),
    "store/redis/scripting/lua/": (_SERVER, "tests/faults/test_redis_expiry.py"),
}


def of_file(file: str) -> list[Mutation]:
    """Every mutant of a file below src/capline."""
    return mutations(file, (SOURCE / file).read_bytes())


def of_core() -> list[Mutation]:
    """Every mutant of the functions that are judged."""
    return [mutation for begin in CORE for mutation in of_file(begin.split()[0]) if mutation.key.startswith(begin)]


def tests_of(file: str) -> tuple[str, ...]:
    """The tests of a file: as stated here, or the folder of tests/unit that mirrors its own."""
    stated = next((tests for begin, tests in _TESTS.items() if file.startswith(begin)), None)
    return stated or (f"tests/unit/{Path(file).parent}",)


def read_judged() -> dict[str, str]:
    """The reason why each of these may survive, by its key."""
    lines = [line for line in JUDGED.read_text().splitlines() if line and not line.startswith("#")]
    return {key: reason for key, _, reason in (line.partition(": ") for line in lines)}
