"""Mistakes in capline's code: the operators make them, those by hand fit the code, and what survives is judged."""

import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from proof.mutants.of_code import __main__ as program
from proof.mutants.of_code.by_hand import MUTANTS, Mutant, changed_text
from proof.mutants.of_code.operators import mutations
from proof.mutants.of_code.targets import SOURCE, of_core, of_file, read_judged
from proof.mutants.of_code.trials import CAUGHT, NO_VERDICT, ROOT, SURVIVED, run_tests
from tests.profiles import first

EXAMPLE = Mutant("example", "model/limit.py", "quota", "quote", "proof/test_mutants_of_code.py::test_example")
PYTHON = b"""
def f(a, b):
    if a < b and not a:
        b.c = -a + 1
    return a if a == b else g(True)
"""
LUA = b"""
local function f(a, b)
  if a <= b and not a then
    redis.call('SET', a - 1)
  end
  return a == b -- a < b
end
"""


@pytest.mark.parametrize(
    ("file", "source", "mistakes"),
    [
        (
            "f.py",
            PYTHON,
            {
                *("if a <= b and not a:", "if a < b or not a:", "if a < b and  a:", "if False:", "pass"),
                *("b.c = a + 1", "b.c = -a - 1", "b.c = -a + 2", "return None"),
                *("return a if a != b else g(True)", "return a if a == b else g(False)"),
            },
        ),
        (
            "f.lua",
            LUA,
            {
                *("if a < b and not a then", "if a <= b or not a then", "if a <= b and  a then", "if false then"),
                *("", "redis.call('SET', a + 1)", "redis.call('SET', a - 2)"),
                *("return a ~= b -- a < b", "return nil"),
            },
        ),
    ],
)
def test_every_operator_is_applied_at_every_place(file: str, source: bytes, mistakes: set[str]) -> None:
    made = mutations(file, source)
    assert {one.applied(source).splitlines()[one.line - 1].decode().strip() for one in made} == mistakes
    assert {one.function for one in made} == {"f"}


@pytest.mark.parametrize("file", first(4, sorted(f"window/{path.name}" for path in SOURCE.glob("window/*.py"))))
def test_the_mutants_of_a_file_are_code_each_of_another_name(file: str) -> None:
    source, made = (SOURCE / file).read_bytes(), of_file(file)
    assert len({one.key for one in made}) == len(made)
    for one in made:
        compile(one.applied(source), file, "exec")


def test_what_is_judged_to_survive_is_still_made() -> None:
    assert read_judged().keys() <= {one.key for one in of_core()}
    assert all(read_judged().values())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.why)
def test_one_by_hand_fits_the_code_and_its_test_runs_every_day(mutant: Mutant) -> None:
    changed = changed_text(mutant)
    assert changed != (SOURCE / mutant.file).read_text()
    if mutant.file.endswith(".py"):
        compile(changed, mutant.file, "exec")
    file, *names = mutant.test.split("::")
    found: Any = import_module(f"tests.{file.removesuffix('.py').replace('/', '.')}")
    marks = marks_of(found)
    for name in names:
        found = getattr(found, name.partition("[")[0])
        marks += marks_of(found)
    assert callable(found)
    assert not {"alone", "deep"} & {mark.name for mark in marks}


def marks_of(place: Any) -> list[Any]:
    marks = getattr(place, "pytestmark", [])
    return [*marks] if isinstance(marks, list) else [marks]


@pytest.mark.parametrize("text", ["no such text", "def "])
def test_a_text_that_does_not_stand_there_once_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"example: its text stands \d+ times in model/limit.py"):
        changed_text(EXAMPLE._replace(text=text))


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--only", "nobody"], "no mutant by hand is about 'nobody'"),
        (["--file", "none.py"], "no file src/capline/none.py"),
    ],
)
def test_a_name_that_is_none_is_bad_input(options: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(options)
    assert ended.value.code == 2
    assert fault in capsys.readouterr().err


@pytest.mark.deep
@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        *(("def test_one(): assert True", SURVIVED), ("def test_one(): assert False", CAUGHT)),
        *(("import nothing", NO_VERDICT), ("def test_another(): pass", NO_VERDICT), ("def test_one(:", NO_VERDICT)),
        ("import time\ndef test_one(): time.sleep(600)", NO_VERDICT),
    ],
)
def test_only_a_test_that_ran_and_failed_has_caught_a_mutant(tmp_path: Path, body: str, outcome: str) -> None:
    (tmp_path / "test_one.py").write_text(body)
    within_s = 10 if "sleep" in body else 60
    ran = run_tests(SOURCE.parent, [f"{tmp_path}/test_one.py::test_one"], tmp_path / "out", within_s)
    assert ran.outcome == outcome


@pytest.mark.deep
def test_a_sample_of_the_operators_mutants_is_killed_or_judged(capsys: pytest.CaptureFixture[str]) -> None:
    code = program.main(["--sample", "10"])
    told = capsys.readouterr().out
    assert code == 0, told
    assert "10 of 10 as they should be" in told


@pytest.mark.deep
def test_one_by_hand_is_caught_and_one_that_survives_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert program.main(["--only", MUTANTS[0].why]) == 0
    monkeypatch.setattr(program, "MUTANTS", (MUTANTS[0]._replace(why="survivor", test="unit/window/test_calendar.py"),))
    assert program.main(["--only", "survivor"]) == 1
    assert "SURVIVED   survivor" in capsys.readouterr().out


@pytest.mark.deep
def test_an_interrupt_ends_the_tests_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "proof.mutants.of_code", "--only", MUTANTS[0].why]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("control: ")
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=90)
    assert (process.returncode, told) == (130, "interrupted\n")
    assert [*tmp_path.iterdir()] == []
