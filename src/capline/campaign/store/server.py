"""The server of a campaign store: one Redis or Valkey, reached through redis-py, which is imported only here.

The rule: every call may be repeated. A call without an answer is sent again, with a backoff, for `patience_s` seconds;
it does not matter whether the first one ran. redis-py's own retries are off, since they would delay a stop.

URLs: redis://[user:password@]host[:port][/db], or rediss:// with verified TLS; valkey:// and valkeys:// are the same.
They take the options of a store's URL. Messages never show the password.
"""

from __future__ import annotations

import time
from importlib import import_module, resources
from typing import TYPE_CHECKING, Any, Self

from capline.model.errors import CampaignError, CampaignStoreError, InvalidValueError
from capline.store.redis.io.server_check import info_of
from capline.store.redis.io.url import parse_url, safe_url, server_schemes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from capline.store.redis.io.url import Settings

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
    """The URL's settings; `CampaignError` where it does not name exactly one server."""
    shown = f"queue {safe_url(url)!r}"
    if url.partition("://")[0] not in server_schemes():
        raise CampaignError(f"{shown} is not the URL of a Redis or Valkey server; {_LIKE}")
    try:
        settings = parse_url(url)
    except InvalidValueError as error:
        raise CampaignError(str(error).replace("store URL", "queue", 1)) from None
    if settings.shape != "single":
        raise CampaignError(f"{shown}: a queue is on one server, not on a {settings.shape}; name one: {_LIKE}")
    return settings


class Server:
    """A connection to the server, opened by the first call. For one thread.

    `pause` is called with the seconds between two tries; it may raise to stop trying.
    """

    def __init__(
        self, url: str, *, patience_s: float = PATIENCE_S, pause: Callable[[float], object] = time.sleep
    ) -> None:
        settings = parse_queue_url(url)
        host, port = settings.seeds[0]
        self.url = url.partition("://")[0] + f"://{f'[{host}]' if ':' in host else host}:{port}/{settings.database}"
        """What to show: without user, password and options."""
        self._patience_s = patience_s
        self._tls = settings.tls
        self._pause = pause
        try:
            # The client is optional: only a queue needs it.
            redis: Any = import_module("redis")
        except ModuleNotFoundError:
            raise CampaignError('a queue needs a Redis client: pip install "capline[redis]"') from None
        self._errors: Any = redis.exceptions
        self._client: Any = redis.Redis(
            host=host,
            port=port,
            db=settings.database,
            username=settings.username,
            password=settings.password,
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
        self._client.response_callbacks.clear()
        folder = resources.files("capline.campaign.store") / "lua"
        prelude, *texts = ((folder / f"{name}.lua").read_text(encoding="utf-8") for name in ("prelude", *_SCRIPTS))
        self._scripts = {
            name: self._client.register_script(prelude + text) for name, text in zip(_SCRIPTS, texts, strict=True)
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self._client.close()

    def check(self, patience_s: float = 0.0) -> list[str]:
        """Warnings about the server's settings; `CampaignError` where it cannot hold a queue.

        Waits up to `patience_s` for a server that is restarting.
        """
        info = info_of(self._repeat(lambda: self._client.execute_command("INFO", "everything"), patience_s))
        if info.get("cluster_enabled") == "1":
            raise CampaignError(f"queue {self.url}: a cluster node; a queue needs a server of its own")
        warnings: list[str] = []
        if info.get("aof_enabled") != "1":
            warnings.append(
                "it does not write to disk (appendonly no): a restart forgets the campaign and what was sent"
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            warnings.append(
                f"it may evict the queue when its memory is full (maxmemory-policy {policy}, not noeviction)"
            )
        return [f"queue {self.url}: {warning}" for warning in warnings]

    def call(self, *words: object) -> Any:
        """Send one command, which may be repeated; returns its reply."""
        return self._repeat(lambda: self._client.execute_command(*words), self._patience_s)

    def calls(self, commands: Iterable[tuple[object, ...]]) -> list[Any]:
        """Send several such commands in one round trip."""

        def ask() -> list[Any]:
            with self._client.pipeline(transaction=False) as pipe:
                for words in listed:
                    pipe.execute_command(*words)
                return pipe.execute()

        listed = list(commands)
        return self._repeat(ask, self._patience_s)

    def run(self, script: str, keys: list[str], *arguments: object) -> Any:
        """Run one script; returns its reply."""
        return self._repeat(lambda: self._scripts[script](keys, arguments), self._patience_s)

    def runs(self, script: str, keys: list[str], arguments: Sequence[tuple[object, ...]]) -> list[Any]:
        """Run one script with each of these arguments, in one round trip."""

        def ask() -> list[Any]:
            with self._client.pipeline(transaction=False) as pipe:
                for each in arguments:
                    self._scripts[script](keys, each, client=pipe)
                return pipe.execute()

        return self._repeat(ask, self._patience_s)

    def _repeat(self, ask: Callable[[], Any], patience_s: float) -> Any:
        until = time.monotonic() + patience_s
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return ask()
            except (self._errors.ConnectionError, self._errors.TimeoutError) as error:
                refused = isinstance(error, (self._errors.AuthenticationError, self._errors.AuthorizationError))
                if refused or time.monotonic() + wait_s > until:
                    raise self._failed(error) from None
            except self._errors.RedisError as error:
                raise self._failed(error) from None
            self._pause(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _failed(self, error: Exception) -> CampaignError:
        text = " ".join(str(error).split())
        what = "it rejects the user or the password: " if isinstance(error, self._errors.AuthenticationError) else ""
        tls = self._tls and not isinstance(error, self._errors.ResponseError)
        what += "is it a server without TLS? then write redis:// for rediss://: " if tls else ""
        full = "; give it more memory" if isinstance(error, self._errors.OutOfMemoryError) else ""
        return CampaignStoreError(
            f"queue {self.url}: {what}{text}{full}; what it holds is safe: fix it and run the same command again"
        )
