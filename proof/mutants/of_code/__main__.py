"""`python -m proof.mutants.of_code [--only NAME] [--list]`: exit 1 where a mutant survives its test."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from proof.mutants.of_code.every import MUTANTS
from proof.mutants.of_code.mutant import SOURCE, changed_text, make_copy
from proof.mutants.of_code.trials import CAUGHT, SURVIVED, run_tests
from proof.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proof.mutants.of_code.mutant import Mutant

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, or those that were asked for."""
    parser = Options(
        "python -m proof.mutants.of_code", "Make mistakes in the code, which its tests must catch.", "--list"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="this mutant; may be given several times")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    options = parser.parse_args(arguments)
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    unknown = [name for name in options.only or () if name not in by_name]
    if unknown:
        parser.error(f"no mutant {unknown[0]!r}; --list says which there are")
    chosen = [by_name[name] for name in dict.fromkeys(options.only or by_name)]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name}\n    {mutant.file}: {mutant.why}\n    {mutant.test}")
        return 0
    try:
        for mutant in chosen:
            changed_text(mutant)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        with tempfile.TemporaryDirectory(prefix="capline-mutants-") as directory:
            return _run(chosen, Path(directory))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(chosen: Sequence[Mutant], directory: Path) -> int:
    right = directory / "right"
    make_copy(SOURCE, right)
    print(f"control: the tests of {len(chosen)} mutants on unchanged code", flush=True)
    control = run_tests(right, [*dict.fromkeys(mutant.test for mutant in chosen)])
    if control.outcome != SURVIVED:
        print(f"{control.output}\nthe tests fail on unchanged code: that comes first", file=sys.stderr)
        return 1
    missed = 0
    for number, mutant in enumerate(chosen, 1):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(dir=directory) as own:
            copy = Path(own) / "src"
            # From the copy that just ran: its bytecode is there already.
            make_copy(right, copy, mutant)
            trial = run_tests(copy, [mutant.test])
        seconds = time.monotonic() - begun
        print(f"{number:3}/{len(chosen)} {trial.outcome:10} {mutant.name} ({seconds:.1f} s)", flush=True)
        if trial.outcome != CAUGHT:
            missed += 1
            print(f"    {mutant.file}: {mutant.why}\n    {mutant.test}\n{trial.output}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutants caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
