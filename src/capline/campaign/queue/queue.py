"""The queue: campaigns whose batches are delivered by any number of workers. Its keys, its bytes and its verbs.

Decision 7 draws every key. The rule: a batch has one owner, the consumer for which it is pending in the stream's
group. Every verb that writes a step checks the owner in the same script (`lua/`), so a worker that lost its lease
writes nothing.

    `enqueue`   begin, put_files, put
    `worker`    open_campaigns, store, fix_store, claim, renew, record, release
    `status`    find, state, steps
    `watch`     ages_s, state

Every call may be repeated. Every key expires 30 days after the last step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from capline.campaign.file import LARGEST_BATCH
from capline.campaign.ledger.ledger import Input, RunFacts
from capline.campaign.ledger.rows import BatchRows
from capline.campaign.part import damaged
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from capline.campaign.queue.server import QueueServer

__all__ = ["MOST_CLAIMS", "Claimed", "DeadLetter", "InWork", "Over", "Queue", "QueuedRun", "State", "Waiting"]

EXPIRY_MS = 30 * 86_400_000
MOST_CLAIMS = 10
"""A batch that was claimed so often without being finished becomes a dead letter: it may be what kills the workers."""

_VERSION = b"2"
_OPEN = "capline:campaigns"
_GROUP = "workers"
_FLUSH_BYTES = 4 << 20
_FLUSH_BATCHES = 100
_READ_BATCHES = 16
_MOST_IN_WORK = 10_000


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """What a worker must know of a run.

    `text` is the campaign file, `path` where it was. A `store` that is not empty replaces the store in the file.
    `columns` and `zones` belong to the audience (no zones: it has no such column); `batches` is their number.
    """

    facts: RunFacts
    inputs: tuple[Input, ...]
    text: str
    path: str
    store: str
    policies: bytes
    columns: tuple[str, ...]
    zones: tuple[str | None, ...]
    batches: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """A batch that this worker owns. `data` is a packed `Part`; both halves are None until it is decided."""

    campaign: str
    run_id: str
    entry: str
    rows: int
    data: bytes
    decided: bytes | None
    outcome: bytes | None

    @property
    def number(self) -> int:
        """The batch's number."""
        return int(self.entry.partition("-")[2])

    def steps(self) -> BatchRows | None:
        """The recorded steps; None before it was decided. `CampaignError` where they are damaged."""
        return None if self.decided is None else _unpack(self.number, self.decided, self.outcome)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A batch that was set aside because no worker could deliver it."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """There is nothing to claim now; `in_work` batches are with other workers."""

    in_work: int


@dataclass(frozen=True, slots=True)
class Over:
    """The run is finished, or has expired."""


@dataclass(frozen=True, slots=True)
class InWork:
    """A claimed batch. `idle_s`: since its lease was last renewed. `claims`: how often it was claimed so far."""

    number: int
    worker: str
    since_us: int
    idle_s: float
    claims: int
    error: str | None


@dataclass(frozen=True, slots=True)
class State:
    """A run's progress in batches. `done` counts subjects of settled ones; `elapsed_us` runs from the first claim."""

    queued: int
    settled: int
    done: int
    finished: bool
    elapsed_us: int
    in_work: tuple[InWork, ...]
    aside: Mapping[int, str]

    @property
    def waiting(self) -> int:
        """Batches that are queued and not claimed."""
        return self.queued - self.settled - len(self.in_work) - len(self.aside)


