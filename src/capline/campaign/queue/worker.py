"""The loop of all who work on campaigns: claims what is due, one batch at a time, delivers it, puts back what waits.

`deliver` has the steps of a batch. They are recorded in the store, which accepts them only from the batch's owner:

    claim ── the batch that prepares: read the audience, put the batches, or refuse it
      ├── deliver: renew the lease, send, record, … ── delivered
      │        └── lease lost: another worker owns the batch; write nothing, claim the next
      ├── damaged: set aside as a dead letter and reported; claim the next
      ├── stopped, or the campaign paused: released at once, for the next worker
      ├── to be tried again, no slot of its rate soon, a receiver or a store that is away: released, due later
      └── failed: released, due after `takeover_s`, and the worker ends with the error

A worker repeats this for ever, for all campaigns of a store, beside any number of other workers on any hosts. A thread
renews the lease every second, however long sending takes. A process that was killed or suspended renews nothing: after
`takeover_s` another worker claims the batch.

`campaign run` repeats it for the `only` campaign of a store that it has to itself, until that is over. It needs no
lease: a batch of a killed run is its own. It ends where a batch is damaged, and unless it `waits`, where the store or
the receiver does not answer.
"""

import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from capline.campaign.breaker import Breaker, SenderFailingError
from capline.campaign.deliver import AGAIN, AllHeld, Delivery, DueLater, LeaseLost, Paused, StepRecorder
from capline.campaign.file import loads_campaign
from capline.campaign.prepare import begun_version, open_limiter, pick_policy, prepare
from capline.campaign.queue.background import LeaseKeeper
from capline.campaign.queue.enqueue import fill
from capline.campaign.queue.worker_report import DeliveredBatch, WorkerReport, delivered_batch
from capline.campaign.rate import rate_now
from capline.campaign.senders.find import BuiltSender
from capline.campaign.stop import CampaignStopped, Stop
from capline.campaign.store.open import open_store
from capline.campaign.store.protocol import CampaignStore, UnreadableRunError
from capline.campaign.store.records import PREPARE, Claimed, DeadLetter, Input, StoredRun, changed_inputs
from capline.campaign.store_facts import claim_run, store_input, why_no_rehearsal
from capline.model.errors import (
    CampaignError,
    CampaignStoreError,
    CaplineError,
    StoreError,
    StoreUnavailableError,
    StoreUnknownError,
)
from capline.observe import Observer
from capline.policy.file import loads

LEAST_TAKEOVER_S, LONGEST_TAKEOVER_S = 1.0, 86_400.0
START_S = 10.0
"""How long a starting worker waits for the queue's server: longer than a restart takes."""
_POLL_S = 0.5
_AWAY_S = 1.0
"""How often it is tried whether a campaign's store answers again."""
_TELL_S = 60.0
"""How often a line says that a receiver accepts nothing, or that a store does not answer."""
_LONGEST_RENEWAL_S = 1.0
_RENEWALS = 4
"""Renewals per lease, and at least one a second, which a status shows."""


