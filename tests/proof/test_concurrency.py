"""Callers at the same time on one key, as each recorded what it saw; the long form is `python -m proof.concurrency`."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from proof.checker.report import Report
from proof.concurrency.callers import run
from proof.concurrency.cases import LIMITS, OPTIONS, STORES, SUBJECTS, Case, cases
from tests.conformance.test_oracle import (
    consumes_part_by_part,
    forgets_commits,
    makes_none,
    no_fast_path,
    records_only_the_first,
)
from tests.kit.server import SLOW
from tests.kit.servers import shared

from capline import Decision, Limit
from capline.store.local import memory, reservations
from capline.store.local import operations as local
from capline.window import reservation
from capline.window.bound_log import BoundLog, OpenLog
from capline.window.charge import charge, settle
from capline.window.limit_reader import RollingReader
from capline.window.reservation import commit
from capline.window.rule import attempt, move

pytestmark = pytest.mark.alone

CASES = [
    Case("lmdb", "1/50ms", "processes", 2, 0.5),
    Case("lmdb", "1000/5s", "processes", 8, 0.8),
    Case("redis", "1/50ms", "processes", 8, 0.8),
    Case("redis", "1000/5s", "processes", 2, 0.8),
    Case("valkey", "10/s", "processes", 8, 1.3),
    Case("redis cluster", "10/s", "processes", 2, 1.3),
    Case("redis cluster", "1000/5s", "processes", 8, 0.8),
    Case("memory", "1000/5s", "threads", 64, 0.5),
    Case("memory", "1/50ms", "tasks", 64, 0.4),
    Case("lmdb", "1/50ms", "threads", 64, 0.5),
    Case("lmdb", "10/s", "tasks", 64, 0.5),
    Case("redis", "1000/5s", "threads", 64, 0.8),
    Case("redis", "1/50ms", "tasks", 64, 0.5),
    Case("redis cluster", "1000/5s", "tasks", 64, 0.8),
    Case("lmdb", "10/s", "processes", 32, 1.3),
    Case("redis", "1000/5s", "processes", 32, 0.8),
    Case("redis cluster", "1/50ms", "processes", 32, 0.8),
]
JOINT = [
    Case("lmdb", "10/s", "processes", 4, 0.8, joint=True),
    Case("redis", "10/s", "threads", 16, 0.8, joint=True),
    Case("redis cluster", "1/50ms", "tasks", 16, 0.8, joint=True),
    Case("redis", "1/50ms", "processes", 2, 0.8, slots=True, joint=True),
]
CHARGES = [
    Case("memory", "1/50ms", "threads", 4, 0.4, charges=True),
    Case("redis", "1/50ms", "tasks", 8, 0.4, charges=True),
    pytest.param(Case("lmdb", "1/50ms", "processes", 2, 0.5, charges=True), marks=pytest.mark.deep),
    pytest.param(Case("redis cluster", "10/s", "threads", 8, 1.3, charges=True), marks=pytest.mark.deep),
]
RESERVATIONS = [
    Case("redis", "1/50ms", "tasks", 4, 0.5, reservations=True),
    Case("lmdb", "1/50ms", "processes", 2, 0.5, reservations=True),
    pytest.param(Case("memory", "10/s", "threads", 4, 1.3, reservations=True), marks=pytest.mark.deep),
    pytest.param(Case("valkey", "1000/5s", "processes", 2, 0.8, reservations=True), marks=pytest.mark.deep),
    pytest.param(Case("redis cluster", "10/s", "threads", 8, 1.3, reservations=True), marks=pytest.mark.deep),
]
SETTLEMENTS = [
    Case("redis", "10/s", "tasks", 4, 1.3, settlements=True),
    Case("lmdb", "1/50ms", "processes", 2, 0.5, reservations=True, settlements=True),
    pytest.param(Case("memory", "10/s", "threads", 4, 1.3, settlements=True), marks=pytest.mark.deep),
]
MOVES = [
    Case("memory", "10/s", "threads", 4, 0.8, moves=True),
    Case("redis", "1/50ms", "tasks", 8, 0.5, moves=True),
    pytest.param(Case("lmdb", "1/50ms", "processes", 2, 0.5, moves=True), marks=pytest.mark.deep),
    pytest.param(Case("redis cluster", "10/s", "threads", 8, 1.3, moves=True), marks=pytest.mark.deep),
]
LONGER = (1, 1, 2, 4, 8, 8)
"""Of each further run of a case its length: on a busy machine a short one may not bring about what it is for."""
SLOTS = [
    Case("lmdb", "1/50ms", "processes", 8, 1.2, slots=True),
    Case("redis", "10/s", "processes", 2, 2.4, slots=True),
    Case("redis cluster", "1/50ms", "tasks", 64, 0.8, slots=True),
    Case("memory", "10/s", "threads", 64, 2.4, slots=True),
    Case("valkey", "1/50ms", "threads", 64, 0.8, slots=True),
]


def runs_of(case: Case) -> Iterator[Case]:
    """The case again and again, until whoever runs it has seen what it is for."""
    return (replace(case, seconds=case.seconds * longer) for longer in LONGER)


def kept(case: Case, tmp_path: Path, finals: int = 1) -> Iterator[tuple[Case, Report, list[dict[str, Any]]]]:
    """The same, with every promise kept: the case as it ran, the report and what was recorded."""
    for longer in runs_of(case):
        report, lines = run(longer, url_of(case.store, tmp_path))
        assert report, report.text()
        assert report.finals == finals
        yield longer, report, [json.loads(line) for line in lines]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_callers_at_the_same_time_find_every_promise_kept(case: Case, tmp_path: Path) -> None:
    for longer, report, _ in kept(case, tmp_path):
        if report.hits > longer.seconds and report.excused < 0.1 * report.attempts:
            return
    pytest.fail(f"{len(LONGER)} runs without hits, or of which a tenth could not be judged")


@pytest.mark.parametrize("case", SLOTS, ids=lambda case: case.name)
def test_so_do_those_who_take_slots_between_those_who_ask(case: Case, tmp_path: Path) -> None:
    for longer, report, rows in kept(case, tmp_path):
        assert report.excused == 0
        if met(longer, rows):
            return
    pytest.fail(f"{len(LONGER)} runs without slots in the future, or without anybody who waited for their end")


@pytest.mark.parametrize("case", JOINT, ids=lambda case: case.name)
def test_so_do_those_who_ask_for_several_subjects_in_one_attempt(case: Case, tmp_path: Path) -> None:
    for _, report, rows in kept(case, tmp_path, len(SUBJECTS)):
        answers = {row["allowed"] for row in rows if row.get("joint")}
        if answers == {True, False} and report.excused < 0.1 * report.attempts:
            return
    pytest.fail(f"{len(LONGER)} runs without both answers, or of which a tenth could not be judged")


@pytest.mark.parametrize(
    ("engine", "limit"),
    [(consumes_part_by_part, "1/50ms"), (records_only_the_first, "10/s")],
    ids=("consumes_part_by_part", "records_only_the_first"),
)
def test_an_engine_that_is_wrong_about_joint_attempts_is_found(
    engine: Callable[..., Any], limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the limit that shows its fault hundreds of times a run; a busy machine may need another run."""
    monkeypatch.setattr(local, "joint", engine)
    monkeypatch.setattr(local, "_quick_joint", no_fast_path)
    monkeypatch.setattr(memory, "joint_path", makes_none)
    case = Case("memory", limit, "threads", 4, 0.8, joint=True)
    reports = (run(longer, "memory://")[0] for longer in runs_of(case))
    assert any(report.kinds() & {"final-extra", "final-lost"} for report in reports)


