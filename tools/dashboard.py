"""Writes deploy/grafana/capline.json, a dashboard for Grafana 9 and later:  python tools/dashboard.py

Each panel answers one question, which is its title; docs/reference/operating.md says what to do about the answer.
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
    """A graph; `queries` are pairs of PromQL and legend."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    buckets = f"sum by (le) (rate({metric}_bucket{{{_OF}}}[$__rate_interval]))"
    return tuple((f"histogram_quantile({share}, {buckets})", f"p{share * 100:g}") for share in (0.5, 0.99, 0.999))


def _rate(metric: str, by: str, matching: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{_OF}{matching}}}[$__rate_interval]))"


_DECISIONS = "capline_decisions_total"
_REFUSED = _rate(_DECISIONS, "policy", ',verdict="refused"')

PANELS = (
    Panel("Is every instance up?", "none", ((f'up{{job="capline",{_OF}}}', "{{instance}}"),)),
    Panel("Does the store answer?", "none", ((f"capline_store_up{{{_OF}}}", "{{instance}}"),)),
    Panel(
        "Does every server answer?",
        "none",
        ((f"min by (store, server) (capline_server_up{{{_OF}}})", "{{store}} {{server}}"),),
    ),
    Panel(
        "Which circuit breakers are open?",
        "none",
        ((f"max by (instance, store, server) (capline_server_breaker_open{{{_OF}}})", "{{instance}} {{server}}"),),
    ),
    Panel(
        "Does every server have its replica?",
        "none",
        ((f'min by (server) (capline_server_replicas{{store="main",{_OF}}})', "{{server}}"),),
    ),
    Panel(
        "How much memory do the servers use?",
        "bytes",
        (
            (f"max by (store, server) (capline_server_memory_bytes{{{_OF}}})", "{{store}} {{server}}"),
            (f"max by (store, server) (capline_server_max_memory_bytes{{{_OF}}})", "{{store}} {{server}} may use"),
        ),
    ),
    Panel(
        "How many connections do the servers have?",
        "none",
        ((f"max by (store, server) (capline_server_clients{{{_OF}}})", "{{store}} {{server}}"),),
    ),
    Panel(
        "How many processes run?",
        "none",
        ((f"sum by (instance, role) (capline_process_up{{{_OF}}})", "{{instance}} {{role}}"),),
    ),
    Panel("How much is asked?", "reqps", ((_rate(_DECISIONS, "policy"), "{{policy}}"),)),
    Panel(
        "Which limits refuse?",
        "reqps",
        ((_rate(_DECISIONS, "policy, limit", ',verdict="refused"'), "{{policy}} {{limit}}"),),
    ),
    Panel(
        "Which share is refused?",
        "percentunit",
        ((f"{_REFUSED} / {_rate(_DECISIONS, 'policy')}", "{{policy}}"),),
    ),
    Panel("Do decisions fail?", "reqps", ((_rate(_DECISIONS, "policy", ',verdict="error"'), "{{policy}}"),)),
    Panel("Who answers?", "reqps", ((_rate(_DECISIONS, "origin"), "{{origin}}"),)),
    Panel("Which statuses are answered?", "reqps", ((_rate("capline_http_requests_total", "status"), "{{status}}"),)),
    Panel("How long does a request take?", "s", _quantiles("capline_http_seconds")),
    Panel("How long does the store take?", "s", _quantiles("capline_store_seconds")),
    Panel(
        "How much processor time is used?",
        "percentunit",
        ((_rate("process_cpu_seconds_total", "instance"), "{{instance}}"),),
    ),
    Panel(
        "How much memory is used?",
        "bytes",
        ((f"sum by (instance) (process_resident_memory_bytes{{{_OF}}})", "{{instance}}"),),
    ),
    Panel(
        "How large is the embedded store?", "bytes", ((f"capline_store_file_bytes{{{_OF}}}", "{{instance}} {{store}}"),)
    ),
    Panel("Is a change refused?", "none", ((f"capline_reload_refused{{{_OF}}}", "{{instance}} {{what}}"),)),
    Panel("Is the configuration the newest?", "s", ((f"capline_config_stale_seconds{{{_OF}}}", "{{instance}}"),)),
    Panel("Are the segments the newest?", "s", ((f"capline_segments_behind_seconds{{{_OF}}}", "{{instance}}"),)),
    Panel("How old are the segments?", "s", ((f"capline_segments_age_seconds{{{_OF}}}", "{{instance}}"),)),
    Panel(
        "What is in the queue?",
        "none",
        (("max by (campaign, state) (capline_queue_batches)", "{{campaign}} {{state}}"),),
    ),
    Panel(
        "How long is a campaign under way?", "s", (("max by (campaign) (capline_queue_age_seconds)", "{{campaign}}"),)
    ),
    Panel("Is a batch's worker silent?", "s", (("max by (campaign) (capline_queue_silent_seconds)", "{{campaign}}"),)),
    Panel(
        "How fast are messages sent?",
        "reqps",
        (("sum by (outcome) (rate(capline_worker_recipients_total[$__rate_interval]))", "{{outcome}}"),),
    ),
    Panel(
        "What does Envoy ask?",
        "reqps",
        ((_rate("capline_envoy_descriptors_total", "domain, outcome"), "{{domain}} {{outcome}}"),),
    ),
    Panel(
        "Which of Envoy's limits are near?",
        "reqps",
        ((_rate("capline_envoy_near_limit_total", "domain, rule"), "{{rule}}"),),
    ),
    Panel(
        "Are Envoy's files taken?",
        "none",
        ((f"sum by (outcome) (increase(capline_envoy_reloads_total{{{_OF}}}[$__rate_interval]))", "{{outcome}}"),),
    ),
    Panel("Is Envoy turned away?", "reqps", ((_rate("capline_envoy_turned_away_total", "code"), "{{code}}"),)),
    Panel("Does observing fail?", "reqps", ((_rate("capline_observer_errors_total", "instance"), "{{instance}}"),)),
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
