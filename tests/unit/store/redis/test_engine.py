"""The engine's table, line by line: what follows for a call that was not answered in the ordinary way.

The engine does no I/O, so these tests play the servers that races are made of, reply by reply. Everything that a real
server can be brought to do is tested on real servers.
"""

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from capline.model.errors import StoreError, StoreFullError, StoreUnavailableError, StoreUnknownError
from capline.store.redis.cluster.router import MOST_REDIRECTS, Router
from capline.store.redis.io.url import parse_url
from capline.store.redis.io.wire import Exchange, NoReply, Pause, Read, Reply, Request, ServerError, Work, Write, pack
from capline.store.redis.scripting.scripts import ATTEMPT, ONE, Call

SEED = ("127.0.0.1", 7000)
OTHER = ("127.0.0.1", 7001)
SLOTS = [[0, 16383, [b"127.0.0.1", 7000, b"id"]]]
GONE = NoReply(True, "the connection was lost")
NOBODY = NoReply(False, "no connection")
NOSCRIPT = ServerError("NOSCRIPT", "NOSCRIPT No matching script.")
A, B = pack(b"EVALSHA", ONE.sha, b"0"), pack(b"EVALSHA", ATTEMPT.sha, b"0")


def error(text: str) -> ServerError:
    return ServerError(text.split(" ", maxsplit=1)[0], text)


def run(
    engine: Router,
    calls: list[Call],
    answer: Callable[[Request], list[Reply]],
    seconds: float = 0.3,
    replicas: int = 0,
    late: float = 1.0,
) -> list[Any]:
    """Drive the engine against servers that are a function from a request to its replies; only pauses take time.

    A pause takes `late` times as long as was asked for.
    """
    now = time.monotonic()
    steps = engine.run(calls, now + seconds, replicas)
    written: list[list[list[Reply]]] = []
    back: Any = None
    while True:
        try:
            with patch("time.monotonic", return_value=now):
                asked = steps.send(back)
        except StopIteration as done:
            return done.value
        if isinstance(asked, Pause):
            now += asked.seconds * late
            back = None
        elif isinstance(asked, Work):
            back = asked.run()
        elif isinstance(asked, Read):
            back = written.pop(0)
        else:
            replies: list[list[Reply]] = []
            for request in asked.requests:
                with patch("time.monotonic", return_value=now):
                    replies.append([SLOTS] if b"CLUSTER" in request.payload else answer(request))
                assert len(replies[-1]) == request.replies
            back = replies if isinstance(asked, Exchange) else written.append(replies)
            assert isinstance(asked, (Exchange, Write))


def single() -> Router:
    return Router(parse_url("redis://127.0.0.1:7000"))


def cluster() -> Router:
    return Router(parse_url("redis+cluster://127.0.0.1:7000"))


class Script:
    """Servers that answer request after request as they are told; the last answer stays."""

    def __init__(self, *answers: list[Reply]) -> None:
        self.answers = [*answers]
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> list[Reply]:
        self.requests.append(request)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_a_reply_is_the_outcome() -> None:
    assert run(single(), [Call(0, A, ONE), Call(0, B, ATTEMPT)], Script([b"one", 2])) == [b"one", 2]


def test_a_call_that_may_have_run_is_not_sent_again() -> None:
    servers = Script([GONE])
    [outcome] = run(single(), [Call(0, A, ONE)], servers)
    assert isinstance(outcome, StoreUnknownError)
    assert len(servers.requests) == 1


def test_a_repeatable_call_that_may_have_run_is_sent_again() -> None:
    servers = Script([GONE], [b"reply"])
    assert run(single(), [Call(0, A, ONE, repeatable=True)], servers) == [b"reply"]
    assert len(servers.requests) == 2


