"""Lazy imports: a module, or names of a package that live in other modules, loaded at first use.

For what is slow to load and not always needed.

    __getattr__ = lazy_names(__name__, {"package.aio": ("AsyncLimiter",)})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


class LazyModule:
    """Stands for the module of this name; an attribute is looked up once and then kept."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self._name), attribute)
        self.__dict__[attribute] = value
        return value


def lazy_names(package: str, homes: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """A package's `__getattr__` (PEP 562) for these names by module; a name is kept after its first use."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(import_module(package), name, value)
        return value

    return load
