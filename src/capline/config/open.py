"""From a URL to a backend: `memory://`, `lmdb:///path`, `redis://…` and its kin, as for stores."""

from capline.config.backend import Backend
from capline.model.errors import InvalidTypeError, InvalidValueError
from capline.model.policy import check_name
from capline.store.open import lmdb_path
from capline.store.redis.io.url import parse_url, safe_url, server_schemes


def open_backend(url: str, namespace: str, *, create: bool = True) -> Backend:
    """The backend that the URL names; servers are not asked yet.

    Raises `InvalidValueError` for a URL that names none, `NoStoreError` for a missing file with `create` off.
    """
    check_name(namespace, "namespace")
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        raise InvalidTypeError(f"a configuration store is named by a URL like 'lmdb:///path', not {url!r}")
    scheme = url.partition("://")[0].lower()
    if scheme in server_schemes():
        from capline.config.servers import ServerBackend  # noqa: PLC0415 - only the backend that is named is loaded

        return ServerBackend(parse_url(url), url, namespace)
    from capline.config.local import MemoryBackend, open_lmdb  # noqa: PLC0415 - as above

    if url == "memory://":
        return MemoryBackend()
    if scheme == "lmdb":
        if "?" in url:
            raise InvalidValueError(f"configuration store {url!r}: it takes no options; write lmdb:///path")
        return open_lmdb(lmdb_path(url), namespace, create=create)
    raise InvalidValueError(
        f"configuration store {safe_url(url)!r}: unknown kind; use lmdb:///path, redis://host:port or memory://"
    )