@pytest.mark.parametrize(
    "later",
    [
        NOBODY,
        error("OOM command not allowed"),
        error("LOADING Redis is loading"),
        error("NOPERM no"),
        error("READONLY x"),
    ],
    ids=lambda one: one.text,
)
def test_what_may_have_run_stays_unknown_whatever_becomes_of_the_second_sending(later: Reply) -> None:
    servers = Script([GONE], [later])
    [outcome] = run(single(), [Call(0, A, ONE, repeatable=True)], servers, 0.05)
    assert len(servers.requests) >= 2
    assert isinstance(outcome, StoreUnknownError)


@pytest.mark.parametrize("milliseconds", [20, 50, 80, 200])
def test_a_refusal_stays_known_in_a_process_that_wakes_late(milliseconds: int) -> None:
    begun: list[float] = []

    def answer(_request: Request) -> list[Reply]:
        begun.append(time.monotonic())
        in_time = begun[-1] < begun[0] + milliseconds / 1000
        return [error("LOADING Redis is loading")] if in_time else [GONE]

    [outcome] = run(single(), [Call(0, A, ONE)], answer, milliseconds / 1000, late=1.9)
    assert isinstance(outcome, StoreUnavailableError)
    assert "nothing was recorded" in str(outcome)


def test_what_may_have_run_stays_unknown_when_the_breaker_opens() -> None:
    engine = single()
    servers = Script([GONE])
    [outcome] = run(engine, [Call(0, A, ONE, repeatable=True)], servers)
    assert engine.breaker(SEED).open_until
    assert len(servers.requests) == 3
    assert isinstance(outcome, StoreUnknownError)


def test_behind_an_open_breaker_nothing_is_sent() -> None:
    engine = single()
    engine.breaker(SEED).open_until = time.monotonic() + 60
    servers = Script([b"reply"])
    [outcome] = run(engine, [Call(0, A, ONE)], servers)
    assert isinstance(outcome, StoreUnavailableError)
    assert not servers.requests


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreFullError),
        ("MISCONF Redis is configured to save RDB snapshots", StoreUnavailableError),
        ("NOPERM this user has no permissions", StoreUnavailableError),
        ("NOAUTH Authentication required.", StoreUnavailableError),
        ("LOADING Redis is loading the dataset in memory", StoreUnavailableError),
        ("CLUSTERDOWN The cluster is down", StoreUnavailableError),
        ("READONLY You can't write against a read only replica.", StoreUnavailableError),
        ("BUSY Redis is busy running a script.", StoreUnavailableError),
        ("TRYAGAIN Multiple keys request during rehashing of slot", StoreUnavailableError),
        ("ERR max number of clients reached", StoreUnavailableError),
        ("ERR something that nobody has thought of", StoreUnknownError),
    ],
)
def test_an_error_is_of_the_kind_that_says_whether_it_was_recorded(text: str, kind: type[StoreError]) -> None:
    [outcome] = run(single(), [Call(0, A, ONE)], Script([error(text)]), 0.02)
    assert type(outcome) is kind
    assert ("nothing was recorded" in str(outcome)) == (kind is not StoreUnknownError)
    assert "\n" not in str(outcome)


def test_a_missing_script_is_loaded_once_for_all_its_calls() -> None:
    servers = Script([NOSCRIPT, NOSCRIPT, b"c"], [b"sha", b"a", b"b"])
    calls = [Call(0, A, ONE), Call(0, A, ONE), Call(0, B, ATTEMPT)]
    assert run(single(), calls, servers) == [b"a", b"b", b"c"]
    assert servers.requests[1].payload.count(b"LOAD") == 1


def test_a_call_that_ran_although_its_script_could_not_be_loaded_is_not_sent_again() -> None:
    """Somebody else loaded it meanwhile: only what says NOSCRIPT did not run."""
    busy = error("BUSY Redis is busy running a script.")
    servers = Script([NOSCRIPT, NOSCRIPT], [busy, b"ran", NOSCRIPT], [NOSCRIPT], [b"sha", b"ran too"])
    assert run(single(), [Call(0, A, ONE), Call(0, A, ONE)], servers) == [b"ran", b"ran too"]
    assert [request.payload.count(b"EVALSHA") for request in servers.requests] == [2, 2, 1, 1]


