"""Parts are waited for, named when they die, started again, and ended with all that they started."""

import os
import signal
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.kit.server import soon

from capline.up.plan import Part
from capline.up.processes import Processes
from capline.up.status import running

SLEEPS = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
PARENT = (
    "import os, pathlib, sys, time\n"
    "child = os.fork()\n"
    "if child: pathlib.Path('child').write_text(str(child)); pathlib.Path('ready').touch()\n"
    "time.sleep(600)"
)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def parts(tmp_path: Path, said: list[str]) -> Generator[Processes]:
    made = Processes(tmp_path, said.append, lambda: False)
    yield made
    made.stop()


def python(name: str, code: str, *words: str, ready: str = "", once: bool = False) -> Part:
    return Part(name, (sys.executable, "-c", code, *words), ready, once, pause_s=0.01)


def runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:  # noqa: PTH123 - a file of the kernel
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_who_dies_is_named_and_started_again(tmp_path: Path, parts: Processes, said: list[str]) -> None:
    assert parts.start(python("sleeper", SLEEPS, "ready", ready="ready"))
    first = parts.pids()["sleeper"]
    os.kill(first, signal.SIGKILL)
    assert soon(lambda: looks(parts) and parts.pids()["sleeper"] != first)
    assert said[0].startswith("sleeper was ended by SIGKILL; the rest goes on")
    assert said[1].startswith("sleeper started again")
    (told,) = running(tmp_path)
    assert (told.name, told.starts, told.pid) == ("sleeper", 2, parts.pids()["sleeper"])
    assert told.memory_bytes
    parts.stop()
    assert [part.pid for part in running(tmp_path)] == [None]


def test_parts_are_waited_for_together(tmp_path: Path, parts: Processes) -> None:
    code = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)\n"
    code += "pathlib.Path(sys.argv[2]).touch(); time.sleep(600)"
    waits = python("waits", code, "second", "first", ready="first")
    ready = parts.start(waits, python("ready", SLEEPS, "second", ready="second"))
    assert [part.name for part in ready] == ["waits", "ready"]


def test_pauses_grow_up_to_the_longest_while_a_part_does_not_stay_up(
    parts: Processes, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capline.up.processes._LONGEST_PAUSE_S", 0.02)
    assert parts.start(python("sleeper", SLEEPS, "ready", ready="ready"))
    for _ in range(3):
        pid = parts.pids()["sleeper"]
        os.kill(pid, signal.SIGKILL)
        assert soon(lambda pid=pid: looks(parts) and parts.pids()["sleeper"] != pid)
    pauses = [line.rpartition(" in ")[2] for line in said if "was ended" in line]
    assert pauses == ["0.01 s", "0.02 s", "0.02 s"]


def test_what_a_dead_part_had_started_ends_before_it_is_started_again(
    tmp_path: Path, parts: Processes, said: list[str]
) -> None:
    assert parts.start(python("parent", PARENT, ready="ready"))
    child = int((tmp_path / "child").read_text(encoding="ascii"))
    os.kill(parts.pids()["parent"], signal.SIGKILL)
    assert soon(lambda: looks(parts) and bool(said))
    assert soon(lambda: not runs(child))


def test_what_a_part_started_ends_with_it(tmp_path: Path, parts: Processes) -> None:
    assert parts.start(python("parent", PARENT, ready="ready"))
    child = int((tmp_path / "child").read_text(encoding="ascii"))
    assert runs(child)
    parts.stop()
    assert soon(lambda: not runs(child))


def test_what_is_done_once_is_tried_until_it_is(
    tmp_path: Path, parts: Processes, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capline.up.processes.ONCE_AGAIN_S", 0.01)
    code = "import pathlib, sys; p = pathlib.Path('tried'); was = p.exists(); p.touch(); sys.exit(not was)"
    assert parts.start(python("first", code, once=True))
    assert parts.pids() == {}
    assert said == []


def test_a_part_that_never_answers_is_named(
    tmp_path: Path, parts: Processes, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capline.up.processes.READY_WITHIN_S", 0.2)
    assert not parts.start(python("silent", "import time; time.sleep(600)", ready="never"))
    assert "silent did not get ready" in said[-1]


def test_settings_of_the_callers_environment_do_not_reach_the_parts(
    tmp_path: Path, parts: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPLINE_STORE", "redis://elsewhere")
    code = "import os, sys; sys.exit('CAPLINE_STORE' in os.environ)"
    assert parts.start(python("clean", code, once=True))


def looks(parts: Processes) -> bool:
    parts.look()
    time.sleep(0.01)
    return True
