"""The failover experiment in short; the long form is `make chaos`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from proof.chaos.faults import FAULTS
from proof.chaos.run import Outcome, Plan, run
from proof.chaos.table import broken, plans, row, short_plans, table
from proof.chaos.tally import Figures, over_by_stamps, over_by_wall, tally
from proof.chaos.verbs import WAITING, broken_rows, verb_table
from tests.kit.over_http import AtService
from tests.kit.program import lives
from tests.kit.server import soon
from tests.kit.servers import Cluster, cluster

from capline import Limiter

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
MOST_RUNS = 5
"""Of real load under real faults: which calls they meet is chance."""
PLANNED, LAG, ROUGH, REPLICATED, *CONTROLS = short_plans("capline")


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    """Each test's own: what one does to a cluster is no part of the next.

    A replica that was voted in on a cluster where slots had been moved was once seen to stay in the state `fail`.
    """
    with cluster("redis") as made:
        yield made


# --- on a cluster -----------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_planned_faults_lose_nothing_and_keep_every_promise(nodes: Cluster) -> None:
    outcome = run(PLANNED, nodes)
    assert not broken(outcome), broken(outcome)
    assert outcome.figures.lost == outcome.figures.over == 0
    assert len(outcome.done) >= 2
    assert outcome.figures.refused > 300, "subjects at their limit"
    assert outcome.figures.allowed > 900


@pytest.mark.deep
def test_what_a_primary_had_not_replicated_is_lost_and_bounds_what_is_over_admitted(nodes: Cluster) -> None:
    outcome = run(LAG, nodes)
    assert not broken(outcome), broken(outcome)
    assert outcome.done == ["lagging_primary_killed"]
    assert outcome.figures.lost, "a fault that loses nothing proves nothing"
    assert max(outcome.figures.down_s) > 1


@pytest.mark.deep
def test_with_a_replica_waited_for_the_same_fault_loses_nothing(nodes: Cluster) -> None:
    outcome = run(REPLICATED, nodes)
    assert not broken(outcome), broken(outcome)
    assert outcome.done == ["lagging_primary_killed"]
    assert outcome.figures.lost == outcome.figures.over == outcome.figures.duplicates == 0
    assert outcome.figures.allowed > 300


@pytest.mark.deep
@pytest.mark.parametrize(
    ("replicas", "made"), [(0, Limiter), (1, Limiter), (1, partial(AtService, asynchronous=False))]
)
def test_what_each_verb_says_holds_after_a_failover_where_replicas_are_waited_for(
    nodes: Cluster, replicas: int, made: Any
) -> None:
    rows = verb_table(nodes, replicas, made)
    assert {row.verb for row in rows if not row.answered} == (set(WAITING) if replicas else set())
    if replicas:
        assert broken_rows(rows) == []
    else:
        assert {"decide", "charge", "settle upward", "load", "erase"} <= {row.verb for row in broken_rows(rows)}
    refunded = next(row for row in rows if row.verb == "refund")
    assert refunded.held > refunded.told, "a refund that is lost errs towards refusing"


@pytest.mark.deep
def test_primaries_that_die_and_hang_cost_no_more_than_what_is_lost(nodes: Cluster) -> None:
    outcome = run(ROUGH, nodes)
    assert not broken(outcome), broken(outcome)
    assert set(outcome.done) <= {"primary_killed", "primary_stopped"}
    assert outcome.done
    assert outcome.figures.unanswered, "a fault that nobody notices proves nothing"
    assert outcome.figures.allowed > 600


@pytest.mark.deep
@pytest.mark.parametrize("plan", CONTROLS, ids=lambda plan: plan.limiter)
def test_a_limiter_that_knows_no_ids_is_found_to_count_twice_by_the_same_load(plan: Plan, nodes: Cluster) -> None:
    seen = Counter[str]()
    for _ in range(MOST_RUNS):
        outcome = run(plan, nodes)
        seen.update(duplicates=outcome.figures.duplicates, refused=outcome.figures.refused)
        if seen["duplicates"] > 5 and seen["refused"] > 100:
            return
    pytest.fail(f"{MOST_RUNS} runs showed only {seen}")


def test_interrupted_it_stops_every_server_and_every_process(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    words = [sys.executable, "-m", "proof.chaos", "--short", "--only", "planned"]
    with subprocess.Popen(
        words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as program:
        try:
            until = time.monotonic() + 60
            while not list(tmp_path.glob("capline-chaos-*")) and time.monotonic() < until:
                time.sleep(0.05)
            assert soon(lambda: len(below(program.pid)) > 6), "six servers, and the load"
            children = below(program.pid)
            program.send_signal(signal.SIGINT)
            out, errors = program.communicate(timeout=120)
        finally:
            program.kill()
    assert program.returncode == 130
    assert b"interrupted; every server is stopped" in errors
    assert b"Traceback" not in errors
    assert not out
    assert not list(tmp_path.iterdir())
    assert soon(lambda: not any(lives(pid) for pid in children))


def below(pid: int) -> list[int]:
    """The processes that it started."""
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [int(word) for word in words]


# --- what the figures mean --------------------------------------------------------------------------------------------


def attempt(at_us: int, allowed: bool | None = True, hit: int | None = None, id: str | None = None, **more: Any) -> str:
    error = {"error": "TimeoutError()"} if allowed is None else {}
    times = {"due_us": at_us, "asked_us": at_us, "answered_us": at_us + 1000}
    told = {"event": "attempt", "subject": "s", "allowed": allowed, "id": id, "hit": hit}
    return json.dumps({**times, **told, **error, **more})


def refund(hit: int, done: bool | None = True) -> str:
    return json.dumps({"event": "refund", "subject": "s", "hit": hit, "done": done})


def figures(lines: list[str], held: list[int] | None, quota: int = 2) -> Figures:
    content = None if held is None else {"s": [(stamp, 1) for stamp in held]}
    return tally(lines, content, (quota, 100), 1_000_000, lambda _: 0, 1)


def test_a_hit_that_was_acknowledged_and_is_not_there_is_lost() -> None:
    found = figures([attempt(10, hit=10), attempt(20, hit=20), attempt(130, hit=130)], [20, 130])
    assert (found.lost, found.over, found.duplicates) == (1, 0, 0)


def test_a_window_over_its_quota_by_what_was_lost_and_by_more_than_that() -> None:
    three = [attempt(at, hit=at) for at in (10, 20, 30)]
    assert (figures(three, [20, 30]).lost, figures(three, [20, 30]).over) == (1, 1)
    found = figures(three, [10, 20, 30])
    assert (found.lost, found.over) == (0, 1)
    assert broken(Outcome(LAG, found)) == ["1 over-admitted, and only 0 lost"]


def test_a_hit_that_was_given_back_is_neither_lost_nor_over() -> None:
    three = [attempt(at, hit=at) for at in (10, 20, 30)]
    found = figures([*three, refund(20)], [10, 30])
    assert (found.lost, found.over, found.back) == (0, 0, 0)
    assert figures([*three, refund(20, done=None)], [10, 30]).over == 0
    assert figures([*three, refund(20)], [10, 20, 30]).back == 1
    assert figures([*three, refund(20, done=False)], [10, 20, 30]).over == 1


def test_one_id_twice_is_a_duplicate_unless_the_first_was_lost() -> None:
    twice = [attempt(10, hit=10, id="x"), attempt(20, hit=20, id="x")]
    assert figures(twice, [10, 20]).duplicates == 1
    assert figures(twice, [20]).duplicates == 0
    assert figures([*twice, refund(10)], [20]).duplicates == 0
    assert figures(twice, None).duplicates == 1
    assert figures([attempt(10, hit=10, id="x"), attempt(20, hit=10, id="x")], [10]).duplicates == 0


def test_a_hit_that_nobody_asked_for_is_a_duplicate() -> None:
    assert figures([], []).duplicates == 0
    assert figures([attempt(10, hit=10)], [10, 20]).duplicates == 1
    assert figures([attempt(10, hit=10), attempt(15, allowed=None)], [10, 20]).duplicates == 0
    assert figures([attempt(10, hit=10), attempt(5000, allowed=None)], [10, 20]).duplicates == 1, "asked for later"
    # Calls of one id leave one hit, and none beside the one that was told.
    unknown = [attempt(10, allowed=None, id="x"), attempt(20, allowed=None, id="x")]
    assert figures(unknown, [30]).duplicates == 0
    assert figures(unknown, [30, 40]).duplicates == 1
    assert figures([*unknown, attempt(25, hit=25, id="x")], [25, 30]).duplicates == 1


def test_a_shard_is_down_where_nobody_is_answered() -> None:
    lines = [attempt(at, allowed=None if 300_000 <= at < 600_000 else False) for at in range(0, 1_000_000, 20_000)]
    found = figures(lines, [])
    assert (found.down_s, found.longest_down_s) == ([0.3], [0.3])
    assert found.errors == {"TimeoutError": 15}
    assert found.unanswered == 15
    assert found.p50_ms == 1


def test_an_answer_after_the_deadline_is_none_for_a_shard() -> None:
    late = [attempt(at, allowed=False, answered_us=at + 1_300_000) for at in range(0, 100_000, 20_000)]
    found = figures(late, [])
    assert (found.down_s, found.late, found.unanswered) == ([0.1], 5, 0)
    assert found.call_p999_ms == 1300


@pytest.mark.parametrize(
    ("stamps", "over"), [([], 0), ([1, 2], 0), ([1, 2, 3], 1), ([1, 2, 101], 0), ([1, 2, 100, 101, 102], 1)]
)
def test_over_is_as_few_as_would_have_to_go(stamps: list[int], over: int) -> None:
    assert over_by_stamps(stamps, 2, 100) == over


def test_without_stamps_only_what_is_certain_counts() -> None:
    assert over_by_wall([(1, 2), (3, 4), (5, 6)], 2, 100) == 1
    assert over_by_wall([(1, 2), (3, 4), (5, 101)], 2, 100) == 0, "the first may have been out of the window"


def test_lost_where_nothing_may_be_lost_is_a_broken_promise() -> None:
    some = Figures(lost=3)
    assert not broken(Outcome(LAG, some))
    assert broken(Outcome(REPLICATED, some)) == broken(Outcome(PLANNED, some)) == ["3 acknowledged hits lost"]
    assert broken(Outcome(LAG, Figures(duplicates=1))) == ["1 duplicates"]
    assert not broken(Outcome(CONTROLS[0], Figures(lost=3, duplicates=9, over=9)))
    calm = replace(PLANNED, faults=())
    assert broken(Outcome(calm, Figures(unanswered=1)))
    assert broken(Outcome(calm, Figures(), promises="BROKEN over-quota-by-stamps"))


def test_the_short_form_is_a_minute_of_load_in_both_modes_and_on_both_controls() -> None:
    made = short_plans("seed")
    assert sum(plan.seconds for plan in made) == 60
    assert {plan.limiter for plan in made} == {"capline", "capline, wait_replicas=1", "sorted set", "limits"}


def test_the_long_form_has_every_mode_and_every_fault() -> None:
    made = plans(300, 20, "seed")
    assert {plan.limiter for plan in made if plan.seconds == 300 and set(plan.faults) == set(FAULTS)} == {
        "capline",
        "capline, wait_replicas=1",
        "sorted set",
        "limits",
    }
    assert all(plan.processes == 4 for plan in made)
    told = row(Outcome(Plan("n", "limits", (), 1, 1), Figures(lost=None, down_s=[0, 0.5])))
    assert json.loads(json.dumps(told))["lost"] is None
    assert "untold" in table([Outcome(made[-1], Figures(lost=None, back=None))])
