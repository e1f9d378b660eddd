"""A whole campaign by webhook to a receiver in another process: decided, delivered, written down.

Once with a request for each message, once with arrays of `--batch` messages, as `capline campaign run` does it, on an
embedded store and with a ledger on disk; then by two `capline worker`s, in turn with two processes of a bare client
that post the same bodies over as many connections, made before or as they post: by the receiver's own clock, from the
first request to the last.

The receiver is a bare asyncio server that reads every message and keeps every key; in the end it must have each key
once. It has a core of its own, and whoever sends has the others: workers and bare clients alike. With two cores, that
is one for two workers and the store. The processor's time a message says what each takes, however busy the machine is.
"""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import os
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _harness import Report, arguments, check, processor_clock
from campaign_delay import LONGEST_S, Place, capline

from capline.campaign import Stop, load_campaign, open_run, prepare, report_of, run
from capline.campaign.senders.protocol import Messages, RunInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier

LEAST_PER_S = 8_000
LEAST_RATIO = 0.85
BEFORE_S = 3.0
"""Before its minute a campaign's batches are all there."""
CLIENTS = 2
CORES = sorted(os.sched_getaffinity(0))
SPAWN = multiprocessing.get_context("spawn")
Came = tuple[int, int, float]
"""How many keys came, the most that one came, and seconds from the first request to the last."""
Took = tuple[float, float]
"""Those seconds, and those of the processor that the clients took meanwhile and before."""


class Receiver(asyncio.Protocol):
    """One connection: requests in, 200 out; a result for each message of an array."""

    def __init__(self, keys: dict[str, int], at: list[float]) -> None:
        self.keys = keys
        self.at = at
        self.received = bytearray()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Take whole requests."""
        self.at[1] = time.perf_counter()
        self.at[0] = self.at[0] or self.at[1]
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.received[:end]).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            if len(self.received) < end + 4 + length:
                return
            answer = self.take(json.loads(self.received[end + 4 : end + 4 + length]))
            del self.received[: end + 4 + length]
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
            self.at[1] = time.perf_counter()

    def take(self, posted: Any) -> bytes:
        """Keep the keys; the answer's body."""
        is_one = "key" in posted
        keys: list[str] = [message["key"] for message in ([posted] if is_one else posted)]
        for key in keys:
            self.keys[key] = self.keys.get(key, 0) + 1
        return b"" if is_one else json.dumps([{"key": key, "status": 200} for key in keys]).encode()


def receive(pipe: Connection, core: int) -> None:
    """Serve on this core until the pipe says stop; at each word before say what `Came`, and forget it."""
    os.sched_setaffinity(0, [core])

    async def serve() -> None:
        keys: dict[str, int] = {}
        at = [0.0, 0.0]
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Receiver(keys, at), "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        while (word := await loop.run_in_executor(None, pipe.recv)) != "stop":
            pipe.send((len(keys), max(keys.values(), default=0), at[1] - at[0]))
            if word == "forget":
                keys.clear()
                at[:] = 0.0, 0.0
        server.close()

    asyncio.run(serve())


@contextmanager
def receiver() -> Generator[tuple[Connection, int]]:
    """One in a process and on a core of its own: the pipe to it, and its port."""
    mine, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=receive, args=(theirs, CORES[-1]))
    process.start()
    os.sched_setaffinity(0, CORES[:-1] or CORES)
    try:
        yield mine, mine.recv()
    finally:
        mine.send("stop")
        process.join()


def came(pipe: Connection, word: str = "forget") -> Came:
    """What the receiver says; with "look" it forgets nothing."""
    pipe.send(word)
    return pipe.recv()


def by_workers(pipe: Connection, port: int, users: int, batch: int, connections: int) -> Took:
    """What two workers' messages took, from when the audience is there."""
    how = f"url: 'http://127.0.0.1:{port}/push', batch: {batch}, concurrency: {connections}"
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), "1/day, 2/week")
        with place.workers() as pids:
            due = datetime.fromtimestamp(int(time.time() + BEFORE_S + users / 100_000), UTC)
            place.begin("bench", users, sender=f"{{webhook: {{{how}}}}}", send_at=due.isoformat())
            time.sleep(max(0, due.timestamp() - time.time() - 0.5))
            worked = processor_clock(*pids, own=False)
            before = worked()
            where, until = ("--queue", place.queue), time.monotonic() + LONGEST_S
            while came(pipe, "look")[0] < users:
                said = "" if time.monotonic() < until else capline("campaign", "status", "bench", *where).stdout
                check(not said, f"workers: {came(pipe, 'look')} came: {said}")
                time.sleep(0.2)
            time.sleep(0.2)
            busy = worked() - before
    return checked("workers", came(pipe), users), busy


