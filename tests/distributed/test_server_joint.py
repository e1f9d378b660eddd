"""One attempt over several subjects on servers: in one call where it can be, and given back where slots stand apart."""

# pyright: reportUnknownArgumentType=false

import struct
import threading
import time
from typing import Any

import pytest
from tests.kit.server import Limiters, each_kind, each_layout, executed, units
from tests.kit.servers import shared, single

from capline import Attempt, ManualClock, Policy
from capline.limiter.policies.rules import Rules
from capline.model.errors import IdConflictError, StoreError, StoreUnknownError
from capline.store.protocol import Operation
from capline.store.redis.io.url import parse_url
from capline.store.redis.io.wire import Exchange, NoReply, Pause, Read, Reply, ServerError, Work
from capline.store.redis.joint import joint
from capline.store.redis.scripting.keys import slot_of, tag_of
from capline.store.redis.scripting.scripts import JOINT, JOINT_LOOK, REFUND
from capline.store.redis.session import Session

START_US = 1_700_000_000_000_000
APART = ("a", "c", "e")
"""Subjects whose slots are three servers', of a cluster of three."""


def policies(layout: str = "subject", **options: Any) -> list[Policy]:
    return [
        Policy("user", ["2/day"], layout=layout, population=500, **options),
        Policy("campaign", ["15/day", "40/week"], layout=layout, population=500, **options),
        Policy("tenant", ["100/day"], layout=layout, population=500, algorithm="gcra", **options),
    ]


def asked(user: str | int, campaign: str, tenant: str, cost: int = 1, name: str | None = None) -> list[Attempt]:
    return [
        Attempt("user", user, cost, name),
        Attempt("campaign", campaign, cost, name),
        Attempt("tenant", tenant, cost, name),
    ]


def test_subjects_of_one_name_are_one_call_on_a_cluster(sync_limiters: Limiters) -> None:
    nodes = shared("redis", "cluster")
    limiter = sync_limiters(nodes, *policies())
    together = asked(42, "{42}", "{42}:tenant")
    assert len({slot_of(tag_of(one.subject, 0)) for one in together}) == 1
    assert limiter.decide_all(together).remaining == 1
    before = sum(executed(node) for node in nodes.servers)
    assert limiter.decide_all(together).hits
    refused = limiter.decide_all(together)
    assert (refused.allowed, refused.binds, refused.hits, str(refused.limit)) == (False, 0, (), "2/day")
    assert limiter.peek_all(together).allowed is False
    assert sum(executed(node) for node in nodes.servers) - before == 3
    assert (units(limiter, 42, "user"), units(limiter, "{42}", "campaign")) == (2, 2)
    assert {record.subject for record in limiter.export()} == {42, "{42}"}
    assert [limiter.erase(one) for one in (42, "{42}", "{42}:tenant")] == [1, 1, 1]


@each_layout
def test_slots_apart_give_back_what_a_later_one_refuses(sync_limiters: Limiters, layout: str) -> None:
    limiter = sync_limiters(shared("valkey", "cluster"), *policies(layout), clock=ManualClock(START_US))
    assert limiter.decide("campaign", "c", 14)
    first = limiter.decide_all(asked("a", "c", "e"))
    assert first
    assert (first.remaining, first.binds, str(first.limit)) == (0, 1, "15/day")
    refused = limiter.decide_all(asked("b", "c", "e"))
    assert (refused.allowed, refused.binds, refused.hits, str(refused.limit)) == (False, 1, (), "15/day")
    assert limiter.peek_all(asked("b", "c", "e")) == refused
    assert (units(limiter, "b", "user"), units(limiter, "c", "campaign")) == (0, 15)
    assert limiter.peek("tenant", "e").remaining == 98
    assert limiter.refund_all(asked("a", "c", "e"), first.hits) == 3
    assert limiter.peek_all(asked("a", "c", "e")).remaining == 0
    assert limiter.peek("tenant", "e").remaining == 99


@each_kind
@pytest.mark.parametrize("shape", ["single", "cluster"])
def test_a_retry_by_id_is_one_consumption(kind: str, shape: Any, sync_limiters: Limiters) -> None:
    limiter = sync_limiters(shared(kind, shape), *policies(), Policy("twin", ["2/week"]), clock=ManualClock(START_US))
    first = limiter.decide_all(asked("a", "c", "e", 2, "x"))
    again = limiter.decide_all(asked("a", "c", "e", 2, "x"))
    assert again
    assert (again.hits, again.remaining) == (first.hits, first.remaining)
    assert (units(limiter, "a", "user"), units(limiter, "c", "campaign")) == (2, 2)
    with pytest.raises(IdConflictError):
        limiter.decide_all(asked("a", "c", "e", 1, "x"))
    # Of answers with as much left, the first says which limit it is.
    pair = [Attempt("user", "p", 1, "y"), Attempt("twin", "q", 1, "y")]
    assert limiter.decide_all(pair).binds == 0
    assert str(limiter.decide_all(pair).limit) == "2/day"
    # A part that is known stays, whatever becomes of the others.
    refused = limiter.decide_all([Attempt("user", "p", 1, "y"), Attempt("user", "a", 1)])
    assert (refused.allowed, refused.binds) == (False, 1)
    assert units(limiter, "p", "user") == 1


