"""Reading CSV by Arrow, whose thread outlives its reader: the end waits until it holds nothing of the interpreter's."""

import io
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from capline.model.errors import SegmentError
from capline.segment.build.inputs import RemoteFile
from capline.segment.build.source import read_audience
from capline.segment.build.table import read_columns

ENDINGS = {
    "nobody": ("id\n", "an empty audience"),
    "a bad row": ("id\n1\n2,3\n4\n", "row 2: 2 values"),
    "a bad id": ("id\n1\nx\n", "row 2: id 'x'"),
    "all": ("id\n1\n1\n", "more than once"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_waits_until_arrow_has_let_go(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, says = ENDINGS[ending]
    path = tmp_path / "users.csv"
    path.write_text(text)
    held: list[Any] = []
    made = import_module("pyarrow.csv").ParseOptions

    def held_a_moment_longer(**options: Any) -> Any:
        held.append(options["invalid_row_handler"])
        threading.Timer(0.1, held.clear).start()
        return made(**options)

    monkeypatch.setattr("pyarrow.csv.ParseOptions", held_a_moment_longer)
    with pytest.raises(SegmentError, match=says):
        read_audience(path)
    assert held == []


class Endless(io.RawIOBase):
    """A file of one byte, over and over, that counts what was read of it."""

    def __init__(self, byte: bytes) -> None:
        self.byte, self.read_bytes = byte, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self.read_bytes += len(buffer)
        if self.read_bytes > 64 << 20:
            raise MemoryError("more than any header")
        buffer[:] = self.byte * len(buffer)
        return len(buffer)


@pytest.mark.parametrize("byte", [b"x", b",", b'"'])
def test_a_header_without_an_end_is_refused_after_a_million_characters(
    byte: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = Endless(byte)
    monkeypatch.setattr("capline.segment.build.inputs.open_input", Mock(return_value=io.BufferedReader(endless)))
    with (
        pytest.raises(SegmentError, match="cannot be read: a header of more than 1,048,576 characters; it is damaged"),
        read_columns(RemoteFile("s3://b/x.csv"), ("id",)) as rows,
    ):
        next(rows)
    assert endless.read_bytes < 4 << 20


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
    """Of 80, on a busy machine, six would be aborted if closing did not wait."""
    path = tmp_path / "users.csv"
    path.write_text("id\n")
    words = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAMS, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert (done.stdout, done.stderr, done.returncode) == ("{2}\n", "", 0)
