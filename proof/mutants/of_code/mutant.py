"""One mistake in one file, and a copy of src that has it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

__all__ = ["ROOT", "SOURCE", "Mutant", "changed_text", "make_copy"]

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src"


class Mutant(NamedTuple):
    """`text` stands exactly once in the file and becomes `wrong`; `test` is the node id of the test to catch it."""

    name: str
    file: str
    """Below src/capline."""
    text: str
    wrong: str
    why: str
    """What would go wrong for a user."""
    test: str


def changed_text(mutant: Mutant, source: Path = SOURCE) -> str:
    """The file with the mistake; `ValueError` where its text does not stand there exactly once."""
    text = (source / "capline" / mutant.file).read_text()
    count = text.count(mutant.text)
    if count != 1:
        raise ValueError(f"mutant {mutant.name}: its text stands {count} times in {mutant.file}; change the mutant")
    return text.replace(mutant.text, mutant.wrong)


def make_copy(source: Path, target: Path, mutant: Mutant | None = None) -> None:
    """Copy src, and put the mistake in. Bytecode comes along: Python sees by the time of change what is stale."""
    shutil.copytree(source, target)
    if mutant is not None:
        changed = changed_text(mutant, source)
        file = target / "capline" / mutant.file
        # By rename, so that the new file is new to whoever looks at its inode, and never half written.
        temporary = file.with_suffix(".new")
        temporary.write_text(changed)
        temporary.replace(file)
