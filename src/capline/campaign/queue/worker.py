"""A worker: claims batches from the queue, one at a time, and delivers each. Any number of them, on any hosts.

`deliver` has the steps of a batch. A worker records them in the queue, which accepts them only from the batch's owner:

    claim ── the batch that prepares: read the audience, put the batches, or refuse it
      ├── deliver: renew the lease, send, record, … ── delivered
      │        └── lease lost: another worker owns the batch; write nothing, claim the next
      ├── damaged: set aside as a dead letter and reported; claim the next
      ├── stopped, or the campaign paused: released at once, for the next worker
      ├── to be tried again, no slot of its rate soon, a receiver or a store that is away: released, due later
      └── failed: released, due after `takeover_s`, and the worker ends with the error

A thread renews the lease every second, however long sending takes. A process that was killed or suspended renews
nothing: after `takeover_s` another worker claims the batch.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from capline.campaign.breaker import Breaker, SenderFailingError
from capline.campaign.deliver import AGAIN, Delivery, Held, Later, Lost, Paused, Steps
from capline.campaign.file import loads_campaign
from capline.campaign.prepare import begun_version, open_limiter, pick_policy, prepare
from capline.campaign.queue.enqueue import fill
from capline.campaign.queue.lease_keeper import LeaseKeeper
from capline.campaign.queue.worker_report import DeliveredBatch, WorkerReport, delivered_batch
from capline.campaign.rate import rate_now
from capline.campaign.stop import CampaignStopped
from capline.campaign.store.open import open_store
from capline.campaign.store.protocol import UnreadableRunError
from capline.campaign.store.records import PREPARE, Claimed, DeadLetter, changed_inputs
from capline.campaign.store_facts import claim_run, store_input, why_no_rehearsal
from capline.model.errors import (
    CampaignError,
    CampaignStoreError,
    CaplineError,
    StoreError,
    StoreUnavailableError,
    StoreUnknownError,
)
from capline.policy.file import loads

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from capline.campaign.senders.find import BuiltSender
    from capline.campaign.stop import Stop
    from capline.campaign.store.records import Input, StoredRun
    from capline.observe import Observer

LEAST_TAKEOVER_S, LONGEST_TAKEOVER_S = 1.0, 86_400.0
START_S = 10.0
"""How long a starting worker waits for the queue's server: longer than a restart takes."""
_POLL_S = 0.5
_AWAY_S = 1.0
"""How often it is tried whether a campaign's store answers again."""
_TELL_S = 60.0
"""A line about a receiver that campaigns wait for, or about a campaign's store, is said so often."""
_LONGEST_RENEWAL_S = 1.0
_RENEWALS = 4
"""Renewals per lease, and at least one a second, which a status shows."""


