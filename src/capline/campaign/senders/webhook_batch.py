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


class _Result(msgspec.Struct):
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
        return dict.fromkeys(range(len(keys)), Answer(UNKNOWN, "the answer is no array of results"))
    statuses: dict[str, int | None] = {result.key: result.status for result in results}
    for result in results if len(statuses) < len(results) else ():
        if statuses[result.key] != result.status:  # two that contradict each other count as none
            statuses[result.key] = None
    taken = {status for status in {*statuses.values()} if status and outcome_of(status) == DELIVERED}
    answers: dict[int, Answer] = {}
    for row in [row for row, key in enumerate(keys) if statuses.get(key) not in taken]:
        status = statuses.get(keys[row])
        if status is None:
            answers[row] = Answer(UNKNOWN, "no result in the answer")
        else:
            answers[row] = Answer(outcome_of(status), f"HTTP {status}", answer.wait_s)
    return answers
