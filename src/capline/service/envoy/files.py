"""The files of a configuration, read whole and followed.

Any number of paths: files, and folders, whose `.yaml` and `.yml` files count in the order of their names, but for those
that begin with a dot. The rule: `current` is always a whole, good configuration. A file that is changed, new or gone
makes a new configuration; if that has a fault anywhere, only `error` changes.

They are followed as a policy file is.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from capline.model.errors import InvalidValueError
from capline.policy.file import PolicyFileError, read_bytes
from capline.policy.watch import Read, Watch
from capline.service.envoy.form import add_file
from capline.service.envoy.rules import Configuration
from capline.service.settings.last_good import LastGood
from capline.service.settings.values import Grpc
from capline.support.override import override

MOST_FILES = 1000
_SUFFIXES = (".yaml", ".yml")


def load(*paths: Path, merge_domains: bool = False) -> Configuration:
    """The configuration of files and folders; raises the `CaplineError` that names the file, the line and the fault.

    A folder without files is one without domains. Two files with one domain are refused unless `merge_domains`.
    """
    return _parsed(_read(paths), merge_domains=merge_domains)


class Files(Watch[Configuration]):
    """Follows files and folders: call `poll` now and then. Raises when made on what is not good.

    It begins with `start`, the `data` of another, whatever the files say by now.
    """

    def __init__(self, *paths: Path, merge_domains: bool = False, start: bytes | None = None) -> None:
        self._given = tuple([path.absolute() for path in paths])  # so that a chdir does not change which are meant
        self._merge_domains = merge_domains
        kept = [] if start is None else [(Path(name), text.encode()) for name, text in json.loads(start)]
        super().__init__(_read(self._given) if start is None else kept)

    @property
    def data(self) -> bytes:
        """The files in force."""
        return json.dumps([(str(path), text.decode()) for path, text in self._taken]).encode()

    @override
    def poll(self) -> bool:
        """Look whether anything changed; True when `current` was replaced, or when `error` is another than before."""
        before = str(self.error)
        return super().poll() or str(self.error) != before

    @override
    def _paths(self) -> Sequence[Path]:
        return _names(self._given)

    @override
    def _made(self, read: Read) -> Configuration:
        return _parsed(read, merge_domains=self._merge_domains)


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


def _read(paths: Sequence[Path]) -> Read:
    return [(file, read_bytes(file)[0]) for file in _names(paths)]


def followed_files(settings: Grpc) -> LastGood[Files]:
    """Those of the settings; raises the `CaplineError` that names the fault."""

    def made(kept: Path | None) -> Files:
        return Files(*map(Path, settings.envoy), merge_domains=settings.merge_domains, start=kept and kept.read_bytes())

    return LastGood("grpc.envoy", made, lambda files: files.data)


def _parsed(read: Read, *, merge_domains: bool) -> Configuration:
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
