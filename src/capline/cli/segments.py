"""`capline segments`: build a snapshot, look at it, and ask it.

Each command is one call into `capline.segment` and its answer, for people or (`--json`) for machines. What is wrong is
raised as a `CaplineError`, which `capline.cli.main` prints. `capline.segment` brings pyroaring and pyarrow when one
of its names is first used: `--help` does not wait for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from capline import segment as segments
from capline.cli import segments_publish
from capline.cli.common import JsonOption, answer_json, note, out
from capline.model.errors import SegmentError
from capline.segment.manifest import MANIFEST, Manifest, instant_text, read_manifest

if TYPE_CHECKING:
    from capline.segment import IdSet, Snapshot

__all__ = ["app"]

app = typer.Typer(
    name="segments",
    help="Build and ask [bold]segments[/]: named, disjoint sets of users.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
segments_publish.register(app)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A snapshot's directory.", show_default=False)]

_LONGEST_ID = 20
"""Digits of a 64-bit number: beyond it int() would only work hard to say the same."""


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "capline segments build users.csv --out segments/today\n\n"
    "capline segments build 'export/*.parquet' --out segments/today --first-wins new,active,churned",
)
def build(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Rows (id, segment): .csv, .csv.gz or .parquet; globs welcome.",
            show_default=False,
        ),
    ],
    destination: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="The directory to write the snapshot as.", show_default=False),
    ],
    id_column: Annotated[str, typer.Option(help="The column of ids, 0 to 4294967295.")] = "id",
    segment_column: Annotated[str, typer.Option(help="The column of segment names.")] = "segment",
    first_wins: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,...",
            help="Whoever is in two segments goes into the first of these; name them all. Without it that is an error.",
        ),
    ] = None,
    version: Annotated[str | None, typer.Option(help="A name for this state; the instant, if left out.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the snapshot that is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Build a snapshot of segments from files of rows, all or nothing."""
    order = None if first_wins is None else [name.strip() for name in first_wins.split(",")]
    looks = (
        SpinnerColumn(),
        TextColumn("reading rows"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*looks, console=note, transient=True, disable=as_json or not note.is_terminal) as progress:
        task = progress.add_task("", total=segments.count_rows(sources), rate="")

        def advance(rows: int) -> None:
            speed = progress.tasks[task].speed
            progress.update(task, completed=rows, rate=f"{speed:,.0f} rows/s" if speed else "")

        sets = segments.build_segments(segments.read_rows(sources, id_column, segment_column), order, advance)
    manifest = segments.write_snapshot(segments.Snapshot(sets, version), destination, replace=replace)
    if as_json:
        answer_json({"path": str(destination), **_facts(manifest)})
        return
    _print_manifest(destination, manifest)


@app.command(
    epilog="[bold]Examples[/]\n\ncapline segments show segments/today\n\ncapline segments show segments/today --json"
)
def show(directory: Directory, as_json: JsonOption = False) -> None:
    """Show a snapshot: its segments and sizes. Every file of it is verified on the way."""
    segments.load_snapshot(directory)
    manifest = read_manifest(directory)
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
    if segments_publish.is_published(place):
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
            table.add_row(path.name, each.version, created, f"{len(each.segments)}", f"{ids:,}", f"{size_bytes:,}")
        else:
            table.add_row(path.name, "[red]damaged[/]", "", "", "", "")
            note.print(str(each), style="red", markup=False, soft_wrap=True)
    _print_table(table)


@app.command(epilog="[bold]Examples[/]\n\ncapline segments contains segments/today 42 1007")
def contains(
    directory: Directory,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids to look up.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Say which segment each id is in."""
    numbers = [_number(text) for text in ids]
    snapshot = segments.load_snapshot(directory)
    answers = [(number, snapshot.segment_of(number)) for number in numbers]
    if as_json:
        answer_json({"version": snapshot.version, "ids": [{"id": one, "segment": name} for one, name in answers]})
        return
    # Not through rich, here and below: it turns tabs into blanks, and is slow for a million lines.
    typer.echo("\n".join(f"{number}\t{name or '-'}" for number, name in answers))


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "capline segments members segments/today active --limit 20\n\n"
    "capline segments members segments/today active --after 1007\n\n"
    "capline segments members segments/today --expression '(active | new) - churned'",
)
def members(
    directory: Directory,
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
    as_json: JsonOption = False,
) -> None:
    """Print the ids of a segment, or of an expression, in ascending order, one page at a time."""
    if (segment is None) == (expression is None):
        raise SegmentError("name a segment or give an --expression, one of the two")
    cursor = None if after is None else _number(after)
    snapshot = segments.load_snapshot(directory)
    chosen = _choose(snapshot, segment, expression)
    page = chosen.page(cursor, limit)
    following = page[-1] if page and chosen.page(page[-1], 1) else None
    if as_json:
        answer_json({"version": snapshot.version, "cardinality": len(chosen), "ids": page, "next": following})
        return
    if page:
        typer.echo("\n".join(map(str, page)))
    if following is not None:
        note.print(f"{len(chosen):,} in all; the next page: --after {following}", style="dim")


def _choose(snapshot: Snapshot, segment: str | None, expression: str | None) -> IdSet:
    if expression is not None:
        return snapshot.evaluate(expression)
    snapshot.cardinality(segment or "")
    return snapshot.sets[segment or ""]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_ID):
        raise SegmentError(f"id {text[:40]!r} is not a number from 0 to 4294967295")
    return int(text)


def _facts(manifest: Manifest) -> dict[str, object]:
    ids, size_bytes = _totals(manifest)
    return {
        "version": manifest.version,
        "created": instant_text(manifest.created_us),
        "created_us": manifest.created_us,
        "exclusive": manifest.exclusive,
        "cardinality": ids,
        "bytes": size_bytes,
        "segments": manifest.segments,
    }


def _totals(manifest: Manifest) -> tuple[int, int]:
    return sum(each.cardinality for each in manifest.segments), sum(each.bytes for each in manifest.segments)


def _print_manifest(directory: Path, manifest: Manifest) -> None:
    out.print(f"{directory}: version {manifest.version}, created {instant_text(manifest.created_us)}", markup=False)
    table = Table("segment", box=None, header_style="bold")
    for title in ("ids", "bytes", "sha-256"):
        table.add_column(title, justify="right")
    for each in manifest.segments:
        table.add_row(each.name, f"{each.cardinality:,}", f"{each.bytes:,}", each.sha256[:12])
    ids, size_bytes = _totals(manifest)
    table.add_row("all", f"{ids:,}", f"{size_bytes:,}", "", style="bold")
    _print_table(table)


def _print_table(table: Table) -> None:
    # Through a pipe, rich takes the width for 80 and would cut the words; machines and pagers want them whole.
    out.print(table, width=max(out.width, 160), crop=False)
