"""tools/setup.sh with an interpreter that only pretends: it is quiet but for its own lines, and says how to go on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PRETENDER = f"""#!/bin/bash
# A Python that is noisy where pip and venv are called, and makes nothing but itself.
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo noise of venv; echo more noise >&2 ;;
  "-m pip "*) echo noise of pip; echo more noise >&2; [[ "$*" != *${{FAILS:-nothing}}* ]] ;;
  *) exec {sys.executable} "$@" ;;
esac
"""


class Setup:
    """A folder that looks like a clone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tools").mkdir()
        shutil.copy(ROOT / "tools/setup.sh", folder / "tools")
        for name in ("requirements.lock", "pyproject.toml", "tools/system-packages.txt"):
            (folder / name).write_text("", encoding="utf-8")
        self.python = folder / "python3"
        self.python.write_text(PRETENDER, encoding="utf-8")
        self.python.chmod(0o755)

    def __call__(self, goal: str = "setup", **environment: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHON": str(self.python), **environment}
        command = ["bash", str(self.folder / "tools/setup.sh"), goal]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


HOW = "setup: capline is ready; to have it here, type: source .venv/bin/activate"


def test_only_its_own_lines_are_seen(setup: Setup) -> None:
    done = setup()
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("setup: making .venv with ")
    assert lines[1] == HOW


def test_when_all_is_there_it_only_says_how_to_get_at_capline(setup: Setup) -> None:
    assert setup().returncode == 0
    assert setup().stderr.splitlines() == [HOW]
    programs = setup.folder / ".venv/bin"
    (programs / "capline").touch(mode=0o755)
    assert setup(PATH=f"{programs}:{os.environ['PATH']}").stderr == "", "it is there already"


@pytest.mark.parametrize(
    ("fails", "said"), [("requirements.lock", "did not install; pip's words are above"), ("editable", "make lock")]
)
def test_what_fails_shows_what_the_tool_said(setup: Setup, fails: str, said: str) -> None:
    done = setup(FAILS=fails)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("noise of pip\nmore noise\n") == 1
    assert said in done.stderr.splitlines()[-1]
    assert not (setup.folder / ".venv/.capline-setup").exists()
    assert setup().returncode == 0


def test_for_the_whole_system_what_cannot_be_had_is_named_and_for_tests_it_must_be(setup: Setup) -> None:
    apt = setup.folder / "apt-get"
    apt.write_text("#!/bin/bash\necho apt was called\nexit 1\n", encoding="utf-8")
    apt.chmod(0o755)
    path = f"{setup.folder}:{os.environ['PATH']}"
    packages = (
        "up must no-such-server no-such-server what is tried\ntest must no-such-tool no-such-tool what tests use\n"
    )
    (setup.folder / "tools/system-packages.txt").write_text(packages, encoding="utf-8")
    (setup.folder / "tools/ministack.lock").touch()
    assert setup().returncode == 0
    without = setup("up", PATH=path, FAILS="ministack.lock", APT="no")
    assert (without.returncode, "apt w" in without.stderr) == (0, False), without.stderr
    assert "note: no-such-server is missing (what is tried)" in without.stderr
    up = setup("up", PATH=path, FAILS="ministack.lock")
    assert up.returncode == 0, up.stderr
    if os.geteuid() == 0:
        told = up.stderr.partition("apt was called")[0].splitlines()
        assert "APT=no" in told[0]
        assert told[1:] == ["setup:   no-such-server: what is tried"]
    assert "note: no-such-server is missing (what is tried)" in up.stderr
    assert "no-such-tool" not in up.stderr
    assert "note: build/ministack could not be made" in up.stderr
    assert not (setup.folder / "build/ministack").exists()
    tests = setup("test", PATH=path)
    assert (tests.returncode, "no-such-server is missing (what is tried); type:" in tests.stderr) == (1, True)
