"""What all commands share: two consoles, answers in JSON, examples on help pages, escaping of outside text.

Outside text (a subject, an id, a path) may hold terminal escape sequences. `printable` and `plain` escape it, and both
consoles escape whatever they print once more.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console, ConsoleDimensions
from rich.markup import escape

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.text import Text

__all__ = [
    "BAD_INPUT",
    "FAILED",
    "FAILED_FOR_GOOD",
    "INTERRUPTED",
    "NO_SEGMENT",
    "JsonOption",
    "answer_json",
    "examples",
    "group",
    "note",
    "out",
    "plain",
    "printable",
    "stop_lines",
    "warn",
]

FAILED = 1
BAD_INPUT = 2
FAILED_FOR_GOOD = 3
INTERRUPTED = 130

NO_SEGMENT = "-"
"""Stands for "no segment" in answers for people."""

_PIPE_WIDTH = 10_000
"""The width of a pipe, so that each line of an answer stays one line."""

JsonOption = Annotated[
    bool, typer.Option("--json", help="Answer in JSON, for machines; nothing else on standard output.")
]


def group(name: str, summary: str) -> typer.Typer:
    """A group of commands, like `capline segments`."""
    return typer.Typer(
        name=name,
        help=summary,
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def printable(text: object) -> str:
    """The text on one line; control and other invisible characters are escaped as in `repr`."""
    shown = str(text)
    return shown if shown.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)


def plain(text: object) -> str:
    """`printable`, with markup escaped."""
    return escape(printable(text))


class _Output(Console):
    """A console that wraps lines only on a terminal, and escapes control characters."""

    @property
    def size(self) -> ConsoleDimensions:
        size = super().size
        return size if self.is_terminal else ConsoleDimensions(_PIPE_WIDTH, size.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size

    def render_str(self, text: str, **options: object) -> Text:
        lines = "\n".join(printable(line) for line in text.split("\n"))
        return super().render_str(lines, **options)  # pyright: ignore[reportArgumentType] - passed on as they are


# Neither emoji nor highlighting: `a:heart:b` is a subject.
out: Console = _Output(highlight=False, emoji=False)
"""Standard output: answers, for people."""

note: Console = _Output(stderr=True, highlight=False, emoji=False)
"""Standard error: progress, warnings and errors, so that a pipe carries only answers."""


def warn(line: str) -> None:
    """Print one line of a warning or a hint."""
    note.print(line, style="yellow", markup=False, soft_wrap=True)


def stop_lines(ended: str) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """What to call at the first signal and at the second: each prints a line; `ended` says what happens next."""

    def stopping(signum: int) -> None:
        name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
        _print_now(f"{name}: finishing the step under way; again to end at once")

    return stopping, lambda _signum: _print_now(f"ended at once; nothing is lost: {ended}")


def _print_now(line: str) -> None:
    """Write a line without any buffer: a signal handler may have interrupted a buffered write.

    On a terminal it replaces the progress bar and shows the cursor again.
    """
    on_terminal = os.isatty(2)
    os.write(2, (f"\r\x1b[K\x1b[?25h{line}\n" if on_terminal else f"{line}\n").encode())


def answer_json(value: object) -> None:
    """Print one JSON document on one line, at once: somebody may follow them."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def examples(*lines: str) -> str:
    """The examples at the end of a help page."""
    return "\n\n".join(("[bold]Examples[/]", *lines))
