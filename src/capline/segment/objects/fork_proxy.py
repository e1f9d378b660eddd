"""An object store that also works in a forked process: there another process calls it.

obstore runs its requests on threads of its own, which a forked child does not have: its first call would hang. So a
child of a process that has used obstore starts a proxy, which makes the same calls. Importing obstore, or opening a
store, starts no threads.

    here     ("get", ("pointer.json", …))    a verb and its arguments, pickled, to its standard input
    proxy    ObjectData(…)                   the answer, or the `SegmentError`, from its standard output

Large objects go through files, not through the pipe. The proxy ends with the pipe, since its parent may be killed at
any moment. It is a new interpreter (`python -m capline.segment.objects.fork_proxy`) without the parent's threads.
"""

# ruff: noqa: S301 - both ends of the pipe are this program

import os
import pickle  # nosec B403
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from capline.model.errors import SegmentError
from capline.segment.objects.bucket import BucketStore, runs_here
from capline.segment.objects.store import ObjectData, ObjectInfo, ObjectStore
from capline.support.override import override


class ForwardingStore(ObjectStore):
    """An object store whose verbs are calls of another store."""

    @abstractmethod
    def _call(self, verb: str, *arguments: object) -> Any:
        """Call this verb of the other store."""

    @override
    def get(self, path: str, most_bytes: int, unless: str | None = None) -> ObjectData | None:
        return self._call("get", path, most_bytes, unless)

    @override
    def download(self, path: str, into: Path, size_bytes: int) -> str:
        return self._call("download", path, into, size_bytes)

    @override
    def upload(self, path: str, file: Path, sha256: str, progress: Callable[[int], object] | None = None) -> None:
        self._call("upload", path, file, sha256, progress)

    @override
    def put(self, path: str, data: bytes) -> None:
        self._call("put", path, data)

    @override
    def swap(self, path: str, data: bytes, tag: str | None) -> bool:
        return self._call("swap", path, data, tag)

    @override
    def list(self, folder: str) -> dict[str, ObjectInfo]:
        return self._call("list", folder)

    @override
    def delete(self, paths: Iterable[str]) -> None:
        self._call("delete", [*paths])


class ForkProxy(ForwardingStore):
    """An `ObjectStore` whose calls another process makes, one at a time; only the process `owner` may use it."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.owner = os.getpid()
        self.where = url.rstrip("/")
        self.works = True
        self._lock = Lock()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "capline.segment.objects.fork_proxy"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            self._send((url, dict(options)))
        except OSError as error:
            raise SegmentError(self._gone(str(error))) from None

    @override
    def upload(self, path: str, file: Path, sha256: str, progress: Callable[[int], object] | None = None) -> None:
        """A function does not go through a pipe: `progress` is called at the end."""
        super().upload(path, file, sha256)
        if progress is not None:
            progress(file.stat().st_size)

    @override
    def close(self) -> None:
        """Kill the process, even during a call."""
        if self.owner == os.getpid():
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    # The unsent bytes of a call to a dead process are lost.
                    with suppress(OSError):
                        pipe.close()

    @override
    def _call(self, verb: str, *arguments: object) -> Any:
        with self._lock:
            if not self.works:
                raise SegmentError(self._gone("a call to it broke off"))
            try:
                # The two processes may come to have different working directories.
                self._send((verb, [each.absolute() if isinstance(each, Path) else each for each in arguments]))
                answer = pickle.load(self._process.stdout) if self._process.stdout is not None else None  # nosec B301
            except BaseException as error:
                # Also after Ctrl-C: the answer to this call would be read as that to the next one.
                self.works = False
                if isinstance(error, (OSError, EOFError, ValueError, pickle.UnpicklingError)):
                    raise SegmentError(self._gone(str(error))) from None
                raise
        if isinstance(answer, SegmentError):
            raise answer
        return answer

    def _send(self, message: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(pickle.dumps(message))
            self._process.stdin.flush()

    def _gone(self, why: str) -> str:
        return (
            f"{self.where}: the process that fetches for this forked one does not work ({why}); "
            "open the store after the fork, not before it"
        )


class RemoteStore(ForwardingStore):
    """A bucket: called from this process, or by a proxy in a forked child. Arguments as in `open_objects`."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._address = (url, dict(options))
        self._bucket = BucketStore(url, options)
        self._proxy: ForkProxy | None = None
        self.where = self._bucket.where

    @override
    def _call(self, verb: str, *arguments: object) -> Any:
        if runs_here():
            return getattr(self._bucket, verb)(*arguments)
        if self._proxy is None or self._proxy.owner != os.getpid() or not self._proxy.works:
            self.close()
            self._proxy = ForkProxy(*self._address)
        return getattr(self._proxy, verb)(*arguments)

    @override
    def close(self) -> None:
        """End the proxy, if there is one."""
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None


def _main() -> None:
    """Be the proxy: make the calls that come through standard input until it ends."""
    calls, store = sys.stdin.buffer, None
    url, options = pickle.load(calls)  # nosec B301
    with suppress(EOFError):
        while True:
            verb, arguments = pickle.load(calls)  # nosec B301
            try:
                store = BucketStore(url, options) if store is None else store
                answer = getattr(store, verb)(*arguments)
            except SegmentError as error:
                answer = error
            sys.stdout.buffer.write(pickle.dumps(answer))
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()
