"""An object store that also works in a forked process.

obstore runs its requests on threads of its own, which a forked child does not have: its first call would hang. So a
child of a process that has used obstore starts a proxy (`fork_proxy`), another process that makes the same calls.
Importing obstore, or opening a store, starts no threads.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from capline.segment.objects.bucket import BucketStore, runs_here
from capline.segment.objects.fork_proxy import ForkProxy
from capline.segment.objects.store import ObjectStore
from capline.support.override import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from capline.segment.objects.store import ObjectData, ObjectInfo

__all__ = ["RemoteStore"]


class RemoteStore(ObjectStore):
    """A bucket: called from this process, or by a proxy in a forked child. Arguments as in `open_objects`."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._address = (url, dict(options))
        self._direct = BucketStore(url, options)
        self._proxy: ForkProxy | None = None
        self.where = self._direct.where

    @override
    def get(self, path: str, most_bytes: int, unless: str | None = None) -> ObjectData | None:
        return self._usable().get(path, most_bytes, unless)

    @override
    def download(self, path: str, into: Path, size_bytes: int) -> str:
        return self._usable().download(path, into, size_bytes)

    @override
    def upload(self, path: str, file: Path, sha256: str, progress: Callable[[int], object] | None = None) -> None:
        """A proxy calls `progress` only at the end."""
        self._usable().upload(path, file, sha256, progress)

    @override
    def put(self, path: str, data: bytes) -> None:
        self._usable().put(path, data)

    @override
    def swap(self, path: str, data: bytes, tag: str | None) -> bool:
        return self._usable().swap(path, data, tag)

    @override
    def list(self, folder: str) -> dict[str, ObjectInfo]:
        return self._usable().list(folder)

    @override
    def delete(self, paths: Iterable[str]) -> None:
        self._usable().delete(paths)

    @override
    def close(self) -> None:
        """End the proxy, if there is one."""
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None

    def _usable(self) -> ObjectStore:
        if runs_here():
            return self._direct
        if self._proxy is None or self._proxy.owner != os.getpid() or not self._proxy.works:
            self.close()
            self._proxy = ForkProxy(*self._address)
        return self._proxy
