"""Every law on real servers through each redis-py that is supported; all other tests run with the newest.

A redis-py is pure Python: unpacked into a folder of its own, and put before the venv's on the path of a child.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.profiles import PROOF

ROOT = Path(__file__).parents[2]
LAWS = "tests/conformance/test_server_stores.py"
TESTS = (
    "tests/unit/store/redis/test_transport.py",
    "tests/distributed/test_server_urls.py",
    "tests/faults/test_redis_redirects.py",
    "tests/faults/test_redis_deadline.py",
    "tests/faults/test_redis_fork_and_cancel.py",
)


def installed(version: str, root: Path) -> Path:
    """A folder with this redis-py; skips where it cannot be had."""
    folder = root / version
    words = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder),
        f"redis=={version}",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        pytest.skip(f"redis-py {version} cannot be installed here: {done.stderr.strip()[-200:]}")
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=1800
    )


@pytest.mark.deep
@pytest.mark.parametrize("version", ["5.2.0", "6.4.0", "7.0.1", "7.4.1"])
def test_every_law_holds_through_this_client(version: str, tmp_path: Path) -> None:
    """Of those in between what concerns connections; the laws in the proof."""
    tests = TESTS if version in ("6.4.0", "7.0.1") and not PROOF else (*TESTS, LAWS)
    folder = installed(version, tmp_path)
    shown = run(folder, "-c", "import redis; print(redis.__version__)")
    assert shown.stdout.strip() == version
    done = run(folder, "-m", "pytest", "-n", "0", "-m", "not deep and not alone", "-p", "no:cacheprovider", *tests)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


@pytest.mark.deep
@pytest.mark.parametrize("version", ["4.6.0", "5.0.8"])
def test_an_older_one_is_refused_in_one_line_at_open(version: str, tmp_path: Path) -> None:
    opened = (
        "from capline import Limiter, StoreError\ntry: Limiter('redis://127.0.0.1:1')\nexcept StoreError as e: print(e)"
    )
    done = run(installed(version, tmp_path), "-c", opened)
    assert done.stdout.startswith(f"redis-py {version} is installed; a store on Redis or Valkey needs 5.2 to 8: pip")
    assert done.stdout.count("\n") == 1
