r"""Receipts: the name that the answers of a batch are kept under, and a digest of the batch. The same for every store.

    name     16 bytes of BLAKE2b over  namespace "\0" receipt
    digest   16 bytes of BLAKE2b over  policy, zone, logs and limits of each code; the subjects; their codes; the cost

The rule: in one namespace a receipt names one batch. The same question under it gets the answers that were given; any
other, of another policy, zone, subject or cost, is an `IdConflictError` and consumes nothing. Costs some 0.1 µs a row.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from capline.model.errors import IdConflictError
from capline.store.columns import plain

if TYPE_CHECKING:
    from capline.model.policy import BoundPolicy
    from capline.store.protocol import Batch

__all__ = ["batch_digest", "namespace_of", "receipt_conflict", "receipt_name"]

DIGEST_BYTES = 16


def namespace_of(batch: Batch) -> str:
    """The namespace of the batch's logs: what stands before the first `:` of each name."""
    rule: BoundPolicy = batch.compiled[0].rule
    return rule.logs[0].log.partition(":")[0]


def receipt_name(batch: Batch, receipt: str) -> bytes:
    """What the receipt is called in the store."""
    return hashlib.blake2b(f"{namespace_of(batch)}\0{receipt}".encode(), digest_size=DIGEST_BYTES).digest()


def batch_digest(batch: Batch) -> bytes:
    """A digest of the batch, so that a receipt cannot answer another batch; the same for a list and an array."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    rules: list[BoundPolicy] = [compiled.rule for compiled in batch.compiled]
    asked = [
        (rule.policy, rule.zone, [(own.log, [str(limit) for limit in own.limits]) for own in rule.logs])
        for rule in rules
    ]
    digest.update(msgspec.msgpack.encode([asked, plain(batch.subjects), batch.cost]))
    digest.update(b"" if batch.codes is None else batch.codes.astype("<u2").tobytes())
    return digest.digest()


def receipt_conflict(receipt: str) -> IdConflictError:
    """The error of a receipt that comes with another batch."""
    return IdConflictError(f"receipt {receipt!r} was given for another batch; a new batch takes a new receipt")
