"""Senders to queues, against real servers: who gets what, where, how often, also when one goes away or is killed."""

import json
import time
from collections import Counter
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from tests.kit import forked
from tests.kit.campaign import Site, answer, environment
from tests.kit.queues import KINDS, Queue, queue
from tests.kit.servers import free_port, single
from tests.profiles import size
from tests.unit.campaign.test_senders import RUN, build, messages

from capline.campaign import load_campaign
from capline.campaign.senders.protocol import DELIVERED, PERMANENT, TRANSIENT, UNKNOWN, Messages, Sender
from capline.model.errors import CampaignError, CaplineError

AWS = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
KILLS = size(1, 1, 4)


@pytest.fixture
def as_aws() -> Generator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for name, value in AWS.items():
            patched.setenv(name, value)
        yield


@pytest.fixture(params=KINDS)
def far(request: pytest.FixtureRequest, as_aws: None) -> Generator[Queue]:
    with queue(request.param) as made:
        yield made


def opened(tmp_path: Path, text: str) -> Sender:
    sender = build(tmp_path, text)
    sender.open(RUN)
    return sender


def test_each_message_is_put_once_by_its_subject_with_its_key(far: Queue, tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write(sender=far.sender)
    report = answer("campaign", "run", site.file)
    found = far.found()
    assert report["total"]["sent"] == len(found) == 400
    assert {each.key: each.subject for each in found} == {
        f"summer-sale/{report['run']}/{number}": str(number) for number in range(400)
    }
    assert found[0].data.keys() == {"campaign", "run", "key", "id", "segment", "channel", "fields"}
    assert all(each.data["key"] == each.key and str(each.data["id"]) == each.subject for each in found)
    partitions = Counter(each.partition for each in found)
    assert len(partitions) == (400 if "sqs" in far.sender else 4)
    assert max(partitions.values()) < 200


def test_what_is_for_one_subject_stays_in_one_partition_and_in_order(far: Queue, tmp_path: Path) -> None:
    sender = opened(tmp_path, far.sender)
    texts = Messages(RUN, 0, np.array(["ä \u2028", "b" * 200, "c"], object), np.zeros(3, np.uint16), (None,), {})
    for name in ("one", "two", "three"):
        run = type(RUN)(name, "r1", None, ())
        assert sender.send(Messages(run, 0, texts.ids, texts.codes, (None,), {})).codes.tolist() == [DELIVERED] * 3
    sender.close()
    found = far.found()
    for subject in texts.ids.tolist():
        of_one = [each for each in found if each.subject == subject]
        assert [each.data["campaign"] for each in of_one] == ["one", "two", "three"]
        assert len({each.partition for each in of_one}) == 1


def test_a_queue_that_hangs_leaves_in_doubt_what_it_may_have_and_gets_it_by_the_same_keys(
    far: Queue, tmp_path: Path
) -> None:
    sender = opened(tmp_path, far.sender)
    assert sender.send(messages(*range(100))).codes.tolist() == [DELIVERED] * 100
    hasty = opened(tmp_path, far.hasty)
    far.pause()
    second = messages(*range(100, 200))
    hung = hasty.send(second)
    assert set(hung.codes.tolist()) == {UNKNOWN}
    assert all(hung.reasons.values())
    far.resume()
    until = time.monotonic() + 60
    while set(sender.send(second).codes.tolist()) != {DELIVERED}:
        assert time.monotonic() < until, "it does not come back"
    sender.close()
    hasty.close()
    times = Counter(each.key for each in far.found())
    first, both = messages(*range(100)).keys(), messages(*range(200)).keys()
    assert times.keys() == {*both}
    assert {times[key] for key in first} == {1}
    if "sqs" in far.sender:
        assert set(times.values()) == {1}, "a FIFO queue has each key once"


def test_killed_while_it_sends_it_forgets_nobody_and_sends_again_by_the_same_keys(far: Queue, tmp_path: Path) -> None:
    site = Site(tmp_path)
    subjects, batch = 400 + 200 * KILLS, 100
    site.audience(range(subjects))
    site.write(sender=far.sender, batch=str(batch), as_of=None, rate="300/s")  # else it is over before it is killed
    doubled = 0
    for kill in range(KILLS):
        process = forked.start("campaign", "run", site.file, env=environment())
        until = time.monotonic() + 60
        while len(far.found()) <= (kill + 1) * 200:
            assert process.poll() is None, "it was over before it was killed"
            assert time.monotonic() < until
            time.sleep(0.1)
        process.kill()
        process.communicate()
        doubled += batch
    report = answer("campaign", "run", site.file)
    assert report["total"]["sent"] == subjects
    times = Counter(each.key for each in far.found())
    assert times.keys() == {f"summer-sale/{report['run']}/{number}" for number in range(subjects)}
    assert times.total() - subjects <= (0 if "sqs" in far.sender else doubled)


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_not_there_ends_it_before_anything_is_consumed(kind: str, as_aws: None, tmp_path: Path) -> None:
    port = free_port()
    texts = {
        "redis_streams": f"{{redis_streams: 'redis://127.0.0.1:{port}', stream: shop, timeout: 0.5}}",
        "kafka": f"{{kafka: '127.0.0.1:{port}', topic: shop, timeout: 0.5}}",
        "sqs": f"{{sqs: 'http://127.0.0.1:{port}/1/shop', timeout: 0.5}}",
    }
    sender = build(tmp_path, texts[kind])
    with pytest.raises(CampaignError, match=f"^sender {kind}: .*; nothing of sale was sent$") as raised:
        sender.open(RUN)
    assert "\n" not in str(raised.value)
    sender.close()


def test_a_redis_that_is_full_refuses_for_now_and_a_key_of_another_kind_for_good(tmp_path: Path) -> None:
    with single("redis") as server:
        sender = opened(tmp_path, f"{{redis_streams: '{server.url}', stream: shop}}")
        server.command("CONFIG", "SET", "maxmemory", "1")
        full = sender.send(messages(1, 2))
        assert (full.codes.tolist(), "memory is full" in full.reasons[0]) == ([TRANSIENT, TRANSIENT], True)
        server.command("CONFIG", "SET", "maxmemory", "0")
        assert sender.send(messages(1)).codes.tolist() == [DELIVERED]
        server.command("DEL", "shop")
        server.command("SET", "shop", "x")
        assert sender.send(messages(1)).codes.tolist() == [PERMANENT]
        sender.close()
        again = build(tmp_path, f"{{redis_streams: '{server.url}', stream: shop}}")
        with pytest.raises(CampaignError, match="shop is a string, not a stream"):
            again.open(RUN)
        again.close()


def test_a_record_that_is_too_large_fails_alone(tmp_path: Path) -> None:
    with queue("kafka") as far:
        sender = opened(tmp_path, far.sender)
        sent = sender.send(messages(1, 2, 3, emails=["a", "b" * 1_100_000, "c"]))
        sender.close()
        assert (sent.codes.tolist(), sent.reasons) == ([0, PERMANENT, 0], {1: "Kafka MSG_SIZE_TOO_LARGE"})
        assert sorted(each.subject for each in far.found()) == ["1", "3"]


def test_a_plain_sqs_queue_takes_large_messages_by_themselves_and_refuses_alone_what_is_too_large(
    as_aws: None, tmp_path: Path
) -> None:
    with queue("sqs", fifo=False) as far:
        sender = opened(tmp_path, far.sender)
        sizes = [200_000] * 12 + [1_100_000] + [10] * 12
        sent = sender.send(messages(*range(25), emails=["x" * length for length in sizes]))
        sender.close()
        assert [row for row, code in enumerate(sent.codes.tolist()) if code != DELIVERED] == [12]
        assert sent.codes[12] == PERMANENT
        assert len(far.found()) == 24


@pytest.mark.parametrize(
    ("status", "said", "code", "wait_s"),
    [
        (400, {"__type": "com.amazonaws.sqs#RequestThrottled"}, TRANSIENT, 7.0),
        (503, {"__type": "ServiceUnavailable"}, TRANSIENT, 7.0),
        (500, {"__type": "InternalError"}, UNKNOWN, 7.0),
        (403, {"__type": "AccessDenied"}, PERMANENT, 7.0),
        (200, {"Failed": [{"Id": "0", "Code": "ThrottlingException", "SenderFault": True}]}, TRANSIENT, 1.0),
        (200, {"Failed": [{"Id": "0", "Code": "InvalidMessageContents", "SenderFault": True}]}, PERMANENT, 0.0),
        (200, {"Failed": [{"Id": "0", "Code": "InternalError", "SenderFault": False}]}, UNKNOWN, 0.0),
        (200, {"Successful": []}, UNKNOWN, 0.0),
    ],
)
def test_what_sqs_answers_is_understood(
    status: int, said: dict[str, Any], code: int, wait_s: float, as_aws: None, tmp_path: Path
) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            action = self.headers["X-Amz-Target"].partition(".")[2]
            asked.append(action)
            is_send = action == "SendMessageBatch"
            body = json.dumps(said if is_send else {"Attributes": {}}).encode()
            self.send_response(status if is_send else 200)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Retry-After", "7")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        sender = opened(tmp_path, f"{{sqs: 'http://127.0.0.1:{server.server_port}/1/shop'}}")
        sent = sender.send(messages(5))
        sender.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert (sent.codes.tolist(), sent.wait_s) == ([code], wait_s)
    assert asked.count("SendMessageBatch") == 1, "the client tries once: what became of it is judged here"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{redis_streams: 'http://x', stream: s}", "redis://"),
        ("{redis_streams: 'redis://u:secret@h:1/zz', stream: s}", "url"),
        ("{redis_streams: '${NO_SUCH_URL}', stream: s}", "NO_SUCH_URL"),
        ("{redis_streams: 'redis://h', stream: s, partitions: 0}", "partitions"),
        ("{redis_streams: 'redis://h'}", "stream"),
        ("{kafka: 'h:1'}", "topic"),
        ("{kafka: 'h:1', topic: t, settings: {acks: '1'}}", "acks is set by this sender"),
        ("{kafka: 'h:1', topic: t, settings: {sasl.password: '${NO_SUCH_WORD}'}}", "NO_SUCH_WORD"),
        ("{sqs: shop}", "it is not a queue's URL like https://sqs."),
        ("{sqs: 'https://sqs.eu-central-1.amazonaws.com/1/shop', threads: 3}", "threads"),
    ],
)
def test_options_that_cannot_be_used_are_named(text: str, said: str, tmp_path: Path) -> None:
    site = Site(tmp_path)
    with pytest.raises(CaplineError, match=r"sender") as raised:
        load_campaign(site.write(sender=text))
    assert said in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_cluster_takes_streams_in_all_its_slots(tmp_path: Path) -> None:
    from tests.kit.servers import shared  # noqa: PLC0415 - three seconds, where this test runs

    nodes = shared("redis", "cluster")
    sender = opened(tmp_path, f"{{redis_streams: '{nodes.url}', stream: of-{tmp_path.name}, partitions: 8}}")
    assert sender.send(messages(*range(200))).codes.tolist() == [DELIVERED] * 200
    sender.close()
