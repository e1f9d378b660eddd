"""What reaches the screen: nothing that somebody else could steer a terminal with, no wrapped line in a pipe."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.cli import CommandLine
from tests.profiles import first
from typer.core import TyperCommand, TyperGroup

from capline.cli.main import command as capline_command
from capline.cli.render.console import note, out, plain, printable

NASTY = "\x1b[31m\x1b]0;title\x07\x9b5m\u202e[bold red]x[/]:heart:\\\t\r\n\x00\x7f"
SHOWN = r"\x1b[31m\x1b]0;title\x07\x9b5m\u202e[bold red]x[/]:heart:\\t\r\n\x00\x7f"


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    policies = "namespace: n\npolicies: {p: {limits: [1/day]}, q: {limits: [9/day], by_segment: {a: [1/day]}}}\n"
    (tmp_path / "policies.yaml").write_text(policies, encoding="utf-8")


def is_quiet(text: str) -> bool:
    """Whether a terminal only shows it."""
    return all(c.isprintable() or c == "\n" for c in text)


OUTPUTS = ("full", "a pipe that is closed", "closed")
TYPED = (["decide", "p", "u"], ["usage", "p", "u", "--json"], ["--version"], ["--help"])


@pytest.mark.parametrize(
    "case", first(4, [(words, OUTPUTS[(turn + row) % 3]) for turn in range(3) for row, words in enumerate(TYPED)])
)
def test_an_output_that_takes_nothing_is_one_line_and_exit_2(tmp_path: Path, case: tuple[list[str], str]) -> None:
    words, output = case
    read, write = os.pipe()
    os.close(read)
    with Path("/dev/full").open("wb") as full, os.fdopen(write, "wb") as broken:
        typed = [sys.executable, "-m", "capline.cli", *words, *(() if words[0][0] == "-" else ("--store", "memory://"))]
        if output == "closed":
            typed = ["sh", "-c", 'exec "$@" >&-', "sh", *typed]
        done = subprocess.run(
            typed,
            cwd=tmp_path,
            stdout=broken if output == "a pipe that is closed" else full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert re.fullmatch(r"capline: the answer cannot be written \([a-z ]+\); .*\n", done.stderr), done.stderr


@settings(derandomize=True, deadline=None)
@given(st.text())
def test_what_is_printed_is_one_line_that_can_be_seen(text: str) -> None:
    assert printable(text).isprintable()
    for console in (out, note):
        with console.capture() as shown:
            console.print(plain(text), soft_wrap=True)
        assert shown.get() == f"{printable(text)}\n"


def test_a_subject_cannot_steer_the_terminal(capline: CommandLine) -> None:
    (subject,) = (NASTY.replace("\x00", ""),)
    words = [
        ["decide", "p", subject],
        ["decide", "p", subject],
        ["peek", "p", subject],
        ["peek", "p", "x", "--and", f"q={subject}", "--id", subject],
        ["decide", "p", "y", "--and", f"q={subject}"],
        ["decide", "p", "y", "--and", f"q={subject}"],
        ["decide", "p", "x", "--and", subject],
        ["explain", "p", subject],
        ["explain", "q", subject, "--id", subject],
        ["explain", "p", subject, "--segments", subject],
        ["refund", "p", subject, "7"],
        ["erase", subject],
        ["decide", subject, "x"],
        ["decide", "q", "x", "--segment", subject],
        ["decide", "p", "x", "--zone", subject],
        ["decide", "p", "x", "--store", subject],
        ["peek", "p", "x", "--policies", subject],
        ["peek", "p", "x", "--campaign", subject],
        ["peek", "p", "x", "--cost", subject],
        ["import", subject],
        ["segments", "show", subject],
        ["segments", "list", subject],
        ["policies", "show", subject],
        [subject],
    ]
    for each in words:
        done = capline(*each)
        assert is_quiet(done.stdout), each
        assert is_quiet(done.stderr), each
    assert SHOWN.replace(r"\x00", "") in capline("explain", "p", subject).stdout


def test_json_and_exports_have_the_subject_as_it_is(capline: CommandLine) -> None:
    subject = NASTY.replace("\x00", "")
    assert capline.json("decide", "p", subject)["allowed"]
    assert capline.json("explain", "p", subject)["subject"] == subject
    capline("export", "logs.jsonl")
    assert capline("import", "logs.jsonl", "--store", "lmdb://other").returncode == 0
    assert not capline.json("peek", "p", subject, "--store", "lmdb://other")["allowed"]


def test_an_id_of_a_segment_cannot_steer_the_terminal(capline: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_bytes(b'id,segment\n"\x1b[31mx",a\ny,a\n')
    words = ["users.csv", "--out", "s", "--kind", "text", "--ids", "ids"]
    assert capline("segments", "build", *words).returncode == 0
    for each in (["members", "s", "a"], ["members", "s", "a", "--limit", "1"]):
        done = capline("segments", *each)
        assert done.returncode == 0
        assert is_quiet(done.stdout + done.stderr)
    assert capline("segments", "contains", "s", "\x1b[31mx").stdout == "\\x1b[31mx\ta\n"


def test_what_is_piped_is_not_wrapped(capline: CommandLine) -> None:
    subject = "x" * 400
    assert capline("decide", "p", "y", "--and", f"q={subject}").stdout.count("\n") == 3
    assert f"policy p, subject {subject}" in capline("explain", "p", subject).stdout.split("\n")
    program = "from capline.cli.render.console import out, note; out.print('x ' * 500); note.print('y ' * 500)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout.count("\n"), done.stderr.count("\n")) == (1, 1)


def commands(group: TyperGroup, name: str = "capline") -> dict[str, TyperCommand | TyperGroup]:
    """Every command and every group, by what is typed for it."""
    found: dict[str, TyperCommand | TyperGroup] = {}
    for word, command in group.commands.items():
        assert isinstance(command, (TyperCommand, TyperGroup))
        found[f"{name} {word}"] = command
        if isinstance(command, TyperGroup):
            found |= commands(command, f"{name} {word}")
    return found


def test_every_help_ends_with_examples_of_the_command() -> None:
    found = commands(capline_command())
    assert len(found) > 20
    for name, command in found.items():
        assert (command.epilog or "").startswith("[bold]Examples[/]\n\n"), name
        assert name in (command.epilog or ""), name
        assert "xample" not in (command.help or ""), name
