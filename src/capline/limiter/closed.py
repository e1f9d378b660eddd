"""What a closed limiter has for a store: whatever it is asked, it says that it is closed."""

from __future__ import annotations

from typing import Any, NoReturn

from capline.model.errors import StoreClosedError

__all__ = ["CLOSED"]


class _ClosedStore:
    """Has no verb: each, asked or awaited, raises `StoreClosedError`."""

    __slots__ = ()

    def __getattr__(self, verb: str) -> NoReturn:
        raise StoreClosedError("this limiter was closed; make a new one")


CLOSED: Any = _ClosedStore()
