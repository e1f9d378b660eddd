"""A process that calls an object store for a forked one, in which obstore cannot run.

    here     {"verb": "get", "path": "pointer.json", …}   one line of JSON to its standard input
    proxy    {"data": "…", "tag": "…"}                    one line of JSON from its standard output

Large objects go through files, not through the pipe. The proxy ends with the pipe, since its parent may be killed at
any moment. It is a new interpreter (`python -m capline.segment.objects.fork_worker`) without the parent's threads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Literal

import msgspec

from capline.model.errors import SegmentError
from capline.segment.objects.store import ObjectData, ObjectInfo, ObjectMissingError, ObjectStore
from capline.support.override import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

__all__ = ["ForkProxy", "ProxyCall", "ProxyReply"]

_Verb = Literal["get", "download", "upload", "put", "swap", "list", "delete"]


class ProxyCall(msgspec.Struct, omit_defaults=True):
    """A call, as sent through the pipe."""

    verb: _Verb
    path: str = ""
    most_bytes: int = 0
    tag: str | None = None
    file: str = ""
    sha256: str = ""
    data: bytes = b""
    paths: list[str] = []


class ProxyReply(msgspec.Struct, omit_defaults=True):
    """The result of a call, as sent back."""

    error: str | None = None
    missing: bool = False
    got: ObjectData | None = None
    text: str = ""
    truth: bool = False
    found: dict[str, ObjectInfo] = {}


class ForkProxy(ObjectStore):
    """An `ObjectStore` whose calls another process makes, one at a time; only the process `owner` may use it."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.owner = os.getpid()
        self.where = url.rstrip("/")
        self.works = True
        self._lock = Lock()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "capline.segment.objects.fork_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            self._send(msgspec.json.encode((url, dict(options))))
        except OSError as error:
            raise SegmentError(self._gone(str(error))) from None

    @override
    def get(self, path: str, most_bytes: int, unless: str | None = None) -> ObjectData | None:
        return self._ask(ProxyCall("get", path, most_bytes, unless)).got

    @override
    def download(self, path: str, into: Path, size_bytes: int) -> str:
        return self._ask(ProxyCall("download", path, size_bytes, file=str(into.absolute()))).text

    @override
    def upload(self, path: str, file: Path, sha256: str, progress: Callable[[int], object] | None = None) -> None:
        self._ask(ProxyCall("upload", path, file=str(file.absolute()), sha256=sha256))
        if progress is not None:
            progress(file.stat().st_size)

    @override
    def put(self, path: str, data: bytes) -> None:
        self._ask(ProxyCall("put", path, data=data))

    @override
    def swap(self, path: str, data: bytes, tag: str | None) -> bool:
        return self._ask(ProxyCall("swap", path, tag=tag, data=data)).truth

    @override
    def list(self, folder: str) -> dict[str, ObjectInfo]:
        return self._ask(ProxyCall("list", folder)).found

    @override
    def delete(self, paths: Iterable[str]) -> None:
        self._ask(ProxyCall("delete", paths=[*paths]))

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

    def _ask(self, asked: ProxyCall) -> ProxyReply:
        with self._lock:
            if not self.works:
                raise SegmentError(self._gone("a call to it broke off"))
            try:
                answered = self._exchange(asked)
            except BaseException as error:
                # Also after Ctrl-C: the answer to this call would be read as that to the next one.
                self.works = False
                if isinstance(error, (OSError, EOFError, ValueError)):
                    raise SegmentError(self._gone(str(error))) from None
                raise
        if answered.error is not None:
            raise (ObjectMissingError if answered.missing else SegmentError)(answered.error)
        return answered

    def _exchange(self, asked: ProxyCall) -> ProxyReply:
        self._send(msgspec.json.encode(asked))
        line = self._process.stdout.readline() if self._process.stdout is not None else b""
        if not line.endswith(b"\n"):
            raise EOFError("it ended")
        return msgspec.json.decode(line, type=ProxyReply)

    def _send(self, line: bytes) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def _gone(self, why: str) -> str:
        return (
            f"{self.where}: the process that fetches for this forked one does not work ({why}); "
            "open the store after the fork, not before it"
        )
