"""`capline decide | peek | refund | explain | erase | sweep`: one subject at a time, on the application's store.

A subject of digits alone is an integer, as campaigns have them; `s:42` or `--text` makes it text. A refusal is an
answer, so exit 0; with `--exit-code` a refused `decide` or `peek` exits 1, for shell scripts. `--and` asks for several
subjects in one attempt.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capline.cli.answers import show, show_explanation, show_joint
from capline.cli.common import JsonOption, answer_json, examples, out
from capline.cli.subjects import read_also
from capline.cli.target import Words, refuse_beside_campaign, target
from capline.cli.twin import is_empty, say_twin
from capline.limiter.limiter import DEFAULT_URL, Limiter
from capline.model.subject import parse_subject

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["register"]

PoliciesOption = Annotated[
    Path,
    typer.Option("--policies", "-p", envvar="CAPLINE_POLICIES", help="The policy file.", show_default=True),
]
StoreOption = Annotated[str, typer.Option("--store", "-s", envvar="CAPLINE_STORE", help="The store's URL.")]
PolicyArgument = Annotated[str, typer.Argument(help="The policy's name.", show_default=False)]
SubjectArgument = Annotated[
    str,
    typer.Argument(help="Who is limited: text, or digits for an integer; s:42 is the text 42.", show_default=False),
]
TextOption = Annotated[bool, typer.Option("--text", help="Take the subject as text, as it stands.")]
SegmentOption = Annotated[str | None, typer.Option("--segment", help="The subject's segment.")]
SegmentsOption = Annotated[
    str | None,
    typer.Option("--segments", metavar="DIR|URL", help="Look its segment up in this snapshot, or published there."),
]
CampaignOption = Annotated[
    Path | None,
    typer.Option(
        "--campaign",
        metavar="CAMPAIGN.YAML",
        help="Ask as this campaign does: its store, policies, segments, channel, zone and cost.",
    ),
]
ChannelOption = Annotated[str | None, typer.Option("--channel", help="The channel of the attempt.")]
ZoneOption = Annotated[
    str | None,
    typer.Option("--zone", metavar="NAME", help="Where the subject is, like Asia/Singapore; else the policy's zone."),
]
AndOption = Annotated[
    list[str] | None,
    typer.Option(
        "--and",
        metavar="POLICY[:COST]=SUBJECT",
        help="This subject too, in one attempt, all or nothing; may be given again, up to 16 subjects in all.",
    ),
]
CostOption = Annotated[
    int | None, typer.Option("--cost", help="Units asked for; 1, or the campaign's.", show_default=False)
]
IdOption = Annotated[str | None, typer.Option("--id", help="The attempt's id: a retry with it consumes nothing more.")]
IdsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--id", help="Mark the hits of this id, or of this message key beside --campaign; may be given again."
    ),
]
ExitOption = Annotated[bool, typer.Option("--exit-code", help="Exit 1 when refused.")]

DEFAULT_POLICIES = Path("policies.yaml")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command, lines in (
        (
            decide,
            (
                "capline decide promo user:42",
                "capline decide promo 42 --segment active --channel push --json",
                "capline decide promo 42 --zone Asia/Singapore",
                "capline decide promo 42 --and campaign=spring --and tenant:2=acme:eu",
            ),
        ),
        (
            peek,
            (
                "capline peek promo 42 --segment active",
                "capline peek promo 42 --segments segments/today",
                "capline peek promo 42 --campaign spring.yaml",
            ),
        ),
        (refund, ("capline refund promo 42 1767225600000000",)),
        (
            explain,
            (
                "capline explain promo 42 --segment active",
                "capline explain promo 42 --campaign spring.yaml --id spring/3f9a01c2/42",
                "capline explain promo s:42 --id message-1 --id message-2",
            ),
        ),
        (erase, ("capline erase user:42",)),
        (sweep, ("capline sweep --store lmdb:///var/lib/capline",)),
    ):
        app.command(command.__name__, epilog=examples(*lines))(command)


def decide(
    context: typer.Context,
    policy: PolicyArgument,
    subject: SubjectArgument,
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
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
    """May the subject have one more? Consumes when allowed.

    With --and all of them are allowed or none: `--and campaign=spring --and tenant:2=acme` asks for a unit of the
    campaign and 2 of the tenant too. Segment, channel, zone and cost are those of the first; the id is for each.
    """
    words = Words(
        policy, subject, policies, store, cost, id, segment, segments, campaign, channel, zone, text, create=True
    )
    _answer(context, words, also or (), consume=True, json=json, exit_code=exit_code)


def peek(
    context: typer.Context,
    policy: PolicyArgument,
    subject: SubjectArgument,
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
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
    """The answer that [bold]decide[/] would give; consumes nothing."""
    words = Words(policy, subject, policies, store, cost, id, segment, segments, campaign, channel, zone, text)
    _answer(context, words, also or (), consume=False, json=json, exit_code=exit_code)


def refund(
    policy: PolicyArgument,
    subject: SubjectArgument,
    hit: Annotated[int, typer.Argument(help="The stamp that the decision named.", show_default=False)],
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    cost: Annotated[int, typer.Option("--cost", help="What it cost; asked only where no single hits are kept.")] = 1,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Give one hit back, once.

    Where the policy's algorithm keeps sums or numbers instead of hits, a hit without an id is given back by its cost,
    and as often as it is asked.
    """
    named = parse_subject(subject, as_text=text)
    with _limiter(policies, store) as limiter:
        done = limiter.refund(policy, named, hit, cost)
        if not done:
            say_twin(limiter, named, policy)
    if json:
        answer_json({"refunded": done})
    else:
        out.print("refunded" if done else "nothing to refund: no such hit, given back before, or out of every window")


