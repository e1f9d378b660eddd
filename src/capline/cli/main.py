"""`capline`: all commands. Turns every error into one line and an exit code."""

from __future__ import annotations

import io
import sys
from functools import cache
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Annotated, TextIO, cast

import typer
from typer import _completion_shared
from typer.main import get_command

from capline import __version__
from capline.cli.input.declare import Commands
from capline.cli.render.console import BAD_INPUT, INTERRUPTED, note, plain
from capline.cli.render.front import FrontPage
from capline.cli.render.output import output
from capline.cli.render.site import linked
from capline.model.errors import CaplineError, faults_of

if TYPE_CHECKING:
    from typer.core import TyperGroup

_MODULES = {
    "init": ("init",),
    "docs": ("docs",),
    "doctor.run": ("doctor",),
    "decisions": ("decide", "peek", "refund", "explain", "erase", "sweep", "charge", "settle", "usage"),
    "logs": ("export", "import"),
    "replay": ("replay", "demo"),
    **{name: (name,) for name in ("response", "suggest", "top", "worker", "serve", "up", "campaign")},
    "segments.build": ("segments",),
    **{name: (name,) for name in ("store", "policies", "token", "config")},
}
"""The commands of each module of `commands`, in the order of the help. Only the module of the typed one is loaded."""
_NAMES = frozenset(chain.from_iterable(_MODULES.values()))

# zsh loads the file of completions at the first Tab, and takes what it answers: typer's only defines there.
_completion_shared._completion_scripts["zsh"] += (  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    "[[ $funcstack[1] != _%(prog_name)s ]] || %(complete_func)s\n"
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"capline {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """The options of `capline` itself."""


@cache
def command(typed: str = "") -> TyperGroup:
    """All commands with their options; of the module that has the `typed` one, where one has it."""
    app = Commands("capline", "Exact, fast, durable sliding-window limits.", cls=FrontPage)
    app.callback()(_options)
    for module, names in _MODULES.items():
        if typed in names or typed not in _NAMES:
            app.add_typer(import_module(f"capline.cli.commands.{module}").app)
    return cast("TyperGroup", get_command(app))


def main() -> None:
    """Run the command line.

    Exits 0 on success, 2 on bad input and where the answer cannot be written (with one line that says what to fix),
    130 on Ctrl-C.
    """
    if sys.stdout is sys.__stdout__:
        sys.stdout = output()
    if cast("TextIO | None", sys.stdin) is None:  # it is closed: as if it were empty
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO()))
    try:
        status = command(sys.argv[1] if sys.argv[1:] else "")(standalone_mode=False, prog_name="capline")
        sys.stdout.flush()
    except CaplineError as error:
        for line in faults_of(error):
            _refused(line)
        status = BAD_INPUT
    except OSError as error:
        if error.filename is None:
            raise
        # A name that is too long, a folder that may not be entered: `Path.exists` raises for them.
        status = _refused(f"{error.filename}: {(error.strerror or str(error)).lower()}; name another file")
    except typer.TyperException as error:
        message = error.format_message()
        status = BAD_INPUT
        if message:  # empty where a command without arguments printed its help
            where: typer.Context | None = getattr(error, "ctx", None)
            status = _refused(f"{message} ({where.command_path if where else 'capline'} --help tells more)")
    except typer.Abort:
        status = INTERRUPTED
    sys.exit(status if isinstance(status, int) else 0)


def _refused(message: str) -> int:
    line = " ".join(message.replace("\n\t", " ").split("\n"))
    note.print(f"[bold red]capline:[/] {plain(linked(line))}", soft_wrap=True)
    return BAD_INPUT
