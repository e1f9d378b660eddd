"""A file in which every subject is at its limit, copies of it with one bit flipped, and a process that asks each."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import resource
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from capline import CaplineError, Limiter, ManualClock, Policy
from capline.store.local import log_bytes as packed
from capline.store.local.lmdb.check import check_store
from proof.flips.regions import KEY, UNUSED, VALUE, regions

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Outcome", "flips"]

NOTICED, CRASHED, HARMLESS, WRONG, RAW = "noticed", "crashed", "harmless", "wrong", "raw error"
CLOCK_US = 10**15
LONGEST_S = 60
"""For one trial: a process that hangs is ended, and counts as crashed."""
POLICIES = [Policy("few", ["3/day"]), Policy("many", ["120/day"])]
FEW = [*range(1, 400), *(f"user:{n}" for n in range(200))]
MANY = ["unit", "mixed"]


@dataclass
class Outcome:
    """How many flips came to what, by where they were."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    unfound: list[str] = field(default_factory=list[str])
    """Wrong answers, and errors that are not capline's, of which `check_store` knew nothing."""

    def of(self, region: str, *outcomes: str) -> int:
        """How many flips there came to one of these."""
        return sum(self.counts[region, outcome] for outcome in outcomes)

    def __bool__(self) -> bool:
        return not self.unfound and not self.of(VALUE, WRONG, CRASHED, RAW)

    def text(self) -> str:
        """A table."""
        outcomes = (NOTICED, HARMLESS, CRASHED, WRONG, RAW)
        lines = ["".join(f"{word:>12}" for word in ("", *outcomes))]
        lines += [
            f"{region:>12}" + "".join(f"{self.counts[region, outcome]:>12}" for outcome in outcomes)
            for region in sorted({region for region, _ in self.counts})
        ]
        return "\n".join([*lines, *(f"not found by the check: {line}" for line in self.unfound)])


def flips(directory: Path, count: int, seed: int = 0, *, checksums: bool = True) -> Outcome:
    """So many flips, each of a bit drawn by chance; without `checksums` values are believed, which must be found."""
    draw, outcome = random.Random(seed), Outcome()
    with contextlib.nullcontext() if checksums else patch.object(packed, "crc32", _no_checksum):
        _fill(directory / "whole")
        content = (directory / "whole" / "data.mdb").read_bytes()
        places = regions(directory / "whole" / "data.mdb")
        # Half of the flips are in values, a quarter in keys, a quarter anywhere but where nothing is.
        used = [at for at, region in enumerate(places) if region != UNUSED]
        values = [at for at, region in enumerate(places) if region == VALUE]
        keys = [at for at, region in enumerate(places) if region == KEY]
        for number in range(count):
            at, bit = draw.choice((values, used, values, keys)[number % 4]), draw.randrange(8)
            broken = bytearray(content[: len(places)])
            broken[at] ^= 1 << bit
            found, what = _asked(directory / "broken", bytes(broken))
            outcome.counts[places[at], what] += 1
            if what in (WRONG, RAW) and not found:
                outcome.unfound.append(f"{what}: bit {bit} of byte {at % 4096} of page {at // 4096}, {places[at]}")
    return outcome


def _no_checksum(_data: bytes, _seed: int = 0) -> int:
    return 0


def _fill(directory: Path) -> None:
    with Limiter(f"lmdb://{directory}", POLICIES, clock=ManualClock(CLOCK_US)) as limiter:
        # By turns, so that the pages have a history, and some are free.
        for _ in range(3):
            limiter.decide_many("few", FEW)
        for _ in range(120):
            limiter.decide("many", "unit")
        for n in range(60):
            limiter.decide("many", "mixed", 2, id=f"id {n}")
        limiter.decide_many("few", FEW, receipt="batch")
        for subject in range(400, 700):
            limiter.decide("few", subject)
        for subject in range(400, 700):
            limiter.erase(subject)


def _asked(directory: Path, content: bytes) -> tuple[bool, str]:
    """Whether a check finds something wrong with this file, and what comes of asking."""
    directory.mkdir(exist_ok=True)
    (directory / "lock.mdb").unlink(missing_ok=True)
    (directory / "data.mdb").write_bytes(content)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _answer(directory, writer)
    os.close(writer)
    with os.fdopen(reader, encoding="ascii") as answers:
        lines = [json.loads(line) for line in answers if line.endswith("\n")]
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not lines:
        raise RuntimeError(f"the check itself ended with {status}")
    return lines[0], lines[1] if status == 0 else CRASHED


def _answer(directory: Path, writer: int) -> None:
    """In the child: check, ask, say what came of it, and end."""
    status = 1
    try:
        signal.alarm(LONGEST_S)
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        _say(writer, bool(_faults(directory)))
        _say(writer, _ask_all(directory))
        status = 0
    finally:
        os._exit(status)


def _say(writer: int, what: Any) -> None:
    os.write(writer, json.dumps(what).encode() + b"\n")


def _faults(directory: Path) -> int:
    try:
        return check_store(directory).faults_found
    except CaplineError:
        return 1


def _ask_all(directory: Path) -> str:
    """Whether anybody is let in; the first error, if nobody is."""
    noticed, wrong = False, False
    try:
        with Limiter(f"lmdb://{directory}", POLICIES, clock=ManualClock(CLOCK_US)) as limiter:
            for policy, subjects in (("few", FEW), ("many", MANY)):
                for subject in subjects:
                    try:
                        wrong |= limiter.decide(policy, subject).allowed
                    except CaplineError:
                        noticed = True
            wrong |= bool(limiter.decide_many("few", FEW, receipt="batch").allowed.any())
    except CaplineError:
        noticed = True
    except Exception:  # noqa: BLE001 - it is counted
        return WRONG if wrong else RAW
    return WRONG if wrong else NOTICED if noticed else HARMLESS
