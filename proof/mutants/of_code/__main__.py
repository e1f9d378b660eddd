"""`python -m proof.mutants.of_code [options]`: exit 1 where a mutant survives that nobody has judged."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from proof.mutants.of_code.by_hand import MUTANTS, changed_text
from proof.mutants.of_code.targets import SOURCE, of_core, of_file, read_judged, tests_of
from proof.mutants.of_code.trials import CAUGHT, NO_VERDICT, SURVIVED, Trial, run_tests
from proof.options import Options, count

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130
LONGEST_S = 120


class Case(NamedTuple):
    """A file with a mistake, and the tests to run on it. One by hand has exactly one test, which has to fail."""

    name: str
    file: str
    changed: bytes
    tests: tuple[str, ...]
    by_hand: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, or those that were asked for."""
    parser = Options("python -m proof.mutants.of_code", "Make mistakes in the code, which its tests must catch.", "")
    parser.add_argument("--only", metavar="TEXT", help="of those by hand, the ones whose reason has this text")
    parser.add_argument("--file", action="append", metavar="FILE", help="the operators' in this file below src/capline")
    parser.add_argument("--sample", type=count, metavar="N", help="so many of the operators', drawn by the seed")
    parser.add_argument("--seed", type=count, default=random.randrange(1, 10**6), help="default: another each time")
    parser.add_argument("--jobs", type=count, default=os.cpu_count() or 1, help="trials at a time (default: CPUs)")
    options = parser.parse_args(arguments)
    unknown = [file for file in options.file or () if not (SOURCE / file).is_file()]
    if unknown:
        parser.error(f"no file src/capline/{unknown[0]}")
    cases: list[Case] = []
    try:
        if not (options.file or options.sample):
            chosen = [mutant for mutant in MUTANTS if (options.only or "") in mutant.why]
            cases += [
                Case(own.why, own.file, changed_text(own).encode(), (f"tests/{own.test}",), by_hand=True)
                for own in chosen
            ]
        if not cases and options.only:
            parser.error(f"no mutant by hand is about {options.only!r}")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if not options.only:
        drawn = [mutation for file in options.file for mutation in of_file(file)] if options.file else of_core()
        if options.sample:
            print(f"seed {options.seed}: {options.sample} of {len(drawn)} mutants", flush=True)
            drawn = random.Random(options.seed).sample(drawn, min(options.sample, len(drawn)))
        for mutation in drawn:
            changed = mutation.applied((SOURCE / mutation.file).read_bytes())
            cases.append(Case(mutation.key, mutation.file, changed, tests_of(mutation.file), by_hand=False))
    try:
        with tempfile.TemporaryDirectory(prefix="capline-mutants-") as directory:
            return _run(cases, Path(directory), options.jobs)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(cases: list[Case], directory: Path, jobs: int) -> int:
    tests = [*dict.fromkeys(test for case in cases for test in case.tests)]
    print(f"control: the tests of {len(cases)} mutants on unchanged code", flush=True)
    control = _try(directory, "control", None, tests)
    if control.outcome != SURVIVED:
        print(f"{control.output}\nthe tests fail on unchanged code: that comes first", file=sys.stderr)
        return 1
    judged, missed, begun = read_judged(), 0, time.monotonic()
    with ThreadPoolExecutor(jobs) as threads:
        trials = threads.map(partial(_try_one, directory), cases)
        try:
            for number, (case, trial) in enumerate(zip(cases, trials, strict=True), 1):
                # On unchanged code the tests pass, so one of the operators' that ends in any other way was noticed.
                outcome = CAUGHT if trial.outcome == NO_VERDICT and not case.by_hand else trial.outcome
                right = outcome == (SURVIVED if case.name in judged else CAUGHT)
                missed += not right
                print(f"{number:4}/{len(cases)} {outcome:10} {case.name}", flush=True)
                if not right and case.name in judged:
                    print("    it was judged to survive")
                elif not right and case.by_hand:
                    print(f"    {case.file}: {case.tests[0]}\n{trial.output}")
        finally:
            threads.shutdown(wait=True, cancel_futures=True)
    print(f"{len(cases) - missed} of {len(cases)} as they should be, in {time.monotonic() - begun:.0f} s")
    return 1 if missed else 0


def _try_one(directory: Path, case: Case) -> Trial:
    return _try(directory, "", case, case.tests)


def _try(directory: Path, name: str, case: Case | None, tests: Sequence[str]) -> Trial:
    with tempfile.TemporaryDirectory(prefix=name, dir=directory) as place:
        copy = Path(place) / "src"
        shutil.copytree(SOURCE.parent, copy)  # with its bytecode: Python sees by the time of change what is stale
        if case is not None:
            file = copy / "capline" / case.file
            file.unlink()
            file.write_bytes(case.changed)
        return run_tests(copy, tests, Path(place) / "output", LONGEST_S if case else 10 * LONGEST_S)


if __name__ == "__main__":
    sys.exit(main())
