"""Pages of the reference that the program itself tells: tools/site.py puts them beside those of docs/reference.

HTTP from the service's OpenAPI document, metrics from the registries, variables from the settings and the options of
the commands, exit codes from the constants that the commands end with, alerts from their rules.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from sphinx.pycode import ModuleAnalyzer
from tools.dashboard import PANELS

import capline
from capline import AsyncLimiter, Configuration
from capline.campaign.queue.watch import QueueDepth
from capline.campaign.queue.worker import WorkerReport
from capline.campaign.store.rows import DELAYS_S
from capline.cli.main import command
from capline.model.server_state import ServerState
from capline.segment import WatchStatus
from capline.service.envoy.metrics import EnvoyMetrics
from capline.service.gateways.check import check_route
from capline.service.http.openapi import described, document
from capline.service.metrics.registry import Metrics
from capline.service.metrics.worker import WorkerMetrics
from capline.service.probes import probes
from capline.service.run.file import VARIABLES
from capline.service.settings.values import USUAL_MODES, Settings
from capline.service.verbs import segments
from capline.service.verbs.campaigns import campaign_routes
from capline.service.verbs.routes import routes
from capline.up.files import alerts_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VERBS = ("Limiter", "AsyncLimiter")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Write a table; a `|` in a cell is escaped."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def api() -> str:
    """Write the page of every public name, from its docstring."""
    names = [*VERBS, *(name for name in capline.__all__ if name not in VERBS and not name.startswith("_"))]
    blocks = (
        f"## {name}\n\n```{{eval-rst}}\n.. autoclass:: capline.{name}\n"
        + ("" if isinstance(getattr(capline, name), type(Exception)) else "   :members:\n")
        + ("   :inherited-members:\n" if name in VERBS else "")
        + "```\n"
        for name in names
    )
    return "# The Python API\n\nEvery public name, from its docstring.\n\n" + "\n".join(blocks)


def commands() -> str:
    """Write the page of the command line, from the program itself."""
    made = subprocess.run(
        [sys.executable, "-m", "typer", "capline.cli.main", "utils", "docs", "--name", "capline"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "NO_COLOR": "1"},
    ).stdout
    made = re.sub(r"<span[^>]*>|</span>", "", made)
    return "# The command line\n\n" + made.partition("\n\n")[2]


async def openapi() -> dict[str, Any]:
    """Give the document that a service answers at /openapi.json."""
    async with AsyncLimiter("memory://") as limiter:
        served = routes(limiter) | segments.routes(None) | check_route(limiter) | probes(limiter)
        served |= campaign_routes("redis://127.0.0.1/0", "audiences")
        return document(described(served))


def kind(schema: dict[str, Any]) -> str:
    """Say what a value of this schema is, as `integer, 1 to 10000`."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(kind(part) for part in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    said = str(schema.get("type", "any"))
    if said == "array":
        return f"array of {kind(schema.get('items') or {})}"
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    above = "above " if "exclusiveMinimum" in schema else "from "
    said += "".join(f", {word}{bound:,}" for word, bound in ((above, low), ("to ", high)) if bound is not None)
    most = schema.get("maxItems") or schema.get("maxLength")
    return said + (f", at most {most:,}" if most else "")


def http() -> str:
    """Write the page of the service's paths and forms, from its OpenAPI document."""
    told = asyncio.run(openapi())
    rows: list[tuple[str, ...]] = []
    statuses: dict[str, str] = {}
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            shown = [form(operation.get("requestBody", {})), form(operation["responses"].get("200", {}))]
            query = ", ".join(f"`{part['name']}`" for part in operation["parameters"] if part["in"] == "query")
            says = operation["summary"] + (f" Query: {query}." if query else "")
            roles = ", ".join(operation.get("x-roles", ("anybody",)))
            rows.append((f"`{method.upper()} {path}`", says, *shown, roles))
            statuses |= {status: answer["description"] for status, answer in operation["responses"].items()}
    parts = [
        "# HTTP\n\nEvery path of [the service](service.md), from its OpenAPI document (`/openapi.json`).\n",
        "JSON and msgpack have the same forms.\n\n## Paths\n",
        table(("path", "", "takes", "gives", "roles"), rows),
        "## Statuses\n",
        table(("status", ""), sorted(statuses.items())),
        "## Forms\n",
    ]
    for name, schema in sorted(told["components"]["schemas"].items()):
        required = schema.get("required", ())
        fields = [
            (f"`{key}`", kind(value), "required" if key in required else f"`{json.dumps(value.get('default'))}`")
            for key, value in schema.get("properties", {}).items()
        ]
        parts += [f"### {name}\n", schema.get("description", "") + "\n"]
        parts += [table(("key", "value", "default"), fields)] if fields else []
    return "\n".join(parts)


def form(content: dict[str, Any]) -> str:
    """Link the form of a body in JSON."""
    schema = content.get("content", {}).get("application/json", {}).get("schema")
    return kind(schema) if schema and schema != {"type": "string"} else ""


