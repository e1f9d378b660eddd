"""The lease of a verb's connections: what goes back to the pool, what is closed, what a failed send means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from capline.store.redis.io.lease import Action, Lease, Receive, Send, Take
from capline.store.redis.io.wire import Exchange, NoReply, Pause, Read, Request, Work, Write

if TYPE_CHECKING:
    from collections.abc import Callable

    from capline.store.redis.io.url import Address
    from capline.store.redis.io.wire import Steps

A, B = ("a", 1), ("b", 2)
UNTIL = 1e12


class Servers:
    """A pool and a transport: connections are numbers, a reply is its connection and its number."""

    def __init__(self, fails: Callable[[Action], Any] = lambda _: None, *, buffered: bool = False) -> None:
        self.fails = fails
        self.log: list[str] = []
        self.lines = 0
        self.lease = Lease(self, tls=False, buffered=buffered)

    def give(self, node: Address, connection: int) -> None:
        self.log.append(f"give {node[0]}{connection}")

    def discard(self, node: Address, connection: int) -> None:
        self.log.append(f"discard {node[0]}{connection}")

    def do(self, action: Action) -> Any:
        failed = self.fails(action)
        if failed is not None:
            return failed
        match action:
            case Take(node):
                self.lines += 1
                self.log.append(f"take {node[0]}{self.lines}")
                return self.lines
            case Receive(line, replies):
                return [(line, number) for number in range(replies)]
            case Send() | Pause():
                return None
            case Work(run):
                return run()

    def drive(self, steps: Steps[Any], most: int = 100) -> Any:
        actions = self.lease.run(steps)
        try:
            action = next(actions)
            for _ in range(most):
                action = actions.send(self.do(action))
        except StopIteration as done:
            return done.value
        finally:
            self.lease.end()


def asks(*asked: Any) -> Steps[list[Any]]:
    answers: list[Any] = []
    for one in asked:
        answers.append((yield one))  # noqa: PERF401 - a comprehension cannot yield
    return answers


def request(node: Address, replies: int = 1) -> Request:
    return Request(node, b"PING", replies)


def test_a_connection_goes_back_once_all_was_read() -> None:
    servers = Servers()
    answers = servers.drive(asks(Write([request(A, 2), request(B)], UNTIL), Read(UNTIL)))
    assert answers == [None, [[(1, 0), (1, 1)], [(2, 0)]]]
    assert servers.log == ["take a1", "take b2", "give a1", "give b2"]


def test_a_connection_with_unread_replies_is_closed() -> None:
    servers = Servers()
    servers.drive(asks(Write([request(A)], UNTIL), Exchange([request(B)], UNTIL)))
    assert servers.log == ["take a1", "take b2", "discard a1", "give b2"]


def test_an_interrupted_verb_closes_what_it_had_asked() -> None:
    servers = Servers()
    servers.drive(asks(Exchange([request(A)], UNTIL)), most=1)
    assert servers.log == ["take a1", "discard a1"], "sent, and never read"


def test_an_exchange_beside_unread_replies_has_a_connection_of_its_own() -> None:
    servers = Servers()
    answers = servers.drive(asks(Write([request(A)], UNTIL), Exchange([request(A)], UNTIL), Read(UNTIL)))
    assert answers == [None, [[(2, 0)]], [[(1, 0)]]]
    assert servers.log == ["take a1", "take a2", "give a1", "give a2"]


def test_replies_of_a_lost_connection_are_not_read_on_its_successor() -> None:
    def fails(action: Action) -> Any:
        return [NoReply(True, "gone")] if isinstance(action, Receive) and action.line == 1 else None

    servers = Servers(fails)
    first, second = Write([request(A)], UNTIL), Write([request(A)], UNTIL)
    answers = servers.drive(asks(first, second, Read(UNTIL), Exchange([request(A)], UNTIL), Read(UNTIL)))
    assert answers[2:] == [[[NoReply(True, "gone")]], [[(2, 0)]], [[NoReply(True, "the connection was lost")]]]
    assert servers.log == ["take a1", "discard a1", "take a2", "give a2"]


@pytest.mark.parametrize(("buffered", "replies", "sent"), [(False, 1, False), (False, 2, True), (True, 1, True)])
def test_a_failed_send_may_have_run_unless_not_all_of_one_command_went_out(
    buffered: bool, replies: int, sent: bool
) -> None:
    servers = Servers(lambda action: OSError("reset") if isinstance(action, Send) else None, buffered=buffered)
    (answer,) = servers.drive(asks(Exchange([request(A, replies)], UNTIL)))
    assert [reply.sent for reply in answer[0]] == [sent] * replies
    assert servers.log == ["take a1", "discard a1"]


def test_a_server_without_a_connection_does_not_keep_the_others_from_answering() -> None:
    servers = Servers(lambda action: TimeoutError() if isinstance(action, Take) and action.node == A else None)
    (answer,) = servers.drive(asks(Exchange([request(A, 2), request(B)], UNTIL)))
    assert answer[0] == [NoReply(False, "no connection by the deadline")] * 2
    assert answer[1] == [(1, 0)]
    assert servers.log == ["take b1", "give b1"]
