"""A folder for as long as a process lives. What a killed one left is removed when the next one is made.

Who has a folder locks a file in it, and a lock ends with its process, however that ends. So what is not locked is left.
"""

import os
import sys
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, gettempdir

from capline.support.override import override
from capline.support.system import lock_file

_LOCK = ".in-use"


class ScratchFolder(TemporaryDirectory[str]):
    """A private folder whose name begins so, among the system's temporary ones; gone when it is closed."""

    def __init__(self, prefix: str) -> None:
        _remove_left(prefix)
        while True:
            super().__init__(prefix=prefix, ignore_cleanup_errors=True)
            path = Path(self.name, _LOCK)
            self._lock = path.open("ab")
            # Another process may have taken it for one that was left, before it was locked.
            if lock_file(self._lock.fileno(), wait=False) and path.exists():
                return
            self._lock.close()

    @override
    def cleanup(self) -> None:
        self._lock.close()
        super().cleanup()


def _remove_left(prefix: str) -> None:
    for path in Path(gettempdir()).glob(f"{prefix}*/{_LOCK}"):
        try:
            if sys.platform != "win32" and path.parent.lstat().st_uid != os.geteuid():
                continue
            with path.open("ab") as file:
                if lock_file(file.fileno(), wait=False):
                    rmtree(path.parent, ignore_errors=True)
        except OSError:  # another process was faster
            continue
