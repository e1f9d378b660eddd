"""What a campaign store is: campaigns, their batches, the steps of each. `deliver` and the workers know this alone.

The rule: all that waits is a batch that is due later. It is claimed when it and its campaign are due, for a lease; each
claim by another worker raises its fence. Every verb that writes a step compares the fence in the same transaction or
script, so a worker that lost its lease writes nothing. A lease that ended makes its batch due again.

A campaign begins with one batch, PREPARE: who claims it reads the audience and puts the others, of which none can be
claimed before all are there. It waits neither for the campaign's instant nor for the end of a pause. Where it is set
aside the audience is refused, and `begin` begins anew.

    create   begin, put_files, steer, describe, put   work   look, store, freeze_store, claim, renew, record, release
    retry    put_again
    steer    steer, rate, keep_rate, halt          read   ages_s, page, find, state, steps, holding
    erase    stored, rewrite

Every call may be repeated. A campaign that nobody has touched for 30 days, and that was due before, is forgotten. One
that is finished is forgotten after its `keep:`, if it has one.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, ClassVar, Literal, Self

import msgspec

from capline.campaign.store.records import (
    VERSION,
    Claimed,
    DeadLetter,
    DueCampaigns,
    Input,
    InWork,
    Over,
    Rate,
    RetryBatch,
    State,
    StoredRun,
    Waiting,
)
from capline.campaign.store.rows import BatchRows
from capline.model.clock import SystemClock
from capline.model.errors import CampaignConflictError, CampaignError, CaplineError
from capline.model.subject import Subject

EXPIRY_MS = 30 * 86_400_000
_PAGE_NAMES = 1000
MOST_CLAIMS = 10
"""A batch that was claimed so often without being finished becomes a dead letter: it may be what kills the workers."""

SILENT_S = 10.0
"""Leases are renewed every second: after so long without a renewal, nobody is at work."""
_CHUNK, _CHUNK_BYTES = 100, 4 << 20

Batch = tuple[int, int, bytes, int, tuple[bytes, bytes] | None]
"""A batch to store: its number, how many rows, its subjects as a packed `Part`, or none as in `Claimed`, when it is due
in microseconds, 0 with its campaign, and its first and last subject, as keys that sort."""

How = Literal["give_back", "fail", "set_aside"]
Change = Literal["", "pause", "resume", "cancel"]


class UnreadableRunError(CampaignConflictError):
    """A campaign in the store that this version cannot read; the others can be worked on."""


class CampaignStore(ABC):
    """An open campaign store, for one thread: a context manager.

    What servers and a file say alike is said here, above what each has of its own: the verbs without a body, and the
    instructions at the end.
    """

    OTHER_VERSION: ClassVar[str]
    """What was done with a campaign that this version cannot read, in the error, and what to do."""
    DAMAGED: ClassVar[str]
    """What to do where a run is damaged."""
    IDENTITY: ClassVar[str]
    """The name of the value that is the identity of the limits' store."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    @abstractmethod
    def url(self) -> str:
        """The store in messages and commands: without user, password and options."""

    @abstractmethod
    def close(self) -> None:
        """Close it. May be called twice."""

    def check(self, patience_s: float = 0.0) -> list[str]:  # noqa: ARG002 - a file is here, or it was refused
        """Warnings about the store; `CampaignError` where it cannot hold campaigns. Waits so long for a restart."""
        return []

    @abstractmethod
    def begin(self, run: StoredRun, worker: str = "", lease_s: float = 0) -> bool:
        """Create a campaign's run, with the batch that prepares it: this worker's, or free; whether it is there.

        False where another run is there already, which stays unchanged, unless it is refused.
        """

    @abstractmethod
    def put_files(self, run: StoredRun) -> None:
        """Replace a run's texts and priority, for workers that open it later; `steer` it then."""

    @abstractmethod
    def describe(self, claimed: Claimed, run: StoredRun) -> None:
        """Write what the audience is, unless it was written or the worker lost the batch that prepares it."""

    def put(self, run: StoredRun, batches: Iterable[Batch], fence: int = 0) -> Iterator[int]:
        """Store those set aside again, and with the fence of who prepares those that are not there.

        Yields how many there are; ends where the worker lost the batch that prepares. That is over with the last one.
        """
        return takewhile(bool, (self._put(run, chunk, fence) for chunk in chunks(batches)))

    @abstractmethod
    def put_again(self, run: StoredRun, again: Iterable[RetryBatch]) -> int:
        """Put batches back, and further ones; stops before the first that another process did. Returns how many."""

    def steer(
        self,
        campaign: str,
        change: Change = "",
        *,
        due_us: int | None = None,
        until_us: int | None = None,
        by: str = "",
    ) -> bool:
        """Pause, resume or cancel a campaign, or change when it is due (0: since it began) or over (0: never).

        A change `by` someone is a new version. False, and nothing changed, where none is open, or it is cancelled
        already, or someone changes when it is due and it is.

        A worker heeds a pause or a cancellation before its next hand-over, and the rest before its next claim. Of a
        cancelled campaign only batches that are decided and not settled can be claimed, to be given back; when there
        are none, it is finished.
        """
        return self._steer(campaign, change, due_us, until_us, by)

    def rate(self, key: str) -> Rate | None:
        """The rate of a key that someone changed; None where it is as the files say."""
        found = self._rate_record(key)
        return None if found is None else msgspec.json.decode(found, type=Rate)

    def keep_rate(self, key: str, was: Rate | None, now: Rate | None) -> bool:
        """Put one rate of a key in the place of another; False if it is no longer as it `was`."""
        return self._keep_rate(key, *(b"" if each is None else msgspec.json.encode(each) for each in (was, now)))

    def halt(self, campaign: str) -> Change:
        """What keeps a campaign from going on: "pause", "cancel", or nothing. What is over is cancelled here."""
        found = self._values(campaign, "paused", "cancelled", "until_us")
        paused, cancelled, until_us = (int(each or 0) for each in found)
        if not cancelled and 0 < until_us <= SystemClock().now_us():
            self.steer(campaign, "cancel")
            cancelled = True
        return "cancel" if cancelled else "pause" if paused else ""

    @abstractmethod
    def ages_s(self, within_s: float = 0, *, most: int = -1) -> Mapping[str, float]:
        """The campaigns that are not finished, and are due, or will be within so long; the oldest first.

        Each with the seconds since it was due. Those that are due later cost nothing, nor do others than the `most`
        oldest.
        """

    @abstractmethod
    def look(self, most: int) -> DueCampaigns:
        """At most so many campaigns that have a batch to claim now: higher priority first, then the one due longest.

        The others cost nothing.
        """

    def store(self, campaign: str) -> Input | None:
        """The identity of the limits' store; None before the first worker opened it: nothing is decided yet."""
        (found,) = self._values(campaign, self.IDENTITY)
        return None if found is None else msgspec.json.decode(found, type=Input)

    def freeze_store(self, campaign: str, store: Input) -> Input:
        """Freeze the limits' store of a run, unless another worker did; returns the one that is frozen."""
        self._freeze(campaign, msgspec.json.encode(store))
        return self.store(campaign) or store

    @abstractmethod
    def claim(self, campaign: str, worker: str, lease_s: float) -> Claimed | DeadLetter | Waiting | Over:
        """A batch for this worker: the one it already owns, else one whose lease has ended, else the one due longest.

        It is this worker's for `lease_s` seconds after each `renew` or `record`. `Waiting` also where the campaign is
        paused, or not due.
        """

    @abstractmethod
    def renew(self, claimed: Claimed) -> bool:
        """Renew the lease; False where the batch was claimed by another worker, or is nobody's any more."""

    @abstractmethod
    def record(self, claimed: Claimed, rows: BatchRows, *, decided: bool) -> bool:
        """Write a step of the batch, the first (`decided`) or a later one; False where the worker lost the batch."""

    @abstractmethod
    def release(self, claimed: Claimed, how: How, why: str = "", *, wait_s: float = 0.0) -> bool:
        """Put back a batch that is not settled, due in `wait_s` seconds; False where the worker lost it.

        `give_back`: this claim does not count. `fail`: it counts, and `why` is kept. `set_aside`: a dead letter, for
        nobody until it is put again.
        """

    @abstractmethod
    def page(self, after: str, limit: int) -> list[str]:
        """At most so many campaigns, by name, that come after this name; "" is before the first."""

    def find(self, campaign: str) -> StoredRun | None:
        """A campaign's run; None where there is none. Raises `UnreadableRunError`."""
        try:
            fields = self._fields(campaign)
            if fields and fields.get(b"version") != VERSION:
                raise UnreadableRunError(f"{self.shown}: campaign {campaign!r} was {self.OTHER_VERSION}")
            return StoredRun.of_fields(fields) if fields else None
        except CaplineError:
            raise
        except (KeyError, ValueError):
            raise UnreadableRunError(f"{self.shown}: the run of {campaign!r} is damaged; {self.DAMAGED}") from None

    def state(self, campaign: str) -> State:
        """A run's progress."""
        (*numbers, finished, cancelled, paused, by), next_us, in_work, aside = self._progress(campaign)
        counts: dict[str, Any] = {name: int(each or 0) for name, each in zip(State.COUNTS, numbers, strict=True)}
        if int(paused or 0):
            counts["due_us"] = math.inf
        return State(
            **counts,
            finished=bool(int(finished or 0)),
            cancelled=bool(int(cancelled or 0)),
            is_worked_on=self._is_run_alone() or any(each.silent_s < SILENT_S for each in in_work),
            in_work=in_work,
            aside=aside,
            changed_by=by or "",
            next_us=next_us,
        )

    @abstractmethod
    def wake(self, campaign: str, numbers: Sequence[int]) -> None:
        """Make those of these batches due now that were decided, and wait."""

    @abstractmethod
    def steps(self, campaign: str, numbers: Sequence[int]) -> Iterator[BatchRows]:
        """The recorded steps of those batches that were decided. A batch is read in one piece."""

    @abstractmethod
    def holding(self, campaign: str, subject: Subject, *, to: Subject | None = None) -> list[int]:
        """The batches that may hold a subject, or one up to another, by their first and last one; the newest first."""

    @abstractmethod
    def stored(self, campaign: str, number: int) -> Claimed | None:
        """A batch as it is, whoever has it; None where there is none."""

    @abstractmethod
    def rewrite(self, was: Claimed, now: Claimed, rows: BatchRows | None, fewer: int | None, *, done: bool) -> bool:
        """Put other subjects into a batch that nobody has; False if it is no longer as it `was`, or a worker has it.

        `rows` are its new steps. `fewer`: the segment that has one subject fewer, which was `done` or was not.
        """

    @property
    @abstractmethod
    def shown(self) -> str:
        """The store in errors."""

    @abstractmethod
    def _put(self, run: StoredRun, chunk: list[Batch], fence: int) -> int:
        """Store some batches as `put` does; how many there are, 0 where another worker prepares."""

    @abstractmethod
    def _steer(self, campaign: str, change: Change, due_us: int | None, until_us: int | None, by: str) -> bool:
        """Change a campaign as `steer` does."""

    @abstractmethod
    def _rate_record(self, key: str) -> bytes | None:
        """The record of a rate."""

    @abstractmethod
    def _keep_rate(self, key: str, was: bytes, now: bytes) -> bool:
        """Replace the record of a rate where it is as it was; b"" is none."""

    @abstractmethod
    def _values(self, campaign: str, *names: str) -> Sequence[Any]:
        """Values of a campaign's run by name; None for what is not there."""

    @abstractmethod
    def _freeze(self, campaign: str, store: bytes) -> None:
        """Keep the identity of the limits' store, unless there is one or there is no such campaign."""

    @abstractmethod
    def _fields(self, campaign: str) -> Mapping[bytes, bytes]:
        """The fields of a campaign's run."""

    @abstractmethod
    def _progress(self, campaign: str) -> tuple[Sequence[Any], float, tuple[InWork, ...], Mapping[int, str]]:
        """`State.COUNTS`, whether it is finished, cancelled, paused, and who steered it last; the rest as there."""

    def _is_run_alone(self) -> bool:
        """Whether a process has all of the store to itself."""
        return False

    def _gone(self, campaign: str) -> CampaignError:
        return CampaignError(f"{self.shown}: the run of {campaign!r} is gone; enqueue it again")


def names_of(store: CampaignStore) -> Iterator[str]:
    """The names of all campaigns, in order."""
    names = store.page("", _PAGE_NAMES)
    while names:
        yield from names
        names = store.page(names[-1], _PAGE_NAMES)


def chunks(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """The batches in lists that are stored in one step each: of bounded bytes, whatever the columns are."""
    chunk: list[Batch] = []
    size_bytes = 0
    for batch in batches:
        chunk.append(batch)
        size_bytes += len(batch[2])
        if size_bytes >= _CHUNK_BYTES or len(chunk) >= _CHUNK:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk
