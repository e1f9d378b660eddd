"""What the fast part of the tests has at least."""

import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.combinations import ALWAYS, FOUR, SETTINGS, chosen, in_half
from tests.conformance import test_server_stores, test_stores

from capline.testing.conformance import StoreConformance

ROOT = Path(__file__).parents[3]
LEAST_LAWS = 8


def test_every_law_is_checked_on_memory_and_on_lmdb_all_day() -> None:
    listed = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "--collect-only",
            "-m",
            "not deep",
            "tests/conformance/test_stores.py",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    asked = [line.split("::")[1:] for line in listed.splitlines() if "::" in line]
    laws = {store: {law for name, law in asked if name == store} for store in ALWAYS}
    assert len(laws["TestMemory"]) > 150
    # A store in a process is not asked by several processes at once.
    assert laws["TestMemory"] <= laws["TestLmdb"]
    assert {law for _, law in asked} == laws["TestLmdb"]
    held = Counter(name for name, _ in asked)
    assert all(held[name] >= LEAST_LAWS for name in stores_of(test_stores))


def test_every_store_on_servers_is_held_to_some_laws_all_day() -> None:
    stores: Any = stores_of(test_server_stores)
    laws = [name for name in dir(StoreConformance) if name.startswith("test_")]
    held = Counter(store for law in laws for store in chosen(f"tests/conformance/test_server_stores.py::{law}", stores))
    assert all(held[name] >= LEAST_LAWS for name in stores)


@pytest.mark.parametrize("law", ["test_first", "test_second", "test_third"])
def test_a_law_meets_every_three_settings_of_servers_in_the_deep_part(law: str) -> None:
    half = [name for name in stores_of(test_server_stores) if in_half(law, name) and "Next" not in name]
    assert len(half) == 8
    for three in combinations(FOUR, 3):
        assert len({tuple(word in name for word in three) for name in half}) == 8


def stores_of(module: ModuleType) -> list[str]:
    """The names of their classes."""
    return [name for name in vars(module) if name.startswith("Test")]


@pytest.mark.parametrize("kind", ["redis", "valkey"])
@pytest.mark.parametrize("layout", ["subject", "bucket"])
@pytest.mark.parametrize("question", ["first", "second"])
def test_a_question_is_asked_in_one_setting_all_day(
    request: pytest.FixtureRequest, kind: str, layout: str, question: str
) -> None:
    """This test is one of them; of the others, those that this run chose."""
    assert kind
    assert layout
    if "deep" not in request.config.option.markexpr:
        pytest.skip("a run of all tests chooses none: -m 'not deep' is what make test asks")
    asked: Counter[tuple[str, str]] = Counter()
    for item in request.session.items:
        spec: Any = getattr(item, "callspec", None)
        params: dict[str, object] = spec.params if spec else {}
        if params.keys() & SETTINGS and "tests/conformance/" not in item.nodeid and not item.get_closest_marker("deep"):
            what = {name: value for name, value in params.items() if name not in SETTINGS}
            asked[item.nodeid.partition("[")[0], str(what)] += 1
    node: Any = request.node
    mine: str = node.nodeid.partition("[")[0]
    # The deep part has the others, each of which is none of these.
    assert asked[mine, str({"question": question})] == (0 if node.get_closest_marker("deep") else 1)
    assert [key for key, times in asked.items() if times > 1] == []
