"""The plan of a batch with a receipt: all that it takes to find and read its answers under rules that have changed.

    msgpack  [asked, [log, buckets, rows of a call] of each family, [family, widest, limits] of each code, codes]

The keys of the answers follow from the rows of each call and their buckets, which follow from the rules; the answers
name limits by their number. So a plan is kept for each set of rules that decided the batch, by the batch's digest,
which the claim and the answers have too. The previous release reads these as ever, and no plan.

A call that has no answer when the batch is repeated under other rules is *moved*: in place of an answer its key gets
`MOVED`, so that no process can decide it under the old ones any more, and its rows are a batch of their own, whose
receipt goes on from this one. A process that still has the old rules finds that out by the script's conflict.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from capline.store.protocol import Batch
from capline.store.receipts import DIGEST_BYTES, limits_of_texts
from capline.store.redis.scripting.requests import DECIDE, KEPT, Head

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from capline.store.redis.scripting.compiled_rule import Family, RedisRule

MOVED = bytes(DIGEST_BYTES)


def plan_of(batch: Batch) -> bytes:
    """The plan under the batch's rules."""
    compiled: tuple[RedisRule, ...] = batch.compiled
    families: dict[Family, list[RedisRule]] = {}
    for rule in compiled:
        families.setdefault(rule.family, []).append(rule)
    places = {family: place for place, family in enumerate(families)}
    calls = [
        (family.logs[0], family.buckets, Head(family, DECIDE, own, b"", batch.cost).most_rows())
        for family, own in families.items()
    ]
    kinds = [(places[rule.family], rule.widest_us, [*map(str, rule.limits)]) for rule in compiled]
    codes = b"" if batch.codes is None else zlib.compress(batch.codes.astype("<u2").tobytes(), level=1)
    return msgspec.msgpack.encode((batch.asked, calls, kinds, codes))


def asked_of_plan(plan: bytes) -> bytes:
    """The digest of what the caller asked."""
    return msgspec.msgpack.decode(plan)[0]


def head_of_plan(plan: bytes, batch: Batch, now: bytes) -> tuple[Head, NDArray[np.uint16] | None]:
    """The head and the codes to find the batch's answers with, as they were given under the plan's rules."""
    _, calls, kinds, coded = msgspec.msgpack.decode(plan)
    some: RedisRule = batch.compiled[0]
    families = [
        msgspec.structs.replace(some.family, logs=(log, b"%d" % place), buckets=buckets)
        for place, (log, buckets, _) in enumerate(calls)
    ]
    compiled = [
        msgspec.structs.replace(some, family=families[place], widest_us=widest_us, limits=limits_of_texts(texts))
        for place, widest_us, texts in kinds
    ]
    rows = {family: rows for family, (_, _, rows) in zip(families, calls, strict=True)}
    codes = np.frombuffer(zlib.decompress(coded), "<u2").astype(np.uint16) if coded else None
    return Head(compiled[0].family, KEPT, compiled, now, batch.cost, tell=False, rows=rows), codes


def part_of(batch: Batch, rows: NDArray[np.intp], number: int) -> Batch:
    """The rows of the call of this number, as a batch of their own."""
    subjects = batch.subjects
    numbers: list[int] = rows.tolist()
    taken = subjects[rows] if isinstance(subjects, np.ndarray) else [subjects[row] for row in numbers]
    codes = None if batch.codes is None else batch.codes[rows]
    asked = hashlib.blake2b(b"%b%d" % (batch.asked, number), digest_size=DIGEST_BYTES).digest()
    return Batch(batch.compiled, taken, codes, batch.cost, f"{batch.receipt}\0{number}", asked)
