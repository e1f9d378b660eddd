"""The way of one batch: decide, write down, hand over, write down, give back, write down.

The rule: a step is in the record before the next one acts, and every step can be taken again: deciding by its receipt,
handing over by the messages' keys, giving back by the hits' stamps. So it does not matter where a process is killed;
the next one takes the first step that is not written down (again). `ledger` shows each place and what follows.

Only what the far side surely has not taken is given back. That a message is about to be handed over is in the record
too: what was under way when a process was killed may have been taken.

Where the steps are written is the `Record`'s: a ledger on disk (`run`), or the queue (`worker`).
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from capline.campaign.breaker import SenderFailingError
from capline.campaign.ledger.rows import FAILED, NOT_KNOWN, REFUNDED, RETRY, UNSURE, BatchRows
from capline.campaign.prepare import limiter_kinds
from capline.campaign.senders.protocol import (
    DELIVERED,
    PERMANENT,
    TRANSIENT,
    UNKNOWN,
    Messages,
    Outcomes,
    RunInfo,
    asks_again,
)
from capline.model.errors import CampaignError, CaplineError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from numpy.typing import NDArray

    from capline.campaign.breaker import Breaker
    from capline.campaign.file import CampaignFile, Retry
    from capline.campaign.part import Part
    from capline.limiter.limiter import Limiter
    from capline.model.policy import Policy

__all__ = ["AGAIN", "Delivery", "Record", "as_campaign_errors", "backoff_s"]

_WITHOUT_END = 1 << 16
AGAIN = "nothing is lost: fix it and run the same command again"


class Record(Protocol):
    """Where the steps of batches are written."""

    def check(self) -> None:
        """Called before each hand-over: raise to leave the batch as it stands in the record."""
        ...

    def add(self, rows: BatchRows) -> None:
        """Write a batch that was just decided; when this returns it is written."""
        ...

    def save(self, rows: BatchRows) -> None:
        """Write how far a batch has come; when this returns it is written."""
        ...


@dataclass(frozen=True, slots=True)
class Delivery:
    """What brings batches of one run to their end, one at a time, each with all its retries.

    `segments` and `zones` are those that the codes of the parts point into. `pause` is called with the seconds between
    two tries, `jitter` gives a number from 0 to 1. `progress` is called, when a batch is decided and after each
    hand-over, with its number and how many of its subjects have come to their end.
    """

    file: CampaignFile
    policy: Policy
    segments: tuple[str | None, ...]
    zones: tuple[str | None, ...]
    limiter: Limiter
    info: RunInfo
    record: Record
    breaker: Breaker
    pause: Callable[[float], object]
    progress: Callable[[int, int], object] = lambda _batch, _rows: None
    jitter: Callable[[], float] = random.random

    def settle(self, part: Part, rows: BatchRows | None) -> BatchRows:
        """Bring a batch to its end from where the record has it; `rows` is None where it was not decided yet.

        Handed over until no row is due, giving back what failed for good as soon as that is known. Raises
        `SenderFailingError` where too many in a row were not sent, however often they were tried.
        """
        if rows is None:
            rows = self._decide(part)
        everyone = Messages(self.info, part.number, rows.ids, rows.codes, self.segments, part.columns)
        if rows.where(UNSURE).size and self._keep_doubt(rows):
            self.record.save(rows)
        self._give_back(rows)
        self.progress(part.number, len(rows) - rows.due().size)
        while (due := rows.due()).size:
            asked_s = 0.0
            most = self.file.sender.sender.most or due.size
            for start in range(0, due.size, most):
                self.record.check()
                some = due[start : start + most]
                asked_s = max(asked_s, self._hand_over(rows, some, everyone))
                self._give_back(rows)
                self.progress(part.number, len(rows) - rows.due().size)
                if self.breaker.is_failing:
                    self._look_at_failing(rows, some)
                    break
            tries = rows.attempts[np.isin(rows.state, (RETRY, UNSURE))]
            if tries.size:
                self.pause(backoff_s(int(tries.max()), self.file.retry, asked_s, self.jitter()))
        return rows

    def _decide(self, part: Part) -> BatchRows:
        names, zones, codes = limiter_kinds(self.policy, part, self.segments, self.zones)
        now_us = self.limiter.now_us()
        answers = self.limiter.decide_many(
            self.policy.name,
            part.ids,
            segment=names,
            codes=codes,
            channel=self.file.channel,
            zone=zones,
            cost=self.file.cost,
            receipt=f"{self.info.campaign}/{self.info.run_id}/{part.number}",
        )
        for row, error in answers.errors.items():
            kind = type(error) if isinstance(error, StoreError) else CampaignError
            raise kind(f"subject {part.ids[row]} could not be decided: {error}; {AGAIN}")
        # Answers out of a receipt were given before a kill, and their `retry_after` counts from then: no hit is older.
        hits = answers.hit[answers.allowed]
        at_us = min(now_us, int(hits.max())) if hits.size else now_us
        decided = BatchRows.of(part.number, at_us, part.ids, part.codes, answers)
        self.record.add(decided)
        return decided

    def _hand_over(self, rows: BatchRows, due: NDArray[np.intp], everyone: Messages) -> float:
        first = rows.attempts[due] == 0
        unsure = rows.hand_over(due)
        self.record.save(rows)
        outcomes = self._send(everyone.take(due))
        most = _WITHOUT_END if self.breaker.is_failing else self.file.retry.attempts
        rows.take_outcomes(due, outcomes, most, unsure)
        self._keep_doubt(rows)
        self.record.save(rows)
        self.breaker.count(rows.state[due], first & ~unsure)
        return outcomes.wait_s

    def _look_at_failing(self, rows: BatchRows, some: NDArray[np.intp]) -> None:
        """Stop the campaign where messages of the last hand-over have come to their end, or are out of attempts.

        Attempts at a far side that takes nothing do not count: whoever goes on has all of them.
        """
        states = rows.state[some]
        due = some[np.isin(states, (RETRY, UNSURE))]
        if np.isin(states, (REFUNDED, NOT_KNOWN)).any() or (rows.attempts[due] >= self.file.retry.attempts).any():
            rows.attempts[due] = 0
            self.record.save(rows)
            reason = int(rows.reason[some[-1]])
            why = rows.reasons[reason - 1] if reason else "no reason given"
            raise SenderFailingError(
                f"stopped early: {self.breaker.in_a_row:,} messages in a row were not sent by {self.file.sender.name} "
                f"({why}); fix that and run the same command again; the sender's option 'breaker' "
                f"({self.breaker.threshold}, 0 for never) says after how many"
            )

    def _keep_doubt(self, rows: BatchRows) -> bool:
        """Leave what is unsure as it is, where asking again could bring a message twice; whether that is so."""
        if asks_again(self.file.sender.sender):
            return False
        rows.ask_no_more()
        return True

    def _send(self, messages: Messages) -> Outcomes:
        name = self.file.sender.name
        with as_campaign_errors(name):
            outcomes = self.file.sender.sender.send(messages)
        known = np.isin(outcomes.codes, (DELIVERED, PERMANENT, TRANSIENT, UNKNOWN))
        if len(outcomes.codes) != len(messages) or not known.all():
            raise CampaignError(f"sender {name!r} gave no sound outcome for each of {len(messages)} messages; {AGAIN}")
        return outcomes

    def _give_back(self, rows: BatchRows) -> None:
        """Give back the hits of what surely was not taken."""
        failed = rows.where(FAILED)
        if failed.size:
            # False for a hit means that a killed process gave it back already, or that it has left every window.
            self.limiter.refund_many(self.policy.name, rows.ids[failed], rows.hit[failed], self.file.cost)
            rows.state[failed] = REFUNDED
            self.record.save(rows)


def backoff_s(tries: int, retry: Retry, asked_s: float, jitter: float) -> float:
    """How long to wait after so many tries: doubling up to the longest.

    `jitter` (0 to 1) takes off up to half. Not below what the far side asked for, but not above the longest either.
    """
    wait_s = min(retry.longest_s, retry.wait_s * 2.0 ** min(tries - 1, 60))
    return max(wait_s * (1 - jitter / 2), min(asked_s, retry.longest_s))


@contextmanager
def as_campaign_errors(name: str) -> Generator[None]:
    """A sender is anyone's code: whatever it raises is one line, and the run can be gone on with."""
    try:
        yield
    except CaplineError:
        raise
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise CampaignError(f"sender {name!r} failed ({what}); {AGAIN}") from error
