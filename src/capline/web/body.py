"""The bodies that the functions of a rule read: bounded, and as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

MOST_BODY_BYTES = 1 << 20


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
