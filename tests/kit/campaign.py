"""What the campaign tests share: a directory with all that a campaign needs, the command, a receiver of webhooks."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.kit.forked import run

from capline import Limiter, ManualClock
from capline.campaign import Job, Ledger, load_campaign, prepare
from capline.campaign.senders.find import BuiltSender
from capline.campaign.senders.protocol import DELIVERED, PERMANENT, TRANSIENT, UNKNOWN, Messages, Outcomes, RunInfo
from capline.segment import IdSet, Snapshot, write_snapshot

AT = "2026-11-21T16:00:00Z"
AT_US = 1_795_276_800_000_000
HOUR_US = 3_600_000_000

POLICIES = """\
namespace: marketing
policies:
  promo:
    limits: [1/day, 2/week]
    by_segment:
      new: [1/day, 3/week]
      active: [3/day, 10/week]
    channels: {push: [2/day], email: [1/day, 4/week]}
"""


@dataclass
class Site:
    """A campaign's directory: subjects 0-99 are active, 100-199 new, 200-299 churned (not listed by the policy)."""

    path: Path
    settings: dict[str, str] = field(default_factory=dict[str, str])
    store: str = ""

    def __post_init__(self) -> None:
        (self.path / "policies.yaml").write_text(POLICIES)
        sets = {
            "active": IdSet.from_range(0, 99),
            "churned": IdSet.from_range(200, 299),
            "new": IdSet.from_range(100, 199),
        }
        write_snapshot(Snapshot(sets, "day-1"), self.path / "segments", replace=True)
        self.audience(range(400))
        self.store = self.store or f"lmdb://{self.path}/store"
        self.settings = {
            "campaign": "summer-sale",
            "policies": "policies.yaml",
            "policy": "promo",
            "store": self.store,
            "segments": "segments",
            "audience": "{csv: users.csv, column: id}",
            "as_of": AT,
            "batch": "100",
            "retry": "{attempts: 4, wait: 0.001, longest: 0.002}",
            "sender": "{file: out}",
            **self.settings,
        }
        self.write()

    @property
    def file(self) -> Path:
        return self.path / "campaign.yaml"

    def audience(self, ids: Iterable[object]) -> None:
        (self.path / "users.csv").write_text("id\n" + "".join(f"{number}\n" for number in ids))

    def write(self, **settings: str | None) -> Path:
        """Write the campaign file; a setting that is None is left out."""
        lines = {**self.settings, **settings}
        self.file.write_text("".join(f"{key}: {value}\n" for key, value in lines.items() if value is not None))
        return self.file

    def job(self, **settings: str | None) -> Job:
        return prepare(load_campaign(self.write(**settings)))

    def limiter(self, at_us: int = AT_US) -> Limiter:
        return Limiter.from_file(self.path / "policies.yaml", self.store, clock=ManualClock(start_us=at_us))

    def seed(self) -> None:
        """Give some subjects a past, so that each limit has someone to refuse."""
        with self.limiter(AT_US - 30 * HOUR_US) as limiter:
            limiter.decide_many("promo", list(range(0, 400, 5)), segment="active")
        with self.limiter(AT_US - 26 * HOUR_US) as limiter:
            limiter.decide_many("promo", list(range(0, 400, 10)), segment="active")
        with self.limiter(AT_US - 2 * HOUR_US) as limiter:
            limiter.decide_many("promo", list(range(0, 400, 7)), segment="active")

    def content(self, subjects: Iterable[int] = range(400)) -> list[object]:
        """Everything that the store knows of these subjects, stamps included."""
        with self.limiter() as limiter:
            return [
                [limiter.explain("promo", subject, channel=channel).hits for channel in (None, "push")]
                for subject in subjects
            ]


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "capline.cli", *map(str, args)]


