"""A host's cache of published snapshots: each is fetched and verified once, for all processes.

    CACHE/
    ├── <SHA-256 of a manifest>/          a snapshot's directory, as `load_snapshot` reads it: whole and verified
    ├── .<SHA-256>.<random>.part/         one that is being fetched; after a kill it is swept later
    ├── .last-<hash of the address>       the last snapshot that was served from an address
    └── .lock                             held by the process that fetches

The rule: a directory gets its name by a rename, after all its files were checked and the snapshot was loaded once. So a
process that finds the name needs no network, and never sees half of a snapshot. The lock only avoids duplicate work:
a process that cannot get it in two minutes fetches too, and one of the two renames wins.

Files of earlier snapshots are linked instead of fetched. Snapshots that were not used for ten minutes are deleted,
except the newest two; a process that has one open can still use it.
"""

import hashlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from capline.model.errors import SegmentError
from capline.segment import files
from capline.segment.dictionary.dictionary import link_or_copy
from capline.segment.manifest import LARGEST_MANIFEST_BYTES, MANIFEST, Manifest, decode_manifest, read_manifest
from capline.segment.objects.store import ObjectStore
from capline.segment.publish.fetch import download, read_manifest_of
from capline.segment.publish.pointer import Published
from capline.segment.snapshot.load import REFUSED, load_snapshot
from capline.segment.snapshot.snapshot import Snapshot
from capline.support.system import lock_file

_NAME = re.compile(r"[0-9a-f]{64}", re.ASCII)
_PATIENCE_S = 120.0
_PAUSE_S = 0.05
_UNUSED_S = 600.0
_ABANDONED_S = 3600.0
_NEWEST = 2
_LARGEST_LAST_BYTES = 4096
_LARGE_BYTES = 8 << 20


class Bounds(msgspec.Struct, frozen=True):
    """Bounds of a snapshot; one beyond them is refused, and the last good one stays.

    `least_ids` is for all segments together: 1 refuses an empty snapshot. `least_ids_of` is by segment; a segment that
    is named there must exist.
    """

    most_bytes: int = 4 << 30
    most_ids: int = 1 << 33
    least_ids: int = 1
    least_ids_of: dict[str, int] = {}

    def check_version(self, version: Published, where: str) -> None:
        """Check the pointer's figures, before anything is fetched."""
        if version.bytes > self.most_bytes:
            raise SegmentError(
                f"{where}: version {version.version!r} has {version.bytes:,} bytes, and at most {self.most_bytes:,} "
                "are taken; raise the bound, or publish a smaller one"
            )

    def check_manifest(self, manifest: Manifest, where: str) -> None:
        """Check the manifest's figures, before any of its files is fetched."""
        size_bytes = sum(each.bytes for each in manifest.files())
        cardinalities = {each.name: each.cardinality for each in manifest.segments}
        ids = sum(cardinalities.values())
        if size_bytes > self.most_bytes:
            raise SegmentError(f"{where}: {size_bytes:,} bytes, and at most {self.most_bytes:,} are taken")
        if not self.least_ids <= ids <= self.most_ids:
            raise SegmentError(
                f"{where}: {ids:,} ids in all, where {self.least_ids:,} to {self.most_ids:,} are taken; "
                "was it built from all rows?"
            )
        for name, least in self.least_ids_of.items():
            if cardinalities.get(name, -1) < least:
                has = f"{cardinalities[name]:,} ids" if name in cardinalities else "no such segment"
                raise SegmentError(f"{where}: segment {name!r}: {has}, where {least:,} or more must be")


