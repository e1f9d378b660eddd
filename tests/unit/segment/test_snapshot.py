"""Snapshots: what they answer, and that nothing but what was written is ever loaded."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.profiles import first

from capline.model.errors import InvalidTypeError, SegmentError, UnknownNameError
from capline.segment import IdSet, Snapshot, load_snapshot, read_manifest, write_snapshot
from capline.segment.manifest import DictionaryEntry, Manifest, SegmentEntry
from capline.segment.seal import seal
from capline.segment.sets import codes as codes_module
from capline.segment.sets.idset import IdArray
from capline.segment.snapshot import load as load_module
from capline.segment.snapshot import write as write_module

LARGEST = (1 << 32) - 1
SETS = {"new": IdSet([1, 2, LARGEST]), "active": IdSet([0, 7]), "gone": IdSet()}


@pytest.fixture
def snapshot() -> Snapshot:
    return Snapshot(SETS, "v1", created_us=1_740_830_400_000_000)


@pytest.fixture
def directory(tmp_path: Path, snapshot: Snapshot) -> Path:
    write_snapshot(snapshot, tmp_path / "one")
    return tmp_path / "one"


def rewrite(directory: Path, **changes: Any) -> None:
    """Change a manifest and seal it again: what only a faulty or hostile writer would do."""
    before = read_manifest(directory)
    values: dict[str, Any] = {field: getattr(before, field) for field in Manifest.__struct_fields__}
    (directory / "manifest.json").write_bytes(seal(Manifest(**{**values, **changes})))


def entry(name: str, data: bytes, cardinality: int, file: str | None = None) -> SegmentEntry:
    return SegmentEntry(
        name=name,
        file=file or f"{name}.roaring",
        cardinality=cardinality,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def file_of(directory: Path, name: str) -> Path:
    """The file of a segment: its name holds its hash."""
    return next(directory.glob(f"{name}-*.roaring"))


def hashed(name: str, ids: IdSet) -> str:
    return f"{name}-{hashlib.sha256(ids.to_bytes()).hexdigest()[:16]}.roaring"


class TestAnswers:
    def test_one_id(self, snapshot: Snapshot) -> None:
        assert [snapshot.segment_of(one) for one in (0, 1, 3, LARGEST)] == ["active", "new", None, "new"]
        assert snapshot.segment_of(np.uint32(7)) == "active"
        assert snapshot.contains("new", 1)
        assert not snapshot.contains("gone", 1)

    @pytest.mark.parametrize("bad", [-1, 1 << 32, 1 << 80])
    def test_an_id_out_of_range_is_in_no_segment_and_not_in_none(self, snapshot: Snapshot, bad: int) -> None:
        with pytest.raises(SegmentError, match=f"id {bad} is not 0 to 4294967295"):
            snapshot.segment_of(bad)
        with pytest.raises(SegmentError, match="is not 0 to"):
            snapshot.contains("new", bad)

    @pytest.mark.parametrize("bad", [1.0, "1", True, None])
    def test_an_id_of_another_type(self, snapshot: Snapshot, bad: Any) -> None:
        with pytest.raises(InvalidTypeError, match="whole number"):
            snapshot.segment_of(bad)

    @pytest.mark.parametrize("repeats", [1, 200])
    def test_codes(self, snapshot: Snapshot, repeats: int) -> None:
        ids = np.array([LARGEST, 0, 3, 1, 0] * repeats)
        codes = snapshot.codes(ids)
        assert codes.dtype == np.uint8
        assert codes.tolist() == [1, 2, 0, 1, 2] * repeats
        assert snapshot.codes(np.array([], dtype=np.int64)).tolist() == []
        for bad in (-1, 1 << 32):
            with pytest.raises(SegmentError, match="is not 0 to"):
                snapshot.codes(np.append(ids, bad))
        with pytest.raises(InvalidTypeError, match="array of integers"):
            snapshot.codes(ids.astype(np.float64))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - on purpose

    @pytest.mark.parametrize("asked", [100, 300, 5_000])
    @pytest.mark.parametrize("segments", [255, 256, 1024])
    def test_codes_of_many_segments_are_wide_enough(self, segments: int, asked: int) -> None:
        many = Snapshot({f"s{n}": IdSet.from_range(n * 9, n * 9 + 3) for n in range(segments)})
        ids = np.random.default_rng(1).integers(0, segments * 9, asked)
        codes = many.codes(ids)
        assert codes.dtype == (np.uint8 if segments < 256 else np.uint16)
        assert codes.tolist() == [one // 9 + 1 if one % 9 < 4 else 0 for one in ids.tolist()]

    def test_codes_of_few_ids_in_a_large_population(self) -> None:
        crowded = Snapshot({"even": IdSet(range(0, 100_000, 2)), "odd": IdSet(range(1, 50_000, 2))})
        ids = np.random.default_rng(2).permutation(100_000)[:400]
        assert crowded.codes(ids).tolist() == [1 if one % 2 == 0 else 2 if one < 50_000 else 0 for one in ids.tolist()]

    def test_codes_never_need_a_table_wider_than_a_window(self, monkeypatch: pytest.MonkeyPatch) -> None:
        look_up, widths = codes_module.__dict__["_look_up"], list[int]()

        def watched(sets: Any, wanted: IdArray, dtype: Any) -> Any:
            widths.append(int(wanted.max()) - int(wanted.min()) + 1)
            return look_up(sets, wanted, dtype)

        monkeypatch.setattr(codes_module, "_look_up", watched)
        wide = Snapshot({"all": IdSet.from_range(0, LARGEST)})
        ids = np.random.default_rng(3).integers(0, LARGEST, 5_000, endpoint=True)
        assert wide.codes(ids).tolist() == [1] * ids.size
        assert len(widths) == 64
        assert max(widths) <= 1 << 26

    @pytest.mark.parametrize(("asked", "run"), [(300, 1), (300, 7), (100_000, 1 << 10), (100_000, 1 << 18)])
    @pytest.mark.parametrize("top", [1 << 27, LARGEST])
    def test_codes_come_back_to_the_places_that_asked(
        self, monkeypatch: pytest.MonkeyPatch, top: int, asked: int, run: int
    ) -> None:
        monkeypatch.setattr(codes_module, "_RUN", run)
        random = np.random.default_rng(run)
        ids = np.unique(np.append(random.integers(0, top, 5000), [0, 1 << 26, (1 << 26) - 1, top]))
        snapshot = Snapshot({"a": IdSet.from_array(ids[::3]), "b": IdSet.from_array(ids[1::3])})
        wanted = np.append(random.choice(ids, asked - 2), [top, 0])
        code = dict(zip(ids.tolist(), [1, 2, 0] * ids.size, strict=False))
        assert snapshot.codes(wanted).tolist() == [code[one] for one in wanted.tolist()]

    def test_codes_over_several_windows_dense_and_sparse(self) -> None:
        edge = 1 << 26
        split = Snapshot({"low": IdSet.from_range(0, edge + 5), "high": IdSet.from_range(edge + 6, LARGEST)})
        ids = np.array([0, edge - 1, edge, edge + 5, edge + 6, LARGEST] * 100)
        assert split.codes(ids).tolist() == [1, 1, 1, 1, 2, 2] * 100
        near = np.arange(edge + 1000, edge - 1000, -1)
        assert split.codes(near).tolist() == [2] * 995 + [1] * 1005

    def test_classify_names_every_segment_and_none_last(self, snapshot: Snapshot) -> None:
        parts = snapshot.classify(IdSet([0, 1, 2, 5, 9]))
        assert list(parts.items()) == [
            ("new", IdSet([1, 2])),
            ("active", IdSet([0])),
            ("gone", IdSet()),
            (None, IdSet([5, 9])),
        ]

    def test_members_counts_and_expressions(self, snapshot: Snapshot) -> None:
        assert snapshot.names == ("new", "active", "gone")
        assert [snapshot.cardinality(name) for name in snapshot.names] == [3, 2, 0]
        assert snapshot.members("new", limit=2) == [1, 2]
        assert snapshot.members("new", after=2) == [LARGEST]
        assert snapshot.evaluate("new | active") == IdSet([0, 1, 2, 7, LARGEST])
        assert snapshot.sets["active"] == IdSet([0, 7])
        with pytest.raises(TypeError):
            snapshot.sets["active"] = IdSet()  # type: ignore[index]  # pyright: ignore[reportIndexIssue] - on purpose
        for ask in (snapshot.cardinality, snapshot.members, snapshot.evaluate):
            with pytest.raises(UnknownNameError, match="no segment 'old'; there are: new, active, gone"):
                ask("old")
        with pytest.raises(UnknownNameError, match="no segment 'old'"):
            snapshot.contains("old", 1)
        assert repr(snapshot) == "<Snapshot v1: new 3, active 2, gone 0>"

    def test_what_cannot_be_a_snapshot(self) -> None:
        with pytest.raises(SegmentError, match=r"1 id is in two segments or more: 2 \(a and b\)"):
            Snapshot({"a": IdSet([1, 2]), "b": IdSet([2])})
        with pytest.raises(SegmentError, match="0 segments, where 1 to 1024 can be"):
            Snapshot({})
        with pytest.raises(SegmentError, match=r"segment name '../x' is not 1 to 64"):
            Snapshot({"../x": IdSet([1])})

    def test_the_version_is_the_instant_unless_given(self) -> None:
        made = Snapshot({"a": IdSet([1])}, created_us=1_740_830_400_000_042)
        assert made.version == "20250301T120000.000042Z"
        assert Snapshot({"a": IdSet([1])}).created_us > 1_740_830_400_000_000


class TestDisk:
    def test_it_comes_back_as_it_was(self, directory: Path, snapshot: Snapshot) -> None:
        loaded = load_snapshot(directory)
        assert (loaded.version, loaded.created_us, loaded.names) == ("v1", 1_740_830_400_000_000, snapshot.names)
        assert dict(loaded.sets) == SETS
        assert sorted(path.name for path in directory.iterdir()) == [
            hashed("active", SETS["active"]),
            hashed("gone", SETS["gone"]),
            "manifest.json",
            hashed("new", SETS["new"]),
        ]
        assert [path.name for path in directory.parent.iterdir()] == ["one"]

    def test_the_manifest_says_what_is_there(self, directory: Path) -> None:
        told = json.loads((directory / "manifest.json").read_text())
        data = file_of(directory, "new").read_bytes()
        assert told["segments"][0] == {
            "name": "new",
            "file": hashed("new", SETS["new"]),
            "cardinality": 3,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "exclusive": True,
        }
        told.pop("segments")
        told.pop("sha256")
        assert told == {
            "format": "capline-segments",
            "format_version": 2,
            "version": "v1",
            "created_us": 1_740_830_400_000_000,
            "ids": "uint32",
            "partial": False,
            "union": 5,
            "pairs": [[0, 1, 0], [0, 2, 0], [1, 2, 0]],
            "dictionary": [],
        }

    @pytest.mark.parametrize("flips", [1, pytest.param(4, marks=pytest.mark.deep)])
    def test_every_flipped_byte_is_found(self, directory: Path, flips: int) -> None:
        masks = (0x01, 0x20, 0x80, 0xFF) * 2
        for path in sorted(directory.iterdir()):
            data = path.read_bytes()
            for place in range(len(data)):
                for flip in masks[place % 4 :][:flips]:
                    path.write_bytes(data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :])
                    with pytest.raises(SegmentError) as caught:
                        load_snapshot(directory)
                    assert str(path) in str(caught.value)
                    assert "\n" not in str(caught.value)
            path.write_bytes(data)
        load_snapshot(directory)

    def test_every_truncation_and_every_addition_is_found(self, directory: Path) -> None:
        for path in sorted(directory.iterdir()):
            data = path.read_bytes()
            for bad in (*(data[:size] for size in range(len(data))), data + b"\0", data + b"\n", data + data):
                path.write_bytes(bad)
                with pytest.raises(SegmentError) as caught:
                    load_snapshot(directory)
                assert str(path) in str(caught.value)
            path.unlink()
            with pytest.raises(SegmentError, match=rf"{path.name}: cannot read it: No such file"):
                load_snapshot(directory)
            path.write_bytes(data)
        load_snapshot(directory)

    def test_a_size_is_bounded_before_it_is_read(self, directory: Path) -> None:
        for path in (directory / "manifest.json", file_of(directory, "new")):
            name = path.name
            data = path.read_bytes()
            with path.open("r+b") as file:
                file.truncate(1 << 42)
            with pytest.raises(SegmentError, match=rf"{name}: 4398046511104 bytes, at most [0-9]+ are allowed"):
                load_snapshot(directory)
            path.write_bytes(data)
        lying = SegmentEntry(name="new", file=path.name, cardinality=1, bytes=1 << 40, sha256="0" * 64)
        rewrite(directory, segments=(lying,), union=1, pairs=())
        with pytest.raises(SegmentError, match="the manifest says 1099511627776"):
            load_snapshot(directory)

    def test_a_pipe_in_place_of_a_file_does_not_hang(self, directory: Path) -> None:
        path = file_of(directory, "new")
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(SegmentError, match="not a regular file"):
            load_snapshot(directory)

    def test_another_version_is_not_called_damage(self, directory: Path) -> None:
        rewrite(directory, format_version=3)
        with pytest.raises(
            SegmentError, match="format version 3, and this capline reads up to 2; build the snapshot again"
        ):
            load_snapshot(directory)
        (directory / "manifest.json").write_text('{"format": "capline-segments", "format_version": 7, "other": []}')
        with pytest.raises(SegmentError, match="format version 7"):
            read_manifest(directory)

    @pytest.mark.parametrize("text", ["", "{}", "[]", "[" * 100_000, "null", '{"format": 1}', "\0" * 300, "\xff"])
    def test_what_is_no_manifest(self, directory: Path, text: str) -> None:
        (directory / "manifest.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(SegmentError, match=r"manifest\.json: not a segment manifest"):
            load_snapshot(directory)

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"format": "something"}, "does not match its own checksum"),
            ({"union": 4}, "its exclusive segments have 5 ids, and 4 different ones"),
            ({"pairs": ()}, "does not say how many ids each two segments share"),
            ({"pairs": ((0, 1, 1), (0, 2, 0), (1, 2, 0))}, "'new' and 'active' share 1 ids, and may share 0"),
            ({"pairs": ((0, 9, 0), (0, 2, 0), (1, 2, 0))}, "does not say how many ids each two segments share"),
            ({"ids": "int8"}, "its ids are 'int8', and this capline knows uint32, uint64, text"),
            ({"ids": "text"}, "a dictionary goes with text ids"),
            ({"partial": 1}, "Expected `bool`, got `int`"),
            ({"segments": ()}, "0 segments, where 1 to 1024"),
            ({"segments": (entry("a", b"x", 1), entry("a", b"x", 1, "b.roaring"))}, "'a' is named twice"),
            ({"segments": (entry("a", b"x", 1), entry("b", b"x", 1, "a.roaring"))}, "two segments share a file"),
            ({"segments": (entry("a/b", b"x", 1),)}, "segment name 'a/b' is not"),
            ({"segments": (entry("a", b"x", 1, "../a"),)}, "no proper file name"),
            ({"segments": (entry("a", b"x", 1, "/etc/passwd"),)}, "no proper file name"),
            ({"segments": (entry("a", b"x", 1, "manifest.json"),)}, "no proper file name"),
            (
                {"segments": (SegmentEntry(name="a", file="a", cardinality=1, bytes=1, sha256="0"),)},
                "no proper file name and SHA-256",
            ),
            ({"segments": (entry("a", b"x", -1),)}, "an impossible size"),
            ({"segments": (entry("a", b"x", (1 << 32) + 1),)}, "an impossible size"),
            ({"segments": (entry("a", b"", 0),)}, "an impossible size"),
            (
                {"dictionary": (DictionaryEntry(file="x", cardinality=1, bytes=1, sha256="0" * 64, first=0),)},
                "no others",
            ),
            ({"created_us": -1}, "creation time is impossible"),
            ({"created_us": 1 << 60}, "creation time is impossible"),
            ({"version": 5}, "Expected `str`, got `int`"),
        ],
    )
    def test_a_sealed_manifest_is_still_not_believed(self, directory: Path, changes: Any, why: str) -> None:
        rewrite(directory, **changes)
        for read in (read_manifest, load_snapshot):
            with pytest.raises(SegmentError, match=why):
                read(directory)

    def test_sealed_files_are_still_not_believed(self, directory: Path) -> None:
        full_run = IdSet.from_range(0, LARGEST).to_bytes()
        for data, cardinality, why in (
            (b"not a bitmap", 3, r"a\.roaring: not one whole bitmap"),
            (IdSet([1, 2]).to_bytes(), 3, r"a\.roaring: 2 ids, and the manifest says 3"),
            (full_run, 5, r"a\.roaring: 4294967296 ids, and the manifest says 5"),
            (IdSet([1, 2]).to_bytes() + b"x", 2, r"a\.roaring: not one whole bitmap"),
        ):
            (directory / "a.roaring").write_bytes(data)
            rewrite(directory, segments=(entry("a", data, cardinality),), union=cardinality, pairs=())
            with pytest.raises(SegmentError, match=why):
                load_snapshot(directory)
        one, other = IdSet([1, 2]).to_bytes(), IdSet([2]).to_bytes()
        (directory / "a.roaring").write_bytes(one)
        (directory / "b.roaring").write_bytes(other)
        rewrite(directory, segments=(entry("a", one, 2), entry("b", other, 1)), union=3, pairs=((0, 1, 0),))
        with pytest.raises(SegmentError, match=r"one: 1 id is in two segments or more: 2 \(a and b\)"):
            load_snapshot(directory)

    def test_where_there_is_no_snapshot(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        for name, why in (("none", "No such file"), ("file", "Not a directory"), ("", "cannot read it: No such file")):
            with pytest.raises(SegmentError, match=why):
                load_snapshot(tmp_path / name)

    def test_a_reader_that_is_overtaken_gets_the_new_one(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read = load_module.__dict__["_read_segment"]
        replaced: list[bool] = []

        def overtaken(*given: Any) -> IdSet:
            if not replaced:
                replaced.append(True)
                write_snapshot(Snapshot({"new": IdSet([5])}, "v2"), directory, replace=True)
            return read(*given)

        monkeypatch.setattr(load_module, "_read_segment", overtaken)
        loaded = load_snapshot(directory)
        assert (loaded.version, dict(loaded.sets)) == ("v2", {"new": IdSet([5])})


def cannot(_one: Path, _other: Path) -> bool:
    return False


class TestWriting:
    @pytest.mark.parametrize("can_exchange", [True, False])
    def test_an_old_one_is_replaced_only_when_asked(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
    ) -> None:
        if not can_exchange:
            monkeypatch.setattr(write_module, "_exchange", cannot)
        new = Snapshot({"other": IdSet([5])}, "v2")
        with pytest.raises(SegmentError, match=r"one: there is a snapshot already; .*\(--replace\)"):
            write_snapshot(new, directory)
        assert load_snapshot(directory).version == "v1"
        write_snapshot(new, directory, replace=True)
        assert load_snapshot(directory).version == "v2"
        assert sorted(path.name for path in directory.iterdir()) == ["manifest.json", hashed("other", IdSet([5]))]
        assert [path.name for path in directory.parent.iterdir()] == ["one"]

    def test_the_exchange_works_on_this_system(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            (tmp_path / name / f"was-{name}").touch()
        assert write_module.__dict__["_exchange"](tmp_path / "a", tmp_path / "b")
        assert (tmp_path / "a" / "was-b").exists()
        assert not write_module.__dict__["_exchange"](tmp_path / "a", tmp_path / "none")

    def test_nothing_but_a_snapshot_is_ever_replaced(self, tmp_path: Path, snapshot: Snapshot) -> None:
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "thesis.txt").write_text("years of work")
        (tmp_path / "file").write_text("x")
        (tmp_path / "mixed").mkdir()
        (tmp_path / "mixed" / "manifest.json").touch()
        (tmp_path / "mixed" / "thesis.txt").touch()
        (tmp_path / "link").symlink_to("home")
        (tmp_path / "broken").symlink_to("nowhere")
        write_snapshot(snapshot, tmp_path / "good")
        (tmp_path / "alias").symlink_to("good")
        before = sorted(tmp_path.rglob("*"))
        for name in ("home", "file", "mixed", "link", "broken", "alias"):
            with pytest.raises(SegmentError, match=r"not a snapshot; choose another|something else has that name"):
                write_snapshot(snapshot, tmp_path / name, replace=True)
        assert sorted(tmp_path.rglob("*")) == before

    def test_an_empty_directory_and_missing_parents_are_fine(self, tmp_path: Path, snapshot: Snapshot) -> None:
        (tmp_path / "empty").mkdir()
        for name in ("empty", "a/b/c"):
            write_snapshot(snapshot, tmp_path / name)
            assert load_snapshot(tmp_path / name).version == "v1"

    def test_whoever_takes_the_name_meanwhile_keeps_it(
        self, tmp_path: Path, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill = write_module.__dict__["_fill"]

        def overtaken(*given: Any) -> Manifest:
            shutil.copytree(other, tmp_path / "one")
            return fill(*given)

        other = tmp_path / "other"
        write_snapshot(Snapshot({"a": IdSet([1])}, "theirs"), other)
        monkeypatch.setattr(write_module, "_fill", overtaken)
        with pytest.raises(SegmentError, match="there is a snapshot already"):
            write_snapshot(snapshot, tmp_path / "one")
        assert load_snapshot(tmp_path / "one").version == "theirs"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]

    @pytest.mark.parametrize("at", [0, 1, 3])
    def test_a_full_disk_leaves_the_old_one(self, directory: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        create = write_module.files.create
        calls: list[Path] = []

        def full(path: Path, data: bytes | memoryview) -> None:
            calls.append(path)
            if len(calls) > at:
                raise OSError(28, "No space left on device")
            create(path, data)

        monkeypatch.setattr(write_module.files, "create", full)
        with pytest.raises(SegmentError, match="cannot write the snapshot: No space left on device"):
            write_snapshot(Snapshot(SETS, "v2"), directory, replace=True)
        assert load_snapshot(directory).version == "v1"
        assert [path.name for path in directory.parent.iterdir()] == ["one"]


HELD_WRITER = """
import os, sys
from capline.segment import IdSet, Snapshot, write_snapshot
from capline.segment.snapshot import write

