"""Transports for httpx2, twins of those for httpx: neither package takes the other's.

client = httpx2.Client(transport=LimitedTransport(limiter, "psp", max_wait=30))
"""

# httpx2 is not among the packages that types are checked with.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false, reportAttributeAccessIssue=false

from __future__ import annotations

from capline.middleware.slots.transport import AsyncLimited, Limited
from capline.model.errors import CaplineError

try:
    import httpx2
except ImportError as error:
    raise CaplineError("capline.middleware.httpx2 needs httpx2: pip install httpx2") from error


class LimitedTransport(Limited, httpx2.BaseTransport):
    """`capline.middleware.httpx.LimitedTransport`, for `httpx2.Client`."""

    transport_type = httpx2.HTTPTransport
    whole_body = httpx2.ByteStream


class AsyncLimitedTransport(AsyncLimited, httpx2.AsyncBaseTransport):
    """`capline.middleware.httpx.AsyncLimitedTransport`, for `httpx2.AsyncClient`."""

    transport_type = httpx2.AsyncHTTPTransport
    whole_body = httpx2.ByteStream
