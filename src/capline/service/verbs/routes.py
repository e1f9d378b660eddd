"""The paths of a limiter: its verbs, its policies and its overrides."""

from capline.limiter.aio import AsyncLimiter
from capline.service.access.new_subjects import NewSubjects
from capline.service.http.app import Route
from capline.service.http.table import routes_of
from capline.service.settings.values import Settings
from capline.service.verbs.attempts import Attempts
from capline.service.verbs.batch import Batch
from capline.service.verbs.configuration import ConfigurationVerbs
from capline.service.verbs.joint import JointVerbs
from capline.service.verbs.limited import LimitedVerbs
from capline.service.verbs.subjects import Subjects
from capline.service.verbs.trials import Trials


def routes(
    limiter: AsyncLimiter, settings: Settings | None = None, subject_bound: NewSubjects | None = None
) -> dict[str, Route]:
    """The routes of this limiter, by these settings.

    Where the store is on this machine no policy is set that waits for replicas. A subject is erased in the campaigns of
    the queue, the uploads and the replies too.
    """
    settings = Settings() if settings is None else settings
    return routes_of(
        Attempts(limiter, subject_bound),
        JointVerbs(limiter, subject_bound),
        Batch(limiter, subject_bound, settings.bounds.batch_rows),
        Subjects(limiter, settings),
        ConfigurationVerbs(limiter, local=settings.is_local),
        Trials(limiter),
        LimitedVerbs(limiter),
    )
