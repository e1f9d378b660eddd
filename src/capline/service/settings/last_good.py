"""The last good version of each file that is followed, for processes that take the place of others while it is broken.

Workers keep them in the folder that their parent makes for them; without workers nobody takes a place. A certificate's
key is among them: only the service's own user gets into the folder (0700), which ends with the service, and that user
reads the key as it is. To hand it on in memory, the parent would have to read and to check it, too.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from capline.model.errors import CaplineError
from capline.service.settings.tls import tls_context
from capline.service.settings.values import Tls

log = logging.getLogger("capline.service")

KEPT = "CAPLINE_LAST_GOOD"
"""Names the folder of a service's workers, where they keep the last good files."""

_T = TypeVar("_T")


class LastGood(Generic[_T]):
    """`used` is what `make` made of its files or, given the path of what was kept, of that.

    `data` says what is in force, which is kept. Raises what is wrong with the files where nothing was kept.
    """

    def __init__(self, name: str, make: Callable[[Path | None], _T], data: Callable[[_T], bytes]) -> None:
        kept = _path(name)
        self._keep = partial(_write, kept, lambda: data(self.used))
        try:
            self.used = make(None)
        except CaplineError as error:
            if kept is None or not kept.exists():
                raise
            log.warning("%s: the last good one goes on: %s", name, error)
            self.used = make(kept)
        else:
            self._keep()

    def keeping(self, reload: Callable[[], bool]) -> Callable[[], bool]:
        """This reload, but what it takes over is kept."""
        return lambda: reload() and self._keep()


def last_good_tls(name: str, tls: Tls) -> LastGood[Tls]:
    """The files of a certificate; what was kept of them is one file with the key, and one of the client_ca."""
    kept_ca = _path(f"{name}.client_ca") if tls.client_ca else None

    def made(kept: Path | None) -> Tls:
        if kept is not None:
            return Tls(str(kept), str(kept), kept_ca and str(kept_ca))
        tls_context(tls)
        return tls

    def data(_: Tls) -> bytes:
        _write(kept_ca, lambda: Path(tls.client_ca or "").read_bytes())
        return b"\n".join(Path(path).read_bytes() for path in (tls.certificate, tls.key))

    return LastGood(name, made, data)


def kept_key() -> bytes:
    """A key that the service's workers share, in the parent's folder; without workers one of this process."""
    path = _path("key")
    return secrets.token_bytes(32) if path is None else path.read_bytes()


def make_key(folder: str) -> None:
    """Make the key of the workers that have this folder."""
    Path(folder, "key.good").write_bytes(secrets.token_bytes(32))


def keep(name: str, data: bytes) -> None:
    """Keep this for all workers under a name."""
    _write(_path(name), lambda: data)


def kept(name: str) -> bytes | None:
    """What any worker has kept under this name."""
    path = _path(name)
    if path is not None:
        with suppress(OSError):
            return path.read_bytes()
    return None


def _path(name: str) -> Path | None:
    folder = os.environ.get(KEPT)
    return None if folder is None else Path(folder) / f"{name}.good"


def _write(path: Path | None, data: Callable[[], bytes]) -> bool:
    if path is not None:
        written = path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # then an older one stays
            written.touch(0o600)
            written.write_bytes(data())
            written.replace(path)
    return True
