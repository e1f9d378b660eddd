"""The words of the glossary: an entry each on the site, and a link to it where a page first says the word.

docs/explanation/glossary.md is a table, which reads well in a repository. `glossary` makes Sphinx's own form of it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx import addnodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PAGE = "explanation/glossary"
TABLE = Path(__file__).parents[1] / "docs" / f"{PAGE}.md"
_ROWS = re.compile(r"^\| (?!word |---)(.+?) \| (.+) \|$", re.MULTILINE)
_EVERYDAY = ("due", "hold", "move", "yield")
"""Words that pages use in their ordinary sense as well: they have an entry, and no links."""
_NOT_IN = (nodes.title, nodes.literal, nodes.reference, addnodes.pending_xref, addnodes.desc_signature, nodes.term)


def words(text: str) -> dict[str, str]:
    """Give the meaning of every word of the table."""
    return {
        word: meaning for row in _ROWS.finditer(text) for word in row[1].split(", ") for meaning in row.groups()[1:]
    }


def glossary(text: str) -> str:
    """Give the page with a glossary of Sphinx in place of the table, so that each word can be linked."""
    rows = "".join(f"{row[1].replace(', ', chr(10))}\n  {row[2]}\n\n" for row in _ROWS.finditer(text))
    return f"{text[: text.index('| word |')]}```{{glossary}}\n{rows}```\n"


def _pattern(word: str) -> re.Pattern[str]:
    plural = f"{word[:-1]}(?:y|ies)" if word.endswith("y") else f"{word}s?"
    return re.compile(rf"(?<![\w/.-])(?<!access )(?:{plural})(?![\w/-]|\.\w)", re.IGNORECASE)


_PATTERNS = {word: _pattern(word) for word in words(TABLE.read_text(encoding="utf-8")) if word not in _EVERYDAY}


def link_first(doctree: nodes.document) -> None:
    """Link each word where the page first says it: in its text, neither in headings and code nor in other links."""
    for word, pattern in _PATTERNS.items():
        for text in doctree.findall(nodes.Text):
            found = pattern.search(text.astext())
            if found is None or _within(text):
                continue
            before, after = text.astext()[: found.start()], text.astext()[found.end() :]
            link = addnodes.pending_xref(
                found[0], nodes.inline(found[0], found[0]), refdomain="std", reftype="term", reftarget=word,
                refexplicit=True, refwarn=True, classes=["term"],
            )  # fmt: skip
            parts = [nodes.Text(before), link, nodes.Text(after)]
            text.parent.replace(text, [part for part in parts if part.astext()])
            break


def _within(node: nodes.Node) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, (*_NOT_IN, nodes.literal_block, nodes.raw)):
            return True
    return False


def link_terms(app: Sphinx, doctree: nodes.document) -> None:
    """Do so on every page but the glossary itself."""
    if app.env.docname != PAGE:
        link_first(doctree)
