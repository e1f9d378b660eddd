"""The copy of the documentation's site that the package `capline-docs` brings, if it is installed."""

import re
from importlib.util import find_spec
from pathlib import Path

_PAGE = re.compile(r"\bdocs/([\w/-]+)\.md(#[\w-]+)?")


def site() -> Path | None:
    """Its folder, or None where it is not installed."""
    package = find_spec("capline_docs")
    folders = map(Path, (package and package.submodule_search_locations) or ())
    return next((folder for folder in folders if (folder / "index.html").is_file()), None)


def linked(text: str) -> str:
    """The text; a page that it names, as `docs/index.md`, becomes the address of that page in the copy."""
    folder = site() if _PAGE.search(text) else None

    def address(found: re.Match[str]) -> str:
        page = folder / f"{found[1]}.html" if folder else None
        return f"{page.as_uri()}{found[2] or ''}" if page and page.is_file() else found[0]

    return _PAGE.sub(address, text)
