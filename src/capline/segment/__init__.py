"""Segments: named, disjoint sets of uint32 ids, held as roaring bitmaps and kept as verified snapshots.

    source       rows (id, segment) and audiences out of CSV, Parquet and bitmap files
    build        rows to disjoint sets: offenders listed, or settled by a stated order
    snapshot     the immutable object that answers, and its directory on disk
    expression   `(active | new) - churned` over the sets of a snapshot
    publish      a snapshot to a directory or an object store: immutable objects, and one pointer to what is served
    watch        a publication that is followed: fetched, proven, and swapped in by one reference
    idset        the one set type that the other layers see; roaring stays behind it

Importing this package loads nothing heavy: each name below brings its module when it is first used, and a missing extra
is reported as what to install.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from capline.model.errors import SegmentError

if TYPE_CHECKING:
    from capline.segment.build import build_segments
    from capline.segment.cache import Bounds
    from capline.segment.expression import Expression, parse_expression
    from capline.segment.idset import IdSet
    from capline.segment.manifest import Manifest, SegmentEntry, read_manifest
    from capline.segment.publish import Publisher
    from capline.segment.snapshot import Snapshot, load_snapshot
    from capline.segment.source import count_rows, expand, read_audience, read_rows
    from capline.segment.watch import SegmentWatch, WatchStatus
    from capline.segment.write import write_snapshot

__all__ = [
    "Bounds",
    "Expression",
    "IdSet",
    "Manifest",
    "Publisher",
    "SegmentEntry",
    "SegmentWatch",
    "Snapshot",
    "WatchStatus",
    "build_segments",
    "count_rows",
    "expand",
    "load_snapshot",
    "parse_expression",
    "read_audience",
    "read_manifest",
    "read_rows",
    "write_snapshot",
]

_HOMES = {
    "Bounds": "cache",
    "Expression": "expression",
    "IdSet": "idset",
    "Manifest": "manifest",
    "Publisher": "publish",
    "SegmentEntry": "manifest",
    "SegmentWatch": "watch",
    "Snapshot": "snapshot",
    "WatchStatus": "watch",
    "build_segments": "build",
    "count_rows": "source",
    "expand": "source",
    "load_snapshot": "snapshot",
    "parse_expression": "expression",
    "read_audience": "source",
    "read_manifest": "manifest",
    "read_rows": "source",
    "write_snapshot": "write",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("pyroaring", "pyarrow"):
            raise
        raise SegmentError(f"segments need {error.name}: pip install 'capline[segments]'") from None
    globals()[name] = value
    return value
