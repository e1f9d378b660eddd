"""The servers of a campaign store: Redis or Valkey, asked through the router and the transport of the server store.

The rule: every call may be repeated. A call without an answer is sent again, with a backoff, for `patience_s` seconds;
it does not matter whether the first one ran. `pause` waits between two tries, so that a stop ends the waiting.

URLs are those of a store, with the same options. Messages never show the password.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from functools import cache
from importlib import resources
from typing import Any, Self

from msgspec.structs import replace

from capline.model.errors import CampaignError, CampaignStoreError, CaplineError, InvalidValueError
from capline.store.redis.cluster.router import Router
from capline.store.redis.io.server_check import info_of
from capline.store.redis.io.url import Address, Settings, parse_url, safe_url, server_schemes
from capline.store.redis.io.wire import Exchange, NoReply, Pause, Read, Reply, Request, Steps, Write, pack
from capline.store.redis.scripting.keys import slot_of
from capline.store.redis.scripting.scripts import Call, Script

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
        return replace(parse_url(url), deadline_s=_TIMEOUT_S)
    except InvalidValueError as error:
        raise CampaignError(str(error).replace("store URL", "queue", 1)) from None


class Server:
    """Connections to the servers, each opened by its first call. For one thread.

    `pause` is called with the seconds between two tries; it may raise to stop trying. Nobody waits for a server that
    has not answered yet, as its URL may be wrong.
    """

    def __init__(
        self, url: str, *, patience_s: float = PATIENCE_S, pause: Callable[[float], object] = time.sleep
    ) -> None:
        settings = parse_queue_url(url)
        from capline.store.redis.io.sync import Transport  # noqa: PLC0415 - the client is optional

        seeds = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in settings.seeds)
        parts = filter(None, (settings.master, "" if settings.shape == "cluster" else str(settings.database)))
        self.url = "/".join((f"{url.partition('://')[0]}://{seeds}", *parts))
        """What to show: without user, password and options."""
        self.is_cluster = settings.shape == "cluster"
        self._most_patience_s, self._patience_s = patience_s, 0.0
        self._pause = pause
        self._router = Router(settings)
        self._transport = Transport(settings, warns=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self._transport.close()

    def check(self, patience_s: float = 0.0) -> list[str]:
        """Warnings about the server's settings; `CampaignError` where it cannot hold a queue.

        Waits up to `patience_s` for a server that is restarting.
        """
        self._replies([Call(0, pack(b"TIME"), repeatable=True)], patience_s)
        warnings: list[str] = []
        for node in self._router.topology.primaries():
            reply = self._transport.drive(_info(node))
            if isinstance(reply, NoReply):  # what is away now was looked at by others, or will be
                self._router.topology.doubt()
                continue
            if not isinstance(reply, bytes):
                raise self._failed(reply.text)
            info = info_of(reply)
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
        return self.calls(key, [(command, key, *words)])[0]

    def calls(self, key: str, commands: Iterable[tuple[object, ...]]) -> list[Any]:
        """Send several such commands, whose order does not matter, to who has the key, in one round trip."""
        slot = _slot(key)
        calls = [Call(slot, pack(*map(_bytes, words)), repeatable=True) for words in commands]
        return self._replies(calls, self._patience_s)

    def run(self, name: str, keys: list[str], *arguments: object) -> Any:
        """Run one script; returns its reply."""
        script, words = _script(name), map(_bytes, (*keys, *arguments))
        payload = pack(b"EVALSHA", script.sha, b"%d" % len(keys), *words)
        return self._replies([Call(_slot(keys[0]), payload, script, repeatable=True)], self._patience_s)[0]

    def _replies(self, calls: list[Call], patience_s: float) -> list[Any]:
        router, wait_s = self._router, _FIRST_WAIT_S
        until = time.monotonic() + patience_s
        while True:
            steps = router.run(calls, max(until, time.monotonic() + _TIMEOUT_S))
            outcomes = self._transport.drive(self._patient(steps))
            error = next((outcome for outcome in outcomes if isinstance(outcome, CaplineError)), None)
            if error is None:
                self._patience_s = self._most_patience_s
                return outcomes
            is_away = router.topology.stale or any(breaker.failures for breaker in router.breakers.values())
            if not is_away or time.monotonic() + wait_s > until:
                # Without what the router says of attempts: a call may be repeated, so nothing is in doubt.
                raise self._failed(str(error).rpartition("; ")[0])
            # A server that is left alone says nothing of who has its keys now.
            router.topology.doubt()
            self._pause(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _patient(self, steps: Steps[list[Reply]]) -> Steps[list[Reply]]:
        """The router's steps, of which a stop ends a pause, and none takes all of the patience."""
        answer: Any = None
        try:
            while True:
                step = steps.send(answer)
                if isinstance(step, Pause):
                    answer = self._pause(step.seconds)
                    continue
                if isinstance(step, (Write, Read, Exchange)):
                    step = replace(step, until=min(step.until, time.monotonic() + _TIMEOUT_S))
                answer = yield step
        except StopIteration as done:
            return done.value

    def _failed(self, why: str) -> CampaignError:
        return CampaignStoreError(
            f"queue {self.url}: {why}; what it holds is safe: fix it and run the same command again"
        )


@cache
def _script(name: str) -> Script:
    folder = resources.files("capline.campaign.store") / "lua"
    text = "".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("prelude", name)).encode()
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


def _info(node: Address) -> Steps[Reply]:
    [[reply]] = yield Exchange([Request(node, pack(b"INFO"), 1)], time.monotonic() + _TIMEOUT_S)
    return reply


def _slot(key: str) -> int:
    return slot_of(key.partition("{")[2].encode())


def _bytes(word: object) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()
