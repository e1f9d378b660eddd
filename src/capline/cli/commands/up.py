"""`capline up`: starts the whole system on this machine, and removes it again at Ctrl-C."""

# ruff: noqa: PLC0415 - imports inside functions: `--help` stays instant

from __future__ import annotations

import signal
import sys
import time
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from capline.cli.input.declare import Commands
from capline.cli.render.console import Answer, note, out, plain, warn
from capline.model.errors import CaplineError
from capline.support.system import ELSEWHERE

if TYPE_CHECKING:
    from capline.up.plan import Plan

app = Commands()

LOOK_EVERY_S = 0.2
_PACKAGES = (
    *("uvicorn", "httptools", "uvloop", "prometheus_client", "pyroaring", "pyarrow", "obstore", "httpx", "redis"),
    *("grpc", "grpc_health", "grpc_reflection", "envoy"),
)


@app.answers("capline up", "capline up --dir /tmp/capline --keep", "capline up --status")
def up(
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="For logs, stores and settings.")] = Path(
        ".capline/up"
    ),
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the directory at the end; the next run empties it.")
    ] = False,
    scale: Annotated[
        Literal["small", "big"], typer.Option(help="big: 20 million users, and a campaign to 10 million of them.")
    ] = "small",
    status: Annotated[
        bool, typer.Option("--status", help="Say what of the run in DIR runs now, with its memory, and end.")
    ] = False,
    *,
    json: bool,
) -> Answer | None:
    """Start the whole system on this machine, and print a link to its console.

    A Redis Cluster, a campaign store, an S3 server, nginx before two services, two campaign workers and a receiver, two
    payment consumers and two providers, an API behind the middleware, Prometheus with its alerts.

    For trying it out, on loopback and free ports, with some load. Programs that are not installed are listed and left
    out. Ctrl-C ends everything and removes the directory.
    """
    if sys.platform == "win32":
        raise CaplineError(f"capline up {ELSEWHERE}")
    if status:
        return _status(folder)
    absent = [name for name in _PACKAGES if find_spec(name) is None]
    if absent:
        raise CaplineError(f'capline up needs {", ".join(absent)}: pip install "capline[all]"')
    from capline.service.access.tokens import TokenFile
    from capline.support.private import private_opener
    from capline.up.files import SCALES, TOKENS
    from capline.up.folder import run_folder
    from capline.up.plan import PORTS, find_programs, plan
    from capline.up.ports import free_ports

    with run_folder(folder, keep=keep) as inside:
        whole = plan(find_programs(Path.cwd()), inside, free_ports(PORTS), SCALES[scale])
        for name, text in whole.files.items():
            path = inside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        tokens = TokenFile(inside / "tokens.json", create=True)
        secrets = {name: tokens.create(name, roles) for name, roles in TOKENS.items()}
        told = {f"{name}.token": secret for name, secret in secrets.items()}
        for name, text in (told | {"you.header": f"Authorization: Bearer {secrets['you']}\n"}).items():
            with open(inside / name, "w", encoding="ascii", opener=private_opener) as file:
                file.write(text)
        _run(whole, inside, json=json)
    note.print(f"ended; {folder} is {'kept' if keep else 'removed'}", markup=False)
    return None


def _run(whole: Plan, inside: Path, *, json: bool) -> None:
    from capline.up.processes import Processes

    told: list[int] = []

    def tell(signum: int, _frame: FrameType | None) -> None:
        told.append(signum)

    before = {name: signal.signal(signal.Signals[name], tell) for name in ("SIGINT", "SIGTERM", "SIGHUP")}
    parts = Processes(inside, warn, lambda: bool(told))
    began = time.monotonic()
    try:
        for part in whole.missing:
            note.print(f"{part.program} is missing: {part.install}; without it: {part.instead}", markup=False)
        for _, stage in groupby(whole.parts, lambda part: part.stage):
            for part in () if told else parts.start(*stage):
                if part.where:
                    pid = parts.pids()[part.name]
                    note.print(f"[bold]{part.name:<12}[/] {plain(part.where)} [dim](pid {pid})[/]")
        if not told:
            _status(inside).show(json=True) if json else _say_tries(whole, inside, time.monotonic() - began)
        while not told:
            parts.look()
            time.sleep(LOOK_EVERY_S)
    finally:
        if told:
            note.print("ending everything", markup=False)
        parts.stop()
        for name, handler in before.items():
            signal.signal(signal.Signals[name], handler)


def _say_tries(whole: Plan, inside: Path, ready_s: float) -> None:
    from capline.up.plan import RATE
    from capline.up.status import console_link

    out.print(f"\nready in {ready_s:.0f} s; {RATE} requests a second are being sent, logs are in {plain(inside)}.")
    if link := console_link(inside):
        out.print(
            "[bold]The console[/] (this link signs in once, within 15 minutes; `capline up --status` makes another):"
        )
        out.print(f"  {plain(link)}", soft_wrap=True)
    out.print("Try:")
    for why, command in whole.tries:
        out.print(f"  [dim]# {plain(why)}[/]")
        out.print(f"  {plain(command)}", soft_wrap=True)
    out.print("Ctrl-C ends it.")


def _status(folder: Path) -> Answer:
    from capline.up.status import console_link, running

    parts, link = running(folder), console_link(folder)

    def show() -> None:
        table = Table("part", "pid", "starts", "MB", "where", box=None)
        for part in parts:
            memory = "" if part.memory_bytes is None else f"{part.memory_bytes / 1e6:,.0f}"
            table.add_row(
                part.name, "away" if part.pid is None else str(part.pid), str(part.starts), memory, plain(part.where)
            )
        out.print(table)
        out.print(f"console: {plain(link or 'service-1 does not answer')}", soft_wrap=True)

    return Answer({"parts": parts, "console": link}, show)
