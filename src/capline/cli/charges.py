"""`capline charge | settle | usage`: costs that are known only afterwards, and current usage, of one subject."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from capline.cli.common import JsonOption, answer_json, examples, out
from capline.cli.decisions import (
    DEFAULT_POLICIES,
    CampaignOption,
    ChannelOption,
    ConfigOption,
    IdOption,
    PoliciesOption,
    PolicyArgument,
    SegmentOption,
    SegmentsOption,
    StoreOption,
    SubjectArgument,
    TextOption,
    ZoneOption,
)
from capline.cli.target import Words, open_limiter, refuse_beside_campaign, target
from capline.limiter.limiter import DEFAULT_URL
from capline.model.limit import QuietHours, duration_text
from capline.model.subject import parse_subject

__all__ = ["app"]

app = typer.Typer()

HitArgument = Annotated[int, typer.Argument(help="The hit, as the decision showed it.", show_default=False)]


@app.command(epilog=examples("capline charge tokens key:7 1830 --id call-1"))
def charge(
    policy: PolicyArgument,
    subject: SubjectArgument,
    cost: Annotated[int, typer.Argument(help="Units that were used.", show_default=False)],
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    config: ConfigOption = None,
    id: IdOption = None,
    segment: SegmentOption = None,
    channel: ChannelOption = None,
    zone: ZoneOption = None,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Record units that were used, whatever the limits say. Above a quota, later attempts wait longer."""
    words = Words(
        policy, subject, policies, store, cost, id, segment, None, None, channel, zone, text, create=True, config=config
    )
    with target(words) as found:
        one = found.attempt
        decision = found.limiter.charge(
            one.policy, one.subject, one.cost, one.id, segment=segment, channel=channel, zone=zone
        )
        found.print_remarks()
    if json:
        answer_json(decision.as_dict())
    else:
        out.print(f"charged: {decision.remaining} left under {decision.limit}, hit {decision.hit}")


@app.command(epilog=examples("capline settle tokens key:7 1767225600000000 1211"))
def settle(
    policy: PolicyArgument,
    subject: SubjectArgument,
    hit: HitArgument,
    cost: Annotated[int, typer.Argument(help="Units that it really cost; 0 refunds it.", show_default=False)],
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    config: ConfigOption = None,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Replace the estimated cost of a hit by its real cost.

    Unused units are refunded at once, further ones are recorded even above the quota. May be repeated.
    """
    named = parse_subject(subject, as_text=text)
    with open_limiter(policies, store, config) as limiter:
        done = limiter.settle(policy, named, hit, cost)
    if json:
        answer_json({"settled": done})
    else:
        out.print("settled" if done else "nothing to settle: no such hit, given back, or out of every window")


@app.command(epilog=examples("capline usage tokens key:7", "capline usage promo 42 --campaign spring.yaml"))
def usage(
    context: typer.Context,
    policy: PolicyArgument,
    subject: SubjectArgument,
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    config: ConfigOption = None,
    segment: SegmentOption = None,
    segments: SegmentsOption = None,
    campaign: CampaignOption = None,
    channel: ChannelOption = None,
    zone: ZoneOption = None,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Show what is used and left of each limit now. Consumes nothing."""
    refuse_beside_campaign(context)
    words = Words(
        policy, subject, policies, store, None, None, segment, segments, campaign, channel, zone, text, config=config
    )
    with target(words) as found:
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
