"""Standard output whose faults are one line: a full disk, a closed pipe, none at all."""

import io
import os
import sys
from typing import Any, TextIO

from capline.model.errors import CaplineError
from capline.support.override import override


class _Output(io.FileIO):
    @override
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            # What is still in the buffers is written here at exit, and must not fail once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            why = (error.strerror or str(error)).lower()
            raise CaplineError(
                f"the answer cannot be written ({why}); what the command consumed or changed stays so"
            ) from None


def output() -> TextIO:
    """Standard output, or, where it is closed, one that takes nothing."""
    stream: TextIO | None = sys.__stdout__
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(_Output(os.open(os.devnull, os.O_RDONLY), "wb", closefd=False)))
    raw = _Output(stream.fileno(), "wb", closefd=False)
    lines = stream.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=lines)
