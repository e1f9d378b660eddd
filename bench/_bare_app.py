"""What the service is compared with: plain ASGI that reads the same body and answers a constant."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import msgspec
import uvicorn
import uvloop

from capline.service.forms import Ask

DECODER = msgspec.json.Decoder(Ask)
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


def main() -> None:
    """Serve until the parent's pipe is closed; its port is the first line."""
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(app, http="httptools", ws="none", lifespan="off", access_log=False, log_config=None)
    server = uvicorn.Server(config)

    async def serve() -> None:
        import asyncio  # noqa: PLC0415 - uvloop's runner has its own

        def ended() -> None:
            server.should_exit = True
            asyncio.get_running_loop().remove_reader(0)

        asyncio.get_running_loop().add_reader(0, ended)
        await server.serve([listening])

    uvloop.run(serve())
    os.close(sys.stdin.fileno())


if __name__ == "__main__":
    main()
