"""The small apps of docs/howto/moving run as they were and as they become; each asserts its own answers."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.guests import guests

PAGES = sorted((Path(__file__).parents[2] / "docs" / "howto" / "moving").glob("*.md"))
DIFFS: dict[str, str] = {
    f"{page.stem}{number or ''}": diff
    for page in PAGES
    for number, diff in enumerate(re.findall(r"```diff\n([\s\S]*?)```", page.read_text(encoding="utf-8")))
}
"""By the package, and a number where it has a second one."""
MODULES = {name: name.rstrip("1").replace("-", "_") for name in DIFFS} | {"throttled-py": "throttled"}


def one_side(diff: str, sign: str) -> str:
    """The lines of one side of a diff."""
    return "\n".join(line[1:] for line in diff.splitlines() if line[:1] in {sign, " ", ""})


def run(program: str, folder: Path, python: str | Path = sys.executable) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    words = [python, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=120)
    assert done.returncode == 0, f"{program}\n{done.stderr[-2000:]}"


def test_every_package_that_people_come_from_has_its_app() -> None:
    packages = "limits flask-limiter slowapi fastapi-limiter django-ratelimit pyrate-limiter throttled-py aiolimiter"
    assert {page.stem for page in PAGES} == {*packages.split(), "bucket4j"}  # that one is for Java
    assert set(DIFFS) == {*packages.split(), "flask-limiter1"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "limits" else pytest.mark.deep) for name in DIFFS]
)
def test_the_app_runs_on_capline(name: str, tmp_path: Path) -> None:
    run(one_side(DIFFS[name], "+"), tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize("name", DIFFS)
def test_and_ran_as_it_was(name: str, tmp_path: Path) -> None:
    here = importlib.util.find_spec(MODULES[name]) is not None
    run(one_side(DIFFS[name], "-"), tmp_path, sys.executable if here else guests())
