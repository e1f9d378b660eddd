"""What the parts read, as text: made for the ports and the directory of this run."""

from collections.abc import Iterable, Sequence
from importlib import resources

from capline.up.ports import HOST

SEGMENTS = {"new": range(1, 201), "active": range(201, 701), "lapsed": range(701, 1001)}
AUDIENCE = range(1, 301)
"""Of the campaign that is sent at the start."""


def policies_yaml(*, replicas: int) -> str:
    """Three policies; where there are replicas a hit counts when one has it, so that a failover forgets nothing."""
    wait = f", wait_replicas: {replicas}" if replicas else ""
    return (
        "policies:\n"
        f"  promo: {{limits: [3/day, 10/week], by_segment: {{new: [1/day], active: [5/day]}}{wait}}}\n"
        f"  api: {{limits: [20/minute]{wait}}}\n"
        f"  psp: {{limits: [10/second]{wait}}}\n"
    )


def ratelimit_yaml() -> str:
    """Limits for Envoy, as envoyproxy/ratelimit has them: 20 a minute for each path."""
    return "domain: edge\ndescriptors:\n  - key: path\n    rate_limit: {unit: minute, requests_per_unit: 20}\n"


def service_yaml(store: str, segments: str, *, proxies: int) -> str:
    """The settings that both services share; where each listens is in its options.

    The policies are in the configuration store, which is the logs' own.
    """
    return (
        f"store: {store}\nconfig: {store}\nsegments: {segments}\n"
        f'drain: 0\nhttp: {{trusted_proxies: {proxies}}}\nobservers: {{access_log: "-", access_sample: 0.1}}\n'
    )


def campaign_yaml(store: str, segments: str, receiver: int) -> str:
    """A campaign to everybody in `users.csv`, by the policy promo, to the receiver."""
    return (
        "campaign: hello\npolicies: policies.yaml\npolicy: promo\n"
        f"store: {store}\nsegments: {segments}\naudience: {{csv: users.csv, column: id}}\nbatch: 100\n"
        f"sender: {{webhook: {{url: 'http://{HOST}:{receiver}/message', concurrency: 4}}}}\n"
    )


def users_csv() -> str:
    """The campaign's audience."""
    return "id\n" + "".join(f"{user}\n" for user in AUDIENCE)


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
    for job, ports in (("capline", services), ("capline-worker", workers)):
        listed = ", ".join(f"'{HOST}:{port}'" for port in ports)
        text += f"  - job_name: {job}\n    static_configs: [{{targets: [{listed}]}}]\n"
    return text


def alerts_yaml() -> str:
    """The alert rules, as deploy/prometheus/alerts.yml has them."""
    return resources.files("capline.up").joinpath("alerts.yml").read_text(encoding="utf-8")
