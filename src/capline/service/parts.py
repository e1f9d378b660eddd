"""What the service stands on beside the library: an extra, not always there."""

from __future__ import annotations

from importlib.util import find_spec

from capline.model.errors import CaplineError

__all__ = ["check_service_parts"]

_PARTS = ("uvicorn", "httptools", "uvloop", "prometheus_client")


def check_service_parts() -> None:
    """Raise the `CaplineError` that says what to install, where a package is missing."""
    for name in _PARTS:
        # Found, not loaded: with several workers the parent must not load what they set up for themselves.
        if find_spec(name) is None:
            raise CaplineError(f'the service needs {name}: pip install "capline[serve]"')