@pytest.mark.parametrize("case", CHARGES, ids=lambda case: case.name)
def test_so_do_those_who_are_charged_past_the_quota(case: Case, tmp_path: Path) -> None:
    for _, report, rows in kept(case, tmp_path):
        attempts = [row for row in rows if row["event"] == "attempt"]
        charged = [row for row in attempts if row.get("verb") == "charge"]
        granted = [row for row in attempts if row["allowed"] and row not in charged]
        if granted and any(row["remaining"] == 0 for row in charged) and report.excused < 0.1 * report.attempts:
            return
    pytest.fail(f"{len(LONGER)} runs without a grant, or a charge that left nothing")


def refuses_charges(logs: Sequence[BoundLog], now_us: int, fingerprint: int = 0) -> Decision:
    """An engine to which a charge is an attempt like any other."""
    return attempt(logs, now_us, fingerprint)


def counts_a_charge_once(logs: Sequence[BoundLog], now_us: int, fingerprint: int = 0) -> Decision:
    """An engine that records one unit, however many are charged."""
    decision = charge(logs, now_us, fingerprint)
    for bound in logs:
        bound.log.amend(decision.hit or 0, 1)
    return decision


@pytest.mark.parametrize(
    ("engine", "limit", "kind"),
    [
        pytest.param(refuses_charges, "1/50ms", "charge-refused", id="refuses_charges"),
        pytest.param(counts_a_charge_once, "10/s", "final-units", id="counts_a_charge_once", marks=pytest.mark.deep),
    ],
)
def test_an_engine_that_is_wrong_about_charges_is_found(
    engine: Callable[..., Any], limit: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "charge", engine)
    case = Case("memory", limit, "threads", 4, 0.5, charges=True)
    assert any(kind in run(longer, "memory://")[0].kinds() for longer in runs_of(case))


