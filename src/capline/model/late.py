"""What is loaded when it is first asked for: a module, or names of a package that live in other modules.

For what is slow to load and not always needed: NumPy, which only calls over many subjects need, takes longer to load
than all of capline.

    if TYPE_CHECKING:
        import numpy as np
    else:
        np = LateModule("numpy")
        __getattr__ = late_names(__name__, {"package.aio": ("AsyncLimiter",)})
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["LateModule", "late_names"]


class LateModule:
    """Stands for the module of this name; what was asked for once is found at once from then on."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self._name), attribute)
        self.__dict__[attribute] = value
        return value


def late_names(package: str, homes: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """A package's `__getattr__` (PEP 562): names by the module that has them, each kept once it was asked for."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(import_module(package), name, value)
        return value

    return load
