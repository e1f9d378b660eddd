"""The protocol of senders: deliver some messages, and return the outcome of each.

    delivered   the receiver accepted it: the hit stays
    permanent   surely not accepted, and never will be (unknown address, 4xx): the hit is refunded at once
    transient   surely not accepted, but may be later (busy, unreachable): retried with a backoff, then refunded
    unknown     perhaps accepted (the answer was lost): sent again with the same key; the hit stays

The rule: "permanent" and "transient" are only for messages that the receiver cannot have accepted. Once a message is
unknown, only "delivered" settles it: a later "gone" or "busy" may come from a system that knows nothing of it.

A message may be sent again, after a transient failure or when a killed campaign is resumed; it then has the same key. A
sender should pass the key to the receiver (`Idempotency-Key`), or write under names that it replaces (a part file for
each batch).

A third party's sender is a class of this shape, named by an entry point of its package:

    [project.entry-points."capline.senders"]
    pigeon = "loft.capline:PigeonSender"          # then, in a campaign file:  sender: {pigeon: {loft: north}}

It is called with its options (`Fields`), which it checks at once, without opening or connecting anything. A method
`check`, if it has one, is given the names of the audience's further columns, before anything is begun. It raises
`CampaignError` when nothing can be sent at all (a full disk): that stops the campaign, which can be resumed.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from urllib.parse import quote

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from capline.forms.fields import Fields
    from capline.model.subject import Subject

_VISIBLE = string.punctuation.replace("%", "")
DELIVERED, PERMANENT, TRANSIENT, UNKNOWN = range(4)
"""What became of a message: the values of `Outcomes.codes`."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run that a sender is opened for; `run_id` is unique, and the same when the run is resumed."""

    campaign: str
    run_id: str
    channel: str | None
    columns: tuple[str, ...]


def message_key(campaign: str, run_id: str, subject: Subject) -> str:
    """A message's key, of visible ASCII: what else is in a text, and its % signs, are percent-encoded."""
    return f"{campaign}/{run_id}/{quote(subject, _VISIBLE) if isinstance(subject, str) else subject}"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


@dataclass(frozen=True, slots=True)
class Message:
    """One message. Its `key` never changes; `fields` has the audience's further columns."""

    id: Subject
    key: str
    segment: str | None
    fields: Mapping[str, str]

    @property
    def texts(self) -> dict[str, str]:
        """What templates are filled with, by name."""
        return {**self.fields, "id": str(self.id), "key": self.key, "segment": self.segment or ""}


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of one batch as columns: message i is for `ids[i]`, in the segment `segments[codes[i]]`."""

    run: RunInfo
    batch: int
    ids: NDArray[Any]
    codes: NDArray[np.integer[Any]]
    segments: tuple[str | None, ...]
    columns: Mapping[str, Sequence[str]]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> Message:
        fields = {name: values[row] for name, values in self.columns.items()}
        subject = self.ids[row : row + 1].tolist()[0]
        key = message_key(self.run.campaign, self.run.run_id, subject)
        return Message(subject, key, self.segments[int(self.codes[row])], fields)

    def keys(self) -> list[str]:
        """The key of each: `campaign/run id/subject id`."""
        head, ids = message_key(self.run.campaign, self.run.run_id, ""), self.ids.tolist()
        if self.ids.dtype == object:
            return [head + quote(subject, _VISIBLE) for subject in ids]
        return [f"{head}{number}" for number in ids]

    def envelopes(self) -> list[str]:
        """Each in JSON, as webhooks and queues get it: 0.2 us each, without further columns."""
        run, texts = self.run, self.ids.tolist()
        keys = ids = [*map(str, texts)]
        if self.ids.dtype == object:
            keys, ids = [_json(quote(text, _VISIBLE))[1:-1] for text in texts], [*map(_json, texts)]
        head = _json({"campaign": run.campaign, "run": run.run_id, "key": message_key(run.campaign, run.run_id, "")})
        start = head.removesuffix('"}')
        ends = [_json({"segment": segment, "channel": run.channel})[1:-1] for segment in self.segments]
        rows = zip(*self.columns.values(), strict=True)
        fields = (_json(dict(zip(self.columns, row, strict=True))) for row in rows) if self.columns else repeat("{}")
        return [
            f'{start}{key}","id":{subject},{ends[code]},"fields":{more}}}'
            for key, subject, code, more in zip(keys, ids, self.codes.tolist(), fields, strict=False)
        ]

    def take(self, rows: NDArray[np.intp] | slice) -> Messages:
        """Some of them, in the order of `rows`."""
        columns = {
            name: values[rows] if isinstance(rows, slice) else [values[row] for row in rows.tolist()]
            for name, values in self.columns.items()
        }
        return replace(self, ids=self.ids[rows], codes=self.codes[rows], columns=columns)


@dataclass(slots=True)
class Answer:
    """What is known of a message: a code, the reason (empty if delivered), the pause asked for.

    `body` is what an answer over HTTP had, None if it was incomplete or too long.
    """

    code: int
    reason: str = ""
    wait_s: float = 0.0
    body: bytes | None = None


@dataclass(slots=True)
class Outcomes:
    """What became of each message, in order: `codes`, and reasons for those that were not delivered.

    `wait_s` is the pause before the next try that the receiver asked for (`Retry-After`).
    """

    codes: NDArray[np.uint8]
    reasons: dict[int, str] = field(default_factory=dict[int, str])
    wait_s: float = 0.0

    @classmethod
    def delivered(cls, rows: int) -> Outcomes:
        """All of them were delivered."""
        return cls(np.zeros(rows, np.uint8))

    def note(self, row: int, answer: Answer) -> None:
        """Note what one was answered."""
        if answer.code != DELIVERED:
            self.fail(row, answer.code, answer.reason)
            self.wait_s = max(self.wait_s, answer.wait_s)

    def fail(self, row: int, code: int, reason: str) -> None:
        """Note that one was not delivered, and why. Reasons are counted, so leave out details that always differ."""
        self.codes[row] = code
        self.reasons[row] = reason


class Sender(Protocol):
    """A sender in use: `open`, any number of `send`, `close`."""

    most: int | None
    """The most messages in one `send`; None for a whole batch.

    Outcomes are recorded before the next `send`. So after a kill at most so many messages are sent again, and a stop
    waits for at most so many. Attributes that a sender may have: `at_once` (1), how many of them leave together, of
    which `rate` makes slots; `asks_again` (True), whether a message with an unknown outcome may be sent again, since
    the receiver drops repeated keys. Else it stays not known.
    """

    def open(self, run: RunInfo) -> None:
        """Get ready. Nothing is consumed yet, so raise `CampaignError` here for what cannot work."""
        ...

    def send(self, messages: Messages) -> Outcomes:
        """Send the messages, and wait for the outcome of each."""
        ...

    def close(self) -> None:
        """Close files and connections. Called once, also after a failed `open`."""
        ...


class SenderType(Protocol):
    """A sender's class."""

    main: ClassVar[str]
    """The option that a bare value stands for: `sender: {file: out/}` is `sender: {file: {path: out/}}`."""

    tuning: ClassVar[frozenset[str]]
    """Options that may differ when a run is resumed, since they only change the speed."""

    def __call__(self, options: Fields) -> Sender:
        """Make one; options that cannot be used are noted with `options.fault`."""
        ...