@pytest.mark.parametrize("case", RESERVATIONS, ids=lambda case: case.name)
def test_so_do_those_who_reserve_and_commit_in_time_or_late(case: Case, tmp_path: Path) -> None:
    for _, report, rows in kept(case, tmp_path):
        committed = {row["hit"] for row in rows if row["event"] == "commit" and row["done"]}
        reserved = {row["hit"] for row in rows if row.get("ttl_us") and row["allowed"]}
        if committed & reserved and reserved - committed and report.excused < 0.1 * report.attempts:
            return
    pytest.fail(f"{len(LONGER)} runs without both ends of a reservation, or of which a tenth could not be judged")


def never_ends(record: OpenLog, time_us: int) -> list[int]:
    """An engine to which a reservation is a hit like any other."""
    return []


def commits_what_is_gone(own: BoundLog, pending: list[Any], stamp_us: int, now_us: int) -> bool:
    """An engine that tells whoever commits that they hold it."""
    commit(own, pending, stamp_us, now_us)
    return True


@pytest.mark.parametrize(
    ("module", "name", "engine", "kind"),
    [
        pytest.param(reservation, "ended", never_ends, "refusal-unjustified", id="never_ends"),
        pytest.param(reservations, "commit", commits_what_is_gone, "commit-too-late", id="commits_what_is_gone"),
        pytest.param(reservations, "commit", forgets_commits, "final-lost", id="forgets_commits"),
    ],
)
def test_an_engine_that_is_wrong_about_reservations_is_found(
    module: Any, name: str, engine: Callable[..., Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, engine)
    case = Case("memory", "1/50ms", "threads", 4, 0.5, reservations=True)
    assert any(kind in run(longer, "memory://")[0].kinds() for longer in runs_of(case))


@pytest.mark.parametrize("case", SETTLEMENTS, ids=lambda case: case.name)
def test_so_do_those_who_settle_for_more_or_less(case: Case, tmp_path: Path) -> None:
    for _, report, rows in kept(case, tmp_path):
        granted = {row["hit"]: row["cost"] for row in rows if row["event"] == "attempt" and row["allowed"]}
        changes = [row["cost"] - granted[row["hit"]] for row in rows if row["event"] == "settle" and row["done"]]
        if changes and min(changes) < 0 < max(changes) and report.excused < 0.1 * report.attempts:
            return
    pytest.fail(f"{len(LONGER)} runs without both kinds of settlement, or of which a tenth could not be judged")


def settles_downward_alone(logs: Sequence[BoundLog], stamp_us: int, now_us: int) -> bool:
    """An engine that says yes to more units, and leaves the hit as it was."""
    return logs[0].cost > logs[0].log.units_at(stamp_us) > 0 or settle(logs, stamp_us, now_us)


def test_an_engine_that_is_wrong_about_settlements_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "settle", settles_downward_alone)
    case = Case("memory", "10/s", "threads", 4, 0.7, settlements=True)
    assert any("over-quota-by-stamps" in run(longer, "memory://")[0].kinds() for longer in runs_of(case))


