"""Two consoles, answers, tables, and the escaping of outside text.

Outside text (a subject, an id, a path) may hold terminal escape sequences. `printable` and `plain` escape it, and both
consoles escape whatever they print once more.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import typer
from rich.console import Console, ConsoleDimensions
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from rich.text import Text

FAILED = 1
"""Something failed that may succeed later, or a check found a fault; with `--exit-code`, a refusal."""
BAD_INPUT = 2
"""Wrong input, or what is needed does not answer; one line says what to fix."""
FAILED_FOR_GOOD = 3
"""Messages failed that the receiver refused for good: a retry is not advised."""
INTERRUPTED = 130
"""Ended by Ctrl-C; 143 by SIGTERM."""

NO_SEGMENT = "-"
"""Stands for "no segment" in answers for people."""

_PIPE_WIDTH = 10_000
"""The width of a pipe, so that each line of an answer stays one line."""


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


def counted(count: int, singular: str, plural: str) -> str:
    """The count with its noun."""
    return f"{count:,} {singular if count == 1 else plural}"


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


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command answers: facts for machines, and for people a line or what prints the lines."""

    facts: object
    text: str | Callable[[], object]
    code: int = 0
    """The exit code."""

    def show(self, *, json: bool) -> None:
        """Print it."""
        if json:
            answer_json(self.facts)
        elif isinstance(self.text, str):
            out.print(self.text, markup=False, soft_wrap=True)
        else:
            self.text()

    def end(self, *, json: bool) -> None:
        """Print it, and exit with its code."""
        self.show(json=json)
        if self.code:
            raise typer.Exit(self.code)


def answer_json(value: object) -> None:
    """Print one JSON document on one line, at once: somebody may follow them."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def table(*headings: str, numbers: Iterable[str] = ()) -> Table:
    """A table without lines between its rows; the columns of numbers come last, and stand to the right."""
    made = Table(*headings, box=None, header_style="bold")
    for heading in numbers:
        made.add_column(heading, justify="right")
    return made
