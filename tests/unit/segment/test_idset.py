"""IdSet: what enters is checked, what leaves is what entered."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capline.model.errors import InvalidTypeError, SegmentError
from capline.segment import IdSet

LARGEST = (1 << 32) - 1


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True)


def test_importing_the_package_brings_neither_roaring_nor_arrow() -> None:
    program = "import sys, capline.segment; print(sorted({'pyroaring', 'pyarrow'} & set(sys.modules)))"
    done = run(program)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("missing", ["pyroaring", "pyarrow"])
def test_a_missing_extra_is_named(missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import capline.segment\n"
        "try: capline.segment.read_rows\n"
        "except capline.segment.SegmentError as error: print(error)\n"
    )
    done = run(program)
    assert done.stdout.strip() == f'segments need {missing}: pip install "capline[segments]"'


def test_the_package_has_no_other_names() -> None:
    import capline.segment  # noqa: PLC0415 - the package as a whole is looked at here alone

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = capline.segment.nonsense  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType, reportUnknownArgumentType] - it is not there on purpose
    for name in dir(capline.segment):
        assert getattr(capline.segment, name) is getattr(capline.segment, name)


@pytest.mark.parametrize("bad", [-1, 1 << 32, 1 << 70])
def test_a_number_out_of_range_is_refused(bad: int) -> None:
    with pytest.raises(SegmentError, match=f"id {bad} is not 0 to 4294967295"):
        IdSet([bad])
    with pytest.raises(SegmentError, match="is not 0 to"):
        _ = bad in IdSet([1])


@pytest.mark.parametrize("bad", [3.7, 2.0, np.float64(2.0), True, np.True_, "1", None])
def test_what_is_no_whole_number_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidTypeError, match="whole number"):
        IdSet([bad])
    with pytest.raises(InvalidTypeError, match="whole number"):
        _ = bad in IdSet([1, 2, 3])


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_every_integer_array_is_taken(kind: str) -> None:
    assert list(IdSet.from_array(np.array([5, 1, 9, 5], dtype=kind))) == [1, 5, 9]
    assert list(IdSet.from_array(np.array([], dtype=kind))) == []


@pytest.mark.parametrize(
    "bad",
    [
        np.array([1, -1]),
        np.array([1, 1 << 32]),
        np.array([-(1 << 62)]),
        np.array([(1 << 64) - 1], dtype=np.uint64),
        np.array([-1], dtype=np.int8),
    ],
)
def test_an_array_is_never_wrapped(bad: Any) -> None:
    with pytest.raises(SegmentError, match="is not 0 to 4294967295"):
        IdSet.from_array(bad)


@pytest.mark.parametrize("bad", [np.array([1.0]), np.array([True]), np.array([[1]]), np.array(["1"]), [1, 2]])
def test_an_array_of_something_else_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidTypeError, match="one-dimensional array of integers"):
        IdSet.from_array(bad)


def test_an_array_that_is_not_contiguous() -> None:
    assert list(IdSet.from_array(np.arange(20, dtype=np.uint32)[::7])) == [0, 7, 14]
    assert list(IdSet.from_array(np.arange(20, dtype=np.uint32)[::-7])) == [5, 12, 19]


def test_the_array_handed_in_stays_the_callers() -> None:
    ids = np.array([9, 1], dtype=np.uint32)
    held = IdSet.from_array(ids)
    ids[:] = 5
    assert list(held) == [1, 9]
    held.to_array()[:] = 7
    assert list(held) == [1, 9]


def test_algebra_makes_new_sets() -> None:
    one, other = IdSet([1, 2, 3]), IdSet([3, 4])
    assert list(one | other) == [1, 2, 3, 4]
    assert list(one & other) == [3]
    assert list(one - other) == [1, 2]
    assert (list(one), list(other)) == ([1, 2, 3], [3, 4])
    assert one.overlap(other) == 1
    assert list(IdSet.union([one, other, IdSet([LARGEST])])) == [1, 2, 3, 4, LARGEST]
    assert list(IdSet.union([])) == []
    assert list(IdSet.union([one])) == [1, 2, 3]
    assert list(IdSet.from_range(LARGEST - 1, LARGEST)) == [LARGEST - 1, LARGEST]


def test_equality_hash_truth_and_repr() -> None:
    assert IdSet([1, 2]) == IdSet([2, 1])
    assert IdSet([1, 2]) != IdSet([1])
    assert IdSet([1]) != {1}
    assert hash(IdSet([1, 2])) == hash(IdSet.from_range(1, 2))
    assert IdSet([0])
    assert not IdSet()
    assert repr(IdSet(range(5))) == "<IdSet of 5: 0, 1, 2, 3, …>"
    assert repr(IdSet([7])) == "<IdSet of 1: 7>"


def test_pages_follow_each_other_to_the_last_id() -> None:
    held = IdSet([0, 5, 9, LARGEST])
    assert held.page(limit=2) == [0, 5]
    assert held.page(5, limit=2) == [9, LARGEST]
    assert held.page(6) == [9, LARGEST]
    assert held.page(LARGEST) == []
    assert IdSet().page() == []
    with pytest.raises(SegmentError, match="1 id or more"):
        held.page(limit=0)
    with pytest.raises(SegmentError, match="-1 is not 0 to"):
        held.page(-1)


def test_a_file_comes_back_equal(tmp_path: Path) -> None:
    for held in (IdSet(), IdSet([0, LARGEST]), IdSet.from_range(0, LARGEST), IdSet(range(0, 100_000, 3))):
        held.to_file(tmp_path / "x.roaring")
        assert IdSet.from_file(tmp_path / "x.roaring") == held
    assert [path.name for path in tmp_path.iterdir()] == ["x.roaring"]


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    IdSet([1]).to_file(tmp_path / "x.roaring")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SegmentError, match=r"x\.roaring: cannot write it: No space left"):
        IdSet([2]).to_file(tmp_path / "x.roaring")
    assert [path.name for path in tmp_path.iterdir()] == ["x.roaring"]
    assert IdSet.from_file(tmp_path / "x.roaring") == IdSet([1])


def test_bytes_that_are_not_one_whole_bitmap_are_refused() -> None:
    data = IdSet([*range(10), 70_000, *range(200_000, 210_000, 2)]).to_bytes()
    for bad in (data + b"\0", b"", b"id\n1\n", *(data[:size] for size in range(0, len(data), 7))):
        with pytest.raises(SegmentError, match="here: not one whole bitmap"):
            IdSet.from_bytes(bad, "here")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SegmentError, match=r"none\.roaring: cannot read it: No such file"):
        IdSet.from_file(tmp_path / "none.roaring")
    with pytest.raises(SegmentError, match=r"not a regular file|Is a directory"):
        IdSet.from_file(tmp_path)
    huge = tmp_path / "huge.roaring"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SegmentError, match="at most 540000000 are allowed"):
        IdSet.from_file(huge)
    with pytest.raises(SegmentError, match="cannot write it"):
        IdSet([1]).to_file(tmp_path / "missing" / "x.roaring")
