"""One process that opens the store and is killed meanwhile: before the n-th line of code that handles its files.

So over all n there is a kill at every line of the opening. A process that comes to the end writes how many there were.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import capline.store
from capline import Limiter
from proof.crashes.writer import policies

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["open_until"]

FILES = str(Path(capline.store.__file__).with_name("local") / "lmdb")


def open_until(url: str, line: int, lines: Path) -> None:
    """Open the store and close it; SIGKILL before that line of `store.local.lmdb`, or the count in that file."""
    left = line

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(FILES) or frame.f_code.co_filename.endswith("store.py"):
            return None
        left -= event == "line"
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return count

    sys.settrace(count)
    Limiter(url, policies()).close()
    sys.settrace(None)
    lines.write_text(str(line - left), encoding="ascii")
