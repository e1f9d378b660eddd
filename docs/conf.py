"""How `make docs` builds the site; tools/site.py lays its pages out and starts Sphinx."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tools.terms import link_terms

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "capline"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "capline"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
# Shell sessions show what a terminal shows; a lexer has nothing to say about policies in comments of JSON.
suppress_warnings = ["misc.highlighting_failure", "myst.header"]
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "separated"


def terms(_app: object, _what: str, _name: str, _shown: object, _options: object, lines: list[str]) -> None:
    """Make a list of terms of the columns in a docstring: a name in backticks, two spaces, what it is."""
    made: list[str] = []
    inside = False
    for line in lines:
        if found := re.match(r"(`\w+`)  +(\S.*)", line):
            made += ["", found[1], "    " + found[2]]
            inside = True
        elif inside and line.startswith("        "):
            made.append("    " + line.lstrip())
        else:
            made += ["", line] if inside else [line]
            inside = False
    lines[:] = made


def setup(app: Sphinx) -> None:
    """Take the hooks in."""
    app.connect("autodoc-process-docstring", terms)
    app.connect("doctree-read", link_terms)
