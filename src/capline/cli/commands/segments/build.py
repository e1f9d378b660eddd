"""`capline segments build | merge`: makes snapshots.

`capline.segment` imports pyroaring and pyarrow when one of its names is first used, so `--help` does not wait for them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from functools import partial as partial_of
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from capline import segment as segments
from capline.cli.commands.segments import publish, read
from capline.cli.input.declare import Commands
from capline.cli.render.console import Answer, warn
from capline.cli.render.manifests import manifest_answer
from capline.cli.render.progress import progress_bar
from capline.model.clock import SystemClock
from capline.model.errors import SegmentError
from capline.segment import files
from capline.tables.times import read_time_us

if TYPE_CHECKING:
    from capline.segment import DictionaryBuilder, IdSet, RuleBuild, Snapshot
    from capline.segment.build.source import Rows, TextRows

app = Commands("segments", "Build, query and publish [bold]segments[/]: named sets of users.")
app.add_typer(read.app)
app.add_typer(publish.app)

Destination = Annotated[Path, typer.Option("--out", metavar="DIR", help="The directory to write the snapshot as.")]
FirstWins = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,NAME,...",
        help="Put ids of two segments into the first of these; name all segments. Without it such ids are an error.",
    ),
]
Version = Annotated[str | None, typer.Option(help="Its name; the time of the build, if left out.")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace an existing snapshot.")]
IdsDirectory = Annotated[
    Path | None, typer.Option("--ids", metavar="DIR", help="For text ids: the directory of their permanent dictionary.")
]


class Kind(StrEnum):
    """What the ids are."""

    UINT32 = "uint32"
    UINT64 = "uint64"
    TEXT = "text"


@dataclass
class ByRules:
    """Options of a build by rules over events."""

    rules: Annotated[
        Path | None, typer.Option(metavar="RULES.YAML", help="Rules over events decide who is in which segment.")
    ] = None
    events: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Events (id, time, event, value), like the FILEs of rows.")
    ] = None
    users: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Ids of users who may have no events.")] = None
    at: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="The instant that rules look back from; now, if left out.")
    ] = None
    time_column: Annotated[str | None, typer.Option(help="The column of times; else as the rules say, or time.")] = None
    event_column: Annotated[
        str | None, typer.Option(help="The column of what an event is; else as the rules say, or event.")
    ] = None
    value_column: Annotated[str | None, typer.Option(help="The column of values; else as the rules say, or value.")] = (
        None
    )
    drop_duplicates: Annotated[
        bool,
        typer.Option(
            "--drop-duplicates", help="Count an event once that is there again in all the columns that rules read."
        ),
    ] = False


@dataclass
class Since:
    """Options that name an earlier version."""

    since: Annotated[
        str | None,
        typer.Option(metavar="DIR|URL", help="Say who moved since this version; left out, the one that is replaced."),
    ] = None
    before: Annotated[
        str | None, typer.Option("--from", metavar="DIR|URL", help="Begin with this version, for --changes.")
    ] = None
    changes: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Rows (id, segment) of those who move; segment - for none.")
    ] = None


@app.answers(
    "capline segments build users.csv --out segments/today",
    "capline segments build 'export/*.parquet' --out segments/today --first-wins new,active,churned",
    "capline segments build --rules rules.yaml --events 'events/*.parquet' --at 2026-11-21 --out segments/today",
    "capline segments build --from segments/monday --changes moved.csv --out segments/tuesday",
    "capline segments build users.csv --out segments/today --kind text --ids segments/ids",
    "capline segments build export/part-7.parquet --partial --out parts/7",
)
def build(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Rows (id, segment): .csv, .csv.gz or .parquet files, globs or URLs."),
    ] = None,
    *,
    destination: Destination,
    id_column: Annotated[str | None, typer.Option(help="The column of ids.", show_default="id")] = None,
    segment_column: Annotated[str, typer.Option(help="The column of segment names.")] = "segment",
    kind: Annotated[
        Kind, typer.Option(help="What the ids are: up to 4294967295, up to 2^64-1, or any text of 1 to 512 bytes.")
    ] = Kind.UINT32,
    ids: IdsDirectory = None,
    first_wins: FirstWins = None,
    overlapping: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME,...", help="Segments that may share ids with others: audiences, hold-outs."),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Build one part of the rows, to be merged with others.")
    ] = False,
    by_rules: ByRules,
    since: Since,
    version: Version = None,
    replace: Replace = False,
    json: bool,
) -> Answer:
    """Build a snapshot of segments: from rows, from events by rules, or from an earlier one and changes."""
    _one_way(sources, by_rules, since, first_wins, overlapping, partial=partial)
    order, sharing = _names(first_wins), _names(overlapping) or []
    if partial and order is not None:
        raise SegmentError("a partial build may overlap; give --first-wins to 'merge'")
    before = None if since.before is None else segments.fetch_snapshot(since.before)[0]
    kind = kind if before is None else Kind(before.kind)
    _check_ids(kind, ids, partial)
    earlier = _earlier(since.since, before, destination, replace=replace and not partial)
    paths = sources or by_rules.events or since.changes or []
    total = segments.count_rows(paths)
    more: dict[str, object] = {}
    wanted = False if json else None  # no progress beside an answer in JSON
    with ExitStack() as stack:
        advance = stack.enter_context(progress_bar("reading rows", total, "rows", wanted=wanted))
        builder = None
        if kind is Kind.TEXT:
            # Merging replaces the numbers of a part, so its dictionary is kept only in the part.
            home = ids or Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_parent(destination))))
            builder = stack.enter_context(segments.keep(home))
        decided = None
        if by_rules.rules is not None:
            decided = _decided(by_rules, id_column, kind, advance)
            order = decided.names
            rows = decided.rows(stack.enter_context(tempfile.TemporaryDirectory(dir=_parent(destination))))
            advance = None
        else:
            read = partial_of(segments.read_rows, kind=kind) if builder is None else segments.read_text_rows
            rows = read(paths, id_column or "id", segment_column, or_none=before is not None)
        if builder is not None:
            rows, advance = segments.number_rows(cast("Iterable[TextRows]", rows), builder, advance), None
        numbered = cast("Iterable[Rows]", rows)
        if before is not None:
            sets = segments.change_segments(before, numbered, builder)
            sharing = list(before.overlapping)
        else:
            sets = segments.build_segments(
                numbered, order, advance, kind=kind, overlapping=sharing, partial=partial, builder=builder
            )
        snapshot = _snapshot(sets, version, sharing, builder, partial=partial)
        moved = [] if earlier is None else segments.moves(earlier, snapshot)
        manifest = segments.write_snapshot(snapshot, destination, replace=replace, partial=partial)
    if decided is not None:
        for line in decided.told:
            warn(line)
        more["rules"] = decided.facts()
    return manifest_answer(destination, manifest, None if earlier is None else earlier.version, moved, **more)


def _one_way(
    sources: list[str] | None,
    by_rules: ByRules,
    since: Since,
    first_wins: str | None,
    overlapping: str | None,
    *,
    partial: bool,
) -> None:
    """Raise unless rows, rules over events, or changes are named, and nothing of the other ways."""
    ways = [sources is not None, by_rules.rules is not None, since.before is not None]
    if sum(ways) != 1:
        raise SegmentError("name FILEs of rows, or --rules and --events, or --from and --changes; one of these ways")
    if (by_rules.rules is None) != (by_rules.events is None):
        raise SegmentError("--rules and --events go together")
    if (since.before is None) != (since.changes is None):
        raise SegmentError("--from and --changes go together")
    if by_rules.rules is None and by_rules != ByRules():
        raise SegmentError("--users, --at, --drop-duplicates and columns of events need --rules")
    if sources is None and (first_wins is not None or overlapping is not None or partial):
        raise SegmentError("--first-wins, --overlapping and --partial are for rows")


def _decided(by_rules: ByRules, id_column: str | None, kind: Kind, advance: Callable[..., None]) -> RuleBuild:
    columns = {
        "id": id_column,
        "time": by_rules.time_column,
        "event": by_rules.event_column,
        "value": by_rules.value_column,
    }
    if by_rules.rules is None or by_rules.events is None:  # never: `_one_way` has looked
        raise SegmentError("--rules and --events go together")
    rules = segments.read_rules(by_rules.rules, columns)
    at_us = SystemClock().now_us() if by_rules.at is None else read_time_us(by_rules.at)
    return segments.RuleBuild(
        rules,
        by_rules.events,
        at_us,
        kind=kind,
        users=by_rules.users,
        drop_duplicates=by_rules.drop_duplicates,
        progress=advance,
    )


def _earlier(named: str | None, before: Snapshot | None, destination: Path, *, replace: bool) -> Snapshot | None:
    """The version that moves are counted from; the one that is replaced is none where it cannot be read."""
    if named is not None:
        return segments.fetch_snapshot(named)[0]
    if before is not None or not replace or not destination.exists():
        return before
    try:
        return segments.load_snapshot(destination)
    except SegmentError:
        return None


@app.answers(
    "capline segments merge parts/* --out segments/today",
    "capline segments merge parts/* --out segments/today --first-wins new,active,churned",
    "capline segments merge parts/* --out segments/today --ids segments/ids",
)
def merge(
    parts: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Partial snapshots, each built from other rows.")
    ],
    destination: Destination,
    ids: IdsDirectory = None,
    first_wins: FirstWins = None,
    version: Version = None,
    replace: Replace = False,
    *,
    json: bool,
) -> Answer:
    """Merge partial builds into one snapshot, and verify that no id is in two segments."""
    wanted = False if json else None  # no progress beside an answer in JSON
    with ExitStack() as stack:
        advance = stack.enter_context(progress_bar("merging parts", len(parts), "parts", wanted=wanted))
        builder = None if ids is None else stack.enter_context(segments.keep(ids))
        snapshot = segments.merge_partials(parts, _names(first_wins), version, builder=builder, progress=advance)
        if builder is not None:
            builder.commit()
        manifest = segments.write_snapshot(snapshot, destination, replace=replace)
    return manifest_answer(destination, manifest)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _check_ids(kind: Kind, ids: Path | None, partial: bool) -> None:
    if kind is not Kind.TEXT and ids is not None:
        raise SegmentError(f"{kind} ids need no dictionary; leave out --ids, or say --kind text")
    if kind is Kind.TEXT and partial and ids is not None:
        raise SegmentError("a partial build has numbers of its own; give --ids to 'merge'")
    if kind is Kind.TEXT and not partial and ids is None:
        raise SegmentError("text ids need a permanent dictionary; say where it is kept: --ids DIR")


def _parent(destination: Path) -> Path:
    with files.os_errors("write the snapshot", destination):
        destination.absolute().parent.mkdir(parents=True, exist_ok=True)
    return destination.absolute().parent


def _snapshot(
    sets: dict[str, IdSet], version: str | None, sharing: list[str], builder: DictionaryBuilder | None, *, partial: bool
) -> Snapshot:
    if builder is not None:
        builder.commit()
    make = segments.Snapshot.verified if partial else segments.Snapshot
    return make(sets, version, None, overlapping=sharing, ids=None if builder is None else builder.dictionary())
