"""The `sqs` sender: ten messages a request, many requests at a time, by botocore, which knows where credentials are.

    body              {"campaign": "summer-sale", "key": "summer-sale/4f0c…/42", "id": 42, …}
    of a .fifo queue  group: the subject; deduplication id: the key, or their SHA-256 where SQS does not take them

    a message id                   delivered
    throttled                      transient, after a second or what Retry-After says
    a sender's fault, another 4xx  permanent
    no connection                  transient
    no answer, another 5xx         not known: put again with the same key

A FIFO queue drops a key that it had within five minutes; else consumers do.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, ClassVar
from urllib.parse import urlsplit

from capline.campaign.senders.http_post import outcome_of
from capline.campaign.senders.protocol import TRANSIENT, UNKNOWN, Answer
from capline.campaign.senders.queues.base import GIVEN, Entry, QueueSender
from capline.forms.fields import Fields
from capline.model.retry_after import retry_after

_session: Any = import_module("botocore.session")
_config: Any = import_module("botocore.config")
_errors: Any = import_module("botocore.exceptions")
_MOST_ENTRIES, _MOST_BYTES = 10, 250_000
"""In a request; SQS takes 262,144 bytes everywhere, 1 MiB in most places."""
_HAND_OVER = 4
"""Requests for each connection in one `send`."""
_URL = re.compile(r"https?://(?:sqs\.(?P<region>[a-z0-9-]+)\.)?[^/\s]+/\S+", re.ASCII)
_ID = re.compile(r"[!-~]{1,128}", re.ASCII)
_FORBIDDEN = 403


class SqsSender(QueueSender):
    """See the module's text.

    Options: `url`, the queue's; `concurrency` (16), requests at a time; `timeout` (10), in seconds. Region and
    credentials are AWS's own, from environment, files or the machine's role.
    """

    name = "sqs"
    main: ClassVar[str] = "url"
    tuning: ClassVar[frozenset[str]] = frozenset({"timeout", "concurrency"})
    request_size = _MOST_ENTRIES

    def __init__(self, options: Fields) -> None:
        super().__init__(options, 10.0)
        like = "https://sqs.eu-central-1.amazonaws.com/123456789012/shop"
        self._url = options.text("url", like=like)
        self._found = _URL.fullmatch(self._url)
        if self._url and not self._found:
            options.fault("url", f"it is not a queue's URL like {like}")
        self._is_fifo = self._url.endswith(".fifo")
        concurrency = options.whole("concurrency", 16, 1, 1000)
        self._threads = ThreadPoolExecutor(concurrency, "sqs")
        self.at_once = concurrency * _MOST_ENTRIES
        self.most: int | None = self.at_once * _HAND_OVER
        self._client: Any = None

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown()
        if self._client is not None:
            self._client.close()

    def _connect(self) -> str:
        url = urlsplit(self._url)
        config = _config.Config(
            retries={"total_max_attempts": 1},  # what became of each try is judged here
            connect_timeout=self._timeout_s,
            read_timeout=self._timeout_s,
            max_pool_connections=self.at_once // _MOST_ENTRIES,
        )
        region = self._found["region"] if self._found else None
        try:
            session = _session.get_session()
            endpoint = f"{url.scheme}://{url.netloc}"
            self._client = session.create_client("sqs", region, endpoint_url=endpoint, config=config)
            self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=["QueueArn"])
        except _errors.ClientError as error:
            # Who may only send may not ask this.
            return "" if _status(error.response) == _FORBIDDEN else str(error)
        except _errors.BotoCoreError as error:
            return str(error)
        return ""

    def _put(self, entries: Sequence[Entry]) -> Sequence[Answer]:
        return [answer for answers in self._threads.map(self._post, _requests(entries)) for answer in answers]

    def _post(self, entries: Sequence[Entry]) -> list[Answer]:
        """The answer to each of one request."""
        wanted = [self._entry(str(number), entry) for number, entry in enumerate(entries)]
        try:
            said = self._client.send_message_batch(QueueUrl=self._url, Entries=wanted)
        except _errors.ClientError as error:
            answer = _meaning(error.response["Error"], _status(error.response))
            headers: Mapping[str, str] = error.response["ResponseMetadata"].get("HTTPHeaders", {})
            answer.wait_s = max(answer.wait_s, retry_after(headers) or 0.0)
            return [answer] * len(entries)
        except (_errors.EndpointConnectionError, _errors.ConnectTimeoutError, _errors.NoCredentialsError) as error:
            return [Answer(TRANSIENT, type(error).__name__)] * len(entries)
        except _errors.BotoCoreError as error:
            return [Answer(UNKNOWN, f"no answer ({type(error).__name__})")] * len(entries)
        answers = [Answer(UNKNOWN, "no result in the answer")] * len(entries)
        for taken in said.get("Successful", ()):
            answers[int(taken["Id"])] = GIVEN
        for failed in said.get("Failed", ()):
            answers[int(failed["Id"])] = _meaning(failed, 400 if failed["SenderFault"] else 500)
        return answers

    def _entry(self, number: str, entry: Entry) -> dict[str, str]:
        found = {"Id": number, "MessageBody": entry.data.decode()}
        if self._is_fifo:
            found |= {"MessageGroupId": _id(entry.subject), "MessageDeduplicationId": _id(entry.key)}
        return found


def _requests(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """The entries, as many together as one request takes."""
    first = size_bytes = 0
    for row, entry in enumerate(entries):
        size_bytes += len(entry.data)
        if row > first and (row - first == _MOST_ENTRIES or size_bytes > _MOST_BYTES):
            yield entries[first:row]
            first, size_bytes = row, len(entry.data)
    yield entries[first:]


def _meaning(error: Mapping[str, Any], status: int) -> Answer:
    """What an error of a request, or of one message in it, means."""
    code = str(error["Code"])
    if "throttl" in code.lower() or code in ("OverLimit", "RequestLimitExceeded", "TooManyRequestsException"):
        return Answer(TRANSIENT, f"SQS {code}", 1.0)
    return Answer(outcome_of(status), f"SQS {code}")


def _status(response: Mapping[str, Any]) -> int:
    return int(response["ResponseMetadata"]["HTTPStatusCode"])


def _id(text: str) -> str:
    """The text, or its digest where it is too long or has what SQS does not take."""
    return text if _ID.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()
