"""`capline decide | peek | refund | explain | erase | sweep`: single subjects, on the application's store.

A subject of digits is an integer, as in campaigns; `s:42` or `--text` makes it text. A refusal exits 0, or 1 with
`--exit-code`. `--and` adds subjects to the attempt. Only `decide` creates a missing store.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capline.cli.answers import show, show_explanation, show_joint
from capline.cli.common import JsonOption, answer_json, examples, out
from capline.cli.subjects import read_also
from capline.cli.target import Words, open_limiter, refuse_beside_campaign, target
from capline.cli.twin import is_empty, warn_of_twin
from capline.limiter.limiter import DEFAULT_URL
from capline.model.subject import parse_subject

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["app"]

app = typer.Typer()

PoliciesOption = Annotated[
    Path,
    typer.Option("--policies", "-p", envvar="CAPLINE_POLICIES", help="The policy file.", show_default=True),
]
StoreOption = Annotated[str, typer.Option("--store", "-s", envvar="CAPLINE_STORE", help="The store's URL.")]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config-store",
        metavar="URL",
        envvar="CAPLINE_CONFIG_STORE",
        help="The configuration store: its overrides hold, and its policies where there is no policy file.",
        show_default=False,
    ),
]
PolicyArgument = Annotated[str, typer.Argument(help="The policy's name.", show_default=False)]
SubjectArgument = Annotated[
    str,
    typer.Argument(help="Who is limited: text, or an integer; s:42 is the text 42.", show_default=False),
]
TextOption = Annotated[bool, typer.Option("--text", help="Take the subject as text, even if it is digits.")]
SegmentOption = Annotated[str | None, typer.Option("--segment", help="The subject's segment.")]
SegmentsOption = Annotated[
    str | None,
    typer.Option("--segments", metavar="DIR|URL", help="Look up its segment here: a snapshot or a publication."),
]
CampaignOption = Annotated[
    Path | None,
    typer.Option(
        "--campaign",
        metavar="CAMPAIGN.YAML",
        help="Ask as this campaign does: with its store, policies, segments, channel, zone and cost.",
    ),
]
ChannelOption = Annotated[str | None, typer.Option("--channel", help="The channel of the attempt.")]
ZoneOption = Annotated[
    str | None,
    typer.Option(
        "--zone", metavar="NAME", help="The subject's time zone, like Asia/Singapore; the policy's, if left out."
    ),
]
AndOption = Annotated[
    list[str] | None,
    typer.Option(
        "--and",
        metavar="POLICY[:COST]=SUBJECT",
        help="Add this subject to the attempt, all or nothing; repeat for up to 16 subjects.",
    ),
]
CostOption = Annotated[
    int | None, typer.Option("--cost", help="Units asked for; 1 or the campaign's, if left out.", show_default=False)
]
IdOption = Annotated[
    str | None, typer.Option("--id", help="The attempt's id: a retry with the same id consumes nothing.")
]
IdsOption = Annotated[
    list[str] | None,
    typer.Option("--id", help="Mark the hits of this id, or with --campaign of this message key; may be repeated."),
]
ExitOption = Annotated[bool, typer.Option("--exit-code", help="Exit 1 when refused.")]

DEFAULT_POLICIES = Path("policies.yaml")


def _asks(*, consume: bool) -> Callable[..., None]:
    """The command `decide`, or with `consume` off `peek`, which takes the same options."""

    def ask(
        context: typer.Context,
        policy: PolicyArgument,
        subject: SubjectArgument,
        policies: PoliciesOption = DEFAULT_POLICIES,
        store: StoreOption = DEFAULT_URL,
        config: ConfigOption = None,
        cost: CostOption = None,
        id: IdOption = None,
        segment: SegmentOption = None,
        segments: SegmentsOption = None,
        campaign: CampaignOption = None,
        channel: ChannelOption = None,
        zone: ZoneOption = None,
        also: AndOption = None,
        text: TextOption = False,
        exit_code: ExitOption = False,
        json: JsonOption = False,
    ) -> None:
        refuse_beside_campaign(context)
        words = Words(
            *(policy, subject, policies, store, cost, id, segment, segments, campaign, channel, zone, text, consume),
            config=config,
        )
        with target(words) as found:
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


app.command(
    "decide",
    help="May the subject have one more? Consumes when allowed.\n\n"
    "With --and, all are allowed or none: `--and campaign=spring --and tenant:2=acme` also asks for a unit of the "
    "campaign and 2 of the tenant. Segment, channel, zone and cost are those of the first; the id is for each.",
    epilog=examples(
        "capline decide promo user:42",
        "capline decide promo 42 --segment active --channel push --json",
        "capline decide promo 42 --zone Asia/Singapore",
        "capline decide promo 42 --and campaign=spring --and tenant:2=acme:eu",
    ),
)(_asks(consume=True))

app.command(
    "peek",
    help="Show the answer that [bold]decide[/] would give. Consumes nothing.",
    epilog=examples(
        "capline peek promo 42 --segment active",
        "capline peek promo 42 --segments segments/today",
        "capline peek promo 42 --campaign spring.yaml",
    ),
)(_asks(consume=False))


@app.command(epilog=examples("capline refund promo 42 1767225600000000"))
def refund(
    policy: PolicyArgument,
    subject: SubjectArgument,
    hit: Annotated[int, typer.Argument(help="The hit, as the decision showed it.", show_default=False)],
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    config: ConfigOption = None,
    cost: Annotated[int, typer.Option("--cost", help="Its cost, for algorithms that keep no single hits.")] = 1,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Give one hit back, once.

    If the policy's algorithm keeps no single hits, a hit without an id is refunded by its cost, each time you ask.
    """
    named = parse_subject(subject, as_text=text)
    with open_limiter(policies, store, config) as limiter:
        done = limiter.refund(policy, named, hit, cost)
        if not done:
            warn_of_twin(limiter, named, policy)
    if json:
        answer_json({"refunded": done})
    else:
        out.print("refunded" if done else "nothing to refund: no such hit, given back before, or out of every window")


