"""The id dictionary: a text keeps its number, whatever is added, merged, damaged or killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.segment import text_rows_of
from tests.profiles import size

from capline.model.errors import InvalidTypeError, SegmentError
from capline.segment import (
    IdSet,
    Snapshot,
    build_segments,
    keep,
    load_snapshot,
    merge_partials,
    number_rows,
    write_snapshot,
)
from capline.segment.dictionary import dictionary
from capline.segment.dictionary.idfile import IdFile, encode, group_texts

texts = st.text(min_size=1, max_size=6) | st.sampled_from(["\0", "a\0", "a", "\0a", "é", "x" * 512, "A"])


def number_all(home: Path, given: list[str], *, commit: bool = True) -> dict[str, int]:
    with keep(home) as builder:
        numbers = builder.numbers(group_texts(given), len(given)).tolist()
        if commit:
            builder.commit()
    return dict(zip(given, numbers, strict=True))


@given(st.lists(st.lists(texts, max_size=30), min_size=1, max_size=8), st.integers(1, 40))
@settings(max_examples=size(12, 24, 60), deadline=None)
def test_a_text_keeps_its_number(tmp_path_factory: pytest.TempPathFactory, batches: list[list[str]], full: int) -> None:
    home = tmp_path_factory.mktemp("ids")
    known: dict[str, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dictionary, "_FULL", full)
        for batch in batches:
            found = number_all(home, batch)
            assert {one: found[one] for one in batch if one in known} == {
                one: known[one] for one in batch if one in known
            }
            known.update(found)
            # New texts get the next numbers, and all of them.
            assert sorted(known.values()) == list(range(len(known)))
    with keep(home) as builder:
        held = builder.dictionary()
        assert held.numbers([*known, "never seen"]).tolist() == [*known.values(), -1]
        assert {held.text(number): number for number in known.values()} == known
        assert [held.number(one) for one in known] == list(known.values())
        assert held.number("never seen") is None
        with pytest.raises(SegmentError, match=f"no text has the number {len(known)}"):
            held.text(len(known))


def test_files_are_merged_and_full_ones_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dictionary, "_FULL", 64)
    counts: list[list[int]] = []
    for start in range(0, 200, 8):
        number_all(tmp_path, [f"user-{n}" for n in range(start, start + 8)])
        with keep(tmp_path) as builder:
            counts.append([entry.cardinality for entry in builder.dictionary().entries])
    assert counts[0] == [8]
    assert max(map(len, counts)) <= 6
    assert all(count <= 64 for each in counts for count in each)
    with keep(tmp_path) as builder:
        named = sorted(tmp_path / entry.file for entry in builder.dictionary().entries)
    assert sorted(tmp_path.glob("*.ids")) == named


def test_a_build_that_fails_gives_no_numbers(tmp_path: Path) -> None:
    first = number_all(tmp_path, ["a", "b"])
    number_all(tmp_path, ["c", "d"], commit=False)
    assert len(list(tmp_path.glob("*.ids"))) == 1
    assert number_all(tmp_path, ["d", "a", "b"]) == {"d": 2, **first}


def test_one_build_at_a_time(tmp_path: Path) -> None:
    with keep(tmp_path), pytest.raises(SegmentError, match="another build is adding"), keep(tmp_path):
        pass
    assert number_all(tmp_path, ["a"]) == {"a": 0}


KILLED = """
import sys
from capline.segment import keep
from capline.segment.dictionary.idfile import group_texts
with keep(sys.argv[1]) as builder:
    for n in range(10_000):
        some = [f"k{n}-{i}" for i in range(50)]
        builder.numbers(group_texts(some), 50)
        builder.commit()
        print(n, flush=True)
