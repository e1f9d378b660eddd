"""What a service's workers keep for each other, and for those that take their places: files in one folder.

Their parent makes the folder and names it; without workers there is none. Only the service's own user gets into it
(0700), and it ends with the service.
"""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

KEPT = "CAPLINE_LAST_GOOD"
"""Names the folder."""


def path_of(name: str) -> Path | None:
    """The file of this name; None where there is no folder."""
    folder = os.environ.get(KEPT)
    return None if folder is None else Path(folder) / f"{name}.good"


def keep(path: Path | None, data: Callable[[], bytes]) -> bool:
    """Write this to a file of the folder, whole or not at all; True, so that it ends a chain."""
    if path is not None:
        written = path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # then an older one stays
            written.touch(0o600)
            written.write_bytes(data())
            written.replace(path)
    return True


def kept(path: Path | None) -> bytes | None:
    """What any worker has written there."""
    if path is not None:
        with suppress(OSError):
            return path.read_bytes()
    return None


def kept_key() -> bytes:
    """A key that the workers share; without workers one of this process."""
    path = path_of("key")
    return secrets.token_bytes(32) if path is None else path.read_bytes()


def make_key(folder: str) -> None:
    """Make the key of the workers that have this folder."""
    Path(folder, "key.good").write_bytes(secrets.token_bytes(32))
