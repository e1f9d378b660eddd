"""Cells for CSV files that are safe in a spreadsheet, which would run a cell like `=HYPERLINK(…)` as a formula.

    =1+1   @SUM(A1)   +cmd|…   -2+A1   a tab or CR first      get an apostrophe before them: '=1+1
    +49 30 1234567   -12.5                                     stay: digits with a sign are no formula

The rule: no cell begins like a formula, and no other text is changed. A program that reads such a file drops one
apostrophe before `= + - @`, tab or CR, or reads Parquet, where nothing is changed.
"""

import re

_FORMULA = re.compile(r"\s*[=+\-@\uff0b\uff0d\uff1d\uff20]|[\t\r\n]")
"""A spreadsheet may drop white space before a formula, and takes the wide forms of the signs (U+FF0B …) for them."""

_NUMBER = re.compile(r"[+-][0-9][0-9 ().,/-]*", re.ASCII)


def csv_cell(text: str) -> str:
    """The text as a cell that no spreadsheet runs as a formula."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text
