"""Random CSV gives the same rows, or the same error, by Arrow and by Python's `csv`."""

import io
from random import Random
from typing import Any

import pytest
from tests.profiles import size

from capline.model.errors import InvalidValueError
from capline.tables import csv_file

PARTS = ("a", "", '"a"', '""', '"a,b"', '"a\nb"', '"a\r\nb"', '"""a"', '"', 'a"', '"a"b')
WEIGHTS = (30, 5, 30, 5, 5, 2, 2, 1, 1, 1, 1)


def rows_of(data: bytes, *, line_breaks: bool) -> tuple[list[Any], str | None]:
    """The rows up to the first that is wrong, and what is wrong with it."""
    rows: list[Any] = []
    try:
        file = csv_file.CsvFile(
            "e.csv", csv_file.chunks_of("e.csv", io.BytesIO(data), InvalidValueError), InvalidValueError
        )
        for row, columns in file.blocks([1, 0], line_breaks=line_breaks):
            cells: list[list[str]] = [each if isinstance(each, list) else each.to_pylist() for each in columns]
            assert row == len(rows) + 1
            rows += zip(*cells, strict=True)
    except InvalidValueError as error:
        return rows, str(error)
    return rows, None


@pytest.mark.parametrize("seed", range(size(300, 3000)))
def test_random_csv_is_the_same_row_by_row(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    end = random.choice(("\n", "\r\n"))
    texts = random.choices(PARTS, WEIGHTS if random.random() < 0.7 else WEIGHTS[:5] + (0,) * 6, k=40)
    lines = [f"{one},{other}{end}" for one, other in zip(texts[::2], texts[1::2], strict=True)]
    if random.random() < 0.3:
        lines.insert(random.randrange(len(lines)), random.choice((end, "a,b\r", "a\r")))
    data = ("x,y" + end + "".join(lines)).encode().removesuffix(random.choice((b"", b"\n")))
    monkeypatch.setattr(csv_file, "BLOCK_BYTES", random.choice((16, 64, 1 << 20)))
    line_breaks = random.random() < 0.5
    found = rows_of(data, line_breaks=line_breaks)
    monkeypatch.setattr(csv_file, "arrow", lambda: None)
    assert found == rows_of(data, line_breaks=line_breaks), data