stop, path = int(sys.argv[1]), sys.argv[2]
calls = 0

def held(work):
    def step(*given):
        global calls
        if calls == stop:
            print("held", flush=True)
            sys.stdin.read()
        calls += 1
        return work(*given)
    return step

# Every step that touches the disk: making files, forcing directories, and the rename.
write.files.create = held(write.files.create)
write.files.fsync_directory = held(write.files.fsync_directory)
write._rename = held(write._rename)
write_snapshot(Snapshot({"new": IdSet([5]), "old": IdSet([6])}, "v2"), path, replace=True)
print("done", flush=True)
"""

RESTLESS_WRITER = """
import sys
from capline.segment import IdSet, Snapshot, write_snapshot

for n in range(10_000):
    sets = {f"s{i}": IdSet.from_range(i * 100_000, i * 100_000 + n) for i in range(5)}
    write_snapshot(Snapshot(sets, f"n{n}"), sys.argv[1], replace=True)
    print(n, flush=True)
"""


class TestKilled:
    @pytest.mark.parametrize("is_there", first(1, [True, False]))
    def test_at_every_step(self, tmp_path: Path, snapshot: Snapshot, is_there: bool) -> None:
        final = tmp_path / "one"
        answers: list[str] = []
        for stop in range(10):
            shutil.rmtree(final, ignore_errors=True)
            if is_there:
                write_snapshot(snapshot, final)
            with subprocess.Popen(
                [sys.executable, "-c", HELD_WRITER, str(stop), str(final)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as writer:
                assert writer.stdout is not None
                answers.append(writer.stdout.readline().strip())
                writer.kill()
            if is_there or final.exists():
                assert load_snapshot(final).version in ("v1", "v2")
            # Whatever a killed writer left is in nobody's way.
            write_snapshot(Snapshot(SETS, "v3"), final, replace=True)
            assert load_snapshot(final).version == "v3"
            if answers[-1] == "done":
                break
        assert answers == ["held"] * 6 + ["done"]

    def test_anywhere(self, tmp_path: Path) -> None:
        final = tmp_path / "one"
        for lines in (1, 7, 20):
            with subprocess.Popen(
                [sys.executable, "-c", RESTLESS_WRITER, str(final)], stdout=subprocess.PIPE, text=True
            ) as writer:
                assert writer.stdout is not None
                last = [int(writer.stdout.readline()) for _ in range(lines)][-1]
                # Read against the writer at full speed: every answer is one of its snapshots, whole.
                for _ in range(20):
                    loaded = load_snapshot(final)
                    n = int(loaded.version.removeprefix("n"))
                    assert n >= last
                    assert {loaded.cardinality(name) for name in loaded.names} == {n + 1}
                writer.kill()
            assert len(load_snapshot(final).names) == 5
