"""`capline token create | list | revoke`: access to the decision service, which sees a change within a second."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from capline.cli.input.declare import Commands
from capline.cli.render.console import Answer, note, out
from capline.service.access.tokens import LONGEST_CHOSEN, ROLES, TokenFile

app = Commands("token", "Manage [bold]tokens[/]: who may call the decision service, and for what.")

DEFAULT_FILE = Path("tokens.json")
FileOption = Annotated[Path, typer.Option("--file", "-f", envvar="CAPLINE_TOKENS", help="The tokens file.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Its owner, as logs and histories show it.")]


@app.answers("capline token create billing --role decide", "capline token create ann --role read --policy 'push-*'")
def create(
    name: NameArgument,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", "-r", help=f"One of {', '.join(ROLES)}; decide, if left out; may be repeated."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="For this policy alone, or those that begin so: push-*; may be repeated."),
    ] = None,
    chosen: Annotated[bool, typer.Option("--chosen", help="Read a secret of your own from standard input.")] = False,
    file: FileOption = DEFAULT_FILE,
) -> Answer:
    """Add a token and print it once: the file keeps only a hash. Send it as `Authorization: Bearer TOKEN`.

    Send a chosen secret as HTTP Basic, with the name as user.
    """
    secret = None
    if chosen:
        note.print("the secret, a line:", style="dim") if sys.stdin.isatty() else None
        secret = sys.stdin.readline(LONGEST_CHOSEN + 2).rstrip("\n")
    shown = TokenFile(file, create=True).create(name, role or ["decide"], secret, policy)
    token = {} if chosen else {"token": shown}
    text = f"{name}: kept in {file}" if chosen else shown
    return Answer({"name": name, "roles": role or ["decide"], "policies": policy, **token}, text)


@app.answers("capline token list", "capline token list --json")
def list_(file: FileOption = DEFAULT_FILE) -> Answer:
    """Print the name, roles, policies and creation time of each token. Secrets are not kept."""
    facts = [msgspec.structs.asdict(token) for token in TokenFile(file).tokens.values()]
    for token in facts:
        del token["hash"]
    lines = [
        f"{token['name']}  {','.join(token['roles'])}  {token['created']}  {','.join(token['policies'] or ())}".rstrip()
        for token in facts
    ]
    return Answer(facts, lambda: [out.print(line, markup=False) for line in lines])


@app.answers("capline token revoke billing", "capline token revoke billing --json")
def revoke(name: NameArgument, file: FileOption = DEFAULT_FILE) -> Answer:
    """Take a token away."""
    TokenFile(file).revoke(name)
    return Answer({"name": name, "revoked": True}, f"{name}: revoked")