@app.command(
    epilog=examples(
        "capline explain promo 42 --segment active",
        "capline explain promo 42 --campaign spring.yaml --id spring/3f9a01c2/42",
        "capline explain promo s:42 --id message-1 --id message-2",
    )
)
def explain(
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
    ids: IdsOption = None,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Show why: the limits in force, which one binds, the hits that count, and when units become free.

    A log keeps only a hash of each id; --id marks the hits that were recorded with it.
    """
    words = Words(
        policy, subject, policies, store, None, None, segment, segments, campaign, channel, zone, text, config=config
    )
    refuse_beside_campaign(context)
    with target(words) as found:
        why = found.explain(ids or ())
        found.print_remarks()
        other = warn_of_twin(found.limiter, why.subject, policy) if is_empty(why) else None
        show_explanation(why, found.attempt.segment, json=json)
        if other is not None and not json:
            show_explanation(found.explain(ids or (), other), found.attempt.segment, json=False)


@app.command(epilog=examples("capline erase user:42"))
def erase(
    subject: SubjectArgument,
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    config: ConfigOption = None,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Forget a subject in every policy of the file."""
    named = parse_subject(subject, as_text=text)
    with open_limiter(policies, store, config) as limiter:
        held = limiter.erase(named)
        if not held:
            warn_of_twin(limiter, named)
    if json:
        answer_json({"erased_logs": held})
    else:
        out.print(f"erased from {held} log(s)" if held else "nothing was held")


@app.command(epilog=examples("capline sweep --store lmdb:///var/lib/capline"))
def sweep(
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Remove logs whose hits are all out of every window. Decisions go on meanwhile."""
    with open_limiter(policies, store, config) as limiter:
        removed = limiter.sweep()
    if json:
        answer_json({"removed_logs": removed})
    else:
        out.print(f"removed {removed} stale log(s)")
