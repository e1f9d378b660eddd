"""A client of a language model, one of any number on any number of hosts that share the limits of one key.

    estimate  ->  acquire_all: one slot under requests and tokens  ->  call  ->  settle: what it really used
                                                                        '->  429: every host waits as long as it says

The rule: what leaves here is never more than the provider allows, as far as anybody here knows. Others may use the key
too. The provider says so in its answers: what it counts beyond our own log is charged to that log, and so slows down
every host.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from capline import Attempt, IdConflictError, Limit, Limiter, Policy
from capline.middleware.retry_after import retry_after

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

REQUESTS, TOKENS = "llm-requests", "llm-tokens"
LEFT = {REQUESTS: "x-ratelimit-remaining-requests", TOKENS: "x-ratelimit-remaining-tokens"}
ANSWERS = 3
"""Answers in a row that must show a difference: an answer that is older than our look at the log makes one too."""

STEPS = 20
TOO_MANY, UNAVAILABLE = 429, 503


def policies(requests: str, tokens: str, jitter: str) -> list[Policy]:
    """Limits with room for the way, as in `60/minute` and `20000/minute`."""
    spread = Limit.margin(requests, jitter=jitter)
    wide, *_ = Limit.margin(tokens, jitter=jitter)  # the requests are spread already
    return [Policy(REQUESTS, list(spread)), Policy(TOKENS, [wide])]


class Model:
    """Asks the model, in slots that are shared by all who use this key and this store."""

    def __init__(self, limiter: Limiter, client: httpx.Client, key: str, timeout: float) -> None:
        self._limiter, self._client, self._key, self._timeout = limiter, client, key, timeout
        self._unknown = {policy: deque[int](maxlen=ANSWERS) for policy in LEFT}

    def complete(self, prompt: str, most: int) -> dict[str, Any]:
        """The model's answer, of at most so many tokens. Raises `LimitExceeded` where no slot is free in time."""
        estimate = len(prompt.split()) + most  # your tokenizer counts better
        parts = [Attempt(REQUESTS, self._key), Attempt(TOKENS, self._key, estimate)]
        wait = 0.0
        while True:
            with self._limiter.acquire_all(parts, timeout=self._timeout, not_before=wait) as slot:
                answer = self._client.post("/v1/complete", json={"prompt": prompt, "max_tokens": most})
            request_hit, tokens_hit = slot.hits
            if answer.status_code not in (TOO_MANY, UNAVAILABLE):
                break
            # It was not done and is not counted. The next slot is for the same call, and nobody gets one before it.
            self._limiter.refund(REQUESTS, self._key, request_hit)
            self._limiter.settle(TOKENS, self._key, tokens_hit, 0)
            wait = retry_after(answer.headers) or 1.0
        answer.raise_for_status()
        said: dict[str, Any] = answer.json()
        self._limiter.settle(TOKENS, self._key, tokens_hit, said["usage"]["total_tokens"])
        self._believe(answer.headers)
        return said

    def _believe(self, headers: Mapping[str, str]) -> None:
        """Charge what the provider has counted and nobody here has, once some answers in a row have shown it.

        At most `STEPS` times a minute for all hosts together, by the charge's id. Costs a look at each log.
        """
        for policy, name in LEFT.items():
            left = headers.get(name, "")
            if not left.isdecimal():
                continue
            log = self._limiter.explain(policy, self._key)
            limit = log.limits[0].limit
            # A slot later than now is of a call that waits still: the provider has not seen it.
            began_us = log.now_us - limit.window_us
            ours = sum(hit.units for hit in log.hits if began_us < hit.stamp_us <= log.now_us)
            unknown = self._unknown[policy]
            unknown.append(limit.quota - int(left) - ours)
            if len(unknown) == ANSWERS and min(unknown) > 0:
                step = log.now_us * STEPS // limit.window_us
                with suppress(IdConflictError):  # another host was first
                    self._limiter.charge(policy, self._key, min(unknown), id=f"unknown-{step}")
