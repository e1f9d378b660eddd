"""Segments against Python's own sets: building, codes, classifying, paging and expressions."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.profiles import size, sized

from capline.model.errors import SegmentError
from capline.segment import IdSet, Snapshot, build_segments, load_snapshot, parse_expression, write_snapshot
from capline.segment.build.source import Rows

NAMES = ("new", "active", "at-risk", "v1.2")
LARGEST = (1 << 32) - 1

# Ids near each other, so that sets meet; and at the edges of containers, of windows and of the range.
EDGES = [edge + near for edge in (0, 1 << 16, 1 << 26, 1 << 31, LARGEST) for near in (-2, -1, 0, 1, 2)]
ids = st.integers(0, 40) | st.sampled_from([edge for edge in EDGES if 0 <= edge <= LARGEST]) | st.integers(0, LARGEST)
id_sets = st.sets(ids, max_size=60)
row_lists = st.lists(st.tuples(ids, st.sampled_from(NAMES)), min_size=1, max_size=80)
disjoint = st.dictionaries(ids, st.sampled_from(NAMES), max_size=80).map(
    lambda chosen: {name: {one for one, its in chosen.items() if its == name} for name in NAMES}
)


def batches(rows: list[tuple[int, str]], size: int) -> list[Rows]:
    return [
        Rows(
            np.array([one for one, _ in rows[start : start + size]], dtype=np.uint32),
            np.array([NAMES.index(name) for _, name in rows[start : start + size]], dtype=np.int32),
            NAMES,
        )
        for start in range(0, len(rows), size)
    ]


def snapshot_of(sets: dict[str, set[int]]) -> Snapshot:
    return Snapshot({name: IdSet(members) for name, members in sets.items()})


@given(row_lists, st.integers(1, 30))
def test_building(rows: list[tuple[int, str]], size: int) -> None:
    wanted: dict[str, set[int]] = {}
    for one, name in rows:
        wanted.setdefault(name, set()).add(one)
    offenders = sorted(one for one in {one for one, _ in rows} if sum(one in each for each in wanted.values()) > 1)
    if offenders:
        with pytest.raises(SegmentError) as caught:
            build_segments(batches(rows, size))
        told = str(caught.value)
        assert told.startswith(f"{len(offenders)} id")
        positions = [told.index(f" {one} (") for one in offenders[:10]]
        assert positions == sorted(positions)
        assert all(f" {one} (" not in told for one in offenders[10:])
    else:
        built = build_segments(batches(rows, size))
        assert {name: set(members) for name, members in built.items()} == wanted
        assert list(built) == sorted(wanted)


@given(row_lists, st.permutations(NAMES), st.integers(1, 30))
def test_building_in_a_stated_order(rows: list[tuple[int, str]], order: list[str], size: int) -> None:
    built = build_segments(batches(rows, size), first_wins=order)
    wanted = {one: min((name for other, name in rows if other == one), key=order.index) for one, _ in rows}
    assert list(built) == order
    assert {one: name for name, members in built.items() for one in members} == wanted


@given(disjoint, st.lists(ids, max_size=60), st.integers(1, 20))
def test_one_id_codes_and_classify(sets: dict[str, set[int]], asked: list[int], repeats: int) -> None:
    snapshot = snapshot_of(sets)
    wanted = [next((name for name in NAMES if one in sets[name]), None) for one in asked]
    assert [snapshot.segment_of(one) for one in asked] == wanted
    codes = snapshot.codes(np.array(asked * repeats, dtype=np.int64))
    assert [(None, *NAMES)[code] for code in codes.tolist()] == wanted * repeats
    parts = snapshot.classify(IdSet(asked))
    assert list(parts) == [*NAMES, None]
    assert {name: set(members) for name, members in parts.items()} == {
        name: {one for one, its in zip(asked, wanted, strict=True) if its == name} for name in (*NAMES, None)
    }


@given(id_sets, st.integers(1, 20))
def test_paging_enumerates_in_order(members: set[int], limit: int) -> None:
    held, seen, after = IdSet(members), list[int](), None
    while page := held.page(after, limit):
        assert len(page) <= limit
        seen += page
        after = page[-1]
    assert seen == sorted(members) == held.to_array().tolist() == list(held)


@given(id_sets, id_sets)
def test_algebra_files_and_arrays(one: set[int], other: set[int]) -> None:
    left, right = IdSet(one), IdSet.from_array(np.array(list(other), dtype=np.uint64))
    assert set(left | right) == one | other
    assert set(left & right) == one & other
    assert set(left - right) == one - other
    assert left.overlap(right) == len(one & other)
    assert (left == right) == (one == other)
    assert IdSet.from_bytes(left.to_bytes()) == left
    assert len(left) == len(one)


@given(st.binary(max_size=200))
@settings(max_examples=size(50, 500))
def test_any_bytes_are_a_bitmap_or_an_error(data: bytes) -> None:
    try:
        held = IdSet.from_bytes(data)
    except SegmentError:
        return
    assert IdSet(held.page(limit=10_000)).overlap(held) == min(len(held), 10_000)


@given(id_sets, st.data())
@settings(max_examples=size(50, 500))
def test_damaged_bitmaps_are_a_bitmap_or_an_error(members: set[int], data: st.DataObject) -> None:
    good = bytearray(IdSet(members).to_bytes())
    for place in data.draw(st.lists(st.integers(0, len(good) - 1), min_size=1, max_size=4)):
        good[place] ^= data.draw(st.integers(1, 255))
    try:
        held = IdSet.from_bytes(bytes(good))
    except SegmentError:
        return
    page = held.page(limit=1000)
    assert page == sorted(set(page))
    assert (held - held) == IdSet()


@given(disjoint)
@settings(max_examples=size(8, 20))
def test_a_snapshot_comes_back(sets: dict[str, set[int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        write_snapshot(snapshot_of(sets), f"{directory}/x")
        loaded = load_snapshot(f"{directory}/x")
        assert {name: set(members) for name, members in loaded.sets.items()} == sets


# An expression and the same in Python, where `-` binds before `&` before `|` as well.
written = st.recursive(
    st.sampled_from(NAMES).map(lambda name: (name, f"s[{name!r}]")),
    lambda parts: (
        st.tuples(parts, st.sampled_from("|&-"), parts).map(
            lambda three: (f"{three[0][0]} {three[1]} {three[2][0]}", f"{three[0][1]} {three[1]} {three[2][1]}")
        )
        | parts.map(lambda part: (f"({part[0]})", f"({part[1]})"))
    ),
    max_leaves=12,
)


@given(written, st.lists(id_sets, min_size=4, max_size=4))
def test_expressions_mean_what_python_means(texts: tuple[str, str], members: list[set[int]]) -> None:
    sets = dict(zip(NAMES, members, strict=True))
    wanted: set[int] = eval(texts[1], {"s": sets})  # noqa: S307 - Python itself is the oracle, on text made above
    expression = parse_expression(texts[0])
    assert set(expression.evaluate({name: IdSet(each) for name, each in sets.items()})) == wanted
    assert set(expression.names) == {name for name in NAMES if f"s[{name!r}]" in texts[1]}


@given(st.text(alphabet="ab-.|&() \n'*", max_size=30))
def test_any_text_is_an_expression_or_an_error(text: str) -> None:
    try:
        expression = parse_expression(text)
    except SegmentError as error:
        assert ", column " in str(error)  # noqa: PT017 - an error is one of the two right answers
        return
    assert len(expression.evaluate(dict.fromkeys(expression.names, IdSet([1])))) <= 1


@sized
def test_a_few_hundred_damaged_files_of_every_kind() -> None:
    """The fuzzer in short, in a process of its own; `make proof` runs it with 100,000 inputs."""
    program = Path(__file__).parents[3] / "tools" / "fuzz_segments.py"
    done = subprocess.run(
        [sys.executable, program, "--inputs", str(size(50, 1500))], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "no crash and no wrong answer" in done.stdout
