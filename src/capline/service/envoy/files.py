"""The files of a configuration, read whole and followed.

Any number of paths: files, and folders, whose `.yaml` and `.yml` files count in the order of their names, but for those
that begin with a dot. The rule: `current` is always a whole, good configuration. A file that is changed, new or gone
makes a new configuration; if that has a fault anywhere, only `error` changes.

Files are read again only if their state (inode, size, times) changed, or is younger than two seconds, since the clocks
of file systems are coarse.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from capline.model.errors import CaplineError, InvalidValueError
from capline.policy.file import PolicyFileError, read_bytes
from capline.service.envoy.form import add_file
from capline.service.envoy.rules import Configuration
from capline.service.settings.last_good import LastGood
from capline.service.settings.values import Grpc

MOST_FILES = 1000
_SUFFIXES = (".yaml", ".yml")
_SETTLED_NS = 2_000_000_000

_Read = list[tuple["Path", bytes]]


def load(*paths: Path, merge_domains: bool = False) -> Configuration:
    """The configuration of files and folders; raises the `CaplineError` that names the file, the line and the fault.

    A folder without files is one without domains. Two files with one domain are refused unless `merge_domains`.
    """
    return _parsed(_read(paths), merge_domains=merge_domains)


class Files:
    """Follows files and folders: call `poll` now and then. Raises when made on what is not good.

    It begins with `start`, the `data` of another, whatever the files say by now.
    """

    def __init__(self, *paths: Path, merge_domains: bool = False, start: bytes | None = None) -> None:
        self._paths = tuple([path.absolute() for path in paths])  # so that a chdir does not change which are meant
        self._merge_domains = merge_domains
        self._seen: object = None
        read = (
            _read(self._paths) if start is None else [(Path(name), text.encode()) for name, text in json.loads(start)]
        )
        self._digest = _digest(read)
        self.current, self._taken = _parsed(read, merge_domains=merge_domains), read
        self.error: CaplineError | None = None

    @property
    def data(self) -> bytes:
        """The files in force."""
        return json.dumps([(str(path), text.decode()) for path, text in self._taken]).encode()

    def poll(self) -> bool:
        """Look whether anything changed; True when `current` was replaced, or when `error` is a new one.

        Never raises. Costs a stat for each file while nothing changes.
        """
        try:
            state, newest_ns = _state(self._paths)
            if state == self._seen:
                return False
            read = _read(self._paths)
            self._seen = state if time.time_ns() - newest_ns > _SETTLED_NS else None
            digest = _digest(read)
            if digest == self._digest and self.error is None:
                return False
            self._digest = digest
            self.current, self._taken = _parsed(read, merge_domains=self._merge_domains), read
            self.error = None
        except CaplineError as error:
            told = self.error is not None and str(self.error) == str(error)
            self.error, self._seen = error, None  # read again at each poll, until it is good
            return not told
        return True


def _names(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        try:
            below = sorted(path.iterdir()) if path.is_dir() else None
        except OSError as error:
            raise InvalidValueError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
        if below is None:
            found.append(path)
        else:
            found += [file for file in below if file.suffix in _SUFFIXES and not file.name.startswith(".")]
    if len(found) > MOST_FILES:
        raise InvalidValueError(f"{len(found)} files of rate limits; at most {MOST_FILES}")
    return found


def _state(paths: Sequence[Path]) -> tuple[object, int]:
    """A value that differs once any file changed, and when the newest file did."""
    states: list[tuple[str, int, int, int]] = []
    newest_ns = 0
    for file in _names(paths):
        try:
            stat = file.stat()
        except OSError:
            states.append((str(file), 0, 0, 0))  # gone: reading it says so
            continue
        states.append((str(file), stat.st_ino, stat.st_size, stat.st_ctime_ns))
        newest_ns = max(newest_ns, stat.st_ctime_ns)
    return tuple(states), newest_ns


def _read(paths: Sequence[Path]) -> _Read:
    return [(file, read_bytes(file)[0]) for file in _names(paths)]


def _digest(read: _Read) -> bytes:
    whole = hashlib.sha256()
    for path, data in read:
        whole.update(f"{path}\0{len(data)}\0".encode(errors="surrogateescape") + data)
    return whole.digest()


def followed_files(settings: Grpc) -> LastGood[Files]:
    """Those of the settings; raises the `CaplineError` that names the fault."""

    def made(kept: Path | None) -> Files:
        return Files(*map(Path, settings.envoy), merge_domains=settings.merge_domains, start=kept and kept.read_bytes())

    return LastGood("grpc.envoy", made, lambda files: files.data)


def _parsed(read: _Read, *, merge_domains: bool) -> Configuration:
    into = Configuration()
    for path, data in read:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise PolicyFileError.of(str(path), [(0, "it is not UTF-8; save it so")]) from None
        faults = add_file(text, into, merge_domains=merge_domains)
        if faults:
            raise PolicyFileError.of(str(path), faults)
    return into
