"""`capline decide | peek | charge | settle | refund | usage …`: single subjects, on the application's store.

A subject of digits is an integer, as in campaigns; `s:42` or `--text` makes it text. A refusal exits 0, or 1 with
`--exit-code`. `--and` adds subjects to the attempt. Only `decide` and `charge` create a missing store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from capline.cli.answers import show, show_explanation, show_joint
from capline.cli.common import Commands, answer, answer_json, out
from capline.cli.options import (
    ChannelOption,
    HitArgument,
    IdOption,
    JsonOption,
    Place,
    PolicyArgument,
    SegmentOption,
    Source,
    SubjectArgument,
    TextOption,
    ZoneOption,
)
from capline.cli.subjects import read_also
from capline.cli.target import target
from capline.cli.twin import is_empty, warn_of_twin
from capline.model.limit import QuietHours, duration_text
from capline.model.subject import parse_subject

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["app"]

app = Commands()


def _asks(*, consume: bool) -> Callable[..., None]:
    """The command `decide`, or with `consume` off `peek`, which takes the same options."""

    def ask(
        context: typer.Context,
        policy: PolicyArgument,
        subject: SubjectArgument,
        source: Source,
        cost: Annotated[int | None, typer.Option(help="Units asked for; 1 or the campaign's, if left out.")] = None,
        id: IdOption = None,
        *,
        place: Place,
        also: Annotated[
            list[str] | None,
            typer.Option(
                "--and",
                metavar="POLICY[:COST]=SUBJECT",
                help="Add this subject to the attempt, all or nothing; repeat for up to 16 subjects.",
            ),
        ] = None,
        text: TextOption = False,
        exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 when refused.")] = False,
        json: JsonOption = False,
    ) -> None:
        with target(context, policy, subject, source, place, cost, id, as_text=text, create=consume) as found:
            limiter, first = found.limiter, found.attempt
            if also:
                parts = [first, *map(found.with_segment, read_also(also, first.id, as_text=text))]
                joint = limiter.decide_all(parts) if consume else limiter.peek_all(parts)
                found.print_remarks()
                show_joint(joint, parts, limiter.now_us(), found.zone, json=json, exit_code=exit_code)
                return
            decision = (limiter.decide if consume else limiter.peek)(
                first.policy,
                first.subject,
                first.cost,
                first.id,
                segment=first.segment,
                channel=first.channel,
                zone=first.zone,
            )
            found.print_remarks()
            show(decision, limiter.now_us(), found.zone, json=json, exit_code=exit_code)

    return ask


app.verb(
    "capline decide promo user:42",
    "capline decide promo 42 --segment active --channel push --json",
    "capline decide promo 42 --zone Asia/Singapore",
    "capline decide promo 42 --and campaign=spring --and tenant:2=acme:eu",
    name="decide",
    help="May the subject have one more? Consumes when allowed.\n\n"
    "With --and, all are allowed or none: `--and campaign=spring --and tenant:2=acme` also asks for a unit of the "
    "campaign and 2 of the tenant. Segment, channel, zone and cost are those of the first; the id is for each.",
)(_asks(consume=True))

app.verb(
    "capline peek promo 42 --segment active",
    "capline peek promo 42 --segments segments/today",
    "capline peek promo 42 --campaign spring.yaml",
    name="peek",
    help="Show the answer that [bold]decide[/] would give. Consumes nothing.",
)(_asks(consume=False))


@app.verb("capline refund promo 42 1767225600000000")
def refund(
    policy: PolicyArgument,
    subject: SubjectArgument,
    hit: HitArgument,
    source: Source,
    cost: Annotated[int, typer.Option(help="Its cost, for algorithms that keep no single hits.")] = 1,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Give one hit back, once.

    If the policy's algorithm keeps no single hits, a hit without an id is refunded by its cost, each time you ask.
    """
    named = parse_subject(subject, as_text=text)
    with source.limiter() as limiter:
        done = limiter.refund(policy, named, hit, cost)
        if not done:
            warn_of_twin(limiter, named, policy)
    nothing = "nothing to refund: no such hit, given back before, or out of every window"
    answer({"refunded": done}, "refunded" if done else nothing, json=json)


