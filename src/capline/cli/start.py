"""Where the command begins: before anything large is imported, so that Ctrl-C is quiet from the first moment on."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; 130 on Ctrl-C, also while it is still being loaded."""
    try:
        from capline.cli.main import main as run  # noqa: PLC0415 - what takes a while is inside the `try`

        run()
    except KeyboardInterrupt:
        sys.exit(130)
