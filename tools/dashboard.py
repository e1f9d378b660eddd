"""Writes deploy/grafana/capline.json, a dashboard for Grafana 9 and later:  python tools/dashboard.py

Each panel answers one question, which is its title; its description says what to do about the answer.
Panels are changed here, never in the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parents[1] / "deploy" / "grafana" / "capline.json"
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
SOURCE = {"type": "prometheus", "uid": "${source}"}
_OF = 'instance=~"$instance"'


class Panel(NamedTuple):
    """A graph; `queries` are pairs of PromQL and legend, `answer` says what to do about what it shows."""

    title: str
    answer: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    buckets = f"sum by (le) (rate({metric}_bucket{{{_OF}}}[$__rate_interval]))"
    return tuple((f"histogram_quantile({share}, {buckets})", f"p{share * 100:g}") for share in (0.5, 0.99, 0.999))


def _rate(metric: str, by: str, matching: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{_OF}{matching}}}[$__rate_interval]))"


_DECISIONS = "capline_decisions_total"
_EVICTED, _SCRIPTS = "capline_server_evicted_keys_total", "capline_server_script_seconds_total"
_REFUSED = _rate(_DECISIONS, "policy", ',verdict="refused"')

PANELS = (
    Panel("Is every instance up?", "CaplineInstanceDown", "none", ((f'up{{job="capline",{_OF}}}', "{{instance}}"),)),
    Panel("Does the store answer?", "CaplineStoreDown", "none", ((f"capline_store_up{{{_OF}}}", "{{instance}}"),)),
    Panel(
        "Does every server answer?",
        "CaplineServerDown; of the logs (`main`) and of the configuration store (`config`)",
        "none",
        ((f"min by (store, server) (capline_server_up{{{_OF}}})", "{{store}} {{server}}"),),
    ),
    Panel(
        "Which circuit breakers are open?",
        "CaplineBreakerOpen",
        "none",
        ((f"max by (instance, store, server) (capline_server_breaker_open{{{_OF}}})", "{{instance}} {{server}}"),),
    ),
    Panel(
        "Does every server have its replica?",
        "With `wait_replicas` no hit counts without one. 0: a failover would lose hits, or cannot happen",
        "none",
        ((f'min by (server) (capline_server_replicas{{store="main",{_OF}}})', "{{server}}"),),
    ),
    Panel(
        "How much memory do the servers use?",
        "CaplineServerMemory. A bound of 0 is none: set `maxmemory`, else the host decides",
        "bytes",
        (
            (f"max by (store, server) (capline_server_memory_bytes{{{_OF}}})", "{{store}} {{server}}"),
            (f"max by (store, server) (capline_server_max_memory_bytes{{{_OF}}})", "{{store}} {{server}} may use"),
        ),
    ),
    Panel(
        "How many connections do the servers have?",
        "CaplineServerConnections",
        "none",
        ((f"max by (store, server) (capline_server_clients{{{_OF}}})", "{{store}} {{server}}"),),
    ),
    Panel(
        "How far behind are replicas?",
        "CaplineReplicaBehind: a failover loses what a replica has not confirmed",
        "s",
        ((f"max by (store, server) (capline_server_replica_lag_seconds{{{_OF}}})", "{{store}} {{server}}"),),
    ),
    Panel(
        "Are keys evicted?",
        "CaplineServerEvicts. Never: `maxmemory-policy noeviction`",
        "none",
        ((f"max by (store, server) (increase({_EVICTED}{{{_OF}}}[$__rate_interval]))", "{{store}} {{server}}"),),
    ),
    Panel(
        "How old is the last save?",
        "CaplineServerUnsaved. 0 while all is saved or appended",
        "s",
        ((f"max by (store, server) (capline_server_unsaved_seconds{{{_OF}}})", "{{store}} {{server}}"),),
    ),
    Panel(
        "How busy are servers with scripts?",
        "CaplineServerBusy. Of one core: plan for half",
        "percentunit",
        ((f"max by (store, server) (rate({_SCRIPTS}{{{_OF}}}[$__rate_interval]))", "{{store}} {{server}}"),),
    ),
    Panel(
        "How many processes run?",
        "Workers as configured, and one for the admin address",
        "none",
        ((f"sum by (instance, role) (capline_process_up{{{_OF}}})", "{{instance}} {{role}}"),),
    ),
    Panel(
        "How much is asked?",
        "Compare it with the capacity in docs/reference/operating.md",
        "reqps",
        ((_rate(_DECISIONS, "policy"), "{{policy}}"),),
    ),
    Panel(
        "Which limits refuse?",
        "One that suddenly does: CaplineRefusalsJump",
        "reqps",
        ((_rate(_DECISIONS, "policy, limit", ',verdict="refused"'), "{{policy}} {{limit}}"),),
    ),
    Panel(
        "What would shadow refuse?",
        "Of policies with `shadow: true`: its share is what binding costs. Nobody is refused, so no alert",
        "reqps",
        ((_rate(_DECISIONS, "policy, limit", ',origin="shadow"'), "{{policy}} {{limit}}"),),
    ),
    Panel(
        "Which share is refused?",
        "The price of a policy. Replay past events against another one before you change it",
        "percentunit",
        ((f"{_REFUSED} / {_rate(_DECISIONS, 'policy')}", "{{policy}}"),),
    ),
    Panel(
        "Do decisions fail?",
        "CaplineDecisionsFail",
        "reqps",
        ((_rate(_DECISIONS, "policy", ',verdict="error"'), "{{policy}}"),),
    ),
    Panel(
        "Who answers?",
        "`store`, always. `deny-cache` answers known refusals, `shadow` allows them. Else: CaplineAnswersWithoutStore",
        "reqps",
        ((_rate(_DECISIONS, "origin"), "{{origin}}"),),
    ),
    Panel(
        "Which statuses are answered?",
        "Refusals are 200. 4xx are callers' faults; 503 is an outage, or more requests at once than `bounds.requests`",
        "reqps",
        ((_rate("capline_http_requests_total", "status"), "{{status}}"),),
    ),
    Panel(
        "How long does a request take?",
        "The difference to the next panel is the service and the queue before it",
        "s",
        _quantiles("capline_http_seconds"),
    ),
    Panel(
        "How long does the store take?",
        "Slow: the server's latency, its processor, the network",
        "s",
        _quantiles("capline_store_seconds"),
    ),
    Panel(
        "How much processor time is used?",
        "Near 1 for each worker: add workers, or instances",
        "percentunit",
        ((_rate("process_cpu_seconds_total", "instance"), "{{instance}}"),),
    ),
    Panel(
        "How much memory is used?",
        "Flat after the first hour, unless the store is `memory://`",
        "bytes",
        ((f"sum by (instance) (process_resident_memory_bytes{{{_OF}}})", "{{instance}}"),),
    ),
    Panel(
        "How large is the embedded store?",
        "Growth without end: a process holds an old snapshot",
        "bytes",
        ((f"capline_store_file_bytes{{{_OF}}}", "{{instance}} {{store}}"),),
    ),
    Panel(
        "Is a change refused?",
        "CaplineReloadRefused",
        "none",
        ((f"capline_reload_refused{{{_OF}}}", "{{instance}} {{what}}"),),
    ),
    Panel(
        "Is the configuration the newest?",
        "0 while its store answers. Growing: CaplineConfigurationBehind",
        "s",
        ((f"capline_config_stale_seconds{{{_OF}}}", "{{instance}}"),),
    ),
    Panel(
        "Are the segments the newest?",
        "Some 10 s. Growing: CaplineSegmentsBehind",
        "s",
        ((f"capline_segments_behind_seconds{{{_OF}}}", "{{instance}}"),),
    ),
    Panel(
        "How old are the segments?",
        "The rhythm of whoever publishes: CaplineSegmentsOld",
        "s",
        ((f"capline_segments_age_seconds{{{_OF}}}", "{{instance}}"),),
    ),
    Panel(
        "What is in the queue?",
        "Waiting batches fall; each worker has one leased; dead letters: CaplineDeadLetters",
        "none",
        (("max by (campaign, state) (capline_queue_batches)", "{{campaign}} {{state}}"),),
    ),
    Panel(
        "How long is a campaign under way?",
        "Longer than it should: add workers, if the receiver takes more",
        "s",
        (("max by (campaign) (capline_queue_age_seconds)", "{{campaign}}"),),
    ),
    Panel(
        "Is a batch's worker silent?",
        "Growing: that worker is gone, and after `--takeover` (60 s) another one takes its batch",
        "s",
        (("max by (campaign) (capline_queue_silent_seconds)", "{{campaign}}"),),
    ),
    Panel(
        "How fast are messages sent?",
        "`failed` and `not_known` of all workers: the receiver's side, or the way to it",
        "reqps",
        (("sum by (outcome) (rate(capline_worker_recipients_total[$__rate_interval]))", "{{outcome}}"),),
    ),
    Panel(
        "What does Envoy ask?",
        "`no_domain` and `no_limit`: Envoy asks for what no file has",
        "reqps",
        ((_rate("capline_envoy_descriptors_total", "domain, outcome"), "{{domain}} {{outcome}}"),),
    ),
    Panel(
        "Which of Envoy's limits are near?",
        "Hits above `near_limit_ratio` (0.8): who is refused next",
        "reqps",
        ((_rate("capline_envoy_near_limit_total", "domain, rule"), "{{rule}}"),),
    ),
    Panel(
        "Are Envoy's files taken?",
        "CaplineEnvoyFilesRefused",
        "none",
        ((f"sum by (outcome) (increase(capline_envoy_reloads_total{{{_OF}}}[$__rate_interval]))", "{{outcome}}"),),
    ),
    Panel(
        "Is Envoy turned away?",
        "CaplineEnvoyTurnedAway",
        "reqps",
        ((_rate("capline_envoy_turned_away_total", "code"), "{{code}}"),),
    ),
    Panel(
        "Does observing fail?",
        "Decisions are right all the same; the log `capline` says what raised",
        "reqps",
        ((_rate("capline_observer_errors_total", "instance"), "{{instance}}"),),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    return {
        "title": "capline",
        "uid": "capline",
        "schemaVersion": 37,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), _instance()]},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=1) + "\n"


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.answer,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi"}, "legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for place, (query, legend) in enumerate(panel.queries)
        ],
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _instance() -> dict[str, Any]:
    return {
        "name": "instance",
        "type": "query",
        "datasource": SOURCE,
        "query": "label_values(capline_process_up, instance)",
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"{FILE}: {len(PANELS)} panels")
