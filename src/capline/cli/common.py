"""What every command shares: the two consoles, JSON answers, examples of a help page, text from outside.

Text from outside (a subject, an id, a path) may hold anything. It reaches a terminal only through `printable` or
`plain`, and both consoles check once more whatever they print: no escape sequence of somebody else is ever sent.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console, ConsoleDimensions
from rich.markup import escape

if TYPE_CHECKING:
    from rich.text import Text

__all__ = [
    "BAD_INPUT",
    "FAILED",
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
]

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130

NO_SEGMENT = "-"
"""How an answer for people shows that somebody is in no segment."""

_PIPE_WIDTH = 10_000
"""Columns where nobody looks: a line of an answer stays one line, whatever the terminal behind it is."""

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
    """The text on one line, with control characters, and whatever else is not seen, escaped as `repr` has them."""
    shown = str(text)
    return shown if shown.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)


def plain(text: object) -> str:
    """`printable`, with nothing in it read as markup."""
    return escape(printable(text))


class _Output(Console):
    """A console that wraps lines only for a terminal, and sends no control character that it was handed."""

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
"""Answers, for people: standard output."""

note: Console = _Output(stderr=True, highlight=False, emoji=False)
"""Progress, warnings and errors: standard error, so that a pipe carries answers only."""


def answer_json(value: object) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def examples(*lines: str) -> str:
    """The end of a help page, after the options: what to type."""
    return "\n\n".join(("[bold]Examples[/]", *lines))
