"""What metrics tell of a queue and its worker, on a real server; the rest is in tests/distributed."""

import threading

import httpx
import pytest
from prometheus_client import CollectorRegistry
from tests.kit.servers import single

from capline.campaign.queue import watch
from capline.campaign.queue.watch import CampaignDepth, QueueDepth, watching
from capline.campaign.queue.worker import WorkerReport
from capline.campaign.store.redis_store import RedisCampaignStore
from capline.campaign.store.server import Server as StoreServer
from capline.model.errors import CaplineError
from capline.observe.serving import new_registry, served
from capline.service.metrics.worker import WorkerMetrics


def depth(name: str) -> CampaignDepth:
    return CampaignDepth(name, age_s=60.0, waiting=3, leased=1, delivered=2, dead_letters=1, silent_s=0.5)


def batches(registry: CollectorRegistry, state: str) -> float | None:
    return registry.get_sample_value("capline_queue_batches", {"campaign": "a", "state": state})


def test_the_queue_is_what_was_shown_last_and_the_worker_what_it_is_now() -> None:
    registry, worked = CollectorRegistry(), WorkerReport("me")
    metrics = WorkerMetrics(worked, registry, (1, 5))
    assert registry.get_sample_value("capline_queue_up") == 0
    metrics.show(QueueDepth(1, [depth("a")]))
    worked.settled, worked.sent, worked.not_known = 2, 9, 1
    assert registry.get_sample_value("capline_queue_up") == 1
    assert [batches(registry, state) for state in ("waiting", "leased", "delivered", "dead_letter")] == [3, 1, 2, 1]
    assert registry.get_sample_value("capline_queue_age_seconds", {"campaign": "a"}) == 60
    assert registry.get_sample_value("capline_queue_silent_seconds", {"campaign": "a"}) == 0.5
    assert registry.get_sample_value("capline_worker_batches_total", {"outcome": "delivered"}) == 2
    assert registry.get_sample_value("capline_worker_recipients_total", {"outcome": "sent"}) == 9
    assert registry.get_sample_value("capline_worker_recipients_total", {"outcome": "not_known"}) == 1
    metrics.add("a", {"new": [3, 0, 1, 6]})
    metrics.add("a", {"new": [1, 1, 0, 3], "": [2, 0, 0, 1]})
    of = {"campaign": "a", "segment": "new"}
    within = [registry.get_sample_value("capline_campaign_delay_seconds_bucket", {**of, "le": le}) for le in ("1", "5")]
    assert within == [4, 5]
    assert registry.get_sample_value("capline_campaign_delay_seconds_count", of) == 6
    assert registry.get_sample_value("capline_campaign_delay_seconds_sum", of) == 9
    for number in range(100):
        metrics.add(f"c{number}", {})
    assert registry.get_sample_value("capline_campaign_delay_seconds_count", of) is None
    metrics.show(None)
    assert (registry.get_sample_value("capline_queue_up"), batches(registry, "waiting")) == (0, None)


def test_a_queue_is_looked_at_again_and_again_and_may_go_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY_S", 0.01)
    monkeypatch.setattr(watch, "MOST_CAMPAIGNS", 1)
    shown: list[QueueDepth | None] = []
    seen = threading.Condition()

    def show(queue: QueueDepth | None) -> None:
        with seen:
            shown.append(queue)
            seen.notify_all()

    with single("redis") as server, StoreServer(server.url) as connection, watching(server.url, show), seen:
        assert seen.wait_for(lambda: QueueDepth(0, []) in shown, 60)
        server.command("ZADD", "capline:campaigns", 1_000_000, "a")
        assert RedisCampaignStore(connection).ages_s()["a"] > 1e9
        server.command("HSET", "capline:{campaign:a}:run", "queued", 5, "settled", 2)
        server.command("ZADD", "capline:campaigns", 2_000_000, "b")
        assert seen.wait_for(lambda: (last := shown[-1]) is not None and last.campaigns == 2, 60)
        last = shown[-1]
        assert last is not None
        assert [(one.campaign, one.waiting, one.delivered) for one in last.oldest] == [("a", 3, 2)]
        server.kill()
        assert seen.wait_for(lambda: shown[-1] is None, 60)


def test_metrics_are_served_on_loopback_until_the_end() -> None:
    registry = new_registry()
    with served(registry, "127.0.0.1:0") as url:
        text = httpx.get(url, trust_env=False).text
        assert "process_resident_memory_bytes" in text
        # A page whose name was made to lead here.
        assert httpx.get(url, headers={"Host": "evil.example"}, trust_env=False).status_code == 421
        assert httpx.get(url, headers={"Host": "localhost"}, trust_env=False).status_code == 200
        with pytest.raises(CaplineError, match="in use"), served(registry, url.split("/")[2]):
            pass
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)


@pytest.mark.parametrize("address", ["", "9100", "localhost:9100", "127.0.0.1:65536", "127.0.0.1:x", "0.0.0.0:9100"])
def test_an_address_that_is_none_or_not_of_loopback_is_refused(address: str) -> None:
    with pytest.raises(CaplineError, match=r"127\.0\.0\.1"), served(new_registry(), address):
        pass
