"""`capline segments show | list | contains | counts | classify | members`: what is in a snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capline import segment as segments
from capline.cli.commands.segments import publish
from capline.cli.input.declare import Commands
from capline.cli.render.console import NO_SEGMENT, Answer, note, plain, printable, table, warn
from capline.cli.render.manifests import manifest_answer, manifest_facts, print_table, totals
from capline.model.errors import SegmentError
from capline.segment import files
from capline.segment.manifest import MANIFEST, Manifest, read_manifest
from capline.support.instant import instant_text

if TYPE_CHECKING:  # they need the extra
    from capline.segment import Snapshot

app = Commands()

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A snapshot's directory.")]
Address = Annotated[str, typer.Argument(metavar="DIR|URL", help="A snapshot's directory, or a publication's address.")]
CacheOption = Annotated[
    Path | None, typer.Option("--cache", metavar="DIR", help="Keep fetched files here, for the next call.")
]


def _named(context: typer.Context, incomplete: str) -> list[str]:
    """The segments of the snapshot that begin so, for a shell that completes."""
    try:
        names = [entry.name for entry in read_manifest(context.params["address"]).segments]
    except (KeyError, SegmentError):
        return []
    return [name for name in names if name.startswith(incomplete)]


_LONGEST_ID = 20
"""Digits of the largest 64-bit number: bounds the work of int()."""


@app.answers("capline segments show segments/today", "capline segments show segments/today --json")
def _show(directory: Directory) -> Answer:
    """Show the segments of a snapshot and their sizes. Verifies every file."""
    manifest = read_manifest(directory)
    (segments.load_partial if manifest.partial else segments.load_snapshot)(directory)
    return manifest_answer(directory, manifest, verified=True)


@app.answers("capline segments list segments", "capline segments list s3://bucket/segments")
def _list(
    address: Annotated[
        str, typer.Argument(metavar="DIR|URL", help="A directory of snapshots, or a publication's address.")
    ],
) -> Answer:
    """List the snapshots in a directory, or the published versions at an address, oldest first.

    Reads only manifests.
    """
    if segments.is_publication(address):
        return publish.versions_answer(address)
    return _snapshots(Path(address))


def _snapshots(directory: Path) -> Answer:
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
    # Damaged ones come last: their time is not to be trusted.
    found.sort(key=lambda each: (0, each[1].created_us) if isinstance(each[1], Manifest) else (1, 0))
    facts = [
        {"path": str(path), **(manifest_facts(each) if isinstance(each, Manifest) else {"error": str(each)})}
        for path, each in found
    ]
    if not found:
        return Answer(facts, lambda: warn(f"no snapshot in {directory}"))
    damaged: list[str] = []
    shown = table("snapshot", "version", "created", numbers=("segments", "ids", "bytes"))
    for path, each in found:
        if isinstance(each, Manifest):
            ids, size_bytes = totals(each)
            created = instant_text(each.created_us, "seconds")
            shown.add_row(
                plain(path.name), each.version, created, f"{len(each.segments)}", f"{ids:,}", f"{size_bytes:,}"
            )
        else:
            shown.add_row(plain(path.name), "[red]damaged[/]", "", "", "", "")
            damaged.append(str(each))

    def lines() -> None:
        for fault in damaged:
            note.print(fault, style="red", markup=False, soft_wrap=True)
        print_table(shown)

    return Answer(facts, lines)


@app.answers(
    "capline segments contains segments/today 42 1007",
    "capline segments contains s3://bucket/segments 42 --cache /var/cache/capline",
)
def _contains(
    address: Address,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids to look up.")],
    cache: CacheOption = None,
) -> Answer:
    """Show the segment of each id, and its overlapping sets if the snapshot has any."""
    snapshot, version = segments.fetch_snapshot(address, cache)
    answers: list[dict[str, Any]] = []
    for text in ids:
        number = _id(snapshot, text)
        answers.append({"id": number, "segment": snapshot.segment_of(number)})
        if snapshot.overlapping:
            answers[-1]["sets"] = snapshot.segments_of(number)
    rows = ((printable(each["id"]), each["segment"] or NO_SEGMENT, ",".join(each.get("sets", ()))) for each in answers)
    return _lines({"version": version, "ids": answers}, ("\t".join(row).rstrip("\t") for row in rows))


@app.answers(
    "capline segments counts segments/today",
    "capline segments counts segments/today --expression '(active | new) - churned'",
)
def _counts(
    address: Address,
    expression: Annotated[
        str | None,
        typer.Option(help="Count this expression: segments with |, &, - and brackets. Write a space before each '-'."),
    ] = None,
    cache: CacheOption = None,
) -> Answer:
    """Count the ids of each segment and those that two share, or those of an expression."""
    snapshot, version = segments.fetch_snapshot(address, cache)
    if expression is not None:
        found = len(snapshot.evaluate(expression))
        return _lines({"version": version, "expression": expression, "cardinality": found}, [f"{found}"])
    sizes = {name: len(ids) for name, ids in snapshot.sets.items()}
    # Exclusive segments share no ids, so only those that may overlap are counted.
    shared = [
        (first, second, snapshot.overlap(first, second))
        for place, second in enumerate(snapshot.sets)
        for first in list(snapshot.sets)[:place]
        if first in snapshot.overlapping or second in snapshot.overlapping
    ]
    pairs = [{"sets": [first, second], "cardinality": both} for first, second, both in shared]
    lines = [f"{name}\t{size}" for name, size in sizes.items()]
    lines += [f"{first} & {second}\t{both}" for first, second, both in shared]
    return _lines({"version": version, "cardinalities": sizes, "shared": pairs}, lines)


@app.answers(
    "capline segments classify segments/today audience.parquet",
    "capline segments classify segments/today audience.roaring --out parts",
)
def _classify(
    address: Address,
    audience: Annotated[list[str], typer.Argument(metavar="FILE...", help="Ids: .csv, .csv.gz, .parquet or .roaring.")],
    id_column: Annotated[str, typer.Option(help="The column of ids.")] = "id",
    destination: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write a bitmap file for each segment; none.roaring has the rest."),
    ] = None,
    cache: CacheOption = None,
) -> Answer:
    """Count how many ids of an audience are in each segment. Duplicates count once."""
    snapshot, version = segments.fetch_snapshot(address, cache)
    if snapshot.ids is None:
        ids = segments.read_audience(audience, id_column, drop_duplicates=True, kind=snapshot.kind)
        unknown = 0
    else:
        if destination is not None:
            raise SegmentError("text ids have no bitmaps of their own; leave out --out")
        ids, unknown = segments.find_audience(audience, id_column, snapshot.ids)
    parts = snapshot.classify(ids)
    if destination is not None:
        if "none" in parts:
            raise SegmentError("a segment is called 'none', as the file of the ids in no segment is; leave out --out")
        with files.os_errors("write bitmaps there", destination):
            destination.mkdir(parents=True, exist_ok=True)
        for name, part in parts.items():
            part.to_file(destination / f"{name or '.none'}.roaring".lstrip("."))
    sizes = {name: len(part) for name, part in parts.items() if name is not None}
    nowhere = len(parts[None]) + unknown
    facts = {"version": version, "audience": len(ids) + unknown, "segments": sizes, "in_none": nowhere}
    return _lines(facts, (f"{name}\t{size}" for name, size in {**sizes, NO_SEGMENT: nowhere}.items()))


@app.answers(
    "capline segments members segments/today active --limit 20",
    "capline segments members segments/today active --after 1007",
    "capline segments members segments/today --expression '(active | new) - churned'",
)
def _members(
    address: Address,
    segment: Annotated[
        str | None, typer.Argument(metavar="SEGMENT", help="A segment's name.", autocompletion=_named)
    ] = None,
    expression: Annotated[
        str | None,
        typer.Option(help="An expression instead: segments with |, &, - and brackets. Write a space before each '-'."),
    ] = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Only ids above this one: the next page.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most ids to print.")] = 1000,
    cache: CacheOption = None,
) -> Answer:
    """Print the ids of a segment, or of an expression, in ascending order, one page at a time."""
    if (segment is None) == (expression is None):
        raise SegmentError("name a segment or give an --expression, one of the two")
    snapshot, version = segments.fetch_snapshot(address, cache)
    cursor = None if after is None else _id(snapshot, after)
    if segment is None:
        chosen = snapshot.evaluate(expression or "")
    else:
        snapshot.cardinality(segment)  # raises for one that is not there
        chosen = snapshot.sets[segment]
    page = snapshot.page(chosen, cursor, limit)
    following = page[-1] if page and snapshot.page(chosen, page[-1], 1) else None
    more = None
    if following is not None:
        more = f"{len(chosen):,} in all; the next page: --after {plain(following)}"
    facts = {"version": version, "cardinality": len(chosen), "ids": page, "next": following}
    return _lines(facts, map(printable, page), more)


def _lines(facts: object, lines: Iterable[str], more: str | None = None) -> Answer:
    """Lines without rich, which replaces tabs and is slow for a million of them."""

    def show() -> None:
        text = "\n".join(lines)
        if text:
            typer.echo(text)
        if more is not None:
            note.print(more, style="dim")

    return Answer(facts, show)


def _id(snapshot: Snapshot, text: str) -> int | str:
    if snapshot.kind == "text":
        return text
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_ID):
        raise SegmentError(f"id {text[:40]!r} is not a number from 0 to {segments.set_type(snapshot.kind).largest}")
    return int(text)
