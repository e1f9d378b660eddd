"""Three primaries without replicas, one of them gone or hanging: it takes its own rows along, and no others."""

# pyright: reportUnknownVariableType=false

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.kit.server import Limiters, each_pair, soon, stamps
from tests.kit.servers import KINDS, Cluster, Server, cluster

from capline import Attempt, Decision, Policy, StoreError
from capline.model.errors import StoreUnavailableError, StoreUnknownError
from capline.store.redis.scripting.keys import slot_of, tag_of

pytestmark = pytest.mark.alone

ROWS = 6_000
OPTIONS = "deadline=200ms&bulk_deadline=1s"
AOF = ("appendonly yes", "appendfsync always", "cluster-require-full-coverage no")


@pytest.fixture(scope="module", params=KINDS)
def nodes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(request.param, 3, 0, options=AOF) as made:
        yield made


def owners(nodes: Cluster, subjects: list[Any], layout: str, population: int) -> list[Server]:
    """The primary of each subject."""
    buckets = -(-population // 64) if layout == "bucket" else 0
    starts = [(16384 * number // 3, server) for number, server in enumerate(nodes.servers)]
    return [
        next(server for start, server in reversed(starts) if start <= slot_of(tag_of(subject, buckets)))
        for subject in subjects
    ]


def well(nodes: Cluster) -> None:
    for server in nodes.servers:
        server.resume() if server.runs else server.restart()
    nodes.wait()


@each_pair
@pytest.mark.parametrize("trouble", ["kill", "pause", "pause at the first meeting"])
def test_one_primary_down_fails_only_its_rows(nodes: Cluster, limiters: Limiters, layout: str, trouble: str) -> None:
    policy = Policy("p", ["2/day"], layout=layout, population=ROWS)
    limiter = limiters(nodes, policy, options=OPTIONS)
    subjects: list[Any] = [f"user {number}" if number % 2 else number for number in range(ROWS)]
    of = owners(nodes, subjects, layout, ROWS)
    lost = nodes.servers[1]
    try:
        if trouble == "kill":
            assert not limiter.decide_many("p", subjects[:100]).errors
            lost.kill()
        else:
            if trouble == "pause":
                assert not limiter.decide_many("p", subjects[:100]).errors
            else:
                assert limiter.decide(
                    "p", next(one for one, server in zip(subjects, of, strict=True) if server is not lost)
                )
            lost.pause()
        start = time.monotonic()
        answers = limiter.decide_many("p", subjects)
        seconds = time.monotonic() - start
    finally:
        well(nodes)
    down = np.array([server is lost for server in of])
    assert sorted(answers.errors) == np.flatnonzero(down).tolist()
    assert answers.allowed[~down].all()
    assert not answers.allowed[down].any()
    kinds = {type(error) for error in answers.errors.values()}
    expected = {"kill": StoreUnavailableError, "pause": StoreUnknownError}.get(trouble, StoreUnavailableError)
    assert kinds <= {expected, StoreUnavailableError, StoreUnknownError}
    assert expected in kinds
    assert seconds < 60, "two parts, a second each, and some work"

    settled = limiters(nodes, policy)
    logged = settled.peek_many("p", subjects)
    for row, error in answers.errors.items():
        if isinstance(error, StoreUnavailableError):
            assert logged.remaining[row] >= 0 if row < 100 else logged.remaining[row] == 1, "said not to be recorded"
    for row in range(0, ROWS, 997):
        if not down[row]:
            assert stamps(settled, subjects[row])[-1] == answers.hit[row]

    def whole() -> bool:
        again = limiter.peek_many("p", subjects)
        return not again.errors

    assert soon(whole)
    settled.namespace  # noqa: B018 - it is the same store


@each_pair
def test_items_of_a_batch_that_lie_elsewhere_are_decided(nodes: Cluster, limiters: Limiters, layout: str) -> None:
    policy = Policy("p", ["9/day"], layout=layout, population=1000)
    limiter = limiters(nodes, policy, options=OPTIONS)
    subjects = [f"s{number}" for number in range(60)]
    of = owners(nodes, list(subjects), layout, 1000)
    lost = nodes.servers[2]
    attempts = [Attempt("p", subject, id="x" if number % 2 else None) for number, subject in enumerate(subjects)]
    assert all(isinstance(answer, Decision) for answer in limiter.decide_batch(attempts))
    lost.kill()
    try:
        answers = limiter.decide_batch(attempts)
    finally:
        well(nodes)
    for server, answer in zip(of, answers, strict=True):
        assert isinstance(answer, StoreError if server is lost else Decision)
    assert soon(lambda: all(isinstance(one, Decision) for one in limiter.decide_batch(attempts)))


def test_a_receipt_completes_what_a_lost_primary_left_open(nodes: Cluster, limiters: Limiters) -> None:
    policy = Policy("p", ["1/day"], layout="bucket", population=ROWS)
    limiter = limiters(nodes, policy, options=OPTIONS)
    assert not limiter.decide_many("p", np.arange(50, dtype=np.int64) + ROWS).errors
    subjects = np.arange(5000)
    nodes.servers[0].pause()
    try:
        first = limiter.decide_many("p", subjects, receipt="r")
    except StoreError:
        first = None  # the receipt itself lies there
    finally:
        well(nodes)
    assert soon(lambda: not limiter.peek_many("p", subjects).errors)
    second = limiter.decide_many("p", subjects, receipt="r")
    assert not second.errors
    assert second.allowed.all()
    if first is not None:
        sure = [row for row in range(5000) if row not in first.errors]
        assert (first.hit[sure] == second.hit[sure]).all()
    assert not limiter.decide_many("p", subjects).allowed.any()
