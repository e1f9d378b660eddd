"""The settings of Envoy's service; imports none of its packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

    from capline.service.run.settings import Tls

__all__ = ["USUAL_MODES", "EnvoySettings", "Modes"]


class Modes(msgspec.Struct, frozen=True):
    """What holds for all limits, as the variables of envoyproxy/ratelimit say it.

    `shadow_mode` lets every request through; `quota_mode` makes every limit one of quota mode. `dynamic_metadata` tells
    Envoy in each answer what it asked for. `response_headers` adds headers of the limit that is nearest.
    """

    shadow_mode: bool = False
    quota_mode: bool = False
    near_limit_ratio: float = 0.8
    dynamic_metadata: bool = False
    response_headers: bool = False
    limit_header: str = "RateLimit-Limit"
    remaining_header: str = "RateLimit-Remaining"
    reset_header: str = "RateLimit-Reset"


USUAL_MODES = Modes()


class EnvoySettings(NamedTuple):
    """`listen` as gRPC writes an address: `127.0.0.1:8082`, `[::1]:8082`, `unix:/run/envoy.sock`.

    `files` are files and folders. A connection older than `max_connection_age` is told to go, and closed after
    `max_connection_age_grace`, both in seconds; None is never.
    """

    listen: str
    files: tuple[Path, ...]
    merge_domains: bool = False
    tls: Tls | None = None
    modes: Modes = USUAL_MODES
    max_connection_age: float | None = None
    max_connection_age_grace: float | None = None