class Last(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The snapshot that was last served from an address, for a start while the address cannot be reached."""

    manifest: str
    version: str
    sequence: int


class Cache:
    """The cache in this directory, which all processes of a host share; each thread needs a `Cache` of its own."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._held: int | None = None

    def open(self, objects: ObjectStore, version: Published, bounds: Bounds, stopped: Callable[[], bool]) -> Snapshot:
        """Open the version, and fetch it first if it is not here; `SegmentError` unless all of it is good."""
        bounds.check_version(version, objects.where)
        final = self.path / version.manifest
        with files.os_errors("use it as a cache", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            if not final.exists():
                with self._turn(final, stopped):
                    if not final.exists():
                        return self._fetch(objects, version, bounds, final, stopped)
        return self._load(final, bounds, version.version)

    def open_last(self, address: str, bounds: Bounds) -> tuple[Snapshot, Last] | None:
        """Open what was last served from this address, if it is still here and good."""
        try:
            data = files.read(self._last(address), _LARGEST_LAST_BYTES)
            last = msgspec.json.decode(data, type=Last)
            if _NAME.fullmatch(last.manifest):
                return self._load(self.path / last.manifest, bounds, last.version), last
        except (SegmentError, ValueError):
            pass
        return None

    def remember(self, address: str, version: Published, sequence: int) -> None:
        """Note what is served from this address; errors are ignored, like a full disk."""
        last = Last(version.manifest, version.version, sequence)
        with suppress(SegmentError):
            files.write(self._last(address), msgspec.json.encode(last))

    def touch(self, manifest: str) -> None:
        """Mark this snapshot as in use, so that it is not swept."""
        with suppress(OSError):
            os.utime(self.path / manifest)

    def sweep(self) -> None:
        """Delete unused snapshots, except the newest two, and what killed processes left."""
        now = time.time()
        with suppress(OSError):
            ages: list[tuple[float, Path]] = []
            for path in self.path.iterdir():
                with suppress(OSError):
                    age = now - path.stat().st_mtime
                    if _NAME.fullmatch(path.name):
                        ages.append((age, path))
                    elif path.name.endswith((".part", ".gone")) and age > _ABANDONED_S:
                        shutil.rmtree(path, ignore_errors=True)
            for age, path in sorted(ages)[_NEWEST:]:
                if age > _UNUSED_S:
                    self._discard(path)

    def after_fork(self) -> None:
        """In a forked child, close the parent's lock, which the child would otherwise hold too."""
        if self._held is not None:
            with suppress(OSError):
                os.close(self._held)
            self._held = None

    # ---- fetching ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self, final: Path, stopped: Callable[[], bool]) -> Generator[None]:
        """Wait until this process has the lock, or another one has fetched; at most two minutes."""
        handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        self._held = handle
        deadline = time.monotonic() + _PATIENCE_S
        try:
            while not final.exists() and time.monotonic() < deadline:
                if lock_file(handle, wait=False):
                    break
                _go_on(stopped)
                time.sleep(_PAUSE_S)
            yield
        finally:
            if self._held == handle:
                self._held = None
                os.close(handle)

    def _fetch(
        self, objects: ObjectStore, version: Published, bounds: Bounds, final: Path, stopped: Callable[[], bool]
    ) -> Snapshot:
        data, manifest = read_manifest_of(objects, version)
        bounds.check_manifest(manifest, f"{objects.where}/{version.manifest_path}")
        part = final.with_name(f".{final.name}.{secrets.token_hex(6)}.part")
        have = self._have()
        part.mkdir()
        try:
            for each in manifest.files():
                _go_on(stopped)
                source = have.get((each.sha256, each.bytes))
                if source is None or not _link(source, part / each.file, each.sha256):
                    download(objects, version, each.sha256, each.bytes, part / each.file)
            files.create(part / MANIFEST, data)
            files.fsync_directory(part)
            # Verified before it gets its name.
            snapshot = _verified(part, sum(each.bytes for each in manifest.files()), stopped)
            _go_on(stopped)
            with suppress(OSError):  # of two that fetched it, the second finds the name taken
                part.rename(final)
            if not final.exists():
                raise SegmentError(f"{final}: cannot be made; is something else of that name there?")
            files.fsync_directory(self.path)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return snapshot

    def _have(self) -> dict[tuple[str, int], Path]:
        """The files of all snapshots here, by hash and size."""
        have: dict[tuple[str, int], Path] = {}
        for path in self.path.iterdir():
            if _NAME.fullmatch(path.name):
                with suppress(SegmentError):
                    have |= {(each.sha256, each.bytes): path / each.file for each in read_manifest(path).files()}
        return have

    def _load(self, final: Path, bounds: Bounds, version: str) -> Snapshot:
        """Open a cached snapshot; a damaged one, or one that lacks a file, is deleted, to be fetched again."""
        try:
            manifest = _manifest_of(final, version)
            snapshot = load_snapshot(final, trust="stamp")
        except SegmentError as error:
            # Nothing is wrong with it where the system cannot read it, as when it is out of handles.
            why = error.__cause__
            if not isinstance(why, OSError) or isinstance(why, FileNotFoundError):
                self._discard(final)
            raise
        bounds.check_manifest(manifest, str(final))
        self.touch(final.name)
        return snapshot

    def _discard(self, path: Path) -> None:
        """Rename the directory, then delete it, so that nobody sees half of it."""
        gone = path.with_name(f".{path.name}.{secrets.token_hex(6)}.gone")
        with suppress(OSError):
            path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def _last(self, address: str) -> Path:
        return self.path / f".last-{hashlib.sha256(address.encode()).hexdigest()[:32]}"


def _manifest_of(final: Path, version: str) -> Manifest:
    """Read the manifest in a directory, if it is the one that the directory is named after."""
    data = files.read(final / MANIFEST, LARGEST_MANIFEST_BYTES)
    if hashlib.sha256(data).hexdigest() != final.name:
        raise SegmentError(f"{final}: not the manifest of version {version!r}; it was changed here")
    return decode_manifest(data, str(final / MANIFEST))


def _verified(path: Path, size_bytes: int, stopped: Callable[[], bool]) -> Snapshot:
    """Verify all of a snapshot and open it.

    Decoding large bitmaps blocks all threads of a process. So another process (`capline.segment.snapshot.load`)
    verifies a large snapshot first; its stamp makes opening it here quick.
    """
    if size_bytes >= _LARGE_BYTES and Path(sys.executable).name.startswith(("python", "pypy")):
        _verify_in_process(path, stopped)
    return load_snapshot(path, trust="stamp")


def _verify_in_process(path: Path, stopped: Callable[[], bool]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "capline.segment.snapshot.load", str(path)]
    with subprocess.Popen(  # noqa: S603 - our own module
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as verifier:
        while True:
            try:
                _, errors = verifier.communicate(timeout=_PAUSE_S * 4)
                break
            except subprocess.TimeoutExpired:
                if stopped():
                    verifier.kill()
    _go_on(stopped)
    if verifier.returncode:
        last = errors.decode(errors="replace").strip().split("\n")[-1][:1000]
        raise SegmentError(last if verifier.returncode == REFUSED else f"{path}: not verified: {last or 'killed'}")


def _go_on(stopped: Callable[[], bool]) -> None:
    if stopped():
        raise SegmentError("stopped")


def _link(source: Path, target: Path, sha256: str) -> bool:
    """Link or copy the file of an earlier snapshot, if it is unchanged; returns whether it was."""
    try:
        with source.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                return False
        link_or_copy(source, target)
    except OSError:
        return False
    return True
