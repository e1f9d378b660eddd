"""The verbs of `Store` on a server, as generators: what to ask, then what it means. No I/O: both stores drive these."""

from __future__ import annotations

import hashlib
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from capline.model.clock import LATEST_US
from capline.model.errors import (
    CaplineError,
    IdConflictError,
    InvalidValueError,
    StoreDamagedError,
    StoreError,
    StoreUnknownError,
)
from capline.store.protocol import Found, Page, Recorded
from capline.store.redis.engine import Call, Engine, Steps, Unconfirmed
from capline.store.redis.keys import field_of, log_of_key, slot_of, subject_of, tag_of, tag_of_key
from capline.store.redis.plan import (
    DECIDE,
    PEEK,
    PLACE,
    Head,
    Part,
    batch_parts,
    joint_call,
    joint_groups,
    keys_of,
    one_payload,
    row_parts,
    single_call,
)
from capline.store.redis.reply import Columns, JointReply, damaged, decisions, joint_reply, one_decision
from capline.store.redis.scripts import MERGE, ONE, REFUND, SWEEP
from capline.store.redis.terms import Family, RedisTerms, bind
from capline.store.redis.value import StoredLog, read_value
from capline.store.redis.wire import Exchange, Lost, Reply, Request, ServerError, pack
from capline.window.merge import Merged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from capline.model.clock import Clock
    from capline.model.decision import Decision, Joint
    from capline.model.policy import Rule
    from capline.model.subject import Subject
    from capline.store.columns import Decisions
    from capline.store.protocol import Ask, Batch, Merge
    from capline.store.redis.engine import Flight
    from capline.store.redis.url import Address, Settings

__all__ = ["Verbs"]

IN_FLIGHT = 2
"""Parts of a batch on their way: one at the servers while the next is put together."""

SCAN_COUNT = 1000
KEYS_A_PAGE = 200
"""Keys asked for in one step of a scan, each of a subject's log or a bucket's."""
ROWS_A_ROUND = 10_000
"""Refunds, or keys swept, in one round trip."""

A_ROW_S = 0.0001
"""What each attempt in a batch adds to the deadline of one: some 20 us of the server's, and as much here."""

_TIME = pack(b"TIME")
_HIT = struct.Struct(">7s7sQ")
"""A hit as merge.lua takes it."""


