"""The rate of sending: `rate: 5000/s`, kept together by all campaigns and workers that name the same `rate_key`.

Each hand-over takes a slot by `schedule`, of as many units as it has messages, in the limits' store:

    capline-rate    KEY   a hit for each hand-over
    capline-rates   KEY   one hit a day, whose id is the rate: another rate under the key is refused

The campaign store keeps a rate that someone changed: its campaigns of the key follow before their next hand-over. In
the limits' store the first of them that decides puts the new rate in the place of one that it was before.

The rule: the receiver never sees more. What leaves at its slot arrives up to a jitter later, a 25th of the rate's
window, so the window is widened by that (`Limit.margin`): 96 % of the rate is used. Who is late for a slot takes
another. Messages of one hand-over leave together, so it has at most as many as the sender sends at once.

A slot within a second is waited for; else nothing is taken, and the batch is due later.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from capline.campaign.store.protocol import CampaignStore, names_of
from capline.campaign.store.records import Rate, StoredRun
from capline.limiter.limiter import Limiter
from capline.model.clock import SystemClock
from capline.model.errors import CampaignConflictError, InvalidValueError, quoted
from capline.model.limit import Limit
from capline.model.policy import Policy

RATE, RATES = "capline-rate", "capline-rates"
_RATES = Policy(RATES, ["1/day"])
_LEAST_WINDOW_US = 1_000_000
_MOST_BEFORE = 100
LONGEST_WAIT_S = 1.0
_JITTERS = 25
"""Jitters in a window. Half of one is for the way, a quarter to wake up, a quarter to store what is handed over."""
_PIECES = 10
"""A window has room for at least so many hand-overs, so that its messages do not all come at once."""


def parse_rate(text: str) -> Limit:
    """A rate like 5000/s; raises a `CaplineError` for a text that is not a rate."""
    rate = Limit.parse(text)
    if type(rate) is not Limit or rate.window_us < _LEAST_WINDOW_US:
        raise InvalidValueError(f"{quoted(text)} is not a number of messages in a second or more; write it like 5000/s")
    return rate


def rate_now(store: CampaignStore, rate: object, key: str) -> Rate | None:
    """The rate of a campaign's key now, where its file says this rate; None if the file has no rate."""
    return (store.rate(key) or Rate(str(rate))) if rate else None


def change_rate(store: CampaignStore, run: StoredRun, rate: Limit, by: str) -> None:
    """Change the rate of a run's key, for all campaigns of this store that have it."""
    while True:
        was = store.rate(run.rate_key)
        before = was or Rate(run.rate)
        if before.rate == str(rate):
            return
        rates = (*before.before, before.rate)[-_MOST_BEFORE:]
        if store.keep_rate(run.rate_key, was, Rate(str(rate), rates, SystemClock().now_us(), by)):
            return


def refuse_other_rate(store: CampaignStore, wanted: StoredRun) -> None:
    """`CampaignConflictError` where campaigns here that are not finished have another rate under the key."""
    key = wanted.rate_key
    while wanted.rate and (kept := store.rate(key)) and kept.rate != wanted.rate:
        runs = (run for name in names_of(store) if (run := store.find(name)) and run.rate_key == key)
        if any(not store.state(run.facts.campaign).finished for run in runs):
            raise _conflict(key, f"{kept.rate}, not {wanted.rate}, by {kept.changed_by}")
        store.keep_rate(key, kept, None)


def claim_rate(limiter: Limiter, key: str, now: Rate | None) -> None:
    """Make this the rate of its key; `CampaignConflictError` if the key has a rate that this one never replaced."""
    if now is None:
        return
    rates = limiter.beside([_RATES])
    for before in (None, *now.before):
        if before is not None:
            was = rates.decide(_RATES.name, key, id=before)
            if was.hit is None:
                continue
            rates.refund(_RATES.name, key, was.hit)
        if rates.decide(_RATES.name, key, id=now.rate):
            return
    raise _conflict(key, f"another rate than {now.rate}, of a campaign of the last day")


def _conflict(key: str, what: str) -> CampaignConflictError:
    return CampaignConflictError(f"rate_key {key!r} has {what}; write that one, or name another key")


@dataclass(frozen=True, slots=True)
class Pace:
    """The slots of a campaign's hand-overs, `most` messages each."""

    limiter: Limiter
    key: str
    most: int
    slack_s: float
    rate: Rate

    @classmethod
    def of(cls, key: str, now: Rate | None, at_once: int, limiter: Limiter) -> Pace | None:
        """The pace of a key whose rate is this now, by a sender that sends so many at once; None without a rate."""
        if now is None:
            return None
        rate = Limit.parse(now.rate)
        quota, jitter_us = rate.quota, rate.window_us // _JITTERS
        most = max(1, min(at_once, quota // _PIECES))
        # So many that they fill the window, but for a hundredth.
        most = next(size for size in range(most, 0, -1) if quota % size <= quota // 100)
        limits = Limit.margin(now.rate, jitter=f"{jitter_us}us", cost=most)
        # No limits of its own for each call: those would have a log of their own for each size of a hand-over.
        return cls(limiter.beside([Policy(RATE, limits)]), key, most, jitter_us / 4e6, now)

    def turn(self, messages: int) -> float:
        """Wait for the slot of so many messages; returns until when they may leave, by `time.monotonic`.

        Raises `LimitExceeded` where there is none within a second.
        """
        with self.limiter.acquire(RATE, self.key, messages, timeout=LONGEST_WAIT_S, slack=self.slack_s):
            return time.monotonic() + self.slack_s