class Queue:
    """The verbs, on one server."""

    def __init__(self, server: QueueServer) -> None:
        self.server = server

    # ---- for `enqueue`

    def begin(self, run: QueuedRun) -> bool:
        """Create a campaign's run; False where there is one already, which stays unchanged."""
        fields: dict[str, object] = {
            "version": _VERSION,
            "run_id": run.facts.run_id,
            "facts": msgspec.json.encode(run.facts),
            "inputs": msgspec.json.encode(run.inputs),
            "columns": msgspec.json.encode(run.columns),
            "zones": msgspec.json.encode(run.zones),
            "batches": run.batches,
            **_files(run),
        }
        flat = [word for pair in fields.items() for word in pair]
        return bool(self._run("begin", run.facts.campaign, run.facts.campaign, EXPIRY_MS, *flat))

    def put_files(self, run: QueuedRun) -> None:
        """Replace a run's texts: workers that open it from now on see changed speeds and retries."""
        flat = [word for pair in _files(run).items() for word in pair]
        self.server.call("HSET", _keys(run.facts.campaign)[0], *flat)

    def put(self, run: QueuedRun, batches: Iterator[tuple[int, int, bytes]]) -> Iterator[int]:
        """Queue the batches (number, rows, data) that are not queued yet; yields after each chunk how many are."""
        chunk: list[tuple[object, ...]] = []
        size_bytes = 0
        for number, rows, data in batches:
            chunk.append((run.facts.run_id, EXPIRY_MS, number, rows, data))
            size_bytes += len(data)
            if size_bytes >= _FLUSH_BYTES or len(chunk) >= _FLUSH_BATCHES:
                yield self._flush(run.facts.campaign, chunk)
                chunk, size_bytes = [], 0
        if chunk:
            yield self._flush(run.facts.campaign, chunk)

    def _flush(self, campaign: str, chunk: list[tuple[object, ...]]) -> int:
        queued = int(self.server.runs("put", _keys(campaign), chunk)[-1])
        if queued < 0:
            raise CampaignError(f"queue {self.server.url}: the run of {campaign!r} is gone; enqueue it again")
        return queued

    # ---- for `worker`

    def open_campaigns(self) -> list[str]:
        """The campaigns that are not finished, the oldest first."""
        return [name.decode() for name in self.server.call("ZRANGE", _OPEN, 0, -1)]

    def ages_s(self) -> dict[str, float]:
        """The same, with the seconds since each was enqueued."""
        flat, (seconds, micros) = self.server.calls([("ZRANGE", _OPEN, 0, -1, "WITHSCORES"), ("TIME",)])
        now_us = int(seconds) * 1_000_000 + int(micros)
        return {name.decode(): max(now_us - float(begun), 0) / 1e6 for name, begun in _pairs(flat).items()}

    def store(self, campaign: str) -> Input | None:
        """The identity of the run's store; None before the first worker opened it."""
        found = self.server.call("HGET", _keys(campaign)[0], "store_identity")
        return None if found is None else msgspec.json.decode(found, type=Input)

    def fix_store(self, campaign: str, store: Input) -> Input:
        """Fix the run's store, unless another worker did; returns the one that is fixed."""
        found = self._run("store", campaign, msgspec.json.encode(store))
        return store if found is None else msgspec.json.decode(found, type=Input)

    def claim(self, campaign: str, worker: str, takeover_s: float) -> Claimed | DeadLetter | Waiting | Over:
        """A batch for this worker: the one it already owns, else one whose lease has expired, else a new one."""
        match self._run("claim", campaign, worker, EXPIRY_MS, int(takeover_s * 1000), MOST_CLAIMS, campaign):
            case [b"batch", entry, flat, decided, outcome, run_id]:
                fields = _pairs(flat)
                rows = fields.get(b"rows", b"0")
                return Claimed(
                    campaign,
                    run_id.decode(),
                    entry.decode(),
                    int(rows) if rows.isdigit() and len(rows) <= len(str(LARGEST_BATCH)) else 0,
                    fields.get(b"data", b""),
                    decided,
                    outcome,
                )
            case [b"aside", number, why]:
                return DeadLetter(int(number), why.decode(errors="replace"))
            case [b"none", in_work]:
                return Waiting(int(in_work))
            case _:
                return Over()

    def renew(self, claimed: Claimed, worker: str) -> bool:
        """Renew the lease; False where the worker no longer owns the batch."""
        return bool(self._run("renew", claimed.campaign, worker, EXPIRY_MS, claimed.entry))

    def record(self, claimed: Claimed, worker: str, rows: BatchRows, *, decided: bool) -> bool:
        """Write a step of the batch, the first (`decided`) or a later one; False where the worker lost the batch."""
        first = msgspec.msgpack.encode((rows.at_us, len(rows), rows.limits, rows.pack_decided())) if decided else b""
        outcome = msgspec.msgpack.encode((rows.is_done, rows.pack_outcome(), rows.reasons))
        done_rows = len(rows) if rows.is_done else 0
        return bool(
            self._run(
                "record",
                claimed.campaign,
                worker,
                EXPIRY_MS,
                claimed.entry,
                first,
                outcome,
                done_rows,
                claimed.campaign,
            )
        )

    def release(self, claimed: Claimed, worker: str, how: str, why: str = "") -> bool:
        """Let go of an unsettled batch: `release`, `fail` or `aside` (see leave.lua); False where it is not its own."""
        return bool(self._run("release", claimed.campaign, worker, EXPIRY_MS, claimed.entry, how, why))

    # ---- for `status`

    def find(self, campaign: str) -> QueuedRun | None:
        """A campaign's run; None where there is none. `CampaignError` where it cannot be read."""
        fields = _pairs(self.server.call("HGETALL", _keys(campaign)[0]))
        if not fields:
            return None
        if fields.get(b"version") != _VERSION:
            raise CampaignError(
                f"queue {self.server.url}: campaign {campaign!r} was queued by another version of capline"
            )
        try:
            return QueuedRun(
                msgspec.json.decode(fields[b"facts"], type=RunFacts),
                msgspec.json.decode(fields[b"inputs"], type=tuple[Input, ...]),
                fields[b"file"].decode(),
                fields[b"path"].decode(),
                fields[b"store"].decode(),
                fields[b"policies"],
                msgspec.json.decode(fields[b"columns"], type=tuple[str, ...]),
                msgspec.json.decode(fields[b"zones"], type=tuple[str | None, ...]),
                int(fields[b"batches"]),
            )
        except (KeyError, ValueError):
            raise CampaignError(
                f"queue {self.server.url}: the run of {campaign!r} is damaged; "
                "give the campaign another name and enqueue it again"
            ) from None

    def state(self, campaign: str) -> State:
        """A run's progress."""
        run, batches, steps, aside, _ = _keys(campaign)
        names = ("queued", "settled", "done", "finished", "first_us", "last_us")
        numbers, pending, apart = self.server.calls(
            [
                ("HMGET", run, *names),
                ("XPENDING", batches, _GROUP, "-", "+", _MOST_IN_WORK),
                ("HGETALL", aside),
            ]
        )
        queued, settled, done, finished, first_us, last_us = (int(number or 0) for number in numbers)
        return State(
            queued,
            settled,
            done,
            bool(finished),
            max((finished or last_us) - first_us, 0) if first_us else 0,
            tuple(self._in_work(steps, pending)),
            {int(number): why.decode(errors="replace") for number, why in sorted(_pairs(apart).items())},
        )

    def _in_work(self, steps: str, pending: list[Any]) -> Iterator[InWork]:
        found: list[tuple[int, str, float, int]] = []
        for entry, worker, idle_ms, claims in pending:
            found.append((int(entry.partition(b"-")[2]), worker.decode(), int(idle_ms) / 1000, int(claims)))
        held = [each for each in found if each[1] != "nobody"]
        asked = [("HMGET", steps, f"{number}:since", f"{number}:error") for number, *_ in held]
        for (number, worker, idle_s, claims), (since, error) in zip(
            held, self.server.calls(asked) if asked else [], strict=True
        ):
            yield InWork(number, worker, int(since or 0), idle_s, claims, error.decode() if error else None)

    def steps(self, campaign: str, numbers: Sequence[int]) -> Iterator[BatchRows]:
        """The recorded steps of those batches that were decided. Each batch is read in one piece."""
        key = _keys(campaign)[2]
        for start in range(0, len(numbers), _READ_BATCHES):
            some = numbers[start : start + _READ_BATCHES]
            answers = self.server.calls([("HMGET", key, f"{number}:decided", f"{number}:outcome") for number in some])
            for number, (decided, outcome) in zip(some, answers, strict=True):
                if decided is not None:
                    yield _unpack(number, decided, outcome)

    def _run(self, script: str, campaign: str, *arguments: object) -> Any:
        return self.server.run(script, _keys(campaign), *arguments)


def _keys(campaign: str) -> list[str]:
    prefix = f"capline:{{campaign:{campaign}}}"
    return [*(f"{prefix}:{part}" for part in ("run", "batches", "steps", "aside")), _OPEN]


def _files(run: QueuedRun) -> dict[str, object]:
    return {"file": run.text.encode(), "path": run.path, "store": run.store, "policies": run.policies}


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _unpack(number: int, decided: bytes, outcome: bytes | None) -> BatchRows:
    try:
        at_us, rows, limits, first = msgspec.msgpack.decode(decided, type=tuple[int, int, tuple[str, ...], bytes])
        _, second, reasons = msgspec.msgpack.decode(outcome or b"", type=tuple[bool, bytes, list[str]])
    except msgspec.DecodeError:
        raise damaged(number) from None
    if not 0 < rows <= LARGEST_BATCH:
        raise damaged(number)
    return BatchRows.unpack(number, at_us, rows, limits, first, second, reasons)
