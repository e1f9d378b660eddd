"""Which tests run all day, and which only in the deep part (`make test-deep`).

Many tests ask one question in many settings: on Redis and on Valkey, in each layout, at once and awaited, on each
store. The fast part asks each question in one setting, another one from test to test, so that together they meet every
setting. Of all others, which are marked `deep`, the deep part asks as few as meet every setting of the question: laws
on servers in some 3 of 18 combinations, another choice from law to law. `make proof` has all.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast
from zlib import crc32

import pytest

__all__ = ["chosen", "is_another_s", "left_out", "mark_deep", "meet_every_setting"]

SETTINGS = frozenset(
    (
        "kind",
        "layout",
        "nodes",
        "pair",
        "limiters",
        "asynchronous",
        "face",
        "store",
        "schedule",
        "topology",
        "loader",
        "server",
        "proxy",
        "site",
    )
)
"""Names of parameters that say where a question is asked, and not what is asked."""
ALWAYS = frozenset(("TestMemory", "TestLmdb"))
"""Stores that every law is checked on, all day."""
WORDS = ("Valkey", "Cluster", "Async", "Bucket", "Next")
"""The settings of a store, as its name has them."""
ONCE = ("tests/conformance/test_entry_points.py", "tests/conformance/test_over_http.py")
"""What keeps each law once, asked at once or awaited: the example of a store, and the service before one."""

SLOW_ON_DISK = (
    *("_interleave_finely_", "_an_id_is_known_in_a_long_log", "_more_rows_than_go_in_one_step"),
    "_four_processes_get_exactly_the_quota",
)
"""Laws that the example over SQLite keeps in the proof alone: it syncs each step to the disk."""
EXAMPLE_LAWS = 6
"""Of so many laws the example keeps one all day: what it shows is that a stranger's store can be held to them."""


def mark_deep(items: Sequence[pytest.Item]) -> None:
    """Mark all combinations but the chosen ones; what is marked already stays so."""
    for question, asked in _groups(items).items():
        for item in asked:
            if item not in chosen(question, asked):
                item.add_marker(pytest.mark.deep)


def is_another_s(store: pytest.Collector, law: str) -> bool:
    """Whether all day another store than this is asked: it would take long to collect each law for each of them."""
    module = store.getparent(pytest.Module)
    if module is None or not isinstance(store, pytest.Class) or not law.startswith("test_"):
        return False
    if not module.nodeid.endswith(("conformance/test_stores.py", "conformance/test_server_stores.py")):
        return False
    made = cast("dict[str, Any]", vars(module.obj))
    names = [f"{module.nodeid}::{name}" for name, value in made.items() if hasattr(value, law)]
    asked: Any = [SimpleNamespace(nodeid=name) for name in names]
    return store.nodeid not in {each.nodeid for each in chosen(f"{module.nodeid}::{law}", asked)}


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Those that neither part asks."""
    number, left = _Numbers(), list[pytest.Item]()
    for question, asked in _groups(items).items():
        if _is_slow(question):
            left += asked
            continue
        settings = [_settings(item, number) for item in asked]
        first = [asked.index(item) for item in chosen(question, asked)]
        kept = meet_every_setting(question, settings, first)
        left += [item for index, item in enumerate(asked) if index not in kept]
    return left


def meet_every_setting(question: str, settings: Sequence[frozenset[object]], first: Iterable[int] = ()) -> set[int]:
    """Which combinations to ask, beside the first ones, so that every setting is in one of them.

    Each time that which brings most of what is missing; where several do, another from question to question.
    """
    kept = {*first}
    missing = set[object]().union(*settings).difference(*(settings[index] for index in kept))
    order = sorted(range(len(settings)), key=lambda index: crc32(f"{question} {index}".encode()))
    while missing:
        best = max(order, key=lambda index: len(settings[index] & missing))
        kept.add(best)
        missing -= settings[best]
    return kept


def _groups(items: Sequence[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """The tests that ask the same question."""
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    numbers = _Numbers()
    for item in items:
        question = _question(item, numbers)
        if question is not None:
            groups[question].append(item)
    return groups


def _settings(item: pytest.Item, number: "_Numbers") -> frozenset[object]:
    """Where the test asks."""
    if any(module in item.nodeid for module in ONCE):
        return frozenset(["once"])
    if "tests/conformance/" in item.nodeid:
        return frozenset((word, word in _class_of(item)) for word in WORDS)
    assert isinstance(item, pytest.Function)
    params: dict[str, object] = item.callspec.params
    return frozenset((name, number("", name, value)) for name, value in params.items())


class _Numbers:
    """A number for each value that a parameter of a test takes, in their order; the same in every process.

    pytest's own indices number the sets of values, and each combination of stacked sets is one of its own.
    """

    def __init__(self) -> None:
        self._seen: defaultdict[tuple[str, str], list[object]] = defaultdict(list)

    def __call__(self, test: str, name: str, value: object) -> int:
        seen = self._seen[test, name]
        for number, other in enumerate(seen):
            if other is value:
                return number
        seen.append(value)
        return len(seen) - 1


def _question(item: pytest.Item, number: _Numbers) -> str | None:
    """What the test asks, whatever the setting; None for a test that has none."""
    if not isinstance(item, pytest.Function):
        return None
    module = item.nodeid.partition("::")[0]
    params: dict[str, object] = item.callspec.params if hasattr(item, "callspec") else {}
    if "tests/conformance/" in module and _class_of(item).startswith("Test") and item.name != "runTest":
        return f"{module}::{item.name}"
    if item.get_closest_marker("alone") and params:
        # It holds everybody up: asked once all day, whatever its parameters.
        return f"{module}::{item.cls and item.cls.__name__}::{item.originalname}"
    if not SETTINGS & params.keys():
        return None
    test = f"{module}::{item.cls and item.cls.__name__}::{item.originalname}"
    asked = sorted((name, number(test, name, value)) for name, value in params.items() if name not in SETTINGS)
    return f"{test}::{asked}"


def chosen(question: str, asked: Sequence[pytest.Item]) -> Iterable[pytest.Item]:
    """Those of the tests that ask this question which the fast part has."""
    law = question.partition("[")[0] if "tests/conformance/" in question else question
    turn = crc32(law.encode())
    if "tests/conformance/test_stores.py" in question:
        others = [item for item in asked if _class_of(item) not in ALWAYS]
        return [*(item for item in asked if _class_of(item) in ALWAYS), *(others and [others[turn % len(others)]])]
    if "tests/conformance/test_entry_points.py" in question and (turn % EXAMPLE_LAWS or _is_slow(question)):
        return []
    return [asked[turn % len(asked)]]


def _is_slow(question: str) -> bool:
    return "tests/conformance/test_entry_points.py" in question and any(law in question for law in SLOW_ON_DISK)


def _class_of(item: pytest.Item) -> str:
    """The name that the module gives it: what `conformance` makes is called the same everywhere."""
    return item.nodeid.split("::")[1]