def checked(who: str, came: Came, users: int) -> float:
    """The seconds of what came, each key once."""
    keys, most, seconds = came
    check((keys, most) == (users, 1), f"{who}: {keys} keys, one of them {most} times")
    return seconds


def by_bare_client(pipe: Connection, port: int, users: int, batch: int, connections: int, *, ready: bool) -> Took:
    """What the same bodies took from processes that do nothing but post them; `ready`, made before."""
    together, own, told = SPAWN.Barrier(CLIENTS), range(0, users, batch), SPAWN.SimpleQueue()
    clients = [
        SPAWN.Process(target=post, args=(port, own[place::CLIENTS], users, batch, connections, ready, together, told))
        for place in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
        check(client.exitcode == 0, "a bare client ends")
    return checked("bare client", came(pipe), users), sum(told.get() for _ in clients)


def post(
    port: int, starts: range, users: int, batch: int, connections: int, ready: bool, together: Barrier, told: Any
) -> None:
    """Post the bodies that begin at these messages, once the others are there too; tell the processor's seconds."""
    run_info = RunInfo("bench", "0123456789abcdef", None, ())
    messages = Messages(run_info, 0, np.arange(users), np.zeros(users, np.uint8), (None,), {})
    head = "POST /push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "

    def request(start: int) -> bytes:
        body = f"[{','.join(messages.take(slice(start, min(start + batch, users))).envelopes())}]".encode()
        return f"{head}{len(body)}\r\n\r\n".encode() + body

    requests = iter([*map(request, starts)]) if ready else None
    left = iter(starts)
    together.wait()
    before = time.process_time()

    def post_all(_connection: int) -> None:
        _post_all(port, map(request, left) if requests is None else requests)

    with ThreadPoolExecutor(connections) as threads:
        list(threads.map(post_all, range(connections)))
    told.put(time.process_time() - before)


def _post_all(port: int, requests: Iterator[bytes]) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rb") as answers:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for request in requests:
            connection.sendall(request)
            check(answers.readline().startswith(b"HTTP/1.1 200"), "the receiver takes it")
            length = int(answers.readline().partition(b":")[2])
            answers.read(len(b"\r\n") + length)


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
    options = arguments(__doc__, users=1_000_000, single=20_000, batch=500, concurrency=16, rounds=3)
    report = Report("Campaigns by webhook, the receiver in another process")
    kinds = {
        f"arrays of {options.batch}": (options.users, f"batch: {options.batch}, concurrency: {options.concurrency}"),
        "a request for each message": (options.single, f"concurrency: {options.concurrency}"),
    }
    for name, (users, how) in kinds.items():
        with receiver() as (pipe, port):
            seconds, sent = campaign(f"{{webhook: {{url: 'http://127.0.0.1:{port}/push', {how}}}}}", users)
            keys, most, _ = came(pipe)
        check((sent, keys, most) == (users, users, 1), f"{name}: {sent} sent, {keys} keys, one of them {most} times")
        report.add(name, users / seconds, "messages/s", at_least=LEAST_PER_S if "arrays" in name else None)
    works: dict[str, Callable[..., Took]] = {
        "two workers": by_workers,
        "a bare client, bodies ready": partial(by_bare_client, ready=True),
        "a bare client that builds them": partial(by_bare_client, ready=False),
    }
    best, busy = dict.fromkeys(works, math.inf), dict.fromkeys(works, math.inf)
    for _ in range(options.rounds):
        for who, send in works.items():
            with receiver() as (pipe, port):
                took_s, busy_s = send(pipe, port, options.users, options.batch, options.concurrency)
            best[who], busy[who] = min(best[who], took_s), min(busy[who], busy_s)
    two, *bare = (options.users / seconds for seconds in best.values())
    _, *names = works
    report.add(f"two workers, arrays of {options.batch}", two, "messages/s", peers=dict(zip(names, bare, strict=True)))
    for name, each in zip(names, bare, strict=True):
        report.add(f"two workers over {name}", two / each, "x", at_least=LEAST_RATIO)
    for who, seconds in busy.items():
        report.add(f"{who}: the processor's time", seconds / options.users * 1e6, "us/message")
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
