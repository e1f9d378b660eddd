"""`python -m proof.checker RECORDS.jsonl ...`: exit 0 when every promise was kept, 1 when not, 2 when none can tell."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from proof.checker.check import TOLERANCE_US, check
from proof.checker.events import RecordsError, read


def main() -> int:
    """Check the records of all files as one."""
    parser = argparse.ArgumentParser(prog="proof.checker", description="Were the limiter's promises kept?")
    parser.add_argument("records", nargs="+", type=Path, help="lines of JSON, as proof/checker/events.py tells")
    parser.add_argument("--tolerance-us", type=int, default=TOLERANCE_US, help="how far the clocks may be apart")
    options = parser.parse_args()
    try:
        lines = (line for path in options.records for line in path.read_text(encoding="utf-8").splitlines())
        report = check(read(lines), options.tolerance_us)
    except (OSError, UnicodeDecodeError, RecordsError) as error:
        print(f"proof.checker: {error}", file=sys.stderr)
        return 2
    print(report.text())
    if not report.attempts:
        print("proof.checker: there is no attempt in these records", file=sys.stderr)
        return 2
    return 0 if report else 1


if __name__ == "__main__":
    sys.exit(main())
