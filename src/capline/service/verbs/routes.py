"""The paths of a limiter: its verbs, its policies and its overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.service.http.table import routes_of
from capline.service.verbs.attempts import Attempts
from capline.service.verbs.batch import MOST_ROWS, Batch
from capline.service.verbs.configuration import ConfigurationVerbs
from capline.service.verbs.joint import JointVerbs
from capline.service.verbs.limited import LimitedVerbs
from capline.service.verbs.subjects import Subjects
from capline.service.verbs.trials import Trials

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter
    from capline.service.access.new_subjects import NewSubjects
    from capline.service.http.app import Route


def routes(
    limiter: AsyncLimiter,
    most_rows: int = MOST_ROWS,
    subject_bound: NewSubjects | None = None,
    *,
    local: bool = False,
    queue: str | None = None,
    audiences: str | None = None,
    replies: str | None = None,
) -> dict[str, Route]:
    """The routes of this limiter. Where its store is `local` no policy is set that waits for replicas.

    A subject is erased in the campaigns of `queue`, the uploads at `audiences` and the folder of `replies` too.
    """
    return routes_of(
        Attempts(limiter, subject_bound),
        JointVerbs(limiter, subject_bound),
        Batch(limiter, subject_bound, most_rows),
        Subjects(limiter, queue, audiences, replies),
        ConfigurationVerbs(limiter, local=local),
        Trials(limiter),
        LimitedVerbs(limiter),
    )
