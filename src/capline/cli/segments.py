"""`capline segments`: build, show and query snapshots.

Each command is one call into `capline.segment` and its answer, for people or (`--json`) for machines. What is wrong is
raised as a `CaplineError`, which `capline.cli.main` prints. `capline.segment` brings pyroaring and pyarrow when one
of its names is first used: `--help` does not wait for them.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from capline import segment as segments
from capline.cli import segments_publish
from capline.cli.common import NO_SEGMENT, JsonOption, answer_json, note, out, plain, printable
from capline.model.errors import SegmentError
from capline.segment import files
from capline.segment.manifest import MANIFEST, Manifest, instant_text, read_manifest

if TYPE_CHECKING:
    from capline.segment import DictionaryBuilder, IdSet, Snapshot

__all__ = ["app"]

app = typer.Typer(
    name="segments",
    help="Build and ask [bold]segments[/]: named sets of users.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
segments_publish.register(app)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A snapshot's directory.", show_default=False)]
Address = Annotated[
    str,
    typer.Argument(
        metavar="DIR|URL", help="A snapshot's directory, or where versions are published.", show_default=False
    ),
]
CacheOption = Annotated[
    Path | None,
    typer.Option("--cache", metavar="DIR", help="Keep what was fetched here, for the next call."),
]
Destination = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="The directory to write the snapshot as.", show_default=False)
]
FirstWins = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,NAME,...",
        help="Whoever is in two segments goes into the first of these; name them all. Without it that is an error.",
    ),
]
Version = Annotated[str | None, typer.Option(help="A name for this state; the instant, if left out.")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace the snapshot that is there.")]
IdsDirectory = Annotated[
    Path | None,
    typer.Option("--ids", metavar="DIR", help="Text ids: the directory where their dictionary is kept, for good."),
]

_LONGEST_ID = 20
"""Digits of a 64-bit number: beyond it int() would only work hard to say the same."""


class Kind(StrEnum):
    """What the ids are."""

    UINT32 = "uint32"
    UINT64 = "uint64"
    TEXT = "text"


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "capline segments build users.csv --out segments/today\n\n"
    "capline segments build 'export/*.parquet' --out segments/today --first-wins new,active,churned\n\n"
    "capline segments build users.csv --out segments/today --overlapping vip,holdout\n\n"
    "capline segments build users.csv --out segments/today --kind text --ids segments/ids\n\n"
    "capline segments build export/part-7.parquet --out parts/7 --partial"
)
def build(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Rows (id, segment): .csv, .csv.gz or .parquet; globs and URLs welcome.",
            show_default=False,
        ),
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
        typer.Option(metavar="NAME,NAME,...", help="Segments that may share ids with any: audiences, hold-outs."),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="One part of the rows, for 'merge' to unite with the others.")
    ] = False,
    version: Version = None,
    replace: Replace = False,
    as_json: JsonOption = False,
) -> None:
    """Build a snapshot of segments from files of rows, all or nothing."""
    order, sharing = _names(first_wins), _names(overlapping) or []
    if partial and order is not None:
        raise SegmentError("a partial build settles nothing; give --first-wins to 'merge'")
    _check_ids(kind, ids, partial)
    total = segments.count_rows(sources)
    with ExitStack() as stack:
        advance = stack.enter_context(_Advance("reading rows", "rows", total, as_json))
        builder = None
        if kind is Kind.TEXT:
            # A part has numbers of its own, which merging replaces: its dictionary is kept nowhere but in the part.
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
    _tell(destination, manifest, as_json)


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "capline segments merge parts/* --out segments/today\n\n"
    "capline segments merge parts/* --out segments/today --first-wins new,active,churned\n\n"
    "capline segments merge parts/* --out segments/today --ids segments/ids"
)
def merge(
    parts: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Partial snapshots, each of other rows.", show_default=False),
    ],
    destination: Destination,
    ids: IdsDirectory = None,
    first_wins: FirstWins = None,
    version: Version = None,
    replace: Replace = False,
    as_json: JsonOption = False,
) -> None:
    """Unite partial builds into one snapshot, and verify that nobody is in two segments."""
    with ExitStack() as stack:
        advance = stack.enter_context(_Advance("merging parts", "parts", len(parts), as_json))
        builder = None if ids is None else stack.enter_context(segments.keep(ids))
        snapshot = segments.merge_partials(parts, _names(first_wins), version, builder=builder, progress=advance)
        if builder is not None:
            builder.commit()
        manifest = segments.write_snapshot(snapshot, destination, replace=replace)
    _tell(destination, manifest, as_json)


class _Advance(Progress):
    """A bar on standard error, where that is a terminal; called with how much is done."""

    def __init__(self, doing: str, unit: str, total: int | None, quiet: bool) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn(doing),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=note,
            transient=True,
            disable=quiet or not note.is_terminal,
        )
        self._unit = unit
        self._task = self.add_task("", total=total, rate="")

    def __call__(self, done: int) -> None:
        speed = self.tasks[self._task].speed
        self.update(self._task, completed=done, rate=f"{speed:,.0f} {self._unit}/s" if speed else "")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _check_ids(kind: Kind, ids: Path | None, partial: bool) -> None:
    if kind is not Kind.TEXT and ids is not None:
        raise SegmentError(f"{kind} ids need no dictionary; leave out --ids, or say --kind text")
    if kind is Kind.TEXT and partial and ids is not None:
        raise SegmentError("a partial build has numbers of its own; give --ids to 'merge'")
    if kind is Kind.TEXT and not partial and ids is None:
        raise SegmentError("text ids get numbers for good; say where those are kept: --ids DIR")


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


def _tell(destination: Path, manifest: Manifest, as_json: bool) -> None:
    if as_json:
        answer_json({"path": str(destination), **_facts(manifest)})
        return
    _print_manifest(destination, manifest)


@app.command(
    epilog="[bold]Examples[/]\n\ncapline segments show segments/today\n\ncapline segments show segments/today --json"
)
def show(directory: Directory, as_json: JsonOption = False) -> None:
    """Show a snapshot: its segments and sizes. Every file of it is verified on the way."""
    manifest = read_manifest(directory)
    (segments.load_partial if manifest.partial else segments.load_snapshot)(directory)
    if as_json:
        answer_json({"path": str(directory), "verified": True, **_facts(manifest)})
        return
    _print_manifest(directory, manifest)


@app.command(
    "list",
    epilog="[bold]Examples[/]\n\ncapline segments list segments\n\ncapline segments list s3://bucket/segments",
)
def list_snapshots(
    place: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL", help="A directory of snapshots, or where versions are published.", show_default=False
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """List the snapshots in a directory, or the published versions at an address, oldest first.

    Of snapshots only their manifests are read.
    """
    if segments.is_publication(place):
        segments_publish.list_versions(place, as_json=as_json)
    else:
        _list_directory(Path(place), as_json=as_json)


def _list_directory(directory: Path, *, as_json: bool) -> None:
    try:
        inside = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise SegmentError(f"{directory}: cannot list it: {error.strerror}") from None
    found: list[tuple[Path, Manifest | SegmentError]] = []
    for path in inside:
        if (path / MANIFEST).exists():
            try:
                found.append((path, read_manifest(path)))
            except SegmentError as error:
                found.append((path, error))
    # Damaged ones have no instant that could be trusted: they come last.
    found.sort(key=lambda each: (0, each[1].created_us) if isinstance(each[1], Manifest) else (1, 0))
    if as_json:
        answer_json(
            [
                {"path": str(path), **(_facts(each) if isinstance(each, Manifest) else {"error": str(each)})}
                for path, each in found
            ],
        )
        return
    if not found:
        note.print(f"no snapshot in {directory}", style="yellow", markup=False)
        return
    table = Table("snapshot", "version", "created", box=None, header_style="bold")
    for title in ("segments", "ids", "bytes"):
        table.add_column(title, justify="right")
    for path, each in found:
        if isinstance(each, Manifest):
            ids, size_bytes = _totals(each)
            created = instant_text(each.created_us)
            table.add_row(
                plain(path.name), each.version, created, f"{len(each.segments)}", f"{ids:,}", f"{size_bytes:,}"
            )
        else:
            table.add_row(plain(path.name), "[red]damaged[/]", "", "", "", "")
            note.print(str(each), style="red", markup=False, soft_wrap=True)
    _print_table(table)


@app.command(
    epilog="[bold]Examples[/]\n\ncapline segments contains segments/today 42 1007\n\n"
    "capline segments contains s3://bucket/segments 42 --cache /var/cache/capline"
)
def contains(
    address: Address,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids to look up.", show_default=False)],
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say which segment each id is in; and which of the overlapping sets, if the snapshot has any."""
    snapshot, version = _open(address, cache)
    answers: list[dict[str, Any]] = []
    for text in ids:
        one = _id(snapshot, text)
        answers.append({"id": one, "segment": snapshot.segment_of(one)})
        if snapshot.overlapping:
            answers[-1]["sets"] = snapshot.segments_of(one)
    if as_json:
        answer_json({"version": version, "ids": answers})
        return
    # Not through rich, here and below: it turns tabs into blanks, and is slow for a million lines.
    lines = (f"{printable(each['id'])}\t{each['segment'] or NO_SEGMENT}" for each in answers)
    typer.echo(
        "\n".join(
            f"{line}\t{','.join(each.get('sets', ()))}".rstrip("\t") for line, each in zip(lines, answers, strict=True)
        )
    )


