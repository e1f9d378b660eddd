"""The site: short pages, a build without a warning, nothing loaded from outside, a search that works from a disk."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from fcntl import LOCK_EX, flock
from html import unescape
from importlib import resources
from pathlib import Path

import pytest
from docutils import nodes
from docutils.utils import new_document
from sphinx import addnodes
from tests.e2e.test_demo_report import dom_of
from tests.e2e.test_install import built, installed
from tests.kit.gateway import free_port
from tools.reference import families, http, metrics, openapi, variables
from tools.site import MOST_WORDS_OF_ALL, too_long, words_of_pages
from tools.terms import TABLE, glossary, link_first, words
from tools.tutorial import PAGES, masked, minutes, played

from capline.service.run.file import VARIABLES

WITHOUT_NETWORK = """
import runpy, socket
socket.socket.connect = socket.create_connection = None
runpy.run_module("tools.site", run_name="__main__")
"""
OUTSIDE = r"""["']?(?:https?:)?//"""
LOADED = re.compile(rf"(?:src|srcset|action|data)={OUTSIDE}|<link [^>]*href={OUTSIDE}|@import|url\({OUTSIDE}")


def test_no_page_that_is_read_is_long() -> None:
    assert too_long(words_of_pages()) == []


def test_all_pages_together_have_no_more_words_than_they_may() -> None:
    assert sum(words_of_pages().values()) <= MOST_WORDS_OF_ALL


def test_the_pages_of_the_program_name_all_that_it_has() -> None:
    paths, told = http(), asyncio.run(openapi())
    for path, methods in told["paths"].items():
        assert all(f"| `{method.upper()} {path}` |" in paths for method in methods)
    assert all(f"\n### {name}\n" in paths for name in told["components"]["schemas"])
    page = metrics()
    assert all(f"| `{family.name}" in page for _, family in asyncio.run(families()))
    page = variables()
    assert all(f"| `{name}` |" in page for name in VARIABLES)
    assert "| `CAPLINE_QUEUE` | `--queue` of response, suggest, worker, " in page
    assert {code for code in "0123" if f"\n| {code} | " in page} == set("0123")
    assert "\n| 130 | " in page


VOCABULARY = (
    "subject, limit, policy, attempt, cost, hit, log, decision, store, segment, snapshot, peek, refund, schedule, "
    "explain, erase, usage, charge, settle, reserve, commit, cancel, override, move, keep free, due, hold, yield, "
    "hold-out, recipient, outcome"
)


def test_the_glossary_has_every_word_and_an_entry_for_each() -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert set(VOCABULARY.split(", ")) <= set(words(text))
    assert "\nreserve\ncommit\ncancel\n  a hit that expires by itself" in glossary(text)


def test_a_word_is_linked_where_a_page_first_says_it() -> None:
    said = nodes.paragraph("", "", nodes.literal("", "policy"), nodes.Text(" holds. Limits, a policy, a limit"))
    page = new_document("page")
    page += nodes.section("", nodes.title("", "Limits"), said)
    link_first(page)
    links = list(page.findall(addnodes.pending_xref))
    assert [(link["reftarget"], link.astext()) for link in links] == [("limit", "Limits"), ("policy", "policy")]
    assert page.astext() == "Limits\n\npolicy holds. Limits, a policy, a limit"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly, by a program that can reach no network: once for a whole run, then copied."""
    base: Path = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "built-site"
    place.mkdir(exist_ok=True)
    with (place / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not (place / "said").exists():
            built = subprocess.run(
                [sys.executable, "-c", WITHOUT_NETWORK, place / "site"],
                capture_output=True,
                text=True,
                check=False,
                cwd=Path(__file__).parents[2],
            )
            (place / "said").write_text(built.stdout + built.stderr if built.returncode else "", encoding="utf-8")
    assert (place / "said").read_text(encoding="utf-8") == ""
    copy: Path = tmp_path_factory.mktemp("site")
    return shutil.copytree(place, copy, dirs_exist_ok=True) / "site"


@pytest.mark.deep
def test_the_site_is_whole_loads_nothing_and_is_searched(site: Path, tmp_path: Path) -> None:
    read = [file for file in site.rglob("*") if file.suffix in (".html", ".css", ".svg")]
    assert len(read) > 40
    for file in read:
        assert not LOADED.search(file.read_text(encoding="utf-8")), file
    found = dom_of(site / "search.html", tmp_path, query="?q=hold-out")
    assert "explanation/glossary.html" in found
    assert 'href="../explanation/glossary.html#term-log"' in (site / "reference/stores.html").read_text("utf-8")


NAMED = re.compile(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?")


@pytest.mark.deep
def test_the_copy_that_a_wheel_brings_is_opened_searched_and_named_by_errors(site: Path, tmp_path: Path) -> None:
    (wheel,) = site.parent.glob("capline_docs-*-py3-none-any.whl")
    assert wheel.stat().st_size < 3_000_000
    programs = installed(built(tmp_path), None, tmp_path / "new", wheel)

    def capline(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([programs / "capline", *words], capture_output=True, text=True, check=False, cwd=tmp_path)

    done = capline("docs", "--print")
    assert (done.returncode, done.stderr) == (0, "")
    page = Path(done.stdout.rstrip("\n"))
    assert page.is_relative_to(tmp_path / "new")
    assert "explanation/glossary.html" in dom_of(page.with_name("search.html"), tmp_path, query="?q=hold-out")
    (tmp_path / "policies.yaml").write_text("policies: [", encoding="utf-8")
    assert f"({page.with_name('reference').as_uri()}/policies.html)\n" in capline("doctor").stdout
    # Every page and heading that the code names is in the copy.
    code = [file.read_text("utf-8") for file in (tmp_path / "new").rglob("site-packages/capline/**/*.py")]
    named = {name for text in code for name in NAMED.findall(text)}
    assert len(named) > 10
    for name in named:
        path, _, heading = name.removeprefix("docs/").partition("#")
        text = (page.parent / path).with_suffix(".html").read_text("utf-8")
        assert not heading or f'id="{heading}"' in text, name


AXE = """<script>
addEventListener("load", () => axe.run().then((found) => document.documentElement.setAttribute("data-axe",
  JSON.stringify(found.violations.filter((each) => ["critical", "serious"].includes(each.impact)).map((each) =>
    [each.id, each.nodes.map((node) => node.html + " " + node.failureSummary)])) + " of " + found.passes.length)));
</script>"""


@pytest.mark.deep
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [500, 1280], ids=["phone", "desktop"])  # 500: no headless window is narrower
@pytest.mark.parametrize("name", ["index", "tutorial/campaign", "reference/stores", "reference/http"])
def test_axe_finds_nothing_grave(site: Path, tmp_path: Path, name: str, width: int, scheme: str) -> None:
    axe = resources.files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    page = site / f"{name}-{width}-{scheme}.html"
    text = (site / f"{name}.html").read_text(encoding="utf-8")
    text = text.replace("</head>", f"<script>{axe}</script>{AXE}</head>", 1)
    page.write_text(text, encoding="utf-8")
    options = [f"--window-size={width},2400", f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"]
    dom = dom_of(page, tmp_path, options)
    page.unlink()
    (found,) = re.findall(r'<html[^>]* data-axe="([^"]*)"', dom)
    graves, _, passes = unescape(found).rpartition(" of ")
    assert json.loads(graves) == []
    assert int(passes) > 10


@pytest.mark.deep
@pytest.mark.alone
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tutorial_shows_what_its_commands_show(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert minutes(text) < 5.5
    port = str(free_port())
    ports = re.compile(r"(?<=app\.py )8000|(?<=localhost:)8000")
    # A busy machine is later with its calls than the page allows for.
    patience = " [ ! -e worker.py ] || sed -i s/100ms/2s/ worker.py;"
    late = ports.sub(port, text).replace("100ms", "2s").replace("cd shop;", f"cd shop;{patience}")
    again = played(late, tmp_path).replace(patience, "").replace("2s", "100ms")
    assert masked(again.replace("5/3s", "5/1100ms").replace(port, "PORT")) == masked(ports.sub("PORT", text))