@pytest.mark.parametrize("case", MOVES, ids=lambda case: case.name)
def test_so_do_those_whose_slots_move_up_where_others_left(case: Case, tmp_path: Path) -> None:
    for _, report, rows in kept(case, tmp_path):
        if any(row["event"] == "move" and row["done"] and row["moved"] < row["hit"] for row in rows):
            assert report.excused < 0.1 * report.attempts
            return
    pytest.fail(f"{len(LONGER)} runs in which no slot moved")


def stays_where_it_was_too(logs: Sequence[BoundLog], stamp_us: int, *asked: int) -> Decision:
    """An engine that leaves the slot at its old place as well."""
    units, decision = logs[0].log.units_at(stamp_us), move(logs, stamp_us, *asked)
    logs[0].log.amend(stamp_us, units)
    return decision


def gives_back_twice(logs: Sequence[BoundLog], stamp_us: int, *asked: int) -> Decision:
    """An engine that takes as many units off another hit."""
    decision = move(logs, stamp_us, *asked)
    if decision.hit not in (None, stamp_us):
        logs[0].log.give_back(logs[0].log.stamp_of_unit(1), 1)
    return decision


def moves_past_the_quota(logs: Sequence[BoundLog], stamp_us: int, now_us: int, *asked: int) -> Decision:
    """An engine that leaves one unit too much room."""
    for bound in logs:
        bound.readers = tuple([RollingReader(Limit(11, reader.limit.window_us)) for reader in bound.readers])
    return move(logs, stamp_us, now_us, *asked)


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        (stays_where_it_was_too, "final-extra"),
        (gives_back_twice, "final-lost"),
        (moves_past_the_quota, "over-quota-by-stamps"),
    ],
)
def test_an_engine_that_is_wrong_about_moves_is_found(
    engine: Callable[..., Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "move", engine)
    case = Case("memory", "10/s", "threads", 4, 0.8, moves=True)
    assert any(kind in run(longer, "memory://")[0].kinds() for longer in runs_of(case))


def met(case: Case, rows: list[dict[str, Any]]) -> bool:
    """Whether there was what such a case is for; of a short one on a busy machine, chance may bring about nothing."""
    rows = [row for row in rows if row["event"] == "attempt" and row["allowed"]]
    slots = {row["hit"] for row in rows if row.get("wait_us", 0) > 1}
    if case.seconds < 10 * LIMITS[case.limit][1] / 1e6:
        return bool(slots)
    return len(slots) > 2 and any("verb" not in row and row["hit"] > min(slots) for row in rows)


@pytest.mark.parametrize("of", ["joint", *OPTIONS])
def test_the_long_form_has_each_kind_of_case_on_every_store(of: str) -> None:
    chosen = [case for case in cases() if getattr(case, of)]
    assert {case.store for case in chosen} == {"memory", *STORES}
    assert {case.kind for case in chosen} == {"processes", "threads", "tasks"}
    assert {case.limit for case in chosen} == set(LIMITS)


def test_the_long_form_has_every_size_on_every_store_under_every_limit() -> None:
    made = {(case.store, case.limit, case.kind, case.callers, case.slots) for case in cases()}
    assert set(LIMITS.values()) == {(1, 50_000), (10, 1_000_000), (1000, 5_000_000)}
    for limit in LIMITS:
        for store in ("lmdb", "redis", "valkey", "redis cluster", "valkey cluster"):
            assert {(store, limit, "processes", many, False) for many in (2, 8, 32)} <= made
            assert (store, limit, "processes", 8, True) in made
        for kind in ("threads", "tasks"):
            assert {(store, limit, kind, 64, False) for store in ("memory", "lmdb", "redis", "valkey cluster")} <= made
            assert any(case[1:] == (limit, kind, 64, True) for case in made)


def url_of(store: str, directory: Path) -> str:
    if store == "memory":
        return "memory://"
    if store == "lmdb":
        return f"lmdb://{directory}"
    kind, _, shape = store.partition(" ")
    return f"{(shared(kind, 'cluster') if shape else shared(kind)).url}?{SLOW}"
