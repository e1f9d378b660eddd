"""`/check`: may this request go on? For gateways that ask by a subrequest: nginx, Caddy, Traefik, HAProxy.

    204          allowed: what it asked for is consumed
    403 or 429   refused; 403 unless the parameter `refuse` says 429, as nginx knows 401 and 403 alone
    503          an outage, with Retry-After: what becomes of the request is the gateway's choice

What is asked comes as parameters (`policy`, `subject`, `cost`, `segment`, `channel`, `zone`) or as headers
(`X-Capline-Policy` and so on). The rule: a parameter wins over its header, as the gateway's own configuration writes
parameters, while a client can send headers. Every answer has the rate limit headers, of both forms. `subject_header` is
for a gateway that can write no subject of its own, as Traefik: it names the header whose text is the subject.
"""

from http import HTTPStatus

from capline.limiter.aio import AsyncLimiter
from capline.model.decision import Decision
from capline.model.errors import InvalidValueError, StoreUnavailableError, quoted
from capline.service.http.app import Reply, Request, Route
from capline.service.http.forms import number_of, query_of, subject_named
from capline.service.http.problems import Problem

_NAMES = ("policy", "subject", "cost", "segment", "channel", "zone")
_PARAMETERS = (*_NAMES, "subject_header", "refuse")
_HEADERS = {f"x-capline-{name}".encode(): name for name in _NAMES}
_REFUSALS = {"403": 403, "429": 429}
_ALSO = {204: "It may go on: what it asked for is consumed", 403: "Refused", 429: "Refused, where `refuse` is 429"}
_SENDS = ("RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
_LONGEST_COST = 16
"""Digits of the largest cost."""


def check_route(limiter: AsyncLimiter) -> dict[str, Route]:
    """The route of `/check`, for GET and HEAD."""

    async def check(request: Request) -> Reply:
        """May this request go on? 204 or 403, for gateways that ask by a subrequest."""
        asked = query_of(request.query, _PARAMETERS)
        named = _headers(request, None if "subject" in asked else asked.get("subject_header")) | asked
        refuse = _REFUSALS.get(named.get("refuse", "403"))
        if refuse is None:
            raise InvalidValueError(f"refuse is {' or '.join(_REFUSALS)}, not {quoted(named['refuse'])}")
        request.scope.check(_needed(named, "policy"))
        decision = await decide(limiter, named)
        headers = decision.headers("legacy") | decision.headers("draft-11") | {"Cache-Control": "no-store"}
        return Reply(b"", headers, status=204 if decision.allowed else refuse, type="text/plain")

    return {
        "/check": Route(
            {"GET": check},
            roles=("decide",),
            scoped=("GET",),
            query={"GET": _PARAMETERS},
            needs=("policy", "subject"),
            headers=tuple(f"X-Capline-{name.title()}" for name in _NAMES),
            sends=_SENDS,
            also=_ALSO,
        )
    }


async def decide(limiter: AsyncLimiter, named: dict[str, str]) -> Decision:
    """The decision that these parameters ask for; raises `CaplineError` if there is none, also in an outage."""
    policy, subject = _needed(named, "policy"), subject_named(_needed(named, "subject"))
    cost = number_of(named.get("cost", "1"), _LONGEST_COST)
    if cost is None:
        raise InvalidValueError(f"a cost is a whole number of units, not {quoted(named['cost'])}")
    decision = await limiter.decide(
        policy, subject, cost, segment=named.get("segment"), channel=named.get("channel"), zone=named.get("zone")
    )
    if not decision.allowed and decision.origin == "fallback":
        raise StoreUnavailableError("the store cannot answer now, and nothing goes on without it")
    return decision


def _headers(request: Request, subject_header: str | None) -> dict[str, str]:
    """What headers say; where one is named for the subject, a client cannot say it by `X-Capline-Subject`."""
    named: dict[str, str] = {}
    read = _HEADERS
    if subject_header is not None:
        read = {header: name for header, name in _HEADERS.items() if name != "subject"}
        read[subject_header.lower().encode()] = "subject"
    for header, value in request.headers:
        name = read.get(header)
        if name is None or not value:
            continue
        if name in named:
            raise InvalidValueError(f"the header {header.decode()} is there twice; give it once")
        try:
            named[name] = value.decode()
        except UnicodeDecodeError:
            raise Problem(HTTPStatus.BAD_REQUEST, f"the header {header.decode()} is not UTF-8") from None
    if subject_header is not None:
        if "subject" not in named:
            raise InvalidValueError(f"the request has no header {quoted(subject_header)}, which is to be the subject")
        named["subject"] = f"s:{named['subject']}"
    return named


def _needed(named: dict[str, str], name: str) -> str:
    if name not in named:
        raise InvalidValueError(f"which {name}? add {name}=… to the query, or the header X-Capline-{name.title()}")
    return named[name]
