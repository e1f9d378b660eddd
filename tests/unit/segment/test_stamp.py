"""Opening what was verified once: used where it lies, and believed only for the very files that were verified."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.kit.segment import text_rows_of

from capline.model.errors import SegmentError
from capline.segment import (
    IdSet,
    IdSet64,
    Snapshot,
    build_segments,
    keep,
    load_snapshot,
    number_rows,
    read_manifest,
    write_snapshot,
)
from capline.segment.seal import seal
from capline.segment.sets import frozen
from capline.segment.snapshot import load as load_module
from capline.segment.snapshot import verified as stamp_module

# A run, an array, a bitset, and nothing.
SETS = {
    "new": IdSet.from_range(100_000, 300_000),
    "active": IdSet([1, 5, (1 << 32) - 1]),
    "old": IdSet.from_array(np.arange(1 << 20, 1 << 21, 2)),
    "gone": IdSet(),
}
ASKED = np.array([0, 1, 5, 100_000, 300_001, (1 << 20) + 2, (1 << 20) + 3, (1 << 32) - 1] * 50)

pytestmark = pytest.mark.skipif(frozen.identity() is None, reason="this CRoaring is not one that frozen knows")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stamp_module, "_SMALL_BYTES", 0)
    write_snapshot(Snapshot(SETS, "v1"), tmp_path / "one")
    return tmp_path / "one"


def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The segments that are read and hashed from now on."""
    read, seen = load_module.__dict__["_read_segment"], list[str]()

    def watched(directory: int, path: Path, entry: Any, kind: type[IdSet]) -> IdSet:
        seen.append(entry.name)
        return read(directory, path, entry, kind)

    monkeypatch.setattr(load_module, "_read_segment", watched)
    return seen


def check(snapshot: Snapshot) -> None:
    truth = Snapshot(SETS, "v1")
    assert dict(snapshot.sets) == SETS
    assert snapshot.codes(ASKED).tolist() == truth.codes(ASKED).tolist()
    assert [snapshot.segment_of(one) for one in ASKED[:8].tolist()] == [truth.segment_of(one) for one in ASKED[:8]]
    audience = IdSet.from_array(ASKED)
    assert snapshot.classify(audience) == truth.classify(audience)
    assert snapshot.evaluate("(new | old) - active") == truth.evaluate("(new | old) - active")
    assert snapshot.members("old", limit=3) == [1 << 20, (1 << 20) + 2, (1 << 20) + 4]
    assert snapshot.sets["new"].to_bytes() == SETS["new"].to_bytes()


