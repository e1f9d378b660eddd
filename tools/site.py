"""Builds the site, `make docs`:  python -m tools.site [FOLDER]

The pages of docs/ are copied into a folder of this process in build/; the reference of the API and of the command line
is written beside them from the program itself; Sphinx then builds the whole into build/docs (or FOLDER), and a warning
is an error. Links that lead out of docs/ become the file's name: the site is read without the repository.

The package `capline-docs`, whose copy of the site `capline docs` opens, is built beside that folder. No index has it,
so no extra of capline asks for it.

It prints the number of words (without decisions and what is generated), the pages of more than 1,500, and the sizes.
Its exit code is 1 where the words are more than the pages may have, or the package is too large.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder
from sphinx.cmd.build import main as build
from tools.reference import PAGES as GENERATED
from tools.terms import PAGE as GLOSSARY
from tools.terms import glossary

from capline import __version__

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = ROOT / "build" / f"docs-pages-{os.getpid()}"  # two that build at once are not in each other's way
TO_ROOT = os.path.relpath(ROOT, PAGES)
MOST_WORDS, MOST_WORDS_OF_ALL = 1_500, 30_000
"""Of a page, and of all: cut where you add, and never raise it."""
GENERATED_OR_DECISIONS = ("decisions/", "explanation/articles.md", "reference/benchmarks.md")
"""Pages that are no part of the sum; `make articles` writes the second, `make bench` the third."""
MOST_BYTES_OF_WHEEL = 3_000_000


def words_of_pages() -> dict[str, int]:
    """Count the words of each written page, as `wc -w` does."""
    return {
        name: len(page.read_text(encoding="utf-8").split())
        for page in sorted(DOCS.rglob("*.md"))
        if not (name := page.relative_to(DOCS).as_posix()).startswith(GENERATED_OR_DECISIONS)
    }


def too_long(words: dict[str, int]) -> list[str]:
    """Name the pages beyond what a reader should have to read; a reference is looked up, not read."""
    return [name for name, count in words.items() if count > MOST_WORDS and not name.startswith("reference/")]


def within(page: Path) -> str:
    """Give the text of a page with links out of docs/ as plain names."""

    def link(found: re.Match[str]) -> str:
        text, target = found[1], found[2].partition("#")[0]
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        full = Path(os.path.normpath(page.parent / target))
        if full.is_relative_to(DOCS) and not full.is_dir():
            return found[0]
        name = full.relative_to(ROOT).as_posix()
        return f"`{name}`" if text in (name, full.name) else f"{text} (`{name}`)"

    text = page.read_text(encoding="utf-8").replace("{literalinclude} ../../", f"{{literalinclude}} /{TO_ROOT}/")
    return re.sub(r"\[([^]]*)\]\(([^()\s]+)\)", link, text)


def lay_out() -> None:
    """Put the written and the generated pages into one folder."""
    shutil.copytree(DOCS, PAGES, ignore=shutil.ignore_patterns("__pycache__"))
    for page in DOCS.rglob("*.md"):
        (PAGES / page.relative_to(DOCS)).write_text(within(page), encoding="utf-8")
    page = PAGES / f"{GLOSSARY}.md"
    page.write_text(glossary(page.read_text(encoding="utf-8")), encoding="utf-8")
    for name, made in GENERATED.items():
        (PAGES / "reference" / f"{name}.md").write_text(made(), encoding="utf-8")


def wheel(site: Path) -> Path:
    """Build the package that brings the site, beside the site's folder."""
    project = {
        "name": "capline-docs",
        "version": __version__,
        "description": "The documentation of capline as a site, for `capline docs`.",
        "license": "Apache-2.0",
        "requires-python": ">=3",
    }
    files = {"bypass-selection": True, "force-include": {str(site.absolute()): "capline_docs"}}
    settings = {"project": project, "tool": {"hatch": {"build": {"targets": {"wheel": files}}}}}
    return Path(next(WheelBuilder(str(site), config=settings).build(directory=str(site.parent))))


def main() -> None:
    """Build, and tell the sizes."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    PAGES.parent.mkdir(exist_ok=True)
    lay_out()
    shutil.rmtree(target, ignore_errors=True)
    options = ("-W", "--keep-going", "-q", "-E", "-j", "2", "-d", PAGES / ".trees")
    try:
        status = build([str(word) for word in (*options, PAGES, target)])
    finally:
        shutil.rmtree(PAGES)
    for page in target.rglob("*.html"):  # Sphinx's captions of the contents are headings of no level
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(' role="heading"><span', ' role="heading" aria-level="2"><span'), encoding="utf-8")
    words = words_of_pages()
    for name in too_long(words):
        print(f"docs: {name} has {words[name]:,} words, more than {MOST_WORDS:,}")
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    print(
        f"docs: {len(words)} pages, {sum(words.values()):,} words of at most {MOST_WORDS_OF_ALL:,}; "
        f"{size / 1e6:.1f} MB in {target}, open {target / 'index.html'}"
    )
    package = wheel(target)
    print(f"docs: {package.stat().st_size / 1e6:.1f} MB of at most {MOST_BYTES_OF_WHEEL / 1e6:.1f} in {package}")
    sys.exit(status or sum(words.values()) > MOST_WORDS_OF_ALL or package.stat().st_size > MOST_BYTES_OF_WHEEL)


if __name__ == "__main__":
    main()
