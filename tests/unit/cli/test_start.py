"""Ctrl-C is quiet from the first moment on: exit 130 and no traceback, also while the command is being loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys

wanted = sys.argv[1]

class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Pressed())
from capline.cli.start import main
sys.argv = ["capline", "peek", "promo", "42", "--store", "lmdb://x"]
main()
"""


@pytest.mark.parametrize(
    "loading", ["typer", "capline.cli.main", "capline.cli.input.target", "capline.store.local.lmdb.store"]
)
def test_an_interrupt_while_this_is_being_loaded(loading: str, tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text("policies: {promo: {limits: [1/day]}}", encoding="utf-8")
    command = [sys.executable, "-c", PROGRAM, loading]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == ""
