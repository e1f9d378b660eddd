"""Connections that are half open, a server killed in the middle of a batch, and one that stands still for a while."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kit.server import SLOW, Limiters, Proxy, each_kind, soon, units, warm
from tests.kit.servers import Server, single

from capline import Policy
from capline.model.errors import StoreError, StoreUnavailableError, StoreUnknownError

pytestmark = pytest.mark.alone

SHORT = "deadline=150ms&bulk_deadline=500ms"
POLICY = Policy("p", ["100/day"])


class BlackHole(Proxy):
    """May swallow what comes on the connections that it has by then, as a peer that is gone without a word."""

    swallowed = 0
    """How many connections, the oldest ones."""

    def swallow(self) -> None:
        self.swallowed = len(self._sockets)

    def _forward(self, client: socket.socket, upstream: socket.socket) -> None:
        try:
            while piece := client.recv(65_536):
                if self._sockets.index(upstream) >= self.swallowed:
                    upstream.sendall(piece)
        except OSError:
            return


@pytest.fixture
def server(kind: str) -> Iterator[Server]:
    with single(kind) as made:
        yield made


@each_kind
def test_connections_that_are_half_open_cost_one_deadline_each_and_record_nothing(
    server: Server, limiters: Limiters
) -> None:
    with BlackHole(server) as hole:
        limiter, direct = limiters(hole.url(SHORT), POLICY), limiters(server, POLICY)
        warm(limiter)
        assert limiter.decide("p", "s")
        hole.swallow()
        with pytest.raises(StoreUnknownError, match="no answer by the deadline"):
            limiter.decide("p", "s")
        assert limiter.decide("p", "s").remaining == 98, "on a new connection, at once"
        assert units(direct, "s") == 2, "what was swallowed never ran"
        hole.swallow()
        assert answers(limiter), "by id it may be asked again until there is an answer"
        assert units(direct, "s") == 3


def answers(limiter: Any) -> bool:
    """Ask under one id until there is an answer."""

    def asked() -> bool:
        try:
            return bool(limiter.decide("p", "s", id="x"))
        except StoreError:
            return False

    return soon(asked)


@each_kind
def test_a_batch_whose_server_is_killed_in_its_middle_is_reported_row_by_row_and_a_receipt_completes_it(
    kind: str, limiters: Limiters
) -> None:
    """With a server that has on its disk what it has answered."""
    many = 30_000
    with single(kind, "appendonly yes", "appendfsync always", 'save ""') as server, Proxy(server) as proxy:
        once = Policy("p", ["1/day"], layout="bucket", population=many)
        limiter = limiters(proxy.url("deadline=5s&bulk_deadline=5s"), once)
        assert limiter.decide_many("p", ["met"]).allowed.all()
        sent = answered = 0
        killing = True

        def fate(piece: bytes) -> str:
            nonlocal answered
            answered += len(piece)
            return "pass"

        def before(piece: bytes) -> None:
            nonlocal sent
            sent += len(piece)
            if killing and sent > 30_000 and server.runs:
                soon(lambda: answered > 0)
                proxy.refuses = True  # as a server does that is not there
                server.kill()

        proxy.fate, proxy.before, proxy.bytes_per_second = fate, before, 500_000
        first = limiter.decide_many("p", range(many), receipt="r")
        assert not server.runs
        assert first.allowed.any()
        assert first.errors, "it was killed when all was done"
        assert not first.allowed[sorted(first.errors)].any()
        assert all(isinstance(one, (StoreUnknownError, StoreUnavailableError)) for one in first.errors.values())
        server.restart()
        proxy.refuses, proxy.bytes_per_second, killing = False, 0, False
        whole: Any = None

        def completed() -> bool:
            nonlocal whole
            try:
                whole = limiter.decide_many("p", range(many), receipt="r")
            except StoreUnavailableError:
                return False  # it is left alone for a moment
            return not whole.errors

        assert soon(completed, 30)
        assert whole.allowed.all(), "an answer that was given is given again, and what never ran runs now"
        assert not limiter.peek_many("p", range(many)).allowed.any(), "each is consumed once"


@pytest.mark.deep
@pytest.mark.parametrize(("kind", "limiters"), [("redis", False), ("valkey", True)], indirect=["limiters"])
def test_a_server_that_stands_still_for_five_seconds_is_an_outage_and_then_none(
    server: Server, limiters: Limiters
) -> None:
    """What was sent to it meanwhile may run when it goes on; of that, nobody was told yes."""
    limiter, direct = limiters(server, POLICY, options=SHORT), limiters(server, POLICY, options=SLOW)
    allowed = sum(bool(limiter.decide("p", "s")) for _ in range(5))
    unknown, begun = 0, time.monotonic()
    server.pause()
    try:
        while time.monotonic() < begun + 5:
            try:
                allowed += bool(limiter.decide("p", "s"))
            except StoreUnknownError:
                unknown += 1
            except StoreUnavailableError:
                time.sleep(0.01)
    finally:
        server.resume()
    assert allowed == 5
    assert unknown >= 3
    assert direct.decide("p", "s")
    assert 6 <= units(direct, "s") <= 6 + unknown
    assert soon(lambda: answers(limiter))
