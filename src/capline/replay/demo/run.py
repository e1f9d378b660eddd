"""The demo: a policy decides on the messages of eighteen months, on the durable store, in seconds; then it is checked.

    OUT/policies.yaml    the policy in force, as a file for the other commands
    OUT/store/           the embedded store, made again by each run
    OUT/segments/        the segments on the last morning, as a verified snapshot
    OUT/campaign.yaml    the blast after the last one, as a campaign on that store, to plan or run
    OUT/report.html      the report (written by `capline.replay.demo.report`)

Nothing in OUT but these is touched, and `store` is removed only if it holds a store and nothing else.

The answer is checked three ways, each of which can fail: the messages asked are counted from the purchases alone; every
window is counted out from the record (`recount`); and the store, closed and opened again, must hold exactly what the
record says was sent.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import msgspec
import numpy as np

from capline.limiter.limiter import Limiter
from capline.model.clock import ManualClock
from capline.model.limit import DAY_US, Limit
from capline.model.policy import Policy
from capline.policy.file import load
from capline.replay.demo.figures import Figures, day_text, figures_of
from capline.replay.demo.messages import (
    BLAST_HOUR,
    MESSAGES,
    Messages,
    Purchases,
    calendar,
    is_blast_day,
    read_purchases,
)
from capline.replay.demo.recency import SEGMENTS
from capline.replay.demo.record import Record, Recorder
from capline.replay.demo.recount import Recount, check_countable, recount
from capline.replay.events import ReplayError
from capline.segment import Snapshot, write_snapshot

POLICY = "promo"

_STORE_FILES = frozenset({"data.mdb", "lock.mdb"})


class Check(msgspec.Struct, frozen=True):
    """One thing that was checked, what was found, and whether that is right."""

    what: str
    found: str
    holds: bool


class DemoResult(msgspec.Struct, frozen=True):
    """All that the table, the JSON answer and the report show; `seconds`: for calendar and decisions."""

    data: str
    first_day: str
    last_day: str
    days: int
    customers: int
    purchases: int
    decisions: int
    seconds: float
    decisions_per_second: int
    store_bytes: int
    figures: Figures
    checks: tuple[Check, ...]
    policy_text: str
    policy_segments: tuple[str, ...]
    limits_by_segment: dict[str, tuple[str, ...]]

    @property
    def holds(self) -> bool:
        """Every check came out right."""
        return all(check.holds for check in self.checks)


def run_demo(
    data: Path,
    out: Path,
    policies: Path | None = None,
    progress: Callable[[int, int], object] = lambda _done, _of: None,
) -> DemoResult:
    """Run the demo into `out`, and return the result; the report is not written here.

    `policies` replaces the built-in policy file; it must define the policy `promo`. `progress` is called after each
    simulated day with (days done, days in all). Raises `ReplayError` for data or a directory that cannot be used, and
    `PolicyError` for policies; all of that before anything in `out` is touched.
    """
    purchases = read_purchases(data)
    text, policy = _policy(policies)
    store = out / "store"
    _make_room(out, store)
    policy_file = out / "policies.yaml"
    policy_file.write_text(text, encoding="utf-8")

    segments = [None, *(name if name in policy.by_segment else None for name in SEGMENTS)]
    limits_of = [policy.limits_for(name) for name in segments]
    days = purchases.last_day - purchases.first_day + 1
    clock = ManualClock(purchases.first_day * DAY_US)
    recorder = Recorder()
    people_of_day: dict[int, dict[str, int]] = {}
    last_morning: list[Snapshot] = []

    def messages() -> Iterator[Messages]:
        for done, (snapshot, batches) in enumerate(calendar(purchases)):
            people_of_day[purchases.first_day + done] = {name: snapshot.cardinality(name) for name in snapshot.names}
            last_morning[:] = [snapshot]
            yield from batches
            progress(done + 1, days)

    url = f"lmdb://{_in_url(store)}"
    began = time.perf_counter()
    with Limiter.from_file(policy_file, url, clock=clock) as limiter:
        for batch in messages():
            clock.advance_us(batch.at_us - clock.now_us())
            decisions = limiter.decide_many(POLICY, batch.subjects, segment=segments, codes=batch.codes)
            recorder.add(batch, decisions)
    seconds = time.perf_counter() - began

    record = recorder.done()
    write_snapshot(last_morning[0], out / "segments", replace=True)
    _write_campaign(out / "campaign.yaml", policy, purchases.last_day)
    with Limiter.from_file(policy_file, url, clock=clock) as reopened:
        checks = (
            _count_due(purchases, record),
            *_windows(recount(record, limits_of, policy.zone)),
            _on_disk(reopened, record, widest_us=max(limit.window_us for limit in policy.all_limits())),
        )
    return DemoResult(
        data=data.name,
        first_day=day_text(purchases.first_day),
        last_day=day_text(purchases.last_day),
        days=days,
        customers=int(np.unique(purchases.customers).size),
        purchases=int(purchases.customers.size),
        decisions=len(record),
        seconds=round(seconds, 3),
        decisions_per_second=round(len(record) / seconds),
        store_bytes=sum(file.stat().st_size for file in store.iterdir()),
        figures=figures_of(record, people_of_day),
        checks=checks,
        policy_text=text,
        policy_segments=tuple(policy.by_segment),
        limits_by_segment=_limits_by_segment(policy, limits_of),
    )


def _policy(path: Path | None) -> tuple[str, Policy]:
    """Read the policy file: its text, and its policy that the demo asks."""
    built_in = resources.files("capline.replay.demo") / "demo-policies.yaml"
    if path is None:
        with resources.as_file(built_in) as file:
            return file.read_text(encoding="utf-8"), load(file).policies[0]
    policies = {policy.name: policy for policy in load(path).policies}
    policy = policies.get(POLICY)
    if policy is None:
        raise ReplayError(f"{path}: no policy {POLICY!r}, which the demo asks; there are: {', '.join(policies)}")
    if not policy.limits:
        raise ReplayError(f"{path}: policy {POLICY!r} has limits on channels only; the demo needs limits: too")
    check_countable(policy)
    return path.read_text(encoding="utf-8-sig"), policy


def _make_room(out: Path, store: Path) -> None:
    """Create `out`, and remove an earlier store from it; refuse to remove anything else."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if store.is_symlink() or (
            store.exists() and (not store.is_dir() or {file.name for file in store.iterdir()} - _STORE_FILES)
        ):
            raise ReplayError(f"{store}: not an earlier store of the demo, so it is left alone; choose another --out")
        if store.exists():
            shutil.rmtree(store)
    except OSError as error:
        raise ReplayError(
            f"{error.filename or out}: {(error.strerror or str(error)).lower()}; choose another --out"
        ) from None


