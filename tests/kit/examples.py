"""The programs of `examples`, as modules."""

import importlib
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["EXAMPLES", "example"]

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def example(folder: str) -> Generator[Callable[[str], Any]]:
    """Import from this folder as its programs do; the next folder may have modules of the same names."""
    names = {path.stem for path in (EXAMPLES / folder).glob("*.py")}
    sys.path.insert(0, str(EXAMPLES / folder))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(EXAMPLES / folder))
        for name in names:
            sys.modules.pop(name, None)
