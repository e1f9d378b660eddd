"""OpenTelemetry traces, by opentelemetry-api: a span for each request, below the caller's own by `traceparent`.

A span is made when the request is answered, with its real start: no request waits for it. Where it goes is the SDK's
business, which the environment sets up (`opentelemetry-instrument capline serve …`). No subject is in it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from capline.model.errors import CaplineError

if TYPE_CHECKING:
    from capline.service.http.app import Request

_FAILED = 500


class Traces:
    """Makes the spans; `provider` stands for the one that is set globally."""

    def __init__(self, provider: Any = None) -> None:
        try:
            from opentelemetry import propagate, trace  # noqa: PLC0415 - an extra, not always there
        except ImportError:
            raise CaplineError('observers.traces needs opentelemetry-api: pip install "capline[otel]"') from None
        self._tracer = trace.get_tracer("capline.service", tracer_provider=provider)
        self._propagate, self._trace = propagate, trace

    def answered(self, request: Request, status: int, _size_bytes: int, seconds: float) -> None:
        """See `Observer`."""
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in request.headers
            if name in (b"traceparent", b"tracestate", b"baggage")
        }
        ended_ns = time.time_ns()
        span = self._tracer.start_span(
            f"{request.method} {request.route or 'unknown'}",
            context=self._propagate.extract(carrier),
            kind=self._trace.SpanKind.SERVER,
            start_time=ended_ns - int(seconds * 1e9),
            attributes={
                "http.request.method": request.method,
                "http.route": request.route,
                "http.response.status_code": status,
                "enduser.id": request.who,
            },
        )
        if status >= _FAILED:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end(ended_ns)
