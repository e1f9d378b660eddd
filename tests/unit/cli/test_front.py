"""`capline` alone: what one begins with, and every other command by what it is about."""

from itertools import chain

import pytest

from capline.cli.main import command
from capline.cli.render.front import FIRST, OTHERS


def test_each_command_is_shown_once() -> None:
    shown = [*FIRST, *chain.from_iterable(OTHERS.values())]
    assert sorted(shown) == sorted(command().commands)


def test_it_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    command()(["--help"], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert [line.split()[0] for line in lines[3:9]] == list(FIRST)
