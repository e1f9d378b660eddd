"""A courier: a process that calls an object store for one that cannot, since it was forked after obstore had run.

    here     {"verb": "get", "path": "pointer.json", …}   one line of JSON to its standard input
    courier  {"data": "…", "tag": "…"}                    one line of JSON from its standard output

What is large goes through files, not through the pipe. The courier ends with the pipe: whoever started it may be killed
at any moment. It is started afresh (`python -m capline.segment.courier`), so it has none of this process's threads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal

import msgspec

from capline.model.errors import SegmentError
from capline.segment.place import Found, Got, ObjectMissingError, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Courier", "main"]

_Verb = Literal["get", "download", "upload", "put", "swap", "list", "delete"]


class _Asked(msgspec.Struct, omit_defaults=True):
    verb: _Verb
    path: str = ""
    most_bytes: int = 0
    tag: str | None = None
    file: str = ""
    data: bytes = b""
    paths: list[str] = []


class _Answered(msgspec.Struct, omit_defaults=True):
    error: str | None = None
    missing: bool = False
    got: Got | None = None
    text: str = ""
    truth: bool = False
    found: dict[str, Found] = {}


class Courier:
    """The calls of a place, made by another process, one at a time; `owner` is the process that may use this object."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.owner = os.getpid()
        self.where = url.rstrip("/")
        self.works = True
        self._lock = Lock()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "capline.segment.courier"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            self._send(msgspec.json.encode((url, dict(options))))
        except OSError as error:
            raise SegmentError(self._gone(str(error))) from None

    def get(self, path: str, most_bytes: int, unless: str | None = None) -> Got | None:
        """See `Place`."""
        return self._ask(_Asked("get", path, most_bytes, unless)).got

    def download(self, path: str, into: Path, size_bytes: int) -> str:
        """See `Place`."""
        return self._ask(_Asked("download", path, size_bytes, file=str(into.absolute()))).text

    def upload(self, path: str, file: Path, progress: Callable[[int], object] | None = None) -> str:
        """See `Place`."""
        sent = self._ask(_Asked("upload", path, file=str(file.absolute()))).text
        if progress is not None:
            progress(file.stat().st_size)
        return sent

    def put(self, path: str, data: bytes) -> None:
        """See `Place`."""
        self._ask(_Asked("put", path, data=data))

    def swap(self, path: str, data: bytes, tag: str | None) -> bool:
        """See `Place`."""
        return self._ask(_Asked("swap", path, tag=tag, data=data)).truth

    def list(self, folder: str) -> dict[str, Found]:
        """See `Place`."""
        return self._ask(_Asked("list", folder)).found

    def delete(self, paths: Iterable[str]) -> None:
        """See `Place`."""
        self._ask(_Asked("delete", paths=[*paths]))

    def close(self) -> None:
        """End it, in the middle of a call if need be."""
        if self.owner == os.getpid():
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    # What a dead one was still to be told is lost with it.
                    with suppress(OSError):
                        pipe.close()

    def _ask(self, asked: _Asked) -> _Answered:
        with self._lock:
            try:
                self._send(msgspec.json.encode(asked))
                line = self._process.stdout.readline() if self._process.stdout is not None else b""
                if not line.endswith(b"\n"):
                    raise SegmentError(self._gone("it ended"))
                answered = msgspec.json.decode(line, type=_Answered)
            except (OSError, ValueError) as error:
                if isinstance(error, SegmentError):
                    raise
                raise SegmentError(self._gone(str(error))) from None
        if answered.error is not None:
            raise (ObjectMissingError if answered.missing else SegmentError)(answered.error)
        return answered

    def _send(self, line: bytes) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def _gone(self, why: str) -> str:
        self.works = False
        return (
            f"{self.where}: the process that fetches for this forked one does not work ({why}); "
            "open the place after the fork, and not before it"
        )


def main() -> None:
    """Answer the lines of standard input until it ends."""
    from capline.segment.remote import ObjectPlace  # noqa: PLC0415 - it imports this module

    lines = sys.stdin.buffer
    address = msgspec.json.decode(lines.readline(), type=tuple[str, dict[str, str]])
    place: ObjectPlace | None = None
    for line in lines:
        try:
            place = ObjectPlace(*address) if place is None else place
            answered = _answer(place, msgspec.json.decode(line, type=_Asked))
        except SegmentError as error:
            answered = _Answered(str(error), isinstance(error, ObjectMissingError))
        sys.stdout.buffer.write(msgspec.json.encode(answered) + b"\n")
        sys.stdout.buffer.flush()


def _answer(place: Place, asked: _Asked) -> _Answered:
    match asked.verb:
        case "get":
            return _Answered(got=place.get(asked.path, asked.most_bytes, asked.tag))
        case "download":
            return _Answered(text=place.download(asked.path, Path(asked.file), asked.most_bytes))
        case "upload":
            return _Answered(text=place.upload(asked.path, Path(asked.file)))
        case "put":
            place.put(asked.path, asked.data)
        case "swap":
            return _Answered(truth=place.swap(asked.path, asked.data, asked.tag))
        case "list":
            return _Answered(found=place.list(asked.path))
        case "delete":
            place.delete(asked.paths)
    return _Answered()


if __name__ == "__main__":
    main()
