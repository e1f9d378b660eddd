"""`capline decide | peek | refund | explain | erase | sweep`: one subject at a time, on the store of everyone else.

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
from capline.cli.common import JsonOption, answer_json, out
from capline.cli.subjects import read_also
from capline.limiter.limiter import DEFAULT_URL, Limiter
from capline.model.attempt import Attempt
from capline.model.subject import parse_subject
from capline.model.zone import UTC_ZONE

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
    str, typer.Argument(help="Who is limited: text, or digits for an integer; s:42 is the text 42.", show_default=False)
]
TextOption = Annotated[bool, typer.Option("--text", help="Take the subject as text, as it stands.")]
SegmentOption = Annotated[str | None, typer.Option("--segment", help="The subject's segment.")]
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
    zone: ZoneOption = None,
    also: AndOption = None,
    text: TextOption = False,
    exit_code: ExitOption = False,
    json: JsonOption = False,
) -> None:
    """May the subject have one more? Consumes when allowed.

    [bold]Examples[/]

      capline decide promo user:42
      capline decide promo 42 --segment active --channel push --json
      capline decide promo 42 --zone Asia/Singapore
      capline decide promo 42 --and campaign=spring --and tenant:2=acme:eu

    The last one asks for a unit of the user, one of the campaign and 2 of the tenant: all of them or none. Segment,
    channel, zone and cost are those of the first; the id is for each.
    """
    first = Attempt(policy, parse_subject(subject, as_text=text), cost, id, segment, channel, zone)
    with _limiter(policies, store) as limiter:
        near = _zone(limiter, policy, zone)
        if also:
            asked = [first, *read_also(also, id, as_text=text)]
            joint = limiter.decide_all(asked)
            show_joint(joint, asked, limiter.now_us(), near, json=json, exit_code=exit_code)
            return
        decision = limiter.decide(policy, first.subject, cost, id, segment=segment, channel=channel, zone=zone)
        show(decision, limiter.now_us(), near, json=json, exit_code=exit_code)


def peek(
    policy: PolicyArgument,
    subject: SubjectArgument,
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    cost: CostOption = 1,
    id: IdOption = None,
    segment: SegmentOption = None,
    channel: ChannelOption = None,
    zone: ZoneOption = None,
    also: AndOption = None,
    text: TextOption = False,
    exit_code: ExitOption = False,
    json: JsonOption = False,
) -> None:
    """The answer that [bold]decide[/] would give; consumes nothing.

    [bold]Example[/]

      capline peek promo 42 --segment active
    """
    first = Attempt(policy, parse_subject(subject, as_text=text), cost, id, segment, channel, zone)
    with _limiter(policies, store) as limiter:
        near = _zone(limiter, policy, zone)
        if also:
            asked = [first, *read_also(also, id, as_text=text)]
            joint = limiter.peek_all(asked)
            show_joint(joint, asked, limiter.now_us(), near, json=json, exit_code=exit_code)
            return
        decision = limiter.peek(policy, first.subject, cost, id, segment=segment, channel=channel, zone=zone)
        show(decision, limiter.now_us(), near, json=json, exit_code=exit_code)


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

    [bold]Example[/]

      capline refund promo 42 1767225600000000
    """
    with _limiter(policies, store) as limiter:
        done = limiter.refund(policy, parse_subject(subject, as_text=text), hit, cost)
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
    zone: ZoneOption = None,
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
        named = parse_subject(subject, as_text=text)
        why = limiter.explain(policy, named, segment=segment, channel=channel, zone=zone, ids=ids or ())
    show_explanation(why, json=json)


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
        held = limiter.erase(parse_subject(subject, as_text=text))
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


def _zone(limiter: Limiter, policy: str, zone: str | None) -> str:
    """Where instants are told: where the subject is, if a limit asks for that."""
    known = limiter.policies.get(policy)
    return (zone or known.zone) if known is not None and known.needs_zone else UTC_ZONE