class Verbs:
    """What is asked of the servers for each verb. Threads share it."""

    def __init__(self, settings: Settings, clock: Clock | None) -> None:
        self.engine = Engine(settings)
        self._clock = clock
        self._logs: dict[str, RedisTerms] = {}
        self._families: dict[Family, Family] = {}

    def terms(self, rule: Rule) -> RedisTerms:
        """See `Store`."""
        terms = bind(rule, self._clock is not None)
        # Equal families are one object, so that rows are sorted by it at no cost.
        terms.family = self._families.setdefault(terms.family, terms.family)
        for name in terms.refund_logs:
            self._logs[name.decode()] = terms
        return terms

    def now(self) -> bytes:
        """The caller's clock as an argument; empty for the server's. Raises where no script could count on from it."""
        if self._clock is None:
            return b""
        now_us = self._clock.now_us()
        if not 0 <= now_us < LATEST_US:
            raise InvalidValueError(f"the clock says {now_us}; it tells microseconds since 1970, below {LATEST_US}")
        return b"%d" % now_us

    def until(self) -> float:
        """When a single call has to be answered."""
        return time.monotonic() + self.engine.settings.deadline_s

    def _bulk_until(self) -> float:
        return time.monotonic() + self.engine.settings.bulk_deadline_s

    def one(
        self,
        terms: RedisTerms,
        subject: Subject,
        mode: int,
        cost: int,
        fingerprint: int,
        slot: tuple[int, int] = (-1, 0),
    ) -> tuple[Call, int]:
        """The call of one attempt that is decided, looked at or placed, and how many replicas are to have it.

        A `slot` is at most (-1: no bound) and at least so many us from now.
        """
        replicas = 0 if mode == PEEK else terms.family.replicas
        if terms.short and cost == 1 and not fingerprint and mode != PEEK:
            return Call(*one_payload(terms, subject, self.now(), slot if mode == PLACE else None), ONE), replicas
        head = Head(terms.family, mode, (terms,), self.now(), cost, *slot)
        return single_call(head, subject, fingerprint), replicas

    def one_answer(self, outcome: Reply, terms: RedisTerms, cost: int, mode: int) -> Decision:
        """The decision that the outcome of such a call is, or raise."""
        if type(outcome) is Unconfirmed:
            decision = one_decision(outcome.reply, terms, cost, slot=mode == PLACE)
            if decision.allowed:
                raise outcome.error
            return decision
        return one_decision(_sound(outcome), terms, cost, slot=mode == PLACE, peeked=mode == PEEK)

    def alone(self, call: Call, replicas: int = 0) -> Steps[Reply | CaplineError]:
        """What becomes of a single call."""
        [outcome] = yield from self.engine.run([call], self.until(), replicas)
        return outcome

    def decide_all(self, asks: Sequence[Ask]) -> Steps[Joint]:
        """One attempt over several subjects: one call; on a cluster one for each slot, one after the other.

        Where a slot refuses or fails, what the slots before it recorded is given back. So never is more admitted than
        allowed; but others may be refused meanwhile by what is given back.
        """
        taken: list[JointReply] = []
        groups = joint_groups(asks, by_slot=self.engine.topology.by_slot)
        until = self.until() + (len(groups) - 1) * self.engine.settings.deadline_s
        for number, group in enumerate(groups):
            try:
                answer = yield from self._joint([asks[i] for i in group], DECIDE, until)
            except _NotReplicated as short:
                given = [*zip(groups, [*taken, short.answer], strict=False)] if number else []
                yield from self._give_back_all(asks, given, short.error)
                raise short.error from None
            except CaplineError as error:
                yield from self._give_back_all(asks, zip(groups, taken, strict=False), error)
                raise
            if not answer.joint.allowed:
                yield from self._give_back_all(asks, zip(groups, taken, strict=False), None)
                return _refused_by(answer.joint, group)
            taken.append(answer)
        return _together(groups, [answer.joint for answer in taken])

    def peek_all(self, asks: Sequence[Ask]) -> Steps[Joint]:
        """What `decide_all` would answer; the slots are looked at all at once."""
        groups = joint_groups(asks, by_slot=self.engine.topology.by_slot)
        parts = [[asks[i] for i in group] for group in groups]
        now = self.now()
        outcomes = yield from self.engine.run([joint_call(part, PEEK, now) for part in parts], self.until())
        answers = [
            joint_reply(_sound(outcome), part, peeked=True).joint for outcome, part in zip(outcomes, parts, strict=True)
        ]
        return _together(groups, answers)

    def at_once(self, asks: Sequence[Ask], mode: int) -> Call | None:
        """The one call that an attempt over several subjects takes; None where it takes more, or waits for replicas."""
        if mode == DECIDE and any(ask.terms.family.replicas for ask in asks):
            return None
        if len(joint_groups(asks, by_slot=self.engine.topology.by_slot)) > 1:
            return None
        return joint_call(asks, mode, self.now())

    def joint_answer(self, outcome: Reply, asks: Sequence[Ask], mode: int) -> Joint:
        """The answer that the outcome of this one call is, or raise."""
        return joint_reply(_sound(outcome), asks, peeked=mode == PEEK).joint

    def _joint(self, asks: Sequence[Ask], mode: int, until: float) -> Steps[JointReply]:
        call = joint_call(asks, mode, self.now())
        replicas = max([ask.terms.family.replicas for ask in asks])
        [outcome] = yield from self.engine.run([call], until, replicas)
        if type(outcome) is Unconfirmed:
            answer = joint_reply(outcome.reply, asks)
            if answer.joint.allowed:
                raise _NotReplicated(answer, outcome.error)
            return answer
        return joint_reply(_sound(outcome), asks)

    def _give_back_all(
        self, asks: Sequence[Ask], taken: Iterable[tuple[list[int], JointReply]], why: CaplineError | None
    ) -> Steps[None]:
        """Give back what these groups recorded, but for what was known before; raises where that did not come off."""
        calls = [
            self.refund_call(asks[group[i]].terms, asks[group[i]].subject, answer.joint.hits[i], asks[group[i]].cost)
            for group, answer in taken
            for i in answer.new
        ]
        outcomes = (yield from self.engine.run(calls, self.until())) if calls else []
        failed = next((outcome for outcome in outcomes if isinstance(outcome, CaplineError)), None)
        if failed is not None:
            raise StoreUnknownError(
                f"one attempt over several slots was not allowed as a whole{f' ({why})' if why else ''}, "
                f"and a part of it that was recorded may not have been given back: {failed}"
            ) from None

    def given_back(self, outcome: Reply, terms: RedisTerms) -> bool:
        """Whether the outcome of a `refund_call` says that there was such a hit; raises its error."""
        return _given_back(outcome, terms)

    def refund_many(
        self, terms: RedisTerms, subjects: Sequence[Subject], stamps_us: Sequence[int], cost: int
    ) -> Steps[NDArray[np.bool_]]:
        """Give many hits back; raises the first error, after all were tried."""
        given = np.zeros(len(subjects), np.bool_)
        failed: CaplineError | None = None
        for first in range(0, len(subjects), ROWS_A_ROUND):
            calls = [
                self.refund_call(terms, subject, int(stamp), cost)
                for subject, stamp in zip(
                    _listed(subjects[first : first + ROWS_A_ROUND]),
                    stamps_us[first : first + ROWS_A_ROUND],
                    strict=True,
                )
            ]
            outcomes = yield from self.engine.run(calls, self._bulk_until())
            for row, outcome in enumerate(outcomes, first):
                try:
                    given[row] = _given_back(outcome, terms)
                except CaplineError as error:
                    failed = failed or error
        if failed is not None:
            raise failed
        return given

    def refund_call(self, terms: RedisTerms, subject: Subject, stamp_us: int, cost: int) -> Call:
        """The call that gives one hit back."""
        family = terms.family
        tag = tag_of(subject, family.buckets)
        keys = keys_of(terms.refund_logs, tag)
        field = field_of(subject) if family.buckets else b""
        numbers = (b"%d" % number for number in (family.keep_us, family.grace_ms, family.wide, cost))
        asked = (b"%d" % stamp_us, field, self.now(), *numbers, terms.refund_keeps)
        payload = pack(b"EVALSHA", REFUND.sha, b"%d" % len(keys), *keys, *asked)
        return Call(slot_of(tag), payload, REFUND)

    def decide_batch(self, asks: Sequence[Ask]) -> Steps[list[Decision | CaplineError]]:
        """Attempts of any policies; an item that fails is its error."""
        answers: list[Any] = [None] * len(asks)
        if not asks:
            return answers
        landing: deque[tuple[Part, Flight]] = deque()
        until = min(self.until() + len(asks) * A_ROW_S, self._bulk_until())

        def land() -> Steps[None]:
            part, flight = landing.popleft()
            outcomes = yield from self.engine.finish(flight, until)
            start = 0
            for outcome, size in zip(outcomes, part.sizes, strict=True):
                rows: list[int] = part.rows[start : start + size].tolist()
                start += size
                for row, answer in zip(rows, _row_answers(outcome, [asks[row] for row in rows]), strict=True):
                    answers[row] = answer

        for head, part in row_parts(asks, self.now(), by_slot=self.engine.topology.by_slot):
            flight = yield from self.engine.start(part.calls, until, head.family.replicas)
            landing.append((part, flight))
            while landing and (part.last or len(landing) >= IN_FLIGHT):
                yield from land()
        while landing:
            yield from land()
        return answers

    def many(self, batch: Batch, mode: int) -> Steps[Decisions]:
        """Decide, or peek at, many attempts of one policy."""
        terms: tuple[RedisTerms, ...] = batch.terms
        codes = None if batch.codes is None else np.asarray(batch.codes, np.uint16)
        columns = Columns(terms, codes, len(batch.subjects), peeked=mode == PEEK)
        receipt = None
        if batch.receipt is not None:
            receipt = (batch.receipt, _digest(batch))
            yield from self._claim(batch.receipt, receipt[1], terms[0])
        head = Head(terms[0].family, mode, terms, self.now(), batch.cost)
        replicas = 0 if mode == PEEK else head.family.replicas
        landing: deque[tuple[Part, Flight]] = deque()

        def land() -> Steps[None]:
            part, flight = landing.popleft()
            outcomes = yield from self.engine.finish(flight, self._bulk_until())
            _take(columns, part, outcomes, batch.cost)

        by_slot = self.engine.topology.by_slot
        for part in batch_parts(head, batch.subjects, codes, by_slot=by_slot, receipt=receipt):
            flight = yield from self.engine.start(part.calls, self._bulk_until(), replicas)
            landing.append((part, flight))
            while landing and (part.last or len(landing) >= IN_FLIGHT):
                yield from land()
        while landing:
            yield from land()
        return columns.done()

    def _claim(self, receipt: str, digest: bytes, terms: RedisTerms) -> Steps[None]:
        """Put the receipt under this batch's name, once; raises where it is another batch's."""
        family = terms.family
        name = hashlib.blake2b(receipt.encode(), digest_size=16).hexdigest().encode()
        key = b"%b/receipt:{%b}" % (family.logs[0], name)
        now_us = 0 if self._clock is None else self._clock.now_us()
        value = (now_us + family.keep_us).to_bytes(8) + digest
        expires = b"%d" % (family.keep_us // 1000 + family.grace_ms)
        slot = slot_of(name)
        command = (b"SET", key, value, b"PX", expires)
        for options in ((b"NX", b"GET"), (b"GET",)):
            [outcome] = yield from self.engine.run(
                [Call(slot, pack(*command, *options), repeatable=True)], self._bulk_until()
            )
            kept = _sound(outcome)
            if kept is None or (kept[8:] == digest and int.from_bytes(kept[:8]) > now_us):
                return
            if self._clock is None or int.from_bytes(kept[:8]) > now_us:
                raise IdConflictError(
                    f"receipt {receipt!r} was given for another batch; a new batch takes a new receipt"
                )
            # It has expired by the caller's clock, not yet by the server's: it is written over.

    def recorded(self, terms: RedisTerms, subject: Subject) -> Steps[list[list[Recorded]]]:
        """The hits of each look within the widest window."""
        family = terms.family
        tag = tag_of(subject, family.buckets)
        keys = keys_of(family.logs, tag)
        slot = slot_of(tag)
        if family.buckets:
            payloads = [pack(b"HGET", key, field_of(subject)) for key in keys]
        else:
            payloads = [pack(b"GET", key) for key in keys]
        calls = [Call(slot, payload, repeatable=True) for payload in (*payloads, _TIME)]
        *values, asked = yield from self.engine.run(calls, self.until())
        now_us = _time_us(_sound(asked)) if self._clock is None else self._clock.now_us()
        return [_within(_stored(_sound(value), terms), now_us, family.keep_us) for value in values]

    def merge(self, asks: Sequence[Merge]) -> Steps[list[Merged | CaplineError]]:
        """Put hits of the past into logs. It may run twice and adds once, so it is sent again until it is answered."""
        calls = [self._merge_call(ask) for ask in asks]
        outcomes = yield from self.engine.run(calls, self._bulk_until())
        return [_merged(outcome, ask.terms) for outcome, ask in zip(outcomes, asks, strict=True)]

    def _merge_call(self, ask: Merge) -> Call:
        family: Family = ask.terms.family
        tag = tag_of(ask.subject, family.buckets)
        keys = keys_of(family.logs, tag)
        field = field_of(ask.subject) if family.buckets else b""
        numbers = (b"%d" % number for number in (family.keep_us, family.grace_ms, family.wide))
        packed = b"".join(
            [_HIT.pack(stamp.to_bytes(7), units.to_bytes(7), mark) for stamp, units, mark in sorted(ask.hits)]
        )
        payload = pack(b"EVALSHA", MERGE.sha, b"%d" % len(keys), *keys, field, self.now(), *numbers, packed)
        return Call(slot_of(tag), payload, MERGE, repeatable=True)

    def scan(self, all_terms: Sequence[RedisTerms], after: tuple[list[Address], bytes] | None) -> Steps[Page]:
        """The logs of some keys of one server; `after` is the servers that are left, and the cursor of the first."""
        [outcome] = yield from self.engine.run([Call(0, _TIME, repeatable=True)], self._bulk_until())
        now_us = _time_us(_sound(outcome)) if self._clock is None else self._clock.now_us()
        nodes, cursor = (self.engine.topology.primaries(), b"0") if after is None else after
        if not nodes:
            return Page([])
        of_log = {log.decode(): one for one in all_terms for log in one.refund_logs}
        namespace = all_terms[0].family.logs[0].partition(b":")[0]
        ask = pack(b"SCAN", cursor, b"MATCH", b"%b:*:{*}" % namespace, b"COUNT", b"%d" % KEYS_A_PAGE)
        [[reply]] = yield Exchange([Request(nodes[0], ask, 1)], self._bulk_until())
        if isinstance(reply, (ServerError, Lost)):
            raise StoreError(f"scanning {nodes[0][0]}:{nodes[0][1]}: {reply.text}; begin the scan again")
        cursor, keys = reply
        found: list[Found] = []
        kept = [
            (key, of_log[log_of_key(key)], tag)
            for key in keys
            if log_of_key(key) in of_log and (tag := tag_of_key(key)) is not None
        ]
        own = [one for one in kept if not one[1].family.buckets]
        calls = [Call(slot_of(tag), pack(b"GET", key), repeatable=True) for key, _, tag in own]
        outcomes = (yield from self.engine.run(calls, self._bulk_until())) if calls else []
        for (key, terms, tag), value in zip(own, outcomes, strict=True):
            found += _found(log_of_key(key), terms, tag, [(None, value)], now_us)
        buckets = [(*one, b"0") for one in kept if one[1].family.buckets]
        while buckets:
            calls = [
                Call(slot_of(tag), pack(b"HSCAN", key, at, b"COUNT", b"%d" % KEYS_A_PAGE), repeatable=True)
                for key, _, tag, at in buckets
            ]
            outcomes = yield from self.engine.run(calls, self._bulk_until())
            left: list[tuple[bytes, RedisTerms, bytes, bytes]] = []
            for (key, terms, tag, _), scanned in zip(buckets, outcomes, strict=True):
                if isinstance(scanned, CaplineError):
                    found += _found(log_of_key(key), terms, tag, [(b"", scanned)], now_us)
                    continue
                at, flat = _sound(scanned)
                found += _found(log_of_key(key), terms, tag, zip(flat[::2], flat[1::2], strict=True), now_us)
                if at != b"0":
                    left.append((key, terms, tag, at))
            buckets = left
        nodes = nodes[1:] if cursor == b"0" else nodes
        return Page(found, (nodes, cursor) if nodes else None)

    def erase(self, all_terms: Sequence[RedisTerms], subject: Subject) -> Steps[int]:
        """Forget the subject in all of these logs."""
        calls: list[Call] = []
        for log, buckets in dict.fromkeys((log, one.family.buckets) for one in all_terms for log in one.refund_logs):
            tag = tag_of(subject, buckets)
            [key] = keys_of([log], tag)
            payload = pack(b"HDEL", key, field_of(subject)) if buckets else pack(b"DEL", key)
            calls.append(Call(slot_of(tag), payload, repeatable=True))
        outcomes = yield from self.engine.run(calls, self.until())
        return sum(_sound(outcome) for outcome in outcomes)

    def sweep(self) -> Steps[int]:
        """Remove what is out of every window from all logs that this store was asked about."""
        yield from self.engine.run([Call(0, _TIME, repeatable=True)], self._bulk_until())
        removed = 0
        for node in self.engine.topology.primaries():
            cursor = b"0"
            while True:
                scan = pack(b"SCAN", cursor, b"MATCH", b"*:{*", b"COUNT", b"%d" % SCAN_COUNT)
                [[reply]] = yield Exchange([Request(node, scan, 1)], self._bulk_until())
                if isinstance(reply, (ServerError, Lost)):
                    raise StoreError(f"sweeping {node[0]}:{node[1]}: {reply.text}")
                cursor, keys = reply
                outcomes = yield from self.engine.run(
                    [call for key in keys if (call := self._sweep_call(key))], self._bulk_until()
                )
                removed += sum(_sound(outcome) for outcome in outcomes)
                if cursor == b"0":
                    break
        return removed

    def _sweep_call(self, key: bytes) -> Call | None:
        terms = self._logs.get(log_of_key(key))
        if terms is None:
            return None
        family = terms.family
        tag = key.partition(b":{")[2].removesuffix(b"}")
        hashed = b"1" if family.buckets else b"0"
        payload = pack(b"EVALSHA", SWEEP.sha, b"1", key, hashed, self.now(), b"%d" % family.keep_us)
        return Call(slot_of(tag), payload, SWEEP, repeatable=True)

    def now_us(self) -> Steps[int]:
        """The server's clock, or the caller's."""
        if self._clock is not None:
            return self._clock.now_us()
        [outcome] = yield from self.engine.run([Call(0, _TIME, repeatable=True)], self.until())
        return _time_us(_sound(outcome))


class _NotReplicated(Exception):  # noqa: N818 - the error is inside
    """A joint attempt was recorded, but too few replicas have it."""

    def __init__(self, answer: JointReply, error: StoreUnknownError) -> None:
        super().__init__(str(error))
        self.answer = answer
        self.error = error


def _refused_by(joint: Joint, group: Sequence[int]) -> Joint:
    """A refusal, its part by the number that it has among all."""
    return msgspec.structs.replace(joint, binds=None if joint.binds is None else group[joint.binds])


def _together(groups: Sequence[Sequence[int]], answers: Sequence[Joint]) -> Joint:
    """The answers of the slots as one: that of the slot that refuses for longest, or has the least left."""
    own = [_refused_by(answer, group) for answer, group in zip(answers, groups, strict=True)]
    refused = [answer for answer in own if not answer.allowed]
    if refused:
        return max(refused, key=lambda answer: float("inf") if answer.retry_after_us is None else answer.retry_after_us)
    hits = dict(
        pair for group, answer in zip(groups, answers, strict=True) for pair in zip(group, answer.hits, strict=False)
    )
    least = min(own, key=lambda answer: answer.remaining)
    reset_after_us = max([answer.reset_after_us or 0 for answer in own])
    ordered = tuple([hits[number] for number in sorted(hits)])
    return msgspec.structs.replace(least, reset_after_us=reset_after_us, hits=ordered)


def _sound(outcome: Reply) -> Any:
    """The reply itself; raises the error that stands for it."""
    if isinstance(outcome, Unconfirmed):
        outcome = outcome.reply
    if isinstance(outcome, CaplineError):
        raise outcome
    return outcome


def _merged(outcome: Reply, terms: RedisTerms) -> Merged | CaplineError:
    if isinstance(outcome, CaplineError):
        return outcome
    counts: list[int] = _sound(outcome)
    return damaged(terms) if counts[0] < 0 else Merged(*counts)


def _found(
    log: str, terms: RedisTerms, tag: bytes, kept: Iterable[tuple[bytes | None, Reply]], now_us: int
) -> Iterator[Found]:
    """The logs that these values are, by their fields (None: a key of its own), those that have no hit left out."""
    for field, value in kept:
        subject = None
        try:
            if isinstance(value, CaplineError):
                raise value
            subject = subject_of(tag, field)
            hits = _within(_stored(value, terms), now_us, terms.family.keep_us)
        except StoreDamagedError as error:
            yield Found(log, subject, error=error)
            continue
        if subject is not None and hits:
            yield Found(log, subject, hits)


def _given_back(outcome: Reply, terms: RedisTerms) -> bool:
    given = _sound(outcome)
    if given < 0:
        raise damaged(terms)
    return bool(given)


def _row_answers(outcome: Reply, asks: Sequence[Ask]) -> list[Decision | CaplineError]:
    terms, costs = [ask.terms for ask in asks], [ask.cost for ask in asks]
    if isinstance(outcome, CaplineError):
        return [outcome] * len(asks)
    if isinstance(outcome, Unconfirmed):
        answers = decisions(outcome.reply, terms, costs)
        return [outcome.error if not isinstance(one, CaplineError) and one.allowed else one for one in answers]
    return decisions(outcome, terms, costs)


def _take(columns: Columns, part: Part, outcomes: Sequence[Reply], cost: int) -> None:
    """Put a part's outcomes into the columns: the sound ones all at once."""
    if all(type(outcome) is bytes for outcome in outcomes):
        columns.take(part.rows, outcomes, part.sizes, cost)
        return
    start = 0
    for outcome, size in zip(outcomes, part.sizes, strict=True):
        rows = part.rows[start : start + size]
        start += size
        if isinstance(outcome, CaplineError):
            columns.fail(rows, outcome)
        elif isinstance(outcome, Unconfirmed):
            columns.take(rows, [outcome.reply], [size], cost)
            columns.doubt(rows, outcome.error)
        else:
            columns.take(rows, [outcome], [size], cost)


def _stored(value: bytes | None, terms: RedisTerms) -> StoredLog:
    try:
        return read_value(value)
    except StoreDamagedError:
        raise damaged(terms) from None


def _within(log: StoredLog, now_us: int, keep_us: int) -> list[Recorded]:
    horizon_us = max(now_us, log.floor_us) - keep_us
    return [Recorded(*hit) for hit in log.hits if hit[0] > horizon_us]


def _time_us(reply: list[bytes]) -> int:
    return int(reply[0]) * 1_000_000 + int(reply[1])


def _listed(values: Any) -> Any:
    return values.tolist() if isinstance(values, np.ndarray) else values


def _digest(batch: Batch) -> bytes:
    """What was asked, so that a receipt cannot answer another question; the same for a list and an array."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(msgspec.msgpack.encode([_listed(batch.subjects), batch.cost]))
    digest.update(b"" if batch.codes is None else np.asarray(batch.codes, np.uint16).tobytes())
    for terms in batch.terms:
        rule: Rule = terms.rule
        digest.update(
            msgspec.msgpack.encode([(look.log, [str(limit) for limit in look.limits]) for look in rule.looks])
        )
    return digest.digest()
