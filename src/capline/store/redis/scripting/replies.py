"""From the scripts' replies to decisions. The head of each script in lua/ has the form of its reply."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from capline.model.decision import Decision, Joint
from capline.model.errors import IdConflictError, StoreDamagedError, StoreError
from capline.model.limit_status import states_of
from capline.store.columns import NEVER_US, NO_HIT, Decisions
from capline.store.receipts import receipt_conflict
from capline.store.redis.scripting.compiled_rule import SIMPLE_BYTES, STATE_BYTES
from capline.window.charge import too_many
from capline.window.joint import SLOTS_DIFFER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from capline.model.errors import CaplineError
    from capline.model.limit import Limit
    from capline.model.limit_status import LimitStatus
    from capline.store.protocol import Operation
    from capline.store.redis.scripting.compiled_rule import RedisRule

SPECIAL = np.dtype([("kind", "u1"), ("limit", "u1"), ("remaining", ">i8"), ("first", ">i8"), ("reset", ">i8")])
_REFUSED, _ALLOWED, _CONFLICT, _DAMAGED, _OTHER_BATCH, _NO_ROOM = 0, 1, 2, 3, 4, 5
_KNOWN, _SLOTS_DIFFER, _NO_ROOM_IN_PART = 4, 5, 6
"""Of joint.lua."""
_FORGOTTEN = 2
"""In place of whether a part's id was known: its slot is older than its log."""
_SINGLE = struct.Struct(">QHBBQQQ")
"""The only row of a reply, where it has a record of its own."""
_JOINT = struct.Struct(">QBBBQQQ")
_JOINT_PART = struct.Struct(">BQ")
NO_ROOM = -2
"""The reply of refund.lua and merge.lua for more units than a log can count."""
_NO_STAMP = 1 << 60
"""The hit of a row that was only peeked at."""
_MARK = 255
"""In place of a limit's number: the row has a record of its own behind the rows."""


def conflict(units: int, cost: int) -> IdConflictError:
    """The error of an id that was sent again with another cost."""
    return IdConflictError(
        f"this id was recorded with a cost of {units}, not {cost}; "
        "a retry repeats the attempt, a new attempt takes a new id"
    )


def damaged(compiled: RedisRule) -> StoreDamagedError:
    """The error of a value that is no log."""
    name = compiled.rule.logs[0].log
    return StoreDamagedError(
        f"log {name!r}: what is stored for this subject is no log of capline's; erase the subject, or find who wrote it"
    )


def one_decision(reply: bytes, compiled: RedisRule, cost: int, *, slot: bool = False, peeked: bool = False) -> Decision:
    """The answer to a call of one row; raises the row's error."""
    if len(reply) == compiled.simple_bytes:
        hit = None if peeked else int.from_bytes(reply[:8])
        seen = (_states, compiled, reply, SIMPLE_BYTES)
        limit, left = reply[8], reply[9]
        if left == _MARK:
            left = int.from_bytes(reply[SIMPLE_BYTES + STATE_BYTES * limit : SIMPLE_BYTES + 8 + STATE_BYTES * limit])
        return Decision(True, compiled.limits[limit], left, 0, compiled.widest_us, hit, _seen=seen)
    now_us, _, *record = _SINGLE.unpack_from(reply)
    answer = _special(compiled, record, cost, now_us, slot, peeked, (_states, compiled, reply, _SINGLE.size))
    if isinstance(answer, Decision):
        return answer
    raise answer


def _part_error(kind: int, left: int, compiled: RedisRule, cost: int) -> CaplineError:
    """The error of a part, by joint.lua's kinds."""
    if kind == _CONFLICT:
        return conflict(left, cost)
    if kind == _DAMAGED:
        return damaged(compiled)
    if kind == _SLOTS_DIFFER:
        return IdConflictError(SLOTS_DIFFER)
    return too_many(cost) if kind == _NO_ROOM_IN_PART else _strange(kind)


