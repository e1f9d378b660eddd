"""Wildcards of a descriptor: which values they match, and at what cost."""

import re
from itertools import pairwise, product

import pytest

from capline.service.envoy.rules import Descriptor


def matches(pattern: str, value: str) -> bool:
    """Whether a descriptor of this value is found."""
    descriptor = Descriptor()
    descriptor.add("key", pattern, Descriptor())
    return descriptor.below("key", value) is not None


def words(letters: str, longest: int) -> list[str]:
    return ["".join(word) for size in range(longest + 1) for word in product(letters, repeat=size)]


def test_a_star_is_any_text() -> None:
    values = words("ab\n", 4)
    for pattern in words("ab*", 5):
        if "*" not in pattern:
            continue
        form = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
        for value in values:
            assert matches(pattern, value) == (value == pattern or form.fullmatch(value) is not None), (pattern, value)


class Counted(str):
    """A text that notes from where to where it was searched."""

    __slots__ = ("searched",)
    searched: list[int]

    def find(self, *words: object) -> int:
        """As of `str`."""
        piece, start, end = words
        assert isinstance(piece, str)
        assert isinstance(start, int)
        assert isinstance(end, int)
        found = super().find(piece, start, end)
        self.searched += [start, end if found < 0 else found + len(piece)]
        return found


@pytest.mark.parametrize("value", ["/users/" * 200, "/api/" + "/users/" * 200, "/api/" + "/users/a" * 200 + "/x"])
def test_no_part_of_a_value_is_searched_twice(value: str) -> None:
    counted = Counted(value)
    counted.searched = []
    assert matches("/api/*/users/*/users/*/x", counted) == value.endswith("/x")
    searched = counted.searched
    assert bool(searched) == value.endswith("/x"), "its beginning and end are looked at first"
    assert all(before <= after for before, after in pairwise(searched))
