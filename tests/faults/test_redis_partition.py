"""A network that falls apart, with a client on the minority side: two network namespaces, and a cable that is pulled.

    a    a primary of three, and a client
    b    the other two primaries, the first one's replica, and another client

The minority's primary goes on answering until it notices that it is alone, and what it grants by then is lost when the
replica has taken its place. Where a replica is waited for, it grants nothing from the first moment on.
"""

import ctypes
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.kit.server import Limiters, each_kind, soon
from tests.kit.servers import Server

from capline import Policy
from capline.model.errors import StoreError, StoreUnavailableError, StoreUnknownError
from capline.store.redis.scripting.keys import slot_of, tag_of

pytestmark = pytest.mark.alone

QUOTA = 60
PLAIN = Policy("plain", [f"{QUOTA}/day"])
WAITS = Policy("waits", [f"{QUOTA}/day"], wait_replicas=1)
OPTIONS = "deadline=400ms"
NO_REPLICA = r"recorded, but .* replicas have it"
IP = shutil.which("ip") or ""
SLOTS = 16_384
ADDRESSES = {"a": "10.213.0.1", "b": "10.213.0.2"}
CLONE_NEWNET = 0x40000000
SUBJECT = next(f"user {n}" for n in range(1000) if slot_of(tag_of(f"user {n}", 0)) < SLOTS // 3)
"""Of the first primary."""

libc = ctypes.CDLL(None, use_errno=True)


def ip(words: str) -> None:
    done = subprocess.run([IP, *words.split()], check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {words}: {done.stderr.strip()}")


class Network:
    """Two namespaces, `a` and `b`, with a cable between them."""

    def __init__(self) -> None:
        self._name = f"capline-{secrets.token_hex(3)}"

    def make(self) -> None:
        for side in ADDRESSES:
            ip(f"netns add {self._name}-{side}")
        ip(f"-n {self._name}-a link add name cable type veth peer name cable netns {self._name}-b")
        for side, address in ADDRESSES.items():
            ip(f"-n {self._name}-{side} addr add {address}/24 dev cable")
            ip(f"-n {self._name}-{side} link set lo up")
            ip(f"-n {self._name}-{side} link set cable up")

    def remove(self) -> None:
        for side in ADDRESSES:
            subprocess.run([IP, "netns", "del", f"{self._name}-{side}"], check=False, capture_output=True)

    def cut(self) -> None:
        """Nothing gets through any more, and nobody is told."""
        ip(f"-n {self._name}-b link set cable down")

    def heal(self) -> None:
        ip(f"-n {self._name}-b link set cable up")

    @contextmanager
    def inside(self, side: str) -> Generator[None]:
        """This thread's new sockets and processes are on this side; those that it has stay where they are."""
        namespaces = Path("/proc/thread-self/ns/net"), Path(f"/run/netns/{self._name}-{side}")
        with namespaces[0].open("rb") as here, namespaces[1].open("rb") as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(here.fileno())


def _enter(namespace: int) -> None:
    if libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Node(Server):
    """A cluster's node on one side."""

    network: Network
    side: str

    def _configuration(self) -> Iterable[str]:
        for line in super()._configuration():
            yield f"bind {ADDRESSES[self.side]} 127.0.0.1" if line.startswith("bind ") else line
        yield from ("protected-mode no", f"cluster-announce-ip {ADDRESSES[self.side]}")

    def start(self) -> "Node":
        with self.network.inside(self.side):
            return super().start()

    def command(self, *words: str | bytes | float, timeout_seconds: float = 5) -> object:
        with self.network.inside(self.side):
            return super().command(*words, timeout_seconds=timeout_seconds)

    @property
    def place(self) -> str:
        return f"{ADDRESSES[self.side]}:{self.port}"

    def is_primary(self) -> bool:
        role = self.command("ROLE")
        return isinstance(role, list) and role[0] == b"master"  # pyright: ignore[reportUnknownVariableType]


@pytest.fixture
def network() -> Iterator[Network]:
    if os.geteuid() or not IP:
        pytest.skip("network namespaces take root, and the command ip (iproute2)")
    made = Network()
    try:
        made.make()
        with made.inside("a"):
            pass
    except OSError as error:
        made.remove()
        pytest.skip(f"network namespaces cannot be made here: {error}")
    yield made
    made.remove()


@contextmanager
def cluster_across(network: Network, kind: str) -> Generator[list[Node]]:
    options = ("cluster-node-timeout 1000", "cluster-replica-validity-factor 0", "repl-ping-replica-period 1")
    nodes: list[Node] = []
    with ExitStack() as stack:
        for number, side in enumerate("abbb"):
            node = Node(kind, options, is_cluster=True, port=7001 + number, bus_port=17001 + number)
            node.network, node.side = network, side
            stack.callback(node.stop)
            nodes.append(node.start())
        for number, node in enumerate(nodes):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < 3:
                first, end = SLOTS * number // 3, SLOTS * (number + 1) // 3
                node.command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            nodes[0].command("CLUSTER", "MEET", ADDRESSES[node.side], node.port, node.bus_port)
        name = nodes[0].command("CLUSTER", "MYID")
        assert isinstance(name, bytes)
        assert soon(lambda: name in bytes(nodes[3].command("CLUSTER", "NODES")))  # pyright: ignore[reportArgumentType]
        nodes[3].command("CLUSTER", "REPLICATE", name)
        assert soon(nodes[0].is_replicated)
        assert soon(lambda: all(is_well(node) for node in nodes))
        yield nodes


def is_well(node: Node) -> bool:
    told, slots = node.command("CLUSTER", "INFO"), node.command("CLUSTER", "SLOTS")
    return isinstance(told, bytes) and b"cluster_state:ok" in told and isinstance(slots, list) and len(slots) == 3  # pyright: ignore[reportUnknownArgumentType]


@pytest.mark.deep
@each_kind
def test_a_client_on_the_minority_side_is_granted_at_most_what_is_lost(
    network: Network, kind: str, sync_limiters: Limiters
) -> None:
    with cluster_across(network, kind) as nodes:
        made = {
            side: sync_limiters(f"{kind}+cluster://{nodes[at].place}?{OPTIONS}", PLAIN, WAITS)
            for side, at in (("a", 0), ("b", 1))
        }
        granted: dict[tuple[str, str], list[int]] = {
            (side, policy): [] for side in "ab" for policy in ("plain", "waits")
        }

        def ask(side: str, policy: str) -> bool:
            with network.inside(side):
                answer = made[side].decide(policy, SUBJECT)
            if answer:
                granted[side, policy].append(answer.hit)
            return bool(answer)

        for side, policy in granted:
            assert all(ask(side, policy) for _ in range(5))
        before = {key: len(hits) for key, hits in granted.items()}
        network.cut()

        with pytest.raises(StoreUnknownError, match=NO_REPLICA):
            ask("a", "waits")
        assert ask("a", "plain"), "nobody has told it yet that it is alone"
        until = time.monotonic() + 20
        while refusal(lambda: ask("a", "plain")) is None:
            assert time.monotonic() < until
            assert len(granted["a", "plain"]) < QUOTA - 10
            time.sleep(0.1)
        for policy in ("plain", "waits"):
            with pytest.raises(StoreError):
                ask("a", policy)
        assert soon(lambda: nodes[3].is_primary() and is_well(nodes[3]))
        assert served(lambda: ask("b", "plain"))
        with pytest.raises(StoreUnknownError, match=NO_REPLICA):
            ask("b", "waits")

        network.heal()
        assert soon(lambda: not nodes[0].is_primary())
        assert soon(nodes[3].is_replicated)
        for policy in ("plain", "waits"):
            assert served(lambda policy=policy: ask("a", policy)), "the minority's client goes on by itself"
            for side in "ab":
                while ask(side, policy):
                    pass
        with network.inside("b"):
            held = {
                policy: {hit.stamp_us for hit in made["b"].explain(policy, SUBJECT).hits}
                for policy in ("plain", "waits")
            }
    told = {policy: granted["a", policy] + granted["b", policy] for policy in ("plain", "waits")}
    lost = set(told["plain"]) - held["plain"]
    assert lost, "a partition that loses nothing proves nothing"
    assert lost <= set(granted["a", "plain"][before["a", "plain"] :]), "only what the minority granted after the cut"
    assert QUOTA < len(told["plain"]) <= QUOTA + len(lost)
    assert not set(told["waits"]) - held["waits"]
    assert len(told["waits"]) <= QUOTA
    assert len(held["plain"]) == len(held["waits"]) == QUOTA


def refusal(ask: Callable[[], bool]) -> StoreUnavailableError | None:
    """The error by which the minority's primary refuses, as soon as it does."""
    try:
        assert ask()
    except StoreUnavailableError as error:
        return error
    return None


def served(ask: Callable[[], bool]) -> bool:
    """Whether it comes to be answered, and with yes."""

    def answered() -> bool:
        try:
            return ask()
        except StoreError:
            return False

    return soon(answered)
