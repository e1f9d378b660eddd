"""Format version 2: kinds of ids, overlapping sets, partial builds and merges, and version 1 still read."""

import hashlib
import struct
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.segment import rows_of
from tests.profiles import size

from capline.model.errors import InvalidTypeError, SegmentError
from capline.segment import (
    IdSet,
    IdSet64,
    Snapshot,
    build_segments,
    load_partial,
    load_snapshot,
    merge_partials,
    read_audience,
    read_manifest,
    read_rows,
    read_text_rows,
    write_snapshot,
)
from capline.segment.seal import seal

LARGEST = (1 << 64) - 1
EDGES = [0, 1, (1 << 32) - 1, 1 << 32, (1 << 48) + 5, (1 << 63) - 1, 1 << 63, LARGEST]
arrow: Any = pa
parquet: Any = pq


class TestUint64:
    wide = Snapshot({"a": IdSet64([0, 1 << 32, LARGEST]), "b": IdSet64([1, 1 << 63])}, "v1")

    def test_answers(self, tmp_path: Path) -> None:
        write_snapshot(self.wide, tmp_path / "one")
        assert read_manifest(tmp_path / "one").ids == "uint64"
        held = load_snapshot(tmp_path / "one")
        assert dict(held.sets) == dict(self.wide.sets)
        for snapshot in (self.wide, held):
            assert [snapshot.segment_of(one) for one in EDGES] == ["a", "b", None, "a", None, None, "b", "a"]
            for repeats in (1, 100):
                codes = snapshot.codes(np.array(EDGES * repeats, dtype=np.uint64))
                assert codes.tolist() == [1, 2, 0, 1, 0, 0, 2, 1] * repeats
            parts = snapshot.classify(IdSet64(EDGES))
            assert [list(ids) for ids in parts.values()] == [
                [0, 1 << 32, LARGEST],
                [1, 1 << 63],
                [(1 << 32) - 1, (1 << 48) + 5, (1 << 63) - 1],
            ]
            assert snapshot.members("a", after=0) == [1 << 32, LARGEST]
            assert snapshot.members("a", after=LARGEST) == []
            assert list(snapshot.evaluate("a | b")) == sorted([0, 1 << 32, LARGEST, 1, 1 << 63])
        for bad in (-1, 1 << 64):
            with pytest.raises(SegmentError, match=f"id {bad} is not 0 to {LARGEST}"):
                held.segment_of(bad)
        with pytest.raises(InvalidTypeError, match="do not mix"):
            held.classify(IdSet([1]))

    def test_kinds_do_not_mix(self) -> None:
        with pytest.raises(SegmentError, match="sets of uint32 and of uint64 ids; a snapshot has one kind"):
            Snapshot({"a": IdSet([1]), "b": IdSet64([2])})
        assert IdSet([1]) != IdSet64([1])

    @given(st.sets(st.integers(0, LARGEST) | st.sampled_from(EDGES), max_size=50), st.binary(max_size=3))
    def test_any_set_comes_back(self, ids: set[int], junk: bytes) -> None:
        held = IdSet64(ids)
        assert IdSet64.from_bytes(held.to_bytes()) == held
        assert set(held.to_array().tolist()) == ids
        if junk:
            with pytest.raises(SegmentError, match="not one whole bitmap"):
                IdSet64.from_bytes(held.to_bytes() + junk)

    def test_sources(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("id,segment\n" + "".join(f"{one},x\n" for one in EDGES))
        parquet.write_table(
            arrow.table({"id": arrow.array(EDGES, arrow.uint64()), "segment": ["x"] * len(EDGES)}),
            tmp_path / "a.parquet",
        )
        for name in ("a.csv", "a.parquet"):
            built = build_segments(read_rows(tmp_path / name, kind="uint64"), kind="uint64")
            assert built == {"x": IdSet64(EDGES)}
            assert read_audience(tmp_path / name, kind="uint64") == IdSet64(EDGES)
            with pytest.raises(SegmentError, match=r"row [48]: id [0-9]+ is above 4294967295"):
                list(read_rows(tmp_path / name))

    @pytest.mark.parametrize(
        ("bad", "why"),
        [
            ("18446744073709551616", "is above 18446744073709551615, the largest id"),
            ("99999999999999999999", "is above 18446744073709551615"),
            ("000000000000000000001", "is above 18446744073709551615"),
            ("-1", "-1 is negative; ids are 0 to 18446744073709551615"),
            ("1.0", "is not written as a whole number"),
            ("", "is empty; every row needs an id"),
            ("x", "'x' is not a number"),
        ],
    )
    def test_bad_ids(self, tmp_path: Path, bad: str, why: str) -> None:
        (tmp_path / "a.csv").write_text(f"id,segment\n7,x\n{bad},x\n")
        with pytest.raises(SegmentError, match=f"row 2: id .*{why}"):
            list(read_rows(tmp_path / "a.csv", kind="uint64"))

    @pytest.mark.parametrize(
        ("values", "why"), [([1, -5], "row 2: id -5 is negative"), ([1, None], "row 2: id is null")]
    )
    def test_bad_parquet(self, tmp_path: Path, values: list[int | None], why: str) -> None:
        table = arrow.table({"id": arrow.array(values, arrow.int64()), "segment": ["x", "x"]})
        parquet.write_table(table, tmp_path / "a.parquet")
        for kind in ("uint32", "uint64"):
            with pytest.raises(SegmentError, match=why):
                list(read_rows(tmp_path / "a.parquet", kind=kind))


class TestText:
    @pytest.mark.parametrize(
        ("column", "why"),
        [
            (arrow.array(["a", None]), "row 2: id is null"),
            (arrow.array(["a", ""]), "row 2: id is empty"),
            (arrow.array(["a", "x" * 513]), "row 2: id is longer than 512 bytes"),
            (arrow.array([1, 2]), "column 'id' holds int64; text ids are stored as text"),
            (arrow.array([b"a", b"\xff"]).cast(arrow.binary()), "column 'id' holds binary; text ids"),
        ],
    )
    def test_bad_columns(self, tmp_path: Path, column: Any, why: str) -> None:
        parquet.write_table(arrow.table({"id": column, "segment": ["x", "x"]}), tmp_path / "a.parquet")
        with pytest.raises(SegmentError, match=why):
            list(read_text_rows(tmp_path / "a.parquet"))

    def test_columns_of_every_text_type(self, tmp_path: Path) -> None:
        for kind in (arrow.string(), arrow.large_string(), arrow.dictionary(arrow.int32(), arrow.string())):
            column = arrow.array(["b", "aa", "cc", "é"]).cast(kind)
            parquet.write_table(arrow.table({"id": column, "segment": ["x"] * 4}), tmp_path / "a.parquet")
            (batch,) = read_text_rows(tmp_path / "a.parquet")
            told = {
                cell.decode(): place
                for group in batch.groups
                for place, cell in zip(group.places.tolist(), group.cells.tolist(), strict=True)
            }
            assert told == {"b": 0, "aa": 1, "cc": 2, "é": 3}


class TestOverlapping:
    sets: ClassVar = {"new": IdSet([1, 2]), "old": IdSet([3]), "vip": IdSet([2, 3, 9])}

    def test_declared_sets_may_share_ids(self, tmp_path: Path) -> None:
        snapshot = Snapshot(self.sets, "v1", overlapping=["vip"])
        manifest = write_snapshot(snapshot, tmp_path / "one")
        assert (manifest.exclusive, manifest.union) == (False, 3)
        assert manifest.pairs == ((0, 1, 0), (0, 2, 1), (1, 2, 1))
        held = load_snapshot(tmp_path / "one")
        assert (held.names, held.overlapping) == (("new", "old"), ("vip",))
        assert [held.segment_of(one) for one in (2, 3, 9)] == ["new", "old", None]
        assert [held.segments_of(one) for one in (2, 9, 8)] == [("new", "vip"), ("vip",), ()]
        assert held.codes(np.array([2, 3, 9])).tolist() == [1, 2, 0]
        assert list(held.classify(IdSet([2, 9]))) == ["new", "old", None]
        assert held.overlap("new", "vip") == 1
        assert held.evaluate("(new | old) & vip") == IdSet([2, 3])

    def test_undeclared_ones_may_not(self) -> None:
        with pytest.raises(SegmentError, match=r"2 ids are in two segments or more: 2 \(new and vip\)"):
            Snapshot(self.sets)
        with pytest.raises(SegmentError, match="'gold' may overlap, and is no segment"):
            Snapshot(self.sets, overlapping=["gold"])

    def test_building(self) -> None:
        rows = [(1, "new"), (1, "vip"), (2, "old"), (2, "vip")]
        built = build_segments(rows_of(rows), overlapping=["vip", "holdout"])
        assert list(built.items()) == [
            ("new", IdSet([1])),
            ("old", IdSet([2])),
            ("holdout", IdSet()),
            ("vip", IdSet([1, 2])),
        ]
        settled = build_segments(rows_of([*rows, (2, "new")]), ["old", "new"], overlapping=["vip"])
        assert settled == {"old": IdSet([2]), "new": IdSet([1]), "vip": IdSet([1, 2])}
        with pytest.raises(SegmentError, match=r"1 id is in two segments or more: 2 \(new and old\)"):
            build_segments(rows_of([*rows, (2, "new")]), overlapping=["vip"])
        with pytest.raises(SegmentError, match="'vip' may overlap, so it has no place in the order"):
            build_segments(rows_of(rows), ["old", "new", "vip"], overlapping=["vip"])

    def test_many_sets_have_no_pairs(self, tmp_path: Path) -> None:
        many = Snapshot({f"s{n:02}": IdSet([n]) for n in range(33)})
        assert write_snapshot(many, tmp_path / "one").pairs == ()
        assert load_snapshot(tmp_path / "one").names == many.names


class TestPartial:
    def part(self, path: Path, rows: list[tuple[int, str]], kind: str = "uint32") -> Path:
        sets = build_segments(rows_of(rows, kind=kind), partial=True, overlapping=["vip"], kind=kind)
        write_snapshot(Snapshot.verified(sets, None, None, overlapping=["vip"]), path, partial=True)
        return path

    def test_nobody_serves_one(self, tmp_path: Path) -> None:
        path = self.part(tmp_path / "one", [(1, "new"), (1, "old")])
        for trust in ("nothing", "stamp"):
            with pytest.raises(SegmentError, match="a partial build cannot be served; unite the parts"):
                load_snapshot(path, trust=trust)
        assert dict(load_partial(path).sets) == {"new": IdSet([1]), "old": IdSet([1]), "vip": IdSet()}

    def test_disjointness_is_proven_again(self, tmp_path: Path) -> None:
        parts = [
            self.part(tmp_path / "0", [(1, "new"), (5, "vip")]),
            self.part(tmp_path / "1", [(1, "old"), (2, "new"), (1, "vip")]),
        ]
        with pytest.raises(SegmentError, match=r"1 id is in two segments or more: 1 \(new and old\)"):
            merge_partials(parts)
        merged = merge_partials(parts, ["old", "new", "lost"], "v1")
        assert dict(merged.sets) == {"old": IdSet([1]), "new": IdSet([2]), "lost": IdSet(), "vip": IdSet([1, 5])}
        assert merged.overlapping == ("vip",)

    def test_parts_that_do_not_fit(self, tmp_path: Path) -> None:
        part = self.part(tmp_path / "0", [(1, "new")])
        with pytest.raises(SegmentError, match="its ids are uint64, and those of the parts before it uint32"):
            merge_partials([part, self.part(tmp_path / "1", [(1, "new")], "uint64")])
        write_snapshot(Snapshot({"vip": IdSet([1])}), tmp_path / "2")
        with pytest.raises(SegmentError, match="'vip' may overlap in some of the parts and not in others"):
            merge_partials([part, tmp_path / "2"])
        with pytest.raises(SegmentError, match="segment 'new' is not in the order old"):
            merge_partials([part], ["old"])
        with pytest.raises(SegmentError, match="no partial snapshot named"):
            merge_partials([])

    @pytest.mark.parametrize("kind", ["uint32", "uint64"])
    @given(
        st.lists(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc")), min_size=1), min_size=1, max_size=4)
    )
    @settings(max_examples=size(8, 30), deadline=None)
    def test_merged_parts_equal_one_build(
        self, tmp_path_factory: pytest.TempPathFactory, kind: str, parts: list[list[tuple[int, str]]]
    ) -> None:
        home = tmp_path_factory.mktemp("parts")
        paths: list[Path] = []
        for place, rows in enumerate(parts):
            sets = build_segments(rows_of(rows, kind=kind), partial=True, kind=kind)
            write_snapshot(Snapshot.verified(sets, None, None), home / f"{place}", partial=True)
            paths.append(home / f"{place}")
        every = [row for rows in parts for row in rows]
        whole = build_segments(rows_of(every, kind=kind), "cab", kind=kind)
        assert dict(merge_partials(paths, "cab").sets) == whole


def test_format_version_1_is_read(tmp_path: Path) -> None:
    class Old(msgspec.Struct):
        format: str
        format_version: int
        version: str
        created_us: int
        exclusive: bool
        segments: list[dict[str, object]]

    def write(exclusive: bool) -> None:
        data = IdSet([1, 2]).to_bytes()
        (tmp_path / "new.roaring").write_bytes(data)
        entry: dict[str, object] = {"name": "new", "file": "new.roaring", "cardinality": 2, "bytes": len(data)}
        entry["sha256"] = hashlib.sha256(data).hexdigest()
        old = Old("capline-segments", 1, "v1", 5, exclusive, [entry])
        (tmp_path / "manifest.json").write_bytes(seal(old))

    write(exclusive=True)
    held = load_snapshot(tmp_path)
    assert (held.version, held.names, dict(held.sets)) == ("v1", ("new",), {"new": IdSet([1, 2])})
    write(exclusive=False)
    with pytest.raises(SegmentError, match="format version 1 cannot rule out"):
        load_snapshot(tmp_path)


@pytest.mark.parametrize(
    ("runs", "claimed"),
    [
        ([(5, 0xFFFF)], 1),  # beyond the container's end
        ([(0, 100), (50, 100)], 2),
        ([(500, 100), (50, 100)], 2),
        ([(0, 1)], 0xFFFF),  # more runs than there are
        ([(0, 0xFFFF)] * 0xFFFF, 0xFFFF),  # 65,535 times every id: 2^32 of them
    ],
)
def test_runs_that_cannot_be_are_no_bitmap(runs: list[tuple[int, int]], claimed: int) -> None:
    head = struct.pack("<HHBHHH", 12347, 0, 1, 0, 0xFFFF, claimed)
    good = IdSet.from_bytes(struct.pack("<HHBHHHHH", 12347, 0, 1, 0, 0xFFFF, 1, 0, 0xFFFF))
    assert len(good) == 1 << 16
    with pytest.raises(SegmentError, match="not one whole bitmap in roaring's portable format"):
        IdSet.from_bytes(head + b"".join(struct.pack("<HH", *run) for run in runs))


def test_a_run_that_claims_everything_costs_nothing() -> None:
    # 65,536 containers, each one run of 65,536 ids: every id there is, in some hundred kilobytes.
    flags = b"\xff" * 8192
    cards = b"".join(struct.pack("<HH", key, 0xFFFF) for key in range(1 << 16))
    first = 4 + len(flags) + len(cards) + 4 * (1 << 16)
    offsets = b"".join(struct.pack("<I", first + 6 * key) for key in range(1 << 16))
    data = struct.pack("<HH", 12347, 0xFFFF) + flags + cards + offsets + struct.pack("<HHH", 1, 0, 0xFFFF) * (1 << 16)
    held = IdSet.from_bytes(data)
    assert len(held) == 1 << 32
    snapshot = Snapshot({"all": held})
    assert snapshot.segment_of(12345) == "all"
    assert snapshot.members("all", limit=3) == [0, 1, 2]
    assert len(snapshot.classify(IdSet([5, 7]))["all"]) == 2
    assert snapshot.codes(np.array([0, 1 << 31, (1 << 32) - 1] * 100)).tolist() == [1] * 300
