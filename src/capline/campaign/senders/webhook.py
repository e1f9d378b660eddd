"""The `webhook` sender: one HTTP POST for each message or for many of them, many requests at a time.

    POST /push                                          any 2xx              delivered
    Content-Type: application/json                      408 425 429 503      transient; Retry-After is respected
    Idempotency-Key: summer-sale/4f0c…/42               no connection        transient
    {"campaign": "summer-sale", "run": "4f0c…",         other 3xx 4xx        permanent (3xx: name the final URL)
     "key": "summer-sale/4f0c…/42", "id": 42,           no answer, other     not known, sent again, same key;
     "segment": "active", "channel": "push",            5xx, 409, 303        Retry-After is respected
     "fields": {"email": "a@example.org"}}

The rule: the key is the same each time a message is sent, after a timeout, a 503 or a kill. A receiver that keeps keys
accepts each message once; another may accept messages twice that were under way at a kill. `http_post` decides what a
failed request means.

With `batch: 500` a request has up to 500 messages, and the answer a result for each: see `webhook_batch`.

With `body` a request is what a push or SMS provider asks for: see `body`. Few providers keep keys, so what is not known
is then sent again only with `again: true`.

One event loop with bounded concurrency, in the calling thread: about 0.1 ms of CPU a request, and 1 us a message of an
array.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import ClassVar

from capline.campaign.senders.body import JSON, Body
from capline.campaign.senders.http_post import Client, Endpoint, clients
from capline.campaign.senders.protocol import Answer, Messages, Outcomes, RunInfo
from capline.campaign.senders.template import filled
from capline.campaign.senders.webhook_batch import answers_of, longest_answer_bytes
from capline.forms.fields import Fields
from capline.model.errors import CampaignError

_MOST_IN_BATCH = 10_000
_HAND_OVER = 8
"""Requests for each connection in one `send`: enough to keep all busy, few enough to stop soon."""
_LONGEST_BODY_BYTES = 1 << 16
_NO_URL = "it is not a URL like https://push.example.org/send"
_PORT = re.compile(r"\w+://[^/?#]*:(\d+)(?:[/?#]|$)", re.ASCII)
_RESERVED = ("idempotency-key", "content-type", "content-length", "transfer-encoding", "host")


class WebhookSender:
    """See the module's text.

    Options: `url`; `batch`, messages in a request, posted as an array (0: one, by itself); `concurrency` (16), requests
    at a time; `timeout` (10), seconds for a whole request; `headers`, in which `${NAME}` stands for an environment
    variable; `body`, and its `format`, json or form; `again` (true, with a body false), whether a message that may have
    been taken is sent again.
    """

    main: ClassVar[str] = "url"
    tuning: ClassVar[frozenset[str]] = frozenset({"batch", "concurrency", "timeout", "again"})

    def __init__(self, options: Fields) -> None:
        self._url = options.text("url", like="https://push.example.org/send")
        self._concurrency = options.whole("concurrency", 16, 1, 1000)
        self._timeout_s = options.seconds("timeout", 10.0, 600)
        self._headers = _headers(options)
        self._batch = options.whole("batch", 0, 0, _MOST_IN_BATCH)
        self._body = _body(options)
        self.asks_again = options.flag("again", default=self._body is None)
        if self._batch and self._body is not None:
            options.fault("batch", "with a body, a request has one message; leave it out")
        self.request_size = self._batch or 1
        self.at_once = self._concurrency * self.request_size
        self.most: int | None = self._concurrency * (self._batch or _HAND_OVER)
        self._runner: asyncio.Runner | None = None
        self._clients: list[Client] = []
        problem = _why_no_url(self._url)
        if self._url and problem:
            options.fault("url", problem)

    def check(self, columns: Sequence[str]) -> None:
        """See `BuiltSender`."""
        if self._body is not None:
            self._body.check(columns)

    def open(self, run: RunInfo) -> None:  # noqa: ARG002 - the protocol's
        """Make the loop and the clients; nothing is sent."""
        self._clients = clients(self._url, self._concurrency, self._timeout_s, self._headers)
        self._runner = asyncio.Runner()

    def send(self, messages: Messages) -> Outcomes:
        """Send them all, and wait for every answer or its timeout."""
        if self._runner is None:
            raise CampaignError("this sender is not open")
        return self._runner.run(self._send(messages))

    def close(self) -> None:
        """Close the connections."""
        if self._runner is not None:
            for client in self._clients:
                client.close()
            self._runner.close()
            self._runner = None

    async def _send(self, messages: Messages) -> Outcomes:
        outcomes = Outcomes.delivered(len(messages))
        size = self._batch or 1
        starts = iter(range(0, len(messages), size))

        async def work(client: Client) -> None:
            await asyncio.sleep(0)  # what was closed since the last hand-over is seen now
            for start in starts:
                some = messages.take(slice(start, start + size))
                for row, answer in (await self._post(client, some)).items():
                    outcomes.note(start + row, answer)

        async with asyncio.TaskGroup() as group:
            for client in self._clients[: -(-len(messages) // size)]:
                group.create_task(work(client))
        return outcomes

    async def _post(self, client: Client, messages: Messages) -> dict[int, Answer]:
        """Post them in one request; the answers to those that were not delivered."""
        if self._batch:
            data = f"[{','.join(messages.envelopes())}]".encode()
            answer = await client.post(data, {"Content-Type": JSON}, longest_answer_bytes(len(messages)))
            return answers_of(answer, messages.keys())
        body, key = self._body, messages.keys()[0]
        data = messages.envelopes()[0].encode() if body is None else body.fill(messages[0])
        headers = {"Content-Type": JSON if body is None else body.content_type, "Idempotency-Key": key}
        return {0: await client.post(data, headers, _LONGEST_BODY_BYTES)}


def _body(options: Fields) -> Body | None:
    as_form = options.one_of("format", ("json", "form"), "json") == "form"
    node = options.node("body")
    if node is None:
        if options.has("format"):
            options.fault("format", "it is the format of a 'body:', and there is none")
        return None
    try:
        return Body(node, as_form=as_form)
    except CampaignError as error:
        options.fault("body", str(error))
        return None


def _why_no_url(text: str) -> str | None:
    """What is wrong with a URL, without its text, which may hold a token; None if it is good."""
    port = _PORT.match(text)
    if port and not 0 < int(port[1]) < 1 << 16:
        return f"its port is {port[1]}, and a port is 1 to 65535"
    try:
        return None if Endpoint.of(text).scheme in ("http", "https") else _NO_URL
    except ValueError:
        return _NO_URL


def _headers(options: Fields) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, text in options.mapping("headers").items():
        value = filled(options, "headers", text, f"{name}: ")
        sound = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        if not sound or not value.isascii() or not value.isprintable():
            options.fault("headers", f"{name!r}: a header is a name and one line of plain characters")
        elif name.lower() in _RESERVED:
            options.fault("headers", f"{name} is set for each message; leave it out")
        else:
            headers[name] = value
    return headers
