"""`capline docs`, and the addresses of pages that errors name."""

import json
import sys
import webbrowser
from pathlib import Path

import pytest
from tests.kit.cli import CommandLine

from capline.cli.render.site import linked


@pytest.fixture
def capline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(tmp_path, monkeypatch, capsys)


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "packages" / "capline_docs"
    (folder / "reference").mkdir(parents=True)
    for name in ("index", "reference/stores"):
        (folder / f"{name}.html").write_text("a page")
    monkeypatch.setattr(sys, "path", [str(folder.parent), *sys.path])
    return folder


def test_where_it_is_not_installed_one_line_says_how_to_get_it(capline: CommandLine) -> None:
    done = capline("docs")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "make docs" in done.stderr
    assert linked("see docs/index.md") == "see docs/index.md"


@pytest.mark.parametrize("words", [(), ("--print",), ("--json",), ("--json", "--print")])
def test_the_copy_is_opened(
    capline: CommandLine, copy: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    done = capline("docs", *words)
    index = copy / "index.html"
    assert (done.returncode, done.stderr) == (0, "")
    assert opened == ([] if "--print" in words else [index.as_uri()])
    if "--json" in words:
        assert json.loads(done.stdout) == {"page": str(index), "opened": bool(opened)}
    else:
        assert done.stdout == f"{index}\n"


def test_a_page_that_an_error_names_becomes_its_address(copy: Path) -> None:
    assert linked("see docs/reference/stores.md#rights, or docs/none.md") == (
        f"see {(copy / 'reference' / 'stores.html').as_uri()}#rights, or docs/none.md"
    )
