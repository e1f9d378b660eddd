"""Logs as a whole: the hits that still count, hits of the past merged in, and all logs of a name page by page."""

from __future__ import annotations

from itertools import dropwhile
from typing import TYPE_CHECKING

from capline.model.errors import CaplineError
from capline.store.protocol import Merge, Page, ScannedLog
from capline.window.log import Hit
from capline.window.merge import Merged, merge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from capline.model.subject import Subject
    from capline.store.local.transaction import LogRef, LogTransaction, StoredLog

__all__ = ["counted", "merged", "next_page"]

HITS_A_SAVE = 1000
"""Hits merged into a log between two saves: a long log moves the hits of its tail at each page that it seals."""
LOGS_A_PAGE, HITS_A_PAGE = 512, 20_000
"""Bounds of a page of a scan, which takes some milliseconds."""


def counted(log: StoredLog, now_us: int, retention_us: int) -> list[Hit]:
    """The hits of this log that still count; it may hold older ones."""
    horizon_us = max(now_us, log.high_water_us) - retention_us
    return [Hit(*hit) for hit in log.recorded() if hit[0] > horizon_us]


def merged(transaction: LogTransaction, one: Merge, now_us: int) -> Merged:
    """Record past hits of one subject among those that it has; see `Store.merge`."""
    refs: tuple[LogRef, ...] = one.compiled.refs
    logs = [transaction.load(ref, one.subject) for ref in refs]
    time_us = max([now_us, *(log.high_water_us for log in logs)])
    horizon_us = time_us - refs[0].retention_us
    kept = [[hit for hit in log.recorded() if hit[0] > horizon_us] for log in logs]
    added, answer = merge(kept, one.hits, time_us, refs[0].retention_us, exported=one.exported)
    for i, (ref, log, hits) in enumerate(zip(refs, logs, kept, strict=True) if added else ()):
        rows = added if not i else [(stamp_us, units, 0) for stamp_us, units, _ in added]
        if hits and hits[-1][0] > added[0][0]:
            # Rewrite the log: inserting hits between others one by one would move the later ones each time.
            rows = sorted((*hits, *rows))
            transaction.remove(ref, one.subject)
        high_water_us = max(log.high_water_us, min(added[-1][0], time_us))
        for first in range(0, len(rows), HITS_A_SAVE):
            log = transaction.load(ref, one.subject)  # noqa: PLW2901 - the same log, as it is now
            log.trim(horizon_us)
            for stamp_us, units, fingerprint in rows[first : first + HITS_A_SAVE]:
                log.record(stamp_us, units, high_water_us, fingerprint)
            transaction.save(ref, one.subject, log)
    return answer


def next_page(
    walk: Callable[[LogRef, object], Iterator[tuple[object, Subject | None, StoredLog | CaplineError]]],
    refs: dict[str, LogRef],
    after: tuple[str, object] | None,
    now_us: int,
) -> Page:
    """The logs of these names after that place; `walk` visits those of one name."""
    first, place = (next(iter(refs)), None) if after is None else after
    found: list[ScannedLog] = []
    logs = hits = 0
    for name in dropwhile(first.__ne__, refs):
        ref = refs[name]
        for at, subject, log in walk(ref, place):
            logs += 1
            try:
                if isinstance(log, CaplineError):
                    raise log
                counting = counted(log, now_us, ref.retention_us)
                hits += len(counting)
                if counting:
                    found.append(ScannedLog(name, subject, counting))
            except CaplineError as error:
                found.append(ScannedLog(name, subject, error=error))
            if logs >= LOGS_A_PAGE or hits >= HITS_A_PAGE:
                return Page(found, (name, at))
        place = None
    return Page(found)
