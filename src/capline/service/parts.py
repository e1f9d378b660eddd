"""The packages that the service needs: an extra, not always installed."""

import sys
from importlib.util import find_spec

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
