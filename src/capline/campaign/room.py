"""The room that a campaign leaves with `yields: true`: for pending campaigns of strictly higher priority on its log.

The rule: of each limit, the units of those messages stay free that such a campaign wants to send to the same subject
(`pending`) before a hit of now would leave the limit's window. A message that might have been decided and was not is
due now. Whether it would be refused does not count, nor what leaves the window before it: so it may yield too much.

Who is refused for their sake alone is held, and looked at again when the first of them is due, when one is cancelled,
paused or moved (`wake_others`), or after a minute: a worker may have had the batch then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from capline.campaign.pending import on_one_log, pending
from capline.campaign.store.rows import SECOND_US
from capline.model.limit import LARGEST_QUOTA, CalendarLimit, QuietHours
from capline.model.zone import zone_table
from capline.window.calendar import ends_us as ends_of_period_us

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from capline.campaign.attempts import Attempts
    from capline.campaign.part import Part
    from capline.campaign.store.protocol import CampaignStore
    from capline.model.limit import Limit
    from capline.model.zone import ZoneTable

LOOK_AGAIN_US = 60 * SECOND_US


def room_for_higher(
    store: CampaignStore, campaign: str, attempts: Attempts, part: Part, rows: NDArray[np.intp], now_us: int
) -> NDArray[np.int64] | None:
    """For each of these rows when to look again, 0 where none is higher, and the units to keep free, a column a limit.

    None where it is not known yet whom a higher campaign wants. Cost: for each higher one some two of its batches.
    """
    run, ids = store.find(campaign), part.ids[rows]
    ends_us = ends_us_of(attempts, part, rows, now_us)
    kept = np.zeros((len(rows), 1 + ends_us.shape[1]), np.int64)
    if run is None or not len(rows):
        return kept
    first, last = ids[[0, -1]].tolist()
    within_us = int(ends_us.max(initial=now_us)) - now_us
    for higher in pending(store, now_us, within_us / 1e6):
        if higher.run.priority <= run.priority or not on_one_log(store, run, higher.run):
            continue
        if not higher.state.is_whole:
            return None
        if (higher.run.facts.ids == "text") != (run.facts.ids == "text"):
            continue
        logs = {log.partition("/")[2] for log in higher.run.facts.log.split(" ")}
        shares = counted_by(attempts, part, rows, logs, higher.run.facts.channel)
        for wanted in higher.wants(store, first, last, now_us):
            both: Any = np.intersect1d(ids, wanted.ids, assume_unique=True, return_indices=True)
            mine: NDArray[np.intp] = both[1]
            theirs: NDArray[np.intp] = both[2]
            due_us = wanted.due_us[theirs]
            counts: NDArray[np.bool_] = shares[mine] & (due_us[:, None] < ends_us[mine])
            kept[mine, 1:] = np.minimum(kept[mine, 1:] + counts * higher.run.facts.cost, LARGEST_QUOTA)
            again_us: NDArray[np.int64] = np.clip(due_us, (now_us // SECOND_US + 1) * SECOND_US, now_us + LOOK_AGAIN_US)
            again_us = np.where(kept[mine, 0] > 0, np.minimum(kept[mine, 0], again_us), again_us)
            kept[mine, 0] = np.where(counts.any(axis=1), again_us, kept[mine, 0])
    return kept


def fits(kept: NDArray[np.int64], attempts: Attempts, part: Part, rows: NDArray[np.intp]) -> bool:
    """Whether room that was kept is for the limits that the policy has now."""
    ends_us = ends_us_of(attempts, part, rows, 0)
    return kept.shape[1] == 1 + ends_us.shape[1] and not kept[:, 1:][ends_us == 0].any()


def counted_by(
    attempts: Attempts, part: Part, rows: NDArray[np.intp], logs: Collection[str], channel: str | None
) -> NDArray[np.bool_]:
    """For each row and limit whether it counts a message on these logs, and on theirs of this channel."""
    if channel == attempts.file.channel:
        logs = {*logs, *(f"{log}/{channel}" for log in logs)}
    names, _, codes = attempts.kinds(part)
    kinds: list[list[bool]] = []
    for name in names:
        of_kind = attempts.policy.logs_for(name, attempts.file.channel)
        kinds.append([log in logs for log, _, limits in of_kind for _ in limits])
    most = max(map(len, kinds))
    return np.array([[*each, *[False] * (most - len(each))] for each in kinds], bool)[codes[rows]]


def ends_us_of(attempts: Attempts, part: Part, rows: NDArray[np.intp], now_us: int) -> NDArray[np.int64]:
    """For each row and limit when a hit of now leaves the window, 0 for none."""
    policy, channel = attempts.policy, attempts.file.channel
    names, zones, codes = attempts.kinds(part)
    kinds: list[list[int]] = []
    for place, name in enumerate(names):
        zone = (None if zones is None else zones[place]) or policy.zone
        table = zone_table(zone, now_us) if policy.needs_zone else ()
        logs = policy.logs_for(name, channel)
        kinds.append([_leaves_us(limit, table, now_us) for _, _, limits in logs for limit in limits])
    most = max(map(len, kinds))
    ends_us = np.array([[*each, *[0] * (most - len(each))] for each in kinds], np.int64)
    return ends_us[codes[rows]]


def _leaves_us(limit: Limit, table: ZoneTable, now_us: int) -> int:
    if isinstance(limit, QuietHours):
        return 0
    if isinstance(limit, CalendarLimit):
        return ends_of_period_us(table, limit.window_us, now_us)
    return now_us + limit.window_us
