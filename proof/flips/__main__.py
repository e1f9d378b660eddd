"""`python -m proof.flips [--flips N]`: exit 1 where a flip made a wrong answer that nobody can find."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from proof.flips.trials import flips
from proof.options import Options, count

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTROL_FLIPS = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; each in a directory of its own."""
    parser = Options("python -m proof.flips", "Flip one bit after another in the embedded store's file.", "--flips 100")
    parser.add_argument("--flips", type=count, default=2000, metavar="N", help="how many (2000)")
    parser.add_argument("--seed", type=int, default=time.time_ns(), metavar="N", help="which bits (others each time)")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}")
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="capline-proof-") as name:
        for what, bits, checksums in (
            ("one bit flipped", options.flips, True),
            ("control: values without checksums", CONTROL_FLIPS, False),
        ):
            begun, directory = time.monotonic(), Path(name) / what.split(":", maxsplit=1)[0].replace(" ", "-")
            directory.mkdir()
            outcome = flips(directory, bits, options.seed, checksums=checksums)
            held = bool(outcome)
            wrong += held != checksums
            print(f"{what}: {'as promised' if held else 'found'}; {time.monotonic() - begun:.0f} s", flush=True)
            print(outcome.text(), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
