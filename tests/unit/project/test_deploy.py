"""deploy/: an example is what its reader takes, names what the service has, says what to do."""

import configparser
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from tools.reference import alerts

from capline import Configuration
from capline.campaign.queue.watch import QueueDepth
from capline.campaign.queue.worker import WorkerReport
from capline.cli.main import command
from capline.policy.file import loads
from capline.service.envoy.files import load
from capline.service.envoy.metrics import EnvoyMetrics
from capline.service.metrics.registry import Collected, Metrics, configuration_figures
from capline.service.metrics.worker import WorkerMetrics
from capline.service.run.file import VARIABLES, read_settings
from capline.up.files import alerts_yaml

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
RULES: list[dict[str, Any]] = yaml.safe_load(alerts_yaml())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "capline.json").read_text(encoding="utf-8"))
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}


def exported() -> set[str]:
    """The names of all series that a service and a worker export."""
    worker = WorkerMetrics(WorkerReport("a worker"), CollectorRegistry(), (1, 60))
    worker.show(QueueDepth(0, []))
    metrics = Metrics()
    EnvoyMetrics(metrics.figures)
    service = metrics.registry
    with Configuration("memory://") as configuration:
        service.register(Collected(partial(configuration_figures, configuration)))
        names = {family.name for registry in (service, worker) for family in registry.collect()}
    return names | {f"{name}_{end}" for name in names for end in ("total", "bucket")}


def test_the_dashboard_is_what_its_program_writes() -> None:
    spec = importlib.util.spec_from_file_location("dashboard", ROOT / "tools" / "dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    assert (DEPLOY / "grafana" / "capline.json").read_text(encoding="utf-8") == program.text()


def test_every_series_that_is_asked_for_is_one_that_the_service_exports() -> None:
    known = exported() | {"up"}
    assert "capline_decisions_total" in known
    for query in (*QUERIES, *(rule["expr"] for rule in RULES)):
        named = set(re.findall(r"\b((?:capline|process)_[a-z_]+|up(?=\{))", query))
        assert named, query
        assert named <= known, query


def test_the_page_tells_of_every_panel_and_every_alert() -> None:
    page = alerts()
    for panel in DASHBOARD["panels"]:
        assert panel["description"]
        assert f"| {panel['title']} |" in page
    for rule in RULES:
        assert f"### {rule['alert']}\n\n*{rule['labels']['severity']}*: " in page


def test_the_alerts_of_deploy_are_those_of_up_and_each_is_tested() -> None:
    assert (DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8") == alerts_yaml()
    fired = [
        case["alertname"]
        for test in yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    ]
    assert sorted(fired) == sorted(rule["alert"] for rule in RULES)


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("check", "config", "--syntax-only", "prometheus.yml"), id="config"),
        pytest.param(("test", "rules", "alerts_test.yml"), id="rules", marks=pytest.mark.deep),
    ],
)
def test_promtool_takes_them(words: tuple[str, ...]) -> None:
    said(["promtool", *words], DEPLOY / "prometheus")


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_takes_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "1m")}
        for number, query in enumerate(QUERIES)
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), "utf-8")
    said(["promtool", "check", "rules", "rules.yml"], tmp_path)


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - as its documentation says
    parser.read_string((DEPLOY / "systemd" / "capline.service").read_text(encoding="utf-8"))
    return parser


def test_the_unit_calls_the_command_as_it_is() -> None:
    for key in ("ExecStartPre", "ExecStart"):
        words = shlex.split(unit()["Service"][key])
        assert words[0].endswith("/bin/capline")
        assert command()([*words[1:], "--help"], standalone_mode=False) == 0
    settings = read_settings(None, {}, {})
    assert float(unit()["Service"]["TimeoutStopSec"]) > settings.drain + settings.bounds.stop_within


@pytest.mark.deep
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "capline.service").read_text(encoding="utf-8")
    (tmp_path / "capline.service").write_text(text.replace("/opt/capline/bin/capline", "/bin/true"), encoding="utf-8")
    told = said(["systemd-analyze", "verify", "--man=no", str(tmp_path / "capline.service")], tmp_path)
    assert "capline.service" not in told


def documents() -> dict[str, Any]:
    loaded = yaml.safe_load_all((DEPLOY / "kubernetes" / "capline.yaml").read_text(encoding="utf-8"))
    return {document["kind"]: document for document in loaded}


