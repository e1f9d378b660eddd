"""The entry point of the command. It imports nothing large first, so that an early Ctrl-C prints no traceback."""

import sys


def main() -> None:
    """Run the command line; exits 130 on Ctrl-C, also while it is loading."""
    try:
        from capline.cli.main import main as run  # noqa: PLC0415 - the slow import is inside the `try`

        run()
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        sys.stderr.write('capline: this command needs numpy: pip install "capline[batch]"\n')
        sys.exit(2)
