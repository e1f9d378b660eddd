"""Programs as users write them: each runs, and type checkers find in them what is wrong, and nothing else.

`assert_type` holds a type fast. A line that has to be refused says so: an ignore that is not needed is an error there.
"""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PROGRAMS = sorted((HERE / "programs").glob("*.py"))


def pyright(*paths: Path | str) -> list[dict[str, Any]]:
    """What pyright says of these files, as the project is set up."""
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", *map(str, paths)],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout)["generalDiagnostics"]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_runs(program: Path) -> None:
    runpy.run_path(str(program))


@pytest.mark.deep
def test_a_checker_accepts_the_programs_and_refuses_what_is_wrong(tmp_path: Path) -> None:
    assert pyright(*PROGRAMS) == []
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from capline import Limiter\n\nLimiter('memory://').decide('p', 3.5)\n")
    assert [found["rule"] for found in pyright(wrong)] == ["reportArgumentType"]


@pytest.mark.deep
@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_what_another_system_has_is_enough(system: str) -> None:
    parts = {part for part in (HERE.parents[1] / "src/capline").iterdir() if part.is_dir()}
    assert pyright("--pythonplatform", system, *(part for part in parts if part.name not in {"service", "up"})) == []


@pytest.mark.deep
def test_mypy_finds_what_is_wrong_in_them_and_nothing_else() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-warn-unused-ignores", "--no-error-summary"]
    done = subprocess.run(
        [*command, *map(str, PROGRAMS)], cwd=HERE.parents[1], capture_output=True, text=True, check=False
    )
    assert not done.stderr
    found = {tuple(line.split(":")[:2]) for line in done.stdout.splitlines() if ": error: " in line}
    marked = {
        (str(program.relative_to(HERE.parents[1])), str(number))
        for program in PROGRAMS
        for number, line in enumerate(program.read_text(encoding="utf-8").splitlines(), 1)
        if "# pyright: ignore[" in line
    }
    assert found == marked
    assert marked
