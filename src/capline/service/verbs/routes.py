"""The paths of a limiter: its verbs, its policies and its overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.service.http.table import routes_of
from capline.service.verbs.attempts import Attempts
from capline.service.verbs.batch import MOST_ROWS, Batch
from capline.service.verbs.configuration import Configured
from capline.service.verbs.joint import JointVerbs
from capline.service.verbs.subjects import Subjects

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter
    from capline.service.access.newcomers import Newcomers
    from capline.service.http.app import Route


def routes(
    limiter: AsyncLimiter, most_rows: int = MOST_ROWS, newcomers: Newcomers | None = None, *, local: bool = False
) -> dict[str, Route]:
    """The routes of this limiter. Where its store is `local` no policy is set that waits for replicas."""
    return routes_of(
        Attempts(limiter, newcomers),
        JointVerbs(limiter, newcomers),
        Batch(limiter, newcomers, most_rows),
        Subjects(limiter),
        Configured(limiter, local=local),
    )
