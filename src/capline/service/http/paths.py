"""Matches paths to templates such as `/v1/segments/{name}/count`, where `{name}` is any one part."""

import re
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")
_NAME = re.compile(r"{(\w+)}")


class Paths(Generic[_T]):
    """Finds the value at a path, its template, and what stands for the template's names, as it was sent.

    A template without names wins; a name stands for one part that is not empty. Cost: a dictionary look-up, and with
    names a match for each template.
    """

    def __init__(self, paths: Mapping[str, _T]) -> None:
        self._exact = {path.encode(): (found, path, ()) for path, found in paths.items() if "{" not in path}
        self._named = [
            (re.compile(_NAME.sub("([^/]+)", path).encode()), found, path)
            for path, found in paths.items()
            if "{" in path
        ]

    def find(self, path: bytes) -> tuple[_T, str, tuple[bytes, ...]] | None:
        """None where nothing is at this path."""
        exact = self._exact.get(path)
        if exact is not None:
            return exact
        for pattern, found, template in self._named:
            if match := pattern.fullmatch(path):
                return found, template, match.groups()
        return None


def names_of(path: str) -> Sequence[str]:
    """The names in a path, in order."""
    return _NAME.findall(path)
