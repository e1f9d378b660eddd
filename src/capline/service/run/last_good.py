"""The last good policy file, for processes that take the place of others while the file is broken.

Workers keep it in the folder that their parent makes for them; without workers nobody takes a place.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from capline.limiter.aio import AsyncLimiter
from capline.model.errors import CaplineError
from capline.policy.watch import PolicyWatch
from capline.service.run.workers import FOLDER

__all__ = ["LastGood"]

log = logging.getLogger("capline.service")


class LastGood:
    """Makes a limiter of a policy file, or of the version that was in force last, and keeps what is in force.

    `local` as of a `PolicyWatch`.
    """

    def __init__(self, path: str, *, local: bool = False) -> None:
        folder = os.environ.get(FOLDER)
        self._local = local
        self._path, self._kept = path, None if folder is None else Path(folder) / "policies.yaml"
        self._watch: PolicyWatch | None = None

    def limiter(self, store: str, **options: Any) -> AsyncLimiter:
        """The limiter; raises what is wrong with the file where no version was kept."""
        try:
            return self._limiter(None, store, options)
        except CaplineError as error:
            if self._kept is None or not self._kept.exists():
                raise
            log.warning("the policies in force go on: %s", error)
            return self._limiter(self._kept.read_bytes(), store, options)

    def reload(self, limiter: AsyncLimiter) -> bool:
        """As the limiter's own."""
        changed = limiter.reload()
        if changed:
            self._keep()
        return changed

    def _limiter(self, start: bytes | None, store: str, options: dict[str, Any]) -> AsyncLimiter:
        self._watch = PolicyWatch(self._path, start=start, local=self._local)
        limiter = AsyncLimiter.from_file(self._watch, store, **options)
        self._keep()
        return limiter

    def _keep(self) -> None:
        if self._kept is not None and self._watch is not None:
            written = self._kept.with_suffix(f".{os.getpid()}")
            written.write_bytes(self._watch.data)
            written.replace(self._kept)
