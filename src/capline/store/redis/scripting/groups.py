"""Rows that share a key share a script call: attempts grouped by their keys, the rows of one subject in their order."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from capline.model.subject import Subject
from capline.store.redis.scripting.keys import BUCKET, field_of, slot_of, tag_of


class Group(msgspec.Struct):
    """Rows that share their keys."""

    slot: int
    tag: bytes
    rows: list[int] | NDArray[np.intp]
    fields: Sequence[bytes] | bytes


def groups_of(subjects: Sequence[Subject], buckets: int, first: int, most: int) -> Iterator[Group]:
    """Groups of any subjects, rows counted from `first`; those of one subject in their order."""
    return _bucket_groups(subjects, buckets, first, most) if buckets else _own_groups(subjects, first, most)


def _own_groups(subjects: Sequence[Subject], first: int, most: int) -> Iterator[Group]:
    """A subject's rows are a group."""
    together: dict[Subject, list[int]] = {}
    for row, subject in enumerate(subjects, first):
        rows = together.get(subject)
        if rows is not None and len(rows) < most:
            rows.append(row)
            continue
        if rows is not None:
            yield _own_group(subject, rows)
        together[subject] = [row]
    for subject, rows in together.items():
        yield _own_group(subject, rows)


def _own_group(subject: Subject, rows: list[int]) -> Group:
    tag = tag_of(subject, 0)
    return Group(slot_of(tag), tag, rows, ())


def _bucket_groups(subjects: Sequence[Subject], buckets: int, first: int, most: int) -> Iterator[Group]:
    """A bucket's rows are a group; a subject's next row goes to a later group."""
    seen: dict[Subject, int] = {}
    filling: list[dict[bytes, tuple[list[int], list[bytes]]]] = []
    turns: list[list[Group]] = []
    for row, subject in enumerate(subjects, first):
        turn = seen.get(subject, 0)
        seen[subject] = turn + 1
        if turn == len(turns):
            filling.append({})
            turns.append([])
        tag = tag_of(subject, buckets)
        filled = filling[turn].get(tag)
        if filled is None or len(filled[0]) >= most:
            filled = filling[turn][tag] = ([], [])
            turns[turn].append(Group(slot_of(tag), tag, *filled))
        filled[0].append(row)
        filled[1].append(field_of(subject))
    for groups in turns:
        yield from groups


def scattered(slot: int) -> int:
    """A slot's place in the order of sending: neighbours belong to different servers, so all servers work at once."""
    return slot * 5461 % 16381 * 16384 + slot


def id_groups(ids: NDArray[np.uint64], *, by_slot: bool) -> Iterator[Group]:
    """Groups of integers in buckets, by NumPy: 0.3 us a row."""
    if not len(ids):
        return
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    bucket = ordered // BUCKET
    again = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    turn = None
    if len(again):
        turn = np.zeros(len(ids), np.int64)
        same = np.zeros(len(ids), np.bool_)
        same[again] = True
        # How many equal ids come before each: its index, less the index of the first equal one.
        places = np.arange(len(ids))
        turn = places - np.maximum.accumulate(np.where(same, 0, places))
        behind = np.lexsort((places, turn, bucket))
        order, ordered, bucket, turn = order[behind], ordered[behind], bucket[behind], turn[behind]
    new = bucket[1:] != bucket[:-1]
    if turn is not None:
        new |= turn[1:] != turn[:-1]
    starts = np.concatenate(([0], np.flatnonzero(new) + 1))
    ends = np.append(starts[1:], len(ids))
    fields = (ordered % BUCKET).astype(np.uint8).tobytes()
    tags = [b"#%d" % number for number in bucket[starts].tolist()]
    places = [*range(len(tags))]
    slots = [slot_of(tag) for tag in tags] if by_slot else [0] * len(tags)
    if by_slot:
        places.sort(key=[scattered(slot) for slot in slots].__getitem__)
    spans = [*zip(starts.tolist(), ends.tolist(), strict=True)]
    for i in places:
        start, end = spans[i]
        yield Group(slots[i], tags[i], order[start:end], fields[start:end])
