"""The settings of Envoy's service; imports none of its packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from capline.service.run.settings import Tls

__all__ = ["EnvoySettings"]


class EnvoySettings(NamedTuple):
    """`listen` as gRPC writes an address: `127.0.0.1:8082`, `[::1]:8082`; `files` are files and folders.

    `look_every_s` is how often the files are looked at.
    """

    listen: str
    files: tuple[Path, ...]
    merge_domains: bool = False
    look_every_s: float = 1.0
    tls: Tls | None = None