def test_the_pods_settings_are_good(tmp_path: Path) -> None:
    data = documents()["ConfigMap"]["data"]
    (tmp_path / "capline.yaml").write_text(data["capline.yaml"], encoding="utf-8")
    pod = documents()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    names = [variable["name"] for variable in container["env"]]
    assert names == ["CAPLINE_STORE"]
    assert set(names) <= VARIABLES.keys()
    settings = read_settings(tmp_path / "capline.yaml", dict.fromkeys(names, "redis+cluster://a:1,b:2"), {})
    assert settings.tokens == "/etc/capline-secret/tokens.json"
    assert loads(data["policies.yaml"]).policies
    listens = {"http": settings.http.listen.port, "admin": settings.admin.listen.port}
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == listens
    assert pod["terminationGracePeriodSeconds"] > settings.drain + settings.bounds.stop_within
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


def test_the_pods_that_answer_envoy_by_tls_have_all_that_it_takes(tmp_path: Path) -> None:
    """The patch of capline's pods, and Envoy's own: what one shows and asks for, the other has."""
    patch = yaml.safe_load((DEPLOY / "kubernetes" / "capline-grpc.yaml").read_text(encoding="utf-8"))
    pod = patch["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    data = documents()["ConfigMap"]["data"]
    (tmp_path / "capline.yaml").write_text(data["capline.yaml"], encoding="utf-8")
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    grpc = read_settings(tmp_path / "capline.yaml", environment, {}).grpc
    assert grpc is not None
    assert grpc.tls is not None
    assert container["ports"] == [{"name": "grpc", "containerPort": grpc.listen.port}]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert grpc.envoy == (mounts["envoy"],)
    assert {str(Path(path).parent) for path in (grpc.tls.certificate, grpc.tls.key)} == {mounts["grpc"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    of_envoy = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "envoy.yaml").read_text(encoding="utf-8")))
    named = {(document["kind"], document["metadata"]["name"]): document for document in of_envoy}
    limits = named["ConfigMap", volumes["envoy"]["configMap"]["name"]]["data"]
    for name, text in limits.items():
        (tmp_path / "ratelimit").mkdir(exist_ok=True)
        (tmp_path / "ratelimit" / name).write_text(text, encoding="utf-8")
    assert load(tmp_path / "ratelimit").domains
    service = named["Service", "capline-grpc"]["spec"]
    assert service["selector"].items() <= documents()["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    assert service["ports"][0]["targetPort"] == grpc.listen.port


def test_the_autoscaler_goes_by_metrics_that_its_rules_make_of_the_services_own() -> None:
    text = (DEPLOY / "kubernetes" / "autoscaler.yaml").read_text(encoding="utf-8")
    scaler, rules = yaml.safe_load_all(text)
    made = yaml.safe_load(rules["data"]["config.yaml"])["rules"]
    assert {rule["seriesQuery"].partition("{")[0] for rule in made} <= exported()
    asked = [metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]]
    assert asked == [rule["name"]["as"] for rule in made]
    deployment, budget = documents()["Deployment"], documents()["PodDisruptionBudget"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaler["spec"]["minReplicas"] == deployment["spec"]["replicas"] > budget["spec"]["minAvailable"]


def test_pods_are_spread_over_zones() -> None:
    template = documents()["Deployment"]["spec"]["template"]
    (spread,) = template["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "topology.kubernetes.io/zone"
    assert spread["labelSelector"]["matchLabels"] == template["metadata"]["labels"]


def test_only_readiness_asks_the_store_and_nothing_stops_before_its_successor_is_ready() -> None:
    spec = documents()["Deployment"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert probes == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    labels = spec["template"]["metadata"]["labels"]
    for kind in ("Service", "PodDisruptionBudget"):
        selector = documents()[kind]["spec"]["selector"]
        assert selector.get("matchLabels", selector).items() <= labels.items()


def test_the_image_is_built_of_what_is_there() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in lines} <= known
    for word, rest in lines:
        if word == "COPY" and "--from" not in rest:
            assert all((ROOT / source).exists() for source in rest.split()[:-1])
    (extras,) = re.findall(r"\.\[([a-z,]+)\]", text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    words = {word: json.loads(rest) for word, rest in lines if word in ("ENTRYPOINT", "CMD")}
    assert words["ENTRYPOINT"] == ["capline"]
    assert command()([*words["CMD"], "--help"], standalone_mode=False) == 0


def said(words: list[str], folder: Path) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
