"""A worker: takes batches from the queue, one at a time, and brings each to its end. Any number of them, on any hosts.

`settle` has the way of a batch; here its steps are written to the queue, which takes them only from the batch's owner:

    take ── settle: check (still mine?), hand over, record, … ── settled
      │        └── lost: another took it over; leave everything as it stands, and take the next
      ├── cannot be read: set aside, and told; take the next
      ├── stopped: given back at once, for the next who asks
      └── failed: left to its lease, and the worker ends with the error

The heart beats in a thread: while a hand-over takes long, it says every second that the batch has an owner. A
process that is killed or stopped says nothing; after `takeover_s` another takes the batch.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from capline.campaign.breaker import Breaker
from capline.campaign.deliver import AGAIN, Delivery, as_campaign_errors
from capline.campaign.file import loads_campaign
from capline.campaign.ledger.ledger import changed_inputs
from capline.campaign.ledger.rows import DELIVERED, NOT_KNOWN, REFUNDED, REFUSED, STATES, BatchRows
from capline.campaign.part import Part
from capline.campaign.prepare import open_limiter, pick_policy
from capline.campaign.queue.queue import DeadLetter, Over, Queue, QueuedRun, Taken, Waiting
from capline.campaign.queue.server import QueueServer
from capline.campaign.senders.protocol import RunInfo
from capline.campaign.stop import CampaignStopped
from capline.campaign.store_facts import store_input
from capline.model.errors import (
    CampaignError,
    CaplineError,
    StoreError,
    StoreUnavailableError,
    StoreUnknownError,
)
from capline.policy.file import loads

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from capline.campaign.file import CampaignFile
    from capline.campaign.ledger.ledger import Input
    from capline.campaign.stop import Stop
    from capline.limiter.limiter import Limiter
    from capline.model.policy import Policy

__all__ = ["LEAST_TAKEOVER_S", "Settled", "Worked", "Worker"]

LEAST_TAKEOVER_S = 1.0
START_S = 5.0
"""How long a worker that starts waits for the queue's server: longer than a restart takes."""
OUTAGE_S = 30.0
"""How long a campaign's store may be silent before the worker ends with its error."""
_POLL_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_LONGEST_BEAT_S = 1.0
_BEATS = 4
"""Signs of life in the time after which a batch is taken over; one a second at least, for others may wait less long."""


class Settled(msgspec.Struct, frozen=True):
    """A batch that this worker brought to its end."""

    campaign: str
    batch: int
    rows: int
    sent: int
    refused: int
    failed: int
    not_known: int
    elapsed_s: float


class Worked(msgspec.Struct):
    """What a worker did. `sent`, `refused`, `failed` and `not_known` are of the batches that it brought to their end.

    `lost` batches went to another worker, `aside` were set aside; `trouble` counts campaigns that it could not open.
    """

    worker: str
    settled: int = 0
    subjects: int = 0
    sent: int = 0
    refused: int = 0
    failed: int = 0
    not_known: int = 0
    lost: int = 0
    aside: int = 0
    trouble: int = 0

    def add(self, batch: Settled) -> None:
        """Count a batch."""
        self.settled += 1
        self.subjects += batch.rows
        self.sent += batch.sent
        self.refused += batch.refused
        self.failed += batch.failed
        self.not_known += batch.not_known


