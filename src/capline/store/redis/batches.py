"""Batches on servers: parts in flight, and what their replies mean row by row. No I/O."""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from capline.model.decision import Decision
from capline.model.errors import CaplineError
from capline.store.columns import plain
from capline.store.protocol import Operation
from capline.store.receipts import batch_digest, namespace_of, receipt_conflict, receipt_name
from capline.store.redis.cluster.router import UnderReplicated
from capline.store.redis.io.wire import Reply, Steps, Work, pack
from capline.store.redis.scripting.keys import slot_of
from capline.store.redis.scripting.parts import Part, batch_parts, row_parts
from capline.store.redis.scripting.plans import MOVED, asked_of_plan, head_of_plan, part_of, plan_of
from capline.store.redis.scripting.replies import ReplyColumns, decisions
from capline.store.redis.scripting.requests import DECIDE, MODES, PEEK, Head
from capline.store.redis.scripting.scripts import Call
from capline.store.redis.session import unwrap
from capline.store.redis.steps import replicas_of, step_answer, step_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from capline.store.columns import Decisions
    from capline.store.protocol import Batch, Mode
    from capline.store.redis.cluster.router import InFlight
    from capline.store.redis.scripting.compiled_rule import Family, RedisRule
    from capline.store.redis.session import Session

_T = TypeVar("_T")
ROWS_A_ROUND = 10_000
"""Operations in one round trip, where each is a call."""
SHORT_ROWS = 1000
"""Of a batch that is built, and whose answers are read, at once: some 10 ms. With more, others go on meanwhile."""
IN_FLIGHT = 2
"""Parts of a batch in flight: the servers decide one while the next is built."""

A_ROW_S = 0.0001
"""Seconds that each attempt of a batch adds to the deadline: some 20 us on the server, and as much here."""


def rows(session: Session, operations: Sequence[Operation]) -> Steps[list[Any]]:
    """Operations of any kinds and policies; one that fails is its error."""
    answers: list[Any] = []
    until = min(session.until() + len(operations) * A_ROW_S, session.bulk_until())
    for (kind, replicas), group in groupby(operations, lambda operation: (operation.kind, replicas_of(operation))):
        run = [*group]
        if kind == "decide" and not (len(run) <= SHORT_ROWS and _each_flat(run)):
            answers += yield from _decide_rows(session, run, until)
        else:
            for first in range(0, len(run), ROWS_A_ROUND):
                answers += yield from _each(session, run[first : first + ROWS_A_ROUND], until, replicas)
    return answers


def _each_flat(operations: Sequence[Operation]) -> bool:
    """Whether flat.lua judges each of them, faster than the general rule does in a batch; one a subject at most."""
    return len({operation.subject for operation in operations}) == len(operations) and all(
        operation.compiled.flat and not (operation.compiled.short and operation.cost == 1 and not operation.fingerprint)
        for operation in operations
    )


def _each(session: Session, operations: Sequence[Operation], until: float, replicas: int = 0) -> Steps[list[Any]]:
    """A call each, in one round trip."""
    rows = len(operations)
    calls = yield from _work(rows, lambda: [step_call(session, operation) for operation in operations])
    outcomes = yield from session.router.run(calls, until, replicas)
    return (yield from _work(rows, lambda: [*map(_step_answer_or_error, outcomes, operations)]))


def _step_answer_or_error(outcome: Reply, operation: Operation) -> Any:
    try:
        return step_answer(outcome, operation)
    except CaplineError as error:
        return error


def _decide_rows(session: Session, operations: Sequence[Operation], until: float) -> Steps[list[Any]]:
    answers: list[Any] = [None] * len(operations)

    def take(part: Part, outcomes: Sequence[Reply]) -> None:
        start = 0
        for outcome, size in zip(outcomes, part.sizes, strict=True):
            rows: list[int] = part.rows[start : start + size].tolist()
            start += size
            for row, answer in zip(rows, _row_answers(outcome, [operations[row] for row in rows]), strict=True):
                answers[row] = answer

    parts = row_parts(operations, session.now(), by_slot=session.router.topology.by_slot)
    yield from _exchange(session, len(operations), parts, lambda: until, take)
    return answers


def columns(session: Session, batch: Batch, mode: Mode) -> Steps[Any]:
    """Many operations of one kind and one policy, as columns."""
    return _refund(session, batch) if mode == "refund" else _decide(session, batch, MODES[mode])


def _refund(session: Session, batch: Batch) -> Steps[NDArray[np.bool_]]:
    """Refund many hits; raises the first error after all were tried."""
    answers: list[Any] = []
    for first in range(0, len(batch.subjects), ROWS_A_ROUND):
        part = slice(first, first + ROWS_A_ROUND)
        hits = zip(plain(batch.subjects[part]), plain(batch.stamps_us[part]), strict=True)
        operations = [
            Operation("refund", batch.compiled[0], subject, batch.cost, stamp_us=stamp_us) for subject, stamp_us in hits
        ]
        answers += yield from _each(session, operations, session.bulk_until())
    failed = next((answer for answer in answers if isinstance(answer, CaplineError)), None)
    if failed is not None:
        raise failed
    return np.array(answers, np.bool_)


def _decide(session: Session, batch: Batch, mode: int) -> Steps[Decisions]:
    """Decide, or peek at, many attempts of one policy."""
    compiled: tuple[RedisRule, ...] = batch.compiled
    codes = None if batch.codes is None else np.asarray(batch.codes, np.uint16)
    columns = ReplyColumns(compiled, codes, len(batch.subjects), peeked=mode == PEEK, receipt=batch.receipt)
    receipt = None
    plan = b""
    if batch.receipt is not None:
        receipt = (batch.receipt, batch_digest(batch))
        plan = plan_of(batch)
        kept = yield from _claim(session, batch, *receipt, plan)
        if kept is not None:
            return (yield from _repeated(session, batch, *kept))
    head = Head(compiled[0].family, mode, compiled, session.now(), batch.cost, tell=False)
    by_slot = session.router.topology.by_slot
    yield from _exchange(
        session,
        len(batch.subjects),
        batch_parts(head, batch.subjects, codes, by_slot=by_slot, receipt=receipt),
        session.bulk_until,
        lambda part, outcomes: _take(columns, part, outcomes, batch.cost),
    )
    if receipt is not None and columns.conflicts:
        # Of another batch, or moved by a process that has other rules.
        return (yield from _repeated(session, batch, receipt[1], plan))
    return columns.answers


def _repeated(session: Session, batch: Batch, digest: bytes, plan: bytes) -> Steps[Decisions]:
    """The answers that were given under the plan's rules; calls that have none follow the rules now in force."""
    receipt = batch.receipt or ""
    head, codes = head_of_plan(plan, batch, session.now())
    columns = ReplyColumns(head.compiled, codes, len(batch.subjects), peeked=False, receipt=receipt)
    moved: list[tuple[int, NDArray[np.intp]]] = []
    numbers = count()

    def take(part: Part, outcomes: Sequence[Reply]) -> None:
        ends = np.cumsum(part.sizes)
        for outcome, rows in zip(outcomes, np.split(part.rows, ends[:-1]), strict=True):
            number = next(numbers)
            kept = outcome.reply if isinstance(outcome, UnderReplicated) else outcome
            if kept is None or (isinstance(kept, bytes) and kept[7:] == MOVED):
                moved.append((number, rows))
            elif isinstance(kept, bytes) and kept[7:23] != digest:
                columns.fail(rows, receipt_conflict(receipt))
            elif isinstance(kept, bytes):
                columns.take(rows, [kept[23:]], [len(rows)], batch.cost)
                if isinstance(outcome, UnderReplicated):
                    columns.doubt(rows, outcome.error)
            else:
                columns.fail(rows, kept)

    by_slot = session.router.topology.by_slot
    parts = batch_parts(head, batch.subjects, codes, by_slot=by_slot, receipt=(receipt, MOVED))
    yield from _exchange(session, len(batch.subjects), parts, session.bulk_until, take)
    answers = columns.answers
    for number, rows in moved:
        answers.put(rows, (yield from _decide(session, part_of(batch, rows, number), DECIDE)))
    return answers


