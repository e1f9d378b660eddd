"""`python -m proof.flips [--flips N]`: exit 1 where a flip made a wrong answer that nobody can find."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from proof.flips.trials import flips

CONTROL_FLIPS = 200


def main() -> int:
    """Run all; each in a directory of its own."""
    parser = argparse.ArgumentParser(prog="proof.flips", description="One bit flipped in the embedded store's file.")
    parser.add_argument("--flips", type=int, default=2000, help="how many")
    parser.add_argument("--seed", type=int, default=time.time_ns(), help="which bits")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="capline-proof-") as name:
        for what, count, checksums in (
            ("one bit flipped", options.flips, True),
            ("control: values without checksums", CONTROL_FLIPS, False),
        ):
            begun, directory = time.monotonic(), Path(name) / what.split(":", maxsplit=1)[0].replace(" ", "-")
            directory.mkdir()
            outcome = flips(directory, count, options.seed, checksums=checksums)
            held = bool(outcome)
            wrong += held != checksums
            print(f"{what}: {'as promised' if held else 'found'}; {time.monotonic() - begun:.0f} s", flush=True)
            print(outcome.text(), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
