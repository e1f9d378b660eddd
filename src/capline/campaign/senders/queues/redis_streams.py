"""The `redis_streams` sender: an entry of a stream for each message, on Redis or Valkey; single, Sentinel or Cluster.

    shop:0   key summer-sale/4f0c…/42   data {"campaign": "summer-sale", "id": 42, …}
    shop:1   …                          the partition is CRC-32 of the id, modulo `partitions`; one alone is `shop`

    its id                                          delivered
    loading, memory full, read only, no connection  transient, after some tries until `timeout`
    a key of another kind                           permanent
    no answer                                       not known: added again with the same key

All entries of a hand-over go out at once, by the router of the server store: what provably did not run it sends again.
"""

import time
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from capline.campaign.senders.protocol import PERMANENT, TRANSIENT, UNKNOWN, Answer
from capline.campaign.senders.queues.base import GIVEN, Entry, QueueSender
from capline.campaign.senders.template import filled
from capline.forms.fields import Fields
from capline.model.errors import CampaignError, CaplineError, StoreDamagedError, StoreError, StoreUnknownError
from capline.store.redis.cluster.router import Router
from capline.store.redis.io.url import Settings, parse_url, safe_url, server_schemes
from capline.store.redis.io.wire import pack
from capline.store.redis.scripting.keys import slot_of
from capline.store.redis.scripting.scripts import Call

_MOST_PARTITIONS = 10_000


class RedisStreamsSender(QueueSender):
    """See the module's text.

    Options: `url`, in which `${NAME}` stands for an environment variable; `stream`; `partitions` (1); `timeout` (10).
    """

    name = "redis_streams"
    main: ClassVar[str] = "url"
    most: int | None = 1000

    def __init__(self, options: Fields) -> None:
        super().__init__(options, 10.0)
        settings = _settings(options)
        stream, partitions = options.text("stream"), options.whole("partitions", 1, 1, _MOST_PARTITIONS)
        names = [stream] if partitions == 1 else [f"{stream}:{number}" for number in range(partitions)]
        self._streams = [name.encode() for name in names]
        try:
            from capline.store.redis.io.sync import Transport  # noqa: PLC0415 - the client is optional
        except StoreError as error:
            raise CampaignError(str(error)) from None
        self._router, self._transport = Router(settings), Transport(settings, warns=False)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _connect(self) -> str:
        kinds = self._ask((stream, pack(b"TYPE", stream)) for stream in self._streams)
        for stream, kind in zip(self._streams, kinds, strict=True):
            if isinstance(kind, CaplineError):
                return str(kind).removesuffix("; nothing was recorded")
            if kind not in (b"none", b"stream"):
                return f"{stream.decode()} is a {kind.decode()}, not a stream"
        return ""

    def _put(self, entries: Sequence[Entry]) -> Sequence[Answer]:
        return [*map(_meaning, self._ask(map(self._added, entries)))]

    def _added(self, entry: Entry) -> tuple[bytes, bytes]:
        stream = self._streams[zlib.crc32(entry.subject.encode()) % len(self._streams)]
        return stream, pack(b"XADD", stream, b"*", b"key", entry.key.encode(), b"data", entry.data)

    def _ask(self, commands: Iterable[tuple[bytes, bytes]]) -> list[Any]:
        calls = [Call(slot_of(stream.partition(b"{")[2] or stream), payload) for stream, payload in commands]
        return self._transport.drive(self._router.run(calls, time.monotonic() + self._timeout_s))


def _meaning(reply: object) -> Answer:
    if not isinstance(reply, CaplineError):
        return GIVEN
    in_doubt, is_wrong = isinstance(reply, StoreUnknownError), isinstance(reply, StoreDamagedError)
    code = UNKNOWN if in_doubt else PERMANENT if is_wrong else TRANSIENT
    return Answer(code, str(reply).partition(";")[0])


def _settings(options: Fields) -> Settings:
    url = filled(options, "url", options.text("url", like="redis://127.0.0.1:6379/0"))
    try:
        if url and url.partition("://")[0] not in server_schemes():
            options.fault("url", f"{safe_url(url)!r} is not a URL like redis://127.0.0.1:6379/0")
        return parse_url(url)
    except CaplineError as error:
        options.fault("url", str(error))
        return parse_url("redis://127.0.0.1")
