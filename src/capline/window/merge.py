"""Hits of the past put into a log, as a pure function: a backfill, or a log that was kept elsewhere.

The rule: whatever is merged, and however often and in whatever parts, the log ends as if each hit had been recorded at
its own time, once.

    older than the widest window    left out: no decision depends on it
    later than the log's time       left out: it may be a slot that others wait for; and time goes no further than now
    known                           left out: its id is in the log, or there is a hit with its stamp and units
    its stamp is another hit's      with an id it gets the next free microsecond; without one it is left out, as
                                    `ambiguous`: it may be that hit, settled since, or another

Two hits with different ids are different hits, whatever their stamps. A refunded hit keeps its stamp, so it is known: a
merge does not add it again. A hit of an export is known by its stamp alone, whatever its units are by now.
"""

from collections.abc import Iterable, Sequence

import msgspec

from capline.model.limit import LARGEST_QUOTA
from capline.window.charge import too_many
from capline.window.log import CARRIED

Row = tuple[int, int, int]
"""One hit: its stamp, its units (0: given back), and 64 bits of its id (0: none)."""


class Merged(msgspec.Struct, frozen=True):
    """What became of the hits: `added`, `known` before, `old` (out of every window), or `ahead` of the store's time.

    `ambiguous` ones have no id, and the stamp of a hit of other units: they may be that hit, or another.
    """

    added: int = 0
    known: int = 0
    old: int = 0
    ahead: int = 0
    ambiguous: int = 0


def merge(
    logs: Sequence[Sequence[Row]], hits: Iterable[Row], time_us: int, retention_us: int, *, exported: bool = False
) -> tuple[list[Row], Merged]:
    """The rows to add to each of the logs, by stamp, with their ids in the first log alone; and counts of all hits.

    `logs` are those of one attempt: the policy's own, in which known hits are found, then its channel's. Raises
    `InvalidValueError` if one of them cannot count so many units.
    """
    own = {stamp_us: (units, fingerprint) for stamp_us, units, fingerprint in logs[0]}
    fingerprints = {fingerprint for _, _, fingerprint in logs[0] if 0 < fingerprint < CARRIED}
    taken = {row[0] for log in logs for row in log}
    added: list[Row] = []
    known = old = ahead = ambiguous = 0
    for stamp_us, units, fingerprint in sorted(hits):
        if stamp_us <= time_us - retention_us:
            old += 1
        elif stamp_us > time_us:
            ahead += 1
        elif fingerprint in fingerprints or _is_same(own.get(stamp_us), units, fingerprint, exported=exported):
            known += 1
        elif not 0 < fingerprint < CARRIED and stamp_us in taken:
            ambiguous += 1
        else:
            free_us = stamp_us
            while free_us in taken:
                free_us += 1
            own[free_us] = units, fingerprint
            taken.add(free_us)
            added.append((free_us, units, fingerprint))
            if 0 < fingerprint < CARRIED:
                fingerprints.add(fingerprint)
    units = sum(row[1] for row in added)
    if any(units + sum(row[1] for row in log) > LARGEST_QUOTA for log in logs):
        raise too_many(units)
    return added, Merged(len(added), known, old, ahead, ambiguous)


def _is_same(there: tuple[int, int] | None, units: int, fingerprint: int, *, exported: bool) -> bool:
    """Whether the hit that has this hit's stamp is the same hit."""
    if there is None:
        return False
    if not units or not there[0]:
        return True
    return (exported or there[0] == units) and (not fingerprint or not there[1] or fingerprint == there[1])
