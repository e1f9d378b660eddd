"""`capline decide | peek | refund | explain | erase | sweep`: one subject at a time, on the store of everyone else.

A subject of digits alone is an integer, as campaigns have them; `--text` makes it text. A refusal is an answer, so exit
0; with `--exit-code` a refused `decide` or `peek` exits 1, for shell scripts.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from capline.cli.common import JsonOption, answer_json, note, out
from capline.limiter.limiter import DEFAULT_URL, Limiter
from capline.model.errors import InvalidValueError
from capline.model.limit import duration_text
from capline.model.subject import LARGEST_ID, Subject

if TYPE_CHECKING:
    from collections.abc import Generator

    from capline.limiter.explain import Explanation
    from capline.model.decision import Decision

__all__ = ["register"]

PoliciesOption = Annotated[
    Path,
    typer.Option("--policies", "-p", envvar="CAPLINE_POLICIES", help="The policy file.", show_default=True),
]
StoreOption = Annotated[str, typer.Option("--store", "-s", envvar="CAPLINE_STORE", help="The store's URL.")]
PolicyArgument = Annotated[str, typer.Argument(help="The policy's name.", show_default=False)]
SubjectArgument = Annotated[
    str, typer.Argument(help="Who is limited: text, or digits for an integer.", show_default=False)
]
TextOption = Annotated[bool, typer.Option("--text", help="Take a subject of digits as text.")]
SegmentOption = Annotated[str | None, typer.Option("--segment", help="The subject's segment.")]
ChannelOption = Annotated[str | None, typer.Option("--channel", help="The channel of the attempt.")]
CostOption = Annotated[int, typer.Option("--cost", help="Units asked for.")]
IdOption = Annotated[str | None, typer.Option("--id", help="The attempt's id: a retry with it consumes nothing more.")]
IdsOption = Annotated[
    list[str] | None, typer.Option("--id", help="Mark the hits recorded under this id; may be given again.")
]
ExitOption = Annotated[bool, typer.Option("--exit-code", help="Exit 1 when refused.")]

DEFAULT_POLICIES = Path("policies.yaml")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("decide")(decide)
    app.command("peek")(peek)
    app.command("refund")(refund)
    app.command("explain")(explain)
    app.command("erase")(erase)
    app.command("sweep")(sweep)


def decide(
    policy: PolicyArgument,
    subject: SubjectArgument,
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    cost: CostOption = 1,
    id: IdOption = None,
    segment: SegmentOption = None,
    channel: ChannelOption = None,
    text: TextOption = False,
    exit_code: ExitOption = False,
    json: JsonOption = False,
) -> None:
    """May the subject have one more? Consumes when allowed.

    [bold]Examples[/]

      capline decide promo user:42
      capline decide promo 42 --segment active --channel push --json
    """
    with _limiter(policies, store) as limiter:
        decision = limiter.decide(policy, _subject(subject, text=text), cost, id, segment=segment, channel=channel)
        _show(decision, limiter.now_us(), json=json, exit_code=exit_code)


def peek(
    policy: PolicyArgument,
    subject: SubjectArgument,
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    cost: CostOption = 1,
    id: IdOption = None,
    segment: SegmentOption = None,
    channel: ChannelOption = None,
    text: TextOption = False,
    exit_code: ExitOption = False,
    json: JsonOption = False,
) -> None:
    """The answer that [bold]decide[/] would give; consumes nothing.

    [bold]Example[/]

      capline peek promo 42 --segment active
    """
    with _limiter(policies, store) as limiter:
        decision = limiter.peek(policy, _subject(subject, text=text), cost, id, segment=segment, channel=channel)
        _show(decision, limiter.now_us(), json=json, exit_code=exit_code)


def refund(
    policy: PolicyArgument,
    subject: SubjectArgument,
    hit: Annotated[int, typer.Argument(help="The stamp that the decision named.", show_default=False)],
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Give one hit back, once.

    [bold]Example[/]

      capline refund promo 42 1767225600000000
    """
    with _limiter(policies, store) as limiter:
        done = limiter.refund(policy, _subject(subject, text=text), hit)
    if json:
        answer_json({"refunded": done})
    else:
        out.print("refunded" if done else "nothing to refund: no such hit, given back before, or out of every window")


