"""A downloader middleware for Scrapy: every request, from every host that crawls, waits for a slot of its own.

    DOWNLOADER_MIDDLEWARES = {"capline.middleware.scrapy.LimitedMiddleware": 950}    # next to the downloader
    CAPLINE_LIMITER = "crawl.limits.limiter"       # a Limiter, or where one is to be imported from
    CAPLINE_POLICY = "site"
    CAPLINE_MAX_WAIT = 600                         # seconds; a request with no slot by then is dropped
    CAPLINE_SLACK = 0.5                            # seconds; one that wakes up later for its slot takes another

The subject is the request's host, or `request.meta["capline_subject"]`. An answer of 429 or 503 with `Retry-After`
holds back every host on the store; Scrapy's own RetryMiddleware sends the request again, which takes a slot of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from capline.limiter.limiter import Limiter
from capline.middleware.slots.gate import Gate, Turn
from capline.middleware.slots.threaded import acquired
from capline.model.decision import LimitExceeded
from capline.model.errors import CaplineError, InvalidTypeError, InvalidValueError, listed, quoted

try:
    from scrapy.exceptions import IgnoreRequest
    from scrapy.utils.misc import load_object
except ImportError as error:
    raise CaplineError("capline.middleware.scrapy needs Scrapy: pip install scrapy") from error

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

_SUBJECT = "capline_subject"


class LimitedMiddleware:
    """See the module's text. It needs Scrapy's asyncio reactor, which is the default."""

    def __init__(
        self, limiter: Limiter, policy: str, *, max_wait: float | None = None, slack: float | None = None
    ) -> None:
        self._limiter = limiter
        self._gate = Gate[Any](policy, _subject, max_wait=max_wait, slack=slack)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """From the settings CAPLINE_LIMITER, CAPLINE_POLICY, CAPLINE_MAX_WAIT and CAPLINE_SLACK."""
        settings = crawler.settings
        limiter, policy = settings.get("CAPLINE_LIMITER"), settings.get("CAPLINE_POLICY")
        if isinstance(limiter, str):
            limiter = load_object(limiter)
        if not isinstance(limiter, Limiter):
            raise InvalidTypeError(f"CAPLINE_LIMITER is a capline.Limiter, or the path of one, not {quoted(limiter)}")
        if policy not in limiter.policies:
            there = listed(limiter.policies)
            raise InvalidValueError(f"CAPLINE_POLICY is a policy of the limiter ({there}), not {quoted(policy)}")
        longest, slack = (settings.get(name) for name in ("CAPLINE_MAX_WAIT", "CAPLINE_SLACK"))
        return cls(
            limiter,
            policy,
            max_wait=None if longest is None else float(longest),
            slack=None if slack is None else float(slack),
        )

    async def process_request(self, request: Request) -> None:
        """Wait for the request's slot; drop the request if none is free within CAPLINE_MAX_WAIT."""
        gate = self._gate
        try:
            subject = gate.subject_of(request)
            async with acquired(self._limiter, gate.policy, subject, timeout=gate.max_wait, slack=gate.slack):
                pass
        except LimitExceeded as refused:
            raise IgnoreRequest(str(refused)) from refused

    async def process_response(self, request: Request, response: Response) -> Response:
        """Hold back every host if the site asks for it."""
        gate = self._gate
        turn = Turn(gate)
        names = ("Retry-After", "Date")
        said = {name: text.decode("latin-1") for name in names if (text := response.headers.get(name)) is not None}
        turn.is_last(response.status, said, repeatable=False)
        if turn.wait:
            await asyncio.to_thread(turn.hold, self._limiter, gate.subject_of(request))
        return response


def _subject(request: Request) -> Any:
    return request.meta.get(_SUBJECT) or urlsplit(request.url).hostname or ""
