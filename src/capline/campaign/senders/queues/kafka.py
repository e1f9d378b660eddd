"""The `kafka` sender: a record for each message, by confluent-kafka (librdkafka).

    key      the subject: its partition is that of Kafka's own clients (murmur2)
    headers  idempotency-key: summer-sale/4f0c…/42
    value    {"campaign": "summer-sale", "id": 42, …}

    acknowledged by all in-sync replicas     delivered
    too large, invalid, not authorized       permanent
    no such topic                            transient
    no acknowledgement within `timeout`      not known: put again with the same key

The client's own retries write a record once (`enable.idempotence`), and it waits as long as a broker that throttles
says. Twice is what is put again: not acknowledged within `timeout`, or under way at a kill.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from capline.campaign.senders.protocol import PERMANENT, TRANSIENT, UNKNOWN, Answer
from capline.campaign.senders.queues.base import GIVEN, Entry, QueueSender
from capline.campaign.senders.template import filled
from capline.forms.fields import Fields

_kafka: Any = import_module("confluent_kafka")  # it has types for a part of what is used here
_OURS = frozenset(
    ("bootstrap.servers", "enable.idempotence", "acks", "request.required.acks", "partitioner", "delivery.timeout.ms")
)
_REFUSED = frozenset(("MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "TOPIC_AUTHORIZATION_FAILED"))
_NOT_NOW = frozenset(("_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION"))
_LOOK_S = 0.2
"""So often a wait looks whether the process was told to stop."""
_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())


class KafkaSender(QueueSender):
    """See the module's text.

    Options: `servers`, like `a:9092,b:9092`; `topic`; `timeout` (30), in seconds; `settings`, more of librdkafka's, in
    which `${NAME}` stands for an environment variable.
    """

    name = "kafka"
    main: ClassVar[str] = "servers"
    most: int | None = 5000

    def __init__(self, options: Fields) -> None:
        super().__init__(options, 30.0)
        self._topic = options.text("topic")
        settings = options.mapping("settings")
        for name in _OURS.intersection(settings):
            options.fault("settings", f"{name} is set by this sender; leave it out")
        self._config: dict[str, object] = {
            **{name: filled(options, "settings", text) for name, text in settings.items()},
            "bootstrap.servers": options.text("servers", like="kafka.example.org:9092"),
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "delivery.timeout.ms": int(self._timeout_s * 1000),
        }
        self._producer: Any = None

    def close(self) -> None:
        """Close the connections; nothing is under way."""
        self._producer = None

    def _connect(self) -> str:
        try:
            self._producer = _kafka.Producer(self._config, logger=_log)
            topic = self._producer.list_topics(self._topic, timeout=self._timeout_s).topics[self._topic]
        except _kafka.KafkaException as error:
            return error.args[0].str()
        return "" if topic.error is None else f"topic {self._topic}: {topic.error.str()}"

    def _put(self, entries: Sequence[Entry]) -> Sequence[Answer]:
        answers = [Answer(UNKNOWN, "no acknowledgement")] * len(entries)

        def told(row: int, error: Any, _record: object) -> None:
            answers[row] = _meaning(error)

        for row, entry in enumerate(entries):
            headers = {"idempotency-key": entry.key}
            try:
                self._producer.produce(
                    self._topic, entry.data, entry.subject, headers=headers, on_delivery=partial(told, row)
                )
            except BufferError:
                answers[row] = Answer(TRANSIENT, "the client's queue is full")
            except _kafka.KafkaException as error:
                answers[row] = _meaning(error.args[0])
        while self._producer.flush(_LOOK_S):
            pass
        return answers


def _meaning(error: Any) -> Answer:
    if error is None:
        return GIVEN
    name = error.name()
    code = PERMANENT if name in _REFUSED else TRANSIENT if name in _NOT_NOW else UNKNOWN
    return Answer(code, f"Kafka {name}")
