"""The command line, called in this process: what it printed, and how it ended."""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from capline.cli import main as command_line


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


class CommandLine:
    """`capline`, in one folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = monkeypatch, capsys
        monkeypatch.chdir(folder)
        monkeypatch.setenv("NO_COLOR", "1")

    def __call__(self, *words: str) -> Done:
        """Type these words."""
        self._patch.setattr(sys, "argv", ["capline", *words])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        said = self._capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)

    def json(self, *words: str) -> Any:
        """The answer in JSON."""
        done = self(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def refused(self, *words: str) -> str:
        """What it says in one line as it refuses them."""
        done = self(*words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
        return done.stderr
