"""`capline policies check | show`: checks policy files, and shows what they mean.

`check` is for CI: it lists the faults with file and line, and exits 2 if there is one. `show` prints a file as capline
reads it, with defaults and with each limit in its shortest form.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capline.cli.input.declare import Commands
from capline.cli.render.console import BAD_INPUT, NO_SEGMENT, Answer, counted, note, out, plain, table
from capline.config.document import every_key
from capline.limiter.policies.rules import Rules
from capline.model.errors import CaplineError, UnknownNameError
from capline.model.limit import duration_text
from capline.policy.file import PolicyFile, PolicyFileError, check_for_local, load

if TYPE_CHECKING:
    from rich.console import Console

    from capline.model.policy import Policy

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A policy file.")]
FilesArgument = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Policy files.")]
NameArgument = Annotated[str | None, typer.Argument(metavar="NAME", help="Only this policy.")]

MOST_SHOWN = 100
"""Faults of one file that are printed."""

app = Commands("policies", "Check [bold]policy files[/], and show what they say.")


@app.answers(
    "capline policies check policies.yaml",
    "capline policies check deploy/*.yaml --json",
    "capline policies check policies.yaml --store lmdb:///var/lib/capline",
)
def check(
    files: FilesArgument,
    store: Annotated[
        str | None, typer.Option("--store", "-s", help="The URL of the store that is to keep them; it is not opened.")
    ] = None,
) -> Answer:
    """Check policy files as a limiter reads them, and list their faults. Exits 2 if there is one.

    Of a file it prints the first 100; --json has all. Without --store they may wait for replicas, which stores on this
    machine have none of.
    """
    answers: list[dict[str, object]] = []
    lines: list[tuple[Console, str]] = []
    code = 0
    for path in files:
        try:
            file = _read(path, store)
        except CaplineError as error:
            code = BAD_INPUT
            faults = error.faults if isinstance(error, PolicyFileError) else ((0, str(error)),)
            listed = [{"line": line or None, "what": what} for line, what in faults]
            answers.append({"file": str(path), "ok": False, "faults": listed})
            shown = faults[:MOST_SHOWN]
            lines += [(note, f"{path}:{line}: {what}" if line else f"{path}: {what}") for line, what in shown]
            if more := len(faults) - len(shown):
                lines.append((note, f"{path}: {more:,} more"))
        else:
            answers.append({"file": str(path), "ok": True, "namespace": file.namespace, "policies": len(file.policies)})
            good = f"{path}: good, {counted(len(file.policies), 'policy', 'policies')}"
            waits = any(policy.wait_replicas for policy in file.policies)
            lines.append((out, good + "; redis stores only, for wait_replicas" * waits))
    return Answer(answers, lambda: [console.print(plain(line), soft_wrap=True) for console, line in lines], code)


@app.answers("capline policies show policies.yaml", "capline policies show policies.yaml promo --json")
def show(file: FileArgument, name: NameArgument = None) -> Answer:
    """Show a policy file with all its defaults."""
    read = _read(file)
    rules = Rules(read.policies, read.namespace)
    try:
        policies = read.policies if name is None else (rules.policy(name),)
    except UnknownNameError as error:
        raise UnknownNameError(f"{file}: {error}") from None

    def lines() -> None:
        out.print(f"namespace {read.namespace}")
        for policy in policies:
            _print(policy, rules)

    return Answer({"namespace": read.namespace, "policies": [_facts(policy, rules) for policy in policies]}, lines)


def _read(path: Path, store: str | None = None) -> PolicyFile:
    """The file, checked as a limiter does: also for faults between its policies, and for its kind of store."""
    read = load(path)
    Rules(read.policies, read.namespace)
    if store is not None and store.lower().startswith(("memory:", "lmdb:")):
        check_for_local(read)
    return read


def _facts(policy: Policy, rules: Rules) -> dict[str, object]:
    """The policy with its defaults; durations are in microseconds."""
    log, every = f"{rules.namespace}:{policy.log}", every_key(policy)
    return {
        "name": policy.name,
        **{key: every[key] for key in ("limits", "by_segment", "channels", "algorithm")},
        "granularity_us": policy.grain_us or None,
        **{key: every[key] for key in ("count_denied", "reservations", "shadow")},
        "log": log,
        "kept_us": rules.retention_us(log),
        "layout": policy.layout,
        "population": policy.population if policy.layout == "bucket" else None,
        "wait_replicas": policy.wait_replicas,
        "zone": policy.zone if policy.needs_zone else None,
    }


def _print(policy: Policy, rules: Rules) -> None:
    facts = _facts(policy, rules)
    named = [
        f"log {facts['log']}",
        policy.algorithm,
        f"hits kept {duration_text(rules.retention_us(str(facts['log'])))}",
    ]
    named += [f"buckets of {duration_text(policy.grain_us)}"] if policy.grain_us else []
    named += ["refusals count"] if policy.count_denied else []
    named += ["reservations"] if policy.reservations else []
    named += ["in shadow, refuses nobody"] if policy.shadow else []
    named += [f"layout bucket for {policy.population:,} text subjects"] if policy.layout == "bucket" else []
    named += [f"waits for {policy.wait_replicas} replica(s)"] if policy.wait_replicas else []
    named += [f"zone {policy.zone}"] if policy.needs_zone else []
    out.print(f"\n[bold]{policy.name}[/]: {plain(', '.join(named))}", soft_wrap=True)
    shown = table("segment", "channel", "limits")
    rows = [(NO_SEGMENT, "", policy.limits)] if policy.limits else []
    rows += [(segment, "", limits) for segment, limits in policy.by_segment.items()]
    rows += [("any", channel, limits) for channel, limits in policy.channels.items()]
    for segment, channel, limits in rows:
        shown.add_row(segment, channel, ", ".join(str(limit) for limit in limits))
    out.print(shown)