class Worker:
    """One process's part in whatever is queued. `say` is told, in one line, what a person should know.

    `store` stands for every campaign's own where it is given. Close it afterwards.
    """

    def __init__(
        self,
        url: str,
        stop: Stop,
        *,
        takeover_s: float,
        store: str | None = None,
        settled: Callable[[Settled], object] = lambda _settled: None,
        say: Callable[[str], object] = lambda _line: None,
    ) -> None:
        if not takeover_s >= LEAST_TAKEOVER_S:
            raise CampaignError(f"a batch is taken over after at least {LEAST_TAKEOVER_S:g} s, not {takeover_s:g}")
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.worked = Worked(self.name)
        self._stop = stop
        self._takeover_s = takeover_s
        self._store = store
        self._tell = settled
        self._say = say
        self._queue = Queue(QueueServer(url, pause=stop.wait))
        self._heart = _LeaseKeeper(url, self.name, min(takeover_s / _BEATS, _LONGEST_BEAT_S))
        self._runs: dict[str, _Run] = {}
        self._outage: _Outage | None = None
        self._shut_until: dict[str, float] = {}

    def close(self) -> None:
        """Let go of stores, senders and connections."""
        for run in self._runs.values():
            run.close()
        self._runs.clear()
        self._queue.server.close()

    def warnings(self) -> list[str]:
        """What speaks against the queue's server; `CampaignError` where it cannot be used at all."""
        return self._queue.server.prove(START_S)

    def work(self, *, until_idle: bool = False) -> None:
        """Take batches for as long as nobody asks to stop (`CampaignStopped`), or until there are none in any campaign.

        A `CaplineError` for what cannot go on; the batch then goes to another worker, after its lease.
        """
        with self._heart:
            while True:
                self._stop.check()
                in_work = 0
                for campaign in self._campaigns():
                    answer = self._queue.take(campaign, self.name, self._takeover_s)
                    match answer:
                        case Waiting():
                            in_work += answer.in_work
                        case Over():
                            continue
                        case DeadLetter():
                            self._set_aside(campaign, answer.number, answer.why)
                        case Taken():
                            self._settle(answer)
                    if not isinstance(answer, Waiting):
                        break
                else:
                    if until_idle and not in_work:
                        return
                    self._stop.wait(_POLL_S)

    def _campaigns(self) -> list[str]:
        """The campaigns that this worker can do something for, opened."""
        names = self._queue.open_campaigns()
        for name in [*self._runs]:
            if name not in names:
                self._runs.pop(name).close()
        return [name for name in names if self._is_open(name)]

    def _is_open(self, campaign: str) -> bool:
        if campaign in self._runs:
            return True
        if self._shut_until.get(campaign, 0.0) > time.monotonic():
            return False
        run = self._queue.find(campaign)
        if run is None:
            return True  # expired: `take` says that it is over, and forgets its name
        try:
            self._runs[campaign] = _Run(run, self._store, self._queue)
        except CaplineError as error:
            # Other campaigns go on; this one may be fixed meanwhile.
            if campaign not in self._shut_until:
                self.worked.trouble += 1
            self._shut_until[campaign] = time.monotonic() + self._takeover_s
            self._say(f"campaign {campaign} cannot be worked on here: {error}")
            return False
        return True

    def _settle(self, taken: Taken) -> None:
        began = time.monotonic()
        run = self._runs.get(taken.campaign)
        if run is None or run.info.run_id != taken.run_id:
            # Begun again since it was opened: give it back, and open what is there now.
            self._queue.leave(taken, self.name, "release")
            if run is not None:
                self._runs.pop(taken.campaign).close()
            return
        try:
            part, rows = run.read(taken)
        except CampaignError as error:
            if self._queue.leave(taken, self.name, "aside", str(error)):
                self._set_aside(taken.campaign, taken.number, str(error))
            return
        steps = _Steps(self._queue, taken, self.name, self._stop)
        with self._leaving(taken), self._heart.beating(taken):
            done = _settled(taken.campaign, run.settling(steps).settle(part, rows), time.monotonic() - began)
            self._outage = None
            self.worked.add(done)
            self._tell(done)

    @contextmanager
    def _leaving(self, taken: Taken) -> Generator[None]:
        """Let go of the batch in the way that what is raised inside asks for."""
        try:
            yield
        except _Lost:
            self._lose(taken)
        except CampaignStopped:
            self._queue.leave(taken, self.name, "release")
            raise
        except (StoreUnavailableError, StoreUnknownError) as error:
            # Every step of a batch may be taken again: it is given back, and taken when the store answers.
            self._queue.leave(taken, self.name, "release")
            self._outage = self._outage or _Outage(time.monotonic() + OUTAGE_S)
            self._stop.wait(self._outage.pause(error, self._say))
        except CaplineError as error:
            with suppress(CampaignError):
                if not self._queue.leave(taken, self.name, "fail", str(error)):
                    # What a late holder meets may come of the new one's work: a part that was replaced meanwhile.
                    self._lose(taken)
                    return
            if isinstance(error, StoreError) and AGAIN not in str(error):
                raise type(error)(f"{error}; {AGAIN}") from None
            raise

    def _lose(self, taken: Taken) -> None:
        self.worked.lost += 1
        self._say(f"{taken.campaign}: batch {taken.number} was taken over by another worker; it is left to that one")

    def _set_aside(self, campaign: str, number: int, why: str) -> None:
        self.worked.aside += 1
        self._say(
            f"{campaign}: batch {number} is set aside: {why}; the others go on; "
            "to put it back: capline campaign enqueue, as before"
        )


