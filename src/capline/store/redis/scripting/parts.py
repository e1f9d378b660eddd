"""From batches to script calls: groups of rows fill a call, calls fill a part. No I/O.

Rows are grouped by their key, and groups by the key's slot on a cluster. Groups fill a call up to a bound that keeps
one script far below 5 ms. Rows of one subject stay in order: within a call, and because calls of one slot are sent to
one server on one connection.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from capline.model.subject import Subject
from capline.store.protocol import Operation
from capline.store.redis.scripting.compiled_rule import Family
from capline.store.redis.scripting.groups import Group, groups_of, id_groups, scattered
from capline.store.redis.scripting.requests import DECIDE, PEEK, Head, group_call
from capline.store.redis.scripting.scripts import Call

PART_ROWS = 65_536
"""Rows in one part of a batch: while the servers decide one part, the next is built."""
ROWS_OF_A_KEY = 5
"""Rows with an id of one subject in a call: 4.4 ms of a server if its log has 100,000 ids, of which 3 to read it."""
AGAIN = 512
"""What a row counts where its key has more than so many rows in a call.

A server goes on with a client's calls for as many as it read at once, in pieces of 16 KiB. Calls over many keys are as
long as that; hundreds over one key fit in it, and would keep everybody else waiting.
"""
NAMED_AGAIN = 1 + PART_ROWS // (4 * ROWS_OF_A_KEY)
"""The same of rows with an id: four more calls over one key are in a part, which may be some 20 ms of a server."""
ORDERED_ROWS = 262_144
"""Rows that are sorted at once. All are answered before the next are sent, so a subject's rows stay in order."""


class Part(msgspec.Struct):
    """Calls that are sent together: their rows, one call after the other, and how many rows each has."""

    calls: list[Call]
    sizes: list[int]
    rows: NDArray[np.intp]
    last: bool = True
    """Whether to wait for all answers before more is sent: the next part may have the same subjects."""


def batch_parts(
    head: Head,
    subjects: Sequence[Subject] | NDArray[np.integer[Any]],
    codes: NDArray[np.uint16] | None,
    *,
    by_slot: bool,
    receipt: tuple[str, bytes] | None = None,
) -> Iterator[tuple[Head, Part]]:
    """A batch of one policy, part by part. Integers in buckets are sorted by NumPy, which is fast."""
    numbers = count()
    families = {compiled.family for compiled in head.compiled} if codes is not None else ()
    if codes is None or len(families) < 2:  # noqa: PLR2004 - one is the usual case
        for part in _family_parts(head, subjects, codes, numbers, by_slot=by_slot, receipt=receipt):
            yield head, part
        return
    # Where an algorithm keeps a log for each limit, subjects with limits of their own have other logs.
    places: dict[Family, list[int]] = {}
    for code, compiled in enumerate(head.compiled):
        places.setdefault(compiled.family, []).append(code)
    place_of = np.zeros(len(head.compiled), np.uint16)
    for family, these in places.items():
        place_of[these] = np.arange(len(these))
        rows = np.flatnonzero(np.isin(codes, these))
        taken = subjects[rows] if isinstance(subjects, np.ndarray) else [subjects[row] for row in rows.tolist()]
        narrow = msgspec.structs.replace(head, family=family, compiled=[head.compiled[code] for code in these])
        packed = place_of[codes[rows]]
        for part in _family_parts(narrow, taken, packed, numbers, by_slot=by_slot, receipt=receipt):
            part.rows = rows[part.rows]
            yield narrow, part


def _family_parts(
    head: Head,
    subjects: Sequence[Subject] | NDArray[np.integer[Any]],
    codes: NDArray[np.uint16] | None,
    numbers: Iterator[int],
    *,
    by_slot: bool,
    receipt: tuple[str, bytes] | None,
) -> Iterator[Part]:
    """`batch_parts` of rows that have the same logs; each call takes one of the numbers."""
    for groups, last in _grouped(head, subjects, by_slot=by_slot):
        calls: list[Call] = []
        sizes: list[int] = []
        rows: list[NDArray[np.intp]] = []
        for fill in _fills(groups, head.most_rows(), by_slot=by_slot):
            rows_here = np.concatenate([np.asarray(group.rows, np.intp) for group in fill])
            named = None
            number = next(numbers)
            if receipt is not None:
                name = hashlib.blake2b(f"{receipt[0]}\0{number}".encode(), digest_size=12).hexdigest().encode()
                named = (name, receipt[1])
            narrow, packed = head, b""
            if codes is not None:
                narrow, own_numbers = head.only(codes[rows_here])
                packed = own_numbers.astype(">u2").tobytes()
            repeatable = receipt is not None or head.mode == PEEK
            calls.append(group_call(narrow, fill, packed, b"", repeatable=repeatable, receipt=named))
            sizes.append(len(rows_here))
            rows.append(rows_here)
        yield Part(calls, sizes, np.concatenate(rows), last)


