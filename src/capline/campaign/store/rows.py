"""A batch's rows as columns, in the campaign store and in memory.

    decided: written once, with the decision                outcome: written again after each step
    ids           the subjects (`packed`)                   state     u8   the row's state (below)
    codes   u16   segment: 0 for none, i for the i-th one   attempts  u8   sends so far
    limit   i16   into `limits`, -1 for none                reason    u8   into `reasons` from 1 on, 0 for none
    hit     i64   the stamp to refund, -1 for none
    retry   i64   microseconds from `at_us`, -1 for never

    DECIDING ─┬─> REFUSED                        to be decided, under the batch's receipt; the limiter said no
    HELD <────┤                                  not yet: decided again (DECIDING) when `retry` has gone by
    HELD_OUT  v       EXCLUDED <── OPTED_OUT     never decided; never sent, once a hit there was is refunded
    PENDING ──> UNSURE ─┬─> DELIVERED            allowed; being sent; the receiver has it
      ┌───────────^     ├─> UNSURE ─> NOT_KNOWN  perhaps accepted: sent again while attempts are left; the hit stays
    RETRY <─────────────┤                        surely not accepted: sent again while attempts are left
                        └─> FAILED ─> REFUNDED   surely not accepted, for good: the hit is refunded next; it was
                                      └> RETRIED the row is decided again, and counted, in a later batch

Each state is on disk before what it says is done. So a message that was UNSURE at a kill may have been accepted, and an
interrupted refund (FAILED, OPTED_OUT) is repeated: the stamp makes it one. `FATES` says what each state means. The
bytes are the columns one after the other, little-endian, deflated: 2 to 10 bytes a row beside ids of text.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np

from capline.campaign.senders.protocol import PERMANENT, TRANSIENT
from capline.campaign.store.packed import damaged, inflate, pack_ids, span_of, unpack_ids
from capline.model.subject import LONGEST_TEXT_BYTES
from capline.store.columns import NEVER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from capline.campaign.senders.protocol import Outcomes
    from capline.campaign.store.packed import Ids
    from capline.model.limit import Limit
    from capline.store.columns import Decisions

REFUSED, PENDING, DELIVERED, RETRY, FAILED, REFUNDED, UNSURE, NOT_KNOWN, RETRIED = range(9)
DECIDING, HELD_OUT, OPTED_OUT, EXCLUDED, HELD = range(9, 14)


class Fate(NamedTuple):
    """What a state means: the `outcome` to show, what is to be `done` next, and the state after that if it is known."""

    outcome: str
    done: Literal["", "decide", "send", "refund", "wait"] = ""
    then: int = -1


FATES = (
    Fate("refused"),
    Fate("under way", "send"),
    Fate("sent"),
    Fate("under way", "send"),
    Fate("failed", "refund", REFUNDED),
    Fate("failed"),
    Fate("under way", "send"),
    Fate("not known"),
    Fate("under way"),
    Fate("under way", "decide", PENDING),
    Fate("held out"),
    Fate("excluded", "refund", EXCLUDED),
    Fate("excluded"),
    Fate("held", "wait"),
)
"""By state, whatever may become of a message."""
_TO = {done: np.array([fate.done == done for fate in FATES]) for done in ("", "decide", "send", "refund", "wait")}
STATES = len(FATES)
LARGEST_BATCH = 100_000
"""A batch is one transaction of the limits' store, which blocks others: some 0.3 s for 100,000."""

_DECIDED = ("<u2", "<i2", "<i8", "<i8")
_LARGEST_ROW = LONGEST_TEXT_BYTES + 32
_OUTCOME = ("u1", "u1", "u1")
_LARGEST_ROOM = 8 * 1024
_MOST_REASONS = 255
_LONGEST_REASON = 160
_LAST_REASON = "other reasons"
_CANCELLED = "the campaign was cancelled"
_CUT_OFF = "the process ended before an answer was written down"
_MOST_ATTEMPTS = 255
SECOND_US = 1_000_000
DELAYS_S = (1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400)
"""The bounds of the histogram of delays: from when a message was due until its receiver had it."""


class _Outcome(msgspec.Struct, array_like=True):
    """The second half of a step, as it is recorded."""

    settled: bool
    columns: bytes
    reasons: list[str]
    delays: dict[int, list[int]] = {}
    receipt_us: int = 0
    room: bytes = b""


