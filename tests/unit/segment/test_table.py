"""Reading CSV: a header without an end, and programs that end as soon as they have read."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from capline.model.errors import SegmentError
from capline.segment.build.inputs import RemoteFile
from capline.segment.build.table import read_columns


class Endless(io.RawIOBase):
    """A file of one byte, over and over, that counts what was read of it."""

    def __init__(self, byte: bytes) -> None:
        self.byte, self.read_bytes = byte, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self.read_bytes += len(buffer)
        if self.read_bytes > 96 << 20:
            raise MemoryError("more than any line")
        buffer[:] = self.byte * len(buffer)
        return len(buffer)


@pytest.mark.parametrize("byte", [b"x", b",", b'"'])
def test_a_header_without_an_end_is_refused(byte: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Endless(byte)
    monkeypatch.setattr("capline.segment.build.inputs.open_input", Mock(return_value=io.BufferedReader(endless)))
    with (
        pytest.raises(SegmentError, match="a line of more than 64 MB; is it a CSV file"),
        read_columns(RemoteFile("s3://b/x.csv"), ("id",)) as rows,
    ):
        next(rows)


PROGRAMS = """
import os, sys
from pathlib import Path
from capline import CaplineError
import capline.segment.build.table  # that no child loads Arrow
from capline.segment.build.source import read_audience

codes = set()
for _ in range(80):
    if (child := os.fork()) == 0:
        try:
            read_audience(Path(sys.argv[1]))
        except CaplineError:
            sys.exit(2)
    codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(codes)
"""


@pytest.mark.deep
def test_no_program_is_aborted_that_ends_at_once(tmp_path: Path) -> None:
    """Of 80, on a busy machine, six were aborted while a thread of Arrow's still held objects of Python's."""
    path = tmp_path / "users.csv"
    path.write_text("id\n")
    words = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAMS, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert (done.stdout, done.stderr, done.returncode) == ("{2}\n", "", 0)
