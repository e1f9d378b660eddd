"""Scripts that the server no longer has are loaded and the calls sent again; and no script holds the server long."""

# pyright: reportPrivateUsage=false

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.kit.server import Limiters, each_kind, each_layout, soon, units, warm
from tests.kit.servers import KINDS, Server, cluster, sentinel, single
from tests.profiles import first, size, sized

from capline import Attempt, Decision, IdConflictError, Policy, StoreError
from capline.store.redis.scripting import parts
from capline.store.redis.scripting.requests import OTHER_ROWS, PLAIN_ROWS
from capline.store.redis.scripting.scripts import ATTEMPT, LOOK, ONE, REFUND, SWEEP


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with single(request.param, "appendonly yes", "appendfsync always") as made:
        yield made


def policies(layout: str) -> list[Policy]:
    return [Policy("p", ["3/day"], layout=layout, population=1000), Policy("q", ["300/day"], layout=layout)]


def test_every_verb_loads_what_it_needs(server: Server, limiters: Limiters) -> None:
    limiter = limiters(server, *policies("subject"))

    def flushed(verb: str, *args: Any, **options: Any) -> Any:
        server.command("SCRIPT", "FLUSH")
        return getattr(limiter, verb)(*args, **options)

    hit = flushed("decide", "p", "s").hit
    assert flushed("decide", "p", "s", id="x")
    assert flushed("decide", "q", "s")
    assert flushed("peek", "p", "s").remaining == 0
    assert flushed("refund", "p", "s", hit)
    assert flushed("schedule", "p", "s")
    assert flushed("explain", "p", "s").hits
    assert isinstance(flushed("decide_batch", [Attempt("p", "t")])[0], Decision)
    assert flushed("peek_many", "p", [1]).allowed.all()
    assert flushed("peek_all", [Attempt("p", "u"), Attempt("q", "u")])
    assert flushed("decide_all", [Attempt("p", "u"), Attempt("q", "u")])
    assert flushed("sweep") == 0
    assert flushed("erase", "s") == 2


