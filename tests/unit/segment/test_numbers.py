"""Numbers in sets that no text has: found when the snapshot is loaded, not when somebody asks for the text."""

from pathlib import Path

import msgspec
import pytest
from tests.kit.segment import text_rows_of
from tests.unit.segment.test_snapshot import entry

from capline.model.errors import SegmentError
from capline.segment import (
    IdSet,
    Snapshot,
    build_segments,
    keep,
    load_snapshot,
    number_rows,
    read_manifest,
    write_snapshot,
)
from capline.segment.seal import seal

TEXTS = ["x", "yy", "zzz"]


@pytest.mark.parametrize("last", [2, 3, 4, 5])
def test_a_number_that_no_text_has_is_refused_from_the_first_one_on(tmp_path: Path, last: int) -> None:
    with keep(tmp_path / "ids") as builder:
        sets = build_segments(number_rows(text_rows_of([(text, "a") for text in TEXTS]), builder))
        write_snapshot(Snapshot(sets, ids=builder.dictionary()), tmp_path / "one")
    data = IdSet([0, 1, last]).to_bytes()
    (tmp_path / "one" / "a.roaring").write_bytes(data)
    manifest = msgspec.structs.replace(read_manifest(tmp_path / "one"), segments=(entry("a", data, len(TEXTS)),))
    (tmp_path / "one" / "manifest.json").write_bytes(seal(manifest))
    if last < len(TEXTS):
        assert load_snapshot(tmp_path / "one").segment_of("zzz") == "a"
    else:
        with pytest.raises(SegmentError, match=f"segment 'a' has the number {last}, which no text has"):
            load_snapshot(tmp_path / "one")
