"""A throttle class for Django REST framework.

    class Burst(CaplineThrottle):
        policy, key = "burst", "user_or_ip"

    REST_FRAMEWORK = {"DEFAULT_THROTTLE_CLASSES": ["shop.throttles.Burst"]}

It is for what the framework alone knows: its users, and its views. A refusal is the framework's own `Throttled`; an
outage under `on_error="deny"` is 503. What the middleware or a throttle before it consumed is given back on a refusal.
"""

# Django REST framework comes without types.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any, ClassVar

from capline.limiter.steps import run
from capline.model.errors import CaplineError
from capline.web.django import VISIT, gate, key_of
from capline.web.rule import Rule

try:
    from rest_framework.exceptions import APIException
    from rest_framework.throttling import BaseThrottle
except ImportError as error:
    raise CaplineError("capline.web.drf needs Django REST framework: pip install djangorestframework") from error

TOO_MANY_REQUESTS = 429


class Unavailable(APIException):
    """The limits cannot be checked now."""

    status_code = 503
    default_detail = "Limits cannot be checked now. Try again."
    default_code = "unavailable"


class CaplineThrottle(BaseThrottle):
    """Limits by `policy` and `key`, which is a function of the framework's request or a word of `limited`.

    `cost`, `segment`, `channel`, `limits` are as in `Rule`, as attributes of the class. The limiter is that of
    `settings.CAPLINE`.
    """

    policy: ClassVar[str]
    key: ClassVar[Any] = "user_or_ip"
    cost: ClassVar[Any] = 1
    segment: ClassVar[Any] = None
    channel: ClassVar[Any] = None
    limits: ClassVar[Any] = None

    def __init__(self) -> None:
        self._retry_after_s: float | None = None

    def rule(self) -> Rule:
        """The rule of this class."""
        fields = {name: _plain(getattr(type(self), name)) for name in ("cost", "segment", "channel", "limits")}
        return Rule(self.policy, key_of(_plain(type(self).key)), **fields)

    def allow_request(self, request: Any, view: Any) -> bool:  # noqa: ARG002 - the framework's own signature
        """Decide; the framework calls it."""
        plain = request._request  # noqa: SLF001 # the framework's name for Django's request
        if not hasattr(plain, VISIT):
            setattr(plain, VISIT, gate().visit())
        visit = getattr(plain, VISIT)
        if visit is None or visit.refusal is not None:
            return True  # exempt, or refused by a throttle before this one
        refusal = run(visit.enter(request, gate().check(self.rule())))
        if refusal is None:
            return True
        if refusal.status != TOO_MANY_REQUESTS:
            raise Unavailable
        self._retry_after_s = visit.retry_after
        return False

    def wait(self) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride] - the base's is inferred
        """Seconds until the request would fit, for the framework's `Retry-After`."""
        return self._retry_after_s


def _plain(value: Any) -> Any:
    """A function of the class, without its self."""
    return getattr(value, "__func__", value)
