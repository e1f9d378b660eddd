"""Ask the package index about known vulnerabilities in what requirements.lock pins; part of `make lint`.

Exit 1 where one is known: the report names it and the version that fixes it. Exit 0 where none is, and also where the
index cannot be asked (no network, a mirror without that service): that is said, since nothing is known then.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parents[1] / "requirements.lock"
LONGEST_S = 90
ASK_S = 5


def answers() -> list[dict[str, Any]]:
    """What pip-audit says of each package; empty where it cannot say anything."""
    words = [
        sys.executable,
        "-m",
        "pip_audit",
        "--format",
        "json",
        "--progress-spinner",
        "off",
        "--timeout",
        str(ASK_S),
    ]
    words += ["--requirement", str(LOCK), "--require-hashes", "--disable-pip"]
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=LONGEST_S)  # noqa: S603 - a fixed command line
        return json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return []


def report(packages: list[dict[str, Any]]) -> int:
    """Say what is known, in a line or more; the exit code."""
    asked = [one for one in packages if "skip_reason" not in one]
    if not asked:
        print("audit: the index could not be asked about vulnerabilities; nothing is known")
        return 0
    found = [(one, flaw) for one in asked for flaw in one.get("vulns", [])]
    for one, flaw in found:
        fix = ", ".join(flaw.get("fix_versions", [])) or "no version yet"
        print(f"audit: {one['name']} {one['version']} has {flaw['id']}; fixed in: {fix}; type: make lock UPGRADE=1")
    unknown = f"; {len(packages) - len(asked)} could not be asked about" * (len(asked) < len(packages))
    print(f"audit: {len(asked)} packages, {len(found)} known vulnerabilities{unknown}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(report(answers()))
