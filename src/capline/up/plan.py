"""What `capline up` starts, by which commands and in which order: a pure function of what is installed here.

    Redis Cluster 3+3, its slots and replicas   Redis (the queue)        S3 server
    the policies, set in the configuration store
    publisher          ->  two services     ->  nginx  ->  traffic
    receiver           ->  worker           ->  the campaign, queued once
    Prometheus

Parts start in this order, each when the one before it answers. What is missing is named with what to install, and has a
replacement: an embedded store for the cluster, a directory for the S3 server, the first service for nginx. Without the
queue there is no campaign.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from capline.up import files
from capline.up.ports import HOST

PORTS = 20
"""How many ports a plan may need."""
NODES, REPLICAS = 6, 1
RATE = 20
"""Requests a second of `traffic`."""
TAKEOVER_S = 5
"""How soon the batch of a dead worker is taken over."""
SERVER_PAUSE_S = 10.0
"""The pause before a dead server is restarted, with what it had on disk: by then its replica, if any, serves."""

_CLI = (sys.executable, "-m", "capline.cli")
_HAVE_REPLICAS = f'for port; do test "$("$0" -p "$port" WAIT {REPLICAS} 1000)" -ge {REPLICAS} || exit 1; done'
_ANYBODY = "nobody"
"""The S3 server asks for a name and a secret, and checks neither."""
_SYSTEM = "/usr/sbin:/usr/local/sbin"


class Programs(msgspec.Struct, frozen=True):
    """Where each program is; None where it is missing."""

    redis: str | None = None
    redis_cli: str | None = None
    nginx: str | None = None
    prometheus: str | None = None
    s3: tuple[str, ...] = ()


class Part(msgspec.Struct, frozen=True):
    """A process. `ready` is what answers when it is up: tcp:PORT, a URL, or a file's name; "" for nothing.

    With `once` it is to end by itself with 0. `pause_s` is how long it stays away before it is started again.
    """

    name: str
    words: tuple[str, ...]
    ready: str = ""
    once: bool = False
    environment: dict[str, str] = {}
    pause_s: float = 1.0
    where: str = ""


class Missing(msgspec.Struct, frozen=True):
    """A program that is not here, and what is done without it."""

    program: str
    install: str
    instead: str


class Plan(msgspec.Struct, frozen=True):
    """Files by name, relative to the directory; parts in the order of their start; commands to try."""

    files: dict[str, str]
    parts: tuple[Part, ...]
    missing: tuple[Missing, ...]
    tries: tuple[tuple[str, str], ...]


def find_programs(here: Path) -> Programs:
    """What is installed; the S3 server of the repository's tests where `here` is the repository."""

    def find(*names: str) -> str | None:
        return next(
            (found for name in names for path in (None, _SYSTEM) if (found := shutil.which(name, path=path))), None
        )

    ministack = here / "build" / "ministack" / "bin" / "python"
    installed = find("ministack")
    s3 = (str(ministack), "-m", "ministack") if ministack.exists() else (installed,) if installed else ()
    return Programs(
        redis=find("redis-server", "valkey-server"),
        redis_cli=find("redis-cli", "valkey-cli"),
        nginx=find("nginx"),
        prometheus=find("prometheus"),
        s3=s3,
    )


def plan(programs: Programs, folder: Path, ports: Sequence[int]) -> Plan:
    """The plan for this directory and these ports; `PORTS` of them."""
    return _Maker(programs, folder, ports).plan()


