"""The servers of a campaign store: Redis or Valkey, reached through redis-py, which is imported only here.

The rule: every call may be repeated. A call without an answer is sent again, with a backoff, for `patience_s` seconds;
it does not matter whether the first one ran. redis-py's own retries are off, since they would delay a stop. Under
Sentinel, and on a cluster, who has the key is asked again before that: at once the first time.

URLs are those of a store, with the same options. Messages never show the password.
"""

from __future__ import annotations

import time
from importlib import import_module, resources
from typing import TYPE_CHECKING, Any, Self

from capline.model.errors import CampaignError, CampaignStoreError, InvalidValueError
from capline.store.redis.cluster.topology import Topology
from capline.store.redis.io.server_check import info_of
from capline.store.redis.io.url import parse_url, safe_url, server_schemes
from capline.store.redis.scripting.keys import slot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from capline.store.redis.io.url import Address, Settings

_SCRIPTS = (
    "begin",
    "describe",
    "put",
    "claim",
    "record",
    "release",
    "steer",
    "rate",
    "store",
    "again",
    "look",
    "forget",
    "rewrite",
)
_TIMEOUT_S = 10.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0
PATIENCE_S = 30.0
_LIKE = "write it like redis://127.0.0.1:6379/0"


def parse_queue_url(url: str) -> Settings:
    """The URL's settings; `CampaignError` where it names no server."""
    shown = f"queue {safe_url(url)!r}"
    if url.partition("://")[0] not in server_schemes():
        raise CampaignError(f"{shown} is not the URL of a Redis or Valkey server; {_LIKE}")
    try:
        return parse_url(url)
    except InvalidValueError as error:
        raise CampaignError(str(error).replace("store URL", "queue", 1)) from None


