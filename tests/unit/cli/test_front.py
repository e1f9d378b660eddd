"""`capline` alone: what one begins with, and every other command by what it is about."""

import subprocess
import sys
from itertools import chain

import pytest

from capline.cli.main import command
from capline.cli.render.front import FIRST, OTHERS


def test_each_command_is_shown_once() -> None:
    shown = [*FIRST, *chain.from_iterable(OTHERS.values())]
    assert sorted(shown) == sorted(command().commands)


def test_only_the_module_of_the_typed_command_is_loaded() -> None:
    every = command().commands
    assert all(word in command(word).commands for word in every)
    assert "campaign" not in command("token").commands
    assert command("tokens").commands.keys() == every.keys(), "so that a like name is found"
    begun = "from capline.cli.main import command; command('token'); import sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", begun], check=True, capture_output=True, text=True).stdout.split()
    assert "capline.cli.commands.token" in loaded
    assert not {"capline.cli.commands.config", "capline.limiter.limiter", "yaml"} & {*loaded}


def test_it_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    command()(["--help"], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert [line.split()[0] for line in lines[3:9]] == list(FIRST)