class _Maker:
    def __init__(self, programs: Programs, folder: Path, ports: Sequence[int]) -> None:
        self._programs, self._folder = programs, folder
        self._ports = iter(ports)
        self._files: dict[str, str] = {}
        self._parts: list[Part] = []
        self._missing: list[Missing] = []
        self._environment: dict[str, str] = {}

    def plan(self) -> Plan:
        redis = self._programs.redis is not None and self._programs.redis_cli is not None
        if not redis:
            instead = "the embedded store for the cluster; no queue, so no campaign"
            self._missing.append(Missing("redis-server and redis-cli", "apt-get install redis-server", instead))
        store = self._cluster() if redis else f"lmdb://{self._folder}/store"
        queue = self._redis("queue", next(self._ports), cluster=False) if redis else None
        segments = self._segments()
        self._files["policies.yaml"] = files.policies_yaml(replicas=REPLICAS if redis else 0)
        words = (*_CLI, "config", "set", "policies.yaml", "--store", store, "--who", "up")
        self._add(Part("policies", words, once=True))
        services, admins = self._services(store, segments)
        front = self._nginx(services)
        receiver, workers = (None, []) if queue is None else self._campaign(queue, store, segments)
        self._prometheus(admins, workers)
        self._module("traffic", f"http://{HOST}:{front}", str(RATE), where=f"{RATE} requests a second, in traffic.log")
        tries = _tries(front, receiver)
        return Plan(self._files, tuple(self._parts), tuple(self._missing), tries)

    def _cluster(self) -> str:
        ports = [next(self._ports) for _ in range(NODES)]
        for number, port in enumerate(ports):
            self._redis(f"cluster-{number + 1}", port, cluster=True)
        addresses = [f"{HOST}:{port}" for port in ports]
        words = [self._programs.redis_cli or "", "--cluster", "create", *addresses]
        words += ["--cluster-replicas", str(REPLICAS), "--cluster-yes"]
        self._parts.append(Part("cluster-slots", tuple(words), once=True))
        # A hit counts when a replica has it, so each primary has to have one first: the first nodes are the primaries.
        primaries = [str(port) for port in ports[: NODES // (1 + REPLICAS)]]
        words = ["/bin/sh", "-c", _HAVE_REPLICAS, self._programs.redis_cli or "", *primaries]
        self._parts.append(Part("cluster-replicas", tuple(words), once=True))
        return f"redis+cluster://{','.join(addresses)}?deadline=2s"

    def _redis(self, name: str, port: int, *, cluster: bool) -> str:
        self._files[f"{name}/redis.conf"] = files.redis_conf(port, cluster=cluster)
        words = (self._programs.redis or "", f"{self._folder}/{name}/redis.conf", "--dir", f"{self._folder}/{name}")
        self._add(Part(name, words, f"tcp:{port}", pause_s=SERVER_PAUSE_S, where=f"redis://{HOST}:{port}"))
        return f"redis://{HOST}:{port}/0"

    def _segments(self) -> str:
        if not self._programs.s3:
            instead = "segments are published in a directory"
            self._missing.append(Missing("an S3 server (ministack)", "pip install ministack", instead))
            url = f"{self._folder}/segments"
        else:
            port = next(self._ports)
            settings = {"BIND_HOST": HOST, "MINISTACK_HOST": HOST, "GATEWAY_PORT": str(port), "SERVICES": "s3"}
            settings |= {"LOG_LEVEL": "WARNING", "AUTH": "false", "S3_DATA_DIR": f"{self._folder}/s3"}
            settings |= {"HOME": str(self._folder), "TMPDIR": str(self._folder), "PYTHONPATH": ""}
            self._add(Part("s3", self._programs.s3, f"tcp:{port}", environment=settings, where=f"http://{HOST}:{port}"))
            self._environment = {
                "AWS_ENDPOINT_URL": f"http://{HOST}:{port}",
                "AWS_ACCESS_KEY_ID": _ANYBODY,
                "AWS_SECRET_ACCESS_KEY": _ANYBODY,
                "AWS_REGION": "us-east-1",
            }
            url = "s3://segments/up"
        self._module("publisher", url, "published", ready="published", where=f"a version a minute, to {url}")
        return url

    def _services(self, store: str, segments: str) -> tuple[list[int], list[int]]:
        proxies = int(self._programs.nginx is not None)
        self._files["capline.yaml"] = files.service_yaml(store, segments, proxies=proxies)
        self._files["ratelimit/edge.yaml"] = files.ratelimit_yaml()
        services, admins, grpcs = ([next(self._ports), next(self._ports)] for _ in range(3))
        for number, (service, admin, grpc) in enumerate(zip(services, admins, grpcs, strict=True), 1):
            words = (*_CLI, "serve", "--config", "capline.yaml", "--envoy", "ratelimit")
            words += ("--listen", f"{HOST}:{service}", "--admin", f"{HOST}:{admin}", "--grpc", f"{HOST}:{grpc}")
            where = f"http://{HOST}:{service}, Envoy's gRPC at {HOST}:{grpc}, metrics at http://{HOST}:{admin}/metrics"
            self._add(Part(f"service-{number}", words, f"http://{HOST}:{service}/healthz", where=where))
        return services, admins

    def _nginx(self, services: Sequence[int]) -> int:
        if self._programs.nginx is None:
            instead = "the first service is asked directly"
            self._missing.append(Missing("nginx", "apt-get install nginx-light", instead))
            return services[0]
        port = next(self._ports)
        self._files["nginx/nginx.conf"] = files.nginx_conf(port, services)
        words = (self._programs.nginx, "-p", f"{self._folder}/nginx", "-c", "nginx.conf", "-e", "stderr")
        self._add(
            Part("nginx", words, f"http://{HOST}:{port}/healthz", where=f"http://{HOST}:{port}, before both services")
        )
        return port

    def _campaign(self, queue: str, store: str, segments: str) -> tuple[int, list[int]]:
        """The port where messages arrive, and those of the workers' metrics."""
        port, metrics = next(self._ports), next(self._ports)
        self._files["campaign.yaml"] = files.campaign_yaml(store, segments, port)
        self._files["users.csv"] = files.users_csv()
        self._module("receiver", str(port), ready=f"tcp:{port}", where=f"http://{HOST}:{port} shows what arrived")
        words = (*_CLI, "worker", "--queue", queue, "--metrics", f"{HOST}:{metrics}", "--takeover", str(TAKEOVER_S))
        where = f"queue {queue}, metrics at http://{HOST}:{metrics}/metrics"
        self._add(Part("worker", words, f"tcp:{metrics}", where=where))
        self._add(Part("campaign", (*_CLI, "campaign", "enqueue", "campaign.yaml", "--queue", queue), once=True))
        return port, [metrics]

    def _prometheus(self, services: Sequence[int], workers: Sequence[int]) -> None:
        if self._programs.prometheus is None:
            self._missing.append(Missing("prometheus", "apt-get install prometheus", "no graphs and no alerts"))
            return
        port = next(self._ports)
        self._files["prometheus.yml"] = files.prometheus_yaml(services, workers)
        self._files["alerts.yml"] = files.alerts_yaml()
        words = (self._programs.prometheus, "--config.file=prometheus.yml", "--storage.tsdb.path=prometheus")
        listen = f"--web.listen-address={HOST}:{port}"
        where = f"http://{HOST}:{port}, alerts at http://{HOST}:{port}/api/v1/alerts"
        self._add(Part("prometheus", (*words, listen), f"http://{HOST}:{port}/-/ready", where=where))

    def _module(self, name: str, *words: str, ready: str = "", where: str = "") -> None:
        self._add(Part(name, (sys.executable, "-m", f"capline.up.{name}", *words), ready, where=where))

    def _add(self, part: Part) -> None:
        environment: Mapping[str, str] = part.environment or self._environment
        self._parts.append(msgspec.structs.replace(part, environment=dict(environment)))


def _tries(front: int, receiver: int | None) -> tuple[tuple[str, str], ...]:
    base = f"http://{HOST}:{front}"
    api = '\'{"policy": "api", "subject": "you", "cost": 5}\''
    yours = f"{base}/v1/overrides/api/you"
    mine = '\'{"limits": ["40/minute"], "who": "you"}\''
    promo = '\'{"policy": "promo", "subject": 250}\''
    path = '\'{"domain": "edge", "descriptors": [{"entries": [{"key": "path", "value": "/a"}]}]}\''
    last = (
        ("how many users are active", f"curl -sS {base}/v1/segments/active/count")
        if receiver is None
        else ("what the campaign sent, and the receiver got", f"curl -sS http://{HOST}:{receiver}/")
    )
    return (
        ("5 units of 20/minute; type it again until it is refused", f"curl -sS {base}/v1/decide --json {api}"),
        ("40/minute for you alone, in force everywhere in 2 s", f"curl -sS -X PUT {yours} --json {mine}"),
        ("a message to a user, whose segment is looked up", f"curl -sS {base}/v1/decide --json {promo}"),
        ("what Envoy asks by gRPC, as JSON", f"curl -sS {base}/json --json {path}"),
        last,
    )