def environment(**more: str) -> dict[str, str]:
    """The environment without what would change the command's answers; src comes first, installed or not."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.lower().endswith("_proxy") and not key.startswith(("CAPLINE_", "COLUMNS", "FORCE_COLOR"))
    }
    source = str(Path(__file__).parents[2] / "src")
    return {**kept, "PYTHONPATH": source, "COLUMNS": "200", "NO_COLOR": "1", **more}


def capline(*args: str | Path, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the real command to its end."""
    return run(*args, cwd=cwd, env=environment(**more))


def answer(*args: str | Path, cwd: Path | None = None) -> Any:
    """The command's JSON; fails where it does not succeed, or says more than that on standard output.

    A run in which something failed ends with 1, or 3 where all of that was refused for good.
    """
    done = capline(*args, "--json", cwd=cwd)
    assert done.returncode in (0, 1, 3), done.stderr
    found = json.loads(done.stdout)
    failed = args[:2] == ("campaign", "run") and found["total"]["failed"] + found["total"]["not_known"]
    assert bool(done.returncode) == bool(failed), done.stderr
    return found


def comparable(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report without what differs between two equal runs, or a plan without what only it says."""
    differing = ("run", "state", "elapsed_s", "per_s", "store", "steering", "conflicts", "unread")
    return {key: value for key, value in report.items() if key not in differing}


def folded(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report in which "not known" counts as failed, and no reasons.

    Of a campaign that is killed, what was under way and was never delivered is not known: it keeps its hit. Else it
    ends as one that was not killed.
    """

    def fold(part: dict[str, Any]) -> dict[str, Any]:
        return {**part, "failed": part["failed"] + part["not_known"], "not_known": 0}

    same = comparable(report)
    counts = {"total": fold(same["total"]), "segments": [fold(part) for part in same["segments"]]}
    return {key: value for key, value in {**same, **counts}.items() if key not in ("failures", "doubts")}


Stored = tuple[list[Any], list[list[int]]]


def stored(site: Site, subjects: int) -> Stored:
    """All hits of so many subjects, and what each would be answered next."""
    with site.limiter() as limiter:
        many = limiter.peek_many("promo", list(range(subjects)), channel="push")
        answers = [column.tolist() for column in (many.allowed, many.remaining, many.retry_after_us, many.limit_index)]
    return site.content(range(subjects)), answers


def kept_in_doubt(killed: Stored, unkilled: Stored) -> set[int]:
    """Who keeps a hit that was given back where nobody was killed; nothing else may differ."""
    differing: set[int] = set()
    for subject, (mine, theirs) in enumerate(zip(killed[0], unkilled[0], strict=True)):
        if mine == theirs:
            assert [row[subject] for row in killed[1]] == [row[subject] for row in unkilled[1]]
            continue
        differing.add(subject)
        for mine_of_one, theirs_of_one in zip(mine, theirs, strict=True):
            pairs = list(zip(mine_of_one, theirs_of_one, strict=True))
            assert all((a.stamp_us, a.units) == (b.stamp_us, b.units or 1) for a, b in pairs)
    return differing


@dataclass
class Receiver:
    """Takes webhooks and keeps keys, as a good receiver does. `status(id, tries)` says how it answers."""

    status: Callable[[int, int], int]
    headers: dict[str, str] = field(default_factory=dict[str, str])
    on_request: Callable[[int], object] = lambda _count: None
    requests: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    keys: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    tries: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    taken: dict[str, int] = field(default_factory=dict[str, int])
    busy: int = 0
    busiest: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def take(self, body: dict[str, Any], key: str) -> int:
        with self.lock:
            self.requests += 1
            count = self.requests
            subject = int(body["id"])
            self.bodies.append(body)
            self.keys[subject].add(key)
            self.tries[subject] += 1
            status = 200 if key in self.taken else self.status(subject, self.tries[subject])
            if status < 300:
                self.taken[key] = subject
        self.on_request(count)
        return status

    def delivered(self) -> list[int]:
        return sorted(self.taken.values())


@contextmanager
def receiver(status: Callable[[int, int], int] = lambda _id, _tries: 200, **more: Any) -> Generator[Receiver]:
    """A receiver on a free port of the loopback."""
    taking = Receiver(status, **more)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_POST(self) -> None:
            with taking.lock:
                taking.busy += 1
                taking.busiest = max(taking.busiest, taking.busy)
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = taking.take(body, self.headers["Idempotency-Key"])
            with taking.lock:
                taking.busy -= 1
            if status == 0:  # hang up without an answer
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in taking.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A killed client hangs up: nothing to say about that."""

    server = Server(("127.0.0.1", 0), Handler)
    taking.url = f"http://127.0.0.1:{server.server_address[1]}/push"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield taking
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Mailbox:
    """A mail server's part that the tests decide on."""

    def __init__(self) -> None:
        self.mails: list[Any] = []

    async def handle_RCPT(self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any) -> str:  # noqa: N802 - aiosmtpd calls it so
        if address.startswith("gone"):
            return "550 no such user"
        if address.startswith("later"):
            return "451 greylisted"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd calls it so
        text = envelope.content.decode()
        if "hang up" in text:
            server.transport.close()
            return "421 closing"
        self.mails.append((envelope.rcpt_tos[0], text.replace("\r\n", "\n")))
        return "250 OK"


@contextmanager
def mail_server() -> Generator[tuple[Mailbox, int]]:
    """A real SMTP server in a thread of its own, on a port that the system chooses."""
    smtp_type: Any = import_module("aiosmtpd.smtp").SMTP
    box = Mailbox()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def serve() -> asyncio.Server:
        return await loop.create_server(lambda: smtp_type(box, loop=loop), "127.0.0.1", 0)

    server = asyncio.run_coroutine_threadsafe(serve(), loop).result(10)
    try:
        yield box, int(server.sockets[0].getsockname()[1])
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


_WHY = {PERMANENT: "gone", TRANSIENT: "busy", UNKNOWN: "no answer"}


@dataclass
class Far:
    """A sender for tests in one process: keeps keys as a good receiver does. `said(id, tries)` is an outcome's code."""

    said: Callable[[int, int], int] = lambda _id, _tries: DELIVERED
    most: int | None = None
    wait_s: float = 0.0
    hand_overs: list[list[int]] = field(default_factory=list[list[int]])
    keys: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    tries: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    taken: dict[str, int] = field(default_factory=dict[str, int])
    asks_again: bool = True
    request_size: int = 1

    def open(self, run: RunInfo) -> None:
        pass

    def close(self) -> None:
        pass

    def send(self, messages: Messages) -> Outcomes:
        outcomes = Outcomes.delivered(len(messages))
        outcomes.wait_s = self.wait_s
        self.hand_overs.append(messages.ids.tolist())
        for row, (subject, key) in enumerate(zip(messages.ids.tolist(), messages.keys(), strict=True)):
            self.keys[subject].add(key)
            self.tries[subject] += 1
            code = DELIVERED if key in self.taken else self.said(subject, self.tries[subject])
            if code == DELIVERED:
                self.taken[key] = subject
            else:
                outcomes.fail(row, code, _WHY[code])
        return outcomes

    def delivered(self) -> list[int]:
        return sorted(self.taken.values())


def mixed(subject: int, tries: int) -> int:
    """Of every 30 subjects: three are gone, three are busy twice, two are always busy."""
    if subject % 10 == 3:
        return PERMANENT
    if subject % 15 == 4:
        return TRANSIENT
    return TRANSIENT if subject % 10 == 6 and tries <= 2 else DELIVERED


MIXED_STATUS = {DELIVERED: 200, PERMANENT: 410, TRANSIENT: 503}


def with_sender(job: Job, far: Far, breaker: int = 0) -> Job:
    return replace(job, file=replace(job.file, sender=BuiltSender("far", far, "far", breaker)))


@contextmanager
def ledger_of(job: Job, directory: Path) -> Generator[Ledger]:
    with Ledger.begin(directory, job.run()) as ledger:
        yield ledger
