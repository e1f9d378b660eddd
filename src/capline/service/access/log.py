"""The access log: a JSON line for a sample of the requests, and for every one that failed here (5xx).

    {"at":"2026-11-22T16:00:00.000Z","method":"GET","route":"/v1/subjects/{subject}","status":200,"ms":0.41,"bytes":512,
     "who":"billing","client":"10.0.0.7"}

The rule: no body, no query, no secret. The path, which may name a subject, is only there with `subjects`. A line that
cannot be written is dropped.
"""

from __future__ import annotations

import os
import random
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from capline.model.errors import InvalidValueError
from capline.support.instant import instant_text

if TYPE_CHECKING:
    from capline.service.http.app import Request
    from capline.service.settings.values import Observers

_FAILED = 500


class AccessLog:
    """Writes the lines; `access_log` is a path, or "-" for standard error."""

    def __init__(self, asked: Observers) -> None:
        self._sample, self._subjects = asked.access_sample, asked.subjects
        self._path = asked.access_log or "-"
        self._file = self._opened()

    def answered(self, request: Request, status: int, size_bytes: int, seconds: float) -> None:
        """See `Observer`."""
        if self._sample < 1 and status < _FAILED and random.random() >= self._sample:  # noqa: S311 - a sample
            return
        line: dict[str, object] = {
            "at": instant_text(time.time_ns() // 1000, "milliseconds"),
            "method": request.method,
            "route": request.route,
            "status": status,
            "ms": round(seconds * 1000, 3),
            "bytes": size_bytes,
            "who": request.who,
            "client": request.client,
        }
        if self._subjects:
            line["path"] = request.path.decode("latin-1")
        with suppress(OSError, ValueError):
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()

    def reopen(self) -> bool:
        """Open the file again if it was moved away; returns whether it was."""
        if self._path == "-":
            return False
        with suppress(OSError):
            if os.fstat(self._file.fileno()).st_ino == os.stat(self._path).st_ino:  # noqa: PTH116 - as fstat
                return False
        before, self._file = self._file, self._opened()
        before.close()
        return True

    def close(self) -> None:
        """Close the file."""
        if self._path != "-":
            self._file.close()

    def _opened(self) -> BinaryIO:
        if self._path == "-":
            return sys.stderr.buffer
        try:
            return open(self._path, "ab")  # noqa: PTH123 - kept open
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise InvalidValueError(f"observers.access_log: {self._path}: {reason}") from None
