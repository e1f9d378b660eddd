"""Which tests run all day, and which only in the deep part (`make test-deep`).

Many tests ask one question in many settings: on Redis and on Valkey, in each layout, at once and awaited, on each
store. The fast part asks each question in one setting, another one from test to test, so that together they meet every
setting. Of all others, which are marked `deep`, the deep part asks laws on servers in half of the combinations, another
half from law to law, so that each law meets every three of the four settings. CAPLINE_TESTS=random has every test.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from zlib import crc32

import pytest

__all__ = ["chosen", "in_half", "left_out", "mark_deep"]

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
LONG_LAWS = frozenset(
    (
        "test_an_id_is_known_in_a_long_log",
        "test_askers_that_interleave_finely_get_exactly_the_quota_each_hit_its_own_stamp",
        "test_four_processes_get_exactly_the_quota",
        "test_hundreds_of_reservations_on_a_long_log",
        "test_long_logs_have_states",
        "test_more_rows_than_go_in_one_step",
        "test_what_was_allowed_outlives_a_quota_that_was_smaller_for_a_while",
    )
)
"""Laws that take long: all day one store of each file keeps them."""

FOUR = ("Valkey", "Cluster", "Async", "Bucket")
"""The settings of a server store, as its name has them."""

SLOW_ON_DISK = ("_interleave_finely_", "_an_id_is_known_in_a_long_log", "_more_rows_than_go_in_one_step")
"""Laws that the example over SQLite keeps in the deep part alone: it syncs each step to the disk."""


def mark_deep(items: Sequence[pytest.Item]) -> None:
    """Mark all combinations but the chosen ones; what is marked already stays so."""
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    numbers = _Numbers()
    for item in items:
        question = _question(item, numbers)
        if question is not None:
            groups[question].append(item)
    for question, asked in groups.items():
        for item in asked:
            if item not in chosen(question, asked):
                item.add_marker(pytest.mark.deep)


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Those that neither part asks."""
    return [
        item
        for item in items
        if "tests/conformance/test_server_stores.py" in item.nodeid
        and item.get_closest_marker("deep")
        and not in_half(item.name, _class_of(item))
    ]


def in_half(law: str, store: str) -> bool:
    """Whether the law meets this server store in one of the parts; a store that is like no other meets all."""
    return "Next" in store or (sum(word in store for word in FOUR) + crc32(law.encode())) % 2 == 0


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
    turn = crc32(question.encode())
    if "tests/conformance/test_stores.py" in question:
        others = [item for item in asked if _class_of(item) not in ALWAYS]
        return [*(item for item in asked if _class_of(item) in ALWAYS), *(others and [others[turn % len(others)]])]
    if "tests/conformance/test_entry_points.py" in question and any(law in question for law in SLOW_ON_DISK):
        return []
    return [asked[turn % len(asked)]]


def _class_of(item: pytest.Item) -> str:
    """The name that the module gives it: what `conformance` makes is called the same everywhere."""
    return item.nodeid.split("::")[1]
