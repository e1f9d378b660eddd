"""A publisher that is killed, anywhere: the old version serves on, and the next publication is as if nothing had been.

In a directory it kills itself (SIGKILL) at the n-th thing that it asks of the system, for every n until it is through.
On an S3 server somebody else kills it, at many moments of the time that a publication takes.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.kit.s3 import S3
from tests.kit.segments import Site, directory_site, make, s3_site

SUICIDE = """
import json, os, signal, sys
from capline.segment import Publisher
url, snapshot = sys.argv[1:]
watched = ("open", "os.", "fcntl.", "shutil.")
for step in range(1, 500):
    child = os.fork()
    if child == 0:
        left = step
        def count(event, arguments):
            global left
            if event.startswith(watched):
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(count)
        Publisher(url).publish(snapshot)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(step, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)
    sys.stdin.readline()
    if status == 0:
        break
"""

PUBLISHER = """
import json, sys
from capline.segment import Publisher
url, snapshot, options = json.loads(sys.argv[1])
publisher = Publisher(url, options)
print("ready", flush=True)
publisher.publish(snapshot)
print("done", flush=True)
"""


def check(site: Site, directory: Path, second: str) -> str:
    """What is served now: one version or the other, whole; its name."""
    watch = site.watch(directory / f"cache-{time.monotonic_ns()}")
    watch.poll()
    assert watch.error is None
    found = watch.current
    watch.stop()
    assert found.version in ("v1", second)
    assert list(found.sets["new"]) == ([1, 2] if found.version == "v1" else [1, 2, 3])
    assert len(found.sets["old"]) == 1_000
    return found.version


def test_killed_at_every_step(tmp_path: Path) -> None:
    site = directory_site(tmp_path)
    site.publisher().publish(make(tmp_path, "v1", new=[1, 2], old=range(10, 1010)))
    second = make(tmp_path, "v2", new=[1, 2, 3], old=range(2010, 3010))
    shutil.copytree(tmp_path / "published", tmp_path / "before")
    steps: list[tuple[int, str, int]] = []
    with subprocess.Popen(
        [sys.executable, "-c", SUICIDE, site.url, str(second)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            served = check(site, tmp_path, "v2")
            left = list((tmp_path / "published").rglob("*.tmp"))
            steps.append((int(line.split()[1]), served, len(left)))
            # Once more, after whatever this one left behind; that goes when it is old, and nothing that serves does.
            site.publisher().publish(second)
            assert check(site, tmp_path, "v2") == "v2"
            for path in (tmp_path / "published").rglob("*.tmp"):
                os.utime(path, (0, 0))
            site.publisher().collect(keep=1)
            assert not list((tmp_path / "published").rglob("*.tmp"))
            assert check(site, tmp_path, "v2") == "v2"
            shutil.rmtree(tmp_path / "published")
            shutil.copytree(tmp_path / "before", tmp_path / "published")
            process.stdin.write("\n")
            process.stdin.flush()
    assert len(steps) > 25
    assert [signal for signal, _, _ in steps] == [9] * (len(steps) - 1) + [0]
    versions = [served for _, served, _ in steps]
    assert versions == sorted(versions)
    assert versions[-1] == "v2"
    assert sum(left > 0 for _, _, left in steps) >= 4  # two objects, the manifest and the pointer, half written


@pytest.mark.deep
def test_killed_at_many_moments(s3: S3, tmp_path: Path) -> None:
    import json  # noqa: PLC0415 - for the command line alone

    site = s3_site(s3)
    with site.publisher() as publisher:
        publisher.publish(make(tmp_path, "v1", new=[1, 2], old=range(10, 1010)))
    outcomes: list[str] = []
    took_s = 0.1
    for step in range(8):
        # Each time another version, so that all of it is to be sent.
        name = f"v{step + 2}"
        first = 2010 + 1010 * step
        snapshot = make(tmp_path, name, new=[1, 2, 3], old=range(first, first + 1000))
        command: list[Any] = [sys.executable, "-c", PUBLISHER, json.dumps([site.url, str(snapshot), site.options])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            began = time.monotonic()
            if step:  # the first is not killed: it tells how long one takes
                time.sleep(took_s * (step - 0.5) / 6)
                process.kill()
            else:
                assert process.stdout.read() == "done\n"
                took_s = time.monotonic() - began
        outcomes.append(check(site, tmp_path, name))
        with site.publisher() as publisher:
            if outcomes[-1] != "v1":
                publisher.rollback("v1")
    assert outcomes[0] == "v2"
    with site.publisher() as publisher:
        assert publisher.publish(make(tmp_path, "last", new=[1, 2, 3], old=range(9_000, 10_000))).flipped
    assert check(site, tmp_path, "last") == "last"