class Worker:
    """Delivers queued batches. `say` is called with one line about each problem.

    `store` replaces the stores of all campaigns. `observers` are those of the limiters. Close it afterwards.
    """

    def __init__(
        self,
        url: str,
        stop: Stop,
        *,
        takeover_s: float,
        store: str | None = None,
        delivered: Callable[[DeliveredBatch], object] = lambda _batch: None,
        say: Callable[[str], object] = lambda _line: None,
        observers: Sequence[Observer] = (),
    ) -> None:
        if not LEAST_TAKEOVER_S <= takeover_s <= LONGEST_TAKEOVER_S:
            raise CampaignError(
                f"a batch is taken over after {LEAST_TAKEOVER_S:g} to {LONGEST_TAKEOVER_S:g} s, not {takeover_s:g}"
            )
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.worked = WorkerReport(self.name)
        self._stop = stop
        self._takeover_s = takeover_s
        self._store = store
        self._observers = observers
        self._delivered = delivered
        self._say = say
        self._queue = open_store(url, work=True, make=True, pause=stop.wait)
        self._lease_keeper = LeaseKeeper(url, min(takeover_s / _RENEWALS, _LONGEST_RENEWAL_S))
        self._runs: dict[str, Delivery] = {}
        self._shut_until: dict[str, float] = {}
        self._later: dict[str, float] = {}
        self._breakers: dict[str, Breaker] = {}
        self._told_until: dict[str, float] = {}
        self._busy_until = 0.0
        self._until_idle = False

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

        After a `CaplineError`, another worker claims the batch once its lease has expired.
        """
        self._until_idle = until_idle
        for name in self._queue.ages_s():  # one that an earlier version queued is in no look
            try:
                self._queue.find(name)
            except UnreadableRunError as error:
                self._shut(name, error)
        with self._lease_keeper:
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
                    if until_idle and next_s > self._takeover_s and now > self._busy_until:
                        return  # what others have is due at the latest when a lease ends
                    self._stop.wait(min(_POLL_S, next_s))
                    continue
                answer = self._queue.claim(campaign, self.name, self._takeover_s)
                if isinstance(answer, DeadLetter):
                    self._set_aside(campaign, answer.number, answer.why)
                elif isinstance(answer, Claimed):
                    (self._prepare if answer.number == PREPARE else self._deliver)(answer)

    def _close_finished(self) -> None:
        if self._runs:
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
        """Whether it holds messages, and its policies were replaced: they are decided by those then in force."""
        found = self._queue.find(run.info.campaign) if run.file.holds_any else None
        return found is not None and found.policies != run.run.policies

    def _shut(self, campaign: str, error: CaplineError) -> bool:
        """Other campaigns go on; this one is tried again later, since it may be fixed."""
        if campaign not in self._shut_until:
            self.worked.trouble += 1
        self._shut_until[campaign] = time.monotonic() + self._takeover_s
        self._say(f"campaign {campaign} cannot be worked on here: {error}")
        return False

    def _prepare(self, claimed: Claimed) -> None:
        run = self._queue.find(claimed.campaign)
        if run is None:
            return
        with self._releasing(claimed), self._lease_keeper.renewing(claimed):
            try:
                file = loads_campaign(run.text, Path(run.path))
                job = prepare(file, begun_version(run.inputs), run.policies)
                fill(job, self._queue, claimed, lambda _queued: self._stop.check())
            except CampaignStoreError:
                raise
            except CaplineError as error:
                is_over = self._queue.halt(claimed.campaign) == "cancel"
                if self._queue.release(claimed, "give_back" if is_over else "set_aside", str(error)):
                    self.worked.trouble += 1
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
            if self._queue.release(claimed, "set_aside", str(error)):
                self._set_aside(claimed.campaign, claimed.number, str(error))
            return
        steps = Steps(self._queue, claimed, self._stop)
        with self._releasing(claimed), self._lease_keeper.renewing(claimed):
            try:
                rows = run.deliver(steps, part, rows)
            except SenderFailingError as error:
                if self._until_idle:
                    raise
                told = f"{error.why}; it is tried again every {self._takeover_s:g} s"
                self._tell(claimed.campaign, told, about=_receiver(run.file.sender))
                raise Later(self._takeover_s, all_of_it=True) from None
            done = delivered_batch(claimed.campaign, rows, time.monotonic() - began, run.segments)
            self.worked.add(done)
            self._delivered(done)

    @contextmanager
    def _releasing(self, claimed: Claimed) -> Generator[None]:
        """Release the batch as the exception in the block demands."""
        try:
            yield
        except Lost:
            self._lose(claimed)
        except (Paused, CampaignStopped) as stop:
            self._queue.release(claimed, "give_back")
            if isinstance(stop, CampaignStopped):
                raise
        except Later as later:
            self._queue.release(claimed, "give_back", wait_s=later.wait_s)
            if isinstance(later, Held):
                return
            breaker = self._runs[claimed.campaign].breaker
            others = (name for name, run in self._runs.items() if later.all_of_it and run.breaker is breaker)
            self._wait(later.wait_s, *others)
        except (StoreUnavailableError, StoreUnknownError) as error:
            # Every step of a batch may be repeated, so a lost answer is an outage too.
            self._tell(claimed.campaign, f"the store does not answer ({error}); its batches wait for it")
            self._queue.release(claimed, "give_back", wait_s=_AWAY_S)
            self._wait(_AWAY_S, claimed.campaign)
        except CaplineError as error:
            with suppress(CampaignError):
                if not self._queue.release(claimed, "fail", str(error), wait_s=self._takeover_s):
                    # The new owner may have caused the error, by replacing a part file.
                    self._lose(claimed)
                    return
            if isinstance(error, StoreError) and AGAIN not in str(error):
                raise type(error)(f"{error}; {AGAIN}") from None
            raise

    def _wait(self, wait_s: float, *campaigns: str) -> None:
        """There is something to do later; claim nothing of these campaigns before."""
        until = time.monotonic() + wait_s
        self._busy_until = max(self._busy_until, until)
        self._later |= dict.fromkeys(campaigns, until)

    def _tell(self, campaign: str, line: str, about: str = "") -> None:
        now, about = time.monotonic(), about or campaign
        if self._told_until.get(about, now) <= now:
            self._told_until[about] = now + _TELL_S
            self._say(f"{campaign}: {line}")

    def _lose(self, claimed: Claimed) -> None:
        self.worked.lost += 1
        self._say(f"{claimed.campaign}: batch {claimed.number} was taken over by another worker, which delivers it")

    def _set_aside(self, campaign: str, number: int, why: str) -> None:
        self.worked.aside += 1
        self._say(
            f"{campaign}: batch {number} is set aside: {why}; the others go on; "
            "to put it back: capline campaign enqueue, as before"
        )


def _receiver(sender: BuiltSender) -> str:
    """What senders with one breaker have in common."""
    return f"{sender.digest} {sender.breaker} {sender.request_size}"


def _same_store(frozen: Input, found: Input) -> None:
    """`CampaignError` where this worker has another store than the run's other workers."""
    changed = changed_inputs([frozen], [found])
    if changed:
        raise CampaignError(
            f"its other workers decide on another {changed[0]}; name theirs with --store URL, "
            "or enqueue the campaign under another name"
        )
