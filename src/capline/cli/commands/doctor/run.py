"""The command: options in, one line for each finding out."""

# ruff: noqa: PLC0415 - imports inside functions: no other command waits for them

import logging
from pathlib import Path
from typing import Annotated

import typer

from capline.cli.input.declare import Commands
from capline.cli.input.options import DEFAULT_POLICIES, ConfigOption, PoliciesOption, StoreOption
from capline.cli.render.console import FAILED, Answer, out, plain
from capline.cli.render.site import linked
from capline.policy.form import DEFAULT_NAMESPACE
from capline.store.open import DEFAULT_URL

app = Commands()


@app.answers("capline doctor", "capline doctor --store redis://localhost --time", "capline doctor --json")
def doctor(
    store: StoreOption = DEFAULT_URL,
    policies: PoliciesOption = DEFAULT_POLICIES,
    config: ConfigOption = None,
    segments: Annotated[str | None, typer.Option(metavar="DIR|URL", help="A snapshot or a publication.")] = None,
    tokens: Annotated[Path | None, typer.Option(help="A tokens file.")] = None,
    time: Annotated[bool, typer.Option("--time", help="Measure the store too: some seconds, some writes.")] = False,
) -> Answer:
    """Look at this installation, the store and the files; say what is wrong, and what to do.

    Begin an issue report with it. Exits 1 if something is wrong. Writes nothing, but for --time, which decides in a
    namespace of its own and erases it.
    """
    from capline.cli.commands.doctor.here import files, installation, lacking
    from capline.cli.commands.doctor.stores import configuration
    from capline.cli.commands.doctor.stores import store as examined
    from capline.cli.commands.doctor.times import times

    logging.getLogger("capline").addFilter(_says_nothing)  # of what is about to be found
    try:
        found, file, names = files(policies, segments, tokens)
        named = list(file.policies if file else ())
        if config is not None:
            told, held = configuration(config, file.namespace if file else DEFAULT_NAMESPACE)
            found += told
            named += held
        found += () if names is None else lacking(named, names)
        found = [*installation(), *found, *examined(store, named)]
        if time and all(finding.ok for finding in found if finding.about == "store"):
            found += times(store)
    finally:
        logging.getLogger("capline").removeFilter(_says_nothing)
    good = all(finding.ok for finding in found)

    def lines() -> None:
        width = max(len(finding.about) for finding in found)
        for finding in found:
            mark = "[green]ok   [/]" if finding.ok else "[bold red]wrong[/]"
            page = f" ({linked(finding.page)})" if finding.page else ""
            out.print(f"{mark}  {plain(finding.about):<{width}}  {plain(finding.said + page)}", soft_wrap=True)

    return Answer({"ok": good, "findings": found}, lines, 0 if good else FAILED)


def _says_nothing(_: logging.LogRecord) -> bool:
    return False
