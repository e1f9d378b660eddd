import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capline.campaign import part as parts
from capline.campaign.part import Part
from capline.model.errors import CampaignError

ids_of_a_batch = st.sets(st.integers(0, 2**32 - 1), min_size=1, max_size=50).map(sorted)


def part(ids: Sequence[int], columns: Mapping[str, Sequence[str]] | None = None) -> Part:
    return Part(7, np.array(ids, np.uint32), np.array([number % 3 for number in ids], np.uint8), columns or {})


@given(ids_of_a_batch, st.data())
def test_what_is_packed_is_unpacked(ids: list[int], data: st.DataObject) -> None:
    texts = st.lists(st.text(max_size=8), min_size=len(ids), max_size=len(ids))
    packed = part(ids, {"email": data.draw(texts), "name": data.draw(texts)})
    found = Part.unpack(7, len(ids), packed.pack(), ("email", "name"), 3)
    assert (found.number, found.ids.tolist(), found.codes.tolist()) == (7, ids, packed.codes.tolist())
    assert {name: list(values) for name, values in found.columns.items()} == packed.columns


def test_dense_ids_take_little() -> None:
    assert len(part(range(10_000)).pack()) < 1_000


@pytest.mark.parametrize("step", range(3))
def test_no_damage_passes_for_a_batch(step: int) -> None:
    data = part(range(0, 400, 3), {"email": [f"user-{number}@example.org" for number in range(0, 400, 3)]}).pack()
    for place in range(step, len(data), 3):
        changed = bytearray(data)
        changed[place] ^= 0x5A
        for broken in (bytes(changed), data[:place], data[:place] + b"x" + data[place:]):
            with pytest.raises(CampaignError, match="batch 7 is damaged"):
                Part.unpack(7, 134, broken, ("email",), 3)


@pytest.mark.parametrize(
    ("rows", "names", "segments"), [(3, (), 3), (5, (), 3), (0, (), 3), (4, ("email",), 3), (4, (), 2), (10**9, (), 3)]
)
def test_a_batch_of_another_shape_is_refused(rows: int, names: tuple[str, ...], segments: int) -> None:
    data = part([1, 2, 5, 9]).pack()
    assert len(Part.unpack(7, 4, data, (), 3)) == 4
    with pytest.raises(CampaignError, match="is damaged"):
        Part.unpack(7, rows, data, names, segments)


@pytest.mark.parametrize("deltas", [[1, 0], [2**32 - 1, 1]])
def test_ids_that_do_not_ascend_are_refused(deltas: list[int]) -> None:
    data = zlib.compress(np.array(deltas, "<u4").tobytes() + bytes(4))
    with pytest.raises(CampaignError, match="is damaged"):
        Part.unpack(7, 2, data, (), 1)


def test_bytes_behind_the_end_are_refused() -> None:
    raw = np.array([1, 2], "<u4").tobytes() + bytes(4)
    assert len(Part.unpack(7, 2, zlib.compress(raw), (), 1)) == 2
    for data in (zlib.compress(raw + b"x"), zlib.compress(raw) + b"x"):
        with pytest.raises(CampaignError, match="is damaged"):
            Part.unpack(7, 2, data, (), 1)


def test_lengths_beyond_the_end_and_texts_that_are_no_utf_8_are_refused() -> None:
    head = np.array([1], "<u4").tobytes() + bytes(2)
    for column in (np.array([9], "<u4").tobytes() + b"short", np.array([1], "<u4").tobytes() + b"\xff"):
        with pytest.raises(CampaignError, match="is damaged"):
            Part.unpack(7, 1, zlib.compress(head + column), ("email",), 1)


def test_a_batch_that_is_too_large_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    data = part(range(100)).pack()
    monkeypatch.setattr(parts, "LARGEST_PART_BYTES", 599)
    with pytest.raises(CampaignError, match=r"batch 7 has 600 bytes.* write a smaller 'batch:'"):
        part(range(100)).pack()
    with pytest.raises(CampaignError, match="is damaged"):
        Part.unpack(7, 100, data, (), 3)