def decisions(
    reply: bytes, compiled: Sequence[RedisRule], costs: Sequence[int], *, slot: bool = False, peeked: bool = False
) -> list[Decision | CaplineError]:
    """The answers to the rows of one call; `compiled[i]` and `costs[i]` are row i's."""
    rows = len(compiled)
    now_us = int.from_bytes(reply[:8])
    at = 8 + 2 * rows
    state_at = at + SPECIAL.itemsize * sum([reply[i] == _MARK for i in range(8, at, 2)])
    answers: list[Decision | CaplineError] = []
    for row, own in enumerate(compiled):
        limit, left = reply[8 + 2 * row], reply[9 + 2 * row]
        seen = (_states, own, reply, state_at)
        if limit != _MARK:
            hit = None if peeked else now_us
            answers.append(Decision(True, own.limits[limit], left, 0, own.widest_us, hit, _seen=seen))
            state_at += STATE_BYTES * len(own.limits)
            continue
        kind, limit = reply[at], reply[at + 1]
        left, first, reset = (int.from_bytes(reply[at + i : at + i + 8]) for i in (2, 10, 18))
        at += SPECIAL.itemsize
        if kind in (_REFUSED, _ALLOWED):
            state_at += STATE_BYTES * len(own.limits)
        answers.append(_special(own, (kind, limit, left, first, reset), costs[row], now_us, slot, peeked, seen))
    return answers


def _special(
    compiled: RedisRule, record: Sequence[int], cost: int, now_us: int, slot: bool, peeked: bool, seen: tuple[Any, ...]
) -> Decision | CaplineError:
    kind, limit, left, first, reset = record
    bound = compiled.limits[limit] if limit < len(compiled.limits) else None
    if kind == _ALLOWED:
        known = None if peeked and first == _NO_STAMP else first
        ahead_us = first - now_us if slot else 0
        wait_us, late_us = max(0, ahead_us), max(0, -ahead_us)
        return Decision(True, bound, left, 0, reset, known, wait_us=wait_us, late_us=late_us, _seen=seen)
    if kind == _REFUSED:
        return Decision(False, bound, left, first - 1 if first else None, reset, None, _seen=seen)
    if kind == _CONFLICT:
        return conflict(left, cost)
    if kind == _DAMAGED:
        return damaged(compiled)
    return too_many(cost) if kind == _NO_ROOM else _strange(kind)


def _states(compiled: RedisRule, reply: bytes, at: int) -> tuple[LimitStatus, ...]:
    return states_of(compiled.rule.logs, struct.unpack_from(">" + "qQQ" * len(compiled.limits), reply, at))


def _joint_states(operations: Sequence[Operation], reply: bytes) -> tuple[tuple[LimitStatus, ...], ...]:
    states: list[tuple[LimitStatus, ...]] = []
    at = _JOINT.size + _JOINT_PART.size * len(operations)
    for number, operation in enumerate(operations):
        if reply[_JOINT.size + _JOINT_PART.size * number] == _FORGOTTEN:
            states.append(())
            continue
        states.append(_states(operation.compiled, reply, at))
        at += STATE_BYTES * len(operation.compiled.limits)
    return tuple(states)


def _strange(kind: int) -> StoreError:
    return StoreError(f"a script's reply has the unknown kind {kind}; is another version of capline in use?")


class JointReply(msgspec.Struct, frozen=True):
    """The answer to a call over several subjects.

    `in_doubt`: the call was sent twice, so a part whose id was known may be its own, or an earlier attempt's.
    """

    joint: Joint
    parts: list[tuple[int, int]]
    """Whether the id of each part was known, and its hit."""
    in_doubt: bool = False

    @property
    def new(self) -> tuple[int, ...]:
        """The parts that recorded a hit."""
        return tuple([number for number, (known, _) in enumerate(self.parts) if self.joint.allowed and not known])


def joint_reply(reply: bytes, operations: Sequence[Operation]) -> JointReply:
    """The answer to a call of joint.lua for these operations; raises its error."""
    numbers: tuple[int, ...] = _JOINT.unpack_from(reply)
    now_us, kind, part, limit, left, retry, reset = numbers
    compiled: RedisRule = operations[part].compiled
    cost, kind_asked = operations[part].cost, operations[0].kind
    if kind not in (_REFUSED, _ALLOWED, _KNOWN):
        raise _part_error(kind, left, compiled, cost)
    states_at = _JOINT.size + _JOINT_PART.size * len(operations)
    parts = [*_JOINT_PART.iter_unpack(reply[_JOINT.size : states_at])]
    allowed = kind != _REFUSED
    ahead_us = parts[0][1] - now_us if kind_asked == "schedule" and allowed else 0
    joint = Joint(
        allowed,
        compiled.limits[limit] if limit < len(compiled.limits) else None,
        left,
        0 if allowed else retry - 1 if retry else None,
        reset,
        tuple([hit for _, hit in parts]) if allowed and kind_asked != "peek" else (),
        part,
        wait_us=max(0, ahead_us),
        late_us=max(0, -ahead_us),
        _seen=(_joint_states, operations, reply),
    )
    return JointReply(joint, parts)


