"""The one directory of a run: locked while it runs, made anew by the next, removed at the end unless it is kept.

A directory is removed only if the file `.capline-up` says that a run made it; the lock is on that file.
"""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from capline.model.errors import InvalidValueError
from capline.support.system import lock_file

_MARK = ".capline-up"


@contextmanager
def run_folder(path: Path, *, keep: bool) -> Generator[Path]:
    """The empty directory, for as long as the run lasts. Raises where it is another's, or another run's."""
    path = path.absolute()
    mark = path / _MARK
    if path.exists() and not (path.is_dir() and (mark.is_file() or not any(path.iterdir()))):
        raise InvalidValueError(f"{path} is not of an earlier `capline up`; name an empty directory: --dir PATH")
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    with mark.open("ab") as lock:
        if not lock_file(lock.fileno(), wait=False):
            raise InvalidValueError(f"another `capline up` runs in {path}; name another directory: --dir PATH")
        _empty(path)
        try:
            yield path
        finally:
            if not keep:
                shutil.rmtree(path, ignore_errors=True)
                with suppress(OSError):  # what others put there meanwhile stays
                    for folder in made[1:]:
                        folder.rmdir()


def _empty(path: Path) -> None:
    for entry in os.scandir(path):
        if entry.name == _MARK:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)  # noqa: PTH108 - as scandir has it
