"""An adapter for requests: every request of a session waits for a slot of its own.

    session = requests.Session()
    session.mount("https://api.psp.example/", LimitedAdapter(limiter, "psp", max_wait=30))

It is to requests what `capline.middleware.httpx.LimitedTransport` is to httpx.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from capline.middleware.slots.gate import Gate, is_safe_to_repeat
from capline.model.errors import CaplineError

try:
    from requests.adapters import HTTPAdapter
except ImportError as error:
    raise CaplineError('capline.middleware.requests needs requests: pip install "capline[requests]"') from error

if TYPE_CHECKING:
    from requests import PreparedRequest, Response

    from capline.limiter.limiter import Limiter
    from capline.model.subject import Subject


class LimitedAdapter(HTTPAdapter):
    """Sends each request in a slot of `policy`; see `LimitedTransport` for what the arguments do.

    Further arguments are `requests.adapters.HTTPAdapter`'s; its `max_retries` sends again without a slot, so it is 0
    unless said.
    """

    def __init__(
        self,
        limiter: Limiter,
        policy: str,
        *,
        subject: Subject | Callable[[PreparedRequest], Subject] | None = None,
        max_wait: float | None = None,
        slack: float | None = None,
        retries: int = 0,
        id: Callable[[PreparedRequest], str | None] | None = None,
        **options: Any,
    ) -> None:
        self._limiter = limiter
        self._gate = Gate(policy, _host, subject=subject, max_wait=max_wait, slack=slack, retries=retries, id=id)
        super().__init__(**options)

    def send(self, request: PreparedRequest, *arguments: Any, **options: Any) -> Response:
        """Wait for a slot, then send; see the class."""
        send = super().send
        return self._gate.sent(
            self._limiter, request, lambda: send(request, *arguments, **options), partial(_repeatable, request)
        )


def _host(request: PreparedRequest) -> str:
    return urlsplit(request.url or "").hostname or ""


def _repeatable(request: PreparedRequest, status: int) -> bool:
    """Whether the request may be sent again: its body is at hand, and the work cannot be done twice."""
    whole = request.body is None or isinstance(request.body, (bytes, str))
    return whole and is_safe_to_repeat(request.method or "", status, request.headers)