def test_many_at_once_on_slots_apart_are_never_too_many_and_nothing_is_lost(sync_limiters: Limiters) -> None:
    limiter = sync_limiters(shared("redis", "cluster"), *policies())
    allowed: list[Any] = []

    def ask(worker: int) -> None:
        for turn in range(12):
            attempts = asked(f"u{worker}-{turn % 8}", "c", "e")
            answer = limiter.decide_all(attempts)
            if answer:
                allowed.append((attempts, answer))

    threads = [threading.Thread(target=ask, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(allowed) == 15
    assert units(limiter, "c", "campaign") == 15
    assert sum(units(limiter, f"u{worker}-{turn}", "user") for worker in range(4) for turn in range(8)) == 15


@each_layout
def test_every_key_expires(sync_limiters: Limiters, layout: str) -> None:
    server = shared("redis")
    limiter = sync_limiters(server, *policies(layout))
    assert limiter.decide_all(asked("a", "c", "e", name="x"))
    day_ms, grace_ms = 86_400_000, 60_000
    windows = {"user": 1, "campaign": 7, "tenant": 1, "tenant/100.86400000000us": 1}
    keys = server.command("KEYS", f"{sync_limiters.namespace}:*")
    assert len(keys) == len(windows)
    for key in keys:
        keep_ms = windows[key.split(b":")[1].decode()] * day_ms
        assert keep_ms + grace_ms - 10_000 < server.command("PTTL", key) <= keep_ms + 2 * grace_ms


@each_layout
def test_every_key_expires_by_its_own_window(sync_limiters: Limiters, layout: str) -> None:
    server = shared("redis")
    windows = {"short": "10s", "day": "day", "week": "week"}
    limiter = sync_limiters(server, *[Policy(name, [f"9/{span}"], layout=layout) for name, span in windows.items()])
    for _ in range(2):
        assert limiter.decide_all([Attempt(name, "s") for name in windows])
    for name, keep_s in {"short": 10, "day": 86_400, "week": 7 * 86_400}.items():
        [key] = server.command("KEYS", f"{sync_limiters.namespace}:{name}:*")
        assert keep_s + 50 < server.command("PTTL", key) / 1000 <= keep_s + 120


def test_too_few_replicas_is_an_answer_that_is_not_known(sync_limiters: Limiters) -> None:
    with single("redis") as server:
        limiter = sync_limiters(server, *policies(), Policy("safe", ["2/day"], wait_replicas=1), options="deadline=1s")
        # The script is loaded, or its absence would be waited for as well.
        assert limiter.decide_all([Attempt("user", "b")])
        with pytest.raises(StoreUnknownError, match="0 of 1 replicas have it"):
            limiter.decide_all([Attempt("user", "a"), Attempt("safe", "s")])
        assert not limiter.decide_all([Attempt("user", "a", 9), Attempt("safe", "s")])


def test_what_is_no_log_is_said_and_nothing_is_recorded(sync_limiters: Limiters) -> None:
    server = shared("valkey")
    limiter = sync_limiters(server, *policies())
    server.command("SET", f"{sync_limiters.namespace}:campaign:{{'c}}", "not a log")
    with pytest.raises(StoreError, match="no log of capline's"):
        limiter.decide_all(asked("a", "c", "e"))
    server.command("RPUSH", f"{sync_limiters.namespace}:campaign:{{'d}}", "a key of another kind")
    for one in (asked("a", "d", "e"), [Attempt("user", "a"), Attempt("campaign", "d")]):
        with pytest.raises(StoreError, match="no log of capline's"):
            limiter.decide_all(one)
    assert units(limiter, "a", "user") == 0


def test_the_scripts_say_before_they_begin_what_they_do() -> None:
    assert JOINT.text.startswith(b"#!lua\n")
    assert JOINT_LOOK.text.startswith(b"#!lua flags=no-writes\n")
    assert JOINT.text.partition(b"\n")[2] == JOINT_LOOK.text.partition(b"\n")[2]


# --- slots that fail in the middle, played reply by reply -------------------------------------------------------------

STATE = struct.pack(">QQQ", 7, 20, 40)
"""Of the one limit of each part: units left, us until there are more, us until there are all."""

SLOTS = [[0, 16383, [b"127.0.0.1", 7000, b"id"]]]


def allowed(*known: int) -> bytes:
    """joint.lua's answer: allowed, with a hit for each part."""
    return (
        struct.pack(">QBBBQQQ", START_US, 1, 0, 0, 7, 0, 9)
        + b"".join(struct.pack(">BQ", one, START_US + number) for number, one in enumerate(known))
        + STATE * len(known)
    )


def refused(parts: int = 1) -> bytes:
    return struct.pack(">QBBBQQQ", START_US, 0, 0, 0, 0, 31, 40) + (struct.pack(">BQ", 0, 0) + STATE) * parts


class Servers:
    """Plays a cluster: each command gets the next of these replies."""

    def __init__(self, replies: list[Reply], **options: Any) -> None:
        self.replies = replies
        self.refunds = 0
        session = Session(parse_url("redis+cluster://127.0.0.1:7000?deadline=300ms"), None)
        self.session = session
        self.compiled = session.compiled(Rules([Policy("p", ["9/day"], **options)]).rule("p", None, None))

    def decide_all(self, *ids: int) -> Any:
        asks = [
            Operation("decide", self.compiled, subject, 1, fingerprint)
            for subject, fingerprint in zip(APART, ids or (0, 0, 0), strict=False)
        ]
        steps = joint(self.session, asks)
        back: Any = None
        written: list[Any] = []
        while True:
            try:
                step = steps.send(back)
            except StopIteration as done:
                return done.value
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                back = None
            elif isinstance(step, Work):
                back = step.run()
            elif isinstance(step, Read):
                back = written.pop(0)
            else:
                replies = [self._replies(request.payload, request.replies) for request in step.requests]
                back = replies if isinstance(step, Exchange) else written.append(replies)

    def _replies(self, payload: bytes, many: int) -> list[Reply]:
        if b"CLUSTER" in payload:
            return [SLOTS]
        self.refunds += payload.count(REFUND.sha)
        return [self.replies.pop(0) for _ in range(many)]


LOST = NoReply(True, "the connection was lost")


def test_an_answer_that_is_lost_in_the_middle_is_unknown_and_the_rest_is_given_back() -> None:
    servers = Servers([allowed(0), LOST, 1])
    with pytest.raises(StoreUnknownError, match="the connection was lost; whether the attempt was recorded"):
        servers.decide_all()
    assert servers.refunds == 1


def test_a_slot_that_does_not_answer_leaves_nothing_recorded() -> None:
    servers = Servers([allowed(0), allowed(0), ServerError("OOM", "OOM command not allowed"), 1, 1])
    with pytest.raises(StoreError, match=r"memory is full.*nothing was recorded"):
        servers.decide_all()
    assert servers.refunds == 2


def test_what_cannot_be_given_back_is_said() -> None:
    servers = Servers([allowed(0), refused(), LOST])
    with pytest.raises(StoreUnknownError, match="may not have been given back"):
        servers.decide_all()


def test_a_part_that_was_known_is_not_given_back() -> None:
    servers = Servers([allowed(1), allowed(0), refused(), 1])
    answer = servers.decide_all(5, 6, 7)
    assert (answer.allowed, answer.binds, answer.retry_after_us) == (False, 2, 30)
    assert [len(part) for part in answer.limits] == [0, 0, 1]
    assert servers.refunds == 1


def test_a_part_that_may_be_its_own_or_an_earlier_attempts_is_said_and_stays() -> None:
    servers = Servers([LOST, allowed(1), allowed(0), refused(), 1])
    with pytest.raises(StoreUnknownError, match="whether this attempt recorded it or an earlier one"):
        servers.decide_all(5, 6, 7)
    assert servers.refunds == 1  # of the second part: the first is in doubt


def test_a_part_that_was_sent_twice_and_ran_once_is_given_back() -> None:
    servers = Servers([LOST, allowed(0), refused(), 1])
    assert not servers.decide_all(5, 6, 7).allowed
    assert servers.refunds == 1


def test_a_part_in_doubt_is_no_matter_where_all_are_allowed() -> None:
    assert Servers([LOST, allowed(1), allowed(0), allowed(0)]).decide_all(5, 6, 7).allowed


def test_too_few_replicas_in_a_later_slot_gives_all_back() -> None:
    servers = Servers([b"sha", allowed(0), 1, allowed(0), 0, 1, 1], wait_replicas=1)
    with pytest.raises(StoreUnknownError, match="0 of 1 replicas"):
        servers.decide_all()
    assert servers.refunds == 2


def test_the_answers_of_the_slots_are_one() -> None:
    first = struct.pack(">QBBBQQQ", START_US, 1, 0, 0, 5, 0, 90) + struct.pack(">BQ", 0, 11) + STATE
    second = struct.pack(">QBBBQQQ", START_US, 1, 0, 0, 3, 0, 80) + struct.pack(">BQ", 0, 22) + STATE
    third = struct.pack(">QBBBQQQ", START_US, 1, 0, 0, 4, 0, 70) + struct.pack(">BQ", 0, 33) + STATE
    answer = Servers([first, second, third]).decide_all()
    assert (answer.allowed, answer.remaining, answer.binds, answer.reset_after_us, answer.hits) == (
        True,
        3,
        1,
        90,
        (11, 22, 33),
    )
    assert [[state.remaining for state in part] for part in answer.limits] == [[7], [7], [7]]
