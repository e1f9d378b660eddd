"""What the fast part of the tests has at least."""

from collections import Counter
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.combinations import ALWAYS, SETTINGS, WORDS, chosen, meet_every_setting
from tests.conformance import test_server_stores, test_stores

LEAST_LAWS = 8


@pytest.mark.parametrize("module", [test_stores, test_server_stores])
def test_every_store_is_held_to_some_laws_all_day_and_memory_and_lmdb_to_every_law(module: ModuleType) -> None:
    file = f"tests/conformance/{module.__name__.rpartition('.')[2]}.py"
    stores = {name: [law for law in dir(vars(module)[name]) if law.startswith("test_")] for name in stores_of(module)}
    laws = {law for names in stores.values() for law in names}
    assert len(laws) > 150
    assert not [mark for name in stores for mark in getattr(vars(module)[name], "pytestmark", ())]
    held: Counter[str] = Counter()
    for law in laws:
        asked: Any = [SimpleNamespace(nodeid=f"{file}::{name}::{law}") for name in stores if law in stores[name]]
        held.update(item.nodeid.split("::")[1] for item in chosen(f"{file}::{law}", asked))
    assert all(held[name] >= (len(stores[name]) if name in ALWAYS else LEAST_LAWS) for name in stores)


@pytest.mark.parametrize("law", ["test_first", "test_second", "test_third"])
def test_a_law_meets_every_setting_of_servers_in_the_deep_part(law: str) -> None:
    stores = [frozenset((word, word in name) for word in WORDS) for name in stores_of(test_server_stores)]
    for first in range(len(stores)):
        kept = meet_every_setting(law, stores, [first])
        assert first in kept
        assert len(kept) <= 3
        assert {setting for index in kept for setting in stores[index]} == {
            (w, b) for w in WORDS for b in (True, False)
        }


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
