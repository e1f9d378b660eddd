"""Delivers one batch: decide, send, refund. Each step is recorded before the next one begins.

The rule: every step may be repeated: a decision has a receipt, a message has a key, a refund names the hit's stamp. So
a process may be killed anywhere, and the next one repeats the first step that is not recorded (`sqlite_store` lists
them).

A hit is refunded only if the receiver surely did not accept the message. The start of sending is recorded too, since a
message that was under way at a kill may have been accepted.

`StepRecorder` records them in a campaign store: of a directory (`run`), or the one that workers share.
"""

from __future__ import annotations

import math
import random
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from capline.campaign.attempts import AGAIN, Attempts
from capline.campaign.breaker import SenderFailingError
from capline.campaign.hold import turns_of
from capline.campaign.part import Part
from capline.campaign.prepare import local_instant_us
from capline.campaign.rate import LONGEST_WAIT_S, Pace, rate_now
from capline.campaign.room import fits_limits, room_for_higher
from capline.campaign.senders.protocol import (
    DELIVERED,
    PERMANENT,
    TRANSIENT,
    UNKNOWN,
    Messages,
    Outcomes,
    RunInfo,
)
from capline.campaign.store.packed import subjects
from capline.campaign.store.rows import EXCLUDED, NOT_KNOWN, RETRY, SECOND_US, UNSURE, BatchRows
from capline.campaign.store_facts import claim_run
from capline.model.clock import SystemClock
from capline.model.decision import LimitExceeded
from capline.model.errors import CampaignError, CaplineError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from numpy.typing import NDArray

    from capline.campaign.breaker import Breaker
    from capline.campaign.file import CampaignFile, Retry
    from capline.campaign.prepare import Job
    from capline.campaign.stop import Stop
    from capline.campaign.store.protocol import CampaignStore
    from capline.campaign.store.records import Claimed, Rate, StoredRun
    from capline.limiter.limiter import Limiter
    from capline.model.policy import Policy

_NO_LIMIT = 1 << 16


class LeaseLost(Exception):  # noqa: N818 - not an error: another worker owns the batch
    """Another worker took the batch over: write nothing more."""


class Paused(Exception):  # noqa: N818 - not an error: what was asked for
    """The campaign was paused."""


class DueLater(Exception):  # noqa: N818 - not an error: the batch is due later
    """The batch cannot go on before `wait_s` seconds; with `all_of_it` no batch of its campaign can."""

    def __init__(self, wait_s: float, *, all_of_it: bool) -> None:
        super().__init__(f"in {wait_s:g} s")
        self.wait_s = wait_s
        self.all_of_it = all_of_it


class AllHeld(DueLater):
    """Nothing is left to do with the batch but to decide what is held, in `wait_s` seconds."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(wait_s, all_of_it=False)


class Cancelled(Exception):  # noqa: N818 - not an error: what was asked for
    """The campaign was cancelled."""


@dataclass(slots=True)
class StepRecorder:
    """Records the steps of one batch that this worker claimed. When a call returns, the step is stored.

    But for what is `noted`: it is stored with the next step, or by `flush`.
    """

    store: CampaignStore
    claimed: Claimed
    stop: Stop
    noted: BatchRows | None = None

    def check(self) -> None:
        """Called before each hand-over; stops here, with the batch as recorded, by one of the exceptions above."""
        self.stop.check()
        if not self.store.renew(self.claimed):
            raise LeaseLost
        match self.store.halt(self.claimed.campaign):
            case "pause":
                raise Paused
            case "cancel":
                raise Cancelled
            case _:
                pass

    def add(self, rows: BatchRows) -> None:
        """Record a batch that was just decided."""
        self._record(rows, decided=True)

    def save(self, rows: BatchRows) -> None:
        """Record a batch's new outcomes."""
        self._record(rows, decided=False)

    def flush(self) -> None:
        """Record what is noted."""
        if self.noted is not None:
            self.save(self.noted)

    def _record(self, rows: BatchRows, *, decided: bool) -> None:
        self.noted = None
        if not self.store.record(self.claimed, rows, decided=decided):
            raise LeaseLost


