"""Reads what an answer says of limits, by a parser of structured fields that is not ours."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import http_sf

from capline import Limiter, ManualClock, Policy, StoreUnavailableError

NOON_US = 1_700_000_000_000_000
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"


def policies() -> list[Policy]:
    """As the issue's example has them; `tier` differs by segment."""
    return [
        Policy("ip", ["5/10s", "100/hour"]),
        Policy("user", ["3/minute"]),
        Policy("login", ["2/minute"]),
        Policy("tier", ["1/minute"], by_segment={"paid": ["4/minute"]}),
    ]


def limits_said(headers: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Of each limit: `q` and `w` of RateLimit-Policy, `r` and `t` of RateLimit; {} where there is none."""
    said: dict[str, dict[str, int]] = {}
    for name in ("RateLimit-Policy", "RateLimit"):
        if name in headers:
            items: Any = http_sf.parse(headers[name].encode(), tltype="list")
            for item, parameters in items:
                assert isinstance(item, str)
                said.setdefault(item, {}).update(parameters)
    return said


def left(headers: Mapping[str, str]) -> dict[str, int]:
    """Units left of each limit by its name."""
    return {name: parameters["r"] for name, parameters in limits_said(headers).items()}


def local(**options: Any) -> tuple[Limiter, ManualClock]:
    """A limiter in memory, and its clock."""
    clock = ManualClock(NOON_US)
    return Limiter("memory://", policies(), clock=clock, **options), clock


async def sent_by(app: Any, scope: dict[str, Any], *messages: dict[str, Any]) -> list[Any]:
    """What an ASGI app sends to a client of these messages; they begin again after the last."""
    sent: list[Any] = []
    coming = cycle(messages)

    async def receive() -> Any:
        return next(coming)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


class Down:
    """Stands for the store of a limiter, while it cannot be reached."""

    def __init__(self, limiter: Any) -> None:
        self._limiter, self._store = limiter, limiter._store

    def __enter__(self) -> None:
        self._limiter._store = self
        self._limiter._unbind()

    def __exit__(self, *_: object) -> None:
        self._limiter._store = self._store
        self._limiter._unbind()

    def __getattr__(self, name: str) -> object:
        raise StoreUnavailableError("the store is away; nothing was recorded")
