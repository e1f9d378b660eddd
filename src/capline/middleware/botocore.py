"""Slots for a client of botocore or boto3: every request waits for one, also each that botocore sends again.

    s3 = boto3.client("s3")
    limit_client(s3, limiter, "s3", max_wait=30)

It hooks into the client's own events, so it imports nothing of botocore.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from capline.middleware.slots.gate import Gate, Turn
from capline.model.errors import InvalidTypeError, quoted

if TYPE_CHECKING:
    from capline.limiter.limiter import Limiter
    from capline.model.subject import Subject


def limit_client(
    client: Any,
    limiter: Limiter,
    policy: str,
    *,
    subject: Subject | None = None,
    max_wait: float | None = 60,
    slack: float | None = None,
) -> None:
    """Let every request of this client go in a slot of `policy`, from now on.

    `subject` is the host of the client's endpoint unless said. `max_wait` and `slack` are as in `LimitedTransport`; a
    request is signed before it waits, and a signature is good for some minutes, so keep `max_wait` below them. Past it
    the call raises `LimitExceeded`, which botocore does not try again. An answer of 429 or 503 with `Retry-After` holds
    back every host on the store.
    """
    try:
        events, host = client.meta.events, urlsplit(str(client.meta.endpoint_url)).hostname or ""
    except AttributeError:
        raise InvalidTypeError(f"a client of botocore has meta.events, unlike {quoted(client)}") from None
    gate: Gate[None] = Gate(policy, lambda _: host, subject=subject, max_wait=max_wait, slack=slack)
    events.register("before-send", partial(_wait, limiter, gate))
    events.register("response-received", partial(_hold, limiter, gate))


def _wait(limiter: Limiter, gate: Gate[None], **_: object) -> None:
    with limiter.acquire(gate.policy, gate.subject_of(None), **gate.turn(None).terms()):
        pass


def _hold(limiter: Limiter, gate: Gate[None], response_dict: Mapping[str, Any] | None = None, **_: object) -> None:
    if response_dict is None:
        return
    turn = Turn(gate)
    turn.is_last(response_dict["status_code"], response_dict["headers"], repeatable=False)
    turn.hold(limiter, gate.subject_of(None))
