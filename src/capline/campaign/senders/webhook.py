"""The `webhook` sender: one HTTP POST for each message, many at a time.

    POST /push                                          any 2xx           delivered
    Content-Type: application/json                      408 425 429 5xx   transient; Retry-After is heeded
    Idempotency-Key: summer-sale/4f0c…/42               no answer         transient
    {"campaign": "summer-sale", "run": "4f0c…",         anything else     permanent (3xx too: name the final URL)
     "key": "summer-sale/4f0c…/42", "id": 42,
     "segment": "active", "channel": "push",
     "fields": {"email": "a@example.org"}}

The rule: the key is the same each time a message is sent, after a timeout, a 503 or a kill. A far side that keeps keys
takes each message once; one that does not may take again what was under way when the campaign was killed.

One event loop with bounded concurrency, in the calling thread: about 0.6 ms of CPU a message.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

import httpx
import msgspec

from capline.campaign.senders.protocol import PERMANENT, TRANSIENT, Message, Messages, Outcomes, RunInfo
from capline.campaign.senders.template import from_environment
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from capline.campaign.fields import Fields

__all__ = ["WebhookSender"]

_TRANSIENT_STATUS = frozenset({408, 425, 429})
_SERVER_ERROR = 500
_HAND_OVER = 8
"""Messages for each connection at one hand-over: long enough to keep them all busy, short enough to stop soon."""
_LONGEST_BODY_BYTES = 1 << 16
_LONGEST_PAUSE_S = 3600.0
_RESERVED = ("idempotency-key", "content-type", "content-length", "host")


class WebhookSender:
    """See the module's text.

    Options: `url`; `concurrency` (16), requests at a time; `timeout` (10), seconds for each step of a request;
    `headers`, in which `${NAME}` stands for an environment variable.
    """

    main: ClassVar[str] = "url"
    tuning: ClassVar[frozenset[str]] = frozenset({"concurrency", "timeout"})

    def __init__(self, options: Fields) -> None:
        self._url = options.text("url", like="https://push.example.org/send")
        self._concurrency = options.whole("concurrency", 16, 1, 1000)
        self._timeout_s = options.seconds("timeout", 10.0, 600)
        self._headers = _headers(options)
        self.most: int | None = self._concurrency * _HAND_OVER
        self._runner: asyncio.Runner | None = None
        self._clients: list[httpx.AsyncClient] = []
        self._run: RunInfo | None = None
        problem = _why_no_url(self._url)
        if self._url and problem:
            options.fault("url", problem)

    def open(self, run: RunInfo) -> None:
        """Make the loop and the clients; nothing is sent."""
        self._run = run
        self._runner = asyncio.Runner()
        # A client for each connection: httpx's pool looks through all of its connections at every request, which for 32
        # of them takes longer than the request. The TLS context is what costs to make, and is shared.
        context = httpx.create_ssl_context()
        self._clients = [
            httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(self._timeout_s, pool=None),
                limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
                verify=context,
            )
            for _ in range(self._concurrency)
        ]

    def send(self, messages: Messages) -> Outcomes:
        """Send them all, and wait for every answer or its timeout."""
        if self._runner is None:
            raise CampaignError("this sender is not open")
        return self._runner.run(self._send(messages))

    def close(self) -> None:
        """Close the connections."""
        if self._runner is not None:
            self._runner.run(self._close_clients())
            self._runner.close()
            self._runner = None

    async def _close_clients(self) -> None:
        for client in self._clients:
            await client.aclose()
        self._clients = []

    async def _send(self, messages: Messages) -> Outcomes:
        outcomes = Outcomes.delivered(len(messages))
        rows = iter(range(len(messages)))

        async def work(client: httpx.AsyncClient) -> None:
            for row in rows:
                await self._post(client, messages[row], row, outcomes)

        async with asyncio.TaskGroup() as group:
            for client in self._clients[: len(messages)]:
                group.create_task(work(client))
        return outcomes

    async def _post(self, client: httpx.AsyncClient, message: Message, row: int, outcomes: Outcomes) -> None:
        if self._run is None:
            raise CampaignError("this sender is not open")
        body = {
            "campaign": self._run.campaign,
            "run": self._run.run_id,
            "key": message.key,
            "id": message.id,
            "segment": message.segment,
            "channel": self._run.channel,
            "fields": message.fields,
        }
        headers = {"Content-Type": "application/json", "Idempotency-Key": message.key}
        try:
            async with client.stream("POST", self._url, content=msgspec.json.encode(body), headers=headers) as response:
                await _drain(response)
        except httpx.RequestError as error:
            outcomes.fail(row, TRANSIENT, f"no answer ({type(error).__name__})")
            return
        status = response.status_code
        if status in _TRANSIENT_STATUS or status >= _SERVER_ERROR:
            outcomes.fail(row, TRANSIENT, f"HTTP {status}")
            outcomes.wait_s = max(outcomes.wait_s, _pause_s(response.headers.get("Retry-After", "")))
        elif not response.is_success:
            outcomes.fail(row, PERMANENT, f"HTTP {status}")


async def _drain(response: httpx.Response) -> None:
    """Read a short body, so that the connection can be used again; leave a long one, which closes it."""
    size_bytes = 0
    async for piece in response.aiter_raw():
        size_bytes += len(piece)
        if size_bytes > _LONGEST_BODY_BYTES:
            return


def _pause_s(retry_after: str) -> float:
    """`Retry-After` in seconds; its other form, a date, is left to the growing wait."""
    return min(float(retry_after), _LONGEST_PAUSE_S) if retry_after.isascii() and retry_after.isdecimal() else 0.0


def _why_no_url(text: str) -> str | None:
    """What is wrong with it; the text itself is not repeated, since it may hold a token."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        return f"it is not a URL like https://push.example.org/send ({error})"
    if url.scheme not in ("http", "https") or not url.host:
        return "it is not a URL like https://push.example.org/send"
    if url.port is not None and not 0 < url.port < 1 << 16:
        return f"its port is {url.port}, and a port is 1 to 65535"
    return None


def _headers(options: Fields) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, text in options.mapping("headers").items():
        try:
            value = from_environment(text)
        except CampaignError as error:
            options.fault("headers", f"{name}: {error}")
            continue
        sound = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        if not sound or not value.isascii() or not value.isprintable():
            options.fault("headers", f"{name!r}: a header is a name and one line of plain characters")
        elif name.lower() in _RESERVED:
            options.fault("headers", f"{name} is set for each message; leave it out")
        else:
            headers[name] = value
    return headers
