"""The queue: campaigns whose batches any number of workers deliver. Its keys and its verbs; decision 7 draws the keys.

The rule: a batch has one owner, the consumer for which it is pending in the stream's group. Every verb that writes a
step checks the owner in the same script (`lua/`), so a worker that lost its lease writes nothing.

    `enqueue`   begin, put_files, steer, put
    `worker`    open_campaigns, store, freeze_store, claim, renew, record, release
    `status`    find, state, steps
    `watch`     ages_s, state
    `pause`     steer

Every call may be repeated. Every key expires 30 days after the last step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from capline.campaign.file import LARGEST_BATCH
from capline.campaign.ledger.inputs import Input
from capline.campaign.queue.records import (
    VERSION,
    Claimed,
    DeadLetter,
    InWork,
    Over,
    QueuedRun,
    State,
    Waiting,
    read_steps,
    step_bytes,
)
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capline.campaign.ledger.rows import BatchRows
    from capline.campaign.queue.server import QueueServer

EXPIRY_MS = 30 * 86_400_000
MOST_CLAIMS = 10
"""A batch that was claimed so often without being finished becomes a dead letter: it may be what kills the workers."""

_OPEN = "capline:campaigns"
_GROUP = "workers"
_FLUSH_BYTES = 4 << 20
_FLUSH_BATCHES = 100
_READ_BATCHES = 16
_MOST_IN_WORK = 10_000


class UnreadableRunError(CampaignError):
    """A campaign in the queue that this version cannot read; the others can be worked on."""


class Queue:
    """The verbs, on one server."""

    def __init__(self, server: QueueServer) -> None:
        self.server = server

    # ---- for `enqueue`

    def begin(self, run: QueuedRun) -> bool:
        """Create a campaign's run; False where there is one already, which stays unchanged."""
        flat = [word for pair in run.fields().items() for word in pair]
        return bool(self._run("begin", run.facts.campaign, run.facts.campaign, EXPIRY_MS, *flat))

    def put_files(self, run: QueuedRun) -> None:
        """Replace a run's texts, so that workers which open it later use changed speeds and retries."""
        flat = [word for pair in run.texts().items() for word in pair]
        self.server.call("HSET", _keys(run.facts.campaign)[0], *flat)

    def steer(self, campaign: str, *, due_us: int | str = "", paused: bool | None = None) -> bool:
        """Change when a campaign is due (0: since it was enqueued), or pause or resume it; False where none is open.

        A worker heeds a pause before its next hand-over, and the rest before its next claim.
        """
        how = "" if paused is None else "pause" if paused else "resume"
        return bool(self._run("steer", campaign, campaign, EXPIRY_MS, due_us, how))

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
        """The campaigns that are due and not finished, the oldest first."""
        return list(self.ages_s())

    def ages_s(self) -> dict[str, float]:
        """These campaigns, each with the seconds since it was due. Those that are due later cost nothing."""
        seconds, micros = self.server.call("TIME")
        now_us = int(seconds) * 1_000_000 + int(micros)
        flat = self.server.call("ZRANGE", _OPEN, "-inf", now_us, "BYSCORE", "WITHSCORES")
        return {name.decode(): (now_us - float(due)) / 1e6 for name, due in _pairs(flat).items()}

    def is_paused(self, campaign: str) -> bool:
        """Whether the campaign is paused."""
        return bool(self.server.call("HEXISTS", _keys(campaign)[0], "paused"))

    def store(self, campaign: str) -> Input | None:
        """The identity of the run's store; None before the first worker opened it."""
        found = self.server.call("HGET", _keys(campaign)[0], "store_identity")
        return None if found is None else msgspec.json.decode(found, type=Input)

    def freeze_store(self, campaign: str, store: Input) -> Input:
        """Freeze the run's store, unless another worker did; returns the one that is frozen."""
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
        steps = step_bytes(rows, decided=decided)
        done_rows = len(rows) if rows.is_done else 0
        return bool(
            self._run("record", claimed.campaign, worker, EXPIRY_MS, claimed.entry, *steps, done_rows, claimed.campaign)
        )

    def release(self, claimed: Claimed, worker: str, how: str, why: str = "") -> bool:
        """End the lease of an unsettled batch; `how` as in release.lua. False where the worker lost the batch."""
        return bool(self._run("release", claimed.campaign, worker, EXPIRY_MS, claimed.entry, how, why))

    # ---- for `status`

    def find(self, campaign: str) -> QueuedRun | None:
        """A campaign's run; None where there is none. Raises `UnreadableRunError`."""
        fields = _pairs(self.server.call("HGETALL", _keys(campaign)[0]))
        if not fields:
            return None
        if fields.get(b"version") != VERSION:
            raise UnreadableRunError(
                f"queue {self.server.url}: campaign {campaign!r} was queued by another version of capline"
            )
        try:
            return QueuedRun.of_fields(fields)
        except (KeyError, ValueError):
            raise UnreadableRunError(
                f"queue {self.server.url}: the run of {campaign!r} is damaged; "
                "give the campaign another name and enqueue it again"
            ) from None

    def state(self, campaign: str) -> State:
        """A run's progress."""
        run, batches, steps, aside, _ = _keys(campaign)
        names = ("queued", "settled", "done", "finished", "first_us", "last_us", "due_us", "paused")
        numbers, pending, apart = self.server.calls(
            [
                ("HMGET", run, *names),
                ("XPENDING", batches, _GROUP, "-", "+", _MOST_IN_WORK),
                ("HGETALL", aside),
            ]
        )
        queued, settled, done, finished, first_us, last_us, due_us, paused = (int(number or 0) for number in numbers)
        return State(
            queued,
            settled,
            done,
            bool(finished),
            math.inf if paused else due_us,
            max((finished or last_us) - first_us, 0) if first_us else 0,
            tuple(self._in_work(steps, pending)),
            {int(number): why.decode(errors="replace") for number, why in sorted(_pairs(apart).items())},
        )

    def _in_work(self, steps: str, pending: list[Any]) -> Iterator[InWork]:
        held = [
            (int(entry.partition(b"-")[2]), worker.decode(), int(idle_ms) / 1000, int(claims))
            for entry, worker, idle_ms, claims in pending
            if worker != b"nobody"
        ]
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
                    yield read_steps(number, decided, outcome)

    def _run(self, script: str, campaign: str, *arguments: object) -> Any:
        return self.server.run(script, _keys(campaign), *arguments)


def _keys(campaign: str) -> list[str]:
    prefix = f"capline:{{campaign:{campaign}}}"
    return [*(f"{prefix}:{part}" for part in ("run", "batches", "steps", "aside")), _OPEN]


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
