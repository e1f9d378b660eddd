"""The oracle that counts finds wrong engines, each by the promise that it breaks; so does the machine beside it."""

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings

from capline import Attempt, Limiter, ManualClock, Policy
from capline.model.decision import Decision
from capline.store.local import memory, reservations
from capline.store.local import operations as local
from capline.testing import reference, state_machine
from capline.testing.law.bulk.counted import COUNTED, History
from capline.testing.oracle import Oracle
from capline.testing.setting import START_US
from capline.window import reservation
from capline.window.bound_log import BoundLog
from capline.window.joint import joint
from capline.window.reservation import Pending, commit, ended
from capline.window.rule import attempt

Parts = list[list["BoundLog"]]


def latest_us(parts: Parts, now_us: int) -> int:
    return max([now_us, *(bound.log.high_water_us for bound_logs in parts for bound in bound_logs)])


def trims_by_the_latest(parts: Parts, now_us: int, fingerprints: Sequence[int], *, record: bool = True) -> Any:
    """The logs of every part lose what is out of the window at the latest time of any part."""
    for bound in [bound for bound_logs in parts for bound in bound_logs]:
        bound.log.trim(latest_us(parts, now_us) - bound.log_limits.retention_us)
    return joint(parts, now_us, fingerprints, record=record)


def looks_up_by_the_latest(parts: Parts, now_us: int, fingerprints: Sequence[int], *, record: bool = True) -> Any:
    """An id is forgotten where the latest time of any part is a window later."""
    oldest_us = latest_us(parts, now_us) - max(
        bound.log_limits.retention_us for bound_logs in parts for bound in bound_logs
    )
    kept = [
        mark if bound_logs[0].log.find(mark, oldest_us) > 0 else 0
        for bound_logs, mark in zip(parts, fingerprints, strict=True)
    ]
    return joint(parts, now_us, kept, record=record)


def judges_all_by_the_latest(parts: Parts, now_us: int, fingerprints: Sequence[int], *, record: bool = True) -> Any:
    """Every part is decided at the latest time of any."""
    return joint(parts, latest_us(parts, now_us), fingerprints, record=record)


def consumes_part_by_part(parts: Parts, now_us: int, fingerprints: Sequence[int], *, record: bool = True) -> Any:
    """What was allowed stays recorded when a later part refuses."""
    hits: list[int] = []
    for bound_logs, mark in zip(parts, fingerprints, strict=True):
        answer, own = joint([bound_logs], now_us, [mark], record=record)
        if not answer.allowed:
            return answer, []
        hits += own
    return answer, hits  # pyright: ignore[reportPossiblyUnboundVariable] - there is a part


def records_only_the_first(parts: Parts, now_us: int, fingerprints: Sequence[int], *, record: bool = True) -> Any:
    """The others are only looked at."""
    answer, hits = joint(parts, now_us, fingerprints, record=False)
    if answer.allowed:
        joint(parts[:1], now_us, fingerprints[:1], record=record)
    return answer, hits


def forgets_ids(bound_logs: Sequence[BoundLog], now_us: int, fingerprint: int = 0, *rest: Any) -> Decision:
    """A retry is a new attempt."""
    return attempt(bound_logs, now_us, 0, *rest)


def follows_the_clock(bound_logs: Sequence[BoundLog], now_us: int, *rest: Any) -> Decision:
    """A clock that steps back makes room: hits that are ahead of it are given back first."""
    for bound in bound_logs:
        if bound.log.newest_us() > now_us + 1:
            bound.log.give_back(bound.log.newest_us(), 1)
    return attempt(bound_logs, now_us, *rest)


class Wrong(NamedTuple):
    """What is put in the place of which function, and promises that it breaks."""

    place: str
    engine: Callable[..., Any]
    breaks: set[int]


WRONG = [
    Wrong("joint", trims_by_the_latest, {1, 5}),
    Wrong("joint", looks_up_by_the_latest, {4}),
    Wrong("joint", judges_all_by_the_latest, {0}),
    Wrong("joint", consumes_part_by_part, {1, 2}),
    Wrong("joint", records_only_the_first, {4, 5}),
    Wrong("attempt", forgets_ids, {4}),
    Wrong("attempt", follows_the_clock, {1}),
]


def broken(seed: int) -> int | None:
    """The number of the first promise that a history on memory breaks."""
    clock, policies = ManualClock(START_US), [Policy(name, **options) for name, options in COUNTED.items()]
    with Limiter("memory://", policies, clock=clock) as limiter:
        history = History(limiter, clock, Oracle(policies), random.Random(seed), ("s", "t"))
        try:
            for _ in range(150):
                history.step()
        except AssertionError as error:
            return int(str(error).split()[1])
    return None


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.engine.__name__)
def test_a_wrong_engine_is_found_by_the_promise_that_it_breaks(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, wrong.place, wrong.engine)
    found = {broken(seed) for seed in range(12)} - {None}
    assert wrong.breaks <= found


def test_a_right_one_breaks_none() -> None:
    assert {broken(seed) for seed in range(12)} == {None}


def ends_late(pending: list[Pending], time_us: int) -> list[Pending]:
    """A reservation holds a microsecond longer than it was told."""
    return ended(pending, time_us - 1)


def commits_what_has_ended(own: BoundLog, pending: list[Pending], stamp_us: int, now_us: int) -> bool:
    """Whoever commits is told that they hold it."""
    return commit(own, pending, stamp_us, now_us) or any(entry.stamp_us == stamp_us for entry in pending)


