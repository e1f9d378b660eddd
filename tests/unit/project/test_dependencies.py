"""Every package that capline asks for has its reason in decision 3."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ASKED = sorted(
    {
        re.split(r"[\[<>=!~; ]", one, maxsplit=1)[0]
        for some in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
        for one in some
    }
    - {"capline"}
)
DECISION = (ROOT / "docs" / "decisions" / "0003-dependencies.md").read_text(encoding="utf-8")
ROWS = [row.split("|")[1:-1] for row in DECISION.splitlines() if row.startswith("|")][2:]
ELSEWHERE = {"ministack"}
"""In an environment of its own."""
GIVEN = {re.sub(r" \(.*\)", "", name).strip() for row in ROWS for name in row[0].split(",")}


@pytest.mark.parametrize("name", ASKED)
def test_a_package_that_is_asked_for_has_its_reason(name: str) -> None:
    assert name in GIVEN


def test_no_reason_is_given_for_a_package_that_nobody_asks_for() -> None:
    assert set(ASKED) >= GIVEN - ELSEWHERE
    assert all(len(cells) == 4 and all(cell.strip() for cell in cells) for cells in ROWS)
