"""The curated mistakes in capline's code: each fits the code as it is, and its test is one of every day."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from proof.mutants.of_code import __main__ as program
from proof.mutants.of_code.every import MUTANTS
from proof.mutants.of_code.mutant import ROOT, SOURCE, Mutant, changed_text, make_copy
from proof.mutants.of_code.trials import CAUGHT, NO_VERDICT, SURVIVED, run_tests

if TYPE_CHECKING:
    from pathlib import Path

FOLDERS = {
    *("window", "store", "limiter", "segment", "campaign", "replay", "policy", "middleware", "observe", "cli"),
    *("web", "service", "config", "up", "contrib", "model", "forms"),
}
HERE = "tests/proof/test_mutants_of_code.py"
EXAMPLE = Mutant("example", "model/limit.py", "quota", "quote", "none", f"{HERE}::test_names_are_of_one_mutant_each")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_text_stands_in_the_code_exactly_once(mutant: Mutant) -> None:
    before, after = (SOURCE / "capline" / mutant.file).read_text(), changed_text(mutant)
    assert after != before
    if mutant.file.endswith(".py"):
        compile(after, mutant.file, "exec")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_test_is_there_and_runs_every_day(mutant: Mutant) -> None:
    file, *names = mutant.test.split("::")
    module = import_module(file.removesuffix(".py").replace("/", "."))
    found: Any = module
    marks: list[Any] = marks_of(module)
    for name in names:
        found = getattr(found, name.partition("[")[0])
        marks += marks_of(found)
    assert callable(found)
    assert not {"alone", "deep"} & {mark.name for mark in marks}


def marks_of(place: Any) -> list[Any]:
    marks = getattr(place, "pytestmark", [])
    return [*marks] if isinstance(marks, list) else [marks]


def test_names_are_of_one_mutant_each() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_every_folder_has_some() -> None:
    assert {mutant.file.partition("/")[0] for mutant in MUTANTS} >= FOLDERS


@pytest.mark.parametrize("text", ["no such text", "def "])
def test_a_text_that_does_not_stand_there_once_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"mutant example: its text stands \d+ times in model/limit.py"):
        changed_text(EXAMPLE._replace(text=text))


def test_the_mistake_is_in_the_copy_alone(tmp_path: Path) -> None:
    mutant = MUTANTS[0]
    before = (SOURCE / "capline" / mutant.file).read_text()
    make_copy(SOURCE, tmp_path / "src", mutant)
    files = [path.relative_to(SOURCE) for path in SOURCE.rglob("*") if path.suffix in (".py", ".lua")]
    changed = [str(file) for file in files if (SOURCE / file).read_bytes() != (tmp_path / "src" / file).read_bytes()]
    assert changed == [f"capline/{mutant.file}"]
    assert (SOURCE / "capline" / mutant.file).read_text() == before


def test_a_name_that_is_none_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(["--only", "nobody"])
    assert ended.value.code == 2
    assert "no mutant 'nobody'; --list says which there are" in capsys.readouterr().err


def test_all_are_listed_with_their_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--list"]) == 0
    told = capsys.readouterr().out
    assert all(mutant.name in told and mutant.why in told and mutant.test in told for mutant in MUTANTS)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("body", "outcome"),
    [("assert True", SURVIVED), ("assert False", CAUGHT)],
)
def test_only_a_test_that_ran_and_failed_has_caught_a_mutant(tmp_path: Path, body: str, outcome: str) -> None:
    test = tmp_path / "test_one.py"
    test.write_text(f"def test_one():\n    {body}\n")
    assert run_tests(SOURCE, [str(test)]).outcome == outcome


@pytest.mark.deep
@pytest.mark.parametrize("text", ["import nothing", "def test_another(): pass", "def test_one(:"])
def test_a_test_that_cannot_be_run_gives_no_verdict(tmp_path: Path, text: str) -> None:
    (tmp_path / "test_one.py").write_text(text)
    assert run_tests(SOURCE, [f"{tmp_path}/test_one.py::test_one"]).outcome == NO_VERDICT


@pytest.mark.deep
def test_a_test_that_does_not_end_gives_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("import time\n\ndef test_one():\n    time.sleep(600)\n")
    assert run_tests(SOURCE, [str(tmp_path / "test_one.py")], longest_s=5).outcome == NO_VERDICT


@pytest.mark.deep
@pytest.mark.parametrize("name", ["queue_is_jumped", "stray_number", "missed_slots_are_not_counted"])
def test_a_mutant_is_caught(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--only", name]) == 0
    assert "1 of 1 mutants caught" in capsys.readouterr().out


@pytest.mark.deep
def test_a_mutant_that_survives_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "MUTANTS", (MUTANTS[0]._replace(name="survivor", test=EXAMPLE.test),))
    assert program.main(["--only", "survivor"]) == 1
    assert "SURVIVED   survivor" in capsys.readouterr().out


@pytest.mark.deep
def test_an_interrupt_ends_the_tests_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "proof.mutants.of_code", "--only", "queue_is_jumped"]
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
