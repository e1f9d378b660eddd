"""What a campaign store holds: runs, claimed batches and their recorded steps, as values and as bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec

from capline.campaign.store.rows import BatchRows

VERSION = b"6"
"""Of the run's fields; a run of another version is refused."""
PREPARE = -1
"""The number of the batch that puts the others: who has it reads the audience. It has no subjects."""


@dataclass(frozen=True, slots=True)
class Input:
    """What must be the same when a run is resumed: its digest, and a short text for people.

    It may still change before anything was decided; then it is frozen, with the identity of the store.
    """

    name: str
    digest: str
    shown: str = ""


def changed_inputs(begun: Iterable[Input], inputs: Iterable[Input]) -> list[str]:
    """The inputs that differ from those that the run was begun with, in words."""
    before = {each.name: each for each in begun}
    inputs = tuple(inputs)
    changed = sorted(before.keys() - {each.name for each in inputs})
    for now in inputs:
        was = before.get(now.name)
        if was is None or was.digest != now.digest:
            shown = was is not None and was.shown and now.shown and was.shown != now.shown
            changed.append(f"{now.name} (was {was.shown}, is {now.shown})" if was and shown else now.name)
    return changed


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts of a run that never change. `segments`: name and number of subjects, first those in no segment.

    `ids`: uint32, uint64 or text. `is_test`: a test send. `holds`: the log on which its held messages wait; empty where
    it drops what is refused. `log`: the one that counts its messages.
    """

    campaign: str
    policy: str
    channel: str | None
    cost: int
    audience: int
    segments: tuple[tuple[str | None, int], ...]
    begun_us: int
    run_id: str = ""
    ids: str = "uint32"
    is_test: bool = False
    holds: str = ""
    log: str = ""

    def without(self, code: int | None) -> RunFacts:
        """The same with one subject of a segment fewer; None: with none fewer."""
        if code is None:
            return self
        sizes = [(name, size - (place == code)) for place, (name, size) in enumerate(self.segments)]
        return replace(self, audience=self.audience - 1, segments=tuple(sizes))


class Rate(msgspec.Struct, frozen=True):
    """The rate of a `rate_key`: those it had before, and who changed it when (0: it is as the files say)."""

    rate: str
    before: tuple[str, ...] = ()
    changed_us: int = 0
    changed_by: str = ""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """What a worker needs of a run.

    `text` is the campaign file, `path` its path. `store` replaces the store in the file, unless it is empty. `columns`
    and `zones` are the audience's (no zones: it has no such column), `batches` how many it makes; 0 until it is read.
    `keep_us`: how long after its end it is forgotten; None: after `EXPIRY_MS`. `rate` is as the file says; empty: none.
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
    priority: int = 50
    keep_us: int | None = None
    rate: str = ""
    rate_key: str = ""

    def texts(self) -> dict[str, object]:
        """The fields that a repeated `enqueue` replaces."""
        texts = {name: getattr(self, name) for name in ("path", "store", "policies", "priority", "rate", "rate_key")}
        return {"file": self.text.encode(), "keep_us": self.keep_us or "", **texts}

    def fields(self) -> dict[str, object]:
        """All fields of the run's hash."""
        documents = {name: msgspec.json.encode(getattr(self, name)) for name in _DOCUMENTS}
        return {"version": VERSION, "run_id": self.facts.run_id, "batches": self.batches, **documents, **self.texts()}

    @classmethod
    def of_fields(cls, fields: Mapping[bytes, bytes]) -> StoredRun:
        """The run of these fields; KeyError or ValueError where they are damaged."""
        texts: dict[str, Any] = {name: fields[name.encode()].decode() for name in ("path", "store", "rate", "rate_key")}
        documents = {name: msgspec.json.decode(fields[name.encode()], type=kind) for name, kind in _DOCUMENTS.items()}
        return cls(
            **documents,
            **texts,
            text=fields[b"file"].decode(),
            policies=fields[b"policies"],
            batches=int(fields[b"batches"]),
            priority=int(fields[b"priority"]),
            keep_us=int(fields[b"keep_us"] or 0) or None,
        )


