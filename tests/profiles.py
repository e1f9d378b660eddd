"""How much a random test tries: little all day, more in the deep part, most in the proof, and another path each time
only where one asks.

    CAPLINE_TESTS=fast     (the default) `make test`
    CAPLINE_TESTS=deep     `make test-deep`
    CAPLINE_TESTS=proof    `make proof`: what is `long` too, and every combination of settings
    CAPLINE_TESTS=random   as proof, from another seed each time: to search for faults, not to accept a change

The first three are derandomized: a change is judged by what it changed, not by the draw of the day. So
Hypothesis must not draw from the constants of loaded modules, which differ with the tests that a worker got before.
"""

import os
from collections.abc import Iterable
from itertools import chain, product
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

__all__ = ["DEEP", "PROOF", "first", "load_profile", "pairs", "size", "sized"]

_NAME = os.environ.get("CAPLINE_TESTS", "fast")
_NAMES = ("fast", "deep", "proof", "random")
if _NAME not in _NAMES:
    raise pytest.UsageError(f"CAPLINE_TESTS={_NAME} is none of {', '.join(_NAMES)}")
RANDOM = _NAME == "random"
DEEP = _NAME != "fast"
PROOF = _NAME in ("proof", "random")

sized = pytest.mark.sized
"""For tests that run in both parts, with another `size` in each."""


def size(fast: int, deep: int, proof: int = 0) -> int:
    """The number for the part that runs; the proof's is the deep part's where it has none."""
    return (PROOF and proof) or (deep if DEEP else fast)


def first(count: int, cases: Iterable[object]) -> list[object]:
    """Cases of which the first are tried all day and the others in the deep part."""
    listed = list(cases)
    return [*listed[:count], *(pytest.param(case, marks=pytest.mark.deep) for case in listed[count:])]


def pairs(*dimensions: Iterable[Any]) -> list[Any]:
    """Cases of every combination, flat: all day as few as have each value of each dimension, the others in the deep
    part."""
    listed: list[list[Any]] = [
        [value if type(value) is tuple else (value,) for value in values] for values in dimensions
    ]
    most = max(len(values) for values in listed)
    all_day = [[values[number % len(values)] for values in listed] for number in range(most)]
    return [
        pytest.param(*chain(*case), marks=[] if [*case] in all_day else pytest.mark.deep) for case in product(*listed)
    ]


def load_profile() -> None:
    """Make these Hypothesis's defaults; `settings(...)` of a test, made later, is on top of them."""
    slow_machine = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings.register_profile(
        "capline",
        max_examples=size(20, 50, 100),
        derandomize=not RANDOM,
        database=None,
        deadline=None,
        suppress_health_check=slow_machine,
    )
    settings.load_profile("capline")
    if not RANDOM:
        drawn_from: Any = providers  # there is no setting for it
        none = drawn_from._local_constants  # empty still
        drawn_from._get_local_constants = lambda: none
