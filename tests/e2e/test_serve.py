"""`capline serve` as an operator starts it and programs ask it: a real process, real sockets, real signals."""

import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
from tests.kit import servers
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving

from capline.service.envoy.messages import part

POLICIES = "policies:\n  promo: {limits: [3/day]}\n  wide: {limits: [50/day]}\n"

HEAD = b"POST /v1/decide HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n"


@pytest.fixture(autouse=True)
def _policies(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(POLICIES, encoding="utf-8")


def test_with_nothing_else_it_decides_and_keeps_what_it_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Serving(tmp_path) as service:
        assert soon(lambda: any("loopback only" in line for line in service.said), WITHIN_S)
        answer = service.ask("/v1/decide", policy="promo", subject="user:42")
        assert (answer.json()["remaining"], answer.headers["RateLimit"][:14]) == (2, '"promo-day";r=')
        assert service.client.get("/readyz").json() == {"status": "ok"}
        assert service.client.get("/metrics").status_code == 404
        with httpx.Client(base_url=service.admin, trust_env=False, timeout=WITHIN_S) as admin:
            assert admin.get("/healthz").status_code == admin.get("/readyz").status_code == 200
            elsewhere = admin.post("/v1/decide", json={"policy": "promo", "subject": "u"})
            assert (elsewhere.status_code, elsewhere.json()["detail"]) == (
                404,
                "there is nothing at this path; there are /healthz, /readyz, /metrics, /console",
            )
            metrics = admin.get("/metrics").text
        assert 'policy="promo",segment="",verb="decide",verdict="allowed"} 1.0' in metrics
        assert 'capline_store_logs{store="main"} 1.0' in metrics
        assert "process_resident_memory_bytes" in metrics
        assert service.stop() == 0
    monkeypatch.setenv("CAPLINE_DRAIN", "3600")
    with Serving(tmp_path) as service:
        assert service.ask("/v1/peek", policy="promo", subject="user:42").json()["remaining"] == 1
        assert service.stop(signal.SIGINT) == 0


def test_it_is_exact_however_many_ask_at_once(tmp_path: Path) -> None:
    with Serving(tmp_path, "--store", "memory://") as service, ThreadPoolExecutor(16) as callers:
        asked = [callers.submit(service.ask, "/v1/decide", policy="wide", subject=7) for _ in range(120)]
        assert sum(answer.result().json()["allowed"] for answer in asked) == 50
        assert service.stop() == 0


def test_what_is_under_way_is_finished(tmp_path: Path) -> None:
    body = b'{"policy":"promo","subject":"u"}'
    with Serving(tmp_path) as service:
        address = (service.client.base_url.host, service.client.base_url.port or 0)
        with socket.create_connection(address, WITHIN_S) as slow:
            slow.sendall(HEAD % (len(body), b"") + body[:10])
            assert service.client.get("/healthz").status_code == 200  # by now it has read the other's first bytes
            service.process.send_signal(signal.SIGTERM)
            assert soon(lambda: _refuses(address), WITHIN_S)
            time.sleep(0.5)  # where it did not wait for the rest, it has ended by now
            slow.sendall(body[10:])
            answer = b"".join(iter(lambda: slow.recv(65_536), b""))
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b'"remaining":2' in answer
        assert service.process.wait(WITHIN_S) == 0


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.deep)])
def test_told_to_end_it_is_not_ready_and_ends_connections_as_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    monkeypatch.setenv("CAPLINE_DRAIN", "3600")
    (tmp_path / "edge.yaml").write_text("domain: edge\ndescriptors: []\n", encoding="utf-8")
    envoy = f"127.0.0.1:{servers.free_port()}"
    words = ["--workers", workers, "--grpc", envoy, "--envoy", "edge.yaml"]
    with Serving(tmp_path, *words) as service, part("grpc").insecure_channel(envoy) as channel:
        body = b'{"policy":"wide","subject":"u"}'
        asked = {"/v1/decide": body, "/v1/schedule": body, "/readyz": None, "/v1/policies": None}
        idle = {path: HTTPConnection(service.url.removeprefix("http://"), timeout=WITHIN_S) for path in asked}

        def answered(path: str) -> tuple[int, bool]:
            """The status, and whether the connection ends with it; a kept one that is closed otherwise raises."""
            method = "POST" if asked[path] else "GET"
            idle[path].request(method, path, asked[path], {"Content-Type": "application/json"})
            answer = idle[path].getresponse()
            answer.read()
            return answer.status, answer.getheader("Connection") == "close"

        assert {path: answered(path) for path in asked} == dict.fromkeys(asked, (200, False))
        service.process.send_signal(signal.SIGTERM)
        assert soon(lambda: httpx.get(f"{service.admin}/readyz", trust_env=False).status_code == 503, WITHIN_S)
        for path in asked:
            expected = 503 if path == "/readyz" else 200
            assert soon(lambda path=path, expected=expected: answered(path) == (expected, True), WITHIN_S)
            assert soon(lambda path=path, expected=expected: answered(path) == (expected, True), WITHIN_S), "a new one"
        health, stub = (part(f"grpc_health.v1.{name}") for name in ("health_pb2", "health_pb2_grpc"))
        state = stub.HealthStub(channel).Check(health.HealthCheckRequest(), timeout=WITHIN_S)
        assert state.status == health.HealthCheckResponse.NOT_SERVING
        assert service.stop() == 0, "a second signal ends it at once"


