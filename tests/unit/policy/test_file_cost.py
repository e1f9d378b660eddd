"""What a large policy file costs is in proportion to its length. Counted in lines of Python, not in seconds."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from capline.limiter.policies.rules import Rules
from capline.policy.file import LARGEST_FILE_BYTES, load, loads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from _typeshed import TraceFunction


def lines_of(work: Callable[[], object]) -> int:
    """How many lines of Python, comprehensions counted by round, the work takes."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> TraceFunction:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def file_of(policies: int, body: str) -> str:
    return "policies:\n" + "".join(f" p{number}: {body.format(number)}\n" for number in range(policies))


SHAPES = [
    pytest.param("{{limits: [1/day], log: x}}", id="one-log"),
    pytest.param("{{limits: [1/day]}}", id="a-log-each"),
    pytest.param("{{limits: [1/day], log: x, channels: {{c{0}: [1/day]}}}}", id="one-log-many-channels"),
    pytest.param("{{limits: [{0}/day, x]}}", id="a-fault-each"),
]


def read(text: str) -> None:
    """Read it, and whatever a limiter asks of it at first."""
    try:
        file = loads(text)
    except ValueError:
        return
    rules = Rules(file.policies, file.namespace)
    for name in rules.policies:
        rules.rule(*rules.any_names(name))
        rules.log_rule(rules.policy(name).log)


@pytest.mark.parametrize("body", SHAPES)
def test_four_times_the_policies_are_four_times_the_work(body: str) -> None:
    few, many = (lines_of(lambda count=count: read(file_of(count, body))) for count in (50, 200))
    assert many < 4.5 * few, (few, many)


def test_the_largest_file_is_read(tmp_path: Path) -> None:
    text = file_of(14_000, "{{limits: [1/day], log: x}}")
    assert len(text) < LARGEST_FILE_BYTES
    (tmp_path / "policies.yaml").write_text(text, encoding="utf-8")
    assert len(load(tmp_path / "policies.yaml").policies) == 14_000


@pytest.mark.long
def test_a_hundred_thousand_policies_are_read() -> None:
    assert len(loads(file_of(100_000, "{{limits: [1/day, 3/week], by_segment: {{a: [2/day]}}}}")).policies) == 100_000
