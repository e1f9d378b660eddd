"""TLS of a listener: a context made from files, and following those that are renewed."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from capline.model.errors import InvalidValueError

if TYPE_CHECKING:
    from capline.service.settings.values import Tls


def tls_context(tls: Tls) -> ssl.SSLContext:
    """TLS 1.2 or newer by these files; raises `InvalidValueError` that names the one that is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in _paths(tls):
        if not os.access(path, os.R_OK):
            raise InvalidValueError(f"{path}: cannot be read; tls names PEM files")
    load(context, tls)
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load(context: ssl.SSLContext, tls: Tls) -> None:
    """Give a context these files; raises as `tls_context`. A client_ca is trusted in addition to one from before."""

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
        try:
            context.load_verify_locations(tls.client_ca)
        except OSError as error:  # as above
            raise InvalidValueError(f"{tls.client_ca}: no PEM certificates ({error})") from None


def renewed(tls: Tls, use: Callable[[], None], used: Tls) -> Callable[[], bool]:
    """A function that calls `use` if the files are good and not those `used`, and returns whether they changed."""
    seen = _states(used)

    def reload() -> bool:
        nonlocal seen
        found = _states(tls)
        if found == seen:
            return False
        tls_context(tls)
        use()
        seen = found
        return True

    return reload


def _paths(tls: Tls) -> list[str]:
    return [path for path in (tls.certificate, tls.key, tls.client_ca) if path is not None]


def _states(tls: Tls) -> list[tuple[int, int]]:
    try:
        states = [Path(path).stat() for path in _paths(tls)]
    except OSError:
        return []
    return [(state.st_ino, state.st_mtime_ns) for state in states]