@dataclass(slots=True)
class Delivery:
    """A run that is open here: delivers its batches, one at a time.

    `job` has the subjects of batches without data; None where a worker knows only what was stored. `jitter` returns a
    number from 0 to 1. `progress` is called after the decision and after each send, with how many subjects of the batch
    are done. `closing`: what is closed with it. `doubtful`: batches of which what is not known is sent again.
    """

    run: StoredRun
    file: CampaignFile
    policy: Policy
    limiter: Limiter
    breaker: Breaker
    job: Job | None = None
    progress: Callable[[int], object] = lambda _rows: None
    jitter: Callable[[], float] = random.random
    closing: ExitStack = field(default_factory=ExitStack)
    doubtful: set[int] = field(default_factory=set[int])
    segments: tuple[str | None, ...] = field(init=False)
    info: RunInfo = field(init=False)
    record: StepRecorder = field(init=False)
    """Of the batch that is delivered."""

    def __post_init__(self) -> None:
        facts = self.run.facts
        self.segments = tuple(name for name, _ in facts.segments)
        self.info = RunInfo(facts.campaign, facts.run_id, facts.channel, self.run.columns)

    def open_sender(self) -> None:
        """Open the sender, which `closing` closes."""
        self.closing.callback(self.file.sender.sender.close)
        with as_campaign_errors(self.file.sender.name):
            self.file.sender.sender.open(self.info)

    def read(self, claimed: Claimed) -> tuple[Part, BatchRows | None]:
        """The subjects of a batch and its recorded steps; `CampaignError` where either is damaged."""
        rows = claimed.steps()
        if claimed.data:
            part = Part.claimed(claimed, self.run)
        elif self.job is None:
            raise CampaignError("its subjects are where it was begun: go on with capline campaign run")
        else:  # some of those that were decided may have been erased since
            part = self.job.part(claimed.number) if rows is None else self.job.part_of(claimed.number, rows.ids)
        if rows is not None and len(rows) != len(part):
            raise CampaignError(f"batch {claimed.number} has another number of subjects than when it was decided")
        return part, rows

    def deliver(self, record: StepRecorder, part: Part, rows: BatchRows | None) -> BatchRows:
        """Deliver a batch from its recorded state; `rows` is None if it is not decided yet.

        Sends each row that is due, and refunds each hit whose message is never sent. Raises `DueLater` where rows
        are to be tried again, or the rate has no slot soon, `SenderFailingError` when the circuit breaker opens,
        `Paused` where the campaign is paused or over before it is decided, `AllHeld` where what is left is held. Of a
        cancelled campaign what was not handed over is refunded.
        """
        self.record = record
        if part.number in self.doubtful:
            self.doubtful.discard(part.number)
            if rows is not None and rows.retry_unknown():
                record.save(rows)
        if rows is None:
            if self.record.store.halt(self.info.campaign):
                raise Paused  # what is not decided is left so
            rows = self._attempts.begin(part)
            if self.file.holds_any:
                rows.hold()
            if self.file.exclude is not None or not rows.todo("decide").size:
                self.record.add(rows)  # a receipt is for those who are asked, whoever opts out meanwhile
        if rows.todo("decide").size:
            self._decide(part, rows)
        try:
            self._decide_held(part, rows)
            self._send_all(part, rows)
            if (held := rows.todo("wait")).size:
                self._wait_for(rows.held_until_us[held])
        except Cancelled:
            rows.cancel()
            self.record.save(rows)
            self._refund(rows)
        finally:
            self.record.flush()
        return rows

    def _send_all(self, part: Part, rows: BatchRows) -> None:
        messages_of_batch = Messages(self.info, part.number, rows.ids, rows.codes, self.segments, part.columns)
        if rows.in_state(UNSURE).size and self._give_up_unsure(rows):
            self.record.save(rows)
        self._refund(rows)
        self._tell(rows)
        due_us = self._due_us(part)
        while (due := rows.todo("send")).size:
            asked_s = 0.0
            pace = Pace.of(self.file.rate_key, self._rate(), self.file.sender.at_once, self.limiter)
            most = min(self.file.sender.sender.most or due.size, due.size if pace is None else pace.most)
            for start in range(0, due.size, most):
                self.record.check()
                if pace is not None and pace.rate != self._rate():
                    break
                some = self._not_excluded(rows, due[start : start + most])
                if some.size:
                    asked_s = max(asked_s, self._hand_over(rows, some, messages_of_batch, pace, due_us))
                self._refund(rows)
                self._tell(rows)
                if self.breaker.is_failing:
                    self._stop_if_down(rows, some)
                if self.breaker.is_failing or asked_s:
                    break
            tries = rows.attempts[np.isin(rows.state, (RETRY, UNSURE))]
            if tries.size or (asked_s and rows.todo("send").size):
                wait_s = backoff_s(int(tries.max(initial=1)), self.file.retry, asked_s, self.jitter())
                raise DueLater(wait_s, all_of_it=self.breaker.is_failing or asked_s > 0)

    @property
    def _attempts(self) -> Attempts:
        return Attempts(self.limiter, self.file, self.policy, self.segments, self.run.zones)

    def _tell(self, rows: BatchRows) -> None:
        self.progress(len(rows) - rows.todo("send").size - rows.todo("wait").size)

    def _decide_held(self, part: Part, rows: BatchRows) -> None:
        """Decide the held rows that are due, but for those behind others (`hold`) and those that opted out.

        Where none is due, nor in a second, somebody steered a campaign that they may have waited for: all are due.
        """
        if not (held := rows.todo("wait")).size:
            return
        self.record.check()
        now_us = self.limiter.now_us()
        until_us = rows.held_until_us[held]
        is_woken = until_us.min() > now_us + SECOND_US and not rows.todo("send").size
        due = held if is_woken else held[until_us <= now_us]
        if self.file.exclude is not None and due.size:
            out = self.file.exclude.among(rows.ids[due])
            rows.state[due[out]] = EXCLUDED
            due = due[~out]
        if not due.size:
            self.record.save(rows)
            return
        until_us, limits = turns_of(self.record.store, self.info.campaign, rows, due, now_us)
        waits = np.flatnonzero(until_us)
        rows.wait_behind(due[waits], until_us[waits], [limits[place] for place in waits])
        asked = due[until_us == 0]
        room = self._room(part, asked, now_us) if self.file.yields and asked.size else None
        if self.file.yields and room is None:
            rows.retry_us[asked] = (now_us // SECOND_US + 1) * SECOND_US - rows.at_us
        else:
            rows.begin_deciding(asked, now_us, room)
        self.record.add(rows)
        if rows.todo("decide").size:
            self._decide(part, rows)

    def _wait_for(self, until_us: NDArray[np.int64]) -> None:
        """Until the first of these, or the campaign is over."""
        over_us = self.record.store.state(self.info.campaign).until_us or math.inf
        raise AllHeld(max(min(int(until_us.min()), over_us) - self.limiter.now_us(), 0) / 1e6)

    def _decide(self, part: Part, rows: BatchRows) -> None:
        """Decide the rows that are to be."""
        if self.record.store.halt(self.info.campaign) == "pause":
            raise Paused
        now_us = self.limiter.now_us()
        claim_run(self.limiter, self.file, self.info.run_id, self._rate())
        decided = rows.todo("decide")
        if rows.room is not None and not fits_limits(rows.room, self._attempts, part, decided):
            was, now = rows.room[:, 0], self._room(part, decided, now_us)
            rows.room = np.zeros((len(was), 1), np.int64) if now is None else now
            rows.room[:, 0] = np.where(was > 0, was, rows.room[:, 0])
            self.record.save(rows)
        receipt = f"{self.info.campaign}/{self.info.run_id}/{part.number}"
        receipt = f"{receipt}/{rows.receipt_us}" if rows.receipt_us else receipt
        answers = self._attempts.decide(part, decided, receipt, None if rows.room is None else rows.room[:, 1:])
        # Answers from a receipt are older: their `retry_after` counts from when they were first given.
        hits = answers.hit[answers.allowed]
        if not rows.receipt_us:
            rows.at_us = min(now_us, int(hits.max())) if hits.size else now_us
        since_us = min(rows.receipt_us, now_us) if rows.receipt_us else None
        rows.take_decisions(decided, answers, self.file.holds, since_us, self.file.cost)
        self.record.add(rows)

    def _room(self, part: Part, rows: NDArray[np.intp], now_us: int) -> NDArray[np.int64] | None:
        return room_for_higher(self.record.store, self.info.campaign, self._attempts, part, rows, now_us)

    def _rate(self) -> Rate | None:
        return rate_now(self.record.store, self.file.rate, self.file.rate_key)

    def _due_us(self, part: Part) -> int:
        """When the messages of a batch were due: at `send_at`, once the run began, or at the minute of their zone."""
        due_us, minute = max(self.file.send_at_us, self.run.facts.begun_us), self.file.local_minute
        if minute is not None and part.zone_codes is not None:
            zone = self.run.zones[int(part.zone_codes[0])] or self.policy.zone
            due_us = max(due_us, local_instant_us(self.file.send_at_us, minute, zone))
        return due_us

    def _hand_over(
        self, rows: BatchRows, due: NDArray[np.intp], messages_of_batch: Messages, pace: Pace | None, due_us: int
    ) -> float:
        first = rows.attempts[due] == 0
        until = math.inf if pace is None else _turn(pace, due.size)
        before = rows.state[due]
        unsure = rows.hand_over(due)
        self.record.save(rows)
        if pace is not None and time.monotonic() > until:  # the store took longer than the slot
            try:
                _turn(pace, due.size)
            except DueLater:
                rows.state[due] = before
                self.record.save(rows)
                raise
        outcomes = self._send(messages_of_batch.take(due))
        most = _NO_LIMIT if self.breaker.is_failing else self.file.retry.attempts
        rows.take_outcomes(due, outcomes, most, unsure)
        if self.file.as_of_us is None:
            rows.note_delay(due, max(SystemClock().now_us() - due_us, 0) / 1e6)
        self._give_up_unsure(rows)
        self.record.noted = rows
        if pace is not None:  # the next hand-over may be far off
            self.record.flush()
        self.breaker.count(rows.state[due], first & ~unsure)
        return outcomes.wait_s

    def _stop_if_down(self, rows: BatchRows, some: NDArray[np.intp]) -> None:
        """Stop early if none of the last send is left to try again, or some used up their attempts.

        The receiver answered for those it refused for good: beside others that may yet be sent they are no outage.

        Attempts at a receiver that is down do not count: a resumed run has all of them again.
        """
        states = rows.state[some]
        due = some[np.isin(states, (RETRY, UNSURE))]
        if not due.size or (states == NOT_KNOWN).any() or (rows.attempts[due] >= self.file.retry.attempts).any():
            rows.attempts[due] = 0
            self.record.save(rows)
            reason = int(rows.reason[some[-1]])
            why = rows.reasons[reason - 1] if reason else "no reason given"
            what = "messages" if self.breaker.size == 1 else "requests"
            raise SenderFailingError(
                f"{self.breaker.in_a_row:,} {what} in a row were not sent by {self.file.sender.name} ({why})",
                self.breaker.threshold,
            )

    def _give_up_unsure(self, rows: BatchRows) -> bool:
        """Mark unsure rows as not known if sending again could deliver a message twice; returns whether that is so."""
        if self.file.sender.asks_again:
            return False
        rows.give_up_unsure()
        return True

    def _send(self, messages: Messages) -> Outcomes:
        name = self.file.sender.name
        with as_campaign_errors(name):
            outcomes = self.file.sender.sender.send(messages)
        known = np.isin(outcomes.codes, (DELIVERED, PERMANENT, TRANSIENT, UNKNOWN))
        if len(outcomes.codes) != len(messages) or not known.all():
            raise CampaignError(f"sender {name!r} gave no valid outcome for each of {len(messages)} messages; {AGAIN}")
        return outcomes

    def _not_excluded(self, rows: BatchRows, due: NDArray[np.intp]) -> NDArray[np.intp]:
        """Those of these rows that may still be sent; of the others one that may have been sent is not known."""
        if self.file.exclude is None or not (out := self.file.exclude.among(rows.ids[due])).any():
            return due
        rows.opt_out(due[out])
        self.record.save(rows)
        return due[~out]

    def _refund(self, rows: BatchRows) -> None:
        """Refund the hits of messages that were surely not accepted, or opted out of before they were sent."""
        lost = rows.todo("refund")
        if lost.size:
            self.record.flush()
            # An answer of False is fine: a killed process has refunded the hit, or it has left every window.
            self.limiter.refund_many(self.policy.name, subjects(rows.ids[lost]), rows.hit[lost], self.file.cost)
            rows.mark_done(lost)
            self.record.save(rows)


def _turn(pace: Pace, messages: int) -> float:
    try:
        return pace.turn(messages)
    except LimitExceeded as refused:
        raise DueLater(refused.decision.retry_after or LONGEST_WAIT_S, all_of_it=True) from None


def backoff_s(tries: int, retry: Retry, asked_s: float, jitter: float) -> float:
    """The backoff in seconds after so many tries: it doubles up to the longest.

    `jitter` (0 to 1) subtracts up to half. Never less than the receiver asked for, never more than the longest.
    """
    wait_s = min(retry.longest_s, retry.wait_s * 2.0 ** min(tries - 1, 60))
    return max(wait_s * (1 - jitter / 2), min(asked_s, retry.longest_s))


@contextmanager
def as_campaign_errors(name: str) -> Generator[None]:
    """Turn whatever a sender raises into a one-line error after which the run can be resumed."""
    try:
        yield
    except CaplineError:
        raise
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise CampaignError(f"sender {name!r} failed ({what}); {AGAIN}") from error
