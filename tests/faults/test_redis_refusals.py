"""A server that says not now, or no: the error tells that nothing was recorded, and what can wait is asked again."""

import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from tests.kit.server import SLOW, Limiters, soon, units
from tests.kit.servers import HOST, KINDS, ReplyError, Server, cluster, single

from capline import Attempt, Decision, Policy, StoreError, StoreFullError
from capline.model.errors import StoreUnavailableError, StoreUnknownError

pytestmark = pytest.mark.alone

POLICY = Policy("p", ["3/day"], channels={"c": ["2/day"]})
QUICK = "deadline=100ms&bulk_deadline=200ms"
LOOKS = "deadline=300ms&bulk_deadline=500ms"
"""Where the server looks at its connections only now and then."""
MOST_TRIES = 20


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """This module's own; each test leaves it as it was."""
    with single(request.param, "enable-debug-command yes", "busy-reply-threshold 100") as made:
        yield made


@contextmanager
def meanwhile(work: Callable[[], object]) -> Generator[None]:
    """Do it in a thread, and wait for its end."""

    def quietly() -> None:
        with suppress(ReplyError):
            work()

    thread = threading.Thread(target=quietly)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def refused(limiter: Any, kind: type[StoreError], text: str) -> None:
    """Every verb that consumes ends with this error, in its own rows, and says that nothing was recorded."""
    for ask in (
        lambda: limiter.decide("p", "s"),
        lambda: limiter.decide("p", "s", 2, id="x"),
        lambda: limiter.decide("p", "s", channel="c"),
        lambda: limiter.schedule("p", "s"),
        limiter.try_write,
        lambda: limiter.decide_batch([Attempt("p", "s"), Attempt("p", "t", id="y")]),
        lambda: [*limiter.decide_many("p", ["s", "t", "s"]).errors.values()],
    ):
        errors = errors_of(ask)
        for error in errors:
            assert type(error) is kind
            assert text in str(error)
            assert "nothing was recorded" in str(error)


def errors_of(ask: Callable[[], Any]) -> list[Any]:
    """What it ends with. What is sent just before its deadline may be answered after it: unknown, and asked again."""
    errors: list[Any] = []
    for _ in range(MOST_TRIES):
        try:
            errors = ask()
        except StoreError as error:
            errors = [error]
        if not any(type(error) is StoreUnknownError and "no answer by the deadline" in str(error) for error in errors):
            break
    return errors


def nothing_was_recorded(limiter: Any, before: int = 1) -> None:
    assert units(limiter, "s") == before
    assert units(limiter, "t") == 0
    assert limiter.decide("p", "s").remaining == 2 - before


def begun(limiters: Limiters, server: Server, deadlines: str = QUICK) -> tuple[Any, Any]:
    """A limiter in a hurry, and a patient one; both connected."""
    hurried, patient = limiters(server, POLICY, options=deadlines), limiters(server, POLICY, options=SLOW)
    assert patient.decide("p", "s")
    assert patient.peek("p", "s", id="x")
    patient.peek_many("p", ["s"])
    assert soon(lambda: _peeks(hurried))
    return hurried, patient


def test_a_full_memory_records_nothing_and_looks_go_on(server: Server, limiters: Limiters) -> None:
    limiter, patient = begun(limiters, server)
    server.command("CONFIG", "SET", "maxmemory", "1kb")
    try:
        refused(limiter, StoreFullError, "maxmemory")
        assert patient.peek("p", "s").remaining == 1
        assert units(patient, "s") == 1
        assert patient.erase("nobody") == 0
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
    nothing_was_recorded(patient)


def test_too_few_replicas_by_the_server_s_own_rule_record_nothing(server: Server, limiters: Limiters) -> None:
    limiter, patient = begun(limiters, server)
    server.command("CONFIG", "SET", "min-replicas-to-write", "1")
    try:
        refused(limiter, StoreUnavailableError, "NOREPLICAS")
        with meanwhile(lambda: [time.sleep(0.2), server.command("CONFIG", "SET", "min-replicas-to-write", "0")]):
            assert patient.decide("p", "t")
        patient.erase("t")
    finally:
        server.command("CONFIG", "SET", "min-replicas-to-write", "0")
    nothing_was_recorded(patient)