_DOCUMENTS: dict[str, Any] = {
    "facts": RunFacts,
    "inputs": tuple[Input, ...],
    "columns": tuple[str, ...],
    "zones": tuple[str | None, ...],
}
"""The fields of a run that are stored as JSON, and what they hold."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A batch that a worker owns until another claim raises its `fence`.

    The halves of its step are None until it is decided. `data` is a packed `Part`; empty where only a process that has
    the audience delivers it (`campaign run`). `due_us`, of one that `stored` gave: when it can be claimed; 0 with its
    campaign, or where someone has it.
    """

    campaign: str
    run_id: str
    number: int
    fence: int
    rows: int
    data: bytes
    decided: bytes | None
    outcome: bytes | None
    due_us: int = 0

    def steps(self) -> BatchRows | None:
        """The recorded steps; None before it was decided. `CampaignError` where they are damaged."""
        return None if self.decided is None else BatchRows.unpack(self.number, self.decided, self.outcome)


@dataclass(frozen=True, slots=True)
class RetryBatch:
    """A settled batch that is put back, or a further one: its number and subjects, and the batches that it changes.

    `data` is a packed `Part`, or empty as in `Claimed`. `sources` have their new outcomes: of a batch that is put back,
    itself; of a further one, the batches whose RETRIED rows it takes. `retried` counts subjects that are to be done
    again.
    """

    number: int
    rows: int
    data: bytes
    sources: tuple[BatchRows, ...]
    retried: int


@dataclass(frozen=True, slots=True)
class DueCampaigns:
    """Campaigns with a batch to claim now, the first to take first; `next_s`: until another one has, or infinite."""

    campaigns: list[str]
    next_s: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A batch that was set aside because no worker could deliver it."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """No batch is free now; other workers have `in_work` batches."""

    in_work: int


@dataclass(frozen=True, slots=True)
class Over:
    """The run is finished or expired."""


class InWork(msgspec.Struct, frozen=True):
    """A batch that a worker owns, since `since_us`; its lease was last renewed `silent_s` seconds ago.

    `takes` counts claims: above 1 where earlier workers did not finish it. `error` is what the last of them reported.
    """

    batch: int
    worker: str
    since_us: int
    silent_s: float
    takes: int
    error: str | None


@dataclass(frozen=True, slots=True)
class State:
    """A run's progress in batches, `batches` in all. `done`: subjects of settled ones; `elapsed_us`: of work.

    `queued` are there; none can be claimed before all are. `due_us` is infinite while it is paused, `until_us` 0 where
    it is never over. `is_worked_on`: a process is at work on it, by what the store sees. `changes`: how often someone
    steered it, the last time `changed_by` at `changed_us`. `next_us`: when one is due that waits. `rate` is that of
    its key, as `Ledger.state` adds it.
    """

    batches: int
    queued: int
    settled: int
    done: int
    finished: bool
    cancelled: bool
    due_us: float
    elapsed_us: int
    is_worked_on: bool
    in_work: tuple[InWork, ...]
    aside: Mapping[int, str]
    until_us: int
    changes: int
    changed_us: int
    changed_by: str
    next_us: float = 0
    rate: Rate | None = None

    COUNTS: ClassVar = (
        *("batches", "queued", "settled", "done", "elapsed_us", "due_us", "until_us", "changes", "changed_us"),
    )
    """The numbers that each store keeps by these names."""
    MARKS: ClassVar = ("finished", "cancelled", "paused", "changed_by")
    """The other values of a run that change."""

    def goes_on(self, now_us: int) -> bool:
        """Whether there is more to do, and it is not paused."""
        is_over = self.finished or self.cancelled or 0 < self.until_us <= now_us
        return not is_over and math.isfinite(self.due_us)

    @property
    def waiting(self) -> int:
        """Batches that are queued and not claimed."""
        apart = [*(each.batch for each in self.in_work), *self.aside]
        return self.queued - self.settled - len(apart) + apart.count(PREPARE)

    @property
    def is_whole(self) -> bool:
        """Whether its audience was read and all its batches are there."""
        return 0 < self.batches <= self.queued

    @property
    def refused(self) -> str | None:
        """Why its audience was refused; None where it was not."""
        return self.aside.get(PREPARE)
