"""A sender of your own: each message is an entry of a Redis stream, by the subject of one of several partitions.

    [project.entry-points."capline.senders"]
    redis_stream = "redis_stream:RedisStreamSender"      # in your package's pyproject.toml

    sender: {redis_stream: shop, url: 'redis://127.0.0.1:6379/0', partitions: 4}

What was not answered is added again: consumers drop a key that they have seen.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, ClassVar

from redis import Redis, RedisError, ResponseError

from capline.campaign.senders.protocol import TRANSIENT, UNKNOWN, Messages, Outcomes, RunInfo
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from capline.forms.fields import Fields


class RedisStreamSender:
    """See the module's text."""

    main: ClassVar[str] = "stream"
    tuning: ClassVar[frozenset[str]] = frozenset()
    most: int | None = 1000

    def __init__(self, options: Fields) -> None:
        self._stream, self._url = options.text("stream"), options.text("url")
        self._client: Any = None
        self._partitions = options.whole("partitions", 1, 1, 10_000)

    def open(self, run: RunInfo) -> None:
        """Connect; nothing is sent."""
        self._client = Redis.from_url(self._url, socket_timeout=10)  # pyright: ignore[reportUnknownMemberType]
        try:
            self._client.ping()
        except RedisError as error:
            raise CampaignError(f"sender redis_stream: {error}; nothing of {run.campaign} was sent") from None

    def send(self, messages: Messages) -> Outcomes:
        """Add an entry for each."""
        outcomes = Outcomes.delivered(len(messages))
        pipeline = self._client.pipeline(transaction=False)
        for message in map(messages.__getitem__, range(len(messages))):
            partition = zlib.crc32(str(message.id).encode()) % self._partitions
            entry = {"key": message.key, "id": str(message.id), "fields": json.dumps(dict(message.fields))}
            pipeline.xadd(f"{self._stream}:{partition}", entry)
        answers: list[Any]
        try:
            answers = pipeline.execute(raise_on_error=False)
        except RedisError as error:
            answers = [error] * len(messages)
        for row, answer in enumerate(answers):
            if isinstance(answer, RedisError):
                refused = isinstance(answer, ResponseError)
                outcomes.fail(row, TRANSIENT if refused else UNKNOWN, str(answer).split(" ", 1)[0] or "no answer")
        return outcomes

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
