"""`capline segments build | merge`: makes snapshots.

`capline.segment` imports pyroaring and pyarrow when one of its names is first used, so `--help` does not wait for them.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capline import segment as segments
from capline.cli.commands.segments import publish, read
from capline.cli.input.declare import Commands
from capline.cli.render.console import Answer
from capline.cli.render.manifests import manifest_answer
from capline.cli.render.progress import progress_bar
from capline.model.errors import SegmentError
from capline.segment import files

if TYPE_CHECKING:
    from capline.segment import DictionaryBuilder, IdSet, Snapshot

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


@app.answers(
    "capline segments build users.csv --out segments/today",
    "capline segments build 'export/*.parquet' --out segments/today --first-wins new,active,churned",
    "capline segments build users.csv --out segments/today --overlapping vip,holdout",
    "capline segments build users.csv --out segments/today --kind text --ids segments/ids",
    "capline segments build export/part-7.parquet --out parts/7 --partial",
)
def build(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Rows (id, segment): .csv, .csv.gz or .parquet files, globs or URLs."),
    ],
    destination: Destination,
    id_column: Annotated[str, typer.Option(help="The column of ids.")] = "id",
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
    version: Version = None,
    replace: Replace = False,
    *,
    json: bool,
) -> Answer:
    """Build a snapshot of segments from files of rows."""
    order, sharing = _names(first_wins), _names(overlapping) or []
    if partial and order is not None:
        raise SegmentError("a partial build may overlap; give --first-wins to 'merge'")
    _check_ids(kind, ids, partial)
    total = segments.count_rows(sources)
    wanted = False if json else None  # no progress beside an answer in JSON
    with ExitStack() as stack:
        advance = stack.enter_context(progress_bar("reading rows", total, "rows", wanted=wanted))
        builder = None
        if kind is Kind.TEXT:
            # Merging replaces the numbers of a part, so its dictionary is kept only in the part.
            home = ids or Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_parent(destination))))
            builder = stack.enter_context(segments.keep(home))
            rows = segments.number_rows(segments.read_text_rows(sources, id_column, segment_column), builder, advance)
        else:
            rows = segments.read_rows(sources, id_column, segment_column, kind)
        sets = segments.build_segments(
            rows,
            order,
            advance if builder is None else None,
            kind=kind,
            overlapping=sharing,
            partial=partial,
            builder=builder,
        )
        snapshot = _snapshot(sets, version, sharing, builder, partial=partial)
        manifest = segments.write_snapshot(snapshot, destination, replace=replace, partial=partial)
    return manifest_answer(destination, manifest)


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