@each_layout
@pytest.mark.parametrize("loaded", [(), (ONE, LOOK), (ATTEMPT,)], ids=["nothing", "others", "its own"])
def test_a_batch_of_thousands_is_whole_after_a_flush(
    server: Server, limiters: Limiters, layout: str, loaded: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", 700)
    limiter = limiters(server, *policies(layout))
    subjects = [*range(3000), *(f"t{number}" for number in range(2000)), *range(3000)]
    server.command("SCRIPT", "FLUSH")
    for script in loaded:
        server.command("SCRIPT", "LOAD", script.text)
    answers = limiter.decide_many("p", subjects)
    assert not answers.errors
    assert answers.allowed.all()
    assert limiter.peek_many("p", range(3000)).remaining.tolist() == [0] * 3000
    server.command("SCRIPT", "FLUSH")
    batch = limiter.decide_batch([Attempt("p", number % 700, 1, id=f"i{number}") for number in range(1400)])
    assert [bool(one) for one in batch] == [True] * 700 + [False] * 700


def test_a_batch_is_whole_when_scripts_are_flushed_in_its_middle(
    server: Server, limiters: Limiters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", 256)
    limiter = limiters(server, *policies("subject"))
    calls = [0]
    made = parts.group_call

    def call(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] % 7 == 3:
            server.command("SCRIPT", "FLUSH")
        return made(*args, **options)

    monkeypatch.setattr(parts, "group_call", call)
    answers = limiter.decide_many("p", range(5000))
    assert calls[0] > 14
    assert answers.allowed.all()
    assert limiter.peek_many("p", range(5000)).remaining.tolist() == [1] * 5000


def test_after_a_restart_all_goes_on(server: Server, limiters: Limiters) -> None:
    limiter = limiters(server, *policies("subject"))
    assert limiter.decide("p", "s")
    assert limiter.decide_many("p", range(100)).allowed.all()
    server.restart()
    assert limiter.decide("p", "s").remaining == 1
    assert limiter.decide_many("p", range(100)).remaining.tolist() == [1] * 100
    assert limiter.peek("p", "s").remaining == 0


def promoted(replica: Server) -> bool:
    """Ask it to take over, again where the others did not agree in time."""
    if replica.command("ROLE")[0] == b"master":
        return True
    replica.command("CLUSTER", "FAILOVER")
    return soon(lambda: replica.command("ROLE")[0] == b"master", 3)


@each_kind
def test_after_a_planned_failover_of_a_cluster_all_goes_on(kind: str, limiters: Limiters) -> None:
    with cluster(kind, 3, 1) as nodes:
        limiter = limiters(nodes, *policies("subject"))
        subjects = [*range(1000), *(f"t{number}" for number in range(1000))]
        assert limiter.decide_many("p", subjects).allowed.all()
        assert limiter.decide("p", "single")
        for replica in nodes.servers[3:]:
            assert soon(lambda one=replica: promoted(one), 30)
        assert limiter.decide("p", "single").remaining == 1
        answers = limiter.decide_many("p", subjects)
        assert not answers.errors
        assert answers.remaining.tolist() == [1] * 2000
        assert units(limiter, "single") == 2


@pytest.mark.deep
@each_kind
def test_after_a_failover_by_sentinels_all_goes_on(kind: str, limiters: Limiters) -> None:
    with sentinel(kind) as group:
        limiter = limiters(group, *policies("bucket"), options="deadline=200ms")
        warm(limiter)
        assert limiter.decide("p", "s")
        assert limiter.decide_many("p", np.arange(2000)).allowed.all()
        assert group.master.command("WAIT", 1, 5000) == 1
        old = group.master
        group.sentinels[0].command("SENTINEL", "FAILOVER", "mymaster")
        assert soon(lambda: group.master is not old)

        def answers() -> bool:
            try:
                return bool(limiter.peek("p", "s"))
            except StoreError:
                return False

        assert soon(answers)
        assert limiter.decide("p", "s").remaining == 1
        assert limiter.decide_many("p", np.arange(2000)).remaining.tolist() == [1] * 2000


@sized
@each_layout
def test_no_script_of_a_large_batch_has_many_rows(server: Server, sync_limiters: Limiters, layout: str) -> None:
    """A server does nothing else while a script runs, so its rows are bounded: they are some milliseconds."""
    limiter = sync_limiters(server, *policies(layout), Policy("two", ["9/day", "20/week"], channels={"c": ["5/day"]}))
    server.command("CONFIG", "RESETSTAT")
    rows = size(10_000, 20_000, 50_000)
    assert limiter.decide_many("p", np.arange(rows)).allowed.all()
    plain = _scripts_run(server)
    assert limiter.decide_many("two", np.arange(rows), channel="c", cost=2).allowed.all()
    assert plain >= rows / PLAIN_ROWS
    assert _scripts_run(server) - plain >= rows / OTHER_ROWS


def _scripts_run(server: Server) -> int:
    told = re.search(r"cmdstat_evalsha:calls=(\d+)", str(server.command("INFO", "commandstats")))
    return int(told[1]) if told else 0


def test_the_scripts_say_before_they_begin_what_they_do() -> None:
    for script in (ONE, ATTEMPT, REFUND, SWEEP):
        assert script.text.startswith(b"#!lua\n")
    assert LOOK.text.startswith(b"#!lua flags=no-writes\n")
    assert LOOK.text.partition(b"\n")[2] == ATTEMPT.text.partition(b"\n")[2]


@each_layout
def test_a_receipt_whose_claim_was_lost_is_a_conflict_of_each_row_that_it_was_given_for(
    server: Server, limiters: Limiters, layout: str
) -> None:
    """The claim of its name was evicted or deleted: the receipts beside the logs still say what was asked."""
    limiter = limiters(server, *policies(layout))
    assert limiter.decide_many("p", [1, 2, 1], receipt="r").allowed.all()
    [claim] = server.command("KEYS", f"{limiters.namespace}:/receipt:*")
    server.command("DEL", claim)
    answers = limiter.decide_many("p", [1, 2, 2, 2], receipt="r")
    assert [type(answers.errors[row]) for row in range(4)] == [IdConflictError] * 4
    assert "'r'" in str(answers.errors[0])
    assert not answers.allowed.any()
    assert limiter.peek("p", 2).remaining == 1


@pytest.mark.parametrize("then", first(1, ["bucket", "subject"]))
@each_layout
def test_a_batch_of_which_half_was_answered_goes_on_under_the_rule_now_in_force(
    server: Server, limiters: Limiters, layout: str, then: str
) -> None:
    """Calls with an answer keep it, the others follow the rule, and every process gives the same answers for good."""
    subjects = [number % 640 for number in range(700)]
    before = limiters(server, Policy("p", ["3/day"], layout=layout, population=1000))
    first = before.decide_many("p", subjects, receipt="r")
    ran, *others = sorted(server.command("KEYS", f"{limiters.namespace}:p/receipt:*"))
    logs = server.command("KEYS", f"{limiters.namespace}:p:*")
    server.command("DEL", *others, *logs)
    after = limiters(server, Policy("p", ["9/hour", "7/day"], layout=then, population=4000))
    answers = after.decide_many("p", subjects, receipt="r")
    assert not answers.errors
    is_new = np.array([answers[row].limit.quota == 7 for row in range(700)])
    assert 0 < is_new.sum() < 700
    kept = np.flatnonzero(~is_new).tolist()
    assert [answers[row] for row in kept] == [first[row] for row in kept]
    assert set(answers.remaining[is_new].tolist()) <= {6, 5}
    used = [state[1].used for state in (after.usage("p", subject) for subject in range(640))]
    assert used == np.bincount(np.array(subjects)[is_new], minlength=640).tolist()
    last = limiters(server, Policy("p", ["400/day"], layout=layout, population=90))
    for limiter in (after, before, last, before):
        assert list(limiter.decide_many("p", subjects, receipt="r")) == list(answers)
        with pytest.raises(IdConflictError, match="'r'"):
            limiter.decide_many("p", subjects[1:], receipt="r")
    assert server.command("EXISTS", ran) == 1


@each_layout
def test_a_receipt_of_the_previous_release_answers_under_its_own_rules(
    server: Server, limiters: Limiters, layout: str
) -> None:
    """It has no plan: under other rules it stays a conflict, which consumes nothing."""
    limiter = limiters(server, *policies(layout))
    first = limiter.decide_many("p", [1, 2, 1], receipt="r")
    [plan] = server.command("KEYS", f"{limiters.namespace}:/plan:*")
    server.command("DEL", plan)
    other = limiters(server, Policy("p", ["4/day"], layout=layout, population=1000))
    with pytest.raises(IdConflictError):
        other.decide_many("p", [1, 2, 1], receipt="r")
    assert list(limiter.decide_many("p", [1, 2, 1], receipt="r")) == list(first)
    assert limiter.peek("p", 1).remaining == 0