def test_no_listener_takes_a_new_connection_while_one_ends(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text("domain: edge\ndescriptors: []\n", encoding="utf-8")
    haproxy, envoy = (("127.0.0.1", servers.free_port()) for _ in range(2))
    words = ["--spoe", f"127.0.0.1:{haproxy[1]}", "--grpc", f"127.0.0.1:{envoy[1]}", "--envoy", "edge.yaml"]
    with Serving(tmp_path, *words) as service:
        address = (service.client.base_url.host, service.client.base_url.port or 0)
        with socket.create_connection(address, WITHIN_S) as slow:
            slow.sendall(HEAD % (2, b"") + b"{")
            assert service.client.get("/healthz").status_code == 200  # by now it has read the other's first bytes
            assert not _refuses(haproxy)
            service.process.send_signal(signal.SIGTERM)
            assert soon(lambda: _refuses(haproxy) and _refuses(envoy), WITHIN_S)
            slow.sendall(b"}")
            answer = b"".join(iter(lambda: slow.recv(65_536), b""))
        assert answer.startswith(b"HTTP/1.1 422"), "the one under way was waited for"
        assert service.process.wait(WITHIN_S) == 0


def test_two_requests_of_one_packet_are_answered_in_turn(tmp_path: Path) -> None:
    body = b'{"policy":"promo","subject":"u"}'
    with Serving(tmp_path) as service:
        address = (service.client.base_url.host, service.client.base_url.port or 0)
        with socket.create_connection(address, WITHIN_S) as both:
            both.sendall(HEAD % (len(body), b"") + body + HEAD % (len(body), b"Connection: close\r\n") + body)
            answer = b"".join(iter(lambda: both.recv(65_536), b""))
        assert answer.count(b"HTTP/1.1 200 OK") == 2
        assert answer.index(b'"remaining":2') < answer.index(b'"remaining":1')


def test_a_server_that_comes_later(tmp_path: Path) -> None:
    with servers.single("redis") as server:
        server.kill()
        with Serving(tmp_path, "--store", server.url) as service:
            for answer in (
                service.client.get("/readyz"),
                httpx.get(f"{service.admin}/readyz", timeout=WITHIN_S, trust_env=False),
                service.ask("/v1/decide", policy="promo", subject="u"),
            ):
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
                assert answer.headers["content-type"] == "application/problem+json"
            assert service.client.get("/healthz").status_code == 200
            assert soon(lambda: "capline_store_up 0.0" in metrics(service), WITHIN_S)
            host = server.url.split("/")[2]
            assert soon(lambda: f'capline_server_up{{server="{host}",store="main"}} 0.0' in metrics(service), WITHIN_S)
            server.start()
            assert soon(lambda: "capline_store_up 1.0" in metrics(service), WITHIN_S)
            assert soon(lambda: service.client.get("/readyz").status_code == 200, WITHIN_S)
            assert service.ask("/v1/decide", policy="promo", subject="u").json()["remaining"] == 2
            many = service.ask("/v1/decide/batch", policy="promo", subjects=["u", 1]).json()
            assert (many["allowed"], many["remaining"]) == ([True, True], [1, 2])
            assert service.stop() == 0


def metrics(service: Serving) -> str:
    return httpx.get(f"{service.admin}/metrics", timeout=WITHIN_S, trust_env=False).text


def _refuses(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, WITHIN_S).close()
    except OSError:
        return True
    return False
