"""Many messages in one request: the array that is posted, and the array of results that answers it.

    POST /push                                             HTTP/1.1 200 OK
    Content-Type: application/json                         Content-Type: application/json

    [{"campaign": "summer-sale", "run": "4f0c…",           [{"key": "summer-sale/4f0c…/42", "status": 202},
      "key": "summer-sale/4f0c…/42", "id": 42, …},          {"key": "summer-sale/4f0c…/43", "status": 410}]
     {…, "key": "summer-sale/4f0c…/43", "id": 43, …}]

A result's status means what the status of an answer to one message means. The rule: with a 2xx, each message has what
its own result says, and one without a result is not known; any other status holds for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capline.campaign.senders.http_post import outcome_of
from capline.campaign.senders.protocol import DELIVERED, UNKNOWN, Answer

if TYPE_CHECKING:
    from collections.abc import Sequence

_RESULT_BYTES = 1 << 10
_ANSWER_BYTES = 1 << 16


class _Result(msgspec.Struct):
    key: str
    status: int


_results = msgspec.json.Decoder(list[_Result])


def longest_answer_bytes(messages: int) -> int:
    """How much of an answer to so many messages is read."""
    return _ANSWER_BYTES + messages * _RESULT_BYTES


def answers_of(answer: Answer, keys: Sequence[str]) -> list[Answer]:
    """What the answer to a request says of each of its messages."""
    if answer.code != DELIVERED:
        return [answer] * len(keys)
    if answer.body is None:
        return [Answer(UNKNOWN, "the answer is not whole")] * len(keys)
    try:
        results = _results.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [Answer(UNKNOWN, "the answer is no array of results")] * len(keys)
    statuses: dict[str, int | None] = {}
    for result in results:
        # Two that contradict each other count as none.
        same = statuses.get(result.key, result.status) == result.status
        statuses[result.key] = result.status if same else None
    return [_answer(statuses.get(key), answer.wait_s) for key in keys]


def _answer(status: int | None, wait_s: float) -> Answer:
    if status is None:
        return Answer(UNKNOWN, "no result in the answer")
    code = outcome_of(status)
    return Answer(code) if code == DELIVERED else Answer(code, f"HTTP {status}", wait_s)
