"""Dicts that cost by what is asked of them: one that is changed by copies, and one that is sorted when it is listed."""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from functools import cached_property
from typing import Any, TypeVar

from capline.support.override import override

V = TypeVar("V")
MOST_CHANGES = 64
"""With more changes, and more than a 64th of the whole, they are put into a dict of their own."""
_MISSING: Any = object()


class Layered(Mapping[str, V]):
    """What `before` has, with other values for some names; None removes a name. Neither is changed from then on."""

    __slots__ = ("_layers",)

    def __init__(self, before: Mapping[str, V], changes: Mapping[str, V | None]) -> None:
        base, former = before._layers if isinstance(before, Layered) else (before, {})  # noqa: SLF001 - of its kind
        self._layers: tuple[Mapping[str, Any], dict[str, Any]] = base, {**former, **changes}
        if len(self._layers[1]) > max(MOST_CHANGES, len(base) // MOST_CHANGES):
            self._whole()

    def _whole(self) -> Mapping[str, V]:
        base, changes = self._layers
        if changes:
            base = {**base, **changes}
            for name in [name for name, value in changes.items() if value is None]:
                del base[name]
            self._layers = base, {}
        return base

    @override
    def __getitem__(self, name: str) -> V:
        base, changes = self._layers
        value = changes.get(name, _MISSING)
        if value is _MISSING:
            return base[name]
        if value is None:
            raise KeyError(name)
        return value

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    @override
    def __len__(self) -> int:
        return len(self._whole())

    @override
    def values(self) -> ValuesView[V]:
        """The values, in the order of the names."""
        return self._whole().values()

    @override
    def items(self) -> ItemsView[str, V]:
        """The names, each with its value."""
        return self._whole().items()


class InOrder(Mapping[str, V]):
    """Another mapping, which does not change, in the order of its names; to look one up sorts nothing."""

    def __init__(self, of: Mapping[str, V]) -> None:
        self._of = of

    @cached_property
    def names(self) -> list[str]:
        """The names, in order."""
        return sorted(self._of)

    @override
    def __getitem__(self, name: str) -> V:
        return self._of[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    @override
    def __len__(self) -> int:
        return len(self._of)
