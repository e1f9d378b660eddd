"""Verbs of many rows, each by itself, answered in columns: attempts are decided, hits given back."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
import numpy as np

from capline.limiter.aio import AsyncLimiter
from capline.model.attempt import Attempt
from capline.model.decision import Decision
from capline.model.errors import CaplineError, InvalidValueError
from capline.model.subject import Subject
from capline.service.access.new_subjects import NewSubjects, count_new, is_new
from capline.service.http.app import BATCH_BYTES, Reply, Request
from capline.service.http.forms import Cost, KeepingAttempt, Name, Reader, Stamp
from capline.service.http.problems import Problem
from capline.service.http.table import post
from capline.store.columns import Decisions
from capline.support.override import override

T = TypeVar("T")

LOOP_BYTES = 32_768
"""A batch of a larger body is read and answered in a thread: other requests get their turn."""


class BatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Many subjects of one policy, as columns; or `attempts` of any policies, and nothing beside them."""

    policy: str | None = None
    subjects: list[Subject] | None = None
    segment: str | None = None
    segments: list[str | None] | None = None
    codes: list[int] | None = None
    channel: str | None = None
    zone: str | None = None
    cost: Cost = 1
    receipt: str | None = None
    keep_free: Cost | list[Cost | list[Cost]] = 0
    attempts: list[KeepingAttempt] | None = None

    def check(self) -> None:
        """Raise where it is neither of the two, or both."""
        if self.attempts is not None:
            if self != BatchRequest(attempts=self.attempts):
                raise InvalidValueError(
                    "attempts name all that is theirs: give policy, subjects and the rest, or attempts"
                )
        elif self.policy is None or self.subjects is None:
            raise InvalidValueError("a batch has policy and subjects, or attempts")
        if self.segment is not None and self.segments is not None:
            raise InvalidValueError("give segment, one for all, or segments, not both")


class Columns(msgspec.Struct):
    """The answers to many, in the order asked.

    By row: `errors`, their `kinds` (capline's names), and `origins` where not `origin`.
    """

    allowed: list[bool]
    remaining: list[int]
    retry_after: list[float | None]
    reset_after: list[float | None]
    hit: list[int | None]
    limit: list[str | None]
    errors: dict[str, str]
    kinds: dict[str, str]
    origin: str
    origins: dict[str, str]


class BatchRefundRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Hits of one policy to be given back: `subjects[i]` had `hits[i]`."""

    policy: Name
    subjects: list[Subject]
    hits: list[Stamp]
    cost: Cost = 1


class RefundedRows(msgspec.Struct):
    """Whether each hit was given back now, in the order asked."""

    refunded: list[bool]


class _Parts(msgspec.Struct, forbid_unknown_fields=True):
    """A batch of attempts that are not decoded yet."""

    attempts: list[msgspec.Raw]


class BatchReader(Reader):
    """Reads a large batch attempt by attempt: one decoding of them all would hold up every other thread."""

    def __init__(self) -> None:
        super().__init__(BatchRequest)
        self._attempt = Reader(KeepingAttempt)
        self._parts = msgspec.json.Decoder(_Parts)

    @override
    def __call__(self, body: bytes, packed: bool = False) -> Any:
        if not packed and len(body) > LOOP_BYTES:
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, Problem):
                raw = [bytes(attempt) for attempt in self._parts.decode(body).attempts]
                # Besides the attempts there is their own key, once; whatever else it may be is looked at as a whole.
                if body.count(b'"') == 2 + sum(attempt.count(b'"') for attempt in raw):
                    return BatchRequest(attempts=[self._attempt(attempt) for attempt in raw])
        return super().__call__(body, packed)


class Batch:
    """See `Limiter.decide_batch` and `decide_many`."""

    def __init__(self, limiter: AsyncLimiter, subject_bound: NewSubjects | None, most_rows: int) -> None:
        self._limiter, self._subject_bound, self._most_rows = limiter, subject_bound, most_rows
        self._reader, self._refund_reader = BatchReader(), Reader(BatchRefundRequest)

    @post("/v1/decide/batch", BatchRequest, Columns, body_bytes=BATCH_BYTES, reads=True, scoped=True)
    async def decide_batch(self, request: Request) -> Reply:
        """Many attempts, each decided by itself, as columns."""
        large = len(request.body) > LOOP_BYTES
        batch, attempts = await _threaded(partial(self._read, request), large=large)
        if not request.scope.is_all:
            request.scope.check(*{batch.policy or ""} if attempts is None else {each.policy for each in attempts})
        if self._subject_bound is not None:
            self._subject_bound.check_many(request.who)
        if attempts is not None:
            decided = await self._limiter.decide_batch(attempts)
            columns, new = partial(columns_of_rows, decided), partial(_count_new_rows, decided, attempts)
        else:
            many = await self._limiter.decide_many(
                batch.policy or "",
                batch.subjects or [],
                segment=batch.segment if batch.segments is None else batch.segments,
                codes=batch.codes,
                channel=batch.channel,
                zone=batch.zone,
                cost=batch.cost,
                receipt=_receipt(request, batch),
                keep_free=batch.keep_free,  # pyright: ignore[reportArgumentType] - the limiter checks it
            )
            columns, new = partial(columns_of, many), partial(count_new, many, batch.cost)
        if self._subject_bound is not None:
            await self._subject_bound.created(request.who, await _threaded(new, large=large))
        return await _threaded(partial(_encoded, request, columns), large=large)

    @post(
        "/v1/refund/batch",
        BatchRefundRequest,
        RefundedRows,
        body_bytes=BATCH_BYTES,
        reads=True,
        scoped=True,
        examples={"POST": {"policy": "promo", "subjects": ["ann", 7], "hits": [1763700000000000, 1763700000000007]}},
    )
    async def refund_batch(self, request: Request) -> Reply:
        """Many hits given back, each once; it may be sent again."""
        large = len(request.body) > LOOP_BYTES
        read = partial(self._refund_reader, request.body, request.packed)
        body: BatchRefundRequest = await _threaded(read, large=large)
        request.scope.check(body.policy)
        self._check_rows(len(body.subjects))
        refunded = await self._limiter.refund_many(body.policy, body.subjects, body.hits, body.cost)
        return await _threaded(partial(_encoded, request, lambda: RefundedRows(refunded.tolist())), large=large)

    def _check_rows(self, rows: int) -> None:
        if rows > self._most_rows:
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{rows} rows in a batch; at most {self._most_rows} a call"
            )

    def _read(self, request: Request) -> tuple[BatchRequest, list[Attempt] | None]:
        """The body of a batch, and its attempts where it is not in columns."""
        batch: BatchRequest = self._reader(request.body, request.packed)
        batch.check()
        self._check_rows(len(batch.attempts or batch.subjects or ()))
        return batch, None if batch.attempts is None else [part.attempt() for part in batch.attempts]


def _receipt(request: Request, batch: BatchRequest) -> str | None:
    """The batch's receipt: that of a token for some policies is its alone, or it could take others' receipts."""
    return batch.receipt if not batch.receipt or request.scope.is_all else f"{request.who}:{batch.receipt}"


async def _threaded(work: Callable[[], T], *, large: bool) -> T:
    return await asyncio.to_thread(work) if large else work()


def _encoded(request: Request, columns: Callable[[], msgspec.Struct]) -> Reply:
    reply = Reply(columns())
    reply.sent(request.packed)
    return reply


def _count_new_rows(decided: Sequence[Decision | CaplineError], attempts: Sequence[Attempt]) -> int:
    pairs = zip(decided, attempts, strict=True)
    return sum(isinstance(answer, Decision) and is_new(answer, attempt.cost) for answer, attempt in pairs)


def columns_of(answers: Decisions) -> Columns:
    """The answers of `decide_many`. Costs a fraction of a microsecond a row."""
    names: list[str | None] = [*map(str, answers.limits), None]  # -1, no limit, is the last
    return Columns(
        answers.allowed.tolist(),
        answers.remaining.tolist(),
        [None if us < 0 else us / 1e6 for us in answers.retry_after_us.tolist()],
        [None if us < 0 else us / 1e6 for us in answers.reset_after_us.tolist()],
        [None if stamp < 0 else stamp for stamp in answers.hit.tolist()],
        [names[index] for index in np.asarray(answers.limit_index).tolist()],
        {str(row): str(error) for row, error in answers.errors.items()},
        {str(row): type(error).__name__ for row, error in answers.errors.items()},
        answers.origin,
        {str(row): origin for row, origin in answers.origins.items()},
    )


def columns_of_rows(answers: Sequence[Decision | CaplineError]) -> Columns:
    """The answers of `decide_batch`; a row that is wrong is not allowed, and says why in `errors`."""
    errors = {str(row): answer for row, answer in enumerate(answers) if not isinstance(answer, Decision)}
    rows = [answer if isinstance(answer, Decision) else _NO_ANSWER for answer in answers]
    return Columns(
        [row.allowed for row in rows],
        [row.remaining for row in rows],
        [row.retry_after for row in rows],
        [row.reset_after for row in rows],
        [row.hit for row in rows],
        [None if row.limit is None else str(row.limit) for row in rows],
        {row: str(error) for row, error in errors.items()},
        {row: type(error).__name__ for row, error in errors.items()},
        "store",
        {str(place): row.origin for place, row in enumerate(rows) if row.origin != "store"},
    )


_NO_ANSWER = Decision(False, None, 0, None, None, None)
