"""The published way to cap by sliding windows on Redis, written from its description: the baseline to beat.

One sorted set for each user, one script call for each decision, sent as EVALSHA in redis-py's pipelines. It is given
what makes it fast: the caller's clock, cutoffs computed once a batch, members no longer than a stamp.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["PIPELINE", "SortedSets"]

SCRIPT = Path(__file__).with_name("sorted_set.lua").read_text(encoding="utf-8")
PIPELINE = 1000
"""Commands in one pipeline: more make neither the server nor the client faster."""


class SortedSets:
    """Two limits, each a quota and a window in microseconds, the narrower first, on one server."""

    def __init__(self, client: Any, limits: Sequence[tuple[int, int]]) -> None:
        self._client = client
        self._limits = limits
        self._sha: str = client.script_load(SCRIPT)

    def decide_many(self, users: range, now_us: int) -> int:
        """Decide for each user; how many were allowed."""
        (day, day_us), (week, week_us) = self._limits
        words = (now_us, week_us // 1_000_000, day, now_us - day_us, week, now_us - week_us)
        allowed = 0
        for start in range(0, len(users), PIPELINE):
            pipeline = self._client.pipeline(transaction=False)
            for user in users[start : start + PIPELINE]:
                pipeline.evalsha(self._sha, 1, f"user:{user}", *words)
            allowed += sum(pipeline.execute())
        return allowed

    def record(self, users: range, stamps_us: Iterable[int]) -> None:
        """Put these hits into every user's log, as so many allowed decisions would leave it."""
        members = {str(stamp): stamp for stamp in stamps_us}
        seconds = self._limits[-1][1] // 1_000_000
        for start in range(0, len(users), PIPELINE):
            pipeline = self._client.pipeline(transaction=False)
            for user in users[start : start + PIPELINE]:
                pipeline.zadd(f"user:{user}", members)
                pipeline.expire(f"user:{user}", seconds)
            pipeline.execute()
