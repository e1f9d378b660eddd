"""`capline`: the commands, and the one place that turns an error into one line and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from capline import __version__
from capline.cli import (
    campaign,
    charges,
    config,
    decisions,
    logs,
    policies,
    replay,
    segments,
    serve,
    store,
    token,
    up,
    worker,
)
from capline.cli.common import BAD_INPUT, INTERRUPTED, note, plain
from capline.model.errors import CaplineError

__all__ = ["app", "main"]

app = typer.Typer(
    name="capline",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(campaign.app, name="campaign")
app.add_typer(segments.app, name="segments")
app.add_typer(store.app, name="store")
app.add_typer(policies.app, name="policies")
app.add_typer(token.app, name="token")
app.add_typer(config.app, name="config")
decisions.register(app)
charges.register(app)
logs.register(app)
replay.register(app)
worker.register(app)
serve.register(app)
up.register(app)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"capline {__version__}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction] - typer calls it
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Exact, fast, durable sliding-window limits."""


def main() -> None:
    """Run the command line.

    Exits 0 on success, 2 on bad input with one line that says what to fix, 130 on Ctrl-C.
    """
    try:
        status = app(standalone_mode=False)
    except CaplineError as error:
        status = _refused(str(error))
    except typer.TyperException as error:
        message = error.format_message()
        status = BAD_INPUT
        if message:  # none where a command without arguments has answered with its help
            status = _refused(f"{message} ({' '.join(['capline', *_command()])} --help tells more)")
    except typer.Abort:
        status = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status if isinstance(status, int) else 0)


def _refused(message: str) -> int:
    """Say on one line what is wrong."""
    line = " ".join(message.split("\n"))
    note.print(f"[bold red]capline:[/] {plain(line)}", soft_wrap=True)
    return BAD_INPUT


def _command() -> list[str]:
    """The words before the first option or value: the command whose help tells more."""
    names = {command.name for command in (*app.registered_commands, *app.registered_groups)}
    first = sys.argv[1:2]
    return first if first and first[0] in names else []
