"""What a fault of the network means, in plain words: the same for stores, services, mail, receivers and buckets."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Generator
from typing import Any

REFUSED = "nothing answers there: is it running?"
UNNAMED = "no host has this name: is it spelled right?"
LATE = "it took too long"
CLOSED = "it closed the connection"

_KINDS = (
    (ConnectionRefusedError, REFUSED),
    ((socket.gaierror, UnicodeError), UNNAMED),  # UnicodeError: a name that no host can have
    ((TimeoutError, BlockingIOError), LATE),
    ((ConnectionError, EOFError), CLOSED),
)
_REFUSED = f"[Errno {errno.ECONNREFUSED}]"
"""asyncio tells so of a host with several addresses: an OSError without a number, and all of them in its text."""


def network_fault(error: BaseException) -> str:
    """What failed; clients wrap it in errors of their own."""
    last = error
    for cause in _chain(error):
        known = _of_tls(cause) or next((said for kinds, said in _KINDS if isinstance(cause, kinds)), None)
        if known is not None:
            return known
        if isinstance(cause, OSError) and (cause.strerror or _REFUSED in str(cause)):
            last = cause
    text = last.strerror if isinstance(last, OSError) and last.strerror else str(last)
    return REFUSED if _REFUSED in text else " ".join(text.split()) or type(last).__name__


def _of_tls(error: Any) -> str | None:
    ssl = sys.modules.get("ssl")  # slow to load, so only where somebody did
    if ssl is None or not isinstance(error, ssl.SSLError):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message})"
    return f"TLS failed ({(error.reason or str(error)).replace('_', ' ').lower()})"


def _chain(error: BaseException | None) -> Generator[BaseException]:
    """The error, what it was raised from, and so on."""
    while error is not None:
        yield error
        group: tuple[BaseException, ...] = getattr(error, "exceptions", ())
        error = group[0] if group else error.__cause__ or error.__context__
