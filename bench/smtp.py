"""A whole campaign by mail over N connections, over a bare client that builds the same mails and writes nothing down.

The campaign runs as `capline campaign run` does it: decided, delivered, each hand-over recorded on disk. The bare
client has a thread for each connection too, and pipelines as far as SMTP allows. The server, in another process,
answers at once, or each command 5 ms after it came; in the end it must have each mail once. The two take turns. All
share the machine: with two cores, server and client have one each.
"""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from _harness import Report, arguments, check
from webhook import campaign

from capline.campaign.senders.mail import MailForm
from capline.campaign.senders.protocol import Messages, RunInfo
from capline.forms.fields import Fields
from capline.forms.tree import read_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

LEAST_RATIO = 0.85
MAIL = {
    "from": "Shop <news@shop.example>",
    "to": "user-{id}@example.org",
    "subject": "Summer sale, {id}",
    "text": "Dear {id},\n\nhalf price until Sunday.\n",
    "html": "<p>Dear {id},</p><p>half price until <b>Sunday</b>.</p>",
    "unsubscribe": "https://shop.example/unsubscribe/{key}",
}


class Sink(asyncio.Protocol):
    """One connection: takes every mail, and answers so many seconds after what it answers."""

    def __init__(self, mails: dict[bytes, int], after_s: float) -> None:
        self.mails = mails
        self.after_s = after_s
        self.received = b""
        self.in_data = False
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        self.transport = transport
        self.transport.write(b"220 sink\r\n")

    def data_received(self, data: bytes) -> None:
        """Take whole commands and mails."""
        self.received += data
        answers = b""
        while True:
            end = b"\r\n.\r\n" if self.in_data else b"\r\n"
            taken, found, rest = self.received.partition(end)
            if not found:
                break
            self.received = rest
            answers += self.take(taken)
        if self.after_s:
            asyncio.get_running_loop().call_later(self.after_s, self.transport.write, answers)
        else:
            self.transport.write(answers)

    def take(self, taken: bytes) -> bytes:
        """The answer to a command or a mail."""
        if self.in_data:
            self.in_data = False
            key = taken.partition(b"\r\nMessage-ID: ")[2].partition(b"\r\n")[0]
            self.mails[key] = self.mails.get(key, 0) + 1
            return b"250 taken\r\n"
        if taken[:4].lower() == b"ehlo":
            return b"250-sink\r\n250 PIPELINING\r\n"
        self.in_data = taken == b"DATA"
        return b"354 go on\r\n" if self.in_data else b"250 fine\r\n"


def receive(pipe: Connection, after_s: float) -> None:
    """Serve until the pipe says stop; at each word before say how many mails came, and the most that one came."""

    async def serve() -> None:
        mails: dict[bytes, int] = {}
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Sink(mails, after_s), "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        while await loop.run_in_executor(None, pipe.recv) != "stop":
            pipe.send((len(mails), max(mails.values(), default=0)))
            mails.clear()
        server.close()

    asyncio.run(serve())


def bare(port: int, users: int, connections: int) -> float:
    """Seconds of the client that only builds mails and sends them."""
    node, _ = read_tree(json.dumps(MAIL))
    form, info = MailForm(Fields(node, "", [])), RunInfo("bench", "0123456789abcdef", None, ())
    messages = Messages(info, 0, np.arange(users), np.zeros(users, np.uint8), (None,), {})
    rows = iter(range(users))
    start = time.perf_counter()
    with ThreadPoolExecutor(connections) as threads:
        list(threads.map(partial(_connection, port, form, messages), [rows] * connections))
    return time.perf_counter() - start


def _connection(port: int, form: MailForm, messages: Messages, rows: Iterator[int]) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rb") as replies:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"EHLO bare\r\n")
        for _ in range(3):
            replies.readline()
        before, wanted = b"", 3
        for row in rows:
            to, data = form.fill(messages[row], messages.run)
            offer = f"MAIL FROM:<{form.sender}>\r\nRCPT TO:<{to}>\r\nDATA\r\n".encode()
            connection.sendall(before + offer)
            codes = [replies.readline()[:3] for _ in range(wanted)]
            check(codes[-3:] == [b"250", b"250", b"354"], f"the server said {codes}")
            before, wanted = data.replace(b"\r\n.", b"\r\n..") + b"\r\n.\r\n", 4
        if before:
            connection.sendall(before)
            check(replies.readline()[:3] == b"250", "the last mail is taken")


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, users=40_000, slow=20_000, connections=16, rounds=3)
    report = Report("Campaigns by mail, one process, the server in another")
    for name, users, after_s in (("at once", options.users, 0.0), ("after 5 ms", options.slow, 0.005)):
        mine, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=receive, args=(theirs, after_s))
        process.start()
        port = mine.recv()
        how = {"server": f"127.0.0.1:{port}", "tls": "none", "connections": options.connections, **MAIL}
        best: dict[str, float] = {"campaign": math.inf, "bare": math.inf}
        for _ in range(options.rounds):
            seconds, sent = campaign(json.dumps({"smtp": how}), users)
            for kind, took_s in (("campaign", seconds), ("bare", None)):
                best[kind] = min(best[kind], bare(port, users, options.connections) if took_s is None else took_s)
                mine.send("how many")
                mails = mine.recv()
                check((sent, *mails) == (users, users, 1), f"{kind}, {name}: {sent} sent, {mails} came")
        mine.send("stop")
        process.join()
        bare_per_s = users / best["bare"]
        report.add(f"mails, answers {name}", users / best["campaign"], "mails/s", peers={"a bare client": bare_per_s})
        ratio = best["bare"] / best["campaign"]
        report.add(f"over the bare client, answers {name}", ratio, "x", at_least=LEAST_RATIO)
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
