"""What a fault of the network means: as it is, and as clients wrap it."""

import asyncio
import errno
import smtplib
import socket
import ssl

import httpx
import pytest
import redis.exceptions
from tests.kit.server_process import free_port

from capline.support.network import CLOSED, LATE, REFUSED, UNNAMED, network_fault


def wrapped(outer: Exception, inner: BaseException) -> BaseException:
    outer.__cause__ = inner
    return outer


SSL_FAULT = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
SSL_FAULT.reason = "WRONG_VERSION_NUMBER"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), REFUSED),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] …"), REFUSED),
        (socket.gaierror(-2, "Name or service not known"), UNNAMED),
        (UnicodeError("label empty or too long"), UNNAMED),
        (TimeoutError(), LATE),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), LATE),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), CLOSED),
        (asyncio.IncompleteReadError(b"", 1), CLOSED),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "Network is unreachable"),
        (SSL_FAULT, "TLS failed (wrong version number)"),
        (wrapped(redis.exceptions.ConnectionError("Error 111 connecting to h:1."), ConnectionRefusedError()), REFUSED),
        (wrapped(OSError("All attempts failed"), ExceptionGroup("", [ConnectionRefusedError()])), REFUSED),
        (redis.exceptions.ConnectionError("Connection closed\nby server."), "Connection closed by server."),
        (smtplib.SMTPException(), "SMTPException"),
    ],
)
def test_a_fault_is_said_in_plain_words(error: BaseException, said: str) -> None:
    assert network_fault(error) == said


@pytest.mark.parametrize(("host", "said"), [("127.0.0.1", REFUSED), ("nobody.invalid", UNNAMED)])
def test_clients_that_reach_nobody(host: str, said: str) -> None:
    url = f"http://{host}:{free_port()}"

    async def ask() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            await client.get(url)

    with pytest.raises(httpx.ConnectError) as raised:
        asyncio.run(ask())
    assert network_fault(raised.value) == said
