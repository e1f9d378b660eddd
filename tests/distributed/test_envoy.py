"""A real Envoy before `capline serve`: by the files of docs/howto/envoy.md, by TLS with those of deploy/kubernetes."""

import json
import re
import shutil
import signal
from pathlib import Path

import httpx
import pytest
import trustme
import yaml
from tests.kit import servers
from tests.kit.envoy import EnvoyService
from tests.kit.gateway import DOCS, Gateway
from tests.kit.http import Provider
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving

from capline.service.access.tokens import TokenFile

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
        ports = {8082: f"port_value: {grpc_port(service)}", 9000: f"port_value: {httpx.URL(provider.url).port}"}
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


def test_envoy_alone_by_a_unix_socket_is_told_headers_and_metadata(
    tmp_path: Path, envoy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No policy file; upstream's variables; and a header that Envoy makes of the dynamic metadata."""
    limit = "{unit: minute, requests_per_unit: 2}, metadata: {plan: free}"
    (tmp_path / "limits.yaml").write_text(f"domain: edge\ndescriptors: [{{key: path, rate_limit: {limit}}}]", "utf-8")
    for name, value in {"LIMIT_RESPONSE_HEADERS_ENABLED": "true", "LIMIT_LIMIT_HEADER": "X-Most"}.items():
        monkeypatch.setenv(name, value)
    words = ["--store", "memory://", "--grpc", "unix:envoy.sock", "--envoy", "limits.yaml"]
    with Provider() as provider, Serving(tmp_path, *words) as service:
        assert soon(lambda: any("by gRPC at unix:envoy.sock" in line for line in service.said), WITHIN_S)
        command = [envoy, "-c", "envoy.yaml", "--disable-hot-restart", "--concurrency", "1", "--log-level", "warn"]
        plan = "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:plan)%"
        domains = 'domains: ["*"]\n'
        addresses = {
            "socket_address: {address: 127.0.0.1, port_value: 8082}": f"pipe: {{path: {tmp_path}/envoy.sock}}",
            "port_value: 9000": f"port_value: {httpx.URL(provider.url).port}",
            domains: f'{domains}{" " * 22}response_headers_to_add: [{{header: {{key: x-plan, value: "{plan}"}}}}]\n',
        }
        with Gateway(tmp_path, "envoy.yaml", command, addresses, listen="port_value: 8000") as gateway:
            answers = [gateway.get("/a") for _ in range(3)]
            assert [answer.status_code for answer in answers] == [200, 200, 429]
            names = ("x-most", "ratelimit-remaining", "x-plan")
            assert [[answer.headers.get(name) for name in names] for answer in answers] == [
                ["2", "1", "free"],
                ["2", "0", "free"],
                ["2", "0", None],
            ]
        assert service.stop() == 0


@pytest.mark.parametrize("layout", ["single", "cluster"])
def test_as_many_descriptors_as_there_may_be_refuse_together_on_servers(tmp_path: Path, layout: str) -> None:
    limit = "rate_limit: {unit: day, requests_per_unit: 3}"
    (tmp_path / "edge.yaml").write_text(f"domain: edge\ndescriptors: [{{key: user, {limit}}}]", encoding="utf-8")
    each = [f"user={number}" for number in range(64)]
    with (
        servers.single("redis") if layout == "single" else servers.cluster("redis", replicas=0) as server,
        EnvoyService(tmp_path / "edge.yaml", server.url) as service,
    ):
        assert service.codes("user=63", hits_addend=2) == "++"
        assert service.codes(*each) == "+" * 65
        assert service.codes(*each) == "-" + "+" * 63 + "-"
        assert [status.limit_remaining for status in service.ask(*each).statuses] == [2] * 63 + [0]


def test_envoy_of_another_pod_asks_by_tls_and_with_its_token(tmp_path: Path, envoy: str) -> None:
    kubernetes = DOCS.parents[2] / "deploy" / "kubernetes"
    documents = yaml.safe_load_all((kubernetes / "envoy.yaml").read_text(encoding="utf-8"))
    data = {one["metadata"]["name"]: one["data"] for one in documents if one["kind"] == "ConfigMap"}
    (tmp_path / "policies.yaml").write_text("policies: {api: {limits: [3/hour]}}", encoding="utf-8")
    (tmp_path / "limits").mkdir()
    for name, text in data["capline-envoy"].items():
        (tmp_path / "limits" / name).write_text(text, encoding="utf-8")
    tokens = TokenFile(tmp_path / "tokens.json", create=True)
    bearer = {"CAPLINE_TOKEN": f"Bearer {tokens.create('envoy', ['decide'])}"}
    authority = certified(tmp_path, trustme.CA())
    settings = {
        "store": "memory://",
        "tokens": "tokens.json",
        "grpc": {"listen": "0.0.0.0:0", "envoy": "limits", "tls": {"certificate": "cert.pem", "key": "key.pem"}},
    }
    (tmp_path / "capline.yaml").write_text(json.dumps(settings), encoding="utf-8")
    with Provider() as provider, Serving(tmp_path, "--config", "capline.yaml") as service:
        addresses = {
            "filename: /etc/envoy-secret": f"filename: {tmp_path}",
            "address: capline-grpc, port_value: 8082": f"address: 127.0.0.1, port_value: {grpc_port(service)}",
            "address: backend, port_value: 9000": f"address: 127.0.0.1, port_value: {httpx.URL(provider.url).port}",
        }
        command = [envoy, "-c", "envoy.yaml", "--disable-hot-restart", "--concurrency", "1", "--log-level", "warn"]

        def started(environment: dict[str, str]) -> Gateway:
            text = data["envoy"]["envoy.yaml"]
            return Gateway(tmp_path, "envoy.yaml", command, addresses, "port_value: 8000", text, environment)

        with started(bearer) as gateway:
            assert [gateway.get("/a").status_code for _ in range(25)] == [200] * 20 + [429] * 5
        with started({"CAPLINE_TOKEN": "Bearer cap_envoy_0"}) as gateway:
            assert gateway.get("/b").status_code == 500
        certified(tmp_path, trustme.CA(), trusted=False)
        service.process.send_signal(signal.SIGHUP)
        assert soon(lambda: reloads(service) == 1, WITHIN_S)
        with started(bearer) as gateway:
            assert gateway.get("/c").status_code == 500, "it does not know who answers"
        certified(tmp_path, authority)
        assert soon(lambda: reloads(service) == 2, WITHIN_S)
        with started(bearer) as gateway:
            assert gateway.get("/c").status_code == 200
            tokens.revoke("envoy")
            assert soon(lambda: gateway.get("/c").status_code == 500, WITHIN_S)
        assert service.stop() == 0


def certified(folder: Path, authority: trustme.CA, *, trusted: bool = True) -> trustme.CA:
    """A certificate of this authority in the service's files; Envoy trusts it."""
    issued = authority.issue_cert("capline-grpc")
    if trusted:
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name, pem in (("cert.pem", issued.cert_chain_pems[0]), ("key.pem", issued.private_key_pem)):
        pem.write_to_path(str(folder / f"{name}.new"))
        (folder / f"{name}.new").replace(folder / name)
    return authority


def reloads(service: Serving) -> int:
    return sum("grpc.tls reloaded" in line for line in service.said)


def grpc_port(service: Serving) -> int:
    """Where it answers Envoy, as it says itself."""
    assert soon(lambda: any("by gRPC at port" in line for line in service.said), WITHIN_S)
    return next(int(found[1]) for line in service.said if (found := re.search("gRPC at port ([0-9]+)", line)))
