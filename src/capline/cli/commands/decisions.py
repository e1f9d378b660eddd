"""`capline decide | peek | charge | settle | refund | usage …`: single subjects, on the application's store.

A subject of digits is an integer, as in campaigns; `s:42` or `--text` makes it text. A refusal exits 0, or 1 with
`--exit-code`. `--and` adds subjects to the attempt. Only `decide` and `charge` create a missing store.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer
from msgspec.structs import replace

from capline.cli.input.declare import Commands
from capline.cli.input.options import Attempted, HitArgument, IdOption, Log, Place, Source, SubjectArgument, TextOption
from capline.cli.input.target import is_empty, read_also, target, warn_of_twin
from capline.cli.render.console import Answer
from capline.cli.render.decisions import decision_answer, explanation_answer, joint_answer, usage_answer
from capline.model.errors import InvalidValueError, quoted
from capline.model.subject import parse_subject

app = Commands()


def _asks(*, consume: bool) -> Callable[..., Answer]:
    """The command `decide`, or with `consume` off `peek`, which takes the same options."""

    def ask(
        context: typer.Context,
        place: Place,
        cost: Annotated[int | None, typer.Option(help="Units asked for; 1 or the campaign's, if left out.")] = None,
        id: IdOption = None,
        also: Annotated[
            list[str] | None,
            typer.Option(
                "--and",
                metavar="POLICY[:COST]=SUBJECT",
                help="Add this subject to the attempt, all or nothing; repeat for up to 16 subjects.",
            ),
        ] = None,
        keep_free: Annotated[
            str,
            typer.Option(
                metavar="UNITS[,UNITS…]",
                help="Units that must stay free: of each limit, or so many of each, in their order; 0 for quiet hours.",
            ),
        ] = "0",
        exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 when refused.")] = False,
    ) -> Answer:
        kept = _units_of(keep_free)
        with target(context, place, cost, id, create=consume) as found:
            limiter, first = found.limiter, replace(found.attempt, keep_free=kept)
            if also:
                parts = [first, *map(found.with_segment, read_also(also, first.id, as_text=place.text))]
                joint = limiter.decide_all(parts) if consume else limiter.peek_all(parts)
                return joint_answer(joint, parts, limiter.now_us(), found.zone, exit_code=exit_code)
            verb = limiter.decide if consume else limiter.peek
            decision = verb(first.policy, first.subject, first.cost, first.id, **found.names, keep_free=kept)
            return decision_answer(decision, limiter.now_us(), found.zone, exit_code=exit_code)

    return ask


_MOST_DIGITS = 20


def _units_of(typed: str) -> int | list[int]:
    """What must stay free, as it was typed."""
    words = typed.split(",")
    if not all(word.isdecimal() and word.isascii() and len(word) <= _MOST_DIGITS for word in words):
        raise InvalidValueError(f"--keep-free {quoted(typed)}: write units, like 2, or for each limit, like 2,0,5")
    units = [*map(int, words)]
    return units if len(units) > 1 else units[0]


app.answers(
    "capline decide promo user:42",
    "capline decide promo 42 --segment active --channel push --json",
    "capline decide promo 42 --zone Asia/Singapore",
    "capline decide promo 42 --and campaign=spring --and tenant:2=acme:eu",
    name="decide",
    help="May the subject have one more? Consumes when allowed.\n\n"
    "With --and, all are allowed or none: `--and campaign=spring --and tenant:2=acme` also asks for a unit of the "
    "campaign and 2 of the tenant. Segment, channel, zone, cost and what stays free are those of the first; the id is "
    "for each.",
)(_asks(consume=True))

app.answers(
    "capline peek promo 42 --segment active",
    "capline peek promo 42 --segments segments/today",
    "capline peek promo 42 --campaign spring.yaml",
    name="peek",
    help="Show the answer that [bold]decide[/] would give. Consumes nothing.",
)(_asks(consume=False))


@app.answers("capline refund promo 42 1767225600000000")
def refund(
    log: Log,
    hit: HitArgument,
    cost: Annotated[int, typer.Option(help="Its cost, for algorithms that keep no single hits.")] = 1,
) -> Answer:
    """Give one hit back, once.

    If the policy's algorithm keeps no single hits, a hit without an id is refunded by its cost, each time you ask.
    """
    who = log.who
    with log.limiter() as limiter:
        done = limiter.refund(log.policy, who, hit, cost)
        if not done:
            warn_of_twin(limiter, who, log.policy)
    nothing = "nothing to refund: no such hit, given back before, or out of every window"
    return Answer({"refunded": done}, "refunded" if done else nothing)


@app.answers(
    "capline explain promo 42 --segment active",
    "capline explain promo 42 --campaign spring.yaml --id spring/3f9a01c2/42",
    "capline explain promo s:42 --id message-1 --id message-2",
)
def explain(
    context: typer.Context,
    place: Place,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="Mark the hits of this id, or with --campaign of this message key; may be repeated."),
    ] = None,
    *,
    json: bool,
) -> Answer:
    """Show why: the limits in force, which one binds, the hits that count, and when units become free.

    A log keeps only a hash of each id; --id marks the hits that were recorded with it.
    """
    with target(context, place) as found:
        why = found.explain(ids or ())
        twin = warn_of_twin(found.limiter, why.subject, place.policy) if is_empty(why) else None
        other = None if twin is None or json else found.explain(ids or (), twin)
        return explanation_answer(why, found.attempt.segment, other)


@app.answers("capline erase user:42", "capline erase user:42 --queue redis://127.0.0.1:6379/0")
def erase(
    subject: SubjectArgument,
    source: Source,
    text: TextOption = False,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="URL", help="Erase it in the campaigns of this store too.")
    ] = None,
    audiences: Annotated[
        str | None, typer.Option("--audiences", metavar="ADDRESS", help="Erase it in the uploads at this address too.")
    ] = None,
) -> Answer:
    """Forget a subject in every policy of the file, and where options say so in campaigns and in uploads."""
    who = parse_subject(subject, as_text=text)
    with source.limiter() as limiter:
        held = limiter.erase(who)
        if not held:
            warn_of_twin(limiter, who)
    answer: dict[str, object] = {"erased_logs": held}
    lines = [f"erased from {held} log(s)" if held else "nothing was held"]
    if audiences is not None:
        from capline.campaign.erase import erase_uploads  # noqa: PLC0415 - `--help` stays instant

        answer["uploads"] = uploads = erase_uploads(audiences, who)
        lines += [f"{found.upload}: " + (found.unread or f"erased {found.rows} row(s)") for found in uploads]
        lines += [] if uploads else ["no upload had it"]
    if queue is not None:
        from capline.campaign.erase import erase as erase_from  # noqa: PLC0415 - as above
        from capline.campaign.store.open import open_store  # noqa: PLC0415 - as above

        with open_store(queue) as store:
            answer["campaigns"] = campaigns = erase_from(store, who)
        lines += [
            f"{part.campaign}: erased from {part.audience} batch(es) of the audience and {part.outcomes} of outcomes"
            + (f"; {part.in_work} are with a worker: erase again when they are settled" if part.in_work else "")
            for part in campaigns
        ] or ["no campaign had it"]
    return Answer(answer, "\n".join(lines))


@app.answers("capline sweep --store lmdb:///var/lib/capline")
def sweep(source: Source) -> Answer:
    """Remove logs whose hits are all out of every window. Decisions go on meanwhile."""
    with source.limiter() as limiter:
        removed = limiter.sweep()
    return Answer({"removed_logs": removed}, f"removed {removed} stale log(s)")


@app.answers("capline charge tokens key:7 1830 --id call-1")
def charge(
    context: typer.Context,
    log: Attempted,
    cost: Annotated[int, typer.Argument(help="Units that were used.")],
    id: IdOption = None,
) -> Answer:
    """Record units that were used, whatever the limits say. Above a quota, later attempts wait longer."""
    with target(context, Place(**asdict(log)), cost, id, create=True) as found:
        decision = found.limiter.charge(log.policy, found.attempt.subject, cost, id, **found.names)
    left = f"charged: {decision.remaining} left under {decision.limit}, hit {decision.hit}"
    return Answer(decision.as_dict(), left)


@app.answers("capline settle tokens key:7 1767225600000000 1211")
def settle(
    log: Log, hit: HitArgument, cost: Annotated[int, typer.Argument(help="Units that it really cost; 0 refunds it.")]
) -> Answer:
    """Replace the estimated cost of a hit by its real cost.

    Unused units are refunded at once, further ones are recorded even above the quota. May be repeated.
    """
    who = log.who
    with log.limiter() as limiter:
        done = limiter.settle(log.policy, who, hit, cost)
    nothing = "nothing to settle: no such hit, given back, or out of every window"
    return Answer({"settled": done}, "settled" if done else nothing)


@app.answers("capline usage tokens key:7", "capline usage promo 42 --campaign spring.yaml")
def usage(context: typer.Context, place: Place) -> Answer:
    """Show what is used and left of each limit now. Consumes nothing."""
    with target(context, place) as found:
        states = found.limiter.usage(found.attempt.policy, found.attempt.subject, **found.names)
    return usage_answer(states)
