"""What ought to work on Windows, tried on Linux with only what Windows has (`kit.windows`)."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def on_windows(code: str, folder: Path, *folders: str, words: Iterable[str] = ()) -> list[str]:
    """The lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "kit.windows", ",".join(folders), code, json.dumps(list(words))],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=folder,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}", "HOME": str(folder)},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


DECIDE = """
from capline import Limiter, Policy
for url in ("memory://", "lmdb://store?durability=full", "lmdb://store?durability=full"):
    with Limiter(url, [Policy("p", ["3/day"])]) as limiter:
        print(*[int(bool(limiter.decide("p", "ann"))) for _ in range(4)])
"""
LOCK = """
import os
from capline.support.system import lock_file, share_lock

def opened():
    return os.open("file", os.O_RDWR | os.O_CREAT)

first, second, third = opened(), opened(), opened()
print(lock_file(first, wait=False), lock_file(second, wait=False), lock_file(second, shared=True, wait=False))
share_lock(first)
print(lock_file(second, shared=True, wait=False), lock_file(third, wait=False))
os.close(first)
print(lock_file(third, wait=False))
os.close(second)
print(lock_file(third, wait=False))
"""


def test_memory_and_lmdb_decide(tmp_path: Path) -> None:
    assert on_windows(DECIDE, tmp_path, "support", "store.local") == ["1 1 1 0", "1 1 1 0", "0 0 0 0"]


@pytest.mark.parametrize("windows", [False, True])
def test_a_lock_excludes_the_same_on_each_system(tmp_path: Path, windows: bool) -> None:
    if windows:
        lines = on_windows(LOCK, tmp_path, "support")
    else:
        lines = subprocess.check_output([sys.executable, "-c", LOCK], text=True, cwd=tmp_path).splitlines()
    assert lines == ["True False False", "True False", "False", "True"]


COMMANDS = """
import json, sys
from capline.cli.start import main

for words in json.loads(sys.argv[3]):
    sys.argv[1:] = words.split()
    print("$", words, flush=True)
    try:
        main()
        print(0, flush=True)
    except SystemExit as end:
        print(end.code or 0, flush=True)
"""
LINES = {
    "policies check policies.yaml": "policies.yaml",
    "decide p ann --store lmdb://store": "allowed",
    "peek p ann --store lmdb://store": "refused by 1/day",
    "explain p ann --store lmdb://store": "1/day (binds)",
    "store check lmdb://store": "every page and value is whole\n0",
    "store compact lmdb://store --to copy": "MiB now\n0",
    "store compact lmdb://store": "on Linux or macOS only; copy it by --to DIRECTORY\n2",
    "export logs.jsonl --store lmdb://store": "exported 1 hit(s)",
    "replay log.csv --limit 1/day": "policy default: 2 events, 1 of them refused",
    "doctor --store lmdb://store": "lmdb://store: takes writes",
    "init provider made": "Wrote worker.py",
    "campaign run campaign.yaml": "spring under policy p: finished",
    "campaign status campaign.yaml": "spring under policy p: finished",
    "segments build users.csv --out segments": "active",
    "segments show segments": "reading segments needs Linux or macOS; on Windows take WSL\n2",
    "serve --check": "capline serve needs Linux or macOS; on Windows take WSL\n2",
    "up": "capline up needs Linux or macOS; on Windows take WSL\n2",
}


@pytest.mark.deep
def test_the_commands_work_or_say_that_they_need_another_system(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text("policies: {p: {limits: [1/day]}}", encoding="utf-8")
    (tmp_path / "log.csv").write_text("subject,time\n" + "ann,2026-01-01T00:00:00Z\n" * 2, encoding="utf-8")
    (tmp_path / "users.csv").write_text("id,segment\n1,active\n2,active\n", encoding="utf-8")
    (tmp_path / "campaign.yaml").write_text(
        "{campaign: spring, policies: policies.yaml, policy: p, store: lmdb://store, audience: {csv: users.csv},"
        " sender: {file: out/}}",
        encoding="utf-8",
    )
    answers = "\n".join(on_windows(COMMANDS, tmp_path, words=LINES)).split("$ ")[1:]
    assert len(answers) == len(LINES)
    for answer, (words, expected) in zip(answers, LINES.items(), strict=True):
        assert answer.startswith(f"{words}\n")
        assert expected in answer
        assert answer.strip()[-1] == ("2" if expected[-1] == "2" else "0"), answer
