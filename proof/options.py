"""The command line of the programs in `proof/` and `bench/`: `--help` ends with an example, an error is one line."""

from __future__ import annotations

import argparse
from typing import NoReturn

__all__ = ["Options", "count"]


class Options(argparse.ArgumentParser):
    """`program` is what a person types, `about` says what it does, `example` are options to try."""

    def __init__(self, program: str, about: str, example: str) -> None:
        super().__init__(
            prog=program,
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=f"example: {program} {example}".rstrip(),
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Exit 2, with one line that says what is wrong."""
        self.exit(2, f"{self.prog}: {message}; --help lists the options\n")


def count(text: str) -> int:
    """The type of an option that is a whole number above 0."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