def test_a_script_that_may_not_be_loaded_is_an_error_at_once() -> None:
    servers = Script([NOSCRIPT], [error("NOPERM this user has no permissions to run 'script|load'"), NOSCRIPT])
    [outcome] = run(single(), [Call(0, A, ONE)], servers)
    assert isinstance(outcome, StoreUnavailableError)
    assert "ACL" in str(outcome)
    assert len(servers.requests) == 2


def test_a_script_goes_along_where_replicas_are_waited_for() -> None:
    """Behind a script that is missing, WAIT would use up the deadline; a server is given each script once."""
    engine, servers = single(), Script([b"sha", b"a", 1], [b"b", 1], [b"sha", b"c", b"d", 1])
    assert run(engine, [Call(0, A, ONE)], servers, replicas=1) == [b"a"]
    assert run(engine, [Call(0, A, ONE)], servers, replicas=1) == [b"b"]
    assert run(engine, [Call(0, A, ONE), Call(0, B, ATTEMPT)], servers, replicas=1) == [b"c", b"d"]
    assert [request.payload.count(b"LOAD") for request in servers.requests] == [1, 0, 1]


def test_a_script_that_was_forgotten_is_given_again_where_replicas_are_waited_for() -> None:
    engine, servers = single(), Script([b"sha", b"a", 1], [NOSCRIPT, 1], [b"sha", b"b", 1])
    assert run(engine, [Call(0, A, ONE)], servers, replicas=1) == [b"a"]
    assert run(engine, [Call(0, A, ONE)], servers, replicas=1) == [b"b"]


def test_a_script_that_could_not_be_given_is_given_later() -> None:
    busy = error("BUSY Redis is busy running a script.")
    engine, servers = single(), Script([busy, NOSCRIPT, 0], [b"sha", b"a", 1])
    assert run(engine, [Call(0, A, ONE)], servers, replicas=1) == [b"a"]
    assert [request.payload.count(b"LOAD") for request in servers.requests] == [1, 1]


def test_moved_is_followed_and_remembered() -> None:
    engine = cluster()
    servers = Script([error("MOVED 5 127.0.0.1:7001")], [b"reply"])
    assert run(engine, [Call(5, A, ONE)], servers) == [b"reply"]
    assert [request.node for request in servers.requests] == [SEED, SEED]  # the map that was asked for knows better
    assert engine.topology.node(5) == SEED


def test_moved_without_a_host_is_the_host_that_said_so() -> None:
    engine = Router(parse_url("redis+cluster://seed.example:7000"))

    def servers(request: Request) -> list[Reply]:
        if request.node[1] == 7001:
            return [b"reply"]
        return [error("MOVED 5 :7001")]

    steps = engine.run([Call(5, A, ONE)], time.monotonic() + 1)
    nodes: list[tuple[str, int]] = []
    back: Any = None
    replies: list[list[Reply]] = []
    with pytest.raises(StopIteration):  # noqa: PT012 - the generator's end
        while True:
            asked = steps.send(back)
            if isinstance(asked, (Write, Exchange)):
                nodes += [request.node for request in asked.requests]
                known = b"CLUSTER" in asked.requests[0].payload
                slots = [[0, 16383, [b"10.0.0.9", 7000 + (len(nodes) > 2), b"id"]]]
                replies = [[slots]] if known else [servers(request) for request in asked.requests]
            back = replies if isinstance(asked, (Read, Exchange)) else None
    assert ("seed.example", 7001) not in nodes
    assert nodes[-1] == ("10.0.0.9", 7001)


@pytest.mark.parametrize("redirects", [15, 16, 17, 40])
def test_after_any_number_of_redirects_the_answer_is_the_outcome(redirects: int) -> None:
    servers = Script(*[[error("MOVED 5 127.0.0.1:7001")]] * redirects, [b"reply"])
    assert run(cluster(), [Call(5, A, ONE)], servers, seconds=60) == [b"reply"]
    assert len(servers.requests) == redirects + 1