def explain(
    policy: PolicyArgument,
    subject: SubjectArgument,
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    segment: SegmentOption = None,
    channel: ChannelOption = None,
    ids: IdsOption = None,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Why: the limits in force, which of them binds, the hits that count, and when each unit frees.

    A log keeps a hash of a hit's id: with [bold]--id[/] the hits that were recorded under it are marked.

    [bold]Examples[/]

      capline explain promo 42 --segment active
      capline explain promo 42 --id message-1 --id message-2
    """
    with _limiter(policies, store) as limiter:
        named = _subject(subject, text=text)
        why = limiter.explain(policy, named, segment=segment, channel=channel, ids=ids or ())
    if json:
        answer_json(_explained(why))
        return
    _show(why.decision, why.now_us, json=False, exit_code=False)
    table = Table(title=f"policy {why.policy}, subject {why.subject}", title_justify="left")
    for heading in ("limit", "counted in", "used", "remaining", "next unit frees"):
        table.add_column(heading, justify="right" if heading in ("used", "remaining") else "left")
    for state in why.limits:
        frees = _when(state.frees[0][0]) if state.frees else "-"
        binds = " (binds)" if state.binds else ""
        table.add_row(f"{state.limit}{binds}", state.log, str(state.used), str(state.remaining), frees)
    out.print(table)
    for hit in why.hits:
        told = f"{hit.units} unit(s){'' if hit.units else ', refunded'}{'' if hit.id is None else f', id {hit.id}'}"
        out.print(f"  hit {hit.stamp_us}  {_when(hit.stamp_us)}  {told}", markup=False)


def erase(
    subject: SubjectArgument,
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Forget a subject in every policy of the file.

    [bold]Example[/]

      capline erase user:42
    """
    with _limiter(policies, store) as limiter:
        held = limiter.erase(_subject(subject, text=text))
    if json:
        answer_json({"erased_logs": held})
    else:
        out.print(f"erased from {held} log(s)" if held else "nothing was held")


def sweep(
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """Remove the logs of subjects whose every hit is out of every window; decisions go on meanwhile.

    [bold]Example[/]

      capline sweep --store lmdb:///var/lib/capline
    """
    with _limiter(policies, store) as limiter:
        removed = limiter.sweep()
    if json:
        answer_json({"removed_logs": removed})
    else:
        out.print(f"removed {removed} stale log(s)")


@contextmanager
def _limiter(policies: Path, store: str) -> Generator[Limiter]:
    with Limiter.from_file(policies, store) as limiter:
        yield limiter


def _subject(given: str, *, text: bool) -> Subject:
    if text or not given.isascii() or not given.isdecimal():
        return given
    if int(given) > LARGEST_ID:
        raise InvalidValueError(f"subject {given} is above 2^64-1; give --text to take it as text")
    return int(given)


def _show(decision: Decision, now_us: int, *, json: bool, exit_code: bool) -> None:
    if json:
        answer_json(_decided(decision))
    elif decision.allowed:
        hit = "" if decision.hit is None else f", hit {decision.hit}"
        out.print(f"[green]allowed[/]: {decision.remaining} left under {decision.limit}{hit}")
    elif decision.retry_after_us is None:
        out.print(f"[red]refused[/] by {decision.limit}: this cost never fits")
    else:
        out.print(
            f"[red]refused[/] by {decision.limit}: fits in {duration_text(decision.retry_after_us)}, "
            f"at {_when(now_us + decision.retry_after_us)}",
        )
    if decision.origin != "store":
        note.print(f"the store could not answer; this is the choice for an outage ({decision.origin})", style="yellow")
    if exit_code and not decision.allowed:
        raise typer.Exit(1)


def _decided(decision: Decision) -> dict[str, object]:
    return {
        "allowed": decision.allowed,
        "limit": None if decision.limit is None else str(decision.limit),
        "remaining": decision.remaining,
        "retry_after_us": decision.retry_after_us,
        "reset_after_us": decision.reset_after_us,
        "hit": decision.hit,
        "origin": decision.origin,
    }


def _explained(why: Explanation) -> dict[str, object]:
    return {
        "policy": why.policy,
        "subject": why.subject,
        "now_us": why.now_us,
        "decision": _decided(why.decision),
        "limits": [
            {
                "limit": str(state.limit),
                "log": state.log,
                "used": state.used,
                "remaining": state.remaining,
                "binds": state.binds,
                "frees": [{"at_us": at_us, "units": units} for at_us, units in state.frees],
            }
            for state in why.limits
        ],
        "hits": [
            {"stamp_us": hit.stamp_us, "units": hit.units} | ({} if hit.id is None else {"id": hit.id})
            for hit in why.hits
        ],
    }


def _when(instant_us: int) -> str:
    return datetime.fromtimestamp(instant_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
