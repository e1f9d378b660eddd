"""The store of a closed limiter: every verb raises `StoreClosedError`."""

from typing import Any, NoReturn

from capline.model.errors import StoreClosedError


class _ClosedStore:
    """Every verb, called or awaited, raises `StoreClosedError`."""

    __slots__ = ()

    def __getattr__(self, verb: str) -> NoReturn:
        raise StoreClosedError("this limiter was closed; make a new one")


CLOSED: Any = _ClosedStore()
