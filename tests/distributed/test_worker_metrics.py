"""`capline worker --metrics`: what a real worker tells while it works, and that it ends as it did without."""

import re
import signal
import subprocess
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry
from tests.kit.campaign import Site, answer, capline, command, environment, receiver
from tests.kit.server import soon
from tests.kit.servers import shared, single

from capline.campaign.queue.worker import Worker
from capline.campaign.stop import Stop
from capline.observe import PrometheusObserver


def test_what_a_worker_decides_is_observed(tmp_path: Path) -> None:
    site, registry = Site(tmp_path), CollectorRegistry()
    site.audience(range(40))
    url = shared("redis").url
    answer("campaign", "enqueue", site.write(campaign="observed"), "--queue", url)
    worker = Worker(url, Stop(), takeover_s=60, observers=[PrometheusObserver(registry)])
    try:
        worker.work(until_idle=True)
    finally:
        worker.close()
    names = {"verb": "decide_many", "policy": "promo", "segment": "active", "channel": "", "origin": "store"}
    allowed = registry.get_sample_value("capline_decisions_total", {**names, "limit": "3/day", "verdict": "allowed"})
    assert allowed == worker.report.sent == 40


@pytest.mark.deep
def test_a_worker_tells_of_itself_and_of_its_queue(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with single("redis") as server, receiver() as far:
        site.settings |= {"sender": f"{{webhook: {{url: '{far.url}', concurrency: 4}}}}"}
        answer("campaign", "enqueue", site.write(), "--queue", server.url)
        words = command("worker", "--queue", server.url, "--metrics", "127.0.0.1:0")
        with subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                found = re.fullmatch(r"metrics at (http://127\.0\.0\.1:\d+/metrics)\n", process.stderr.readline())
                assert found is not None

                def told() -> str:
                    return httpx.get(found[1], trust_env=False).text

                assert soon(lambda: 'capline_worker_batches_total{outcome="delivered"} 4.0' in told())
                assert soon(lambda: "capline_queue_campaigns 0.0" in told())
                text = told()
                assert "capline_queue_up 1.0" in text
                assert 'verb="decide_many",verdict="allowed"}' in text
                assert "process_resident_memory_bytes" in text
                server.kill()
                assert soon(lambda: "capline_queue_up 0.0" in told())
                process.send_signal(signal.SIGTERM)
                process.stderr.read()
                assert process.wait(60) == 128 + signal.SIGTERM
            finally:
                process.kill()


def test_an_address_that_is_not_of_loopback_is_one_line_and_2() -> None:
    done = capline("worker", "--queue", "redis://127.0.0.1:1", "--metrics", "0.0.0.0:9100")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "loopback only, like 127.0.0.1:9100" in done.stderr
