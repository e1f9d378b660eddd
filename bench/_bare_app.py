"""What the service is compared with: plain ASGI that reads the same body and answers a constant."""

from __future__ import annotations

from typing import Any

import msgspec
from _serve import serve

from capline.service.http.forms import AttemptRequest

DECODER = msgspec.json.Decoder(AttemptRequest)
ANSWER = (
    b'{"allowed":true,"policy":"promo","limit":"3/day","remaining":2,"retry_after":0.0,"reset_after":86400.0,'
    b'"hit":1763700000000000,"segment":null,"origin":"store"}'
)
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]


async def app(_scope: Any, receive: Any, send: Any) -> None:
    """Answer one request."""
    message = await receive()
    DECODER.decode(message["body"])
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


if __name__ == "__main__":
    serve(app)
