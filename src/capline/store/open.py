"""From a URL to a store: `memory://`, `lmdb:///absolute/path`, `lmdb://relative/path`, `redis://host:port` and others.

lmdb://~/capline is below the home directory.

lmdb:///var/lib/capline?durability=full&max_bytes=8_000_000_000&forms=next
redis+cluster://h1:7000,h2:7000,h3:7000?deadline=50ms        (see `capline.store.redis.io.url`)

Any other scheme is the name of an entry point in the group `capline.stores`: a function that takes the URL, the clock
and `create`, and returns a `Store`.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from capline.model.clock import SystemClock, check_clock
from capline.model.errors import InvalidTypeError, InvalidValueError, StoreError
from capline.store.redis.io.url import check_forms, parse_url, safe_url, server_schemes

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from capline.model.clock import Clock
    from capline.store.protocol import AsyncStore, Store
    from capline.store.redis.io.url import Settings

DEFAULT_URL = "lmdb://.capline/store"
"""The store of `from_file` and of the command line where none is named: durable, below the working directory."""
LEAST_MOST_BYTES = 16 << 20
_NUMBER = re.compile(r"(?=.{1,20}\Z)[0-9]+(?:_[0-9]+)*", re.ASCII)


def open_store(url: str, clock: Clock | None = None, *, create: bool = True) -> Store:
    """Open the store that the URL names; its time is the clock's, or without one the store's own.

    The stores of this machine go by its wall clock then. A store in a file is made where there is none; with `create`
    off that is a `NoStoreError`, and not even a directory is made. Raises `InvalidValueError` for a URL that names no
    store, and `StoreError` for a store that cannot be opened.
    """
    clock = None if clock is None else check_clock(clock)
    settings = _server(url)
    if settings is not None:
        with _needs_numpy():
            from capline.store.redis.store import RedisStore  # noqa: PLC0415 - only the store that is named is loaded

        return RedisStore(settings, clock)
    kind, options = _read(url)
    return _open_local(url, kind, options, clock or SystemClock(), create=create)


def open_async_store(url: str, clock: Clock | None = None, *, create: bool = True) -> AsyncStore:
    """`open_store` for a store whose verbs are awaited."""
    clock = None if clock is None else check_clock(clock)
    settings = _server(url)
    if settings is not None:
        with _needs_numpy():
            from capline.store.redis.async_store import AsyncRedisStore  # noqa: PLC0415 - only the store that is named is loaded

        return AsyncRedisStore(settings, clock)
    kind, options = _read(url)
    local = _open_local(url, kind, options, clock or SystemClock(), create=create)
    from capline.store.local.aio import AsyncLocalStore  # noqa: PLC0415 - asyncio only where it is asked for

    return AsyncLocalStore(local)


@contextmanager
def _needs_numpy() -> Generator[None]:
    """Of a store on a server, which counts on arrays: whoever installed redis-py without its extra is told."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise StoreError('a store on Redis or Valkey needs numpy: pip install "capline[redis]"') from None


def _server(url: str) -> Settings | None:
    """The settings in the URL of a store on a server; None for any other store."""
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        return None
    kind, named, _ = url.partition("://")
    return parse_url(url) if named and kind.lower() in server_schemes() else None


def _read(url: str) -> tuple[str, dict[str, str]]:
    """The scheme of a store's URL, and its options."""
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise InvalidTypeError(f"a store is named by a URL like 'lmdb:///path' or 'memory://', not {url!r}")
    parts = _split(url)
    try:
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:
        raise _unreadable(url) from None
    if parts.scheme == "memory" and not url.lower().startswith("memory://"):
        raise InvalidValueError(f"store URL {url!r}: write memory://")
    return parts.scheme, options


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise _unreadable(url) from None


def _unreadable(url: str) -> InvalidValueError:
    return InvalidValueError(
        f"store URL {safe_url(url)!r}: cannot be read; write it like 'lmdb:///path?durability=full'"
    )


def _open_local(url: str, kind: str, options: dict[str, str], clock: Clock, *, create: bool) -> Store:
    parts = _split(url)
    next_forms = check_forms(options, f"store URL {safe_url(url)!r}")
    if kind == "memory":
        _refuse_rest(url, options, ("forms",))
        if parts.netloc or parts.path:
            raise InvalidValueError(f"store URL {url!r}: memory:// takes no path")
        from capline.store.local.memory import MemoryStore  # noqa: PLC0415 - only the store that is named is loaded

        return MemoryStore(clock)
    if kind == "lmdb":
        _refuse_rest(url, options, ("durability", "max_bytes", "forms"))
        from capline.store.local.lmdb.store import LmdbStore  # noqa: PLC0415 - only the store that is named is loaded

        return LmdbStore(
            lmdb_path(url),
            clock,
            durability=_durability(url, options.get("durability", "relaxed")),
            most_bytes=_most_bytes(url, options.get("max_bytes")),
            next_forms=next_forms,
            create=create,
        )
    from importlib.metadata import entry_points  # noqa: PLC0415 - it is slow to load, and few need it

    others = {point.name: point for point in entry_points(group="capline.stores")}
    if kind in others:
        store: Store = others[kind].load()(url, clock, create=create)
        return store
    known = ", ".join(["memory://, lmdb:///path", *(f"{name}://" for name in sorted(others))])
    raise InvalidValueError(f"store URL {safe_url(url)!r}: unknown kind {kind!r}; use {known} or redis://host:port")


def lmdb_path(url: str) -> Path:
    """The directory that an `lmdb://` URL names, `lmdb://~/path` below the home directory."""
    if not url.lower().startswith("lmdb://"):
        raise InvalidValueError(
            f"store URL {url!r}: two slashes follow, like lmdb:///var/lib/capline for a path from the root, or "
            "lmdb://relative/path for one from here"
        )
    if "#" in url:
        raise InvalidValueError(f"store URL {url!r}: write a # in a path as %23")
    parts = _split(url)
    if "[" in parts.netloc or "]" in parts.netloc:
        raise _unreadable(url)  # also where this Python's urlsplit reads it
    path = unquote(parts.netloc + parts.path)
    if not path:
        raise InvalidValueError(f"store URL {url!r}: name a directory, like 'lmdb:///var/lib/capline'")
    if path.startswith("/~"):
        raise InvalidValueError(
            f"store URL {url!r}: a path from a home directory has two slashes, like lmdb://~/capline"
        )
    if "\0" in path:
        raise InvalidValueError(f"store URL {url!r}: a path holds no NUL")
    from pathlib import Path  # noqa: PLC0415 - as the store

    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InvalidValueError(f"store URL {url!r}: {path.partition('/')[0]} has no home directory here") from None


def _durability(url: str, value: str) -> str:
    if value not in ("relaxed", "full"):
        raise InvalidValueError(f"store URL {url!r}: durability {value!r} is not known; use relaxed or full")
    return value


def _most_bytes(url: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not _NUMBER.fullmatch(value) or int(value) < LEAST_MOST_BYTES:
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
