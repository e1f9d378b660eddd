"""From a URL to a store: `memory://`, `lmdb:///absolute/path`, `lmdb://relative/path`.

lmdb:///var/lib/capline?durability=full&max_bytes=8_000_000_000
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from capline.model.errors import InvalidTypeError, InvalidValueError

if TYPE_CHECKING:
    from capline.model.clock import Clock
    from capline.store.protocol import Store

__all__ = ["open_store"]

LEAST_MOST_BYTES = 16 << 20


def open_store(url: str, clock: Clock) -> Store:
    """Open the store that the URL names.

    Raises `InvalidValueError` for a URL that names none, and `StoreError` for a store that cannot be opened.
    """
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise InvalidTypeError(f"a store is named by a URL like 'lmdb:///path' or 'memory://', not {url!r}")
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise InvalidValueError(f"store URL {url!r}: {error}; write it like 'lmdb:///path?durability=full'") from None
    if parts.scheme == "memory":
        _refuse_rest(url, options, ())
        if parts.netloc or parts.path:
            raise InvalidValueError(f"store URL {url!r}: memory:// takes no path")
        from capline.store.memory import MemoryStore  # noqa: PLC0415 - only the store that is named is loaded

        return MemoryStore(clock)
    if parts.scheme == "lmdb":
        _refuse_rest(url, options, ("durability", "max_bytes"))
        path = unquote(parts.netloc + parts.path)
        if not path:
            raise InvalidValueError(f"store URL {url!r}: name a directory, like 'lmdb:///var/lib/capline'")
        from capline.store.lmdb import LmdbStore  # noqa: PLC0415 - only the store that is named is loaded

        return LmdbStore(
            Path(path),
            clock,
            durability=_durability(url, options.get("durability", "relaxed")),
            most_bytes=_most_bytes(url, options.get("max_bytes")),
        )
    raise InvalidValueError(f"store URL {url!r}: unknown kind {parts.scheme!r}; use memory:// or lmdb:///path")


def _durability(url: str, value: str) -> str:
    if value not in ("relaxed", "full"):
        raise InvalidValueError(f"store URL {url!r}: durability {value!r} is not known; use relaxed or full")
    return value


def _most_bytes(url: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not value.replace("_", "").isdecimal() or int(value) < LEAST_MOST_BYTES:
        raise InvalidValueError(
            f"store URL {url!r}: max_bytes is a number of at least {LEAST_MOST_BYTES}, not {value!r}"
        )
    return int(value)


def _refuse_rest(url: str, options: dict[str, str], known: tuple[str, ...]) -> None:
    for name in options:
        if name not in known:
            raise InvalidValueError(
                f"store URL {url!r}: unknown option {name!r}; it takes: {', '.join(known) or 'none'}"
            )
