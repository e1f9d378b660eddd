"""The dictionary of text ids: gives each text a permanent number.

Segments are bitmaps of numbers, so a text id (a UUID, a hash) gets the next free number when it is first seen. The
numbers are stored in a directory beside the snapshots:

    ids/
    ├── dictionary.json             which files, in the order of their numbers; sealed like a manifest
    ├── ids-9f86d081884c7d65.ids    the texts with the numbers 0 ... (see `idfile`), named by content
    ├── ids-60303ae22b998861.ids    the texts with the following numbers
    └── lock                        held while a build appends

The rule: append only. A build writes new texts with the next numbers to a new file, and adds that to `dictionary.json`
last, by a rename; so a build that is killed has given no numbers. Small files are merged now and then, up to 33 million
texts a file; merging keeps every number. A snapshot holds the files too (as hard links if possible), to look up texts.

Cost: 8 bytes and the text itself for each id, on disk and mapped, not loaded. A number is 32 bits: 4.29 billion texts.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from capline.model.errors import InvalidTypeError, SegmentError
from capline.segment import files
from capline.segment.dictionary import idfile
from capline.segment.manifest import LARGEST_MANIFEST_BYTES, DictionaryEntry
from capline.segment.seal import is_sealed, seal
from capline.support.system import lock_file

if TYPE_CHECKING:
    import numpy.typing as npt

    from capline.segment.dictionary.idfile import Group, IdFile

_FORMAT = "capline-ids"
_FORMAT_VERSION = 1
_NAME = "dictionary.json"
_SUFFIX = ".ids"
_FULL = 1 << 25
"""Files are merged up to so many texts: each is published once, and merging stays within 2 GB of memory."""

_MOST_TEXTS = 1 << 32


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: str
    format_version: int
    files: tuple[DictionaryEntry, ...]
    sha256: str | msgspec.UnsetType = msgspec.UNSET


class Dictionary:
    """Texts and their numbers, both ways; immutable, mapped, safe for any number of reading threads."""

    __slots__ = ("_files", "entries", "paths")

    entries: tuple[DictionaryEntry, ...]
    paths: tuple[Path, ...]

    def __init__(
        self, opened: Sequence[IdFile] = (), entries: Sequence[DictionaryEntry] = (), paths: Sequence[Path] = ()
    ) -> None:
        self._files = tuple(opened)
        self.entries = tuple(entries)
        self.paths = tuple(paths)

    def __len__(self) -> int:
        return sum(file.count for file in self._files)

    def number(self, text: str) -> int | None:
        """The text's number, None if it has none. About 5 µs a file."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
            raise InvalidTypeError(f"an id here is text, not {text!r}")
        raw = _checked(text)
        cell = np.array([raw], dtype=f"S{len(raw)}")
        for file in self._files:
            found = int(file.find(len(raw), cell)[0])
            if found >= 0:
                return found
        return None

    def numbers(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """The number of each text, -1 if it has none."""
        for text in texts:
            _checked(text)
        found = np.full(len(texts), -1, dtype=np.int64)
        for group in idfile.group_texts(texts):
            found[group.places] = self.find(group)
        return found

    def find(self, group: Group) -> npt.NDArray[np.int64]:
        """`numbers` for texts of one length."""
        unique, back = np.unique(group.cells, return_inverse=True)
        found = np.full(len(unique), -1, dtype=np.int64)
        for file in self._files:
            missing = np.flatnonzero(found < 0)
            if not missing.size:
                break
            found[missing] = file.find(group.length_bytes, unique[missing])
        return found[back]

    def text(self, number: int) -> str:
        """The text with this number; `SegmentError` if there is none."""
        for file in self._files:
            if file.first <= number < file.first + file.count:
                return file.text(number)
        raise SegmentError(f"no text has the number {number}; there are {len(self)}")

    def groups(self) -> Iterable[tuple[int, npt.NDArray[np.bytes_], npt.NDArray[np.int64]]]:
        """Every text, by length: texts and their numbers; for merging."""
        for file in self._files:
            for length, cells, numbers in file.groups:
                yield length, cells, numbers.astype(np.int64) + file.first


def open_file(entry: DictionaryEntry, path: Path, *, verify: bool, directory: int | None = None) -> IdFile:
    """Map one file; with `verify`, hash it and check its order first. `SegmentError` where it is damaged."""
    shown = str(path)
    memory = files.map_file(
        entry.file if directory is not None else path, entry.bytes, directory=directory, shown=shown
    )
    if verify and hashlib.sha256(memory.data).hexdigest() != entry.sha256:
        raise SegmentError(
            f"{shown}: does not match the SHA-256 in the manifest; it is damaged: build the snapshot again"
        )
    opened = idfile.IdFile(memory, shown)
    if (opened.first, opened.count) != (entry.first, entry.cardinality):
        raise SegmentError(f"{shown}: its numbers are not those that the manifest says")
    if verify:
        opened.check()
    return opened


@contextmanager
def keep(directory: str | Path) -> Generator[DictionaryBuilder]:
    """Open the dictionary in this directory for appending, or create it; `SegmentError` while another build has it."""
    home = Path(directory)
    with files.os_errors("keep the id dictionary", home):
        home.mkdir(parents=True, exist_ok=True)
        lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with files.os_errors("lock the id dictionary", home):
            if not lock_file(lock, wait=False):
                raise SegmentError(f"{home}: another build is adding to this id dictionary; wait for it to end")
        builder = DictionaryBuilder(home)
        try:
            yield builder
        finally:
            builder.sweep()
    finally:
        os.close(lock)


class DictionaryBuilder:
    """Gives numbers to texts; they are saved by `commit`. Made by `keep`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._entries = list(_read_kept(home))
        self._opened = [open_file(entry, home / entry.file, verify=True) for entry in self._entries]
        self._committed = {entry.file for entry in self._entries}

    def numbers(self, groups: Sequence[Group], count: int) -> npt.NDArray[np.uint32]:
        """The number of each of `count` texts, in groups of one length; new texts get the next numbers."""
        found = np.empty(count, dtype=np.uint32)
        first = following = sum(file.count for file in self._opened)
        fresh: list[tuple[int, npt.NDArray[np.bytes_], npt.NDArray[np.uint32]]] = []
        for group in sorted(groups, key=lambda each: each.length_bytes):
            unique, back = np.unique(group.cells, return_inverse=True)
            numbers = Dictionary(self._opened).find(group._replace(cells=unique))
            new = np.flatnonzero(numbers < 0)
            numbers[new] = np.arange(following, following + new.size)
            if new.size:
                fresh.append((group.length_bytes, unique[new], (numbers[new] - first).astype(np.uint32)))
            following += new.size
            found[group.places] = numbers[back]
        if following > _MOST_TEXTS:
            raise SegmentError(f"{self._home}: more than {_MOST_TEXTS} texts; begin a new dictionary")
        if fresh:
            self._append(idfile.encode(first, fresh))
        return found

    def dictionary(self) -> Dictionary:
        """The dictionary so far, for look-ups and snapshots; it outlives the builder."""
        return Dictionary(self._opened, self._entries, [self._home / entry.file for entry in self._entries])

    def commit(self) -> None:
        """Save the numbers given so far."""
        kept = _Kept(format=_FORMAT, format_version=_FORMAT_VERSION, files=tuple(self._entries))
        with files.os_errors("keep the id dictionary", self._home):
            files.fsync_directory(self._home)
        files.write(self._home / _NAME, seal(kept))
        self._committed = {entry.file for entry in self._entries}

    def sweep(self) -> None:
        """Delete files that are not part of the saved dictionary: merged ones, and those of failed builds."""
        for path in self._home.glob(f"*{_SUFFIX}"):
            if path.name not in self._committed:
                with suppress(OSError):
                    path.unlink()

    def _append(self, data: memoryview) -> None:
        self._add(data)
        while len(self._opened) > 1:
            before, other = self._opened[-2:]
            if before.count > 2 * other.count or before.count + other.count > _FULL:
                return
            merged = idfile.merge(before, other)
            for entry in self._entries[-2:]:
                if entry.file not in self._committed:
                    (self._home / entry.file).unlink(missing_ok=True)
            del self._entries[-2:], self._opened[-2:]
            self._add(merged)

    def _add(self, data: memoryview) -> None:
        digest = hashlib.sha256(data).hexdigest()
        path = self._home / f"ids-{digest[:16]}{_SUFFIX}"
        with files.os_errors("keep the id dictionary", path):
            path.unlink(missing_ok=True)
            files.create(path, data)
        memory = files.map_file(path, len(data))
        opened = idfile.IdFile(memory, str(path))
        self._opened.append(opened)
        self._entries.append(
            DictionaryEntry(
                file=path.name, cardinality=opened.count, bytes=len(data), sha256=digest, first=opened.first
            )
        )


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file that never changes, or copy it if it cannot be linked; raises OSError."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())


def _read_kept(home: Path) -> tuple[DictionaryEntry, ...]:
    path = home / _NAME
    if not path.exists():
        return ()
    data = files.read(path, LARGEST_MANIFEST_BYTES)
    try:
        kept = msgspec.json.decode(data, type=_Kept)
    except (ValueError, RecursionError):
        kept = None
    if kept is None or kept.format != _FORMAT or not is_sealed(data):
        raise SegmentError(f"{path}: damaged; restore it from a copy")
    if kept.format_version != _FORMAT_VERSION:
        raise SegmentError(f"{path}: format version {kept.format_version}, and this capline reads {_FORMAT_VERSION}")
    return kept.files


def _checked(text: str) -> bytes:
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise SegmentError(f"id {text[:40]!r} is not text that UTF-8 can carry") from None
    if not 1 <= len(raw) <= idfile.LONGEST_TEXT_BYTES:
        raise SegmentError(f"an id is 1 to {idfile.LONGEST_TEXT_BYTES} bytes of UTF-8, not {len(raw)}")
    return raw
