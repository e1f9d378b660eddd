"""Segments: named sets of ids, held as roaring bitmaps and kept as verified snapshots.

    source       rows (id, segment) and audiences out of CSV, Parquet and bitmap files
    build        rows to sets that are verified to be disjoint: offenders are listed, or resolved by a stated order
    rules        conditions over the events of users, and `by_rules`, which decides them; `events` reads these
    merge        partial builds to one
    snapshot     the immutable sets in memory, and the questions they answer
    moves        who moved between two of them
    write        its directory on disk; `manifest` lists its files
    load         reads it back: verified; or, once `verified` on this machine, mapped into memory (`frozen`)
    dictionary   text ids to numbers, for good; idfile is one file of it
    expression   `(active | new) - churned` over the sets of a snapshot
    publish      uploads a snapshot to a directory or an object store: immutable objects, and one pointer
    extends      text ids keep their numbers from one publication to the next
    watch        follows a publication: fetches, verifies, and swaps one reference
    follow       opens what is served: a publication or a directory
    idset        the set types that the other layers see; roaring stays behind them

Importing this package loads nothing heavy: each name below brings its module when it is first used, and a missing extra
is reported as what to install.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.model.errors import SegmentError
from capline.support.lazy import lazy_names

if TYPE_CHECKING:
    from capline.segment.build.build import build_segments as build_segments
    from capline.segment.build.build import change_segments as change_segments
    from capline.segment.build.build import number_rows as number_rows
    from capline.segment.build.by_rules import RuleBuild as RuleBuild
    from capline.segment.build.merge import merge_partials as merge_partials
    from capline.segment.build.rules import read_rules as read_rules
    from capline.segment.build.source import count_rows as count_rows
    from capline.segment.build.source import expand as expand
    from capline.segment.build.source import find_audience as find_audience
    from capline.segment.build.source import read_audience as read_audience
    from capline.segment.build.source import read_ids as read_ids
    from capline.segment.build.source import read_rows as read_rows
    from capline.segment.build.source import read_text_rows as read_text_rows
    from capline.segment.dictionary.dictionary import Dictionary as Dictionary
    from capline.segment.dictionary.dictionary import DictionaryBuilder as DictionaryBuilder
    from capline.segment.dictionary.dictionary import keep as keep
    from capline.segment.manifest import Manifest as Manifest
    from capline.segment.manifest import SegmentEntry as SegmentEntry
    from capline.segment.manifest import read_manifest as read_manifest
    from capline.segment.publish.cache import Bounds as Bounds
    from capline.segment.publish.follow import FixedSegments as FixedSegments
    from capline.segment.publish.follow import fetch_snapshot as fetch_snapshot
    from capline.segment.publish.follow import is_publication as is_publication
    from capline.segment.publish.follow import open_segments as open_segments
    from capline.segment.publish.publish import Publisher as Publisher
    from capline.segment.publish.watch import SegmentWatch as SegmentWatch
    from capline.segment.publish.watch import WatchStatus as WatchStatus
    from capline.segment.sets.expression import Expression as Expression
    from capline.segment.sets.expression import parse_expression as parse_expression
    from capline.segment.sets.idset import IdSet as IdSet
    from capline.segment.sets.idset import IdSet64 as IdSet64
    from capline.segment.sets.idset import set_type as set_type
    from capline.segment.snapshot.load import load_partial as load_partial
    from capline.segment.snapshot.load import load_snapshot as load_snapshot
    from capline.segment.snapshot.moves import Move as Move
    from capline.segment.snapshot.moves import moves as moves
    from capline.segment.snapshot.snapshot import Snapshot as Snapshot
    from capline.segment.snapshot.write import write_snapshot as write_snapshot
else:
    _load, __all__, __dir__ = lazy_names(
        __name__,
        {
            "capline.segment.build.build": ("build_segments", "change_segments", "number_rows"),
            "capline.segment.build.by_rules": ("RuleBuild",),
            "capline.segment.build.merge": ("merge_partials",),
            "capline.segment.build.rules": ("read_rules",),
            "capline.segment.build.source": (
                "count_rows",
                "expand",
                "find_audience",
                "read_audience",
                "read_ids",
                "read_rows",
                "read_text_rows",
            ),
            "capline.segment.dictionary.dictionary": ("Dictionary", "DictionaryBuilder", "keep"),
            "capline.segment.manifest": ("Manifest", "SegmentEntry", "read_manifest"),
            "capline.segment.publish.cache": ("Bounds",),
            "capline.segment.publish.follow": ("FixedSegments", "fetch_snapshot", "is_publication", "open_segments"),
            "capline.segment.publish.publish": ("Publisher",),
            "capline.segment.publish.watch": ("SegmentWatch", "WatchStatus"),
            "capline.segment.sets.expression": ("Expression", "parse_expression"),
            "capline.segment.sets.idset": ("IdSet", "IdSet64", "set_type"),
            "capline.segment.snapshot.load": ("load_partial", "load_snapshot"),
            "capline.segment.snapshot.moves": ("Move", "moves"),
            "capline.segment.snapshot.snapshot": ("Snapshot",),
            "capline.segment.snapshot.write": ("write_snapshot",),
        },
    )

    def __getattr__(name: str) -> object:
        try:
            return _load(name)
        except ModuleNotFoundError as error:
            if error.name not in ("pyroaring", "pyarrow", "numpy"):
                raise
            raise SegmentError(f'segments need {error.name}: pip install "capline[segments]"') from None
