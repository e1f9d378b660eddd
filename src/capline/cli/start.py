"""The entry point of the command. It imports nothing large first, so that an early Ctrl-C prints no traceback."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exits 130 on Ctrl-C, also while it is loading."""
    try:
        from capline.cli.main import main as run  # noqa: PLC0415 - the slow import is inside the `try`

        run()
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name != "fcntl":
            raise
        sys.stderr.write("capline: the commands need the file locks of Linux or macOS; on Windows type them in WSL\n")
        sys.exit(2)
