"""A scratch folder ends with its process, also where that was killed; those in use stay."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from capline.support.scratch import ScratchFolder

_HOLDS = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from capline.support.scratch import ScratchFolder
folder = ScratchFolder("capline-try-")
print(folder.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_it_is_private_and_gone_when_it_is_closed() -> None:
    with ScratchFolder("capline-try-") as name:
        assert Path(name).stat().st_mode & 0o777 == 0o700
    assert not Path(name).exists()


def test_what_a_killed_process_left_is_removed_and_what_is_in_use_stays(tmp_path: Path) -> None:
    words = [sys.executable, "-c", _HOLDS, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        (theirs / "data").write_text("who was reached")
        (tmp_path / "capline-trying").mkdir()  # of another program
        with ScratchFolder("capline-try-"):
            assert (theirs / "data").exists()
        process.kill()
        process.wait()
        assert theirs.exists()
        with ScratchFolder("capline-try-"):
            assert not theirs.exists()
    assert (tmp_path / "capline-trying").exists()


def test_a_link_to_another_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".in-use").touch()
    (tmp_path / "capline-try-link").symlink_to(tmp_path / "mine")
    with ScratchFolder("capline-try-"):
        assert (tmp_path / "mine" / ".in-use").exists()
