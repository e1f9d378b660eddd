"""What scheduled campaigns do to each other: ten campaigns of a million each, in a campaign store, without history.

Each campaign is for a random half of two million subjects, in three segments, an hour after the one before; the last
two hold what is refused. Processor time and peak memory are those of the process that simulates, audiences read from
the store included. Checked, by counting in columns over all subjects: how many of each campaign are sent and refused,
and who takes whose place, under which limit, in which segment.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from _harness import Report, arguments, check

TEXT = """\
campaign: c{number}
policies: policies.yaml
policy: promo
store: lmdb://store
segments: segments
audience: {{bitmap: users-{number}.roaring}}
send_at: 2099-01-01T{number:02}:00:00Z
priority: {priority}
over_cap: {over_cap}
sender: {{file: out}}
"""
POLICIES = "policies: {promo: {limits: [2/day], by_segment: {active: [3/day, 5/week], new: [1/4h]}}}"


def main() -> None:
    """Fill a store, simulate, check; print the table."""
    options = arguments(__doc__, campaigns=10, users=1_000_000)
    report = Report(f"Conflicts of {options.campaigns} campaigns of {options.users:,} each")
    with tempfile.TemporaryDirectory() as directory:
        for step in (fill, simulate):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
                found = alone.submit(step, Path(directory), options.campaigns, options.users).result()
    report.add("all of them", found["s"], "s of processor", at_most=10)
    report.add("peak memory", found["peak_mb"], "MB", at_most=1000)
    report.add("messages", options.campaigns * options.users / found["s"], "messages/s")
    report.show(as_json=options.json)


def audience(number: int, users: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Who of twice as many subjects is in the audience of a campaign: half of them."""
    order = np.random.default_rng(number).permutation(2 * users)
    return order < users


def fill(directory: Path, campaigns: int, users: int) -> dict[str, float]:
    """Enqueue the campaigns."""
    from capline.campaign import load_campaign, prepare  # noqa: PLC0415 - in a process of its own
    from capline.campaign.queue.enqueue import enqueue  # noqa: PLC0415
    from capline.campaign.store.open import open_store  # noqa: PLC0415
    from capline.segment import IdSet, Snapshot, write_snapshot  # noqa: PLC0415

    (directory / "policies.yaml").write_text(POLICIES)
    sets = {"active": IdSet.from_range(0, users // 2), "new": IdSet.from_range(users // 2 + 1, users)}
    write_snapshot(Snapshot(sets, "day-1"), directory / "segments")
    with closing(open_store(f"sqlite://{directory}/queue.sqlite", make=True)) as store:
        for number in range(campaigns):
            ids = np.flatnonzero(audience(number, users)).astype(np.uint32)
            (directory / f"users-{number}.roaring").write_bytes(IdSet(ids).to_bytes())
            file = directory / f"c{number}.yaml"
            over_cap = "hold" if number >= campaigns - 2 else "drop"
            file.write_text(TEXT.format(number=number, priority=50 + number % 2, over_cap=over_cap))
            enqueue(prepare(load_campaign(file)), store)
    return {}


def simulate(directory: Path, campaigns: int, users: int) -> dict[str, float]:
    """Simulate them, and check."""
    from capline.campaign.conflicts.find import conflicts_in  # noqa: PLC0415 - in a process of its own
    from capline.campaign.store.open import open_store  # noqa: PLC0415

    with closing(open_store(f"sqlite://{directory}/queue.sqlite")) as store:
        begun = time.process_time()
        found = conflicts_in(store)
        seconds = time.process_time() - begun
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    counted = Counter(
        {(each.campaign, each.taken_by, each.limit, each.segment): each.users for each in found.conflicts}
    )
    places, sent = count_in_columns(campaigns, users)
    check(counted == places, "who takes whose place is counted otherwise")
    check(
        not found.unread and [each.audience for each in found.campaigns] == [users] * campaigns, "an audience differs"
    )
    for number, each in enumerate(found.campaigns):
        lost = each.later + each.refused
        check((each.sent - each.later, lost) == (sent[number], users - sent[number]), f"{each.campaign}: sent differs")
    return {"s": seconds, "peak_mb": peak_mb}


def count_in_columns(campaigns: int, users: int) -> tuple[Counter[tuple[str, str, str, str | None]], list[int]]:
    """Who takes whose place, and how many are sent at once, by the sentence of the rule."""
    ids = np.arange(2 * users)
    parts = (
        (None, "2/day", 2, 24, ids > users),
        ("active", "3/day", 3, 24, ids <= users // 2),
        ("new", "1/4h", 1, 4, (ids > users // 2) & (ids <= users)),
    )
    taken = np.zeros((campaigns, 2 * users), bool)
    places: Counter[tuple[str, str, str, str | None]] = Counter()
    sent: list[int] = []
    for number in range(campaigns):
        asked = audience(number, users)
        for segment, limit, quota, hours, members in parts:
            window = range(max(0, number - hours + 1), number)
            used = taken[window.start : number].sum(axis=0)
            refused = asked & members & (used >= quota)
            taken[number] |= asked & members & (used < quota)
            for other in window:
                if users_of := int((taken[other] & refused).sum()):
                    places[f"c{number}", f"c{other}", limit, segment] += users_of
        sent.append(int(taken[number].sum()))
    return places, sent


if __name__ == "__main__":
    main()
