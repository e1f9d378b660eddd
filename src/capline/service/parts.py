"""What the service stands on beside the library: an extra, not always there."""

from __future__ import annotations

from importlib.util import find_spec

from capline.model.errors import CaplineError

__all__ = ["check_service_parts"]

_PARTS = ("uvicorn", "httptools", "uvloop", "prometheus_client")


def check_service_parts() -> None:
    """Raise the `CaplineError` that says what to install, where a package is missing.

    They are looked for, not loaded: with several workers the parent must not load what these set up for themselves.
    """
    for name in _PARTS:
        try:
            found = find_spec(name)
        except ImportError:
            found = None
        if found is None:
            raise CaplineError(f'the service needs {name}: pip install "capline[serve]"')