class Worker:
    """Delivers the batches of a store, by its URL, or of the `only` campaign of an open one.

    `say` is called with one line about each problem. `store` replaces the stores of all campaigns. `observers` are
    those of the limiters. `pause` takes the place of each wait between two tries, in tests. Close it afterwards.
    """

    def __init__(
        self,
        queue: str | CampaignStore,
        stop: Stop,
        *,
        takeover_s: float,
        store: str | None = None,
        only: Delivery | None = None,
        waits: bool = True,
        pause: Callable[[float], object] | None = None,
        delivered: Callable[[DeliveredBatch], object] = lambda _batch: None,
        say: Callable[[str], object] = lambda _line: None,
        observers: Sequence[Observer] = (),
    ) -> None:
        if not LEAST_TAKEOVER_S <= takeover_s <= LONGEST_TAKEOVER_S:
            raise CampaignError(
                f"a batch is taken over after {LEAST_TAKEOVER_S:g} to {LONGEST_TAKEOVER_S:g} s, not {takeover_s:g}"
            )
        self.name = "run" if only else f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.report = WorkerReport(self.name)
        self._stop = stop
        self._takeover_s = takeover_s
        self._store = store
        self._observers = observers
        self._delivered = delivered
        self._say = say
        self._only = only
        self._waits = waits
        self._pause = pause
        self._lease_keeper: LeaseKeeper | None = None
        if isinstance(queue, str):
            self._lease_keeper = LeaseKeeper(queue, min(takeover_s / _RENEWALS, _LONGEST_RENEWAL_S))
            queue = open_store(queue, work=True, make=True, pause=stop.wait)
        self._queue = queue
        self._runs = {only.info.campaign: only} if only else dict[str, Delivery]()
        self._shut_until: dict[str, float] = {}
        self._later: dict[str, float] = {}
        self._breakers: dict[str, Breaker] = {}
        self._told_until: dict[str, float] = {}
        self._busy_until = 0.0

    def close(self) -> None:
        """Close stores, senders and connections."""
        for run in self._runs.values():
            run.closing.close()
        self._runs.clear()
        self._queue.close()

    def warnings(self) -> list[str]:
        """Warnings about the queue's server; `CampaignError` where it cannot hold a queue."""
        return self._queue.check(START_S)

    def work(self, *, until_idle: bool = False) -> None:
        """Deliver batches until a stop (`CampaignStopped`), or with `until_idle` until no batch is left.

        After a `CaplineError`, another worker claims the batch once its lease has expired; so does another run.
        """
        self._waits = self._waits and not until_idle
        for name in self._queue.ages_s():  # one that an earlier version queued is in no look
            try:
                self._queue.find(name)
            except UnreadableRunError as error:
                self._shut(name, error)
        with self._lease_keeper.running() if self._lease_keeper else nullcontext():
            while True:
                self._stop.check()
                now = time.monotonic()
                self._later = {name: until for name, until in self._later.items() if until > now}
                look = self._queue.look(1 + len(self._shut_until) + len(self._later))
                ready = (name for name in look.campaigns if name not in self._later)
                campaign = next(filter(self._is_open, ready), None)
                if campaign is None:
                    self._close_finished()
                    next_s = min(look.next_s, *(until - now for until in self._later.values()), math.inf)
                    if self._only is not None and self._queue.state(self._only.info.campaign).finished:
                        return
                    if until_idle and next_s > self._takeover_s and now > self._busy_until:
                        return  # what others have is due at the latest when a lease ends
                    self._stop.wait(min(_POLL_S, next_s))
                    continue
                answer = self._queue.claim(campaign, self.name, 0 if self._only else self._takeover_s)
                if isinstance(answer, DeadLetter):
                    self._set_aside(campaign, answer.number, answer.why)
                elif isinstance(answer, Claimed):
                    (self._prepare if answer.number == PREPARE else self._deliver)(answer)

    def _close_finished(self) -> None:
        if self._runs and self._only is None:
            for name in {*self._runs}.difference(self._queue.ages_s()):
                self._runs.pop(name).closing.close()

    def _is_open(self, campaign: str) -> bool:
        if campaign in self._runs:
            return True
        if self._shut_until.get(campaign, 0.0) > time.monotonic():
            return False
        try:
            run = self._queue.find(campaign)
        except UnreadableRunError as error:
            return self._shut(campaign, error)
        if run is None or not run.batches:
            return True  # expired: `claim` answers `Over` and removes its name; or its audience is to be read first
        self._close_finished()
        try:
            self._runs[campaign] = self._open(run)
        except CaplineError as error:
            return self._shut(campaign, error)
        return True

    def _open(self, run: StoredRun) -> Delivery:
        """A run with its limiter and its sender; `CaplineError` where it cannot be worked on here."""
        queue, name = self._queue, run.facts.campaign
        file = loads_campaign(run.text, Path(run.path))
        file = replace(file, store=self._store or run.store or file.store)
        policies = loads(run.policies, name=str(file.policies))
        policy, sender = pick_policy(file, policies), file.sender
        breaker = self._breakers.setdefault(_receiver(sender), Breaker(sender.breaker, size=sender.request_size))
        with ExitStack() as stack:
            limiter = open_limiter(file, policies, create=queue.store(name) is None, observers=self._observers)
            opened = Delivery(run, file, policy, stack.enter_context(limiter), breaker, closing=stack)
            problem = why_no_rehearsal(file, limiter)
            if problem and queue.store(name) is None:  # else what is there may be of its own workers
                raise CampaignError(problem)
            opened.open_sender()
            _same_store(queue.freeze_store(name, found := store_input(limiter)), found)
            with suppress(StoreUnavailableError, StoreUnknownError):  # each batch claims it again
                claim_run(limiter, file, run.facts.run_id, rate_now(queue, file.rate, file.rate_key))
            opened.closing = stack.pop_all()
        return opened

    def _is_old(self, run: Delivery) -> bool:
        """Whether it holds messages and its policies were replaced: held messages are decided by the newest ones."""
        found = self._queue.find(run.info.campaign) if run.file.holds_any and run is not self._only else None
        return found is not None and found.policies != run.run.policies

    def _shut(self, campaign: str, error: CaplineError) -> bool:
        """Other campaigns go on; this one is tried again later, since it may be fixed."""
        if campaign not in self._shut_until:
            self.report.trouble += 1
        self._shut_until[campaign] = time.monotonic() + self._takeover_s
        self._say(f"campaign {campaign} cannot be worked on here: {error}")
        return False

    def _prepare(self, claimed: Claimed) -> None:
        run = self._queue.find(claimed.campaign)
        if run is None:
            return
        with self._releasing(claimed):
            try:
                file = loads_campaign(run.text, Path(run.path))
                job = prepare(file, begun_version(run.inputs), run.policies)
                fill(job, self._queue, claimed, lambda _queued: self._stop.check())
            except CampaignStoreError:
                raise
            except CaplineError as error:
                is_over = self._queue.halt(claimed.campaign) == "cancel"
                if self._queue.release(claimed, "give_back" if is_over else "set_aside", str(error)):
                    self.report.trouble += 1
                    self._say(f"campaign {claimed.campaign} is refused: {error}")

    def _deliver(self, claimed: Claimed) -> None:
        began = time.monotonic()
        run = self._runs.get(claimed.campaign)
        if run is None or run.info.run_id != claimed.run_id or self._is_old(run):
            # A new run, or its new files, replaced what is open here: release the batch, and open the new run.
            self._queue.release(claimed, "give_back")
            if run is not None:
                self._runs.pop(claimed.campaign).closing.close()
            return
        try:
            part, rows = run.read(claimed)
        except CampaignError as error:
            if self._only is not None:
                raise
            if self._queue.release(claimed, "set_aside", str(error)):
                self._set_aside(claimed.campaign, claimed.number, str(error))
            return
        with self._releasing(claimed):
            rows = run.deliver(StepRecorder(self._queue, claimed, self._stop), part, rows)
            done = delivered_batch(claimed.campaign, rows, time.monotonic() - began, run.segments)
            self.report.add(done)
            self._delivered(done)

    @contextmanager
    def _releasing(self, claimed: Claimed) -> Generator[None]:
        """Renew the batch's lease in the block, and release the batch as its exception demands."""
        try:
            with self._lease_keeper.renewing(claimed) if self._lease_keeper else nullcontext():
                yield
        except LeaseLost:
            self._lose(claimed)
        except (Paused, CampaignStopped) as stop:
            self._queue.release(claimed, "give_back")
            if isinstance(stop, CampaignStopped):
                raise
        except AllHeld as held:
            self._queue.release(claimed, "give_back", wait_s=held.wait_s)
        except DueLater as later:
            self._put_off(claimed, later.wait_s, *self._by_receiver(claimed.campaign) if later.all_of_it else ())
        except CaplineError as error:
            if not self._has_put_off(claimed, error) and not self._has_lost(claimed, error):
                if isinstance(error, StoreError) and AGAIN not in str(error):
                    raise type(error)(f"{error}; {AGAIN}") from None
                raise

    def _has_put_off(self, claimed: Claimed, error: CaplineError) -> bool:
        """Whether the batch waits for a receiver or a store that is away."""
        campaign = claimed.campaign
        if isinstance(error, SenderFailingError) and self._waits:
            told = f"{error.why}; it is tried again every {self._takeover_s:g} s"
            self._tell(campaign, told, about=_receiver(self._runs[campaign].file.sender))
            self._put_off(claimed, self._takeover_s, *self._by_receiver(campaign))
        elif isinstance(error, StoreUnavailableError | StoreUnknownError) and (self._waits or self._only is None):
            # Every step of a batch may be repeated, so a lost answer is an outage too.
            self._tell(campaign, f"the store does not answer ({error}); its batches wait for it")
            self._put_off(claimed, _AWAY_S, campaign)
        else:
            return False
        return True

    def _has_lost(self, claimed: Claimed, error: CaplineError) -> bool:
        """Release a batch that failed; whether it has a new owner, who may have caused the error: a part file of it."""
        how, wait_s = ("fail", self._takeover_s) if self._only is None else ("give_back", 0.0)
        with suppress(CampaignError):
            is_released = self._queue.release(claimed, how, str(error), wait_s=wait_s)
            if not is_released and not isinstance(error, SenderFailingError):  # whose batch may be settled
                self._lose(claimed)
                return True
        return False

    def _by_receiver(self, campaign: str) -> list[str]:
        """The campaigns that have the receiver of this one."""
        breaker = self._runs[campaign].breaker
        return [name for name, run in self._runs.items() if run.breaker is breaker]

    def _put_off(self, claimed: Claimed, wait_s: float, *campaigns: str) -> None:
        """Release a batch that is due later; claim nothing of these campaigns before."""
        if self._pause is not None:
            self._pause(wait_s)
            wait_s = 0.0
        self._queue.release(claimed, "give_back", wait_s=wait_s)
        until = time.monotonic() + wait_s
        self._busy_until = max(self._busy_until, until)
        self._later |= dict.fromkeys(campaigns, until)

    def _tell(self, campaign: str, line: str, about: str = "") -> None:
        now, about = time.monotonic(), about or campaign
        if self._told_until.get(about, now) <= now:
            self._told_until[about] = now + _TELL_S
            self._say(f"{campaign}: {line}")

    def _lose(self, claimed: Claimed) -> None:
        self.report.lost += 1
        self._say(f"{claimed.campaign}: batch {claimed.number} was taken over by another worker, which delivers it")

    def _set_aside(self, campaign: str, number: int, why: str) -> None:
        self.report.aside += 1
        self._say(
            f"{campaign}: batch {number} is set aside: {why}; the others go on; "
            "to put it back: capline campaign enqueue, as before"
        )


def _receiver(sender: BuiltSender) -> str:
    """The key by which senders share a breaker."""
    return f"{sender.digest} {sender.breaker} {sender.request_size}"


def _same_store(frozen: Input, found: Input) -> None:
    """`CampaignError` where this worker has another store than the run's other workers."""
    changed = changed_inputs([frozen], [found])
    if changed:
        raise CampaignError(
            f"its other workers decide on another {changed[0]}; name that store with --store URL, "
            "or enqueue the campaign under another name"
        )