@dataclass(slots=True)
class BatchRows:
    """One decided batch; the columns are described in the module's text."""

    number: int
    at_us: int
    limits: tuple[str, ...]
    ids: Ids
    codes: NDArray[np.uint16]
    limit: NDArray[np.int16]
    hit: NDArray[np.int64]
    retry_us: NDArray[np.int64]
    state: NDArray[np.uint8]
    attempts: NDArray[np.uint8]
    reason: NDArray[np.uint8]
    reasons: list[str] = field(default_factory=list[str])
    delays: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """By segment: how many were handed over within each of `DELAYS_S`, and later; last the sum of their delays in s."""
    receipt_us: int = 0
    """The instant in the receipt of the rows that are being decided; 0 where a batch is decided once."""
    room: NDArray[np.int64] | None = None
    """The room that each row that is being decided leaves: when to decide it again (0: it leaves none), then units."""

    @classmethod
    def undecided(cls, number: int, at_us: int, ids: Ids, codes: NDArray[np.integer[Any]]) -> BatchRows:
        """The rows of a batch that is to be decided."""
        size = len(ids)
        return cls(
            number,
            at_us,
            (),
            ids,
            codes.astype(np.uint16),
            np.full(size, -1, np.int16),
            np.full(size, -1, np.int64),
            np.full(size, -1, np.int64),
            np.full(size, DECIDING, np.uint8),
            np.zeros(size, np.uint8),
            np.zeros(size, np.uint8),
        )

    def take_decisions(
        self,
        rows: NDArray[np.intp],
        answers: Decisions,
        holds: Callable[[Limit], bool] = lambda _limit: False,
        since_us: int | None = None,
        cost: int = 0,
    ) -> None:
        """Take the limiter's answers for these rows. Rows that were only peeked at (HELD_OUT) have a limit if refused.

        What a limit refuses is held until a whole second if `holds` says so, unless it never fits. The answers count
        from `since_us`, else from `at_us`. A row that was refused only for the room that it leaves is held too: its
        `cost` fits.
        """
        self.limits = tuple(dict.fromkeys((*self.limits, *map(str, answers.limits))))
        places = [self.limits.index(str(limit)) for limit in answers.limits]
        held_out = self.state[rows] == HELD_OUT
        self.limit[rows] = np.where(
            held_out & answers.allowed, -1, np.array([*places, -1], np.int16)[answers.limit_index]
        )
        self.hit[rows] = answers.hit
        retry_us = answers.retry_after_us
        waits = np.array([*map(holds, answers.limits), False])[answers.limit_index]
        held = waits & (retry_us != NEVER_US)
        if since_us is not None:
            retry_us = np.where(retry_us == NEVER_US, retry_us, retry_us + (since_us - self.at_us))
        if self.room is not None:
            again_us, leaves = self.room[:, 0] - self.at_us, self.room[:, 0] > 0
            held = leaves & ~answers.allowed & (waits | (answers.remaining >= cost)) | held & ~leaves
            retry_us = np.where(leaves & ((retry_us == NEVER_US) | (retry_us > again_us)), again_us, retry_us)
            self.room = None
        self.retry_us[rows] = np.where(held, _whole_seconds(retry_us + self.at_us) - self.at_us, retry_us)
        refused = np.where(held, HELD, REFUSED)
        self.state[rows] = np.where(held_out, HELD_OUT, np.where(answers.allowed, PENDING, refused))

    def hold(self) -> None:
        """Hold each row that is to be decided, due at once: the limiter was not asked yet."""
        rows = self.todo("decide")
        self.state[rows], self.retry_us[rows] = HELD, 0

    def begin_deciding(self, rows: NDArray[np.intp], now_us: int, room: NDArray[np.int64] | None = None) -> None:
        """These held rows are to be decided now, under a receipt of their own, with this room."""
        self.state[rows], self.room = DECIDING, room
        self.receipt_us = max(now_us, self.receipt_us + 1)

    def wait_behind(self, rows: NDArray[np.intp], until_us: NDArray[np.int64], limits: Sequence[str]) -> None:
        """Make rows wait for others until then; these limits hold the others, "" if that is not known."""
        self.limits = tuple(dict.fromkeys((*self.limits, *filter(None, limits))))
        self.limit[rows] = [self.limits.index(limit) if limit else -1 for limit in limits]
        self.retry_us[rows] = until_us - self.at_us

    @property
    def held_until_us(self) -> NDArray[np.int64]:
        """When each held row is due; meaningless for the others."""
        return self.at_us + self.retry_us

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def span(self) -> tuple[bytes, bytes]:
        """The first and the last subject, as keys that sort."""
        return span_of(self.ids)

    def take(self, which: NDArray[Any]) -> BatchRows:
        """Some of the rows."""
        columns = ("ids", "codes", "limit", "hit", "retry_us", "state", "attempts", "reason")
        return replace(self, **{name: getattr(self, name)[which] for name in columns})

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return bool(_TO[""][self.state].all())

    def todo(self, done: str) -> NDArray[np.intp]:
        """The rows with which this is to be done next: decide, send (again or for the first time), refund, wait."""
        return np.flatnonzero(_TO[done][self.state])

    def in_state(self, state: int) -> NDArray[np.intp]:
        """The rows in this state."""
        return np.flatnonzero(self.state == state)

    def hand_over(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Mark rows as about to be sent; returns which of them may have been accepted before."""
        unsure = self.state[rows] == UNSURE
        self.state[rows] = UNSURE
        return unsure

    def take_outcomes(
        self, rows: NDArray[np.intp], outcomes: Outcomes, most_attempts: int, unsure: NDArray[np.bool_]
    ) -> None:
        """Apply the sender's outcomes; what is not delivered at the last attempt has failed.

        Where it was `unsure`, it is not known instead: only "delivered" settles that.
        """
        self.attempts[rows] = np.minimum(self.attempts[rows].astype(np.uint16) + 1, _MOST_ATTEMPTS)
        sure = np.array((DELIVERED, FAILED, RETRY, UNSURE), np.uint8)[outcomes.codes]
        doubtful = np.array((DELIVERED, NOT_KNOWN, UNSURE, UNSURE), np.uint8)[outcomes.codes]
        next_states = np.where(unsure, doubtful, sure)
        is_last = self.attempts[rows] >= most_attempts
        next_states[is_last & (next_states == RETRY)] = FAILED
        next_states[is_last & (next_states == UNSURE)] = NOT_KNOWN
        self.state[rows] = next_states
        self.reason[rows] = 0
        for place, reason in outcomes.reasons.items():
            again = unsure[place] and outcomes.codes[place] in (PERMANENT, TRANSIENT)
            self.reason[rows[place]] = self._reason_index(f"perhaps taken before, then {reason}" if again else reason)

    def note_delay(self, rows: NDArray[np.intp], delay_s: float) -> None:
        """Count those of these rows that were delivered, so long after they were due."""
        codes, counts = np.unique(self.codes[rows[self.state[rows] == DELIVERED]], return_counts=True)
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
            histogram = self.delays.setdefault(code, [0] * (len(DELAYS_S) + 2))
            histogram[bisect_left(DELAYS_S, delay_s)] += count
            histogram[-1] += round(delay_s * count)

    def retry_unknown(self) -> bool:
        """Make rows that are not known due again, with all their attempts; returns whether there are any."""
        rows = self.in_state(NOT_KNOWN)
        self.state[rows] = UNSURE
        self.attempts[rows] = 0
        return bool(rows.size)

    def retry_failed(self) -> int:
        """Move rows that failed, and were refunded, to a later batch; returns how many."""
        rows = self.in_state(REFUNDED)
        self.state[rows] = RETRIED
        return rows.size

    def opt_out(self, rows: NDArray[np.intp]) -> None:
        """Mark rows as opted out; one that was under way is not known from then on."""
        self.state[rows] = np.where(self.state[rows] == UNSURE, NOT_KNOWN, OPTED_OUT)

    def mark_done(self, rows: NDArray[np.intp]) -> None:
        """Note that what was to be done with these rows is done."""
        self.state[rows] = np.array([fate.then for fate in FATES], np.int16)[self.state[rows]]

    def cancel(self) -> None:
        """Fail rows that were surely not accepted; of those that may have been, nothing more will be known.

        Those held stay refused; who was never asked has nothing to give back.
        """
        self.give_up_unsure()
        held = self.in_state(HELD)
        self.state[held] = np.where(self.limit[held] >= 0, REFUSED, REFUNDED)
        never_asked = held[self.limit[held] < 0]
        failed = np.flatnonzero(np.isin(self.state, (PENDING, RETRY)))
        self.state[failed] = FAILED
        rows = np.concatenate([failed, never_asked])
        if rows.size:
            self.reason[rows] = self._reason_index(_CANCELLED)

    def give_up_unsure(self) -> None:
        """Mark rows that may have been accepted as not known, for a receiver that would accept them twice."""
        rows = self.in_state(UNSURE)
        self.state[rows] = NOT_KNOWN
        without = rows[self.reason[rows] == 0]
        if without.size:
            self.reason[without] = self._reason_index(_CUT_OFF)

    def pack(self, *, decided: bool) -> tuple[bytes, bytes]:
        """The two halves of a step to record: the columns that never change, empty unless `decided`, and the others."""
        first = b""
        if decided:
            columns = _pack(_DECIDED, (self.codes, self.limit, self.hit, self.retry_us), pack_ids(self.ids))
            first = msgspec.msgpack.encode((self.at_us, len(self), self.limits, columns))
        columns = _pack(_OUTCOME, (self.state, self.attempts, self.reason))
        room = b"" if self.room is None else _pack(("<i8",), (self.room,))
        outcome = _Outcome(self.is_done, columns, self.reasons, self.delays, self.receipt_us, room)
        return first, msgspec.msgpack.encode(outcome)

    @classmethod
    def unpack(cls, number: int, decided: bytes, outcome: bytes | None) -> BatchRows:
        """The rows of a batch from its two recorded halves; `CampaignError` where they are damaged."""
        try:
            at_us, rows, limits, first = msgspec.msgpack.decode(decided, type=tuple[int, int, tuple[str, ...], bytes])
            second = msgspec.msgpack.decode(outcome or b"", type=_Outcome)
        except msgspec.DecodeError:
            raise damaged(number) from None
        if not 0 <= rows <= LARGEST_BATCH:
            raise damaged(number)
        raw = inflate(first, 1 + rows * _LARGEST_ROW, number)
        ids, end = unpack_ids(raw, rows, number)
        codes, limit, hit, retry_us = _unpack(_DECIDED, raw, end, rows, number)
        state, attempts, reason = _unpack(_OUTCOME, inflate(second.columns, 3 * rows, number), 0, rows, number)
        in_range = (state < STATES) & (reason <= len(second.reasons)) & (limit >= -1) & (limit < len(limits))
        if not in_range.all():
            raise damaged(number)
        columns = ids, codes, limit, hit, retry_us, state, attempts, reason
        found = cls(number, at_us, limits, *columns, second.reasons, second.delays, second.receipt_us)
        if second.room:
            found.room = _unpack_room(second.room, int((state == DECIDING).sum()), number)
        return found

    def _reason_index(self, reason: str) -> int:
        text = " ".join(reason.split())[:_LONGEST_REASON] or "no reason given"
        if text not in self.reasons:
            if len(self.reasons) >= _MOST_REASONS - 1:
                text = _LAST_REASON
            if text not in self.reasons:
                self.reasons.append(text)
        return self.reasons.index(text) + 1


def _whole_seconds(at_us: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rounded up."""
    return -(-at_us // SECOND_US) * SECOND_US


def _pack(dtypes: tuple[str, ...], columns: tuple[NDArray[Any], ...], head: bytes = b"") -> bytes:
    data = head + b"".join(column.astype(dtype).tobytes() for dtype, column in zip(dtypes, columns, strict=True))
    return zlib.compress(data, level=1)


def _unpack_room(room: bytes, rows: int, number: int) -> NDArray[np.int64]:
    raw = inflate(room, rows * _LARGEST_ROOM, number)
    if not rows or len(raw) % (8 * rows):
        raise damaged(number)
    return np.frombuffer(raw, "<i8").astype(np.int64).reshape(rows, -1)


def _unpack(dtypes: tuple[str, ...], raw: bytes, start: int, rows: int, number: int) -> list[NDArray[Any]]:
    if len(raw) != start + rows * sum(np.dtype(dtype).itemsize for dtype in dtypes):
        raise damaged(number)
    columns: list[NDArray[Any]] = []
    for dtype in dtypes:
        column = np.frombuffer(raw, dtype, rows, start)
        start += column.nbytes
        columns.append(column.astype(column.dtype.newbyteorder("=")))
    return columns