class ReplyColumns:
    """The answers to a batch as they come in, call by call, in any order."""

    def __init__(
        self,
        compiled: Sequence[RedisRule],
        codes: NDArray[np.uint16] | None,
        rows: int,
        *,
        peeked: bool,
        receipt: str | None = None,
    ) -> None:
        self._terms = compiled
        self._receipt = receipt
        self._codes = codes
        self._peeked = peeked
        limits, self._index = _limits_of(compiled)
        self.answers = Decisions.unanswered(limits, rows)
        """Of all rows, once every call was taken or has failed."""
        self._widest = np.array([one.widest_us for one in compiled], np.int64)
        self.conflicts = False
        """Whether a call was told that its receipt was given for another batch."""

    def fail(self, rows: NDArray[np.intp], error: CaplineError) -> None:
        """These rows have no answer."""
        self.answers.errors.update(dict.fromkeys(rows.tolist(), error))

    def doubt(self, rows: NDArray[np.intp], error: CaplineError) -> None:
        """The allowed ones of these rows get this error for an answer: a failover may lose their hits."""
        yes = rows[self.answers.allowed[rows]]
        self.answers.place(yes, Decisions.unanswered((), len(yes)))
        self.fail(yes, error)

    def take(self, rows: NDArray[np.intp], replies: Sequence[bytes], sizes: Sequence[int], cost: int) -> None:
        """The replies to calls of so many rows each; `rows` are the rows of all calls, one call after the other."""
        joined = b"".join([reply[8 : 8 + 2 * size] for reply, size in zip(replies, sizes, strict=True)])
        simple = np.frombuffer(joined, np.uint8).reshape(-1, 2)
        now_us = np.repeat([int.from_bytes(reply[:8]) for reply in replies], sizes)
        codes = np.zeros(len(rows), np.intp) if self._codes is None else self._codes[rows].astype(np.intp)
        allowed, limit_index, remaining, retry_after_us, reset_after_us, hit = self.answers.columns
        plain = simple[:, 0] != _MARK
        at = rows[plain]
        allowed[at] = True
        limit_index[at] = self._index[codes[plain], simple[plain, 0]]
        remaining[at] = simple[plain, 1]
        retry_after_us[at] = 0
        reset_after_us[at] = self._widest[codes[plain]]
        if not self._peeked:
            hit[at] = now_us[plain]
        if plain.all():
            return
        records = np.frombuffer(
            b"".join([reply[8 + 2 * size :] for reply, size in zip(replies, sizes, strict=True)]), SPECIAL
        )
        at, own = rows[~plain], codes[~plain]
        yes, no = records["kind"] == _ALLOWED, records["kind"] == _REFUSED
        answered = yes | no
        numbers = np.where(records["limit"] < self._index.shape[1], records["limit"], 0)
        index = np.where(records["limit"] == _MARK, -1, self._index[own, numbers])
        allowed[at] = yes
        limit_index[at] = np.where(answered, index, -1)
        remaining[at] = np.where(answered, records["remaining"], 0)
        retry_after_us[at] = np.where(yes, 0, np.where(no & (records["first"] > 0), records["first"] - 1, NEVER_US))
        reset_after_us[at] = np.where(answered, records["reset"], NEVER_US)
        hit[at] = np.where(yes & (records["first"] != _NO_STAMP), records["first"], NO_HIT)
        for i in np.flatnonzero(~answered).tolist():
            units, compiled = int(records["remaining"][i]), self._terms[int(own[i])]
            self.answers.errors[int(at[i])] = self._error(int(records["kind"][i]), units, compiled, cost)

    def _error(self, kind: int, units: int, compiled: RedisRule, cost: int) -> CaplineError:
        if kind == _CONFLICT:
            return conflict(units, cost)
        if kind == _NO_ROOM:
            return too_many(cost)
        if kind == _OTHER_BATCH and self._receipt is not None:
            self.conflicts = True
            return receipt_conflict(self._receipt)
        return damaged(compiled) if kind == _DAMAGED else _strange(kind)


def _limits_of(compiled: Sequence[RedisRule]) -> tuple[tuple[Limit, ...], NDArray[np.int16]]:
    """Every limit that can bind a row, each once; and for each code and each of its limits, which of them it is."""
    place: dict[int, int] = {}
    limits: list[Limit] = []
    index = np.full((len(compiled), max(len(one.limits) for one in compiled)), -1, np.int16)
    for code, one in enumerate(compiled):
        for number, limit in enumerate(one.limits):
            if id(limit) not in place:
                place[id(limit)] = len(limits)
                limits.append(limit)
            index[code, number] = place[id(limit)]
    return tuple(limits), index
