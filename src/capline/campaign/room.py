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

from capline.campaign.pending import on_shared_log, pending
from capline.campaign.store.rows import SECOND_US
from capline.model.limit import LARGEST_QUOTA, CalendarLimit, QuietHours
from capline.model.zone import zone_table
from capline.window.calendar import ends_us as ends_of_period_us

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from capline.campaign.attempts import Attempts
    from capline.campaign.part import Part
    from capline.campaign.store.protocol import CampaignStore
    from capline.model.limit import Limit
    from capline.model.zone import ZoneTable

LOOK_AGAIN_US = 60 * SECOND_US
FAR_US = 1 << 61
"""Later than any instant."""


def room_for_higher(
    store: CampaignStore, campaign: str, attempts: Attempts, part: Part, rows: NDArray[np.intp], now_us: int
) -> NDArray[np.int64] | None:
    """For each of these rows when to look again, 0 where none is higher, and the units to keep free, a column a limit.

    None where it is not known yet whom a higher campaign wants. Cost: for each higher one some two of its batches.
    """
    run, ids = store.find(campaign), part.ids[rows]
    room = Room(attempts, part, rows, now_us, LOOK_AGAIN_US)
    if run is None or not len(rows):
        return room.table
    first, last = ids[[0, -1]].tolist()
    within_us = int(room.ends_us.max(initial=now_us)) - now_us
    for higher in pending(store, now_us, within_us / 1e6):
        if higher.run.priority <= run.priority or not on_shared_log(store, run, higher.run):
            continue
        if not higher.state.is_whole:
            return None
        facts = higher.run.facts
        if (facts.ids == "text") != (run.facts.ids == "text"):
            continue
        logs = {log.partition("/")[2] for log in facts.log.split(" ")}
        shares = room.counted_by(logs, facts.channel)
        for wanted in higher.wants(store, first, last, now_us):
            both: Any = np.intersect1d(ids, wanted.ids, assume_unique=True, return_indices=True)
            room.leave(both[1], wanted.due_us[both[2]], shares, facts.cost)
    return room.table


class Room:
    """What some rows leave free: `table` has when each is decided again, 0 where nobody is higher, then units by limit.

    They look again when the first of the higher ones is due, after `longest_us` at the latest.
    """

    def __init__(
        self, attempts: Attempts, part: Part, rows: NDArray[np.intp], now_us: int, longest_us: int = FAR_US
    ) -> None:
        self._attempts, self._part, self._rows = attempts, part, rows
        self._next_us, self._last_us = (now_us // SECOND_US + 1) * SECOND_US, now_us + longest_us
        self.ends_us = window_ends_us(attempts, part, rows, now_us)
        self.table = np.zeros((len(rows), 1 + self.ends_us.shape[1]), np.int64)

    def leave(
        self, some: NDArray[np.intp], due_us: NDArray[np.int64], shares: NDArray[np.bool_], cost: int
    ) -> NDArray[np.bool_]:
        """Leave units to a campaign that wants some of the rows when it is due (0: never); which of them do.

        `shares` says for each row and limit whether it counts that campaign.
        """
        counts: NDArray[np.bool_] = shares[some] & (due_us[:, None] > 0) & (due_us[:, None] < self.ends_us[some])
        self.table[some, 1:] = np.minimum(self.table[some, 1:] + counts * cost, LARGEST_QUOTA)
        does: NDArray[np.bool_] = np.logical_or.reduce(counts, axis=1)
        before_us = self.table[some, 0]
        again_us: NDArray[np.int64] = np.clip(due_us, self._next_us, self._last_us)
        again_us = np.where(before_us > 0, np.minimum(before_us, again_us), again_us)
        self.table[some, 0] = np.where(does, again_us, before_us)
        return does

    def counted_by(self, logs: Collection[str], channel: str | None) -> NDArray[np.bool_]:
        """For each row and limit whether it counts a message on these logs, and on theirs of this channel."""
        policy, mine = self._attempts.policy, self._attempts.file.channel
        if channel == mine:
            logs = {*logs, *(f"{log}/{channel}" for log in logs)}
        names, _, codes = self._attempts.kinds(self._part)
        kinds = [[log in logs for log, _, limits in policy.logs_for(name, mine) for _ in limits] for name in names]
        return _filled(kinds).astype(bool)[codes[self._rows]]


def fits_limits(room: NDArray[np.int64], attempts: Attempts, part: Part, rows: NDArray[np.intp]) -> bool:
    """Whether stored room is for the limits that the policy has now."""
    ends_us = window_ends_us(attempts, part, rows, 0)
    return room.shape[1] == 1 + ends_us.shape[1] and not room[:, 1:][ends_us == 0].any()


def window_ends_us(attempts: Attempts, part: Part, rows: NDArray[np.intp], now_us: int) -> NDArray[np.int64]:
    """For each row and limit when a hit of now leaves the window, 0 for none."""
    policy, channel = attempts.policy, attempts.file.channel
    names, zones, codes = attempts.kinds(part)
    kinds: list[list[int]] = []
    for place, name in enumerate(names):
        zone = (None if zones is None else zones[place]) or policy.zone
        table = zone_table(zone, now_us) if policy.needs_zone else ()
        logs = policy.logs_for(name, channel)
        kinds.append([_window_end_us(limit, table, now_us) for _, _, limits in logs for limit in limits])
    return _filled(kinds)[codes[rows]]


def _filled(kinds: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """As a table, whose shorter rows end in zeros."""
    most = max(map(len, kinds))
    return np.array([[*each, *[0] * (most - len(each))] for each in kinds], np.int64)


def _window_end_us(limit: Limit, table: ZoneTable, now_us: int) -> int:
    if isinstance(limit, QuietHours):
        return 0
    if isinstance(limit, CalendarLimit):
        return ends_of_period_us(table, limit.window_us, now_us)
    return now_us + limit.window_us
