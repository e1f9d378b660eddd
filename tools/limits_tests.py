"""The moving-window tests of the package `limits`, run on capline's storage: memory, lmdb and a real Redis.

    python tools/limits_tests.py

Downloads the source of the installed version of `limits` from the package index into a temporary directory, and runs
its tests with capline's URLs instead of its own storages. They sleep and measure time, so the machine should have
little else to do. Exit code: pytest's.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.kit.servers import single  # noqa: E402 - the tree is known from here on

STORAGES = """

import capline.contrib.limits
URLS = {urls!r}
moving_window_storage = pytest.mark.parametrize("uri, args, fixture", [(url, {{}}, None) for url in URLS], ids=URLS)
"""


def main() -> int:
    """Run them."""
    with tempfile.TemporaryDirectory(prefix="capline-limits-") as directory, single("redis") as server:
        tests = _tests_of_limits(Path(directory))
        urls = ["capline+memory://", f"capline+lmdb://{directory}/store", f"capline+{server.url}"]
        (tests / "conftest.py").unlink()  # it starts servers by docker
        (tests.parent / "pytest.ini").write_text("[pytest]\n")
        utils = tests / "utils.py"
        utils.write_text(
            utils.read_text().replace("from pytest_lazy_fixtures import lf", "lf = str") + STORAGES.format(urls=urls)
        )
        options = ["-q", "--disable-warnings", "-p", "no:cacheprovider", "-k", "TestMovingWindow"]
        command = [sys.executable, "-m", "pytest", *options, "tests/test_strategy.py"]
        return subprocess.run(command, cwd=tests.parent, check=False).returncode  # noqa: S603 - ours


def _tests_of_limits(directory: Path) -> Path:
    """The folder of its tests, downloaded."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*pip, f"limits=={version('limits')}"], cwd=directory, check=True)  # noqa: S603 - ours
    (packed,) = directory.glob("limits-*.tar.gz")
    with tarfile.open(packed) as archive:
        kept = [one for one in archive if one.isfile() and ".." not in one.name]
        archive.extractall(directory, kept)  # noqa: S202 - checked # nosec B202
    return directory / packed.name.removesuffix(".tar.gz") / "tests"


if __name__ == "__main__":
    sys.exit(main())
