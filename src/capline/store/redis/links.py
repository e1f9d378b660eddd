"""What both transports know of redis-py: how its connections are made, and what its exceptions mean on the wire."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from capline.model.errors import StoreError
from capline.store.redis.wire import Lost, ServerError

try:
    from redis import exceptions
except ImportError:
    raise StoreError("this store needs redis-py; install it: pip install 'capline[redis]'") from None

if TYPE_CHECKING:
    from capline.store.redis.url import Address, Settings

__all__ = ["connection_options", "lost", "server_error"]

# redis-py turns the first word of an error into a class, and leaves it out of the text.
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.MovedError, "MOVED"),
    (exceptions.AskError, "ASK"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
    (exceptions.NoScriptError, "NOSCRIPT"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.MaxConnectionsError, "ERR"),
    (exceptions.AuthenticationWrongNumberOfArgsError, "ERR"),
    (exceptions.AuthenticationError, "WRONGPASS"),
)


def connection_options(settings: Settings, node: Address) -> dict[str, Any]:
    """The arguments of redis-py's connection classes. Nothing is retried: a call that may have run must not be."""
    seed = node in settings.seeds
    sentinel = settings.shape == "sentinel" and seed
    options: dict[str, Any] = {
        "host": node[0],
        "port": node[1],
        # Sentinels have no databases, and a password of their own or none.
        "db": 0 if sentinel else settings.database,
        "username": None if sentinel else settings.username,
        "password": None if sentinel else settings.password,
        "socket_timeout": settings.deadline_s,
        "socket_connect_timeout": settings.deadline_s,
        "socket_keepalive": True,
        "protocol": 2,
        "retry_on_error": [],
        "driver_info": None,
    }
    if settings.tls:
        options |= {
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
            "ssl_ca_certs": settings.ca,
            "ssl_certfile": settings.cert,
            "ssl_keyfile": settings.key,
            "ssl_min_version": ssl.TLSVersion.TLSv1_2,
        }
    return options


def server_error(error: Exception) -> ServerError | None:
    """The error reply that this exception stands for; None where no reply came."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            text = str(error)
            return ServerError(code, text if text.startswith(code) else f"{code} {text}")
    if isinstance(error, exceptions.ResponseError):
        text = str(error)
        word = text.split(" ", 1)[0].rstrip(":")
        return ServerError(word if word.isupper() else "ERR", text)
    return None


def lost(error: BaseException, *, sent: bool) -> Lost:
    """No reply came; why, without a word of the URL."""
    if isinstance(error, (TimeoutError, exceptions.TimeoutError)):
        return Lost(sent, "no answer by the deadline" if sent else "no connection by the deadline")
    text = " ".join(str(error).split()) or type(error).__name__
    return Lost(sent, f"{'the connection was lost' if sent else 'no connection'} ({text})")
