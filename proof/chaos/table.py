"""What is expected of which run, and the table."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from proof.chaos.faults import FAULTS, PLANNED
from proof.chaos.run import Outcome, Plan

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["broken", "plans", "row", "short_plans", "table"]

_PLANNED = tuple(fault.__name__ for fault in PLANNED)
_ROUGH = tuple(FAULTS)
_CAPLINE, _REPLICATED = "capline", "capline, wait_replicas=1"
_CALM_S = 60


def plans(seconds: float, every_s: float, seed: str) -> list[Plan]:
    """The long form. Each limiter gets the same load, and the same faults in the same order."""
    made = [
        Plan("capline, no faults", _CAPLINE, (), min(_CALM_S, seconds), every_s, seed, lossless=True),
        Plan("capline, planned faults", _CAPLINE, _PLANNED, seconds, every_s, seed, lossless=True),
    ]
    rough = [
        Plan(f"{limiter}, all faults", limiter, _ROUGH, seconds, every_s, seed)
        for limiter in (_CAPLINE, _REPLICATED, "sorted set", "limits")
    ]
    calm = [
        Plan(f"{limiter}, no faults", limiter, (), min(_CALM_S, seconds), every_s, seed)
        for limiter in ("sorted set", "limits")
    ]
    return [*made, *rough, *calm]


def short_plans(seed: str) -> list[Plan]:
    """The runs of the tests: sixty seconds of load in all, each with the faults that it is about."""
    lag, planned = ("lagging_primary_killed",), tuple(name for name in _PLANNED if name != "replica_killed")
    rough = ("primary_killed", "primary_stopped")
    return [
        # A server that holds a call back for a second and runs it then would be taken for one that made it up.
        Plan("capline, planned faults", _CAPLINE, planned, 16, 2, seed, rate=60, quota=12, deadline_s=4, lossless=True),
        Plan("capline, killed behind a lag", _CAPLINE, lag, 10, 5.5, seed, rate=60, quota=12),
        Plan("capline, killed and stopped", _CAPLINE, rough, 16, 7.5, seed, rate=60, quota=12),
        Plan("capline, wait_replicas=1, killed behind a lag", _REPLICATED, lag, 10, 5.5, seed, rate=60, quota=12),
        Plan("sorted set, no faults", "sorted set", (), 4, 4, seed, rate=60, quota=12),
        Plan("limits, no faults", "limits", (), 4, 4, seed, rate=60, quota=12),
    ]


def broken(outcome: Outcome) -> list[str]:
    """Which of the promises that this run is about are broken; the controls promise nothing."""
    plan, figures = outcome.plan, outcome.figures
    if not plan.limiter.startswith(_CAPLINE):
        return []
    found: list[str] = []
    if figures.duplicates:
        found.append(f"{figures.duplicates} duplicates")
    if figures.lost is None or figures.over > figures.lost:
        found.append(f"{figures.over} over-admitted, and only {figures.lost} lost")
    if figures.lost and (plan.lossless or plan.limiter == _REPLICATED):
        found.append(f"{figures.lost} acknowledged hits lost")
    if figures.unanswered and not plan.faults:
        found.append(f"{figures.unanswered} attempts without an answer, and nothing happened")
    if outcome.promises:
        found.append(outcome.promises)
    return found


def row(outcome: Outcome) -> dict[str, Any]:
    """All of one run, for --json."""
    return {
        "run": outcome.plan.name,
        "limiter": outcome.plan.limiter,
        "seconds": outcome.plan.seconds,
        "attempts_per_second": outcome.plan.rate * outcome.plan.processes,
        "deadline_ms": outcome.plan.deadline_s * 1000,
        "faults": outcome.done,
        **asdict(outcome.figures),
        "broken": broken(outcome),
    }


def table(outcomes: Iterable[Outcome]) -> str:
    """For people, and for docs/explanation/reliability.md as it is."""
    head = (
        "run",
        "faults",
        "attempts",
        "unanswered",
        "lost",
        "over",
        "duplicates",
        "down by shard, s",
        "p50 ms",
        "p99.9 ms",
        "from sending",
        "late",
    )
    rows = [head, tuple("---" for _ in head)]
    for one in outcomes:
        figures = one.figures
        rows.append(
            (
                one.plan.name,
                str(len(one.done)),
                str(figures.attempts),
                str(figures.unanswered),
                "untold" if figures.lost is None else str(figures.lost),
                str(figures.over),
                str(figures.duplicates),
                ", ".join(f"{down:.1f}" for down in figures.down_s),
                f"{figures.p50_ms:.1f}",
                f"{figures.p999_ms:.0f}",
                f"{figures.call_p999_ms:.0f}",
                str(figures.late),
            )
        )
    widths = [max(len(one[at]) for one in rows) for at in range(len(head))]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(one, widths, strict=True)) + " |" for one in rows
    )
