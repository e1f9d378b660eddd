"""A configuration on Redis or Valkey: a single server, behind Sentinel, or a cluster.

    .config:<namespace>:{head}:version | feed | pending | totals | token     one slot, so that a commit is one script
    .config:<namespace>:{head}:p, :pp                                        hashes of all policies, and their past
    .config:<namespace>:{<n>}:o, :op                                         hashes of a bucket's overrides

Overrides are spread over 65,536 buckets, and so over all slots of a cluster, by a hash of their name: five million are
some 76 a bucket, a listpack each. No log has such a key, since no namespace begins with a dot. Nothing here expires.

The rule: every call may be repeated (see `backend`), so it is sent once more after a lost connection.
"""

from __future__ import annotations

import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module, resources
from typing import TYPE_CHECKING, Any, TypeVar

from capline.config.backend import MOST_FEED, Backend, Head
from capline.config.records import OVERRIDES, PAST_OVERRIDES
from capline.model.errors import StoreError, StoreUnavailableError
from capline.model.server_state import ServerState
from capline.store.redis.io.url import safe_url
from capline.store.redis.io.wire import NO_CLIENT
from capline.store.redis.servers import figures_of
from capline.support.override import override

if TYPE_CHECKING:
    from capline.config.records import Row
    from capline.store.redis.io.url import Settings

_T = TypeVar("_T")
BUCKETS = 1 << 16
AT_ONCE = 512
"""Commands in one round trip."""
_FIELDS_A_PUT = 100
_SCAN = 1000

_Command = tuple[bytes, tuple[Any, ...]]
"""A key, which names the server, and the command's words."""


