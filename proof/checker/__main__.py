"""`python -m proof.checker RECORDS.jsonl ...`: exit 0 when every promise was kept, 1 when not, 2 when none can tell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from proof.checker.check import TOLERANCE_US, check
from proof.checker.events import RecordsError, read
from proof.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the records of all files as one."""
    parser = Options(
        "python -m proof.checker", "Check from the callers' records whether the promises were kept.", "records.jsonl"
    )
    parser.add_argument("records", nargs="+", type=Path, help="lines of JSON, as proof/checker/events.py tells")
    parser.add_argument("--tolerance-us", type=int, default=TOLERANCE_US, help="how far the clocks may be apart")
    options = parser.parse_args(arguments)
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