@app.command(
    epilog="[bold]Examples[/]\n\ncapline segments counts segments/today\n\n"
    "capline segments counts segments/today --expression '(active | new) - churned'"
)
def counts(
    address: Address,
    expression: Annotated[
        str | None,
        typer.Option(help="Count this instead: segments with |, &, - and brackets. Write a space before each '-'."),
    ] = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the ids of each segment, of those that two of them share, and of an expression."""
    snapshot, version = _open(address, cache)
    if expression is not None:
        found = len(snapshot.evaluate(expression))
        if as_json:
            answer_json({"version": version, "expression": expression, "cardinality": found})
        else:
            typer.echo(f"{found}")
        return
    sizes = {name: len(ids) for name, ids in snapshot.sets.items()}
    # Exclusive segments share no ids, so only those that may overlap are counted.
    shared = [
        (one, other, snapshot.overlap(one, other))
        for place, other in enumerate(snapshot.sets)
        for one in list(snapshot.sets)[:place]
        if one in snapshot.overlapping or other in snapshot.overlapping
    ]
    if as_json:
        pairs = [{"sets": [one, other], "cardinality": both} for one, other, both in shared]
        answer_json({"version": version, "cardinalities": sizes, "shared": pairs})
        return
    typer.echo("\n".join(f"{name}\t{size}" for name, size in sizes.items()))
    for one, other, both in shared:
        typer.echo(f"{one} & {other}\t{both}")


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "capline segments classify segments/today audience.parquet\n\n"
    "capline segments classify segments/today audience.roaring --out parts"
)
def classify(
    address: Address,
    audience: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Ids: .csv, .csv.gz, .parquet or .roaring.", show_default=False),
    ],
    id_column: Annotated[str, typer.Option(help="The column of ids.")] = "id",
    destination: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write one bitmap file for each segment, and none.roaring for none."),
    ] = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Split an audience by segment: how many of it are in each; duplicates count once."""
    snapshot, version = _open(address, cache)
    if snapshot.ids is None:
        ids = segments.read_audience(audience, id_column, drop_duplicates=True, kind=snapshot.kind)
        unknown = 0
    else:
        if destination is not None:
            raise SegmentError("text ids have no bitmaps of their own; leave out --out")
        ids, unknown = segments.find_audience(audience, id_column, snapshot.ids)
    parts = snapshot.classify(ids)
    if destination is not None:
        with files.os_errors("write bitmaps there", destination):
            destination.mkdir(parents=True, exist_ok=True)
        for name, part in parts.items():
            part.to_file(destination / f"{name or '.none'}.roaring".lstrip("."))
    sizes = {name: len(part) for name, part in parts.items() if name is not None}
    nowhere = len(parts[None]) + unknown
    if as_json:
        answer_json({"version": version, "audience": len(ids) + unknown, "segments": sizes, "in_none": nowhere})
        return
    typer.echo("\n".join(f"{name}\t{size}" for name, size in {**sizes, NO_SEGMENT: nowhere}.items()))


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "capline segments members segments/today active --limit 20\n\n"
    "capline segments members segments/today active --after 1007\n\n"
    "capline segments members segments/today --expression '(active | new) - churned'",
)
def members(
    address: Address,
    segment: Annotated[
        str | None,
        typer.Argument(metavar="SEGMENT", help="A segment's name.", show_default=False),
    ] = None,
    expression: Annotated[
        str | None,
        typer.Option(help="Instead of a name: segments with |, &, - and brackets. Write a space before each '-'."),
    ] = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Only ids above this one: the next page.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many ids.")] = 1000,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the ids of a segment, or of an expression, in ascending order, one page at a time."""
    if (segment is None) == (expression is None):
        raise SegmentError("name a segment or give an --expression, one of the two")
    snapshot, version = _open(address, cache)
    cursor = None if after is None else _id(snapshot, after)
    chosen = _choose(snapshot, segment, expression)
    page = snapshot.page(chosen, cursor, limit)
    following = page[-1] if page and snapshot.page(chosen, page[-1], 1) else None
    if as_json:
        answer_json({"version": version, "cardinality": len(chosen), "ids": page, "next": following})
        return
    if page:
        typer.echo("\n".join(map(printable, page)))
    if following is not None:
        note.print(f"{len(chosen):,} in all; the next page: --after {plain(following)}", style="dim")


def _choose(snapshot: Snapshot, segment: str | None, expression: str | None) -> IdSet:
    if expression is not None:
        return snapshot.evaluate(expression)
    snapshot.cardinality(segment or "")
    return snapshot.sets[segment or ""]


def _open(address: str, cache: Path | None) -> tuple[Snapshot, str]:
    """A snapshot to ask, and its version: one that was verified here once is not read through again."""
    if cache is not None:
        return segments.fetch_snapshot(address, cache)
    with tempfile.TemporaryDirectory(prefix="capline-segments-") as fetched:
        # Its files are mapped, so they last as long as the snapshot.
        return segments.fetch_snapshot(address, fetched)


def _id(snapshot: Snapshot, text: str) -> int | str:
    if snapshot.kind == Kind.TEXT:
        return text
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_ID):
        raise SegmentError(f"id {text[:40]!r} is not a number from 0 to {segments.set_type(snapshot.kind).largest}")
    return int(text)


