"""NumPy, loaded at first use: it takes longer to load than all of capline, and only calls over many subjects need it.

if TYPE_CHECKING:
    import numpy as np
else:
    from capline.model.arrays import np
"""

from __future__ import annotations

from typing import Any

from capline.model.errors import CaplineError
from capline.support.lazy import LazyModule
from capline.support.override import override

NO_NUMPY = 'a call over many subjects needs numpy: pip install "capline[batch]"'


class _NumPy(LazyModule):
    @override
    def __getattr__(self, attribute: str) -> Any:
        try:
            return super().__getattr__(attribute)
        except ModuleNotFoundError as error:
            if error.name != "numpy":
                raise
            raise CaplineError(NO_NUMPY) from None


np: Any = _NumPy("numpy")
