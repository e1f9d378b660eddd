"""A configuration on Redis or Valkey: a single server, behind Sentinel, or a cluster.

    .config:<namespace>:{head}:version | feed | pending | totals | token     one slot, so that a commit is one script
    .config:<namespace>:{head}:p, :pp                                        hashes of all policies, and their past
    .config:<namespace>:{head}:places                                        a hash of policies: buckets with overrides
    .config:<namespace>:{<n>}:o, :op                                         hashes of a bucket's overrides

Overrides are spread over 65,536 buckets, and so over all slots of a cluster, by a hash of their name: five million are
some 76 a bucket, a listpack each. No log has such a key, since no namespace begins with a dot. Nothing here expires.

    policy   version (5 bytes) + a byte for each bucket, by zlib: 0 if no override of the policy was there then
    ""       since, until (5 bytes each): all commits after `since` up to `until` have kept the places

So a page costs the buckets that have overrides of its policy. The rule: a 0 is right; a 1 may not be, and is corrected
by whoever finds nothing there. Older releases keep no places: after a commit of theirs all are 1.

The rule: every call may be repeated (see `backend`), so the router of the server store sends it again after a lost
connection, until the deadline of the URL.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from typing import Any, NamedTuple

from msgspec.structs import replace

from capline.config.backend import MOST_FEED, Backend, Head
from capline.config.records import (
    OVERRIDES,
    PAST_OVERRIDES,
    POLICIES,
    VERSION_BYTES,
    Row,
    is_override,
    names_of,
    read_pending,
    read_totals,
    version_of,
)
from capline.model.errors import StoreClosedError, StoreError, StoreUnavailableError
from capline.model.server_state import ServerState
from capline.store.redis.io.sync import Transport
from capline.store.redis.io.url import Settings, safe_url
from capline.store.redis.io.wire import Steps, pack
from capline.store.redis.scripting.keys import slot_of
from capline.store.redis.scripting.scripts import Call
from capline.store.redis.servers import servers
from capline.store.redis.session import Session, unwrap
from capline.support.override import override

BUCKETS = 1 << 16
AT_ONCE = 512
"""Commands in one round trip."""
_FIELDS_A_PUT = 100
_SCAN = 1000
_HEAD = b"head"

_FIRST_READ = 8
"""Buckets in the first round trip of a page; each further one has twice as many."""

Command = tuple[bytes, tuple[Any, ...]]
"""What stands between the braces of its key, and the command's words."""


class _Places(NamedTuple):
    """The places of some policies, at a version; `settled` if no row of it was pending."""

    version: int
    since: int
    settled: bool
    of: dict[str, bytearray]

    def fields(self, version: int) -> list[bytes | str]:
        """The fields to write, right at this version."""
        stamp = version.to_bytes(VERSION_BYTES)
        rows = ((policy, stamp + zlib.compress(places, 1)) for policy, places in self.of.items())
        return [b"", self.since.to_bytes(VERSION_BYTES) + stamp, *(word for row in rows for word in row)]


