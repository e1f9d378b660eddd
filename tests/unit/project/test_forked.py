"""`tests.kit.forked`: a command that is forked is as one that is started."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.kit.forked import run

POLICIES = "policies: {promo: {limits: [1/day]}}\n"


def test_it_prints_and_ends_as_the_real_one(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(POLICIES, encoding="utf-8")
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    for words in (["peek", "promo", "42"], ["peek", "nothing", "42"], ["--help"]):
        command = [sys.executable, "-m", "capline.cli", *words]
        real = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        done = run(*words, cwd=tmp_path, env=environment)
        assert (done.returncode, done.stdout, done.stderr) == (real.returncode, real.stdout, real.stderr)


def test_folder_environment_and_input_are_the_callers(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(POLICIES, encoding="utf-8")
    environment = {**os.environ, "CAPLINE_STORE": "memory://x"}
    assert "memory://x" in run("decide", "promo", "1", cwd=tmp_path, env=environment).stderr
    line = '{"policy": "promo", "subject": "a", "at": "2026-01-01T00:00:00Z"}\n'
    assert '"records":1' in run("import", "-", "--json", cwd=tmp_path, stdin=line).stdout.replace(" ", "")


def test_calls_at_the_same_time_do_not_mix() -> None:
    with ThreadPoolExecutor(4) as threads:
        said = [*threads.map(refused, range(8))]
    assert all(f"no-such-command-{number}" in text for number, text in enumerate(said))


def refused(number: int) -> str:
    return run(f"no-such-command-{number}").stderr