def forgets_commits(own: BoundLog, pending: list[Pending], stamp_us: int, now_us: int) -> bool:
    """A committed hit ends all the same."""
    return commit(own, [*pending], stamp_us, now_us)


def broken_reservations(seed: int) -> bool:
    """Whether a history of reservations on memory breaks a promise."""
    clock, draw, policy = ManualClock(START_US), random.Random(seed), Policy("p", ["9/60us"], reservations=True)
    hits: list[int] = []
    oracle = Oracle([policy])
    with Limiter("memory://", [policy], clock=clock) as limiter:
        try:
            for _ in range(150):
                clock.advance_us(draw.choice([0, 1, 1, 2, 5]))
                now_us, attempt = clock.now_us(), Attempt("p", "s", draw.randint(1, 3))
                answer = limiter.reserve("p", "s", attempt.cost, ttl=8e-6)
                oracle.reserved(attempt, now_us, answer, 8)
                hits += [answer.hit] if answer.hit else []
                if hits and draw.random() < 0.5:
                    hit = draw.choice(hits[-5:])
                    oracle.committed("p", "s", hit, now_us, done=limiter.commit("p", "s", hit))
                oracle.peeked(Attempt("p", "s"), now_us, limiter.peek("p", "s"))
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize(
    ("module", "place", "engine"),
    [
        (reservation, "ended", ends_late),
        (reservations, "commit", commits_what_has_ended),
        (reservations, "commit", forgets_commits),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_reservation_is_found(
    module: Any, place: str, engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(broken_reservations(seed) for seed in range(8))
    monkeypatch.setattr(module, place, engine)
    assert any(broken_reservations(seed) for seed in range(8))


def no_fast_path(*_: object) -> None:
    return None


def makes_none(*_: object) -> Callable[..., None]:
    return no_fast_path


@pytest.mark.parametrize(
    "engine", [judges_all_by_the_latest, looks_up_by_the_latest], ids=lambda engine: engine.__name__
)
def test_the_machine_finds_what_store_and_reference_have_both_wrong(
    engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (local, reference):
        monkeypatch.setattr(module, "joint", engine)
    monkeypatch.setattr(local, "_quick_joint", no_fast_path)  # it has no part in the mistake
    monkeypatch.setattr(memory, "joint_path", makes_none)
    case: Any = state_machine("memory://", steps=4000)
    case.settings = settings(case.settings, phases=[Phase.generate], database=None, derandomize=True)
    with pytest.raises(AssertionError, match="promise"):
        case("runTest").debug()


def test_what_a_log_kept_while_numbers_counted_may_be_settled() -> None:
    """It had an id, and a wider window came with the hits; the oracle has forgotten it."""
    logs, numbers, wide = (
        Policy("p", limits, algorithm=algorithm)
        for limits, algorithm in (
            (["5/20us"], "sliding_log"),
            (["5/20us"], "fixed_window"),
            (["3/20us", "11/70us"], "sliding_log"),
        )
    )
    clock, oracle = ManualClock(START_US), Oracle([logs])
    with Limiter("memory://", [logs], clock=clock) as limiter:
        hit = limiter.charge("p", "s", 1, id="x")
        oracle.charged(Attempt("p", "s", 1, "x"), START_US, hit)
        limiter.use([numbers])
        oracle.use([numbers])
        clock.advance_us(35)
        oracle.decided(Attempt("p", "s"), clock.now_us(), limiter.decide("p", "s"))
        limiter.use([wide])
        oracle.use([wide])
        assert limiter.settle("p", "s", hit.hit or 0, 0)
        oracle.settled("p", "s", START_US, 0, done=True, now_us=clock.now_us())


def test_what_numbers_left_to_hits_moves_a_log_past_an_id_at_the_edge_of_its_window() -> None:
    numbers, logs = (Policy("p", ["5/20us"], algorithm=algorithm) for algorithm in ("sliding_counter", "sliding_log"))
    clock, oracle = ManualClock(START_US), Oracle([numbers])
    with Limiter("memory://", [numbers], clock=clock) as limiter:

        def ask(id: str | None = None) -> int:
            decision = limiter.decide("p", "s", id=id)
            oracle.decided(Attempt("p", "s", 1, id), clock.now_us(), decision)
            return (decision.hit or 0) - START_US

        assert ask("z") == 0
        clock.advance_us(18)
        assert [ask(), ask("x")] == [18, 19]
        limiter.use([logs])
        oracle.use([logs])
        clock.advance_us(-9)
        assert [ask("z"), ask("x")] == [21, 19]


def test_what_aged_beside_a_refusal_that_counts_is_not_known_under_a_wider_window() -> None:
    """The refusal was recorded, so hits went that were out of every window then."""
    narrow, wide = (
        Policy("p", ["5/20us"], count_denied=True, algorithm="bucketed", granularity="5us"),
        Policy("p", ["9/70us"], algorithm="bucketed", granularity="5us"),
    )
    clock, oracle = ManualClock(START_US), Oracle([narrow])
    with Limiter("memory://", [narrow], clock=clock) as limiter:

        def ask(cost: int, id: str | None = None) -> None:
            decision = limiter.decide("p", "s", cost, id=id)
            oracle.decided(Attempt("p", "s", cost, id), clock.now_us(), decision)

        ask(1, "x")
        clock.advance_us(30)
        ask(9)
        limiter.use([wide])
        oracle.use([wide])
        ask(1, "x")
