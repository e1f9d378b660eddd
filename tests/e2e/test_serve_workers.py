"""`capline serve` in several processes: one port, exact together, one of them killed, all of them ended."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from tests.kit import servers
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving

from capline.service.access.tokens import TokenFile
from capline.service.envoy.messages import OK, OVER_LIMIT, SERVICE, part, rls

grpc = part("grpc")

POLICIES = "policies:\n  promo: {limits: [3/day]}\n  wide: {limits: [50/day]}\n"


@pytest.fixture(autouse=True)
def _policies(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(POLICIES, encoding="utf-8")


def metrics(service: Serving) -> str:
    return httpx.get(f"{service.admin}/metrics", trust_env=False, timeout=WITHIN_S).text


def workers(service: Serving) -> set[int]:
    return {int(pid) for pid in re.findall(r'capline_process_up\{pid="(\d+)",role="http"\} 1\.0', metrics(service))}


def decided(service: Serving) -> float:
    found = re.findall(r'^capline_decisions_total\{.*verb="decide".*\} (\S+)$', metrics(service), re.MULTILINE)
    return sum(map(float, found))


def ask(url: str) -> bool | None:
    """Whether it was allowed; None where the worker that was asked was killed meanwhile."""
    connection = HTTPConnection(url.removeprefix("http://"), timeout=WITHIN_S)  # one each: any worker may take it
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/decide", b'{"policy":"wide","subject":7}', headers)
        return json.loads(connection.getresponse().read())["allowed"]
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def test_workers_count_together_and_one_that_is_killed_is_replaced(tmp_path: Path) -> None:
    with Serving(tmp_path, "--workers", "2") as service:
        first = workers(service)
        assert len(first) == 2
        with ThreadPoolExecutor(8) as callers:
            before = [ask(service.url) for _ in range(20)]
            killed = min(first)
            os.kill(killed, signal.SIGKILL)
            after = list(callers.map(ask, [service.url] * 60))
        answers = before + after
        allowed, unknown = answers.count(True), answers.count(None)
        assert 50 - unknown <= allowed <= 50, answers
        assert answers.count(False) >= 80 - 50 - unknown
        assert soon(lambda: len(workers(service)) == 2 and killed not in workers(service), WITHIN_S)
        assert decided(service) >= 80 - unknown, "what the killed one had counted is kept"
        for name in ("process_resident_memory_bytes", "process_cpu_seconds_total"):
            assert len(re.findall(rf'^{name}\{{pid="\d+"\}} ', metrics(service), re.MULTILINE)) == 3
        assert soon(lambda: any(f"worker {killed} ended with status -9" in line for line in service.said), WITHIN_S)
        found = workers(service)
        assert service.stop() == 0
        assert soon(lambda: not any(_lives(pid) for pid in found), WITHIN_S)


@pytest.mark.deep
def test_workers_answer_haproxy_on_one_port(tmp_path: Path) -> None:
    port = servers.free_port()
    hello = b"\0\0\0\7\1\0\0\0\1\0\0"
    with Serving(tmp_path, "--workers", "2", "--spoe", f"127.0.0.1:{port}") as service:
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", port), WITHIN_S) as client:
                client.sendall(hello)
                assert client.recv(5)[4] == 101, "the agent's hello"
        assert service.stop() == 0


@pytest.mark.deep
def test_all_workers_reload_or_none(tmp_path: Path) -> None:
    policies = tmp_path / "policies.yaml"
    with Serving(tmp_path, "--workers", "2") as service:

        def limits() -> set[str]:
            found: set[str] = set()
            for _ in range(12):  # a connection each, so that both are asked
                answer = httpx.get(f"{service.url}/v1/policies", trust_env=False, timeout=WITHIN_S)
                found.add(answer.json()["policies"][0]["limits"][0])
            return found

        assert limits() == {"3/day"}
        policies.write_text(POLICIES.replace("3/day", "5/day"), encoding="utf-8")
        service.process.send_signal(signal.SIGHUP)
        assert soon(lambda: limits() == {"5/day"}, WITHIN_S)
        policies.write_text(POLICIES.replace("3/day", "x/day"), encoding="utf-8")
        assert soon(lambda: 'capline_reload_refused{what="policies"} 1.0' in metrics(service), WITHIN_S)
        assert soon(lambda: any("not reloaded" in line for line in service.said), WITHIN_S)
        assert limits() == {"5/day"}
        policies.write_text(POLICIES.replace("3/day", "7/day"), encoding="utf-8")
        assert soon(lambda: limits() == {"7/day"}, WITHIN_S)
        assert soon(lambda: 'capline_reload_refused{what="policies"} 0.0' in metrics(service), WITHIN_S)
        assert service.stop() == 0


@pytest.mark.deep
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    with Serving(tmp_path, "--workers", "2") as service:
        found = workers(service)
        service.process.kill()
        assert soon(lambda: not any(_lives(pid) for pid in found), WITHIN_S)


@pytest.mark.deep
def test_one_that_is_told_to_end_before_it_listens_leaves_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "capline.cli", "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([*words, "--workers", "2"], cwd=tmp_path, env=own, stderr=subprocess.PIPE) as service:
        assert soon(lambda: any(tmp_path.glob("capline-metrics-*")), WITHIN_S)
        service.send_signal(signal.SIGTERM)
        _, said = service.communicate(timeout=WITHIN_S)
    assert (service.returncode, said) == (0, b"")
    assert not [*tmp_path.glob("capline-metrics-*")]


@pytest.mark.deep
def test_what_one_worker_cannot_start_with_is_the_services_error(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text("policies: {p: {limits: [x]}}", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"policies\.yaml:1: "):
        Serving(tmp_path, "--workers", "2")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.deep
def test_workers_answer_envoy_by_tls_on_one_port(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text(
        "domain: edge\ndescriptors: [{key: path, rate_limit: {unit: minute, requests_per_unit: 20}}]", encoding="utf-8"
    )
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    token = TokenFile(tmp_path / "tokens.json", create=True).create("envoy", ["decide"])
    port = servers.free_port()
    tls = {"certificate": "cert.pem", "key": "key.pem"}
    settings = {
        "tokens": "tokens.json",
        "http": {"workers": 2},
        "grpc": {"listen": f"0.0.0.0:{port}", "envoy": "edge.yaml", "tls": tls},
    }
    (tmp_path / "capline.yaml").write_text(json.dumps(settings), encoding="utf-8")
    asked = rls.RateLimitRequest(domain="edge", descriptors=[{"entries": [{"key": "path", "value": "/a"}]}])
    codes: list[int] = []
    with Serving(tmp_path, "--config", "capline.yaml") as service:
        for _ in range(25):  # a connection each: the kernel spreads them over the workers
            trusting = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
            with grpc.secure_channel(f"127.0.0.1:{port}", trusting) as channel:
                call = channel.unary_unary(
                    f"/{SERVICE}/ShouldRateLimit", response_deserializer=rls.RateLimitResponse.FromString
                )
                answer = call(
                    asked.SerializeToString(), metadata=[("authorization", f"Bearer {token}")], timeout=WITHIN_S
                )
                codes.append(answer.overall_code)
        assert service.stop() == 0
    assert (codes.count(OK), codes.count(OVER_LIMIT)) == (20, 5)


BROKEN = [
    *(("tokens.json", b"{"), ("edge.yaml", b"descriptors: ["), ("policies.yaml", b"policies: {")),
    ("policies.yaml", b"policies: {wide: {limits: []}}"),
    *(("cert.pem", b"none"), ("key.pem", b"none"), ("ca.pem", b"none"), ("key.pem", None)),
]


@pytest.mark.deep
def test_one_that_dies_while_a_file_is_broken_is_replaced_with_the_last_good(tmp_path: Path) -> None:
    edge = "domain: edge\ndescriptors: [{key: path, rate_limit: {unit: minute, requests_per_unit: 50}}]"
    (tmp_path / "edge.yaml").write_text(edge, encoding="utf-8")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    token = TokenFile(tmp_path / "tokens.json", create=True).create("all", ["admin"])
    port = servers.free_port()
    tls = {"certificate": "cert.pem", "key": "key.pem", "client_ca": "ca.pem"}
    settings = {
        "store": "lmdb://store",
        "tokens": "tokens.json",
        "http": {"workers": 2, "tls": tls},
        "admin": {"tls": tls},
        "grpc": {"listen": f"127.0.0.1:{port}", "envoy": "edge.yaml", "tls": tls},
    }
    (tmp_path / "capline.yaml").write_text(json.dumps(settings), encoding="utf-8")
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    issued.configure_cert(trusted)
    channel_of = grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(), issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()
    )
    asked = rls.RateLimitRequest(domain="edge", descriptors=[{"entries": [{"key": "path", "value": "/a"}]}])
    holder = {"Authorization": f"Bearer {token}"}

    def told(url: str, form: dict[str, Any] | None = None) -> str:
        """The answer, on a connection of its own; "" while nobody answers there."""
        method = "GET" if form is None else "POST"
        try:
            with httpx.Client(verify=trusted, trust_env=False, timeout=WITHIN_S, headers=holder) as client:
                return client.request(method, url, json=form).raise_for_status().text
        except httpx.TransportError:
            return ""

    def code() -> int:
        with grpc.secure_channel(f"127.0.0.1:{port}", channel_of) as channel:
            call = channel.unary_unary(
                f"/{SERVICE}/ShouldRateLimit", response_deserializer=rls.RateLimitResponse.FromString
            )
            sent = [("authorization", holder["Authorization"])]
            return call(asked.SerializeToString(), metadata=sent, timeout=WITHIN_S).overall_code

    def put(name: str, data: bytes | None) -> None:
        """Whole: it may be looked at in between."""
        if data is None:
            (tmp_path / name).unlink()
            return
        (tmp_path / "aside").write_bytes(data)
        (tmp_path / "aside").chmod(0o600)
        (tmp_path / "aside").replace(tmp_path / name)

    def processes() -> set[int]:
        found = re.findall(r'capline_process_up\{pid="(\d+)",role="\w+"\} 1\.0', told(f"{service.admin}/metrics"))
        return {int(pid) for pid in found}

    def refused() -> set[str]:
        """The values of the metric."""
        return set(re.findall(r"capline_reload_refused\{.*\} (\S+)", told(f"{service.admin}/metrics")))

    with Serving(tmp_path, "--config", "capline.yaml") as service:
        assert soon(lambda: len(processes()) == 3, WITHIN_S)
        for name, text in BROKEN:
            good = (tmp_path / name).read_bytes()
            put(name, text)
            for process in (gone := processes()):
                os.kill(process, signal.SIGKILL)
            assert soon(lambda gone=gone: len(processes() - gone) == 3, WITHIN_S), name
            assert json.loads(told(f"{service.url}/v1/decide", {"policy": "wide", "subject": 7}))["allowed"], name
            assert code() == OK, name
            assert soon(lambda: refused() == {"0.0", "1.0"}, WITHIN_S), f"{name}: it is told"
            put(name, good)
            assert soon(lambda: refused() == {"0.0"}, WITHIN_S), f"{name} is followed on"
        assert service.stop() == 0
