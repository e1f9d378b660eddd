"""The last good version of each file that is followed, for processes that take the place of others while it is broken.

They are in the folder of `kept`. A certificate's key is among them: only the service's own user gets into the folder,
and that user reads the key as it is. To hand it on in memory, the parent would have to read and to check it, too.
"""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from capline.model.errors import CaplineError
from capline.service.settings.kept import keep, path_of
from capline.service.settings.tls import tls_context
from capline.service.settings.values import Tls

log = logging.getLogger("capline.service")

_T = TypeVar("_T")


class LastGood(Generic[_T]):
    """`used` is what `make` made of its files or, given the path of what was kept, of that.

    `data` says what is in force, which is kept. Raises what is wrong with the files where nothing was kept.
    """

    def __init__(self, name: str, make: Callable[[Path | None], _T], data: Callable[[_T], bytes]) -> None:
        kept = path_of(name)
        self._keep = partial(keep, kept, lambda: data(self.used))
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
    kept_ca = path_of(f"{name}.client_ca") if tls.client_ca else None

    def made(kept: Path | None) -> Tls:
        if kept is not None:
            return Tls(str(kept), str(kept), kept_ca and str(kept_ca))
        tls_context(tls)
        return tls

    def data(_: Tls) -> bytes:
        keep(kept_ca, lambda: Path(tls.client_ca or "").read_bytes())
        return b"\n".join(Path(path).read_bytes() for path in (tls.certificate, tls.key))

    return LastGood(name, made, data)
