"""A whole campaign by webhook from one process to a receiver in another: decided, delivered, written down.

Once with a request for each message, once with arrays of `--batch` messages, as `capline campaign run` does it, on an
embedded store and with a ledger on disk. The receiver is a bare asyncio server that reads every message and keeps every
key; in the end it must have each key once. Client and receiver share the machine: with two cores, each has one.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _harness import Report, arguments, check

from capline.campaign import Stop, load_campaign, open_run, prepare, report_of, run

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LEAST_PER_S = 8_000


class Receiver(asyncio.Protocol):
    """One connection: requests in, 200 out; a result for each message of an array."""

    def __init__(self, keys: dict[str, int]) -> None:
        self.keys = keys
        self.received = bytearray()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Take whole requests."""
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.received[:end]).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            if len(self.received) < end + 4 + length:
                return
            answer = self.take(json.loads(self.received[end + 4 : end + 4 + length]))
            del self.received[: end + 4 + length]
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)

    def take(self, posted: Any) -> bytes:
        """Keep the keys; the answer's body."""
        is_one = "key" in posted
        keys: list[str] = [message["key"] for message in ([posted] if is_one else posted)]
        for key in keys:
            self.keys[key] = self.keys.get(key, 0) + 1
        return b"" if is_one else json.dumps([{"key": key, "status": 200} for key in keys]).encode()


def receive(pipe: Connection) -> None:
    """Serve until the pipe says stop; then say how many keys came, and the most that one came."""

    async def serve() -> None:
        keys: dict[str, int] = {}
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Receiver(keys), "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await loop.run_in_executor(None, pipe.recv)
        pipe.send((len(keys), max(keys.values(), default=0)))
        server.close()

    asyncio.run(serve())


def campaign(sender: str, users: int) -> tuple[float, int]:
    """Seconds of a campaign, and how many were sent."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "policies.yaml").write_text("policies: {promo: {limits: [1/day, 2/week]}}\n")
        (directory / "users.csv").write_text("id\n" + "".join(f"{number}\n" for number in range(users)))
        (directory / "campaign.yaml").write_text(
            f"campaign: bench\npolicies: policies.yaml\npolicy: promo\nstore: lmdb://{directory}/store\n"
            f"audience: {{csv: users.csv}}\nsender: {sender}\n"
        )
        job = prepare(load_campaign(directory / "campaign.yaml"))
        with open_run(job, directory / "run") as (limiter, ledger), closing(Stop()) as stop:
            start = time.perf_counter()
            run(job, limiter, ledger, stop)
            return time.perf_counter() - start, report_of(ledger).total.sent


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, users=200_000, single=20_000, batch=500, concurrency=16)
    report = Report("Campaigns by webhook, one process, the receiver in another")
    kinds = {
        f"arrays of {options.batch}": (options.users, f"batch: {options.batch}, concurrency: {options.concurrency}"),
        "a request for each message": (options.single, f"concurrency: {options.concurrency}"),
    }
    for name, (users, how) in kinds.items():
        mine, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=receive, args=(theirs,))
        process.start()
        seconds, sent = campaign(f"{{webhook: {{url: 'http://127.0.0.1:{mine.recv()}/push', {how}}}}}", users)
        mine.send("stop")
        keys, most = mine.recv()
        process.join()
        check((sent, keys, most) == (users, users, 1), f"{name}: {sent} sent, {keys} keys, one of them {most} times")
        report.add(name, users / seconds, "messages/s", at_least=LEAST_PER_S if "arrays" in name else None)
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
