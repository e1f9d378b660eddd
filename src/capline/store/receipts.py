r"""Receipts: the name that the answers of a batch are kept under, and two digests of it. The same for every store.

    name     16 bytes of BLAKE2b over  namespace "\0" receipt
    asked    16 bytes of BLAKE2b over  what the caller passed: policy, channel, cost; the segment and zone of each row,
                                       where they are named; the subjects
    digest   16 bytes of BLAKE2b over  policy, zone, logs and limits of each code; the subjects; their codes; the cost

What must stay free is a part of either where something must, so a receipt of before that was asked for still answers.

The rule: in one namespace a receipt names one batch. The same question under it gets the answers that were given; any
other, of another policy, zone, subject or cost, is an `IdConflictError` and consumes nothing. Limits, overrides and
segments that were looked up are no part of the question: they may have changed since.

A process of the previous release has only the digest. It finds its form of every receipt: it answers from one whose
limits it has too, and says conflict to any other, consuming nothing. What the answers meant is kept beside it. Costs
some 0.2 µs a row.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from capline.model.errors import IdConflictError
from capline.model.limit import limit_of_text
from capline.store.columns import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.limit import Limit
    from capline.model.policy import BoundPolicy
    from capline.store.protocol import Batch
else:
    from capline.model.arrays import np

DIGEST_BYTES = 16


def namespace_of(batch: Batch) -> str:
    """The namespace of the batch's logs: what stands before the first `:` of each name."""
    rule: BoundPolicy = batch.compiled[0].rule
    return rule.logs[0].log.partition(":")[0]


def receipt_name(batch: Batch, receipt: str) -> bytes:
    """What the receipt is called in the store."""
    return hashlib.blake2b(f"{namespace_of(batch)}\0{receipt}".encode(), digest_size=DIGEST_BYTES).digest()


def asked_digest(
    question: Sequence[object],
    kinds: Sequence[tuple[Any, ...]],
    codes: NDArray[np.uint16] | None,
    subjects: Sequence[Any] | NDArray[Any],
) -> bytes:
    """A digest of what a caller passed: policy, channel and cost, for each code a segment, a zone and what stays free.

    However the caller lists the kinds, the same of each row give the same digest.
    """
    used: list[int] = [0] if codes is None else np.unique(codes).tolist()
    distinct = sorted({kinds[code] for code in used}, key=repr)
    if codes is not None and len(distinct) > 1:
        places = {kind: place for place, kind in enumerate(distinct)}
        places_of = np.array([places.get(kind, 0) for kind in kinds], "<u2")
        coded = places_of[codes].tobytes()
    else:
        coded = b""
    digest = hashlib.blake2b(msgspec.msgpack.encode([question, distinct, plain(subjects)]), digest_size=DIGEST_BYTES)
    digest.update(coded)
    return digest.digest()


def batch_digest(batch: Batch) -> bytes:
    """A digest of the batch, so that a receipt cannot answer another batch; the same for a list and an array."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    rules: list[BoundPolicy] = [compiled.rule for compiled in batch.compiled]
    asked = [
        (
            rule.policy,
            rule.zone,
            [(own.log, [*map(str, own.limits)], *([own.keep_free] if own.keep_free else [])) for own in rule.logs],
        )
        for rule in rules
    ]
    digest.update(msgspec.msgpack.encode([asked, plain(batch.subjects), batch.cost]))
    digest.update(b"" if batch.codes is None else batch.codes.astype("<u2").tobytes())
    return digest.digest()


def limits_of_texts(texts: Sequence[str]) -> tuple[Limit, ...]:
    """The limits that were kept as text beside the answers that they bound."""
    return tuple([limit_of_text(text) for text in texts])


def receipt_conflict(receipt: str) -> IdConflictError:
    """The error of a receipt that comes with another batch."""
    receipt = receipt.partition("\0")[0]  # a part's own goes on from its batch's
    return IdConflictError(f"receipt {receipt!r} was given for another batch; a new batch takes a new receipt")
