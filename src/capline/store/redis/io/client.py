"""redis-py for both transports: how its connections are made, and what its exceptions mean."""

import inspect
import re
import ssl
import time
from typing import Any

from capline.model.errors import StoreError
from capline.store.redis.io.wire import NO_CLIENT, NoReply, ServerError
from capline.support.network import network_fault

try:
    from redis import __version__, exceptions
    from redis.connection import Connection
except ModuleNotFoundError:
    raise StoreError(NO_CLIENT) from None

from capline.store.redis.io.url import Address, Settings
from capline.store.redis.io.wire import Reply

Failure = ServerError | NoReply
"""Why a request did not go out."""
SMALL_BYTES = 32_768
"""So many bytes can be sent at once even if the server does not read: less than any socket buffer."""
LATE_S = 0.02
"""The least time that a read waits: other servers may have used up the deadline."""


OLDEST, NEWEST = (5, 2), 8
"""The first release of redis-py and the last major one that this package is tested with."""
_VERSION = re.compile(r"(\d+)\.(\d+)")

# An exception of redis-py before 7.4 has a class, but not the first word of the error reply. Subclasses come first.
_WORDS: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.MovedError, "MOVED"),
    (exceptions.AskError, "ASK"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.NoScriptError, "NOSCRIPT"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.ExecAbortError, "EXECABORT"),
)
_OF_TEXT = frozenset({"AUTH", "DB", "SELECT"})
"""Words in capitals with which the text of an ERR begins, once ERR is taken out."""
_NO_PASSWORD = "Authentication required"  # noqa: S105 - a server's text # nosec B105
_TOO_EARLY = "Protocol error: unauthenticated"
_TOO_MANY = "max number of clients reached"


def check_version(version: str) -> None:
    """Raise, saying what to install, for a redis-py that this package was not tested with."""
    found = _VERSION.match(version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST or int(found[1]) > NEWEST:
        raise StoreError(
            f"redis-py {version} is installed; a store on Redis or Valkey needs 5.2 to {NEWEST}: "
            f'pip install "redis>={OLDEST[0]}.{OLDEST[1]},<{NEWEST + 1}"'
        )


check_version(__version__)

# redis-py introduces itself to the server, one or two more round trips, unless told not to; since 7.4 in another way.
_IS_OLD = not any("driver_info" in inspect.signature(kind.__init__).parameters for kind in Connection.__mro__)
_SILENT: dict[str, Any] = {"lib_name": None, "lib_version": None} if _IS_OLD else {"driver_info": None}


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
        **_SILENT,
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
    """The error reply behind this exception; None if no reply came."""
    text = str(error)
    if isinstance(error, exceptions.ResponseError) and _TOO_EARLY in text:
        return error_line(text)
    code = _word_of(error, text)
    if code:
        # redis-py knows this first word, and has taken it out of the text.
        return ServerError(code, f"{code} {text}")
    if isinstance(error, exceptions.ResponseError):
        return error_line(text)
    return None


def error_line(text: str) -> ServerError:
    """The error reply with this line."""
    if _TOO_EARLY in text:
        return ServerError("NOAUTH", text)  # to a long command of somebody who has not logged in
    word = text.split(" ", 1)[0].rstrip(":")
    return ServerError(word if word.isupper() else "ERR", text)


def _word_of(error: Exception, text: str) -> str | None:
    """The first word of the reply behind this exception; None if redis-py left it in the text, or no reply came."""
    if not isinstance(error, exceptions.RedisError):
        return None
    if hasattr(error, "status_code"):
        return error.status_code
    for kind, word in _WORDS:
        if isinstance(error, kind):
            return None if text.startswith(f"{word} ") else word
    if text.split(" ", 1)[0] in _OF_TEXT:
        return "ERR"
    if isinstance(error, exceptions.AuthenticationError):
        return "NOAUTH" if _NO_PASSWORD in text else "WRONGPASS"
    return "ERR" if text == _TOO_MANY else None


def ends_connection(reply: Reply) -> bool:
    """Whether nothing comes after this reply: none came, or the server closes the connection behind it."""
    return isinstance(reply, NoReply) or (isinstance(reply, ServerError) and _TOO_EARLY in reply.text)


def halfway(until: float) -> float:
    """The middle between now and `until`."""
    now = time.monotonic()
    return now + (until - now) / 2


def answered(replies: list[Reply]) -> list[Reply]:
    """The replies to a connection's first commands; raises, with the server's text, if the server closed it."""
    if isinstance(replies[-1], NoReply):
        said = next(reply for reply in replies if isinstance(reply, (ServerError, NoReply)))
        raise ConnectionError(said.text)
    return replies


def no_connection(error: Exception, *, tls: bool) -> ServerError | NoReply:
    """Why there is no connection: the server's own error if it sent one, else what failed."""
    spoke_tls = False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ServerError("CERTIFICATE", cause.verify_message)
        spoke_tls = spoke_tls or isinstance(cause, (ssl.SSLError, TimeoutError, exceptions.TimeoutError))
        cause = cause.__cause__ or cause.__context__
    said = server_error(error)
    if said is not None:
        return ServerError("CONNECT", said.text.removeprefix("ERR ")) if said.code == "ERR" else said
    failed = lost(error, sent=False)
    # A server without TLS answers a TLS handshake with silence, or with bytes that are not TLS.
    hint = "; is it a server without TLS? then write redis:// for rediss://" if tls and spoke_tls else ""
    return NoReply(failed.sent, failed.text + hint)


def lost(error: BaseException, *, sent: bool) -> NoReply:
    """Why no reply came, without any part of the URL."""
    if isinstance(error, (TimeoutError, exceptions.TimeoutError)):
        return NoReply(sent, "no answer by the deadline" if sent else "no connection by the deadline")
    return NoReply(sent, f"{'the connection was lost' if sent else 'no connection'} ({network_fault(error)})")