class _Outage:
    """A campaign's store does not answer: pauses that double, until it has been silent for too long."""

    def __init__(self, until: float) -> None:
        self._until = until
        self._pause_s = 0.0

    def pause(self, error: StoreError, say: Callable[[str], object]) -> float:
        """How long to wait; raises the error after the time that an outage may take. Said once."""
        if not self._pause_s:
            say(f"the store does not answer ({error}); waiting for it")
        if time.monotonic() > self._until:
            raise error
        self._pause_s = min(2 * self._pause_s or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        return self._pause_s


class _Lost(Exception):  # noqa: N818 - not an error: another one has the batch
    pass


@dataclass(slots=True)
class _Steps:
    """The queue as a `Record`, for one batch."""

    queue: Queue
    taken: Taken
    worker: str
    stop: Stop

    def check(self) -> None:
        self.stop.check()
        if not self.queue.hold(self.taken, self.worker):
            raise _Lost

    def add(self, rows: BatchRows) -> None:
        self._record(rows, decided=True)

    def save(self, rows: BatchRows) -> None:
        self._record(rows, decided=False)

    def _record(self, rows: BatchRows, *, decided: bool) -> None:
        if not self.queue.record(self.taken, self.worker, rows, decided=decided):
            raise _Lost


class _Run:
    """A run that is open here: its limiter and its sender."""

    def __init__(self, run: QueuedRun, store: str | None, queue: Queue) -> None:
        self._run = run
        self._file: CampaignFile = loads_campaign(run.text, Path(run.path))
        self._file = replace(self._file, store=store or run.store or self._file.store)
        policies = loads(run.policies, name=str(self._file.policies))
        self._policy: Policy = pick_policy(self._file, policies)
        self._breaker = Breaker(self._file.sender.breaker)
        self._segments = tuple(name for name, _ in run.facts.segments)
        self.info = RunInfo(run.facts.campaign, run.facts.run_id, run.facts.channel, run.columns)
        with ExitStack() as stack:
            known = queue.store(run.facts.campaign)
            self._limiter: Limiter = stack.enter_context(open_limiter(self._file, policies, create=known is None))
            sender = self._file.sender.sender
            stack.callback(sender.close)
            with as_campaign_errors(self._file.sender.name):
                sender.open(self.info)
            _same_store(queue.fix_store(run.facts.campaign, found := store_input(self._limiter)), found)
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    def read(self, taken: Taken) -> tuple[Part, BatchRows | None]:
        """The batch and how far it is; `CampaignError` where either is not what was written."""
        run, segments = self._run, len(self._segments)
        part = Part.unpack(taken.number, taken.rows, taken.data, run.columns, segments, len(run.zones))
        rows = taken.steps()
        if rows is not None and len(rows) != len(part):
            raise CampaignError(f"batch {taken.number} has another number of subjects than when it was decided")
        return part, rows

    def settling(self, steps: _Steps) -> Delivery:
        """What brings a batch of this run to its end."""
        kinds = self._segments, self._run.zones
        return Delivery(
            self._file, self._policy, *kinds, self._limiter, self.info, steps, self._breaker, steps.stop.wait
        )


def _same_store(fixed: Input, found: Input) -> None:
    """Every worker of a run decides on one store; `CampaignError` where this one found another."""
    changed = changed_inputs([fixed], [found])
    if changed:
        raise CampaignError(
            f"its other workers decide on another {changed[0]}; name theirs with --store URL, "
            "or enqueue the campaign under another name"
        )


class _LeaseKeeper:
    """Says that a batch has an owner, every second, from a thread and a connection of its own.

    It fails in silence: whether the batch is still this worker's is asked before each step anyway.
    """

    def __init__(self, url: str, worker: str, beat_s: float) -> None:
        self._queue = Queue(QueueServer(url, patience_s=0.0))
        self._worker = worker
        self._beat_s = beat_s
        self._over = threading.Event()
        self._taken: Taken | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        self._thread = threading.Thread(target=self._beat, name="capline-heart", daemon=True)
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._queue.server.close()

    @contextmanager
    def beating(self, taken: Taken) -> Generator[None]:
        """Inside, the batch is held."""
        self._taken = taken
        try:
            yield
        finally:
            self._taken = None

    def _beat(self) -> None:
        while not self._over.wait(self._beat_s):
            taken = self._taken
            if taken is not None:
                with suppress(CampaignError):
                    self._queue.hold(taken, self._worker)


def _settled(campaign: str, rows: BatchRows, elapsed_s: float) -> Settled:
    states: list[int] = np.bincount(rows.state, minlength=STATES).tolist()
    return Settled(
        campaign,
        rows.number,
        len(rows),
        states[DELIVERED],
        states[REFUSED],
        states[REFUNDED],
        states[NOT_KNOWN],
        round(elapsed_s, 3),
    )
