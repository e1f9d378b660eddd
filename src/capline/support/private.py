"""Directories and files that only their owner may read, like an ssh key.

Logs, ledgers and exports say who was reached and when. So what capline makes has mode 0700 or 0600, less what the umask
takes away. What exists keeps its mode: whoever shares a store with a group has set it so.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

from capline.support.system import NOT_BLOCKING

PRIVATE_FILE = 0o600
_PRIVATE_DIRECTORY = 0o700


def make_private_directory(path: Path) -> list[Path]:
    """Make the directory and those above it that are missing; the ones made, lowest first. Raises `OSError`."""
    made: list[Path] = []
    for directory in (path, *path.parents):
        if directory.exists():
            break
        made.append(directory)
    for directory in reversed(made):
        directory.mkdir(mode=_PRIVATE_DIRECTORY, exist_ok=True)  # another process may be making it as well
    if not path.is_dir():
        raise NotADirectoryError(f"{path}: Not a directory")
    return made


def create_private_file(path: Path) -> None:
    """Make an empty file where there is none. Raises `OSError`.

    One that is there is not opened: closing it would take away the locks that a database has on it for this process.
    """
    if os.path.lexists(path):
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return
    with suppress(FileExistsError):  # another made it just now
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | NOT_BLOCKING, PRIVATE_FILE))


def private_opener(path: str, flags: int) -> int:
    """An `opener` for `open`: a file that is made by it is private."""
    return os.open(path, flags, PRIVATE_FILE)