@app.verb(
    "capline explain promo 42 --segment active",
    "capline explain promo 42 --campaign spring.yaml --id spring/3f9a01c2/42",
    "capline explain promo s:42 --id message-1 --id message-2",
)
def explain(
    context: typer.Context,
    policy: PolicyArgument,
    subject: SubjectArgument,
    source: Source,
    place: Place,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="Mark the hits of this id, or with --campaign of this message key; may be repeated."),
    ] = None,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Show why: the limits in force, which one binds, the hits that count, and when units become free.

    A log keeps only a hash of each id; --id marks the hits that were recorded with it.
    """
    with target(context, policy, subject, source, place, as_text=text) as found:
        why = found.explain(ids or ())
        found.print_remarks()
        other = warn_of_twin(found.limiter, why.subject, policy) if is_empty(why) else None
        show_explanation(why, found.attempt.segment, json=json)
        if other is not None and not json:
            show_explanation(found.explain(ids or (), other), found.attempt.segment, json=False)


@app.verb("capline erase user:42")
def erase(subject: SubjectArgument, source: Source, text: TextOption = False, json: JsonOption = False) -> None:
    """Forget a subject in every policy of the file."""
    named = parse_subject(subject, as_text=text)
    with source.limiter() as limiter:
        held = limiter.erase(named)
        if not held:
            warn_of_twin(limiter, named)
    answer({"erased_logs": held}, f"erased from {held} log(s)" if held else "nothing was held", json=json)


@app.verb("capline sweep --store lmdb:///var/lib/capline")
def sweep(source: Source, json: JsonOption = False) -> None:
    """Remove logs whose hits are all out of every window. Decisions go on meanwhile."""
    with source.limiter() as limiter:
        removed = limiter.sweep()
    answer({"removed_logs": removed}, f"removed {removed} stale log(s)", json=json)


@app.verb("capline charge tokens key:7 1830 --id call-1")
def charge(
    context: typer.Context,
    policy: PolicyArgument,
    subject: SubjectArgument,
    cost: Annotated[int, typer.Argument(help="Units that were used.")],
    source: Source,
    id: IdOption = None,
    segment: SegmentOption = None,
    channel: ChannelOption = None,
    zone: ZoneOption = None,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Record units that were used, whatever the limits say. Above a quota, later attempts wait longer."""
    place = Place(segment, channel=channel, zone=zone)
    with target(context, policy, subject, source, place, cost, id, as_text=text, create=True) as found:
        who = found.attempt.subject
        decision = found.limiter.charge(policy, who, cost, id, segment=segment, channel=channel, zone=zone)
        found.print_remarks()
    left = f"charged: {decision.remaining} left under {decision.limit}, hit {decision.hit}"
    answer(decision.as_dict(), left, json=json)


@app.verb("capline settle tokens key:7 1767225600000000 1211")
def settle(
    policy: PolicyArgument,
    subject: SubjectArgument,
    hit: HitArgument,
    cost: Annotated[int, typer.Argument(help="Units that it really cost; 0 refunds it.")],
    source: Source,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Replace the estimated cost of a hit by its real cost.

    Unused units are refunded at once, further ones are recorded even above the quota. May be repeated.
    """
    named = parse_subject(subject, as_text=text)
    with source.limiter() as limiter:
        done = limiter.settle(policy, named, hit, cost)
    nothing = "nothing to settle: no such hit, given back, or out of every window"
    answer({"settled": done}, "settled" if done else nothing, json=json)


@app.verb("capline usage tokens key:7", "capline usage promo 42 --campaign spring.yaml")
def usage(
    context: typer.Context,
    policy: PolicyArgument,
    subject: SubjectArgument,
    source: Source,
    place: Place,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Show what is used and left of each limit now. Consumes nothing."""
    with target(context, policy, subject, source, place, as_text=text) as found:
        one = found.attempt
        states = found.limiter.usage(one.policy, one.subject, segment=one.segment, channel=one.channel, zone=one.zone)
        found.print_remarks()
    if json:
        parts = ("name", "used", "remaining", "past", "frees_in_us", "whole_in_us")
        answer_json([{"limit": str(one.limit), **{part: getattr(one, part) for part in parts}} for one in states])
        return
    table = Table()
    for heading in ("limit", "used", "left", "more in", "all in"):
        table.add_column(heading, justify="left" if heading == "limit" else "right")
    for state in states:
        quiet = isinstance(state.limit, QuietHours)
        numbers = ("-", "-") if quiet else (str(state.used), str(state.remaining))
        more = "never" if state.frees_in_us is None else duration_text(state.frees_in_us)
        table.add_row(str(state.limit), *numbers, more, duration_text(state.whole_in_us))
    out.print(table)
