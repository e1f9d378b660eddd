"""A disk that is full in mid-campaign: one clear line, exit 2, and after room is made the same command ends the same.

Two forms. With a limit on the size of files, which any user may set, the write past it fails as on a full disk; that
one always runs. With a small tmpfs, in a mount namespace of its own, the disk is really full; it needs root and the
right to mount.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kit.campaign import Site, answer, command, comparable, environment
from tests.profiles import first

from capline import Limiter, Policy

SIZE = 60_000
UNSHARE = shutil.which("unshare") or ""
LIMITED = """
import os, resource, sys
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
os.execv(sys.argv[2], sys.argv[2:])
"""


def make(path: Path, **settings: str | None) -> Site:
    path.mkdir()
    site = Site(path)
    site.audience(range(SIZE))
    site.settings |= {key: value for key, value in settings.items() if value is not None}
    site.write(**{"segments": None, "batch": "20000", **settings})
    with site.limiter() as limiter:  # the store is there already, and every fifth one had two messages
        limiter.decide_many("promo", list(range(0, SIZE, 5)), segment="active")
        limiter.decide_many("promo", list(range(0, SIZE, 5)), segment="active")
    return site


def fill(site: Site) -> None:
    """Leave the store's first 16 MiB hardly any room, so that it has to grow in mid-campaign."""
    policy = Policy("filler", ["1/day"])
    with Limiter(f"lmdb://{site.path}/store", [policy]) as limiter:
        limiter.decide_many("filler", [f"{number:0390d}" for number in range(23_000)])


def told(site: Site) -> tuple[Any, list[int]]:
    """What became of the campaign: its report, and what each would be answered next."""
    report = answer("campaign", "run", site.file)
    with site.limiter() as limiter:
        return comparable(report), limiter.peek_many("promo", list(range(SIZE))).retry_after_us.tolist()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[int]]:
    return told(make(tmp_path_factory.mktemp("unlimited") / "site"))


def limited(site: Site, most_bytes: int, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(most_bytes), *command(*(words or ("campaign", "run", site.file)))],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


CASES: dict[str, tuple[int, str]] = {
    "the ledger": (60_000, "campaign.run: the ledger cannot be used ("),
    "a part": (400_000, "part-000000.csv cannot be written: "),
    "the store": (17 << 20, "store: no room for a map of "),
}


@pytest.mark.parametrize("what", first(1, CASES))
def test_a_file_that_may_not_grow(tmp_path: Path, expected: tuple[Any, list[int]], what: str) -> None:
    most_bytes, said = CASES[what]
    site = make(tmp_path / "site", sender="{file: out, format: csv}")
    if what == "the store":
        fill(site)
    done = limited(site, most_bytes)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert "the same command" in done.stderr
    assert not [path for path in (site.path / "out").glob("*") if path.name.endswith(".tmp")]
    assert told(site) == expected


@pytest.mark.parametrize("what", first(1, CASES))
def test_a_worker_whose_files_may_not_grow(tmp_path: Path, expected: tuple[Any, list[int]], what: str) -> None:
    site = make(tmp_path / "site", sender="{file: out, format: csv}")
    if what == "the store":
        fill(site)
    campaigns = site.path / "campaigns.sqlite"
    queue = ("--queue", f"sqlite://{campaigns}")
    answer("campaign", "enqueue", site.file, *queue)
    most_bytes = campaigns.stat().st_size + 20_000 if what == "the ledger" else CASES[what][0]
    done = limited(site, most_bytes, "worker", *queue, "--takeover", "1", "--until-idle", "--quiet")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("capline: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not [path for path in (site.path / "out").glob("*") if path.name.endswith(".tmp")]
    answer("worker", *queue, "--takeover", "1", "--until-idle", "--quiet")
    report = comparable(answer("campaign", "status", site.file, *queue))
    assert (report.pop("queue")["settled"], report) == (3, expected[0])
    with site.limiter() as limiter:
        assert limiter.peek_many("promo", list(range(SIZE))).retry_after_us.tolist() == expected[1]


def test_a_store_that_cannot_be_made_consumes_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    done = limited(site, 1 << 20)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"capline: {tmp_path}/store: ")
    assert "File too large" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "campaign.run").exists()