def _exchange(
    session: Session,
    rows: int,
    parts: Iterator[tuple[Head, Part]],
    until: Callable[[], float],
    take: Callable[[Part, Sequence[Reply]], None],
) -> Steps[None]:
    """Send the parts of so many rows, a few at a time, and take what each brings."""
    landing: deque[tuple[Part, InFlight]] = deque()

    def land() -> Steps[None]:
        part, flight = landing.popleft()
        outcomes = yield from session.router.finish(flight, until())
        yield from _work(rows, partial(take, part, outcomes))

    while (built := (yield from _work(rows, partial(next, parts, None)))) is not None:
        head, part = built
        replicas = 0 if head.mode == PEEK else head.family.replicas
        landing.append((part, (yield from session.router.start(part.calls, until(), replicas))))
        while landing and (part.last or len(landing) >= IN_FLIGHT):
            yield from land()
    while landing:
        yield from land()


def _work(rows: int, run: Callable[[], _T]) -> Steps[_T]:
    """What it returns, for a batch of so many rows."""
    return (yield Work(run)) if rows > SHORT_ROWS else run()


def _claim(
    session: Session, batch: Batch, receipt: str, digest: bytes, plan: bytes
) -> Steps[tuple[bytes, bytes] | None]:
    """Record once which batch the receipt was given for; raises if it was another batch.

    If it was this one under other rules, returns the digest and the plan of those.
    """
    family: Family = batch.compiled[0].family
    name = receipt_name(batch, receipt).hex().encode()
    # No log has an empty name, so this is never a log's key.
    key = b"%b:/receipt:{%b}" % (namespace_of(batch).encode(), name)
    now_us = 0 if session.clock is None else session.clock.now_us()
    value = (now_us + family.retention_us).to_bytes(8) + digest
    expires = b"%d" % (family.retention_us // 1000 + family.grace_ms)
    slot = slot_of(name)
    # Nor one that begins with a slash. The plan comes first: a claim without one is the previous release's.
    plans = b"%b:/plan:{%b}" % (namespace_of(batch).encode(), name)
    keep = (b"SET", plans + digest.hex().encode(), plan, b"PX", expires, b"NX")
    command = (b"SET", key, value, b"PX", expires)
    for options in ((b"NX", b"GET"), (b"GET",)):
        outcomes = yield from session.router.run(
            [Call(slot, pack(*sent), repeatable=True) for sent in (keep, (*command, *options))], session.bulk_until()
        )
        _, kept = map(unwrap, outcomes)
        if kept is None or (kept[8:] == digest and int.from_bytes(kept[:8]) > now_us):
            return None
        if session.clock is None or int.from_bytes(kept[:8]) > now_us:
            read = Call(slot, pack(b"GET", plans + kept[8:].hex().encode()), repeatable=True)
            [outcome] = yield from session.router.run([read], session.bulk_until())
            before = unwrap(outcome)
            if before is None or not batch.asked or asked_of_plan(before) != batch.asked:
                raise receipt_conflict(receipt)
            return kept[8:], before
        # Expired by the caller's clock but not yet by the server's: it is overwritten.
    return None


def _row_answers(outcome: Reply, operations: Sequence[Operation]) -> list[Decision | CaplineError]:
    compiled, costs = [operation.compiled for operation in operations], [operation.cost for operation in operations]
    if isinstance(outcome, CaplineError):
        return [outcome] * len(operations)
    if isinstance(outcome, UnderReplicated):
        answers = decisions(outcome.reply, compiled, costs)
        return [outcome.error if isinstance(answer, Decision) and answer.allowed else answer for answer in answers]
    return decisions(outcome, compiled, costs)


def _take(columns: ReplyColumns, part: Part, outcomes: Sequence[Reply], cost: int) -> None:
    """Put a part's outcomes into the columns; replies without an error all at once."""
    if all(type(outcome) is bytes for outcome in outcomes):
        columns.take(part.rows, outcomes, part.sizes, cost)
        return
    start = 0
    for outcome, size in zip(outcomes, part.sizes, strict=True):
        rows = part.rows[start : start + size]
        start += size
        if isinstance(outcome, CaplineError):
            columns.fail(rows, outcome)
        elif isinstance(outcome, UnderReplicated):
            columns.take(rows, [outcome.reply], [size], cost)
            columns.doubt(rows, outcome.error)
        else:
            columns.take(rows, [outcome], [size], cost)
