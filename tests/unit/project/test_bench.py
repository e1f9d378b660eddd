"""Benchmarks cannot rot: each runs at its smallest and its answers are right; their page is what the kept runs say."""

from __future__ import annotations

import importlib
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[3] / "bench"
IN_CI = (
    "paths",
    "redis_paths",
    "flat",
    "many",
    "keep_free",
    "import_time",
    "service_parts",
    "envoy_grpc",
    "web",
    "smtp",
    "replay",
    "by_rules",
)
"""The rows beside peers, and what takes seconds; `growth` has a test of its own."""


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    logger = logging.getLogger("capline")
    level = logger.level
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    yield importlib.import_module("page")
    logger.setLevel(level)  # benchmarks silence the warnings about their servers


def test_the_page_and_its_charts_are_drawn_from_the_kept_runs(page: Any) -> None:
    for path, text in page.drawn().items():
        assert path.read_text(encoding="utf-8") == text, f"python bench/page.py --runs 0 writes {path.name}"


def test_every_program_is_on_the_page(page: Any) -> None:
    assert {path.stem for path in BENCH.glob("[!_]*.py")} - {"page"} == set(page.PROGRAMS)


@pytest.mark.parametrize(
    ("unit", "target", "ratio"),
    [("us", "at most 4", 0.5), ("bytes", "", 0.5), ("mails/s", "", 2), ("x", "at least 9", 2)],
)
def test_a_row_is_ahead_of_its_peer_where_more_or_less_is_wanted(
    page: Any, unit: str, target: str, ratio: float
) -> None:
    assert page.ahead({"value": 8, "unit": unit, "target": target, "peers": {"limits": 4}}) == ratio


def test_a_row_is_the_median_of_its_runs_and_what_misses_is_named(page: Any) -> None:
    def run(us: float) -> dict[str, Any]:
        row = {"name": "a row", "value": us, "unit": "us", "target": "at most 2", "met": us <= 2, "why": "the lock"}
        report = {"title": "Runs", "machine": "one", "load": 0.0, "versions": {"limits": "5"}}
        return {**report, "figures": [{**row, "peers": {"limits": 4 * us}}]}

    text = page.page({"paths": page.together([run(1), run(5), run(3)])})
    assert "- a row: 3 us, target at most 2. the lock." in text
    assert "| a row | **3 us** | 1 to 5 | at most 2 | limits 12 |" in text
    assert "`bench/decide.py`" in text.partition("## Not run")[2]


@pytest.mark.deep
@pytest.mark.parametrize("name", IN_CI)
def test_a_short_run_gives_right_answers(page: Any, name: str) -> None:
    command = [sys.executable, str(BENCH / f"{name}.py"), *page.PROGRAMS[name].split(), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["figures"]
