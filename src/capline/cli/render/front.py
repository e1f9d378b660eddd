"""What `capline` alone shows: six commands in the order of need, the others by what they are about."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.table import Table
from typer.core import TyperGroup

from capline.cli.render.console import out
from capline.support.override import override

if TYPE_CHECKING:
    from typer._click import Context

FIRST = ("init", "replay", "decide", "explain", "campaign", "serve")
OTHERS = {
    "one subject": ("peek", "usage", "charge", "settle", "refund", "erase"),
    "limits": ("suggest", "policies", "config"),
    "campaigns": ("segments", "worker", "response"),
    "the store": ("store", "sweep", "export", "import"),
    "the service": ("token", "top", "up"),
    "on data of ours": ("demo",),
    "help": ("docs", "doctor"),
}


class FrontPage(TyperGroup):
    """All commands; its help fits a screen."""

    @override
    def format_help(self, ctx: Context, formatter: object) -> None:
        rows = Table.grid(padding=(0, 2))
        rows.add_row("[bold]Begin with[/]")
        for name in FIRST:
            summary = (self.commands[name].help or "").partition("\n\n")[0].replace("\n", " ")
            rows.add_row(f"  [cyan]{name}[/]", f"{re.split('[.;] ', summary)[0].rstrip('.')}.")
        rows.add_row()
        rows.add_row("[bold]And[/]")
        for about, names in OTHERS.items():
            rows.add_row(f"  {about}", ", ".join(f"[cyan]{name}[/]" for name in names))
        out.print(f"[bold]capline COMMAND[/]: {self.help}\n")
        out.print(rows)
        out.print(
            "\n[bold]capline COMMAND --help[/] has its options and examples. --version shows the version;\n"
            "--install-completion lets the shell complete names. capline docs opens the documentation."
        )
