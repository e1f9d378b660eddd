"""Fuzz everything that reads bytes of a snapshot: `python tools/fuzz_segments.py [--inputs 100000]`.

Each kind of file (bitmaps of 32 and 64 bits, the manifest, a file of the id dictionary, expressions) gets an equal
share of the inputs: bytes made up by Hypothesis, and good files with flips, cuts, insertions and swapped pieces. Every
answer must be a value that holds together or a `SegmentError`. It runs in a process of its own, so that a crash of the
interpreter is seen and named, and not the end of what looked.
"""

# ruff: noqa: S101 - a wrong answer must stop it, as in a test

from __future__ import annotations

import argparse
import faulthandler
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from capline.model.errors import SegmentError
from capline.segment import IdSet, IdSet64, parse_expression
from capline.segment.dictionary.idfile import IdFile, encode
from capline.segment.manifest import DictionaryEntry, Manifest, SegmentEntry, decode_manifest
from capline.segment.seal import seal

if TYPE_CHECKING:
    from collections.abc import Callable

Draw = st.DrawFn


def good_sets(kind: type[IdSet]) -> list[bytes]:
    """Files with each kind of container: none, arrays, bitsets, runs, and all of them."""
    step = 1 << (16 if kind is IdSet else 40)
    every = [kind(), kind([0, 5, kind.largest]), kind.from_range(7, 200_000), kind(range(0, 30_000, 3))]
    every.append(kind.union([*every, kind([n * step for n in range(40)])]))
    return [each.to_bytes() for each in every]


def good_manifests() -> list[bytes]:
    """One of each kind of ids."""
    entry = SegmentEntry(name="new", file="new-0.roaring", cardinality=3, bytes=24, sha256="0" * 64)
    texts = DictionaryEntry(file="ids-0.ids", cardinality=3, bytes=99, sha256="1" * 64, first=0)
    return [
        seal(Manifest("capline-segments", 2, "v", 5, ids, False, 3, (entry,), (), files))
        for ids, files in (("uint32", ()), ("uint64", ()), ("text", (texts,)))
    ]


def good_id_files() -> list[bytes]:
    """One and two lengths."""
    short, long = np.array([b"a", b"b", b"\0"], "S1"), np.array([b"aaaa", b"bbbb"], "S4")
    one = (1, np.sort(short), np.array([2, 0, 1], np.uint32))
    return [bytes(encode(0, [one])), bytes(encode(9, [one, (4, long, np.array([3, 4], np.uint32))]))]


@st.composite
def damaged(draw: Draw, good: list[bytes]) -> bytes:
    """A good file with up to six wounds; numbers that mean much are written over more often than chance would."""
    data = bytearray(draw(st.sampled_from(good)))
    for _ in range(draw(st.integers(1, 6))):
        if not data:
            break
        # Heads matter most: half of the wounds are there.
        last = len(data) - 1
        place = draw(st.integers(0, min(63, last)) | st.integers(0, last))
        wound = draw(st.sampled_from(("flip", "set", "word", "cut", "insert", "move")))
        if wound == "flip":
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif wound == "set":
            data[place] = draw(st.integers(0, 255))
        elif wound == "word":
            word = draw(st.sampled_from((0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1, len(data))))
            size = draw(st.sampled_from((2, 4, 8)))
            data[place : place + size] = (word & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        elif wound == "cut":
            del data[place : place + draw(st.integers(1, 64))]
        elif wound == "insert":
            data[place:place] = draw(st.binary(min_size=1, max_size=16))
        else:
            piece = data[place : place + 16]
            del data[place : place + 16]
            data[draw(st.integers(0, len(data))) : 0] = piece
    return bytes(data)


def read_set(kind: type[IdSet], data: bytes) -> None:
    """A set that is read holds together: size, order, members, algebra, and itself when written again."""
    held = kind.from_bytes(data)
    page = held.page(limit=2000)
    assert page == sorted(set(page))
    assert len(page) == min(len(held), 2000)
    assert all(one in held for one in page)
    asked = kind(page)
    assert (held & asked) == asked
    assert len(held - asked) == len(held) - len(page)
    assert kind.from_bytes(held.to_bytes()) == held


def read_id_file(data: bytes) -> None:
    """A dictionary file that passes its check answers for every number and text."""
    file = IdFile(np.frombuffer(data, dtype=np.uint8), "fuzz")
    file.check()
    for length, cells, numbers in file.groups:
        assert np.array_equal(file.find(length, cells), numbers.astype(np.int64) + file.first)
    assert all(isinstance(file.text(file.first + n), str) for n in range(min(file.count, 100)))


def read_manifest(data: bytes) -> None:
    """A manifest is read only as it was written."""
    manifest = decode_manifest(data, "fuzz")
    assert decode_manifest(seal(manifest), "again") == manifest


def read_expression(data: bytes) -> None:
    """An expression that is read can be evaluated."""
    expression = parse_expression(data.decode("latin-1"))
    expression.evaluate(dict.fromkeys(expression.names, IdSet([1])))


def targets() -> dict[str, tuple[list[bytes], Callable[[bytes], None]]]:
    """What is fuzzed: good files to damage, and what reads them."""
    return {
        "bitmap": (good_sets(IdSet), lambda data: read_set(IdSet, data)),
        "bitmap64": (good_sets(IdSet64), lambda data: read_set(IdSet64, data)),
        "manifest": (good_manifests(), read_manifest),
        "id file": (good_id_files(), read_id_file),
        "expression": ([b"(active | new) - churned & at-risk", b"a & ((b))"], read_expression),
    }


def fuzz(name: str, inputs: int, seed_free: bool = False) -> tuple[int, int]:
    """Give one target so many inputs; how many were given, and how many were read as good."""
    good, read = targets()[name]
    seen = [0, 0]

    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        derandomize=not seed_free,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged(good) | st.binary(max_size=300))
    def one(data: bytes) -> None:
        seen[0] += 1
        try:
            read(data)
        except SegmentError:
            return
        seen[1] += 1

    one()
    return seen[0], seen[1]


def main() -> None:
    """Run every target in a child; the child's death is a failure that is named."""
    parser = argparse.ArgumentParser(description="Fuzz what reads snapshots.")
    parser.add_argument("--inputs", type=int, default=100_000, help="in all, shared by the targets")
    parser.add_argument("--target", choices=list(targets()), help="only this one, in this process")
    parser.add_argument("--random", action="store_true", help="other inputs every time")
    arguments = parser.parse_args()
    if arguments.target:
        faulthandler.enable()
        given_inputs, read = fuzz(arguments.target, arguments.inputs, arguments.random)
        print(f"{arguments.target:<12} {given_inputs:>9,} inputs, {read:>7,} of them good")
        return
    start = time.monotonic()
    share = -(-arguments.inputs // len(targets()))
    for name in targets():
        command = [sys.executable, __file__, "--target", name, "--inputs", str(share)]
        done = subprocess.run([*command, *(["--random"] if arguments.random else [])], check=False)  # noqa: S603 - this program
        if done.returncode:
            sys.exit(f"fuzz: {name}: the interpreter ended with {done.returncode}")
    print(f"no crash and no wrong answer, in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
