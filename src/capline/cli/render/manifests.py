"""What is answered with the manifest of a snapshot: its segments and their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from capline.cli.render.console import NO_SEGMENT, Answer, out, table
from capline.support.instant import instant_text

if TYPE_CHECKING:
    from rich.table import Table

    from capline.segment import Move
    from capline.segment.manifest import Manifest


def manifest_answer(
    directory: Path, manifest: Manifest, since: str | None = None, moved: Sequence[Move] = (), **more: object
) -> Answer:
    """The manifest, and who moved since another version; in JSON with these further facts."""
    if since is not None:
        moves = [{"from": move.before, "to": move.after, "ids": move.ids} for move in moved]
        more |= {"since": since, "moved": moves}
    shown = table("segment", numbers=("ids", "bytes", "sha-256"))
    for each in manifest.segments:
        name = each.name if each.exclusive else f"{each.name} (may overlap)"
        shown.add_row(name, f"{each.cardinality:,}", f"{each.bytes:,}", each.sha256[:12])
    ids, size_bytes = totals(manifest)
    shown.add_row("all", f"{ids:,}", f"{size_bytes:,}", "", style="bold")

    def lines() -> None:
        created = instant_text(manifest.created_us, "seconds")
        out.print(f"{directory}: version {manifest.version}, created {created}", markup=False)
        print_table(shown)
        if manifest.exclusive and not manifest.partial:
            out.print("nobody is in two of them", markup=False)
        if since is not None:
            out.print(f"moved since version {since}: {sum(move.ids for move in moved):,}", markup=False)
            if moved:
                went = table("from", "to", numbers=("ids",))
                for move in moved:
                    went.add_row(move.before or NO_SEGMENT, move.after or NO_SEGMENT, f"{move.ids:,}")
                print_table(went)

    return Answer({"path": str(directory), **more, **manifest_facts(manifest)}, lines)


def manifest_facts(manifest: Manifest) -> dict[str, object]:
    """The manifest as JSON shows it."""
    ids, size_bytes = totals(manifest)
    return {
        "version": manifest.version,
        "created": instant_text(manifest.created_us, "seconds"),
        "created_us": manifest.created_us,
        "ids": manifest.ids,
        "exclusive": manifest.exclusive,
        "partial": manifest.partial,
        "cardinality": ids,
        "bytes": size_bytes,
        "segments": manifest.segments,
    }


def totals(manifest: Manifest) -> tuple[int, int]:
    """Ids and bytes of all its segments."""
    return sum(each.cardinality for each in manifest.segments), sum(each.bytes for each in manifest.files())


def print_table(table: Table) -> None:
    """Print a table at full width: rich would cut it at 80 columns in a pipe."""
    out.print(table, width=max(out.width, 160), crop=False)
