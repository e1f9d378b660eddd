"""A real Envoy before `capline serve`, with the files of docs/envoy.md: statuses, headers, an outage."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import httpx
import pytest
from tests.kit.gateway import DOCS, Gateway
from tests.kit.http import Provider
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving

ENVOY = Path(__file__).parents[2] / "build" / "envoy" / "bin" / "envoy"

pytestmark = pytest.mark.deep


@pytest.fixture
def envoy() -> str:
    if not ENVOY.exists():
        pytest.skip("build/envoy is missing: bash tools/setup.sh test makes it")
    return str(ENVOY)


def test_envoy_asks_and_counts_as_it_is_reported(tmp_path: Path, envoy: str) -> None:
    (tmp_path / "policies.yaml").write_text("policies: {api: {limits: [3/hour]}}", encoding="utf-8")
    (tmp_path / "limits").mkdir()
    shutil.copy(DOCS / "ratelimit.yaml", tmp_path / "limits")
    words = ["--store", "memory://", "--grpc", "127.0.0.1:0", "--envoy", "limits"]
    with Provider() as provider, Serving(tmp_path, *words) as service:
        assert soon(lambda: any("by gRPC at port" in line for line in service.said), WITHIN_S)
        grpc_port = next(int(found[1]) for line in service.said if (found := re.search("gRPC at port ([0-9]+)", line)))
        ports = {8082: f"port_value: {grpc_port}", 9000: f"port_value: {httpx.URL(provider.url).port}"}
        command = [envoy, "-c", "envoy.yaml", "--disable-hot-restart", "--concurrency", "1", "--log-level", "warn"]
        addresses = {f"port_value: {shown}": real for shown, real in ports.items()}
        with Gateway(tmp_path, "envoy.yaml", command, addresses, listen="port_value: 8000") as gateway:
            answers = [gateway.get("/a") for _ in range(25)]
            assert [answer.status_code for answer in answers] == [200] * 20 + [429] * 5
            first, last = answers[0].headers, answers[-1].headers
            assert (first["x-ratelimit-limit"], first["x-ratelimit-remaining"]) == ("20, 20;w=60", "19")
            assert 0 < int(last["x-ratelimit-reset"]) <= 60
            assert last["x-ratelimit-remaining"] == "0"
            assert last["x-envoy-ratelimited"] == "true"
            assert {gateway.get("/two").status_code for _ in range(25)} == {200}
            assert {gateway.get("/shadow").status_code for _ in range(3)} == {200}
            assert len(provider.seen) == 20 + 25 + 3
            metrics = httpx.get(f"{service.admin}/metrics", timeout=WITHIN_S, trust_env=False).text
            for outcome, count in (("ok", 1), ("shadow", 2)):
                labels = f'{{domain="edge",outcome="{outcome}",rule="edge.shadow"}}'
                assert f"capline_envoy_descriptors_total{labels} {count}.0" in metrics
            form = {"domain": "edge", "descriptors": [{"entries": [{"key": "path", "value": "/a"}]}]}
            assert service.ask("/json", **form).status_code == 429
            assert service.stop() == 0
            assert gateway.get("/b").status_code == 500  # its own failure mode