class Server:
    """Connections to the servers, each opened by its first call. For one thread.

    `pause` is called with the seconds between two tries; it may raise to stop trying.
    """

    def __init__(
        self, url: str, *, patience_s: float = PATIENCE_S, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._settings = settings = parse_queue_url(url)
        seeds = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in settings.seeds)
        parts = filter(None, (settings.master, "" if settings.shape == "cluster" else str(settings.database)))
        self.url = "/".join((f"{url.partition('://')[0]}://{seeds}", *parts))
        """What to show: without user, password and options."""
        self.is_cluster = settings.shape == "cluster"
        self._patience_s = patience_s
        self._pause = pause
        try:
            # The client is optional: only a queue needs it.
            self._redis: Any = import_module("redis")
        except ModuleNotFoundError:
            raise CampaignError('a queue needs a Redis client: pip install "capline[redis]"') from None
        self._errors: Any = self._redis.exceptions
        self._topology = Topology(settings)
        self._clients: dict[Address, Any] = {}
        self._away = self._errors.ConnectionError, self._errors.TimeoutError
        if settings.shape != "single":
            names = "MovedError", "AskError", "TryAgainError", "ClusterDownError", "ReadOnlyError", "MasterDownError"
            self._away += tuple(getattr(self._errors, name) for name in names)
        folder = resources.files("capline.campaign.store") / "lua"
        prelude, *texts = ((folder / f"{name}.lua").read_text(encoding="utf-8") for name in ("prelude", *_SCRIPTS))
        of = self._client(settings.seeds[0])
        self._scripts = {name: of.register_script(prelude + text) for name, text in zip(_SCRIPTS, texts, strict=True)}

    def _client(self, node: Address) -> Any:
        found = self._clients.get(node)
        if found is not None:
            return found
        settings = self._settings
        # Sentinels have no databases, and no password of these.
        own = settings.shape != "sentinel" or node not in settings.seeds
        client = self._clients[node] = self._redis.Redis(
            host=node[0],
            port=node[1],
            db=settings.database if own else 0,
            username=settings.username if own else None,
            password=settings.password if own else None,
            ssl=settings.tls,
            ssl_ca_certs=settings.ca,
            ssl_certfile=settings.cert,
            ssl_keyfile=settings.key,
            protocol=2,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=import_module("redis.retry").Retry(import_module("redis.backoff").NoBackoff(), 0),
        )
        # `redis_store` reads the server's raw replies.
        client.response_callbacks.clear()
        return client

    def _of(self, key: str) -> Any:
        """The client of who has a key."""
        if self._topology.stale:
            self._learn()
        node = self._topology.node(slot_of(key.partition("{")[2].encode()))
        if node is None:
            self._topology.doubt()
            raise self._errors.ConnectionError("the cluster has nobody for some keys")
        return self._client(node)

    def _learn(self) -> None:
        question = self._topology.question()
        why: object = None
        for node in question[0] if question is not None else ():
            master = ("GET-MASTER-ADDR-BY-NAME", self._settings.master)
            words = ("CLUSTER", "SLOTS") if self.is_cluster else ("SENTINEL", *master)
            try:
                why = self._topology.learn(node, self._client(node).execute_command(*words))
            except self._errors.RedisError as error:
                why = error
            if why is None:
                return
        raise self._errors.ConnectionError(str(why))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. May be called twice."""
        for client in self._clients.values():
            client.close()

    def check(self, patience_s: float = 0.0) -> list[str]:
        """Warnings about the server's settings; `CampaignError` where it cannot hold a queue.

        Waits up to `patience_s` for a server that is restarting.
        """
        self._repeat(lambda: self._of("").execute_command("TIME"), patience_s)
        warnings: list[str] = []
        for node in self._topology.primaries():
            client = self._client(node)
            info = info_of(self._repeat(lambda client=client: client.execute_command("INFO", "everything"), patience_s))
            if info.get("cluster_enabled") == "1" and not self.is_cluster:
                raise CampaignError(f"queue {self.url}: a node of a cluster; name that: redis+cluster://host:port")
            if info.get("aof_enabled") != "1":
                warnings.append(
                    "it does not write to disk (appendonly no): a restart forgets the campaign and what was sent"
                )
            policy = info.get("maxmemory_policy", "noeviction")
            if policy != "noeviction":
                warnings.append(
                    f"it may evict the queue when its memory is full (maxmemory-policy {policy}, not noeviction)"
                )
        return [f"queue {self.url}: {warning}" for warning in dict.fromkeys(warnings)]

    def call(self, command: str, key: str, *words: object) -> Any:
        """Send one command, which may be repeated; returns its reply."""
        return self._repeat(lambda: self._of(key).execute_command(command, key, *words), self._patience_s)

    def calls(self, key: str, commands: Iterable[tuple[object, ...]]) -> list[Any]:
        """Send several such commands, to who has the key, in one round trip."""

        def ask() -> list[Any]:
            with self._of(key).pipeline(transaction=False) as pipe:
                for words in listed:
                    pipe.execute_command(*words)
                return pipe.execute()

        listed = list(commands)
        return self._repeat(ask, self._patience_s)

    def run(self, script: str, keys: list[str], *arguments: object) -> Any:
        """Run one script; returns its reply."""
        ask = self._scripts[script]
        return self._repeat(lambda: ask(keys, arguments, client=self._of(keys[0])), self._patience_s)

    def runs(self, script: str, keys: list[str], arguments: Sequence[tuple[object, ...]]) -> list[Any]:
        """Run one script with each of these arguments, in one round trip."""

        def ask() -> list[Any]:
            with self._of(keys[0]).pipeline(transaction=False) as pipe:
                for each in arguments:
                    self._scripts[script](keys, each, client=pipe)
                return pipe.execute()

        return self._repeat(ask, self._patience_s)

    def _repeat(self, ask: Callable[[], Any], patience_s: float) -> Any:
        until = time.monotonic() + patience_s
        wait_s, is_first = _FIRST_WAIT_S, self._settings.shape != "single"
        while True:
            try:
                return ask()
            except self._away as error:
                self._topology.doubt()
                refused = isinstance(error, (self._errors.AuthenticationError, self._errors.AuthorizationError))
                if refused or (time.monotonic() + wait_s > until and not is_first):
                    raise self._failed(error) from None
            except self._errors.RedisError as error:
                raise self._failed(error) from None
            if not is_first:
                self._pause(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            is_first = False

    def _failed(self, error: Exception) -> CampaignError:
        text = " ".join(str(error).split())
        what = "it rejects the user or the password: " if isinstance(error, self._errors.AuthenticationError) else ""
        tls = self._settings.tls and not isinstance(error, self._errors.ResponseError)
        what += "is it a server without TLS? then write redis:// for rediss://: " if tls else ""
        full = "; give it more memory" if isinstance(error, self._errors.OutOfMemoryError) else ""
        return CampaignStoreError(
            f"queue {self.url}: {what}{text}{full}; what it holds is safe: fix it and run the same command again"
        )
