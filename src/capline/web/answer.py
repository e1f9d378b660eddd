"""What a request gets that is not let through: problem documents (RFC 9457), the same from every face.

    429  quota-exceeded, a problem type of draft-ietf-httpapi-ratelimit-headers: the limits that have too little left
    503  the store cannot answer: an outage, never a refusal

The rule: no body names a subject or a store. Its names are those of the `RateLimit` header.
"""

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

import msgspec

from capline.limiter.outage.outage import ASK_AGAIN_US
from capline.model.attempt import Attempt
from capline.model.headers import limit_names
from capline.model.limit import QuietHours, duration_text
from capline.model.limit_status import LimitStatus
from capline.support.status_title import status_title

MOST_BODY_BYTES = 1 << 20
"""Of a body that a function of a rule reads."""

PROBLEM = "application/problem+json"
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"


class Answer(msgspec.Struct, frozen=True):
    """The beginning of an app's answer, as `refund_if` sees it."""

    status_code: int
    headers: Mapping[str, str]


class Refusal(msgspec.Struct, frozen=True):
    """An answer instead of the app's. `headers` are beside those of the limits, which every answer has."""

    status: int
    body: bytes
    headers: dict[str, str] = {}

    @property
    def fields(self) -> dict[str, str]:
        """All header fields but those of the limits."""
        return {"Content-Type": PROBLEM, "Content-Length": str(len(self.body)), **self.headers}


def quota_exceeded(
    attempts: Sequence[Attempt], limits: Iterable[Sequence[LimitStatus]], binds: int, retry_after_us: int | None
) -> Refusal:
    """429: every limit that has less left than its attempt asks for; the binding policy where none is known."""
    costs: list[int] = []
    states: list[LimitStatus] = []
    for attempt, read in zip(attempts, limits, strict=False):
        quotas = [state for state in read if not isinstance(state.limit, QuietHours)]
        states += quotas
        costs += [attempt.cost] * len(quotas)
    named = zip(limit_names(states), states, costs, strict=True)
    violated = [name for name, state, cost in named if state.remaining < cost] or [attempts[binds].policy]
    when = "This request will never fit."
    if retry_after_us is not None:
        whole_s = max(1, -(-retry_after_us // 1_000_000))  # as in Retry-After
        when = f"Try again in {duration_text(whole_s * 1_000_000)}."
    said = _document(
        QUOTA_EXCEEDED,
        "Request cannot be satisfied as assigned quota has been exceeded",
        HTTPStatus.TOO_MANY_REQUESTS,
        f"Too many requests. {when}",
        {"violated-policies": violated},
    )
    return Refusal(HTTPStatus.TOO_MANY_REQUESTS.value, said)


def outage() -> Refusal:
    """503, with `Retry-After`: nobody knows when the store answers again."""
    status = HTTPStatus.SERVICE_UNAVAILABLE
    said = _document("about:blank", status_title(status), status, "Limits cannot be checked now. Try again.", {})
    return Refusal(status.value, said, {"Retry-After": str(ASK_AGAIN_US // 1_000_000)})


def answer_to(error: Exception) -> Refusal | None:
    """The answer to an exception of a rule's function: 4xx where that is its `status_code`; None for any other."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or not 400 <= status <= 499:  # noqa: PLR2004 - the client's faults
        return None
    headers = getattr(error, "headers", None)
    given = cast("Mapping[str, str]", headers if isinstance(headers, Mapping) else {})
    # Not those of its body: the answer has another.
    kept = {name: value for name, value in given.items() if not name.lower().startswith("content-")}
    detail = str(getattr(error, "detail", ""))
    return Refusal(status, _document("about:blank", status_title(status), status, detail, {}), kept)


def named(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Header fields by their names in lower case; lines of one name are joined by ", "."""
    found: dict[str, str] = {}
    for name, value in fields:
        lower = name.lower()
        found[lower] = f"{found[lower]}, {value}" if lower in found else value
    return found


class BodyError(Exception):
    """A body that a rule cannot read; the request is answered with the status code."""

    def __init__(self, status_code: int, detail: str) -> None:
        super().__init__(detail)
        self.status_code, self.detail = status_code, detail


def check_size(size: int) -> None:
    """Raise for a body that is larger than a rule reads; it is answered 413."""
    if size > MOST_BODY_BYTES:
        raise BodyError(413, f"The body is more than {MOST_BODY_BYTES} bytes.")


def json_of(body: bytes) -> Any:
    """The body as JSON; a body that is not JSON is answered 400."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BodyError(400, f"The body is not JSON: {error}") from None


def _document(kind: str, title: str, status: int, detail: str, more: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": kind, "title": title, "status": int(status), "detail": detail, **more})