def test_servers_that_disagree_are_asked_until_the_deadline_with_pauses() -> None:
    servers = Script([error("MOVED 5 127.0.0.1:7001")])
    [outcome] = run(cluster(), [Call(5, A, ONE)], servers, 0.3)
    assert isinstance(outcome, StoreUnavailableError)
    assert MOST_REDIRECTS < len(servers.requests) < 20 * MOST_REDIRECTS


@pytest.mark.parametrize("text", ["MOVED 5 127.0.0.1:7001", "ASK 5 127.0.0.1:7001"])
def test_a_single_server_that_redirects_is_part_of_a_cluster(text: str) -> None:
    servers = Script([error(text)])
    [outcome] = run(single(), [Call(5, A, ONE)], servers)
    assert isinstance(outcome, StoreUnavailableError)
    assert "redis+cluster://" in str(outcome)
    assert "nothing was recorded" in str(outcome)
    assert len(servers.requests) == 1


def test_ask_goes_to_the_other_server_this_once_with_asking() -> None:
    engine = cluster()
    servers = Script([error("ASK 5 127.0.0.1:7001")], [b"OK", b"reply"])
    assert run(engine, [Call(5, A, ONE)], servers) == [b"reply"]
    assert [request.node for request in servers.requests] == [SEED, OTHER]
    assert b"ASKING" in servers.requests[1].payload
    assert engine.topology.node(5) == SEED


def test_a_script_that_misses_where_an_ask_leads_is_loaded_there() -> None:
    loaded: set[tuple[str, int]] = {SEED}
    sent: list[Request] = []

    def servers(request: Request) -> list[Reply]:
        sent.append(request)
        if request.node == SEED:
            return [error("ASK 5 127.0.0.1:7001")]
        if b"LOAD" in request.payload:
            loaded.add(request.node)
            return [b"sha", b"OK", b"reply"]
        return [b"OK", b"reply" if request.node in loaded else NOSCRIPT]

    assert run(cluster(), [Call(5, A, ONE)], servers) == [b"reply"]
    assert len(sent) <= 4


def test_try_again_goes_back_to_the_slot_s_server() -> None:
    servers = Script(
        [error("ASK 5 127.0.0.1:7001")], [b"OK", error("TRYAGAIN Multiple keys request during rehashing")], [b"reply"]
    )
    assert run(cluster(), [Call(5, A, ONE)], servers) == [b"reply"]
    assert [request.node for request in servers.requests] == [SEED, OTHER, SEED]


def test_a_slot_that_nobody_served_is_asked_about_again() -> None:
    engine = cluster()
    engine.topology.learn(SEED, [])
    [outcome] = run(engine, [Call(5, A, ONE)], Script([b"reply"]))
    assert isinstance(outcome, StoreUnavailableError)
    assert run(engine, [Call(5, A, ONE)], Script([b"reply"])) == [b"reply"]


def test_the_deadline_ends_the_asking_again() -> None:
    servers = Script([error("LOADING Redis is loading the dataset in memory")])
    [outcome] = run(single(), [Call(0, A, ONE)], servers, 0.1)
    assert isinstance(outcome, StoreUnavailableError)
    assert 1 < len(servers.requests) < 20


def test_only_what_did_not_run_is_sent_again_and_the_order_stays() -> None:
    calls = [Call(0, pack(b"N", b"%d" % i), ONE) for i in range(4)]
    servers = Script([b"0", error("BUSY x"), GONE, error("OOM x")], [b"1"])
    outcomes = run(single(), calls, servers)
    assert outcomes[:2] == [b"0", b"1"]
    assert isinstance(outcomes[2], StoreUnknownError)
    assert isinstance(outcomes[3], StoreFullError)
    assert servers.requests[1].payload == calls[1].payload
