"""Transports for httpx: every request of a client waits for a slot of its own.

    client = httpx.Client(transport=LimitedTransport(limiter, "psp", max_wait=30))
    client = httpx.AsyncClient(transport=AsyncLimitedTransport(limiter, "psp", max_wait=30))

One round trip to the store takes the slot; then the request sleeps until it, and goes. What a redirect leads to is a
request too, and takes its own.
"""

from capline.middleware.slots.transport import AsyncLimited, Limited
from capline.model.errors import CaplineError

try:
    import httpx
except ImportError as error:
    raise CaplineError('capline.middleware.httpx needs httpx: pip install "capline[http]"') from error


class LimitedTransport(Limited, httpx.BaseTransport):
    """Sends each request in a slot of `policy`.

    `subject`    who is limited: a subject, or a function of the request; default the request's host
    `max_wait`   the longest that a slot may be away, in seconds (None: no bound); past it `LimitExceeded` is raised and
                 nothing is consumed
    `slack`      how late for its slot a request may leave, in seconds (None: however late). One that wakes up later, on
                 a busy host, gives its slot back and takes another, ten times at most
    `retries`    how often a request is sent again, in a slot no earlier than an answer of 429 or 503 with `Retry-After`
                 says. Only where its body can be sent again, and where that is safe: after 503 an idempotent method, or
                 one with an `Idempotency-Key`. Else the answer is the caller's, as it came
    `id`         a function of the request that names it, like `lambda request: request.headers.get("Idempotency-Key")`:
                 the same id again, of a caller that retries, is the same slot and consumes nothing more; it goes at
                 once where that slot is over. None: each sending has a slot of its own
    `transport`  what the requests go through, closed with this one; default httpx's own

    An answer of 429 or 503 with `Retry-After` (at most an hour of it) holds back every host on the same store, at the
    cost of one unit. An interrupted wait gives the slot back. The limiter stays open: whoever made it closes it.
    """

    transport_type = httpx.HTTPTransport
    whole_body = httpx.ByteStream


class AsyncLimitedTransport(AsyncLimited, httpx.AsyncBaseTransport):
    """See `LimitedTransport`; this one is for `httpx.AsyncClient`, over an `AsyncLimiter`.

    A cancelled request gives its slot back, unless it was sent already.
    """

    transport_type = httpx.AsyncHTTPTransport
    whole_body = httpx.ByteStream