class ServerBackend(Backend):
    """See the module's text. Connects when it is first used."""

    shared = True

    def __init__(self, settings: Settings, url: str, namespace: str, called: str = "configuration store") -> None:
        self._session = Session(settings, None)
        self._transport = Transport(settings)
        self._shown = f"{called} {safe_url(url)!r}"
        self._prefix = f".config:{namespace}:".encode()
        self._head = [self._key(_HEAD, part) for part in ("version", "feed", "pending", "totals", "token", "places")]
        folder = resources.files("capline.config") / "lua"
        self._scripts = {
            name: (folder / f"{name}.lua").read_text(encoding="utf-8")
            for name in ("head", "commit", "put", "rows", "places")
        }

    @override
    def head(self, seen: int) -> Head:
        version, (seconds, micros), feed, pending = self._script("head", self._head[:4], seen, MOST_FEED)
        return Head(version, int(seconds) * 1_000_000 + int(micros), None if feed == 0 else feed, pending)

    @override
    def commit(self, expected: int, token: bytes, commit: bytes, pending: bytes, totals: Mapping[str, bytes]) -> bool:
        pairs = [word for policy, value in totals.items() for word in (policy, value)]
        places = self._places([*totals])
        rows = read_pending(pending)[1] if totals else []
        put = [name for table, name, row in rows if table == OVERRIDES and is_override(row)]
        here = Counter(names_of(name)[0] for name in put)
        for policy, value in totals.items():
            if read_totals(value).count == here[policy]:  # there are no others
                places.of[policy] = bytearray(BUCKETS)
        for name in put:
            places.of[names_of(name)[0]][_bucket(name)] = 1
        words = (expected, token, commit, pending, MOST_FEED, len(pairs), *pairs, *places.fields(expected + 1))
        return bool(self._script("commit", self._head, *words))

    @override
    def put(self, rows: Sequence[Row]) -> None:
        by_place: defaultdict[tuple[bytes, bytes], list[bytes]] = defaultdict(list)
        for table, name, row in rows:
            tag = _tag(table, name)
            by_place[tag, self._key(tag, table)] += name, row
        step = 2 * _FIELDS_A_PUT
        self.many(
            [
                (tag, ("EVAL", self._scripts["put"], 1, key, *words[at : at + step]))
                for (tag, key), words in by_place.items()
                for at in range(0, len(words), step)
            ]
        )

    @override
    def settle(self, version: int) -> None:
        self._command("HDEL", self._head[2], version)

    @override
    def get(self, table: str, names: Sequence[bytes]) -> list[bytes | None]:
        places: defaultdict[bytes, list[int]] = defaultdict(list)
        for place, name in enumerate(names):
            places[_tag(table, name)].append(place)
        replies = self.many(
            [(tag, ("HMGET", self._key(tag, table), *(names[at] for at in of))) for tag, of in places.items()]
        )
        found: list[bytes | None] = [None] * len(names)
        for of, reply in zip(places.values(), replies, strict=True):
            for at, row in zip(of, reply, strict=True):
                found[at] = row
        return found

    @override
    def policies(self) -> Iterable[tuple[bytes, bytes]]:
        cursor = b""
        while cursor != b"0":
            cursor, rows = self._command("HSCAN", self._key(_HEAD, POLICIES), cursor or 0, "COUNT", _SCAN)
            yield from _pairs(rows)

    @override
    def overrides(self, policy: str, after: bytes = b"") -> Iterable[tuple[bytes, bytes]]:
        places, begun, many = self._places([policy]), _bucket(after) if after else 0, _FIRST_READ
        has = places.of[policy]
        there = [number for number in range(begun, BUCKETS) if has[number]]
        while there:
            some, there, many = there[:many], there[many:], min(2 * many, AT_ONCE)
            tags = [b"%d" % number for number in some]
            words = ("EVAL", self._scripts["rows"], 1)
            buckets = self.many([(tag, (*words, self._key(tag, OVERRIDES), f"{policy}\0")) for tag in tags])
            for number, rows in zip(some, buckets, strict=True):
                has[number] = any(map(is_override, rows[1::2]))
            if places.settled and not all(has[number] for number in some):
                version, keys = places.version, [self._head[0], self._head[5]]
                with suppress(StoreError):  # who may only read
                    self._script("places", keys, version, *places.fields(version))
            for number, rows in zip(some, buckets, strict=True):
                yield from ((name, row) for name, row in sorted(_pairs(rows)) if number > begun or name > after)

    @override
    def totals(self, policies: Sequence[str] | None = None) -> dict[str, bytes]:
        if policies is None:
            return {name.decode(): value for name, value in _pairs(self._command("HGETALL", self._head[3]))}
        if not policies:
            return {}
        found = self._command("HMGET", self._head[3], *policies)
        return {policy: value for policy, value in zip(policies, found, strict=True) if value is not None}

    @override
    def servers(self) -> list[ServerState]:
        found = [replace(state, breaker=None) for state in self._drive(servers(self._session))]
        return found or [
            ServerState(f"{host}:{port}", False, None) for host, port in self._session.router.settings.seeds
        ]

    @override
    def close(self) -> None:
        self._transport.close()

    def _places(self, policies: list[str]) -> _Places:
        version_key, _, pending, *_, key = self._head
        asked = ("GET", version_key), ("HVALS", pending), ("HMGET", key, b"", *policies)
        number, waiting, (mark, *rows) = self.many([(_HEAD, words) for words in asked])
        version, (since, until) = int(number or 0), (0, 0)
        if mark is not None:
            since, until = version_of(mark), version_of(mark[VERSION_BYTES:])
        if until < version:
            since = version
        of = {
            policy: bytearray(zlib.decompress(row[VERSION_BYTES:]))
            if row is not None and version_of(row) >= since
            else bytearray(b"\1") * BUCKETS
            for policy, row in zip(policies, rows, strict=True)
        }
        return _Places(version, since, not waiting, of)

    # --- calls ------------------------------------------------------------------------------------------------

    def _key(self, tag: bytes, table: str) -> bytes:
        return b"%b{%b}:%b" % (self._prefix, tag, table.encode())

    def _script(self, name: str, keys: list[bytes], *words: Any) -> Any:
        return self._command("EVAL", self._scripts[name], len(keys), *keys, *words)

    def _command(self, *words: Any) -> Any:
        [reply] = self.many([(_HEAD, words)])
        return reply

    def many(self, commands: list[Command]) -> list[Any]:
        """The replies to commands, some hundred in a round trip to each server."""
        session, replies = self._session, list[Any]()
        for first in range(0, len(commands), AT_ONCE):
            calls = [
                Call(
                    slot_of(tag),
                    pack(*(word if isinstance(word, bytes) else str(word).encode() for word in words)),
                    repeatable=True,
                )
                for tag, words in commands[first : first + AT_ONCE]
            ]
            until = session.until() if len(calls) == 1 else max(session.until(), session.bulk_until())
            outcomes = self._drive(session.router.run(calls, until))
            try:
                replies += map(unwrap, outcomes)
            except StoreError as error:
                # Without what the router says of attempts: a call may be repeated, so nothing is in doubt.
                said = str(error).rpartition("; ")[0]
                raise StoreUnavailableError(f"{self._shown}: {said}") from None
        return replies

    def _drive(self, steps: Steps[Any]) -> Any:
        if self._transport.closed:
            raise StoreClosedError(f"{self._shown}: it was closed")
        return self._transport.drive(steps)


def _bucket(name: bytes) -> int:
    return zlib.crc32(name) % BUCKETS


def _tag(table: str, name: bytes) -> bytes:
    """What stands between the braces of a row's key."""
    return b"%d" % _bucket(name) if table in (OVERRIDES, PAST_OVERRIDES) else _HEAD


def _pairs(reply: list[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(reply[::2], reply[1::2], strict=True)