def _write_campaign(path: Path, policy: Policy, last_day: int) -> None:
    """Write the next blast as a campaign file; none where the policy does not know every segment of its audience."""
    if policy.by_segment and not policy.by_segment.keys() >= set(SEGMENTS):
        path.unlink(missing_ok=True)
        return
    thursday = last_day + 1
    while not is_blast_day(thursday):
        thursday += 1
    path.write_text(
        "# The blast after the demo's last one. `capline campaign plan` forecasts it and consumes nothing; `run`\n"
        "# decides it and writes who gets it into sent/. The clock stands still at that Thursday, in the demo's time.\n"
        f"campaign: blast-{day_text(thursday)}\n"
        "policies: policies.yaml\n"
        f"policy: {POLICY}\n"
        "store: lmdb://store\n"
        "segments: segments\n"
        f'audience: {{segments: "{" | ".join(SEGMENTS)}"}}\n'
        f"as_of: {day_text(thursday)}T{BLAST_HOUR}:00:00Z\n"
        "rehearsal: true\n"
        "sender: {file: sent, format: csv}\n",
        encoding="utf-8",
    )


def _in_url(path: Path) -> str:
    return str(path).replace("%", "%25").replace("?", "%3F").replace("#", "%23")


def _count_due(purchases: Purchases, record: Record) -> Check:
    """Count the due messages from the purchases alone, by another method than the calendar's."""
    due = sum(
        int((purchases.days + message.after_days <= purchases.last_day).sum())
        for message in MESSAGES
        if message.after_days is not None
    )
    _, first = np.unique(purchases.customers, return_index=True)
    thursdays = np.arange(purchases.first_day, purchases.last_day + 1)
    thursdays = thursdays[thursdays % 7 == 0]  # day 0, 1 January 1970, was a Thursday
    due += int(np.searchsorted(np.sort(purchases.days[first]), thursdays, side="left").sum())
    sent = int(record.allowed.sum())
    refused = int((record.limit >= 0).sum())
    return Check(
        "Every message that was due was decided, and each decision is one send or one refusal.",
        f"{due:,} due = {sent:,} sent + {refused:,} refused",
        due == len(record) == sent + refused,
    )


def _windows(count: Recount) -> tuple[Check, Check]:
    fullest = ", ".join(f"{most} under {limit}" for limit, most in count.fullest.items())
    return (
        Check(
            "No customer was above any limit in any window, counted out from the record of sends.",
            f"{count.windows:,} windows counted, {count.over:,} over; the fullest: {fullest}",
            not count.over,
        ),
        Check(
            "Every refusal was due: the window of the limit that refused was full.",
            f"{count.unjustified:,} without cause",
            not count.unjustified,
        ),
    )


def _on_disk(limiter: Limiter, record: Record, *, widest_us: int) -> Check:
    """Read the logs of all customers back from the store, which was closed and opened again."""
    since_us = limiter.now_us() - widest_us
    recent = record.hit > since_us
    expected = np.lexsort((record.hit[recent], record.subjects[recent]))
    stored = [
        (subject, hit.stamp_us)
        for subject in np.unique(record.subjects).tolist()
        for hit in limiter.explain(POLICY, subject).hits
        if hit.stamp_us > since_us
    ]
    same = stored == list(
        zip(record.subjects[recent][expected].tolist(), record.hit[recent][expected].tolist(), strict=True)
    )
    return Check(
        "The store, closed and opened again, holds exactly the sends of the record that any window still sees.",
        f"{len(stored):,} hits of the last {widest_us // DAY_US} days read back, {int(recent.sum()):,} recorded",
        same,
    )


def _limits_by_segment(policy: Policy, limits_of: list[tuple[Limit, ...]]) -> dict[str, tuple[str, ...]]:
    names = ("", *SEGMENTS)
    return {name: tuple(map(str, limits)) for name, limits in zip(names, limits_of, strict=True)} | {
        name: tuple(map(str, policy.limits_for(name))) for name in policy.by_segment if name not in SEGMENTS
    }
