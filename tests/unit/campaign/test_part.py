import zlib
from collections.abc import Mapping, Sequence
from random import Random
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capline.campaign import part as parts
from capline.campaign.part import Part
from capline.campaign.store.packed import sort_key
from capline.model.errors import CampaignError

Ids = list[int] | list[str]
ids_of_a_batch: st.SearchStrategy[Ids] = st.one_of(
    st.sets(st.integers(0, 2**32 - 1), min_size=1, max_size=50).map(sorted),
    st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=50).map(sorted),
    st.sets(st.text(min_size=1, max_size=9), min_size=1, max_size=50).map(sorted),
    st.sets(st.text("0123456789", min_size=9, max_size=9), min_size=1, max_size=50).map(sorted),
)


def part(ids: Sequence[int] | Sequence[str], columns: Mapping[str, Sequence[str]] | None = None) -> Part:
    text = isinstance(ids[0], str)
    kind = object if text else np.uint32 if int(ids[-1]) < 2**32 else np.uint64
    return Part(7, np.array(ids, kind), np.array([place % 3 for place in range(len(ids))], np.uint8), columns or {})


@given(ids_of_a_batch, st.data())
def test_what_is_packed_is_unpacked(ids: Ids, data: st.DataObject) -> None:
    texts = st.lists(st.text(max_size=8), min_size=len(ids), max_size=len(ids))
    packed = part(ids, {"email": data.draw(texts), "name": data.draw(texts)})
    found = Part.unpack(7, len(ids), packed.pack(), ("email", "name"), 3)
    assert (found.number, found.ids.tolist(), found.codes.tolist()) == (7, ids, packed.codes.tolist())
    assert found.ids.dtype == packed.ids.dtype
    assert {name: list(values) for name, values in found.columns.items()} == packed.columns


@given(ids_of_a_batch)
def test_keys_sort_as_ids_do(ids: Ids) -> None:
    keys = [sort_key(each) for each in ids]
    assert keys == sorted(keys)


def test_uuids_take_18_bytes_each() -> None:
    uuids = sorted(str(UUID(int=Random(number).getrandbits(128))) for number in range(10_000))
    assert len(part(uuids).pack()) < 180_000


def test_dense_ids_take_little() -> None:
    assert len(part(range(10_000)).pack()) < 1_000


def _inflated(data: bytes) -> bytes | None:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return None


@pytest.mark.parametrize("step", range(3))
def test_no_damage_passes_for_a_batch(step: int) -> None:
    data = part(range(0, 400, 3), {"email": [f"user-{number}@example.org" for number in range(0, 400, 3)]}).pack()
    whole = zlib.decompress(data)
    for place in range(step, len(data), 3):
        changed = bytearray(data)
        changed[place] ^= 0x5A
        for broken in (bytes(changed), data[:place], data[:place] + b"x" + data[place:]):
            if broken == bytes(changed) and _inflated(broken) == whole:
                continue  # a bit that deflate does not use
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


def planes(*numbers: int) -> bytes:
    """Bytes of 32-bit numbers, or of what comes between them, as ids of a batch."""
    return b"\x04" + np.array(numbers, "<u4").view(np.uint8).reshape(-1, 4).T.tobytes()


def texts(*each: bytes) -> bytes:
    return np.array([len(one) for one in each], "<u4").tobytes() + b"".join(each)


@pytest.mark.parametrize(
    "ids",
    [
        planes(1, 0),
        planes(2**32 - 1, 1),
        planes(1, 1)[:-1],
        b"\x03" + bytes(8),
        b"",
        b"\0" + texts(b"b", b"aa"),
        b"\0" + texts(b"a", b"a"),
        b"\0" + texts(b"", b"a"),
        b"\0" + texts(b"a", b"\xff\xff"),
        b"\0" + texts(b"a", b"bb")[:-1],
    ],
)
def test_what_are_no_ids_is_refused(ids: bytes) -> None:
    data = zlib.compress(ids + bytes(4))
    with pytest.raises(CampaignError, match="is damaged"):
        Part.unpack(7, 2, data, (), 1)


def test_bytes_behind_the_end_are_refused() -> None:
    raw = planes(1, 2) + bytes(4)
    assert len(Part.unpack(7, 2, zlib.compress(raw), (), 1)) == 2
    for data in (zlib.compress(raw + b"x"), zlib.compress(raw) + b"x"):
        with pytest.raises(CampaignError, match="is damaged"):
            Part.unpack(7, 2, data, (), 1)


def test_lengths_beyond_the_end_and_texts_that_are_no_utf_8_are_refused() -> None:
    head = planes(1) + bytes(2)
    for column in (np.array([9], "<u4").tobytes() + b"short", np.array([1], "<u4").tobytes() + b"\xff"):
        with pytest.raises(CampaignError, match="is damaged"):
            Part.unpack(7, 1, zlib.compress(head + column), ("email",), 1)


def test_a_batch_that_is_too_large_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    data = part(range(100)).pack()
    monkeypatch.setattr(parts, "LARGEST_PART_BYTES", 600)
    with pytest.raises(CampaignError, match=r"batch 7 has 601 bytes.* write a smaller 'batch:'"):
        part(range(100)).pack()
    with pytest.raises(CampaignError, match="is damaged"):
        Part.unpack(7, 100, data, (), 3)