def test_a_server_that_cannot_save_records_nothing(server: Server, limiters: Limiters) -> None:
    limiter, patient = begun(limiters, server)
    blocker = server.directory / "dump.rdb"
    blocker.unlink(missing_ok=True)
    blocker.mkdir()
    (blocker / "full").touch()
    server.command("CONFIG", "SET", "save", "3600 1000000")
    try:
        server.command("BGSAVE")
        assert soon(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err")
        refused(limiter, StoreUnavailableError, "cannot save")
        assert patient.peek("p", "s").remaining == 1
    finally:
        server.command("CONFIG", "SET", "save", "")
        (blocker / "full").unlink()
        blocker.rmdir()
        server.command("BGSAVE")
        assert soon(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "ok")
    nothing_was_recorded(patient)


def test_a_replica_records_nothing_and_the_patient_wait(server: Server, limiters: Limiters) -> None:
    limiter, patient = begun(limiters, server)
    with single(server.kind) as other:
        server.command("REPLICAOF", HOST, other.port)
        try:
            assert soon(lambda: server.info("replication")["master_link_status"] == "up")
            refused(limiter, StoreUnavailableError, "READONLY")
            assert other.command("DBSIZE") == 0
            with meanwhile(lambda: [time.sleep(0.2), server.command("REPLICAOF", "NO", "ONE")]):
                assert patient.decide("p", "s").remaining == 2, "the replica began with what its master had: nothing"
        finally:
            server.command("REPLICAOF", "NO", "ONE")
    assert patient.decide("p", "s").remaining == 1


def test_a_busy_server_records_nothing_and_the_patient_wait(server: Server, limiters: Limiters) -> None:
    limiter, patient = begun(limiters, server, LOOKS)
    with meanwhile(lambda: server.command("EVAL", "while true do end", 0, timeout_seconds=300)):
        try:
            assert soon(lambda: _says(server, "BUSY"))
            refused(limiter, StoreUnavailableError, "BUSY")
            with meanwhile(lambda: [time.sleep(0.2), server.command("SCRIPT", "KILL")]):
                assert patient.decide("p", "t")
        finally:
            with suppress(ReplyError):
                server.command("SCRIPT", "KILL")
    patient.erase("t")
    nothing_was_recorded(patient)


def test_a_loading_server_records_nothing_and_the_patient_wait(server: Server, limiters: Limiters) -> None:
    limiter, patient = begun(limiters, server, LOOKS)
    _delay_loading(server, patient)
    try:
        with meanwhile(lambda: server.command("DEBUG", "RELOAD", timeout_seconds=300)):
            assert soon(lambda: _says(server, "LOADING"))
            refused(limiter, StoreUnavailableError, "LOADING")
            assert not isinstance(limiter.decide_many("p", [1, 2]), Decision)
            with meanwhile(lambda: [time.sleep(0.2), _load_on(server)]):
                rows = patient.decide_many("p", ["t"] * 2)  # several replies: each says LOADING, none is lost by that
            assert rows.allowed.all()
            assert not rows.errors
        patient.erase("t")
    finally:
        server.command("CONFIG", "SET", "key-load-delay", "0")
    nothing_was_recorded(patient)


def test_a_large_batch_at_a_loading_server_is_refused_row_by_row(server: Server, limiters: Limiters) -> None:
    """Many calls on one connection: the first LOADING must not make the others unknown."""
    limiter, patient = begun(limiters, server, "deadline=3s&bulk_deadline=3s")  # the last try's answer is not in doubt
    _delay_loading(server, patient)
    try:
        with meanwhile(lambda: server.command("DEBUG", "RELOAD", timeout_seconds=300)):
            assert soon(lambda: _says(server, "LOADING"))
            errors = [*limiter.decide_many("p", [f"s{number}" for number in range(3000)]).errors.values()]
            batch = limiter.decide_batch([Attempt("p", f"s{number}", 2) for number in range(300)])
            _load_on(server)
    finally:
        server.command("CONFIG", "SET", "key-load-delay", "0")
    assert len(errors) == 3000
    assert {type(error) for error in [*errors, *batch]} == {StoreUnavailableError}


def _delay_loading(server: Server, limiter: Any) -> None:
    """It loads for twenty seconds or more, or until `_load_on`, and looks at its connections every few milliseconds."""
    server.command("FLUSHALL")
    assert limiter.decide("p", "s")
    limiter.decide_many("p", range(200_000))
    server.command("CONFIG", "SET", "loading-process-events-interval-bytes", "1024")
    server.command("CONFIG", "SET", "key-load-delay", 100)


def _load_on(server: Server) -> None:
    server.command("CONFIG", "SET", "key-load-delay", 0, timeout_seconds=30)


def _says(server: Server, word: str) -> bool:
    try:
        server.command("GET", "a", timeout_seconds=30)
    except ReplyError as error:
        return word in str(error)
    return False


def test_a_server_without_a_free_connection_records_nothing(server: Server, limiters: Limiters) -> None:
    _, patient = begun(limiters, server)
    fresh = limiters(server, POLICY, options=QUICK)
    used = len(server.command("CLIENT", "LIST").splitlines())
    server.command("CONFIG", "SET", "maxclients", used + 10)
    taken = [socket.create_connection((HOST, server.port)) for _ in range(20)]
    try:
        with pytest.raises(StoreUnavailableError, match="nothing was recorded"):
            fresh.decide("p", "s")
        errors = fresh.decide_many("p", ["s", "t"]).errors
        assert {type(error) for error in errors.values()} == {StoreUnavailableError}
        assert patient.peek("p", "s"), "who has a connection goes on"
    finally:
        for one in taken:
            one.close()
        assert soon(lambda: _set_max(server))
    assert soon(lambda: _peeks(fresh))
    nothing_was_recorded(patient)


def test_a_known_server_without_a_free_connection_says_so(server: Server, limiters: Limiters) -> None:
    """Not at the first meeting: the refusal comes as the reply to the call itself, or the call does not get out."""
    limiter, patient = begun(limiters, server)
    server.command("CONFIG", "SET", "maxclients", len(server.command("CLIENT", "LIST").splitlines()) + 9)
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    taken = [socket.create_connection((HOST, server.port)) for _ in range(20)]
    try:
        # asyncio does not tell what of a request that failed went out.
        with pytest.raises(
            (StoreUnavailableError, StoreUnknownError) if limiters.asynchronous else StoreUnavailableError
        ):
            limiter.decide("p", "s")
    finally:
        for one in taken:
            one.close()
        assert soon(lambda: _set_max(server))
    assert soon(lambda: _peeks(limiter))
    nothing_was_recorded(patient)


def _set_max(server: Server) -> bool:
    with suppress(OSError, ReplyError):
        return server.command("CONFIG", "SET", "maxclients", "4000") == b"OK"
    return False


def _peeks(limiter: Any, subject: str | int = "s") -> bool:
    with suppress(StoreError):
        return bool(limiter.peek("p", subject))
    return False


def test_a_user_who_may_not_run_scripts_records_nothing(server: Server, limiters: Limiters) -> None:
    server.command("ACL", "SETUSER", "weak", "on", ">weak", "~*", "+@all", "-evalsha")
    address = f"{server.kind}://weak:weak@{server.address}/0?{QUICK}"
    limiter, direct = limiters(address, POLICY), limiters(server, POLICY)
    assert direct.decide("p", "s")
    refused(limiter, StoreUnavailableError, "docs/reference/stores.md has the ACL line")
    nothing_was_recorded(direct)


@pytest.mark.deep
@pytest.mark.parametrize(("kind", "asynchronous"), [("redis", True), ("valkey", False)])
def test_a_cluster_that_is_down_records_nothing_and_comes_back(kind: str, asynchronous: bool) -> None:
    limiters = Limiters(asynchronous)
    with cluster(kind, 3, 0, options=("appendonly yes", "appendfsync always")) as nodes:
        limiter, patient = (limiters(nodes, POLICY, options=one) for one in (QUICK, SLOW))
        for number in range(20):
            assert patient.decide("p", number)
            assert soon(lambda number=number: _peeks(limiter, number))
        nodes.servers[2].kill()
        rest = nodes.servers[:2]
        assert soon(lambda: all(b"cluster_state:fail" in one.command("CLUSTER", "INFO") for one in rest))
        errors: list[StoreError] = []
        for number in range(8):
            errors += errors_of(lambda number=number: limiter.decide("p", number))
        assert all(type(error) is StoreUnavailableError and "nothing was recorded" in str(error) for error in errors)
        assert any("CLUSTERDOWN" in str(error) for error in errors)
        answers = limiter.decide_many("p", range(20))
        assert len(answers.errors) == 20
        nodes.servers[2].restart()
        nodes.wait()
        assert soon(lambda: not limiter.peek_many("p", range(20)).errors)
        assert patient.decide_many("p", range(20)).remaining.tolist() == [1] * 20
    limiters.close()
