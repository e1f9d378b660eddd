"""A real Envoy with its rate limit filter before `capline serve`, against the same Envoy with the filter off.

One Envoy with one worker: a listener with the filter, one without, and behind both one that answers at once. Checked:
every answer is 200 and was counted, and of a path with 5 a day 5 are let through. Latencies, and the processor's
microseconds for a request of both processes, are those of each's best round.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from _harness import Report, arguments, check
from _load import Load, processor_seconds, run_load
from _servers import free_port, single
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVOY = Path(__file__).parents[1] / "build" / "envoy" / "bin" / "envoy"
SMALL = 5
FILE = f"""
domain: edge
descriptors:
  - {{key: path, rate_limit: {{unit: day, requests_per_unit: 4000000000}}}}
  - {{key: path, value: /small, rate_limit: {{unit: day, requests_per_unit: {SMALL}}}}}
"""
TYPES = "type.googleapis.com/envoy.extensions"
HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
PATH = {"request_headers": {"header_name": ":path", "descriptor_key": "path"}}
ROUTES: dict[str, dict[str, Any]] = {
    "on": {"route": {"cluster": "backend", "rate_limits": [{"actions": [PATH]}]}},
    "off": {"route": {"cluster": "backend"}},
    "backend": {"direct_response": {"status": 200, "body": {"inline_string": "ok"}}},
}
FILTER = {
    "name": "envoy.filters.http.ratelimit",
    "typed_config": {
        "@type": f"{TYPES}.filters.http.ratelimit.v3.RateLimit",
        "domain": "edge",
        "timeout": "5s",
        "failure_mode_deny": True,
        "rate_limit_service": {
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": "capline"}},
        },
    },
}
ROUTER = {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"}}
MOST = 100_000


def address(port: int) -> dict[str, Any]:
    """Of loopback."""
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def listener(name: str, port: int) -> dict[str, Any]:
    """One of the three."""
    routes = [{"match": {"prefix": "/"}, **ROUTES[name]}]
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "http_filters": [FILTER, ROUTER] if name == "on" else [ROUTER],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {"address": address(port), "filter_chains": [{"filters": filters}]}


def cluster(name: str, port: int, **more: Any) -> dict[str, Any]:
    """One address."""
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address(port)}}]}]
    bounds = {"max_requests": MOST, "max_connections": MOST, "max_pending_requests": MOST}
    return {
        "name": name,
        "load_assignment": {"cluster_name": name, "endpoints": endpoints},
        "circuit_breakers": {"thresholds": [bounds]},
        **more,
    }


def configuration(ports: Mapping[str, int], grpc_port: int) -> str:
    """Envoy's."""
    explicit: dict[str, Any] = {"explicit_http_config": {"http2_protocol_options": {}}}
    http2: dict[str, Any] = {HTTP: {"@type": f"type.googleapis.com/{HTTP}", **explicit}}
    return json.dumps(
        {
            "static_resources": {
                "listeners": [listener(name, port) for name, port in ports.items()],
                "clusters": [
                    cluster("capline", grpc_port, typed_extension_protocol_options=http2),
                    cluster("backend", ports["backend"]),
                ],
            }
        }
    )


def get(path: str) -> bytes:
    """A request."""
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def counted(service: Serving) -> float:
    """Descriptors that were answered OK, as the service counts them."""
    text = httpx.get(f"{service.admin}/metrics", timeout=WITHIN_S, trust_env=False).text
    found = re.findall(
        r'capline_envoy_descriptors_total\{domain="edge",outcome="ok",rule="edge.path"\} ([0-9.e+]+)', text
    )
    return sum(map(float, found))


def main() -> None:
    """Print the figures."""
    asked = arguments(__doc__, requests=20_000, connections=32, rounds=3, paths=100, store="memory://")
    check(ENVOY.exists(), "build/envoy is missing: bash tools/setup.sh test makes it")
    requests = [get(f"/{i % asked.paths}") for i in range(asked.requests)]
    loads: dict[str, list[Load]] = {"on": [], "off": []}
    service_us: list[float] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "policies.yaml").write_text("policies: {api: {limits: [3/hour]}}", encoding="utf-8")
        (folder / "edge.yaml").write_text(FILE, encoding="utf-8")
        store = stack.enter_context(single("redis")).url if asked.store == "redis" else asked.store
        words = ("--store", store, "--grpc", "127.0.0.1:0", "--envoy", "edge.yaml")
        service = stack.enter_context(Serving(folder, *words))
        told = re.compile("gRPC at port ([0-9]+)")
        check(soon(lambda: any(map(told.search, service.said)), WITHIN_S), "the service says no port of gRPC")
        grpc_port = next(int(found[1]) for line in service.said if (found := told.search(line)))
        ports = {name: free_port() for name in ROUTES}
        (folder / "envoy.json").write_text(configuration(ports, grpc_port), encoding="utf-8")
        command = [str(ENVOY), "-c", "envoy.json", "--disable-hot-restart", "--concurrency", "1", "-l", "error"]
        envoy = stack.enter_context(subprocess.Popen(command, cwd=folder))  # noqa: S603 - ours
        stack.callback(envoy.kill)
        client = stack.enter_context(httpx.Client(timeout=WITHIN_S, trust_env=False))
        check(soon(lambda: answers(client, ports["off"]), WITHIN_S), "Envoy does not start")
        small = [client.get(f"http://127.0.0.1:{ports['on']}/small").status_code for _ in range(2 * SMALL)]
        check(small == [200] * SMALL + [429] * SMALL, f"of {SMALL} a day were answered {small}")
        for _ in range(asked.rounds):
            for name, found in loads.items():
                before, spent = counted(service), processor_seconds(service.process.pid)
                found.append(run_load(ports[name], envoy.pid, asked.connections, requests, lambda body: body == b"ok"))
                if name == "on":
                    service_us.append((processor_seconds(service.process.pid) - spent) / asked.requests * 1e6)
                due = asked.requests if name == "on" else 0
                check(counted(service) - before == due, f"{counted(service) - before} were counted of {due}")
    report = Report(f"Envoy, its filter on and off: {asked.store}")
    best = {name: max(found, key=lambda load: load.rate) for name, found in loads.items()}
    for name, load in best.items():
        report.add(f"filter {name}: requests", load.rate, "requests/s")
        for share in (0.5, 0.99, 0.999):
            report.add(f"filter {name}: p{share * 100:g}", load.quantile(share) * 1000, "ms")
        report.add(f"filter {name}: Envoy's processor", min(one.processor_us for one in loads[name]), "us/request")
    report.add("filter on: the service's processor", min(service_us), "us/request")
    report.add("requests, on over off", best["on"].rate / best["off"].rate, "x")
    report.show(as_json=asked.json)


def answers(client: httpx.Client, port: int) -> bool:
    """Whether Envoy listens."""
    try:
        return client.get(f"http://127.0.0.1:{port}/").status_code == 200
    except httpx.HTTPError:
        return False


if __name__ == "__main__":
    main()
