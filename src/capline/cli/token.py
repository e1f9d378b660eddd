"""`capline token create | list | revoke`: who may ask the decision service, which sees a change within a second."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from capline.cli.common import JsonOption, answer_json, examples, note, out
from capline.service.access.tokens import TokenFile

__all__ = ["app"]

app = typer.Typer(help="Who may ask the decision service, and for what.", no_args_is_help=True)

DEFAULT_FILE = Path("tokens.json")
FileOption = Annotated[Path, typer.Option("--file", "-f", envvar="CAPLINE_TOKENS", help="The tokens file.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Who has it: the name is in logs and histories.")]


@app.command(
    "create",
    epilog=examples("capline token create billing --role decide", "capline token create ann --role admin --chosen"),
)
def create(
    name: NameArgument,
    role: Annotated[
        list[str] | None, typer.Option("--role", "-r", help="decide (the default), read or admin; may be repeated.")
    ] = None,
    chosen: Annotated[
        bool, typer.Option("--chosen", help="Take a secret that somebody chose, a line of standard input.")
    ] = False,
    file: FileOption = DEFAULT_FILE,
    json: JsonOption = False,
) -> None:
    """Add a token and print it, this once: the file keeps a hash. Send it as `Authorization: Bearer TOKEN`.

    A chosen secret is sent as HTTP Basic, with the name.
    """
    secret = None
    if chosen:
        note.print("the secret, a line:", style="dim") if sys.stdin.isatty() else None
        secret = sys.stdin.readline().rstrip("\n")
    shown = TokenFile(file, create=True).create(name, role or ["decide"], secret)
    if json:
        answer_json({"name": name, "roles": role or ["decide"]} | ({} if chosen else {"token": shown}))
    elif chosen:
        out.print(f"{name}: kept in {file}", markup=False)
    else:
        out.print(shown, markup=False)


@app.command("list", epilog=examples("capline token list", "capline token list --json"))
def list_(file: FileOption = DEFAULT_FILE, json: JsonOption = False) -> None:
    """Print the names, roles and when each was made; no secret is known any more."""
    tokens = TokenFile(file).tokens.values()
    if json:
        answer_json([{"name": one.name, "roles": one.roles, "created": one.created} for one in tokens])
        return
    for one in tokens:
        out.print(f"{one.name}  {','.join(one.roles)}  {one.created}", markup=False)


@app.command("revoke", epilog=examples("capline token revoke billing"))
def revoke(name: NameArgument, file: FileOption = DEFAULT_FILE) -> None:
    """Take a token away."""
    TokenFile(file).revoke(name)
    out.print(f"{name}: revoked", markup=False)
