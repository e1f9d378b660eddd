"""Nothing grows a class: `bench/growth.py --short`, whose bounds are ratios that only a class of growth breaks."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.deep
@pytest.mark.alone
def test_no_verb_grows_with_what_else_there_is() -> None:
    program = Path(__file__).parents[3] / "bench" / "growth.py"
    done = subprocess.run(
        [sys.executable, str(program), "--short"], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, "\n".join(line for line in done.stdout.splitlines() if not line.endswith("ok"))
    assert done.stdout.count(" ok\n") > 200
