"""Where services keep what they counted, an hour and a writer a row, beside the logs of a store.

    Redis, Valkey   capline:/history:{<hour>}        a hash: writer -> row; expires `keep_s` after a write
    LMDB            history/capline in the store's directory: h NUL <8 bytes: the hour> <the writer> -> row
    memory          the same in this process, as for any other store

The rule: a writer's row is written whole, so it may be written again, and late. An hour is that of the writer's clock,
since 1970. A clock that was ahead for a while costs few hours on this machine: with each row at most `_MOST_REMOVED`
old ones go. A server counts the time itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from capline.config.local import LocalBackend, MemoryBackend, below, numbered, open_lmdb
from capline.store.open import lmdb_path
from capline.store.redis.io.url import parse_url, server_schemes
from capline.support.override import override

if TYPE_CHECKING:
    from capline.config.servers import ServerBackend

_NAMESPACE = "capline"
_KIND = b"h"
_MOST_REMOVED = 2
_WITHIN_S = 2.0

Written = dict[bytes, bytes]
"""Rows of one hour, by their writers."""


class Hours(Protocol):
    """Rows by hour. Both raise `StoreError` if the store does not answer; threads may share it."""

    def put(self, hour: int, writer: bytes, row: bytes) -> None:
        """Write a row."""
        ...

    def get(self, hours: Sequence[int]) -> list[Written]:
        """What is there of these hours, in order."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


def open_hours(url: str, keep_s: float, *, create: bool = True) -> Hours:
    """Those beside the logs of the store at this URL. Raises `StoreError` where its file cannot be opened."""
    scheme = url.partition("://")[0].lower()
    if scheme in server_schemes():
        from capline.config.servers import ServerBackend  # noqa: PLC0415 - only the backend that is named is loaded

        settings = parse_url(url)
        settings = replace(settings, bulk_deadline_s=min(_WITHIN_S, settings.bulk_deadline_s))
        return _ServerHours(ServerBackend(settings, url, _NAMESPACE, "history in"), keep_s)
    if scheme == "lmdb":
        return _LocalHours(open_lmdb(lmdb_path(url), _NAMESPACE, "history", create=create), keep_s)
    return _LocalHours(MemoryBackend(), keep_s)


class _ServerHours(Hours):
    def __init__(self, server: ServerBackend, keep_s: float) -> None:
        self._server, self._keep_ms = server, round(keep_s * 1000)

    @override
    def put(self, hour: int, writer: bytes, row: bytes) -> None:
        tag, key = _place(hour)
        # Sent together; commands of the logs' own ACL line.
        self._server.many([(tag, ("HSET", key, writer, row)), (tag, ("PEXPIRE", key, self._keep_ms))])

    @override
    def get(self, hours: Sequence[int]) -> list[Written]:
        asked = [(tag, ("HGETALL", key)) for tag, key in map(_place, hours)]
        return [dict(zip(row[::2], row[1::2], strict=True)) for row in self._server.many(asked)]

    @override
    def close(self) -> None:
        self._server.close()


def _place(hour: int) -> tuple[bytes, bytes]:
    """What stands between the braces of an hour's key, and the key."""
    return b"%d" % hour, b"%b:/history:{%d}" % (_NAMESPACE.encode(), hour)


class _LocalHours(Hours):
    def __init__(self, backend: LocalBackend, keep_s: float) -> None:
        self._backend, self._keep_hours = backend, -(-keep_s // 3600)

    @override
    def put(self, hour: int, writer: bytes, row: bytes) -> None:
        least = numbered(_KIND, max(0, int(hour - self._keep_hours)))

        def work(table: Any) -> None:
            table.put(numbered(_KIND, hour) + writer, row)
            for key, _ in [*islice(below(table, _KIND), _MOST_REMOVED)]:
                if key < least:
                    table.delete(key)

        self._backend.run(work, write=True)

    @override
    def get(self, hours: Sequence[int]) -> list[Written]:
        def written(table: Any, key: bytes) -> Written:
            rows = takewhile(lambda row: row[0].startswith(key), table.walk(key))
            return {name[len(key) :]: row for name, row in rows}

        keys = [numbered(_KIND, hour) for hour in hours]
        return self._backend.run(lambda table: [written(table, key) for key in keys])

    @override
    def close(self) -> None:
        self._backend.close()
