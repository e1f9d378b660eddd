"""Verify a snapshot in a process of its own: `python -m capline.segment.snapshot.verify DIRECTORY`.

Exits 0 where it is whole, 2 with one line where it is not. The threads of the calling process go on meanwhile, and a
decoder that crashes ends only this process.
"""

from __future__ import annotations

import os
import sys

from capline.model.errors import SegmentError

REFUSED = 2


def main() -> None:
    """Verify the directory that is named on the command line."""
    from capline.segment.snapshot.load import load_snapshot  # noqa: PLC0415 - `cache` imports this module for its path alone

    if sys.platform != "win32":
        os.nice(5)  # serving processes come first
    try:
        load_snapshot(sys.argv[1], trust="stamp")
    except SegmentError as error:
        sys.exit(_refuse(str(error)))


def _refuse(line: str) -> int:
    sys.stderr.write(line + "\n")
    return REFUSED


if __name__ == "__main__":
    main()
