"""`capline`: the commands, and the one place that turns an error into one line and an exit code."""

from __future__ import annotations

import os
import sys

import click
import typer

from capline.cli import campaign, decisions, replay, segments
from capline.cli.common import BAD_INPUT, INTERRUPTED, note
from capline.model.errors import CaplineError

__all__ = ["app", "main"]

app = typer.Typer(
    name="capline",
    help="Exact, fast, durable sliding-window limits.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(campaign.app, name="campaign")
app.add_typer(segments.app, name="segments")
decisions.register(app)
replay.register(app)


def main() -> None:
    """Run the command line; exits 0 on success, 2 on bad input with one line that says what to mend, 130 on Ctrl-C."""
    try:
        status = app(standalone_mode=False)
    except CaplineError as error:
        note.print(f"[bold red]capline:[/] {_plain(str(error))}", soft_wrap=True)
        status = BAD_INPUT
    except click.ClickException as error:
        error.show(sys.stderr)
        status = error.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        note.print("interrupted", style="yellow")
        status = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status if isinstance(status, int) else 0)


def _plain(message: str) -> str:
    """One line, with nothing in it read as markup."""
    return " ".join(message.replace("[", r"\[").split("\n"))
