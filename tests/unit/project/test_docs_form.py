"""The form of every page: links and anchors lead somewhere, tables are whole, code is fenced."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LINK = re.compile(r"\]\(([^()\s]+)\)")
DIVIDER = re.compile(r"\|(\s*:?-+:?\s*\|)+")


def pages() -> list[Path]:
    named = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"],  # noqa: S607 - the git of whoever cloned it
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in named.stdout.splitlines() if (ROOT / name).exists()]


PAGES = pages()


def prose(text: str) -> list[str]:
    """The lines of a page, with those of fenced code left empty."""
    lines: list[str] = []
    fence = ""
    for line in text.splitlines():
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
        elif not fence:
            lines.append(line)
            continue
        lines.append("")
    return lines if not fence else [*lines, "UNCLOSED FENCE"]


def anchors(text: str) -> set[str]:
    """What headings can be linked by, as GitHub names them; the second of a name gets -1."""
    found: set[str] = set()
    for line in prose(text):
        heading = re.fullmatch(r"#{1,6} +(.*?)[ #]*", line)
        if heading:
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            name = base = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            number = 0
            while name in found:
                number += 1
                name = f"{base}-{number}"
            found.add(name)
    return found


def broken_links(page: Path, text: str) -> list[str]:
    wrong: list[str] = []
    for line in prose(text):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            other = page.parent / path if path else page
            if not other.exists():
                wrong.append(f"{target}: no such file")
            elif anchor and anchor not in anchors(text if not path else other.read_text(encoding="utf-8")):
                wrong.append(f"{target}: no such heading")
    return wrong


def cells(line: str) -> int:
    return len(re.split(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line.strip()).strip("|")))


def broken_tables(text: str) -> list[str]:
    wrong: list[str] = []
    lines = ["", *prose(text), ""]
    if lines[-2] == "UNCLOSED FENCE":
        wrong.append("a fence of code that is not closed")
    number = 1
    while number < len(lines):
        if not lines[number].lstrip().startswith("|"):
            number += 1
            continue
        first = number
        while lines[number].lstrip().startswith("|"):
            number += 1
        rows = lines[first:number]
        if len(rows) < 2 or not DIVIDER.fullmatch(rows[1].strip()):
            wrong.append(f"line {first}: a table without a heading; is it split by a blank line?")
        elif len(rows) < 3:
            wrong.append(f"line {first}: a table without rows")
        wrong += [
            f"line {first + place}: {cells(row)} cells, and the heading has {cells(rows[0])}"
            for place, row in enumerate(rows)
            if cells(row) != cells(rows[0])
        ]
        if lines[number].strip():
            wrong.append(f"line {number}: text that touches the table")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_anchor_leads_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_table_is_whole(page: Path) -> None:
    assert broken_tables(page.read_text(encoding="utf-8")) == []


def test_the_checks_find_what_is_broken() -> None:
    head = "| a | b |\n|---|---|\n"
    assert broken_tables(f"{head}| 1 | 2 |\n") == []
    assert broken_tables(f"{head}| `a|b` | 2 |\n\ntext\n```\n| code\n```\n") == []
    assert broken_tables(f"{head}| 1 | 2 |\n\n| 3 | 4 |\n") == [
        "line 5: a table without a heading; is it split by a blank line?"
    ]
    assert broken_tables(f"{head}| 1 |\n") == ["line 3: 1 cells, and the heading has 2"]
    assert broken_tables(f"{head}| 1 | 2 |\nand more\n") == ["line 4: text that touches the table"]
    assert broken_tables("```\nopen\n") == ["a fence of code that is not closed"]
    page = ROOT / "README.md"
    text = "# One `two`, three\n## Again\n## Again\n"
    assert (
        broken_links(page, text + "[x](#one-two-three) [y](#again-1) [z](docs/reference/stores.md) [w](https://x.org)")
        == []
    )
    assert broken_links(page, text + "[x](#two) [z](docs/none.md) `[code](none)`") == [
        "#two: no such heading",
        "docs/none.md: no such file",
    ]
    assert len(PAGES) > 10
