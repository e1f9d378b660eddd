"""What the documents show runs as it stands there. Links and tables: tests/unit/project/test_docs_form.py."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tools.console import SITE
from tools.picture import COLOURS, picture

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = ("configuration", "service", "policies", "campaigns")
"""Pages with a test of their own, which runs their examples together."""
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in (ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if page.stem not in ELSEWHERE))
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_an_example_runs(block: str, tmp_path: Path) -> None:
    code = block.replace("/tmp/capline-readme", str(tmp_path))  # noqa: S108 - the example's own path, replaced
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_extra_is_on_the_page_about_installing() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    page = (DOCS / "howto" / "installing.md").read_text(encoding="utf-8")
    assert {extra for extra in extras if f"`capline[{extra}]`" not in page} == set()


def test_the_figures_of_the_production_checklist_are_the_measured_ones() -> None:
    page, measured = (
        (DOCS / name).read_text(encoding="utf-8") for name in ("howto/production.md", "reference/benchmarks.md")
    )
    figures = re.findall(r"\| ([0-9.,]+) (bytes a user|decisions/s|us each) \|$", page, re.MULTILINE)
    assert len(figures) == 9
    for number, unit in figures:
        assert re.search(rf"(?<![\d,.]){re.escape(number)}(?![\d.,]\d)", measured), (number, unit)


def test_the_figures_of_the_capacity_table_are_the_measured_ones() -> None:
    page, measured = (
        (DOCS / name).read_text(encoding="utf-8") for name in ("reference/operating.md", "reference/benchmarks.md")
    )
    table = page.partition("## Capacity")[2]
    for figure in ("18,397", "618,356", "90.6 MB"):
        assert figure in table
        assert re.search(rf"(?<![\d,.]){re.escape(figure)}", measured), figure


def test_the_figures_of_the_algorithms_are_the_measured_ones() -> None:
    page, measured = (
        (DOCS / name).read_text(encoding="utf-8") for name in ("explanation/algorithms.md", "reference/benchmarks.md")
    )
    rows = {cells[0]: cells[1:] for line in page.splitlines() if len(cells := line.strip("| ").split(" | ")) == 6}
    for row, work in {"memory, µs a decision": "one unit", "Redis, over a `SET`": "one unit, wall, over SET"}.items():
        for algorithm, figure in zip(rows["measured"], rows[row], strict=True):
            name = f"{row.lower().partition(',')[0]}, {algorithm.strip('`')}: {work}"
            found = re.findall(rf"^\| {name} \| \**([\d.]+) ", measured, re.MULTILINE)
            assert found == [figure], name


def test_the_readme_prints_what_its_example_says(tmp_path: Path) -> None:
    code = str(BLOCKS[0].values[0]).replace("/tmp/capline-readme", str(tmp_path))  # noqa: S108 - as above
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["send it; 2 left under 3/day", "100000 of 100000 may be sent"]


README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_readme_is_short_and_every_block_of_it_is_tried() -> None:
    assert len(README.splitlines()) <= 130
    assert re.findall(r"```(\w+)", README) == ["sh", "python", "python", "python", "sh"]
    assert [block.split(maxsplit=1)[0] for block in SHELL] == ["pip", "capline"]
    assert all(len([line for line in block.splitlines() if line]) <= 10 for block in PYTHON)


def test_the_readme_installs_extras_that_there_are() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {extra for some in re.findall(r"capline\[([a-z,]+)\]", README) for extra in some.split(",")}
    assert named <= set(extras)


def test_the_readme_names_targets_that_there_are() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make (\w+)`", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_two_commands_of_the_readme_run_as_they_stand(tmp_path: Path) -> None:
    line = '192.0.2.7 - - [26/Nov/2026:11:00:00 +0000] "GET / HTTP/1.1" 200 5\n'
    (tmp_path / "access.log").write_text(line * 25, encoding="ascii")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-euc", SHELL[1]]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, done.stderr
    assert "campaign.yaml" in done.stdout
    assert "20/minute" in done.stdout


def test_the_readmes_api_refuses_the_21st_request(tmp_path: Path) -> None:
    asks = """
from starlette.testclient import TestClient
with TestClient(app) as client:
    answers = [client.get("/") for _ in range(21)]
assert [answer.status_code for answer in answers] == [404] * 20 + [429] and answers[-1].headers["Retry-After"]
"""
    code = PYTHON[2].replace("/tmp/capline-readme", str(tmp_path)) + asks  # noqa: S108 - as above
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_figures_of_the_readme_are_the_measured_ones() -> None:
    measured = (DOCS / "reference" / "benchmarks.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\| (?:µs a decision|the same on).*", README, re.MULTILINE):
        for figure in re.findall(r"\| ([\d.]+) (?=\|)", row):
            assert re.search(rf"\| \**{re.escape(figure)}\** \|", measured), figure


def test_the_readmes_picture_is_what_its_program_draws() -> None:
    for scheme in COLOURS:
        assert picture(scheme) == (DOCS / "_static" / f"window-{scheme}.svg").read_text(encoding="utf-8")


def test_pictures_of_the_console_are_small_and_shown() -> None:
    pages = README + (DOCS / "howto" / "console.md").read_text(encoding="utf-8")
    pictures = [*(DOCS / "_static").glob("console*.webp")]
    assert len(pictures) > len(SITE)
    for file in pictures:
        assert (1000 < file.stat().st_size < 150_000, f"_static/{file.name}" in pages) == (True, True), file


def test_no_page_or_program_names_the_machine_or_a_registry() -> None:
    named = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],  # noqa: S607 - the git of whoever cloned it
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    wrong = re.compile(r"/work/|/root/|files\.pythonhosted|pypi\.org/simple|deb\.debian\.org|BEGIN [A-Z ]*PRIVATE KEY")
    for name in named.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and path != Path(__file__) and path.suffix not in (".gz", ".webp"):  # all else is text
            assert not wrong.search(path.read_text(encoding="utf-8")), name