def _facts(manifest: Manifest) -> dict[str, object]:
    ids, size_bytes = _totals(manifest)
    return {
        "version": manifest.version,
        "created": instant_text(manifest.created_us),
        "created_us": manifest.created_us,
        "ids": manifest.ids,
        "exclusive": manifest.exclusive,
        "partial": manifest.partial,
        "cardinality": ids,
        "bytes": size_bytes,
        "segments": manifest.segments,
    }


def _totals(manifest: Manifest) -> tuple[int, int]:
    return sum(each.cardinality for each in manifest.segments), sum(each.bytes for each in manifest.files())


def _print_manifest(directory: Path, manifest: Manifest) -> None:
    out.print(f"{directory}: version {manifest.version}, created {instant_text(manifest.created_us)}", markup=False)
    table = Table("segment", box=None, header_style="bold")
    for title in ("ids", "bytes", "sha-256"):
        table.add_column(title, justify="right")
    for each in manifest.segments:
        name = each.name if each.exclusive else f"{each.name} (may overlap)"
        table.add_row(name, f"{each.cardinality:,}", f"{each.bytes:,}", each.sha256[:12])
    ids, size_bytes = _totals(manifest)
    table.add_row("all", f"{ids:,}", f"{size_bytes:,}", "", style="bold")
    _print_table(table)


def _print_table(table: Table) -> None:
    # Through a pipe, rich takes the width for 80 and would cut the words; machines and pagers want them whole.
    out.print(table, width=max(out.width, 160), crop=False)
