"""Logs as a whole: the hits that still count, hits of the past merged in, and all logs of a name page by page."""

from __future__ import annotations

from itertools import dropwhile
from typing import TYPE_CHECKING

from capline.model.errors import CaplineError
from capline.model.limit import LARGEST_QUOTA
from capline.store.protocol import Merge, Page, ScannedLog
from capline.window.charge import too_many
from capline.window.log import CARRIED, NEVER, Hit
from capline.window.merge import Merged, Row, merge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from capline.model.subject import Subject
    from capline.store.local.transaction import LogRef, LogTransaction, StoredLog

LOGS_A_PAGE, HITS_A_PAGE = 512, 20_000
"""Bounds of a page of a scan, which takes some milliseconds."""


def counted(log: StoredLog, now_us: int, retention_us: int) -> list[Hit]:
    """The hits of this log that still count; it may hold older ones."""
    horizon_us = max(now_us, log.high_water_us) - retention_us
    return [Hit(*hit) for hit in log.recorded(horizon_us + 1)]


def merged(transaction: LogTransaction, past: Merge, now_us: int) -> Merged:
    """Record past hits of one subject among those that it has; see `Store.merge`."""
    refs: tuple[LogRef, ...] = past.compiled.refs
    logs = [transaction.load(ref, past.subject) for ref in refs]
    time_us = max([now_us, *(log.high_water_us for log in logs)])
    horizon_us = time_us - refs[0].retention_us
    near = [_near(log, past.hits, horizon_us) for log in logs]
    ids = {fingerprint for _, _, fingerprint in past.hits if 0 < fingerprint < CARRIED}
    found = [(logs[0].find(fingerprint, horizon_us), fingerprint) for fingerprint in ids]
    near[0] = [*{*near[0], *((us, logs[0].units_at(us), fingerprint) for us, fingerprint in found if us != NEVER)}]
    added, answer = merge(near, past.hits, time_us, refs[0].retention_us, exported=past.exported)
    if not added:
        return answer
    units = sum(row[1] for row in added)
    if any(units + log.units_after(horizon_us) > LARGEST_QUOTA for log in logs):
        raise too_many(units)
    unnamed = [(stamp_us, units, 0) for stamp_us, units, _ in added]
    for ref, log in zip(refs, logs, strict=True):
        log.trim(horizon_us)
        log.insert(added if log is logs[0] else unnamed, min(added[-1][0], time_us))
        transaction.save(ref, past.subject, log)
    return answer


def _near(log: StoredLog, hits: Sequence[Row], horizon_us: int) -> list[Row]:
    """The hits of the log that a merge of these must know: those between them, and behind while instants are taken."""
    stamps = [stamp_us for stamp_us, _, _ in hits]
    first_us, last_us, free = max(min(stamps), horizon_us + 1), max(stamps), len(hits)
    near = [*log.recorded(first_us, last_us)]
    while taken := [*log.recorded(last_us + 1, last_us + free)]:
        near += taken
        last_us, free = last_us + free, len(taken)
    return near


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
