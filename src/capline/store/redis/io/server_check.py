"""Checks a server at its first connection, and warns of settings under which it forgets hits."""

import logging
from collections.abc import Mapping, Sequence

from capline.store.redis.io.url import Address
from capline.store.redis.io.wire import Reply, ServerError, pack

QUESTIONS = (pack(b"INFO"), pack(b"CONFIG", b"GET", b"save"))
"""The commands to send; a user without the right to the second gets fewer warnings."""

_OLDEST = (7, 0)
_log = logging.getLogger("capline")


def info_of(reply: Reply) -> dict[str, str]:
    """What INFO says, by name; empty where it may not be asked."""
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def version_of(info: Mapping[str, str]) -> str:
    """The server's version. Valkey also names the Redis that it speaks like."""
    return info.get("valkey_version") or info.get("redis_version", "0")


def advice(replies: Sequence[Reply]) -> dict[str, str]:
    """One line for each setting that a limiter should not have, by what it is about."""
    info, save_reply = info_of(replies[0]), replies[1]
    if not isinstance(replies[0], bytes):
        return {}
    lines: dict[str, str] = {}
    version = version_of(info)
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if number < _OLDEST:
        lines["version"] = f"version {version} is older than 7.0, the oldest that capline is tested with"
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        lines["eviction"] = f"maxmemory-policy is {policy}: under memory pressure it forgets hits; set it to noeviction"
    schedule = save_reply[1] if isinstance(save_reply, list) and len(save_reply) > 1 else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if info.get("aof_enabled") == "0" and schedule == b"":
        lines["persistence"] = "persistence is off: a restart forgets every hit; set appendonly yes, or a save schedule"
    return lines


def warn(node: Address, replies: Sequence[Reply]) -> None:
    """Log what `advice` says, on the logger `capline`, once for each server that a store meets."""
    if isinstance(replies[0], ServerError):
        return
    for line in advice(replies).values():
        _log.warning("%s:%d: %s", node[0], node[1], line)
