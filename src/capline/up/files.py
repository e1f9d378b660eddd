"""What the parts read, as text: made for the ports and the directory of this run."""

from collections.abc import Iterable, Sequence
from importlib import resources

import msgspec

from capline.model.limit import Limit
from capline.up.ports import HOST

USERS = 1000
"""How many the campaign of every two minutes goes to, and traffic asks for, at any scale."""
PROVIDERS = {"acme-pay": "40/2", "minipay": "6/2"}
"""What each provider allows: calls / seconds."""
JITTER = "1s"
"""By how much the way to a provider differs: other parts are started and killed on the same processors."""
TOKENS = {"you": ["admin"], "traffic": ["decide", "compose"], "prometheus": ["read"]}
"""Who may do what at the services; the secret of each is in NAME.token."""


class Scale(msgspec.Struct, frozen=True):
    """How many users there are, and how many of them get the blast; 0 for no blast."""

    name: str
    users: int
    blast: int = 0

    @property
    def segments(self) -> dict[str, range]:
        """The users: a fifth are new, half are active, the rest has lapsed."""
        new, active = self.users // 5, 7 * self.users // 10
        return {
            "new": range(1, new + 1),
            "active": range(new + 1, active + 1),
            "lapsed": range(active + 1, self.users + 1),
        }


SMALL, BIG = Scale("small", USERS), Scale("big", 20_000_000, 10_000_000)
SCALES = {scale.name: scale for scale in (SMALL, BIG)}


def policies_yaml(*, replicas: int, scale: Scale = SMALL) -> str:
    """The policies; where there are replicas a hit counts when one has it, so that a failover forgets nothing."""
    wait = f", wait_replicas: {replicas}" if replicas else ""
    promo = wait + (", layout: bucket" if replicas and scale.blast else "")
    providers = {
        name: ", ".join(map(str, Limit.margin(f"{limit}s", jitter=JITTER))) for name, limit in PROVIDERS.items()
    }
    return (
        "policies:\n"
        "  promo: {limits: [2/10 minutes, 20/day], "
        f"by_segment: {{new: [1/10 minutes, 10/day], active: [4/10 minutes, 40/day]}}{promo}}}\n"
        f"  api: {{limits: [20/minute]{wait}}}\n"
        f"  employees: {{limits: [10/minute], count_denied: true{wait}}}\n"
    ) + "".join(f"  {name}: {{limits: [{limits}]{wait}}}\n" for name, limits in providers.items())


def ratelimit_yaml() -> str:
    """Limits for Envoy, as envoyproxy/ratelimit has them: 20 a minute for each path."""
    return "domain: edge\ndescriptors:\n  - key: path\n    rate_limit: {unit: minute, requests_per_unit: 20}\n"


def service_yaml(store: str, segments: str, queue: str, *, proxies: int) -> str:
    """The settings that both services share; where each listens is in its options.

    The policies are in the configuration store, which is the logs' own.
    """
    return (
        f"store: {store}\nconfig: {store}\nsegments: {segments}\nqueue: {queue}\ntokens: tokens.json\n"
        "record: {keep: 3600}\n"
        f'drain: 0\nhttp: {{trusted_proxies: {proxies}}}\nobservers: {{access_log: "-", access_sample: 0.1}}\n'
    )


def campaigns_json(store: str, segments: str, receiver: int, scale: Scale) -> str:
    """What `traffic` begins: `hello` every two minutes, to the receiver; `blast` once, into files."""
    hello = {
        "policies": "policies.yaml",
        "policy": "promo",
        "store": store,
        "segments": segments,
        "audience": {"csv": "users.csv", "column": "id"},
        "batch": 100,
        "rate": "50/s",
        "sender": {"webhook": {"url": f"http://{HOST}:{receiver}/message", "concurrency": 4}},
    }
    begun = {"hello": hello}
    if scale.blast:
        blast = {"audience": {"segments": "active"}, "batch": 20_000, "sender": {"file": "blast"}}
        begun["blast"] = {key: value for key, value in hello.items() if key != "rate"} | blast
    return msgspec.json.encode(begun).decode()


def users_csv(scale: Scale) -> str:
    """The audience of `hello`: some of each segment."""
    step = scale.users // USERS
    return "id\n" + "".join(f"{user}\n" for user in range(step, scale.users + 1, step))


def redis_conf(port: int, *, cluster: bool) -> str:
    """A server that has on disk what it answered, so that one that is killed and comes back forgets nothing."""
    lines = [f"bind {HOST}", f"port {port}", "daemonize no", 'save ""', "appendonly yes", "maxmemory-policy noeviction"]
    lines += ["repl-diskless-sync-delay 0"]
    if cluster:
        lines += ["cluster-enabled yes", "cluster-node-timeout 2000", "repl-ping-replica-period 1"]
    return "\n".join(lines) + "\n"


def nginx_conf(port: int, services: Sequence[int]) -> str:
    """Nginx before the services, as one process.

    A request that reached a service is never sent to another (`proxy_next_upstream` has no `non_idempotent`): it may
    have been counted. One that could not be sent goes to the next.
    """
    servers = "".join(f"    server {HOST}:{port} max_fails=1 fail_timeout=1s;\n" for port in services)
    temporary = "".join(
        f"  {kind}_temp_path {kind}_temp;\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr warn;\n"
        "events { worker_connections 1024; }\n"
        f"http {{\n  access_log off;\n{temporary}"
        f"  upstream capline {{\n{servers}    keepalive 32;\n    keepalive_timeout 4s;\n  }}\n"
        f"  server {{\n    listen {HOST}:{port};\n    location / {{\n"
        "      proxy_pass http://capline;\n      proxy_http_version 1.1;\n"
        '      proxy_set_header Connection "";\n      proxy_set_header Host $host;\n'
        "      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n"
        "      proxy_next_upstream error timeout;\n      proxy_connect_timeout 1s;\n    }\n  }\n}\n"
    )


def prometheus_yaml(services: Iterable[int], workers: Iterable[int]) -> str:
    """The metrics of every service and worker every 5 seconds, and the alert rules of deploy/."""
    text = "global: {scrape_interval: 5s, evaluation_interval: 5s}\nrule_files: [alerts.yml]\nscrape_configs:\n"
    shown = "    authorization: {credentials_file: prometheus.token}\n"
    for job, ports, more in (("capline", services, shown), ("capline-worker", workers, "")):
        listed = ", ".join(f"'{HOST}:{port}'" for port in ports)
        text += f"  - job_name: {job}\n{more}    static_configs: [{{targets: [{listed}]}}]\n"
    return text


def alerts_yaml() -> str:
    """The alert rules, as deploy/prometheus/alerts.yml has them."""
    return resources.files("capline.up").joinpath("alerts.yml").read_text(encoding="utf-8")
