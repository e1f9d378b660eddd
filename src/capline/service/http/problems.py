"""Errors as RFC 9457 problem documents: one status for each kind of trouble, one line that says the fix.

    400  body not JSON, or path not UTF-8              422  JSON that asks for what can never be answered
    409  an id with another cost, an old version       503  the store cannot answer now: Retry-After, ask again
    413  too large                                     500  the store is damaged, or the service has a fault

An outage is never 429, and neither is a refusal: that is an answer, 200 with `allowed` false.
"""

from http import HTTPStatus

from capline.model.errors import (
    CampaignConflictError,
    CampaignNotFoundError,
    CampaignStoreError,
    CaplineError,
    ConfigConflictError,
    IdConflictError,
    SegmentConflictError,
    StoreDamagedError,
    StoreError,
    StoreVersionError,
    faults_of,
)
from capline.support.status_title import status_title

PROBLEM = "application/problem+json"

RETRY_AFTER_S = 1
"""Of an outage: nobody knows when the store answers again."""

_CONFLICTS = (IdConflictError, ConfigConflictError, CampaignConflictError, SegmentConflictError)


class Problem(Exception):  # noqa: N818 - the word of RFC 9457
    """An error answer: its status, its detail, further headers, and the name of capline's `error` where it is one."""

    def __init__(
        self, status: HTTPStatus, detail: str, headers: dict[str, str] | None = None, error: str | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}
        self.error = error


def busy(detail: str) -> Problem:
    """The answer to a request that is to come again in a moment."""
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"Retry-After": str(RETRY_AFTER_S)})


def problem_of(error: CaplineError) -> Problem:
    """The answer to a request that raised this error."""
    status, headers = HTTPStatus.UNPROCESSABLE_ENTITY, {}
    if isinstance(error, (StoreDamagedError, StoreVersionError)):
        status = HTTPStatus.INTERNAL_SERVER_ERROR
    elif isinstance(error, (StoreError, CampaignStoreError)):
        status, headers = HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": str(RETRY_AFTER_S)}
    elif isinstance(error, _CONFLICTS):
        status = HTTPStatus.CONFLICT
    elif isinstance(error, CampaignNotFoundError):
        status = HTTPStatus.NOT_FOUND
    said = "; ".join(faults_of(error)).encode(errors="backslashreplace").decode()  # of a file that is no text
    return Problem(status, " ".join(said.split("\n")), headers, type(error).__name__)


def document(problem: Problem) -> dict[str, object]:
    """The problem document."""
    title, status = status_title(problem.status), problem.status.value
    named = {} if problem.error is None else {"error": problem.error}
    return {"type": "about:blank", "title": title, "status": status, "detail": problem.detail, **named}
