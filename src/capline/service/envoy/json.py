"""`POST /json`, as envoyproxy/ratelimit answers it, for clients that do not speak gRPC.

200  {"overallCode":"OK","statuses":[…]}        400  `Bad Request`: no JSON of a request, or no answer to it
429  {"overallCode":"OVER_LIMIT","statuses":…}  503  an outage, with Retry-After: upstream says 400
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capline.model.errors import CaplineError, StoreError
from capline.service.envoy.messages import OVER_LIMIT, part, rls
from capline.service.envoy.service import Service
from capline.service.http.app import ONE_BODY_BYTES, Reply, Request, Route

if TYPE_CHECKING:
    from capline.service.envoy.ratelimit import RateLimit


def json_route(ratelimit: RateLimit) -> dict[str, Route]:
    """The path that answers. It takes any Content-Type, as upstream does."""
    form: Any = part("google.protobuf.json_format")
    service = Service(ratelimit)

    async def ask(request: Request) -> Reply:
        """What Envoy asks by gRPC, as envoyproxy/ratelimit takes and answers it in JSON."""
        try:
            message = form.Parse(request.body, rls.RateLimitRequest())
            response = await service.answer_message(message)
        except StoreError:
            raise
        except (form.ParseError, UnicodeDecodeError, RecursionError, CaplineError):
            return Reply(b"Bad Request\n", status=400, type="text/plain; charset=utf-8")
        body: str = form.MessageToJson(response, indent=None)
        return Reply(body.encode(), status=429 if response.overall_code == OVER_LIMIT else 200)

    return {
        "/json": Route(
            {"POST": ask}, ONE_BODY_BYTES, any_type=True, gives={"POST": dict[str, Any]}, also={429: "Over a limit"}
        )
    }
