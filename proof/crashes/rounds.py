"""Kills writers, takes the power away, reads what is left, and has the checker look at it.

A kill: one of four writers ends by SIGKILL at a random instant; the others go on, and another takes its place.

A kill while opening: beside the writers a process opens the store and is killed at each line of the opening in turn.
What it leaves behind, a reader's slot for one, must not make the file grow.

A loss of power: all writers end, one of them perhaps at one of its syncs. The store's file then holds what was synced,
and random other pages, as a kernel may have written any of them back. The writers continue from there. `synced.c`
follows every sync of every writer and so knows what was synced. A file is gone unless its name was synced, in its
directory and the directory's in the one above.

At the end the checker gets the records of all writers and the store's content: every acknowledged hit must be there,
every other one must belong to a call that was cut off, and no window, refusal or id may be wrong.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Self

from capline import Limiter, StoreError
from proof.checker import check, read
from proof.crashes.writer import KEEPING, SUBJECTS, cut_torn_line, heads, policies
from proof.record import Recorder

if TYPE_CHECKING:
    from proof.checker import Report

__all__ = ["Outcome", "build", "kills", "losses", "openings"]

WRITERS = 4
ROOT = Path(__file__).parents[2]
PAGE_BYTES = 4096
MOST_SYNCS = 60
NEWS_BYTES = 4000
"""The least that is recorded between two crashes: about a dozen calls."""
LONGEST_WAIT_S = 10
MOST_LINES = 10_000
PAUSE_S = 0.004
"""The longest pause between calls before a loss of power, so that some losses find the store idle: in a busy store the
next writer soon syncs what the last one wrote."""


@dataclass
class Outcome:
    """What came of so many crashes, and what the checker says; `refused` where the store could not be opened."""

    crashes: int
    report: Report
    refused: str = ""
    errors: list[str] = field(default_factory=list[str])
    lines: list[str] = field(default_factory=list[str])

    def __bool__(self) -> bool:
        return bool(self.report) and not self.refused and not self.errors

    def text(self) -> str:
        """In words."""
        return "\n".join([f"{self.crashes} crashes", *filter(None, [self.refused]), *self.errors, self.report.text()])


def build(directory: Path) -> Path:
    """Compile `synced.c`; raises `CalledProcessError` or `FileNotFoundError` where there is no compiler."""
    library = directory / "synced.so"
    source = Path(__file__).with_name("synced.c")
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-pthread"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def kills(directory: Path, crashes: int, durability: str = "relaxed", seed: int = 0) -> Outcome:
    """So many kills of a writer, with the others at work."""
    draw = random.Random(seed)
    with _Writers(directory, durability) as writers:
        for _ in range(WRITERS):
            writers.start()
        for _ in range(crashes):
            writers.wait_for_answers()
            time.sleep(draw.uniform(0, 0.03))
            writers.kill(draw.choice(list(writers.running)))
            writers.start()
        writers.wait_for_answers()
        writers.kill_all()
    return _judged(directory, crashes)


def openings(directory: Path, step: int = 1, durability: str = "relaxed", after: int = 5000) -> Outcome:
    """A kill at each line of the opening (or at every `step`-th) beside a writer; then decisions that need room."""
    data, errors, crashes = directory / "store" / "data.mdb", list[str](), 0
    with _Writers(directory, durability, pause_s=PAUSE_S) as writers:
        writers.start()
        writers.wait_for_answers()
        before = data.stat().st_size
        writers.open(MOST_LINES)
        # From the last line to the first: a writer that finds LMDB's lock left behind clears what it finds of others.
        for line in range(int((directory / "lines").read_text(encoding="ascii")), 0, -step):
            crashes += writers.open(line) == -signal.SIGKILL
        with Limiter(writers.url, policies()) as limiter:
            for _ in range(after):
                limiter.decide("open", "another")
            if limiter.stats()["readers"]:
                errors.append(f"{limiter.stats()['readers']} dead readers are left")
        if data.stat().st_size > before:
            errors.append(f"the file grew from {before} to {data.stat().st_size} bytes")
        writers.wait_for_answers()
        writers.kill_all()
    outcome = _judged(directory, crashes)
    outcome.errors += errors
    return outcome


def losses(
    directory: Path, library: Path, crashes: int, durability: str = "full", *, lies: bool = False, seed: int = 0
) -> Outcome:
    """So many losses of power; `lies`: the disk drops a commit's last sync and says nothing."""
    draw = random.Random(seed)
    synced, data = directory / "synced", directory / "store" / "data.mdb"
    with _Writers(directory, durability, library, lies=lies) as writers:
        for number in range(crashes):
            # One writer may end before one of its syncs; the others see what it left, until all of them end.
            stops = [draw.randrange(1, MOST_SYNCS) if draw.random() < 0.5 else 0, 0, 0, 0]
            first, *_ = [writers.start(stop_at) for stop_at in stops]
            if stops[0]:
                writers.wait_for_answers()
                writers.wait(first, seconds=0.5)
                time.sleep(draw.choice((0, 0.0005, 0.003)))
            else:
                writers.wait_for_answers()
                time.sleep(draw.uniform(0, 0.05))
            writers.kill_all()
            lose_power(data, synced, draw)
            if not _opens(data):
                return _judged(directory, number + 1)
    return _judged(directory, crashes)


