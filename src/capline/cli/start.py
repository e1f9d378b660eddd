"""The entry point of the command. It imports nothing large first, so that an early Ctrl-C prints no traceback."""

from __future__ import annotations

import sys

_MISSING = {
    "numpy": 'this command needs numpy: pip install "capline[batch]"',
}


def main() -> None:
    """Run the command line; exits 130 on Ctrl-C, also while it is loading."""
    try:
        from capline.cli.main import main as run  # noqa: PLC0415 - the slow import is inside the `try`

        run()
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        why = _MISSING.get(error.name or "")
        if why is None:
            raise
        sys.stderr.write(f"capline: {why}\n")
        sys.exit(2)