def row_parts(operations: Sequence[Operation], now: bytes, *, by_slot: bool) -> Iterator[tuple[Head, Part]]:
    """Attempts of any policies, costs and ids: calls by family, and a subject's operations in their order."""
    for rows in _turns(operations):
        turn = [operations[row] for row in rows]
        family: Family = turn[0].compiled.family
        compiled = [*{id(operation.compiled): operation.compiled for operation in turn}.values()]
        code_of = {id(rule): code for code, rule in enumerate(compiled)}
        plain = not any(operation.fingerprint or operation.cost != 1 for operation in turn)
        repeatable = not plain and all(operation.fingerprint for operation in turn)
        head = Head(family, DECIDE, compiled, now, 1 if plain else 0)
        part = Part([], [], np.empty(0, np.intp))
        taken: list[int] = []
        weight = 0
        # An id is looked for in all of the subject's log, which may be long.
        named = not family.buckets and any(operation.fingerprint for operation in turn)
        most, tag = ROWS_OF_A_KEY if named else head.most_rows(), None
        groups = [*groups_of([operation.subject for operation in turn], family.buckets, 0, most)]
        groups.sort(key=(lambda group: (group.slot, group.tag)) if by_slot else (lambda group: group.tag))
        for fill in _fills(groups, head.most_rows(), by_slot=by_slot):
            rows_here = [i for group in fill for i in group.rows]
            narrow, codes, asks = head, b"", b""
            if len(compiled) > 1:
                narrow, numbers = head.only(np.array([code_of[id(turn[i].compiled)] for i in rows_here], np.uint16))
                codes = numbers.astype(">u2").tobytes()
            if not plain:
                asks = b"".join([turn[i].cost.to_bytes(7) + turn[i].fingerprint.to_bytes(8) for i in rows_here])
            part.calls.append(group_call(narrow, fill, codes, asks, repeatable=repeatable))
            part.sizes.append(len(rows_here))
            taken += [rows[i] for i in rows_here]
            again = NAMED_AGAIN if named else AGAIN
            weight += len(rows_here) * again if fill[0].tag == tag else sum(map(_weight, fill))
            tag = fill[-1].tag
            if weight >= PART_ROWS:
                part.rows = np.array(taken, np.intp)
                yield head, part
                part, taken, weight = Part([], [], np.empty(0, np.intp)), [], 0
        if taken:
            part.rows = np.array(taken, np.intp)
            yield head, part


def _turns(operations: Sequence[Operation]) -> Iterable[Sequence[int]]:
    """The rows of each family, in the order of sending: that of a subject under another family goes in a later turn."""
    first: Family = operations[0].compiled.family
    if all(operation.compiled.family is first for operation in operations):
        return [range(len(operations))]
    turns: dict[tuple[int, int], list[int]] = {}
    latest: dict[Subject, tuple[Family, int]] = {}
    for row, operation in enumerate(operations):
        family: Family = operation.compiled.family
        before = latest.get(operation.subject)
        turn = 0 if before is None else before[1] + (before[0] is not family)
        latest[operation.subject] = (family, turn)
        turns.setdefault((turn, id(family)), []).append(row)
    return [rows for _, rows in sorted(turns.items(), key=lambda item: item[0][0])]


def _fills(groups: Iterator[Group] | Sequence[Group], most: int, *, by_slot: bool) -> Iterator[list[Group]]:
    """Groups for one call each: on a cluster of one slot, of one kind of field, at most so many rows.

    A subject's groups are in calls of their own.
    """
    fill: list[Group] = []
    rows = 0
    for group in groups:
        if fill and (
            rows + len(group.rows) > most
            or (not group.fields and group.tag == fill[-1].tag)
            or (by_slot and group.slot != fill[0].slot)
            or type(group.fields) is not type(fill[0].fields)
        ):
            yield fill
            fill, rows = [], 0
        fill.append(group)
        rows += len(group.rows)
    if fill:
        yield fill


def _grouped(
    head: Head, subjects: Sequence[Subject] | NDArray[np.integer[Any]], *, by_slot: bool
) -> Iterator[tuple[list[Group], bool]]:
    """The groups of each part, those of one slot together; and whether to wait for all answers after it."""
    buckets = head.family.buckets
    if buckets and not isinstance(subjects, np.ndarray) and set(map(type, subjects)) == {int}:
        subjects = np.fromiter(subjects, np.uint64, len(subjects))  # pyright: ignore[reportArgumentType, reportCallIssue] - integers
    if buckets and isinstance(subjects, np.ndarray):
        groups = id_groups(subjects.astype(np.uint64, copy=False), by_slot=by_slot)
        yield from _parts(groups)
        return
    for first in range(0, len(subjects), ORDERED_ROWS):
        lot = subjects[first : first + ORDERED_ROWS]
        listed: Sequence[Subject] = lot.tolist() if isinstance(lot, np.ndarray) else lot
        groups = [*groups_of(listed, buckets, first, head.most_rows())]
        groups.sort(key=lambda group: (scattered(group.slot) if by_slot else 0, group.tag))
        *parts, (rest, _) = _parts(groups)
        yield from parts
        yield rest, True


def _parts(groups: Iterable[Group]) -> Iterator[tuple[list[Group], bool]]:
    """The groups of each part, and whether the next goes on with the same key: then all answers come before it."""
    part: list[Group] = []
    weight = 0
    for group in groups:
        if weight >= PART_ROWS:
            yield part, group.tag == part[-1].tag
            part, weight = [], 0
        part.append(group)
        weight += _weight(group)
    if part:
        yield part, False


def _weight(group: Group) -> int:
    rows = len(group.rows)
    return rows if group.fields or rows <= ROWS_OF_A_KEY else rows * AGAIN