SCRIPT = """
set -e
mount -t tmpfs -o "size=$size" none "$place"
[ -z "$content" ] || cp -r "$content/." "$place"
set +e
"$@" > "$results/first.out" 2> "$results/first.err"; echo $? > "$results/first.code"
set -e
mount -o remount,size=128m "$place"
"$@" --json > "$results/second.out" 2> "$results/second.err"
"$python" -m capline.cli campaign plan "$campaign" --json > "$results/plan.out"
"""


@functools.cache
def why_no_mounts() -> str:
    """Empty where a tmpfs can be mounted in a namespace of its own."""
    if not UNSHARE:
        return "there is no `unshare` here"
    tried = subprocess.run(
        [UNSHARE, "--mount", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if tried.returncode == 0 else f"a tmpfs cannot be mounted here: {tried.stderr.strip()}"


FULL: dict[str, tuple[str, str, str]] = {
    "the ledger": ("campaign.run", "200k", "the ledger cannot be used ("),
    "a part": ("out", "200k", "cannot be written: no space left on device"),
    "the store": ("store", "17m", "store: no room for a map of "),
}


@pytest.mark.parametrize("what", first(0, FULL))
def test_a_disk_that_is_full(tmp_path: Path, expected: tuple[Any, list[int]], what: str) -> None:
    if why_no_mounts():
        pytest.skip(f"{why_no_mounts()}; the form with a limit on files has run instead")
    place, size, said = FULL[what]
    site = make(tmp_path / "site")
    if what == "the store":
        fill(site)
        (site.path / "store").rename(site.path / "content")
    (site.path / place).mkdir()
    results = tmp_path / "results"
    results.mkdir()
    subprocess.run(
        [UNSHARE, "--mount", "sh", "-c", SCRIPT, "sh", *command("campaign", "run", site.file)],
        env=environment(
            place=str(site.path / place),
            size=size,
            content=str(site.path / "content") if what == "the store" else "",
            results=str(results),
            python=sys.executable,
            campaign=str(site.file),
        ),
        check=True,
        timeout=60,
        cwd=os.fspath(tmp_path),
    )
    error = (results / "first.err").read_text()
    assert (results / "first.code").read_text().strip() == "2"
    assert said in error
    assert error.count("\n") == 1
    assert "the same command" in error
    report = json.loads((results / "second.out").read_text())
    assert comparable(report) == expected[0]
    after = json.loads((results / "plan.out").read_text())
    assert after["total"]["sent"] == 0
    assert after["total"]["refused"] == SIZE


APART = """
mount -t tmpfs -o size=100k none "$place"
"$@" 2> "$results/err"; echo $? > "$results/code"
cp -r "$place/." "$results"
"""


@pytest.mark.deep
def test_a_worker_whose_own_disk_is_full_ends_and_the_others_deliver_its_batch(
    tmp_path: Path, expected: tuple[Any, list[int]]
) -> None:
    if why_no_mounts():
        pytest.skip(why_no_mounts())
    site = make(tmp_path / "site", sender="{file: out, format: csv}", batch="1000")
    out, results = site.path / "out", tmp_path / "results"
    out.mkdir()
    results.mkdir()
    queue = ("--queue", f"sqlite://{site.path}/campaigns.sqlite")
    answer("campaign", "enqueue", site.file, *queue)
    work = command("worker", *queue, "--takeover", "1", "--until-idle", "--quiet")
    named = environment(place=str(out), results=str(results))
    full = subprocess.Popen([UNSHARE, "--mount", "sh", "-c", APART, "sh", *work], env=named)
    free = subprocess.Popen(work, env=environment())
    try:
        assert [full.wait(60), free.wait(60)] == [0, 0]
    finally:
        for process in (full, free):
            process.kill()
            process.wait()
    error = (results / "err").read_text()
    assert (results / "code").read_text().strip() == "2"
    assert "cannot be written: no space left on device" in error
    assert error.count("\n") == 1
    parts = [part for place in (out, results) for part in place.glob("part-*.csv")]
    assert len({part.name for part in parts}) == len(parts) == SIZE // 1000
    assert any(part.parent == results for part in parts)
    sent = [int(line.partition(",")[0]) for part in parts for line in part.read_text().splitlines()[1:]]
    report = comparable(answer("campaign", "status", site.file, *queue))
    assert len(set(sent)) == len(sent) == report["total"]["sent"] == expected[0]["total"]["sent"]
    with site.limiter() as limiter:
        assert limiter.peek_many("promo", list(range(SIZE))).retry_after_us.tolist() == expected[1]
