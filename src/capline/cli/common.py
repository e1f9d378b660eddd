"""What all commands share: how they are declared, two consoles, answers, tables, escaping of outside text.

Outside text (a subject, an id, a path) may hold terminal escape sequences. `printable` and `plain` escape it, and both
consoles escape whatever they print once more.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import typer
from rich.console import Console, ConsoleDimensions
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.text import Text

__all__ = [
    "BAD_INPUT",
    "FAILED",
    "FAILED_FOR_GOOD",
    "INTERRUPTED",
    "NO_SEGMENT",
    "Commands",
    "answer",
    "answer_json",
    "note",
    "out",
    "plain",
    "printable",
    "stop_lines",
    "table",
    "warn",
]

_Verb = TypeVar("_Verb", bound="Callable[..., None]")

FAILED = 1
BAD_INPUT = 2
FAILED_FOR_GOOD = 3
INTERRUPTED = 130

NO_SEGMENT = "-"
"""Stands for "no segment" in answers for people."""

_PIPE_WIDTH = 10_000
"""The width of a pipe, so that each line of an answer stays one line."""


class Commands(typer.Typer):
    """Commands; with a name, a group of them, like `capline segments`."""

    def __init__(self, name: str | None = None, summary: str | None = None) -> None:
        super().__init__(
            name=name,
            help=summary,
            no_args_is_help=True,
            rich_markup_mode="rich",
            context_settings={"help_option_names": ["-h", "--help"]},
        )

    def verb(self, *examples: str, help: str | None = None, name: str | None = None) -> Callable[[_Verb], _Verb]:
        """Make a function a command of its name, with these examples at the end of its help page.

        A parameter whose type is a dataclass stands for the options that are the fields of the dataclass.
        """

        def declare(function: _Verb) -> _Verb:
            epilog = "\n\n".join(("[bold]Examples[/]", *examples))
            self.command(name or function.__name__.strip("_"), help=help, epilog=epilog)(_spread(function))
            return function

        return declare


def _spread(function: Callable[..., None]) -> Callable[..., None]:
    """The function as typer reads and calls it: with the options of each group in place of the group."""
    groups: dict[str, Any] = {}
    parameters: list[Parameter] = []
    for name, parameter in signature(function, eval_str=True).parameters.items():
        group: Any = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[name] = group
            parameters += signature(group, eval_str=True).parameters.values()
        else:
            parameters.append(parameter)

    @wraps(function)
    def called(**typed: Any) -> None:
        for name, group in groups.items():
            typed[name] = group(**{option: typed.pop(option) for option in signature(group).parameters})
        function(**typed)

    # By keyword, as options with defaults stand before arguments without one.
    by_keyword = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    called.__signature__ = Signature(by_keyword)  # pyright: ignore[reportAttributeAccessIssue] - as inspect reads it
    return called


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


def answer(value: object, text: str, *, json: bool, soft_wrap: bool | None = None) -> None:
    """Answer with the value in JSON, or with the text for people."""
    if json:
        answer_json(value)
    else:
        out.print(text, markup=False, soft_wrap=soft_wrap)


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