"""


def test_a_killed_build_leaves_what_it_committed(tmp_path: Path) -> None:
    done = -1
    for lines in (1, 5, 12):
        with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True) as one:
            assert one.stdout is not None
            done = max(done, [int(one.stdout.readline()) for _ in range(lines)][-1])
            os.kill(one.pid, signal.SIGKILL)
        with keep(tmp_path) as builder:
            held = builder.dictionary()
            committed = [f"k{n}-{i}" for n in range(done + 1) for i in range(50)]
            assert len(set(held.numbers(committed).tolist()) - {-1}) == len(committed)
            assert [held.text(number) for number in held.numbers(committed).tolist()] == committed


@pytest.mark.parametrize("bad", ["", "x" * 513, "é" * 257])
def test_what_is_no_text_id(tmp_path: Path, bad: str) -> None:
    number_all(tmp_path, ["a"])
    with keep(tmp_path) as builder:
        with pytest.raises(SegmentError, match="an id is 1 to 512 bytes of UTF-8, not"):
            builder.dictionary().number(bad)
        with pytest.raises(SegmentError, match="an id is 1 to 512 bytes of UTF-8, not"):
            builder.dictionary().numbers([bad])
        with pytest.raises(SegmentError, match="not text that UTF-8 can carry"):
            builder.dictionary().number("\ud800")
        with pytest.raises(InvalidTypeError, match="an id here is text, not 5"):
            builder.dictionary().number(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - on purpose


class TestDamage:
    @pytest.fixture
    def snapshot(self, tmp_path: Path) -> Path:
        rows = [("a", "new"), ("bb", "new"), ("cc", "old"), ("é", "old")]
        with keep(tmp_path / "ids") as builder:
            sets = build_segments(number_rows(text_rows_of(rows), builder))
            builder.commit()
            write_snapshot(Snapshot(sets, "v1", ids=builder.dictionary()), tmp_path / "one")
        return tmp_path / "one"

    def test_every_flip_and_every_length_is_found(self, snapshot: Path) -> None:
        path = next(snapshot.glob("*.ids"))
        data = path.read_bytes()
        path.unlink()  # a hard link: the kept dictionary has the same bytes
        for place in range(len(data)):
            path.write_bytes(data[:place] + bytes([data[place] ^ 0x21]) + data[place + 1 :])
            with pytest.raises(SegmentError, match=r"\.ids: does not match the SHA-256"):
                load_snapshot(snapshot)
            path.write_bytes(data[:place])
            with pytest.raises(SegmentError, match=rf"\.ids: {place} bytes, where {len(data)} are right"):
                load_snapshot(snapshot)
        path.unlink()
        with pytest.raises(SegmentError, match=r"\.ids: cannot read it: No such file"):
            load_snapshot(snapshot)
        path.write_bytes(data)
        assert load_snapshot(snapshot).segment_of("é") == "old"

    def test_any_bytes_are_a_file_or_an_error(self, snapshot: Path) -> None:
        good = next(snapshot.glob("*.ids")).read_bytes()
        random = np.random.default_rng(7)
        for _ in range(3000):
            data = bytearray(good)
            for place in random.integers(0, len(data), random.integers(1, 4)).tolist():
                data[place] = int(random.integers(0, 256))
            try:
                opened = IdFile(np.frombuffer(bytes(data), dtype=np.uint8), "x")
                opened.check()
            except SegmentError:
                continue
            assert all(opened.text(number) is not None for number in range(opened.first, opened.first + opened.count))

    def test_texts_out_of_order_and_numbers_that_disagree(self) -> None:
        cells = np.array([b"b", b"a"], dtype="S1")
        for some, numbers, why in ((cells, [0, 1], "not in order"), (np.sort(cells), [0, 0], "do not agree")):
            data = encode(0, [(1, some, np.array(numbers, dtype=np.uint32))])
            with pytest.raises(SegmentError, match=why):
                IdFile(np.frombuffer(data, dtype=np.uint8), "x").check()

    def test_a_damaged_kept_dictionary(self, snapshot: Path) -> None:
        home = snapshot.parent / "ids"
        good = (home / "dictionary.json").read_bytes()
        for data in (good[:-1], good.replace(b"capline-ids", b"capline-idz"), b"{}", b"", b"\xff"):
            (home / "dictionary.json").write_bytes(data)
            with pytest.raises(SegmentError, match=r"dictionary\.json: damaged; restore it from a copy"), keep(home):
                pass
        (home / "dictionary.json").write_bytes(good)
        with keep(home) as builder:
            assert len(builder.dictionary()) == 4

    def test_a_number_without_a_text(self, tmp_path: Path) -> None:
        number_all(tmp_path / "ids", ["a"])
        with keep(tmp_path / "ids") as builder:
            write_snapshot(Snapshot({"new": IdSet([0, 7])}, ids=builder.dictionary()), tmp_path / "stray")
        with pytest.raises(SegmentError, match="segment 'new' has the number 7, which no text has"):
            load_snapshot(tmp_path / "stray")


def test_a_snapshot_of_text_ids_answers_in_text(tmp_path: Path) -> None:
    rows = [("u-1", "new"), ("u-22", "new"), ("x", "old"), ("u-1", "vip"), ("x", "vip")]
    with keep(tmp_path / "ids") as builder:
        sets = build_segments(number_rows(text_rows_of(rows, 2), builder), overlapping=["vip"])
        builder.commit()
        write_snapshot(Snapshot(sets, overlapping=["vip"], ids=builder.dictionary()), tmp_path / "one")
    held = load_snapshot(tmp_path / "one")
    assert (held.kind, held.names, held.overlapping) == ("text", ("new", "old"), ("vip",))
    assert [held.segment_of(one) for one in ("u-1", "x", "nobody")] == ["new", "old", None]
    assert held.segments_of("x") == ("old", "vip")
    assert held.segments_of("nobody") == ()
    assert held.contains("vip", "u-1")
    assert not held.contains("vip", "nobody")
    assert held.codes(["x", "nobody", "u-22"] * 100).tolist() == [2, 0, 1] * 100
    pages: list[str] = held.members("new", limit=1)
    assert sorted([*pages, *held.members("new", after=pages[-1])]) == ["u-1", "u-22"]
    with pytest.raises(SegmentError, match="id 'nobody' is not in this snapshot"):
        held.members("new", after="nobody")
    with pytest.raises(InvalidTypeError, match="an id here is text"):
        held.segment_of(5)
    not_text: Any = np.array([1])
    with pytest.raises(InvalidTypeError, match="ids come as a sequence of text"):
        held.codes(not_text)


def test_offenders_are_listed_as_texts(tmp_path: Path) -> None:
    with keep(tmp_path) as builder, pytest.raises(SegmentError, match=r"1 id is in two .*: u-1 \(new and old\)"):
        build_segments(number_rows(text_rows_of([("u-1", "new"), ("u-1", "old")]), builder), builder=builder)


names = st.sampled_from(["new", "old", "vip"])


@given(st.lists(st.lists(st.tuples(texts, names), min_size=1, max_size=20), min_size=1, max_size=4))
@settings(max_examples=size(8, 20, 40), deadline=None)
def test_merged_parts_equal_one_build(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[tuple[str, str]]]
) -> None:
    home, order = tmp_path_factory.mktemp("parts"), ["new", "old"]
    for place, rows in enumerate(parts):
        with keep(home / f"own-{place}") as builder:
            sets = build_segments(number_rows(text_rows_of(rows, 7), builder), partial=True, overlapping=["vip"])
            part = Snapshot.verified(sets, None, None, overlapping=["vip"], ids=builder.dictionary())
            write_snapshot(part, home / f"{place}", partial=True)
    with keep(home / "ids") as builder:
        merged = merge_partials([home / f"{place}" for place in range(len(parts))], order, builder=builder)
        builder.commit()
        write_snapshot(merged, home / "merged")
    held = load_snapshot(home / "merged")
    every = [row for rows in parts for row in rows]
    for one in {text for text, _ in every}:
        its = {name for text, name in every if text == one}
        assert held.segment_of(one) == next((name for name in order if name in its), None)
        assert held.contains("vip", one) == ("vip" in its)