class ServerBackend(Backend):
    """See the module's text. Connects when it is first used."""

    shared = True

    def __init__(self, settings: Settings, url: str, namespace: str) -> None:
        self._settings = settings
        self._shown = safe_url(url)
        self._prefix = f".config:{namespace}:".encode()
        head = self._prefix + b"{head}:"
        self._head = [head + part for part in (b"version", b"feed", b"pending", b"totals", b"token")]
        try:
            self._redis: Any = import_module("redis")
        except ModuleNotFoundError:
            raise StoreError(NO_CLIENT) from None
        errors = self._redis.exceptions
        self._failures = (errors.RedisError, errors.RedisClusterException)  # the latter is no RedisError
        folder = resources.files("capline.config") / "lua"
        self._scripts = {
            name: (folder / f"{name}.lua").read_text(encoding="utf-8") for name in ("head", "commit", "put")
        }
        self._lock = threading.Lock()
        self._client: Any = None

    @override
    def head(self, seen: int) -> Head:
        version, (seconds, micros), feed, pending = self._script("head", self._head[:4], seen, MOST_FEED)
        return Head(version, int(seconds) * 1_000_000 + int(micros), None if feed == 0 else feed, pending)

    @override
    def commit(self, expected: int, token: bytes, commit: bytes, pending: bytes, totals: Mapping[str, bytes]) -> bool:
        pairs = [word for policy, value in totals.items() for word in (policy, value)]
        return bool(self._script("commit", self._head, expected, token, commit, pending, MOST_FEED, *pairs))

    @override
    def put(self, rows: Sequence[Row]) -> None:
        by_key: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for table, name, row in rows:
            by_key[self._key(table, name)] += name, row
        step = 2 * _FIELDS_A_PUT
        self._many(
            [
                (key, ("EVAL", self._scripts["put"], 1, key, *words[at : at + step]))
                for key, words in by_key.items()
                for at in range(0, len(words), step)
            ]
        )

    @override
    def settle(self, version: int) -> None:
        self._command("HDEL", self._head[2], str(version))

    @override
    def get(self, table: str, names: Sequence[bytes]) -> list[bytes | None]:
        places: defaultdict[bytes, list[int]] = defaultdict(list)
        for place, name in enumerate(names):
            places[self._key(table, name)].append(place)
        replies = self._many([(key, ("HMGET", key, *(names[at] for at in of))) for key, of in places.items()])
        found: list[bytes | None] = [None] * len(names)
        for of, reply in zip(places.values(), replies, strict=True):
            for at, row in zip(of, reply, strict=True):
                found[at] = row
        return found

    @override
    def walk(self, table: str, prefix: bytes = b"", after: bytes = b"") -> Iterable[tuple[bytes, bytes]]:
        if table not in (OVERRIDES, PAST_OVERRIDES):
            cursor = None
            while cursor != 0:
                cursor, rows = self._command("HSCAN", self._key(table, b""), cursor or 0, "COUNT", _SCAN)
                yield from ((name, row) for name, row in _pairs(rows) if name.startswith(prefix))
            return
        begun = zlib.crc32(after) % BUCKETS if after else 0
        for first in range(begun, BUCKETS, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, BUCKETS))
            keys = [self._bucket(table, number) for number in numbers]
            for number, rows in zip(numbers, self._many([(key, ("HGETALL", key)) for key in keys]), strict=True):
                for name, row in sorted(_pairs(rows)):
                    if name.startswith(prefix) and (number > begun or name > after):
                        yield name, row

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
        try:
            client = self._connected()
            named = list(self._named(client))
        except (*self._failures, OSError):
            return [ServerState(f"{host}:{port}", False, None) for host, port in self._settings.seeds]
        return [self._state(name, server) for name, server in named]

    def _named(self, client: Any) -> Iterable[tuple[str, Any]]:
        """The servers that are written to, each with a client of its own."""
        if self._settings.shape == "cluster":
            for node in client.get_primaries():
                yield f"{node.host}:{node.port}", client.get_redis_connection(node)
            return
        host, port = self._settings.seeds[0]
        if self._settings.shape == "sentinel":
            host, port = client.connection_pool.get_master_address()
        yield f"{host}:{port}", client

    def _state(self, name: str, server: Any) -> ServerState:
        errors = self._redis.exceptions
        try:
            return ServerState(name, True, None, **figures_of(server.execute_command("INFO")))
        except errors.ResponseError:  # this user may not
            return ServerState(name, True, None)
        except (errors.RedisError, OSError):
            return ServerState(name, False, None)

    @override
    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    # --- calls ------------------------------------------------------------------------------------------------

    def _key(self, table: str, name: bytes) -> bytes:
        if table in (OVERRIDES, PAST_OVERRIDES):
            return self._bucket(table, zlib.crc32(name) % BUCKETS)
        return self._prefix + b"{head}:" + table.encode()

    def _bucket(self, table: str, number: int) -> bytes:
        return self._prefix + b"{%d}:%s" % (number, table.encode())

    def _script(self, name: str, keys: list[bytes], *words: Any) -> Any:
        return self._command("EVAL", self._scripts[name], len(keys), *keys, *words)

    def _command(self, *words: Any) -> Any:
        return self._try(lambda client: client.execute_command(*words))

    def _many(self, commands: list[_Command]) -> list[Any]:
        """Send commands, in a pipeline for each server; a command that fails is sent once more by itself."""
        replies: list[Any] = []
        for first in range(0, len(commands), AT_ONCE):
            lot = commands[first : first + AT_ONCE]
            replies += self._try(lambda client, lot=lot: self._pipelined(client, lot))
        return replies

    def _pipelined(self, client: Any, commands: list[_Command]) -> list[Any]:
        replies: list[Any] = [None] * len(commands)
        by_node: defaultdict[Any, list[int]] = defaultdict(list)
        for at, (key, _) in enumerate(commands):
            by_node[client.get_node_from_key(key) if self._settings.shape == "cluster" else None].append(at)
        for node, places in by_node.items():
            server = client if node is None else client.get_redis_connection(node)
            pipeline = server.pipeline(transaction=False)
            pipeline.response_callbacks = {}
            for at in places:
                pipeline.execute_command(*commands[at][1])
            for at, reply in zip(places, pipeline.execute(raise_on_error=False), strict=True):
                # A slot that moved: the cluster's client finds it.
                replies[at] = client.execute_command(*commands[at][1]) if isinstance(reply, Exception) else reply
        return replies

    def _try(self, ask: Callable[[Any], _T]) -> _T:
        errors = self._redis.exceptions
        try:
            try:
                return ask(self._connected())
            except (errors.ConnectionError, errors.TimeoutError):
                return ask(self._connected())
        except self._failures as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise StoreUnavailableError(f"configuration store {self._shown!r}: {said}") from None
        except OSError as error:
            raise StoreUnavailableError(f"configuration store {self._shown!r}: {error.strerror or error}") from None

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        settings, redis = self._settings, self._redis
        options: dict[str, Any] = {
            "username": settings.username,
            "password": settings.password,
            "ssl": settings.tls,
            "protocol": 2,
            "socket_timeout": settings.deadline_s,
            "socket_connect_timeout": settings.deadline_s,
        }
        if settings.tls:
            options |= {"ssl_ca_certs": settings.ca, "ssl_certfile": settings.cert, "ssl_keyfile": settings.key}
        no_retry = import_module("redis.retry").Retry(import_module("redis.backoff").NoBackoff(), 0)
        if settings.shape == "cluster":
            cluster = import_module("redis.cluster")
            client = cluster.RedisCluster(
                startup_nodes=[cluster.ClusterNode(host, port) for host, port in settings.seeds],
                **{name: value for name, value in options.items() if name != "ssl" or value},
            )
        elif settings.shape == "sentinel":
            sentinels = import_module("redis.sentinel").Sentinel(
                settings.seeds,
                sentinel_kwargs={
                    name: value for name, value in options.items() if name not in ("username", "password")
                },
                **options,
            )
            client = sentinels.master_for(settings.master, db=settings.database, retry=no_retry)
        else:
            host, port = settings.seeds[0]
            client = redis.Redis(host=host, port=port, db=settings.database, retry=no_retry, **options)
        return client


def _pairs(reply: Any) -> Iterable[tuple[bytes, bytes]]:
    """Names and values, from a mapping or a flat list."""
    if isinstance(reply, dict):
        reply = [word for pair in reply.items() for word in pair]  # pyright: ignore[reportUnknownVariableType] - untyped
    words: list[bytes] = reply
    return zip(words[::2], words[1::2], strict=True)
