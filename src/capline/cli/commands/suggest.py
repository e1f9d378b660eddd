"""`capline suggest`: limits from past events, with what each would have refused."""

from __future__ import annotations

import secrets
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capline.cli.input.campaigns import Shared
from capline.cli.input.declare import Commands
from capline.cli.render.console import NO_SEGMENT, Answer, warn
from capline.cli.render.progress import progress_bar
from capline.cli.render.suggest import show_suggestion
from capline.limiter.arguments.hashed_keys import keyed_hash
from capline.model.errors import InvalidValueError
from capline.model.limit import parse_span
from capline.model.subject import Subject

if TYPE_CHECKING:
    from capline.replay.blocks import EventFile
    from capline.replay.suggest.events import Past

app = Commands()


class Of(StrEnum):
    """What a bound on refusals counts."""

    events = "events"
    subjects = "subjects"


@app.answers(
    "capline suggest access.log.gz --window minute",
    "capline suggest access.log.gz --window minute --window hour --refuse-at-most 0.5% --report limits.html",
    "capline suggest sends.csv --refuse-at-most 5% --of subjects --output policies.yaml",
    "capline suggest sends.parquet --by-segment --segment-column tier --json",
    "capline suggest sale.run autumn --queue redis://127.0.0.1:6379/0 --window week",
)
def suggest(
    events: Annotated[
        list[Path],
        typer.Argument(
            metavar="EVENTS…",
            help="CSV, Parquet, JSON lines, an export or an access log; gzip or zstd; - is the input. "
            "Or campaigns: files of outcomes, campaign files, runs' directories, names of queued campaigns.",
        ),
    ],
    window: Annotated[
        list[str], typer.Option(metavar="MINUTE", help="A window, like hour or 15min; several may be named.")
    ] = ["day", "week"],  # noqa: B006 - typer copies it
    refuse_at_most: Annotated[
        str, typer.Option(metavar="1%", help="A share, or a whole number, may be refused.")
    ] = "1%",
    of: Annotated[Of, typer.Option(help="Of what that is: events, or subjects with a refusal.")] = Of.events,
    by_segment: Annotated[
        bool, typer.Option("--by-segment", help="Suggest for the events of each segment too.")
    ] = False,
    subject_column: Annotated[str | None, typer.Option(help="The column of subjects.")] = None,
    time_column: Annotated[
        str | None, typer.Option(help="The column of times: ISO 8601, or seconds since 1970.")
    ] = None,
    segment_column: Annotated[
        str | None, typer.Option(help="The column of segments.", show_default="segment with --by-segment")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="POLICIES.YAML", help="Write a policy file, with the forecast in comments.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="OUT.HTML", help="Write charts and tables, as one page without a network.")
    ] = None,
    hash_subjects: Annotated[
        bool, typer.Option("--hash-subjects", help="Show subjects as hashes, by a key that nobody keeps.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse broken lines of a log.")] = False,
    *,
    place: Shared,
) -> Answer:
    """Suggest limits from past events: for every quota of a window, exactly what it would have refused.

    The smallest quota that keeps the bound is suggested; over several windows also limits that keep it together.
    Refused events do not count, as under sliding_log. Columns are guessed where there is one safe guess, and told.
    """
    from capline.campaign.response.events import are_outcomes, events_of  # noqa: PLC0415 - NumPy is an extra
    from capline.replay.page import write_page  # noqa: PLC0415 - as above
    from capline.replay.suggest.facts import suggestion_facts  # noqa: PLC0415 - as above
    from capline.replay.suggest.policy_file import check_output, policy_text, write_policy  # noqa: PLC0415 - as above
    from capline.replay.suggest.report import render  # noqa: PLC0415 - as above
    from capline.replay.suggest.suggestion import Bound, Suggestion, suggest  # noqa: PLC0415 - as above

    widths_us = list(dict.fromkeys(parse_span(text, "--window") for text in window))
    bound = Bound.parse(refuse_at_most, of)
    if report is not None and not report.parent.is_dir():  # not after minutes of counting
        raise InvalidValueError(f"{report}: there is no folder {report.parent}; make it, or name another")
    if output is not None:
        check_output(output)
    column = segment_column or ("segment" if by_segment else None)
    columns = subject_column, time_column, segment_column
    names = ", ".join(map(str, events))
    if not any(columns) and all(place.has_run(each) or are_outcomes(each) for each in events):
        past, subjects, line = events_of(place.messages(events), names)
        told, broken_lines = [line], 0
    else:
        file, past = _of_file(events, subject_column, time_column, column, strict=strict)
        subjects, told, broken_lines = file.subjects(), file.told(), file.broken_lines
    for line in [*told, *past.oddities(names)]:
        warn(line)
    hashed = keyed_hash(secrets.token_bytes(32)) if hash_subjects else None

    def name_of(code: int) -> Subject:
        return subjects[code] if hashed is None else hashed(subjects[code])

    parts = past.segments() if column else {}
    with progress_bar("counting", (len(widths_us) + 2) * (1 + len(parts)), "windows") as advance:
        whole = suggest(past.histories, widths_us, bound, name_of, advance)
        found: dict[str | None, Suggestion] = {}
        for segment, histories in parts.items():
            found[segment] = suggest(histories, widths_us, bound, name_of)
            advance((len(widths_us) + 2) * (1 + len(found)))
    name = events[0].name if len(events) == 1 else f"{len(events)} campaigns"
    asked = (
        f"At most {refuse_at_most} of the {of} refused"
        if of == Of.events
        else f"At most {refuse_at_most} of the subjects feel it"
    )
    if output is not None:
        write_policy(policy_text(name, asked, whole, found), output)
        warn(f"wrote {output}")
    if report is not None:
        write_page(render(name, asked, past, whole, found, name_of), report)
        warn(f"wrote {report}")
    facts = {
        **suggestion_facts(whole, name_of),
        "first_us": past.first_us,
        "last_us": past.last_us,
        "broken_lines": broken_lines,
    }
    if column:
        facts["segments"] = {
            segment or NO_SEGMENT: suggestion_facts(of_segment, name_of) for segment, of_segment in found.items()
        }
    return Answer(facts, lambda: show_suggestion(whole, found, name_of))


def _of_file(events: list[Path], *columns: str | None, strict: bool) -> tuple[EventFile, Past]:
    from capline.replay.blocks import EventFile  # noqa: PLC0415 - NumPy is an extra
    from capline.replay.suggest.events import read  # noqa: PLC0415 - as above

    if len(events) > 1:
        raise InvalidValueError(f"{len(events)} files: name one, or campaigns alone, and no columns")
    file = EventFile(events[0], *columns, strict=strict)
    with progress_bar("reading", events[0].stat().st_size if events[0].is_file() else None, "bytes") as advance:
        return file, read(file, advance)
