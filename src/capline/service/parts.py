"""The packages that the service needs: extras, not always installed."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from capline.model.errors import CaplineError
from capline.support.system import ELSEWHERE

_PARTS = ("uvicorn", "httptools", "uvloop", "jinja2", "multipart", "prometheus_client", "numpy")


def check_service_parts() -> None:
    """Raise the `CaplineError` that says what to install, if a package is missing.

    They are found, not imported: with several workers each worker imports them, and the parent must not.
    """
    if sys.platform == "win32":
        raise CaplineError(f"capline serve {ELSEWHERE}")
    for name in _PARTS:
        try:
            found = find_spec(name)
        except ImportError:
            found = None
        if found is None:
            raise CaplineError(f'the service needs {name}: pip install "capline[serve]"')


def part(name: str) -> Any:
    """A module of the extra `grpc`; raises the `CaplineError` that says what to install."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise CaplineError(f'Envoy\'s service needs {package}: pip install "capline[grpc]"') from None


def check_grpc_parts() -> None:
    """Raise where a package of the extra is missing."""
    for name in ("grpc.aio", "grpc_health.v1.health", "grpc_reflection.v1alpha.reflection"):
        part(name)
