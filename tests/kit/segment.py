"""What the tests of segments share."""

from collections.abc import Iterator, Sequence

import numpy as np

from capline.segment.build.source import Rows, TextRows
from capline.segment.dictionary.idfile import group_texts


def rows_of(rows: Sequence[tuple[int, str]], size: int = 1000, kind: str = "uint32") -> Iterator[Rows]:
    """Rows in batches, as a file gives them."""
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        names = tuple(dict.fromkeys(name for _, name in some))
        codes = np.array([names.index(name) for _, name in some], dtype=np.int32)
        yield Rows(np.array([one for one, _ in some], dtype=kind), codes, names)


def text_rows_of(rows: Sequence[tuple[str, str]], size: int = 1000) -> Iterator[TextRows]:
    """The same with text ids."""
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        names = tuple(dict.fromkeys(name for _, name in some))
        codes = np.array([names.index(name) for _, name in some], dtype=np.int32)
        yield TextRows(group_texts([one for one, _ in some]), codes, names)
