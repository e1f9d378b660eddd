"""Verbs of a hit that was recorded: settle, refund, commit and cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capline.service.http.forms import Cost, Name, Stamp, SubjectForm
from capline.service.http.table import post

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter
    from capline.service.http.app import Request


class ReservedRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A reserved hit, to be committed or cancelled."""

    policy: Name
    subject: SubjectForm
    hit: Stamp


class RefundRequest(ReservedRequest, forbid_unknown_fields=True):
    """A hit to be given back."""

    cost: Cost = 1


class SettleRequest(ReservedRequest, forbid_unknown_fields=True):
    """What a hit, made as an estimate, really cost."""

    cost: Cost


class Refunded(msgspec.Struct):
    """Whether the hit was given back now."""

    refunded: bool


class Settled(msgspec.Struct):
    """Whether there was such a hit."""

    settled: bool


class Committed(msgspec.Struct):
    """Whether the hit counts: it is the caller's."""

    committed: bool


class Cancelled(msgspec.Struct):
    """Whether the reserved hit was given back now."""

    cancelled: bool


class Hits:
    """See `Limiter` for what each does."""

    def __init__(self, limiter: AsyncLimiter) -> None:
        self._limiter = limiter

    @post("/v1/settle", SettleRequest, Settled, direct=True)
    async def settle(self, _request: Request, body: SettleRequest) -> Settled:
        """Give a hit that was an estimate what it really cost."""
        return Settled(await self._limiter.settle(body.policy, body.subject, body.hit, body.cost))

    @post("/v1/commit", ReservedRequest, Committed, direct=True)
    async def commit(self, _request: Request, body: ReservedRequest) -> Committed:
        """Keep a reserved hit; false once it has expired or was given back."""
        return Committed(await self._limiter.commit(body.policy, body.subject, body.hit))

    @post("/v1/cancel", ReservedRequest, Cancelled, direct=True)
    async def cancel(self, _request: Request, body: ReservedRequest) -> Cancelled:
        """Give a reserved hit back, once."""
        return Cancelled(await self._limiter.cancel(body.policy, body.subject, body.hit))

    @post("/v1/refund", RefundRequest, Refunded, direct=True)
    async def refund(self, _request: Request, body: RefundRequest) -> Refunded:
        """Give a hit back, once."""
        return Refunded(await self._limiter.refund(body.policy, body.subject, body.hit, body.cost))
