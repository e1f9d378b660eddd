"""Checks a server at its first connection, and warns of settings under which it forgets hits."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from capline.store.redis.io.wire import ServerError, pack

if TYPE_CHECKING:
    from capline.store.redis.io.url import Address
    from capline.store.redis.io.wire import Reply

__all__ = ["QUESTIONS", "advice", "warn"]

QUESTIONS = (pack(b"INFO"), pack(b"CONFIG", b"GET", b"save"))
"""The commands to send; a user without the right to the second gets fewer warnings."""

_OLDEST = (7, 0)
_log = logging.getLogger("capline")


def advice(replies: list[Reply]) -> list[str]:
    """One line for each setting that a limiter should not have."""
    info_reply, save_reply = replies
    if not isinstance(info_reply, bytes):
        return []
    info = dict(line.split(":", 1) for line in info_reply.decode(errors="replace").splitlines() if ":" in line)
    lines: list[str] = []
    version = info.get("valkey_version") or info.get("redis_version", "0")
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if number < _OLDEST:
        lines.append(f"version {version} is older than 7.0, the oldest that capline is tested with")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        lines.append(f"maxmemory-policy is {policy}: under memory pressure it forgets hits; set it to noeviction")
    schedule = save_reply[1] if isinstance(save_reply, list) and len(save_reply) > 1 else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if info.get("aof_enabled") == "0" and schedule == b"":
        lines.append("persistence is off: a restart forgets every hit; set appendonly yes, or a save schedule")
    return lines


def warn(node: Address, replies: list[Reply]) -> None:
    """Log what `advice` says, on the logger `capline`, once for each server that a store meets."""
    if isinstance(replies[0], ServerError):
        return
    for line in advice(replies):
        _log.warning("%s:%d: %s", node[0], node[1], line)
