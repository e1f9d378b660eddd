"""Many messages in one request: the array that is posted, and the array of results that answers it.

    POST /push                                             HTTP/1.1 200 OK
    Content-Type: application/json                         Content-Type: application/json

    [{"campaign": "summer-sale", "run": "4f0c…",           [{"key": "summer-sale/4f0c…/42", "status": 202},
      "key": "summer-sale/4f0c…/42", "id": 42, …},          {"key": "summer-sale/4f0c…/43", "status": 410}]
     {…, "key": "summer-sale/4f0c…/43", "id": 43, …}]

A result's status means what the status of an answer to one message means. The rule: with a 2xx, each message has what
its own result says, and one without a result is not known; any other status holds for all of them.
"""

from collections.abc import Sequence

import msgspec

from capline.campaign.senders.http_post import outcome_of
from capline.campaign.senders.protocol import DELIVERED, UNKNOWN, Answer

_RESULT_BYTES = 1 << 10
_ANSWER_BYTES = 1 << 16


class _Result(msgspec.Struct, gc=False):
    key: str
    status: int


_results = msgspec.json.Decoder(list[_Result])


def longest_answer_bytes(messages: int) -> int:
    """How much of an answer to so many messages is read."""
    return _ANSWER_BYTES + messages * _RESULT_BYTES


def answers_of(answer: Answer, keys: Sequence[str]) -> dict[int, Answer]:
    """What the answer to a request says of those of its messages that were not delivered."""
    if answer.code != DELIVERED:
        return dict.fromkeys(range(len(keys)), answer)
    if answer.body is None:
        return dict.fromkeys(range(len(keys)), Answer(UNKNOWN, "the answer is not whole"))
    try:
        results = _results.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return dict.fromkeys(range(len(keys)), Answer(UNKNOWN, "the answer is not an array of results"))
    statuses: list[int | None] = [result.status for result in results]
    if [result.key for result in results] != keys:
        by_key: dict[str, int | None] = {result.key: result.status for result in results}
        for result in results if len(by_key) < len(results) else ():
            if by_key[result.key] != result.status:  # two that contradict each other count as none
                by_key[result.key] = None
        statuses = [*map(by_key.get, keys)]
    said = {status: _meaning(status, answer.wait_s) for status in {*statuses}}
    if all(each.code == DELIVERED for each in said.values()):
        return {}
    return {row: said[status] for row, status in enumerate(statuses) if said[status].code != DELIVERED}


def _meaning(status: int | None, wait_s: float) -> Answer:
    if status is None:
        return Answer(UNKNOWN, "no result in the answer")
    return Answer(outcome_of(status), f"HTTP {status}", wait_s)
