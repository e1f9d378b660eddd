"""The demo's calendar: which message is due to which customer, at which hour.

What is real: who bought on which day. What is simulated, and stated as such in the report:

    thanks   on the day of the purchase, at an hour from 8 to 21 that follows from customer and day (the data has none)
    review   3 days after the purchase, at the same hour
    offer    7 days after the purchase, at the same hour
    blast    every Thursday at 16, to everyone who had bought before that day

The calendar ends with the last day of the data; what would be due later is not asked. It is a function of the purchases
alone: two runs ask exactly the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from capline.model.limit import DAY_US
from capline.replay.blocks import EventFile
from capline.replay.demo.recency import Recency
from capline.replay.events import ReplayError
from capline.segment import IdSet, Snapshot

HOUR_US = DAY_US // 24


class Message(NamedTuple):
    """A kind of message; `after_days` from the purchase, None for what goes to everyone."""

    name: str
    after_days: int | None
    when: str


MESSAGES = (
    Message("thanks", 0, "the day of the purchase"),
    Message("review", 3, "3 days after the purchase"),
    Message("offer", 7, "7 days after the purchase"),
    Message("blast", None, "Thursdays at 16:00, to everyone"),
)
BLAST = len(MESSAGES) - 1
BLAST_WEEKDAY = 3
BLAST_HOUR = 16

_FIRST_HOUR, _HOURS = 8, 14
EPOCH_WEEKDAY = 3
"""1 January 1970 was a Thursday; Monday is 0."""

_LARGEST_CUSTOMER = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Purchases:
    """Who bought on which day (days since 1970), in order of days; a row is one purchase."""

    customers: NDArray[np.uint32]
    days: NDArray[np.int64]

    @property
    def first_day(self) -> int:
        """The day of the first purchase."""
        return int(self.days[0])

    @property
    def last_day(self) -> int:
        """The day of the last one."""
        return int(self.days[-1])


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages due at one instant: `codes` are the snapshot's (0: in no segment), `kinds` point into `MESSAGES`."""

    at_us: int
    subjects: NDArray[np.uint32]
    codes: NDArray[np.uint8]
    kinds: NDArray[np.uint8]


def read_purchases(path: Path) -> Purchases:
    """Read a CSV with the columns customer_id and date, in any order; raises `ReplayError` naming the row."""
    file = EventFile(path, "customer_id", "date")
    blocks = list(file.blocks())
    codes, subjects = np.concatenate([block.subjects for block in blocks]), file.subjects()
    for code, subject in enumerate(subjects):
        if not isinstance(subject, int) or subject > _LARGEST_CUSTOMER:
            row = int(np.argmax(codes == code)) + 1
            raise ReplayError(
                f"{path}, row {row}: customer_id {subject!r} is not a number from 0 to {_LARGEST_CUSTOMER}"
            )
    days = np.concatenate([block.at_us for block in blocks]) // DAY_US
    order = np.argsort(days, kind="stable")
    return Purchases(np.array(subjects, np.uint32)[codes[order]], days[order])


def calendar(purchases: Purchases) -> Iterator[tuple[Snapshot, list[Messages]]]:
    """Yield each day's morning snapshot with the messages due on it, hour by hour. O(purchases + days * customers)."""
    recency = Recency(np.unique(purchases.customers))
    hours, customers, kinds = _follow_ups(purchases)
    for day in range(purchases.first_day, purchases.last_day + 1):
        snapshot = recency.snapshot(day)
        today = slice(*np.searchsorted(hours, (day * 24, (day + 1) * 24)).tolist())
        batches = _hourly(hours[today], customers[today], kinds[today])
        if is_blast_day(day):
            everyone = IdSet.union(tuple(snapshot.sets.values())).to_array()
            hour = day * 24 + BLAST_HOUR
            earlier_subjects, earlier_kinds = batches.get(hour, (everyone[:0], kinds[:0]))
            batches[hour] = (
                np.concatenate((earlier_subjects, everyone)),
                np.concatenate((earlier_kinds, np.full(everyone.size, BLAST, np.uint8))),
            )
        yield (
            snapshot,
            [
                Messages(hour * HOUR_US, subjects, snapshot.codes(subjects).astype(np.uint8, copy=False), of_kind)
                for hour, (subjects, of_kind) in sorted(batches.items())
                if subjects.size
            ],
        )
        bought = slice(*np.searchsorted(purchases.days, (day, day + 1)).tolist())
        recency.add(day, purchases.customers[bought])


def is_blast_day(day: int) -> bool:
    """Tell whether this day since 1970 is a Thursday."""
    return (day + EPOCH_WEEKDAY) % 7 == BLAST_WEEKDAY


def _follow_ups(purchases: Purchases) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint8]]:
    """Every message that follows from a purchase: hour since 1970, customer, kind; in order of hours."""
    # A multiplicative hash spreads customers over the hours; the day in it lets the same customer buy at other hours.
    mixed = (
        purchases.customers.astype(np.uint64) * np.uint64(2_654_435_761)
        + purchases.days.astype(np.uint64) * np.uint64(40_503)
    ) >> np.uint64(8)
    hour_of_day = _FIRST_HOUR + (mixed % np.uint64(_HOURS)).astype(np.int64)
    hours: list[NDArray[np.int64]] = []
    kinds: list[NDArray[np.uint8]] = []
    for kind, message in enumerate(MESSAGES):
        if message.after_days is not None:
            hours.append((purchases.days + message.after_days) * 24 + hour_of_day)
            kinds.append(np.full(purchases.days.size, kind, np.uint8))
    all_hours = np.concatenate(hours)
    order = np.argsort(all_hours, kind="stable")
    return all_hours[order], np.tile(purchases.customers, len(hours))[order], np.concatenate(kinds)[order]


def _hourly(
    hours: NDArray[np.int64], customers: NDArray[np.uint32], kinds: NDArray[np.uint8]
) -> dict[int, tuple[NDArray[np.uint32], NDArray[np.uint8]]]:
    found, starts = np.unique(hours, return_index=True)
    ends = np.append(starts, hours.size)[1:].tolist()
    return {
        hour: (customers[start:end], kinds[start:end])
        for hour, start, end in zip(found.tolist(), starts.tolist(), ends, strict=True)
    }
