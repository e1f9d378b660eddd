"""The queues that senders fill, each a real server on loopback, and what lies in it: partition, subject, key, data.

redis_streams   Redis
kafka           three brokers of librdkafka, which speak Kafka's protocol, in a process of their own
sqs             ministack, with a FIFO queue
"""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from signal import SIGCONT
from typing import Any

from tests.kit.s3 import S3
from tests.kit.server_process import freeze
from tests.kit.servers import Server, single

KINDS = ("redis_streams", "kafka", "sqs")
BROKERS = """
import sys
from confluent_kafka import Producer
brokers = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "none", "log_level": 0})
print(*(f"{each.host}:{each.port}" for each in brokers.list_topics(timeout=30).brokers.values()), sep=",", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Found:
    """One entry of a queue."""

    partition: object
    subject: str
    key: str
    data: dict[str, Any]


class Redis:
    """Streams `shop:0` to `shop:3` of a Redis server. A `sender` puts into them; a `hasty` one waits for a second."""

    def __init__(self, server: Server) -> None:
        self.server, self.pause, self.resume = server, server.pause, server.resume
        self.sender = f"{{redis_streams: '{server.url}', stream: shop, partitions: 4, breaker: 0}}"
        self.hasty = f"{self.sender[:-1]}, timeout: 1}}"

    def found(self) -> list[Found]:
        partitions = [self.server.command("XRANGE", f"shop:{number}", "-", "+") for number in range(4)]
        return [
            Found(number, str(json.loads(data)["id"]), key.decode(), json.loads(data))
            for number, entries in enumerate(partitions)
            for _, (_, key, _, data) in entries
        ]


class Kafka:
    """The topic `shop`, of four partitions."""

    def __init__(self, process: subprocess.Popen[str], servers: str) -> None:
        self._process, self.servers = process, servers
        self.sender = f"{{kafka: '{servers}', topic: shop, breaker: 0}}"
        self.hasty = f"{self.sender[:-1]}, timeout: 1, settings: {{request.timeout.ms: '900'}}}}"

    def pause(self) -> None:
        freeze(self._process)

    def resume(self) -> None:
        self._process.send_signal(SIGCONT)

    def found(self) -> list[Found]:
        kafka: Any = import_module("confluent_kafka")
        reader = kafka.Consumer({"bootstrap.servers": self.servers, "group.id": "x", "enable.partition.eof": True})
        topic = reader.list_topics("shop", timeout=30).topics["shop"]
        reader.assign([kafka.TopicPartition("shop", number, kafka.OFFSET_BEGINNING) for number in topic.partitions])
        left, entries = len(topic.partitions), list[Found]()
        while left:
            record = reader.poll(30)
            assert record is not None, "the brokers do not answer"
            if record.error():
                assert record.error().name() == "_PARTITION_EOF"
                left -= 1
            else:
                key = dict(record.headers())["idempotency-key"].decode()
                entries.append(Found(record.partition(), record.key().decode(), key, json.loads(record.value())))
        reader.close()
        return entries


class Sqs:
    """A queue whose name ends with `.fifo`, or a plain one."""

    def __init__(self, server: S3, *, fifo: bool = True) -> None:
        self.pause, self.resume = server.pause, server.resume
        attributes = {"FifoQueue": "true"} if fifo else {}
        self._url = f"http://127.0.0.1:{server.port}/"
        name = "shop.fifo" if fifo else "shop"
        made = self._ask("CreateQueue", QueueName=name, Attributes=attributes)
        self.url = f"{self._url}{made['QueueUrl'].split('/', 3)[3]}"
        self.sender = f"{{sqs: '{self.url}', concurrency: 4, breaker: 0}}"
        self.hasty = f"{self.sender[:-1]}, timeout: 1}}"
        self._entries: list[Found] = []

    def found(self) -> list[Found]:
        """All that was ever found: what is received is taken out."""
        while True:
            wanted = {"MaxNumberOfMessages": 10, "AttributeNames": ["All"]}
            received = self._ask("ReceiveMessage", QueueUrl=self.url, **wanted).get("Messages", [])
            if not received:
                return self._entries
            for number, each in enumerate(received):
                data = json.loads(each["Body"])
                group = each["Attributes"].get("MessageGroupId", "")
                self._entries.append(Found(group, str(data["id"]), data["key"], data))
                received[number] = {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]}
            self._ask("DeleteMessageBatch", QueueUrl=self.url, Entries=received)

    def _ask(self, action: str, **form: object) -> dict[str, Any]:
        headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
        request = urllib.request.Request(self._url, json.dumps(form).encode(), headers)  # noqa: S310 - ours
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - as above
            return json.loads(answer.read() or b"{}")


Queue = Redis | Kafka | Sqs


@contextmanager
def queue(kind: str, **options: bool) -> Generator[Queue]:
    """One of `KINDS`."""
    if kind == "redis_streams":
        with single("redis") as server:
            yield Redis(server)
    elif kind == "sqs":
        with S3("sqs") as server:
            yield Sqs(server, **options)
    else:
        with kafka() as brokers:
            yield brokers


@contextmanager
def kafka() -> Generator[Kafka]:
    """The brokers end as their standard input does, so also with this process."""
    words = [sys.executable, "-c", BROKERS]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield Kafka(process, process.stdout.readline().strip())
        finally:
            process.kill()
