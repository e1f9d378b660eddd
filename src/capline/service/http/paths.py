"""Matches paths to templates such as `/v1/segments/{name}/count`, where `{name}` is any one part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_T = TypeVar("_T")


class Paths(Generic[_T]):
    """Finds the value at a path, its template, and what stands for the template's names, as it was sent.

    A template without names wins; a name stands for one part that is not empty. Cost: a dictionary look-up, and with
    names a comparison for each template of as many parts.
    """

    def __init__(self, paths: Mapping[str, _T]) -> None:
        self._exact = {path.encode(): (found, path, ()) for path, found in paths.items() if "{" not in path}
        self._named: dict[int, list[tuple[list[bytes], _T, str]]] = {}
        for path, found in paths.items():
            parts = [b"" if part.startswith("{") else part.encode() for part in path.split("/")[1:]]
            if "{" in path:
                self._named.setdefault(len(parts), []).append((parts, found, path))

    def find(self, path: bytes) -> tuple[_T, str, tuple[bytes, ...]] | None:
        """None where nothing is at this path."""
        exact = self._exact.get(path)
        if exact is not None:
            return exact
        sent = path.split(b"/")[1:]
        for parts, found, template in self._named.get(len(sent), ()):
            names = _names(parts, sent)
            if names is not None:
                return found, template, names
        return None


def names_of(path: str) -> Iterable[str]:
    """The names in a path, in order."""
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _names(parts: list[bytes], sent: list[bytes]) -> tuple[bytes, ...] | None:
    names: list[bytes] = []
    for part, word in zip(parts, sent, strict=True):
        if not part:
            if not word:
                return None
            names.append(word)
        elif part != word:
            return None
    return tuple(names)
