"""The site: short pages, a build without a warning, nothing loaded from outside, a search that works from a disk."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.test_demo_report import dom_of
from tests.kit.gateway import free_port
from tools.site import too_long, words_of_pages
from tools.tutorial import PAGES, masked, played

OUTSIDE = r"""["']?(?:https?:)?//"""
LOADED = re.compile(rf"(?:src|srcset|action|data)={OUTSIDE}|<link [^>]*href={OUTSIDE}|@import|url\({OUTSIDE}")


def test_no_page_that_is_read_is_long() -> None:
    assert too_long(words_of_pages()) == []


@pytest.mark.deep
def test_the_site_is_whole_loads_nothing_and_is_searched(tmp_path: Path) -> None:
    site = tmp_path / "site"
    built = subprocess.run(
        [sys.executable, "-m", "tools.site", site],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert built.returncode == 0, built.stderr
    read = [file for file in site.rglob("*") if file.suffix in (".html", ".css", ".svg")]
    assert len(read) > 40
    for file in read:
        assert not LOADED.search(file.read_text(encoding="utf-8")), file
    found = dom_of(site / "search.html", tmp_path, query="?q=hold-out")
    assert "explanation/glossary.html" in found


@pytest.mark.deep
@pytest.mark.alone
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tutorial_shows_what_its_commands_show(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    port = str(free_port())
    ports = re.compile(r"(?<=app\.py )8000|(?<=localhost:)8000")
    # A busy machine is later with its calls than the page allows for.
    late = ports.sub(port, text).replace("100ms", "2s").replace("cd shop;", "cd shop; sed -i s/100ms/2s/ worker.py;")
    again = played(late, tmp_path).replace(" sed -i s/100ms/2s/ worker.py;", "").replace("2s", "100ms")
    assert masked(again.replace("5/3s", "5/1100ms").replace(port, "PORT")) == masked(ports.sub("PORT", text))