def explain(
    context: typer.Context,
    policy: PolicyArgument,
    subject: SubjectArgument,
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    segment: SegmentOption = None,
    segments: SegmentsOption = None,
    campaign: CampaignOption = None,
    channel: ChannelOption = None,
    zone: ZoneOption = None,
    ids: IdsOption = None,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Why: the limits in force, which of them binds, the hits that count, and when each unit frees.

    A log keeps a hash of a hit's id: with --id the hits that were recorded under it are marked.
    """
    words = Words(policy, subject, policies, store, None, None, segment, segments, campaign, channel, zone, text)
    if campaign is not None:
        refuse_beside_campaign(context)
    with target(words) as asked:
        why = asked.explain(ids or ())
        asked.say()
        other = say_twin(asked.limiter, why.subject, policy) if is_empty(why) else None
        show_explanation(why, asked.attempt.segment, json=json)
        if other is not None and not json:
            show_explanation(asked.explain(ids or (), other), asked.attempt.segment, json=False)


def erase(
    subject: SubjectArgument,
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    text: TextOption = False,
    json: JsonOption = False,
) -> None:
    """Forget a subject in every policy of the file."""
    named = parse_subject(subject, as_text=text)
    with _limiter(policies, store) as limiter:
        held = limiter.erase(named)
        if not held:
            say_twin(limiter, named)
    if json:
        answer_json({"erased_logs": held})
    else:
        out.print(f"erased from {held} log(s)" if held else "nothing was held")


def sweep(
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """Remove the logs of subjects whose every hit is out of every window; decisions go on meanwhile."""
    with _limiter(policies, store) as limiter:
        removed = limiter.sweep()
    if json:
        answer_json({"removed_logs": removed})
    else:
        out.print(f"removed {removed} stale log(s)")


@contextmanager
def _limiter(policies: Path, store: str, *, create: bool = False) -> Generator[Limiter]:
    """Only a decision creates a missing store: to peek or refund there is a mistake."""
    with Limiter.from_file(policies, store, create=create) as limiter:
        yield limiter


def _answer(
    context: typer.Context, words: Words, also: list[str] | tuple[()], *, consume: bool, json: bool, exit_code: bool
) -> None:
    """Ask, of one subject or of several, and show the answer."""
    if words.campaign is not None:
        refuse_beside_campaign(context)
    with target(words) as asked:
        limiter, first = asked.limiter, asked.attempt
        if also:
            parts = [first, *map(asked.also, read_also(also, first.id, as_text=words.as_text))]
            joint = limiter.decide_all(parts) if consume else limiter.peek_all(parts)
            asked.say()
            show_joint(joint, parts, limiter.now_us(), asked.near, json=json, exit_code=exit_code)
            return
        ask = limiter.decide if consume else limiter.peek
        decision = ask(
            first.policy,
            first.subject,
            first.cost,
            first.id,
            segment=first.segment,
            channel=first.channel,
            zone=first.zone,
        )
        asked.say()
        show(decision, limiter.now_us(), asked.near, json=json, exit_code=exit_code)