def test_it_is_verified_once_and_answers_the_same(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = verified(monkeypatch)
    check(load_snapshot(directory, trust="stamp"))
    assert seen == list(SETS)
    check(load_snapshot(directory, trust="stamp"))
    assert seen == list(SETS)
    check(load_snapshot(directory))
    assert seen == [*SETS, *SETS]


def test_nothing_is_trusted_or_left_unless_asked(directory: Path) -> None:
    load_snapshot(directory)
    assert not (directory / ".verified").exists()
    with pytest.raises(SegmentError, match="trust is 'nothing' or 'stamp', not 'me'"):
        load_snapshot(directory, trust="me")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - on purpose


def test_a_small_snapshot_is_verified_every_time(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    load_snapshot(directory, trust="stamp")
    assert not (directory / ".verified").exists()


def test_bitmaps_stay_while_anybody_uses_them(directory: Path) -> None:
    load_snapshot(directory, trust="stamp")
    snapshot = load_snapshot(directory, trust="stamp")
    probe, part, ask = snapshot.sets["old"].probe(), snapshot.sets["new"], snapshot.segment_of
    del snapshot
    gc.collect()
    assert (1 << 20) + 2 in probe
    assert len(part & IdSet.from_range(0, 150_000)) == 50_001
    assert ask(5) == "active"


def test_a_replaced_snapshot_is_verified_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = load_snapshot(directory, trust="stamp")
    old = load_snapshot(directory, trust="stamp")
    seen = verified(monkeypatch)
    write_snapshot(Snapshot({"other": IdSet([3])}, "v2"), directory, replace=True)
    assert load_snapshot(directory, trust="stamp").version == "v2"
    assert seen == ["other"]
    check(old)  # its files are gone, and its pages are not


def test_changed_files_are_verified_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_snapshot(directory, trust="stamp")
    path = next(directory.glob("old-*.roaring"))
    data = path.read_bytes()
    for place in (0, 4, 9, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(SegmentError, match="does not match the SHA-256"):
            load_snapshot(directory, trust="stamp")
    path.write_bytes(data[:-1])
    with pytest.raises(SegmentError, match="cut short"):
        load_snapshot(directory, trust="stamp")
    path.unlink()
    with pytest.raises(SegmentError, match="No such file"):
        load_snapshot(directory, trust="stamp")
    path.write_bytes(data)
    seen = verified(monkeypatch)
    check(load_snapshot(directory, trust="stamp"))
    assert seen == list(SETS)


def test_a_manifest_that_was_changed_after_it_was_stamped_is_not_believed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_snapshot(directory, trust="stamp")
    written = (directory / "manifest.json").read_bytes()
    # The files lie there as they did, and the manifest is sealed: only it is not the one that was verified.
    other = msgspec.structs.replace(read_manifest(directory), version="v2")
    (directory / "manifest.json").write_bytes(seal(other))
    seen = verified(monkeypatch)
    load_snapshot(directory, trust="stamp")
    assert seen == list(SETS)
    (directory / "manifest.json").write_bytes(written)
    check(load_snapshot(directory, trust="stamp"))


def test_another_file_of_the_same_size_and_time_is_verified(directory: Path) -> None:
    load_snapshot(directory, trust="stamp")
    path = next(directory.glob("old-*.roaring"))
    data, status = path.read_bytes(), path.stat()
    other = directory.parent / "other"
    other.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    with pytest.raises(SegmentError, match="does not match the SHA-256"):
        load_snapshot(directory, trust="stamp")


def test_a_stamp_without_its_seal_counts_for_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_snapshot(directory, trust="stamp")
    seen = verified(monkeypatch)
    path = directory / ".verified" / "stamp.json"
    good = path.read_bytes()
    path.write_bytes(good[:-5] + (b"0" if good[-5:-4] != b"0" else b"1") + good[-4:])
    check(load_snapshot(directory, trust="stamp"))
    assert seen == list(SETS)


def test_no_stamp_is_left_in_a_directory_that_took_the_name(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = load_module.__dict__["_read_segment"]

    def overtaken(*given: Any) -> IdSet:
        answer = read(*given)
        if given[2].name == "gone":
            write_snapshot(Snapshot({"other": IdSet([3])}, "v2"), directory, replace=True)
        return answer

    monkeypatch.setattr(load_module, "_read_segment", overtaken)
    check(load_snapshot(directory, trust="stamp"))
    assert not (directory / ".verified").exists()


def test_a_damaged_stamp_counts_for_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_snapshot(directory, trust="stamp")
    seen = verified(monkeypatch)
    home = directory / ".verified"
    good = (home / "stamp.json").read_bytes()
    bad = [good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :] for place in range(0, len(good), 47)]
    for number, data in enumerate([*bad, b"", good[:-1], b"{}", b"[" * 10_000], start=1):
        (home / "stamp.json").write_bytes(data)
        check(load_snapshot(directory, trust="stamp"))
        assert seen == list(SETS) * number
    # The last one was replaced by a good one.
    check(load_snapshot(directory, trust="stamp"))
    assert len(seen) == len(SETS) * (len(bad) + 4)


def test_damaged_frozen_files_count_for_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_snapshot(directory, trust="stamp")
    seen = verified(monkeypatch)
    path = next((directory / ".verified").glob("old-*.frozen"))
    for harm in ("cut", "flip", "gone"):
        data = path.read_bytes()
        path.unlink()
        if harm != "gone":
            path.write_bytes(data[:-1] if harm == "cut" else bytes([data[0] ^ 1]) + data[1:])
        check(load_snapshot(directory, trust="stamp"))
    assert seen == list(SETS) * 3


def test_another_croaring_does_not_use_them(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_snapshot(directory, trust="stamp")
    seen = verified(monkeypatch)
    monkeypatch.setattr(frozen, "identity", lambda: "little v5.9.9")
    check(load_snapshot(directory, trust="stamp"))
    assert seen == list(SETS)


def test_without_the_short_cut_it_is_copied(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "identity", lambda: None)
    seen = verified(monkeypatch)
    for _ in range(2):
        check(load_snapshot(directory, trust="stamp"))
    assert seen == list(SETS)
    assert [path.name for path in (directory / ".verified").iterdir()] == ["stamp.json"]


def test_where_nothing_can_be_written_it_is_verified_every_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: Path, _data: bytes) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(stamp_module.files, "write", full)
    seen = verified(monkeypatch)
    for _ in range(2):
        check(load_snapshot(directory, trust="stamp"))
    assert seen == [*SETS, *SETS]


def test_uint64_and_text_have_stamps_too(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = {"a": IdSet64([1, (1 << 64) - 1]), "b": IdSet64([2])}
    write_snapshot(Snapshot(wide), tmp_path / "wide")
    with keep(tmp_path / "ids") as builder:
        sets = build_segments(number_rows(text_rows_of([("x", "a"), ("yy", "b")]), builder))
        write_snapshot(Snapshot(sets, ids=builder.dictionary()), tmp_path / "text")
    seen = verified(monkeypatch)
    for _ in range(2):
        assert dict(load_snapshot(tmp_path / "wide", trust="stamp").sets) == wide
        text = load_snapshot(tmp_path / "text", trust="stamp")
        assert [text.segment_of(one) for one in ("x", "yy", "z")] == ["a", "b", None]
    assert seen == ["a", "b", "a", "b"]
    assert directory.exists()


OPENER = """
import sys
from capline.segment import load_snapshot
from capline.segment.snapshot import verified as stamp
stamp._SMALL_BYTES = 0
for _ in range(20):
    assert load_snapshot(sys.argv[1], trust="stamp").segment_of(5) == "active"
"""


def test_many_processes_open_it_for_the_first_time(directory: Path) -> None:
    openers = [subprocess.Popen([sys.executable, "-c", OPENER, str(directory)]) for _ in range(4)]
    assert [opener.wait(60) for opener in openers] == [0] * 4
    check(load_snapshot(directory, trust="stamp"))
    assert not [name for name in os.listdir(directory / ".verified") if name.endswith(".tmp")]  # noqa: PTH208 - hidden ones too
