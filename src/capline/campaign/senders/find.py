"""From the `sender:` of a campaign file to a sender: ours by name, then those of the entry points `capline.senders`.

sender: {webhook: {url: "https://…", concurrency: 64}}    a name, and its options
sender: {file: out/, format: csv}                         a bare value is the main option; others stand beside it

Every sender has the option `breaker` (20): see `breaker`.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import cast

import msgspec

from capline.campaign.senders.protocol import Sender, SenderType
from capline.forms.fields import Fields
from capline.forms.tree import Text, texts_of
from capline.model.errors import CampaignError

_GROUP = "capline.senders"
DEFAULT_BREAKER = 20
"""Messages in a row that were not sent, after which a campaign stops early."""
_LARGEST_THRESHOLD = 1_000_000
_OURS = {
    "file": ("file:FileSender", "campaign"),
    "webhook": ("webhook:WebhookSender", "campaign"),
    "smtp": ("smtp:SmtpSender", "campaign"),
    "redis_streams": ("queues.redis_streams:RedisStreamsSender", "redis"),
    "kafka": ("queues.kafka:KafkaSender", "kafka"),
    "sqs": ("queues.sqs:SqsSender", "sqs"),
}
"""Each with its extra. Found without installed metadata, and never replaced by another package's."""


@dataclass(frozen=True, slots=True)
class BuiltSender:
    """A sender that is ready to open, its name, and a digest of all options that change what is delivered.

    `breaker`: the campaign stops early after so many messages (requests, where one has several) in a row that were
    not sent; 0 for never.
    """

    name: str
    sender: Sender
    digest: str
    breaker: int = 0

    @property
    def request_size(self) -> int:
        """The messages that one request of the sender has."""
        return int(getattr(self.sender, "request_size", 1))

    @property
    def at_once(self) -> int:
        """The messages that leave together; the others of a hand-over wait for answers."""
        return int(getattr(self.sender, "at_once", 1))

    @property
    def asks_again(self) -> bool:
        """Whether a message with an unknown outcome may be sent again."""
        return bool(getattr(self.sender, "asks_again", True))

    def check(self, columns: Sequence[str]) -> None:
        """Raise `CampaignError` if the sender cannot work with these columns of the audience."""
        check: Callable[[Sequence[str]], object] | None = getattr(self.sender, "check", None)
        if check is not None:
            check(columns)


_NONE = BuiltSender("", cast("Sender", SimpleNamespace(most=None)), "")
"""Where a fault was noted: no such file is used."""


def build_sender(section: Fields | None, file: Fields) -> BuiltSender:
    """Make the sender; what is wrong is noted as a fault of the file, and a stand-in is returned."""
    like = "sender: {file: out/, format: parquet}"
    if section is None:
        file.fault(None, f"no 'sender:' here; add it, like {like}")
        return _NONE
    if not section.keys():
        section.fault(None, f"name one, like {like}")
        return _NONE
    known = sorted({*_OURS, *(point.name for point in entry_points(group=_GROUP))})
    names = [key for key in section.keys() if key in known]  # noqa: SIM118 - Fields is no dictionary
    if not names:
        section.fault(section.keys()[0], f"no such sender; there are: {', '.join(known)}")
        return _NONE
    name = names[0]
    faults = len(section.faults)
    try:
        kind = _load(name)
        options = _options(section, name, getattr(kind, "main", "path"))
        digest = _digest(name, options, {*getattr(kind, "tuning", ()), "breaker"})
        sender = kind(options)
        breaker = options.whole("breaker", DEFAULT_BREAKER, 0, _LARGEST_THRESHOLD)
    except CampaignError as error:
        section.fault(name, str(error))
        return _NONE
    options.close()
    return BuiltSender(name, sender, digest, breaker) if len(section.faults) == faults else _NONE


def _options(section: Fields, name: str, main: str) -> Fields:
    value = section.node(name)
    if isinstance(value, Text) and not value.is_null:
        return Fields.single(main, value, section, f"sender {name}: ")
    section.close()
    return Fields(value, f"sender {name}: ", section.faults, section.base, f"{{{main}: …}}")


def _load(name: str) -> SenderType:
    try:
        if name in _OURS:
            module, _, kind = _OURS[name][0].partition(":")
            return getattr(import_module(f"capline.campaign.senders.{module}"), kind)
        (point,) = entry_points(group=_GROUP, name=name)
        return cast("SenderType", point.load())
    except ModuleNotFoundError as error:
        hint = f': pip install "capline[{_OURS[name][1]}]"' if name in _OURS else ""
        raise CampaignError(f"it needs {error.name}, which is not installed{hint}") from None
    except (ImportError, AttributeError, ValueError) as error:
        raise CampaignError(f"it cannot be loaded ({type(error).__name__}: {error})") from None


def _digest(name: str, options: Fields, tuning: set[str]) -> str:
    written = {key: texts_of(value) for key, value in options.written() if key not in tuning}
    return hashlib.sha256(msgspec.json.encode([name, written], order="sorted")).hexdigest()
