"""What senders to queues share: the form of an entry, and from answers to outcomes.

    key        the message's key: consumers drop one that they have seen
    partition  by the subject, so that what is for one subject stays in order
    data       the JSON that a webhook gets

The rule: an entry counts as delivered once the queue has confirmed it. What was not answered is put again with its key;
after a kill that is what was handed over since the last entry in the ledger: at most `most`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from capline.campaign.senders.protocol import DELIVERED, Answer, Messages, Outcomes, RunInfo
from capline.forms.fields import Fields
from capline.model.errors import CampaignError

GIVEN = Answer(DELIVERED)


@dataclass(frozen=True, slots=True)
class Entry:
    """A message as queues take it."""

    subject: str
    key: str
    data: bytes


class QueueSender(ABC):
    """A sender that puts all messages of a hand-over, then waits for what became of each."""

    name: ClassVar[str]
    tuning: ClassVar[frozenset[str]] = frozenset({"timeout"})
    most: int | None

    def __init__(self, options: Fields, timeout_s: float) -> None:
        self._timeout_s = options.seconds("timeout", timeout_s, 600)

    def open(self, run: RunInfo) -> None:
        """Connect; nothing is sent."""
        why = self._connect()
        if why:
            raise CampaignError(f"sender {self.name}: {why}; nothing of {run.campaign} was sent")

    def send(self, messages: Messages) -> Outcomes:
        """Put them all, and wait for every answer."""
        outcomes = Outcomes.delivered(len(messages))
        texts = zip(map(str, messages.ids.tolist()), messages.keys(), messages.envelopes(), strict=True)
        entries = [Entry(subject, key, envelope.encode()) for subject, key, envelope in texts]
        for row, answer in enumerate(self._put(entries)):
            outcomes.note(row, answer)
        return outcomes

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    @abstractmethod
    def _connect(self) -> str:
        """Why nothing can be sent; empty where it can."""

    @abstractmethod
    def _put(self, entries: Sequence[Entry]) -> Sequence[Answer]:
        """Put these, and return the answer to each."""
