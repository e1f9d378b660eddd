"""TLS of a listener: a context made from files, and following those that are renewed.

The rule: a context in use is never changed. OpenSSL copies it for each handshake without a lock, so a change by another
thread may crash the process. Renewed files make a new context, which handshakes take from then on.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from capline.model.errors import InvalidValueError
from capline.segment.files import read

if TYPE_CHECKING:
    from capline.service.settings.values import Tls

LARGEST_BYTES = 4 << 20
"""Of a file: an authority's list of all public roots has some 200 KB."""

Contents = tuple[bytes, ...]


def tls_context(tls: Tls) -> ssl.SSLContext:
    """TLS 1.2 or newer by these files; raises `InvalidValueError` that names the one that is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    contents(tls)  # a file that cannot be read is named alone

    def no_password() -> str:
        raise InvalidValueError(
            f"{tls.key}: the key is encrypted; store one that is not, readable by the service alone"
        )

    try:
        context.load_cert_chain(tls.certificate, tls.key, no_password)
    except OSError as error:  # SSLError is one
        raise InvalidValueError(
            f"{tls.certificate} with {tls.key}: no PEM certificate with its key ({error})"
        ) from None
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(tls.client_ca)
        except OSError as error:  # as above
            raise InvalidValueError(f"{tls.client_ca}: no PEM certificates ({error})") from None
    return context


def renewable(first: ssl.SSLContext) -> Callable[[ssl.SSLContext], None]:
    """A function that gives another context to all later handshakes of who listens with this one."""
    newest = first

    def begin(handshake: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        handshake.context = newest

    def use(context: ssl.SSLContext) -> None:
        nonlocal newest
        newest = context

    first.sni_callback = begin  # called for a client that names no server, too
    return use


def renewed(tls: Tls, use: Callable[[ssl.SSLContext, Contents], object], seen: Contents) -> Callable[[], bool]:
    """A function that calls `use` if the files are good and not as `seen`, and returns whether it did."""

    def reload() -> bool:
        nonlocal seen
        found = contents(tls)
        if found == seen:
            return False
        context = tls_context(tls)
        if contents(tls) != found:
            return False  # written meanwhile: the next call reads them again
        use(context, found)
        seen = found
        return True

    return reload


def contents(tls: Tls) -> Contents:
    """What is in the files: certificate, key and, if there is one, client_ca. Raises as `tls_context`."""
    return tuple([read(path, LARGEST_BYTES) for path in (tls.certificate, tls.key, tls.client_ca) if path is not None])
