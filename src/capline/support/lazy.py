"""What is made at first use: an attribute, a module, names of a package that live in other modules.

For what is slow to make or to load, or large, and not always needed.

    __getattr__, __all__, __dir__ = lazy_names(__name__, {"package.aio": ("AsyncLimiter",)})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    made_once = property  # to checkers no other is an attribute of a protocol
else:

    class made_once:  # noqa: N801 - a decorator
        """As `functools.cached_property`, whose lock in Python 3.11 a forked child may find taken."""

        def __init__(self, make: Callable[[Any], Any]) -> None:
            self._make = make

        def __set_name__(self, _: type, name: str) -> None:
            self._name = name

        def __get__(self, thing: Any, _: type) -> Any:
            value = thing.__dict__[self._name] = self._make(thing)
            return value


class LazyModule:
    """Stands for the module of this name; an attribute is looked up once and then kept."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self._name), attribute)
        self.__dict__[attribute] = value
        return value


def lazy_names(
    package: str, homes: Mapping[str, Iterable[str]], *others: str
) -> tuple[Callable[[str], Any], list[str], Callable[[], list[str]]]:
    """A package's `__getattr__` (PEP 562), `__all__` and `__dir__`: these names by module, and others.

    A name is kept after its first use.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    every = sorted([*home_of, *others])

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(import_module(package), name, value)
        return value

    return load, every, lambda: every
