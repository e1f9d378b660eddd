"""`typing.override`, which Python has from 3.12 on: a method without a docstring does what its base's docstring says.

Ruff takes it for `typing.override` by its setting `typing-modules`, and pyright sees the real one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import override
else:

    def override(method: object) -> object:
        """The method as it is."""
        return method


__all__ = ["override"]
