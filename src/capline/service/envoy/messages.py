"""Envoy's messages. Their packages have no types, so they are used as `Any`, and imported here alone."""

from typing import Any

from capline.service.parts import part

rls = part("envoy.service.ratelimit.v3.rls_pb2")
DecodeError: type[Exception] = part("google.protobuf.message").DecodeError
Struct: Any = part("google.protobuf.struct_pb2").Struct
json_format: Any = part("google.protobuf.json_format")

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
OK: int = rls.RateLimitResponse.OK
OVER_LIMIT: int = rls.RateLimitResponse.OVER_LIMIT

UNIT_NUMBERS: dict[str, int] = {
    name.lower(): number for name, number in rls.RateLimitResponse.RateLimit.Unit.items() if number
}
"""The units of answers, by their names in the files."""

UNIT_NAMES: dict[int, str] = {
    number: name.lower() for name, number in part("envoy.type.v3.ratelimit_unit_pb2").RateLimitUnit.items() if number
}
"""The units of a request's own limits."""
