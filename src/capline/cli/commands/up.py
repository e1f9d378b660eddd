"""`capline up`: starts the whole system on this machine, and removes it again at Ctrl-C."""

# ruff: noqa: PLC0415 - imports inside functions: `--help` stays instant

from __future__ import annotations

import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from capline.cli.input.declare import Commands
from capline.cli.render.console import note, out, plain, warn
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


@app.verb("capline up", "capline up --dir /tmp/capline --keep")
def up(
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="For logs, stores and settings.")] = Path(
        ".capline/up"
    ),
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the directory at the end; the next run empties it.")
    ] = False,
) -> None:
    """Start a Redis Cluster, two services behind nginx, segments, a campaign and Prometheus on this machine.

    For trying it out, on loopback and free ports, with some load. Programs that are not installed are listed and left
    out. Ctrl-C ends everything and removes the directory.
    """
    if sys.platform == "win32":
        raise CaplineError(f"capline up {ELSEWHERE}")
    absent = [name for name in _PACKAGES if find_spec(name) is None]
    if absent:
        raise CaplineError(f'capline up needs {", ".join(absent)}: pip install "capline[all]"')
    from capline.up.folder import run_folder
    from capline.up.plan import PORTS, find_programs, plan
    from capline.up.ports import free_ports

    with run_folder(folder, keep=keep) as inside:
        whole = plan(find_programs(Path.cwd()), inside, free_ports(PORTS))
        for name, text in whole.files.items():
            path = inside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        _run(whole, inside)
    note.print(f"ended; {folder} is {'kept' if keep else 'removed'}", markup=False)


def _run(whole: Plan, inside: Path) -> None:
    from capline.up.processes import Processes

    told: list[int] = []

    def tell(signum: int, _frame: FrameType | None) -> None:
        told.append(signum)

    before = {name: signal.signal(signal.Signals[name], tell) for name in ("SIGINT", "SIGTERM", "SIGHUP")}
    parts = Processes(inside, warn, lambda: bool(told))
    try:
        for part in whole.missing:
            note.print(f"{part.program} is missing: {part.install}; without it: {part.instead}", markup=False)
        for part in whole.parts:
            if told:
                return
            if parts.start(part) and part.where:
                note.print(f"[bold]{part.name:<12}[/] {plain(part.where)} [dim](pid {parts.pids()[part.name]})[/]")
        if told:
            return
        _say_tries(whole, inside)
        while not told:
            parts.look()
            time.sleep(LOOK_EVERY_S)
    finally:
        if told:
            note.print("ending everything", markup=False)
        parts.stop()
        for name, handler in before.items():
            signal.signal(signal.Signals[name], handler)


def _say_tries(whole: Plan, inside: Path) -> None:
    from capline.up.plan import RATE

    out.print(f"\nready; {RATE} requests a second are being sent, logs are in {plain(inside)}. Try:")
    for why, command in whole.tries:
        out.print(f"  [dim]# {plain(why)}[/]")
        out.print(f"  {plain(command)}", soft_wrap=True)
    out.print("Ctrl-C ends it.")