def lose_power(data: Path, synced: Path, draw: random.Random) -> None:
    """Make the file what a disk would hold: what was synced, and of the pages that were not, any."""
    marks = [synced.with_name(f"{synced.name}.{mark}") for mark in ("named", "placed")]
    before = synced.read_bytes() if synced.exists() and all(mark.exists() for mark in marks) else b""
    share = draw.choice((0.0, 0.0, 0.1, 0.5, 0.9))
    if share and data.exists():
        after, content = data.read_bytes(), bytearray(before)
        for at in range(0, len(before), PAGE_BYTES):
            page = after[at : at + PAGE_BYTES]
            if before[at : at + PAGE_BYTES] != page and draw.random() < share:
                content[at : at + len(page)] = page
        before = bytes(content)
    if before:
        data.write_bytes(before)
        synced.write_bytes(before)
    else:
        for path in (data, synced, *marks):
            path.unlink(missing_ok=True)
    (data.parent / "lock.mdb").unlink(missing_ok=True)


def _opens(data: Path) -> bool:
    try:
        _copied(data).close()
    except StoreError:
        return False
    return True


def _copied(data: Path) -> Limiter:
    """A limiter on a copy of the store, which leaves the store's file as it is."""
    directory = data.parent.with_name("read")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    if data.exists():
        shutil.copyfile(data, directory / "data.mdb")
    return Limiter(f"lmdb://{directory}", policies())


def _judged(directory: Path, crashes: int) -> Outcome:
    """What the writers recorded and the store holds, before the checker."""
    lines, refused = heads(), ""
    for path in sorted(directory.glob("records-*")):
        cut_torn_line(path)
        lines += path.read_text(encoding="utf-8").splitlines()
    errors = [path.read_text(encoding="utf-8") for path in sorted(directory.glob("error-*"))]
    recorder = Recorder()
    try:
        with _copied(directory / "store" / "data.mdb") as limiter:
            for policy, subject in product(KEEPING, SUBJECTS):
                recorder.tell(recorder.final(policy, subject), partial(_content, limiter, policy, subject))
    except StoreError as error:
        refused = f"the store cannot be read: {error}"
    lines += recorder.lines
    return Outcome(crashes, check(read(lines)), refused, errors, lines)


def _content(limiter: Limiter, policy: str, subject: str) -> list[tuple[int, int]]:
    return [(hit.stamp_us, hit.units) for hit in limiter.explain(policy, subject).hits]


class _Writers:
    """The writers that run, forked by a process of their own."""

    def __init__(
        self, directory: Path, durability: str, library: Path | None = None, *, lies: bool = False, pause_s: float = 0.0
    ) -> None:
        self.running: dict[int, int] = {}
        self._life = 0
        self._seen = 0
        self._directory = directory
        store = directory / "store"
        environment = dict(os.environ)
        if library is not None:
            environment |= {
                "LD_PRELOAD": str(library),
                "CAPLINE_SYNCED_OF": str(store / "data.mdb"),
                "CAPLINE_SYNCED_TO": str(directory / "synced"),
                "CAPLINE_SYNC_LIES": str(int(lies)),
            }
            pause_s = PAUSE_S
        self.url = url = f"lmdb://{store}?durability={durability}"
        self._fork_server = subprocess.Popen(
            [sys.executable, "-m", "proof.crashes.fork_server", url, str(directory), str(pause_s)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        self._fork_server.communicate(timeout=30)

    def start(self, stop_at: int = 0) -> int:
        """Another writer, under a number that is free; its pid."""
        number = min(set(range(WRITERS)) - set(self.running.values()))
        self._life += 1
        pid = self._command("start", number, self._life, stop_at)
        self.running[pid] = number
        return pid

    def open(self, line: int) -> int:
        """A process that opens the store and is killed at that line; its status, 0 where it came to the end."""
        pid = self._command("open", line)
        return self._command("reap", pid)

    def kill(self, pid: int) -> None:
        """SIGKILL, and wait for the end."""
        os.kill(pid, signal.SIGKILL)
        self._reap(pid)

    def kill_all(self) -> None:
        """All of them at once."""
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)
        for pid in list(self.running):
            self._reap(pid)

    def wait(self, pid: int, seconds: float) -> None:
        """Until it has ended by itself, or so long; it is not reaped yet, so its pid is its own."""
        end, stat = time.monotonic() + seconds, Path(f"/proc/{pid}/stat")
        while time.monotonic() < end and stat.read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.0005)

    def wait_for_answers(self) -> None:
        """Until some calls more were recorded than at the last crash, however busy the machine is."""
        end = time.monotonic() + LONGEST_WAIT_S
        while self._recorded() < self._seen + NEWS_BYTES and time.monotonic() < end:
            time.sleep(0.001)

    def _recorded(self) -> int:
        return sum(path.stat().st_size for path in self._directory.glob("records-*"))

    def _reap(self, pid: int) -> None:
        del self.running[pid]
        self._seen = self._recorded()
        self._command("reap", pid)

    def _command(self, verb: str, *numbers: int) -> int:
        if self._fork_server.stdin is None or self._fork_server.stdout is None:
            raise RuntimeError("the fork server has no pipes")
        self._fork_server.stdin.write(" ".join([verb, *map(str, numbers)]) + "\n")
        self._fork_server.stdin.flush()
        answer = self._fork_server.stdout.readline()
        if not answer:
            raise RuntimeError(f"the fork server ended with {self._fork_server.wait()}")
        return int(answer)
