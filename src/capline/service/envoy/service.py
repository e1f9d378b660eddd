"""Envoy's messages in and out: `ShouldRateLimit` of the request and response of `envoy.service.ratelimit.v3`.

The rule: the same bytes are the same request. Its plan is cached by these bytes until the configuration changes;
decisions are not cached. Envoy repeats its request for a route, and parsing a message costs more than deciding it. So
does building one: a prefilled response serves all requests under the same rules.
"""

from collections.abc import Sequence
from typing import Any

from capline.model.errors import CaplineError, InvalidValueError, StoreError
from capline.service.envoy.messages import (
    OK,
    OVER_LIMIT,
    UNIT_NAMES,
    UNIT_NUMBERS,
    DecodeError,
    Struct,
    json_format,
    rls,
)
from capline.service.envoy.plan import Descriptor, Plan, Status
from capline.service.envoy.ratelimit import RateLimit
from capline.service.http.app import ONE_BODY_BYTES, Reply, Request, Route
from capline.service.settings.values import Modes

MOST_KEPT = 4096
LONGEST_KEPT_BYTES = 512
"""The most requests in the cache, which is then cleared, and the longest one: some 5 MB. As many responses."""


class Response:
    """A prefilled response, without what is decided: for all plans with the same rules at the same places."""

    def __init__(self, plan: Plan, modes: Modes) -> None:
        blank = rls.RateLimitResponse.DescriptorStatus
        self._response = rls.RateLimitResponse(
            statuses=[blank(code=OK, limit_remaining=status.remaining) for status in plan.statuses]
        )
        self._parts: list[tuple[int, Any, Any]] = []
        for part in plan.parts:
            status = self._response.statuses[part.place]
            status.current_limit.name = part.rule.name
            status.current_limit.requests_per_unit = part.rule.quota
            status.current_limit.unit = UNIT_NUMBERS[part.rule.unit]
            status.duration_until_reset.SetInParent()
            self._parts.append((part.place, status, status.duration_until_reset))
        self._headers = modes.response_headers and bool(plan.parts)
        if self._headers:
            for name in (modes.limit_header, modes.remaining_header, modes.reset_header):
                self._response.response_headers_to_add.add(key=name)

    def of(self, plan: Plan, statuses: Sequence[Status], told: Any, *, over: bool) -> Any:
        """The response; the next call overwrites it, so use it before anything is awaited.

        `told` is the dynamic metadata before anything is decided, or None.
        """
        response = self._response
        response.overall_code = OVER_LIMIT if over else OK
        for place, message, duration in self._parts:
            status = statuses[place]
            message.code = OVER_LIMIT if status.over else OK
            message.limit_remaining = status.remaining
            duration.seconds, us = divmod(status.reset_us, 1_000_000)
            duration.nanos = us * 1000
        if self._headers:
            self._head(plan, statuses)
        response.ClearField("dynamic_metadata")
        if told is not None:
            response.dynamic_metadata.CopyFrom(told)
            passed: dict[str, object] = {}
            for part in plan.parts:
                if not statuses[part.place].over:
                    _merge(passed, part.rule.metadata or {})
            if passed:
                response.dynamic_metadata["metadata"] = passed
        return response

    def _head(self, plan: Plan, statuses: Sequence[Status]) -> None:
        """Headers of the limit that refuses, or else of the one that has the least left."""
        nearest = min(plan.parts, key=lambda part: (not statuses[part.place].over, statuses[part.place].remaining))
        status = statuses[nearest.place]
        values = nearest.rule.quota, status.remaining, -(-status.reset_us // 1_000_000)
        for header, value in zip(self._response.response_headers_to_add, values, strict=True):
            header.value = str(value)


class Service:
    """Answers messages by what `ratelimit` decides."""

    def __init__(self, ratelimit: RateLimit) -> None:
        self._ratelimit = ratelimit
        self._kept: dict[bytes, tuple[Plan, Response, Any]] = {}
        self._responses: dict[object, Response] = {}
        self._changes = ratelimit.changes

    async def answer(self, data: bytes) -> bytes:
        """The response to a request, both as bytes.

        Raises `InvalidValueError` for a request that can have no answer, `StoreError` in an outage.
        """
        planned = self._kept.get(data) if self._changes == self._ratelimit.changes else None
        if planned is None:
            planned = self._planned(data)
        plan, response, told = planned
        over, statuses = await self._ratelimit.decide(plan)
        return response.of(plan, statuses, told, over=over).SerializeToString()

    async def answer_message(self, request: Any) -> Any:
        """The response to a request; raises as `answer`."""
        plan, response, told = self._of(request)
        over, statuses = await self._ratelimit.decide(plan)
        return response.of(plan, statuses, told, over=over)

    def _planned(self, data: bytes) -> tuple[Plan, Response, Any]:
        try:
            request = rls.RateLimitRequest.FromString(data)
        except DecodeError:
            raise InvalidValueError("the message is not a RateLimitRequest") from None
        planned = self._of(request)
        if self._changes != self._ratelimit.changes or len(self._kept) >= MOST_KEPT:
            self._kept.clear()
            self._changes = self._ratelimit.changes
        if len(data) <= LONGEST_KEPT_BYTES:
            self._kept[data] = planned
        return planned

    def _of(self, request: Any) -> tuple[Plan, Response, Any]:
        addend: int = request.hits_addend or 1
        descriptors = [_descriptor(descriptor, addend) for descriptor in request.descriptors]
        plan = self._ratelimit.plan(request.domain, descriptors)
        response = self._responses.get(plan.form)
        if response is None:
            if len(self._responses) >= MOST_KEPT:
                self._responses.clear()
            response = self._responses[plan.form] = Response(plan, self._ratelimit.modes)
        tells = self._ratelimit.modes.dynamic_metadata or any(part.rule.metadata for part in plan.parts)
        return plan, response, _told(request) if tells else None


def json_route(ratelimit: RateLimit) -> dict[str, Route]:
    """`POST /json`, as envoyproxy/ratelimit answers it, for clients that do not speak gRPC. It takes any Content-Type.

    200  {"overallCode":"OK","statuses":[…]}        400  `Bad Request`: no JSON of a request, or no answer to it
    429  {"overallCode":"OVER_LIMIT","statuses":…}  503  an outage, with Retry-After: upstream says 400
    """
    service = Service(ratelimit)

    async def ask(request: Request) -> Reply:
        """What Envoy asks by gRPC, as envoyproxy/ratelimit takes and answers it in JSON."""
        try:
            message = json_format.Parse(request.body, rls.RateLimitRequest())
            response = await service.answer_message(message)
        except StoreError:
            raise
        except (json_format.ParseError, UnicodeDecodeError, RecursionError, CaplineError):
            return Reply(b"Bad Request\n", status=400, type="text/plain; charset=utf-8")
        body: str = json_format.MessageToJson(response, indent=None)
        return Reply(body.encode(), status=429 if response.overall_code == OVER_LIMIT else 200)

    return {
        "/json": Route(
            {"POST": ask}, ONE_BODY_BYTES, types=None, gives={"POST": dict[str, Any]}, also={429: "Over a limit"}
        )
    }


def _told(request: Any) -> Any:
    """What was asked, in the form in which envoyproxy/ratelimit tells it as dynamic metadata."""
    descriptors: list[dict[str, object]] = []
    for descriptor in request.descriptors:
        fields: dict[str, object] = {"entries": [f"{entry.key}={entry.value}" for entry in descriptor.entries]}
        if descriptor.HasField("limit"):
            unit = UNIT_NAMES.get(descriptor.limit.unit, "").upper()
            fields["limit"] = f"requests_per_unit:{descriptor.limit.requests_per_unit} unit:{unit}"
        if descriptor.HasField("hits_addend"):
            fields["hitsAddend"] = descriptor.hits_addend.value
        descriptors.append(fields)
    told = Struct()
    told.update({"domain": request.domain, "descriptors": descriptors})
    if request.hits_addend:
        told["hitsAddend"] = request.hits_addend
    return told


def _merge(into: dict[str, Any], more: Any) -> None:
    """Add this metadata: mappings under one key are merged, of other values the first one stays."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key, {}), dict):
            into[key] = {**into.get(key, {})}  # the rule's own stays as it is
            _merge(into[key], value)
        else:
            into.setdefault(key, value)


def _descriptor(descriptor: Any, addend: int) -> Descriptor:
    entries = tuple([(entry.key, entry.value) for entry in descriptor.entries])
    has_addend: bool = descriptor.HasField("hits_addend")
    limit = None
    if descriptor.HasField("limit"):
        limit = descriptor.limit.requests_per_unit, UNIT_NAMES.get(descriptor.limit.unit, "")
    return Descriptor(entries, descriptor.hits_addend.value if has_addend else addend, has_addend, limit)