async def families() -> list[tuple[str, Any]]:
    """Give who serves it and the family, for everything that a service and a worker export."""
    worker = CollectorRegistry()
    WorkerMetrics(WorkerReport("a worker"), worker, DELAYS_S).show(QueueDepth(0, []))
    metrics = Metrics()
    EnvoyMetrics(metrics.figures)
    metrics.reloaded("policies", refused=True, changed=True)
    metrics.reloaded("policies", refused=False, changed=True)
    metrics.servers.show([ServerState("127.0.0.1:6379", True, "closed")])
    source: Any = SimpleNamespace(status=WatchStatus(None, 0, None, None, None, 0, 0))
    with Configuration("memory://") as configuration:
        async with AsyncLimiter("memory://", config=configuration) as limiter:
            metrics.add(limiter, source)
            return [
                (served, family)
                for served, registry in (("service", metrics.registry), ("worker", worker))
                for family in registry.collect()
            ]


def metrics() -> str:
    """Write the page of the metrics, from the registries."""
    rows: list[tuple[str, ...]] = []
    for served, family in asyncio.run(families()):
        names = getattr(family, "_labelnames", None) or [label for label in family.samples[0].labels if label != "le"]
        name = family.name + ("_total" if family.type == "counter" else "")
        rows.append(
            (f"`{name}`", family.type, ", ".join(f"`{label}`" for label in names), family.documentation, served)
        )
    return (
        "# Every metric\n\nFrom the registries of `capline serve` and `capline worker`. What labels mean and what to "
        "alarm on is in [Observing](observing.md) and [Operating](operating.md).\n\n"
    ) + table(("metric", "type", "labels", "", "of"), sorted(rows))


def options(group: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Give each variable that an option of a command reads, the option and the command."""
    for below in getattr(group, "commands", {}).values():
        yield from options(below, f"{path} {below.name}")
    for parameter in group.params:
        if parameter.envvar:
            yield str(parameter.envvar), max(parameter.opts, key=len), path.strip()


def variables() -> str:
    """Write the page of the environment's variables and of the exit codes."""
    read: dict[str, dict[str, list[str]]] = {}
    for name, option, path in options(command()):
        read.setdefault(name, {}).setdefault(option, []).append(path)
    readers = (
        (f"`{name}`", "; ".join(f"`{option}` of {', '.join(paths)}" for option, paths in by.items()))
        for name, by in sorted(read.items())
    )
    settings: list[tuple[str, str, str]] = []
    for name, key in VARIABLES.items():
        value: Any = Settings()
        for part in key.split("."):
            value = getattr(value, part, getattr(USUAL_MODES, part, None))
        settings.append((f"`{name}`", f"`{key}`", "" if value in (None, ()) else f"`{value}`"))
    codes: list[tuple[str, str]] = [("0", "It was done; a refusal is an answer too")]
    for module in ("capline.cli.render.console", "capline.cli.commands.segments.publish"):
        docs = ModuleAnalyzer.for_module(module).find_attr_docs()
        codes += [
            (str(value), " ".join(lines).strip().removesuffix("."))
            for (_, name), lines in docs.items()
            if name.isupper() and name[0] != "_" and type(value := getattr(sys.modules[module], name)) is int
        ]
    return "\n".join(
        (
            "# Variables and exit codes\n\n## Variables of the commands\n",
            "An option that is typed comes before its variable.\n",
            table(("variable", "read by"), readers),
            "## Variables of the service\n\nA variable comes before the file of [settings](service.md#settings).\n",
            "Those of envoyproxy/ratelimit that count too are in [Envoy](../howto/envoy.md).\n",
            table(("variable", "key", "default"), settings),
            "## Exit codes\n",
            table(("code", ""), sorted(codes, key=lambda row: int(row[0]))),
        )
    )


def alerts() -> str:
    """Write the page of the dashboard and the alerts, from their sources."""
    link = re.compile(r"\b(Capline[A-Z]\w+)`?")
    panels = [(panel.title, link.sub(r"[\1](#alert-\1)", panel.answer)) for panel in PANELS]
    parts = [
        "# Dashboard and alerts\n\n## What each panel asks\n",
        table(("panel", "what to do about the answer"), panels),
        "## What to do at each alert\n",
    ]
    rules = re.compile(r"((?: +# [^\n]*\n)+) +- alert: (\w+)\n.*?severity: (\w+).*?summary: \"(.*?)\"\n", re.DOTALL)
    for said, name, severity, summary in rules.findall(alerts_yaml()):
        text = link.sub(r"[\1](#alert-\1)", re.sub(r"\s+# ", " ", said).strip().replace("`Capline", "Capline"))
        seen = re.sub(r"\{\{ \$(?:labels\.)?(\w+) \}\}", r"`\1`", summary)
        parts.append(f"(alert-{name})=\n### {name}\n\n*{severity}*: {seen}. {text}\n")
    return "\n".join(parts)


PAGES = {"alerts": alerts, "api": api, "commands": commands, "http": http, "metrics": metrics, "variables": variables}
