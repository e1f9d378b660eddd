"""What `capline up` starts, by which commands and in which order: a pure function of what is installed here.

    1  Redis Cluster 3+3, Redis for campaigns, S3 server, receiver, two payment providers
    2  the cluster's slots and replicas; the first segments
    3  the policies, set in the configuration store
    4  two services, two campaign workers, two payment consumers, the employees API
    5  nginx, Prometheus
    6  traffic

A stage begins when all of the one before it answers. What is missing is named with what to install, and most has a
replacement: an embedded store for the cluster, a file for the campaigns, a directory for the S3 server, the first
service for nginx.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from capline.up import files
from capline.up.files import SMALL, Scale
from capline.up.ports import HOST

PORTS = 28
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
_FILE = "sqlite://{}/campaigns.sqlite"


class Programs(msgspec.Struct, frozen=True):
    """Where each program is; None where it is missing."""

    redis: str | None = None
    redis_cli: str | None = None
    nginx: str | None = None
    prometheus: str | None = None
    s3: tuple[str, ...] = ()
    examples: str | None = None


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
    stage: int = 0


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
    """What is installed; examples and the S3 server of the tests where `here` is the repository."""

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
        examples=str(here / "examples") if (here / "examples" / "payments").is_dir() else None,
    )


def plan(programs: Programs, folder: Path, ports: Sequence[int], scale: Scale = SMALL) -> Plan:
    """The plan for this directory and these ports; `PORTS` of them."""
    return _Maker(programs, folder, ports, scale).plan()


class _Maker:
    def __init__(self, programs: Programs, folder: Path, ports: Sequence[int], scale: Scale) -> None:
        self._programs, self._folder, self._scale = programs, folder, scale
        self._ports = iter(ports)
        self._stage = 0
        self._files: dict[str, str] = {}
        self._parts: list[Part] = []
        self._missing: list[Missing] = []
        self._environment: dict[str, str] = {}

    def plan(self) -> Plan:
        redis = self._programs.redis is not None and self._programs.redis_cli is not None
        if not redis:
            instead = "an embedded store for the cluster, a file for the campaigns"
            self._missing.append(Missing("redis-server and redis-cli", "apt-get install redis-server", instead))
        nodes = [self._redis(f"cluster-{number + 1}", cluster=True) for number in range(NODES if redis else 0)]
        queue = f"redis://{HOST}:{self._redis('campaigns', cluster=False)}/0" if redis else _FILE.format(self._folder)
        segments = self._s3()
        receiver = next(self._ports)
        self._module("receiver", str(receiver), ready=f"tcp:{receiver}", where=f"http://{HOST}:{receiver}")
        providers = self._providers()
        self._stage += 1
        store = self._cluster(nodes) if redis else f"lmdb://{self._folder}/store"
        where = f"a version a minute, to {segments}"
        self._module("publisher", segments, "published", self._scale.name, ready="published", where=where)
        self._stage += 1
        self._files["policies.yaml"] = files.policies_yaml(replicas=REPLICAS if redis else 0, scale=self._scale)
        words = (*_CLI, "config", "set", "policies.yaml", "--store", store, "--who", "up")
        self._add(Part("policies", words, once=True))
        self._stage += 1
        services, admins = self._services(store, segments, queue)
        self._files["console.url"] = f"http://{HOST}:{admins[0]}"
        workers = self._workers(queue)
        self._payments(store, providers)
        employees = self._employees(store)
        self._stage += 1
        front = self._nginx(services)
        self._prometheus(admins, workers)
        self._stage += 1
        self._files["users.csv"] = files.users_csv(self._scale)
        self._files["campaigns.json"] = files.campaigns_json(store, segments, receiver, self._scale)
        orders = "orders.sqlite" if providers else ""
        where = f"{RATE} requests a second, a campaign every two minutes"
        self._module("traffic", f"http://{HOST}:{front}", str(RATE), employees, orders, where=where)
        tries = _tries(f"http://{HOST}:{front}", self._folder, receiver, employees)
        return Plan(self._files, tuple(self._parts), tuple(self._missing), tries)

    def _cluster(self, ports: Sequence[int]) -> str:
        addresses = [f"{HOST}:{port}" for port in ports]
        words = [self._programs.redis_cli or "", "--cluster", "create", *addresses]
        words += ["--cluster-replicas", str(REPLICAS), "--cluster-yes"]
        self._add(Part("cluster-slots", tuple(words), once=True))
        self._stage += 1
        # A hit counts when a replica has it, so each primary has to have one first: the first nodes are the primaries.
        primaries = [str(port) for port in ports[: NODES // (1 + REPLICAS)]]
        words = ["/bin/sh", "-c", _HAVE_REPLICAS, self._programs.redis_cli or "", *primaries]
        self._add(Part("cluster-replicas", tuple(words), once=True))
        return f"redis+cluster://{','.join(addresses)}?deadline=2s"

    def _redis(self, name: str, *, cluster: bool) -> int:
        port = next(self._ports)
        self._files[f"{name}/redis.conf"] = files.redis_conf(port, cluster=cluster)
        words = (self._programs.redis or "", f"{self._folder}/{name}/redis.conf", "--dir", f"{self._folder}/{name}")
        self._add(Part(name, words, f"tcp:{port}", pause_s=SERVER_PAUSE_S, where=f"redis://{HOST}:{port}"))
        return port

    def _s3(self) -> str:
        if not self._programs.s3:
            instead = "segments are published in a directory"
            self._missing.append(Missing("an S3 server (ministack)", "pip install ministack", instead))
            return f"{self._folder}/segments"
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
        return "s3://segments/up"

    def _providers(self) -> list[dict[str, str]]:
        if self._programs.examples is None:
            instead = "no payments and no employees API"
            self._missing.append(Missing("examples/ of the repository", "clone it, and start there", instead))
            return []
        found: list[dict[str, str]] = []
        for name, limit in files.PROVIDERS.items():
            port = next(self._ports)
            program = f"{self._programs.examples}/payments/provider.py"
            words = (sys.executable, program, f"{name}={limit}@{port}", "--calls", f"{name}.calls")
            url = f"http://{HOST}:{port}"
            self._add(Part(name, words, f"tcp:{port}", where=f"{url}/stats, strictly {limit} s"))
            found.append({"name": name, "limit": f"{limit}s", "jitter": files.JITTER, "url": url})
        return found

    def _payments(self, store: str, providers: list[dict[str, str]]) -> None:
        described = msgspec.json.encode(providers).decode()
        for number in (1, 2) if providers else ():
            words = [sys.executable, f"{self._programs.examples}/payments/worker.py", "--store", store]
            words += ["--config", store, "--orders", "orders.sqlite", "--providers", described, "--lease", "10"]
            where = "charges orders of orders.sqlite"
            self._add(Part(f"payments-{number}", tuple(words), "orders.sqlite", where=where))

    def _employees(self, store: str) -> str:
        """Where the employees API is; "" where it is missing."""
        if self._programs.examples is None:
            return ""
        port = next(self._ports)
        words = (sys.executable, "-m", "uvicorn", "--app-dir", f"{self._programs.examples}/web", "--host", HOST)
        words += ("--port", str(port), "--no-proxy-headers", "--no-access-log", "employees:app")
        settings = {"EMPLOYEES_STORE": store, "EMPLOYEES_CONFIG": store}
        url = f"http://{HOST}:{port}/employees"
        self._add(Part("employees", words, f"{url}/1", environment=settings, where=f"{url}/1"))
        return url

    def _services(self, store: str, segments: str, queue: str) -> tuple[list[int], list[int]]:
        proxies = int(self._programs.nginx is not None)
        self._files["capline.yaml"] = files.service_yaml(store, segments, queue, proxies=proxies)
        self._files["ratelimit/edge.yaml"] = files.ratelimit_yaml()
        services, admins, grpcs = ([next(self._ports), next(self._ports)] for _ in range(3))
        for number, (service, admin, grpc) in enumerate(zip(services, admins, grpcs, strict=True), 1):
            words = (*_CLI, "serve", "--config", "capline.yaml", "--envoy", "ratelimit")
            words += ("--listen", f"{HOST}:{service}", "--admin", f"{HOST}:{admin}", "--grpc", f"{HOST}:{grpc}")
            where = f"http://{HOST}:{service}, Envoy's gRPC at {HOST}:{grpc}, console at http://{HOST}:{admin}/console"
            self._add(Part(f"service-{number}", words, f"http://{HOST}:{service}/healthz", where=where))
        return services, admins

    def _workers(self, queue: str) -> list[int]:
        ports = [next(self._ports), next(self._ports)]
        for number, port in enumerate(ports, 1):
            words = (*_CLI, "worker", "--queue", queue, "--metrics", f"{HOST}:{port}", "--takeover", str(TAKEOVER_S))
            where = f"campaigns of {queue}, metrics at http://{HOST}:{port}/metrics"
            self._add(Part(f"worker-{number}", words, f"tcp:{port}", where=where))
        return ports

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
        environment = part.environment or self._environment
        part = msgspec.structs.replace(part, environment=dict(environment), stage=self._stage)
        self._parts.append(part)


def _tries(front: str, folder: Path, receiver: int, employees: str) -> tuple[tuple[str, str], ...]:
    curl = f"curl -sS -H @{folder}/you.header"
    api = '\'{"policy": "api", "subject": "you", "cost": 5}\''
    mine = '\'{"limits": ["40/minute"], "who": "you"}\''
    path = '\'{"domain": "edge", "descriptors": [{"entries": [{"key": "path", "value": "/a"}]}]}\''
    fifth = (
        ("an employee; 10 a minute, and refused attempts count too", f"curl -sS -H 'X-Api-Key: you' {employees}/7")
        if employees
        else ("what Envoy asks by gRPC, as JSON", f"{curl} {front}/json --json {path}")
    )
    return (
        ("5 units of 20/minute; type it again until it is refused", f"{curl} {front}/v1/decide --json {api}"),
        (
            "40/minute for you alone, in force everywhere in 2 s",
            f"{curl} -X PUT {front}/v1/overrides/api/you --json {mine}",
        ),
        ("why was user 250 refused, and when are they free", f"{curl} {front}/v1/subjects/i:250"),
        ("what the campaigns sent, and the receiver got", f"curl -sS http://{HOST}:{receiver}/"),
        fifth,
    )
