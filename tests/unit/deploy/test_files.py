"""What deploy/ holds is well-formed, and says of capline what capline takes."""

from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml
from tests.kit.cli import CommandLine

from capline.policy.file import loads
from capline.service.access.tokens import TokenFile
from capline.service.run.file import VARIABLES, read_settings
from capline.service.run.settings import Bounds

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
KUBERNETES: list[Any] = list(yaml.safe_load_all((DEPLOY / "kubernetes/capline.yaml").read_text(encoding="utf-8")))


def of_kind(kind: str) -> Any:
    (found,) = (one for one in KUBERNETES if one["kind"] == kind)
    return found


def test_the_unit_starts_and_reloads_what_there_is() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - systemd's keys have capitals
    unit.read(DEPLOY / "capline.service", encoding="utf-8")
    assert unit.sections() == ["Unit", "Service", "Install"]
    service = unit["Service"]
    assert service["ExecStartPre"] == f"{service['ExecStart']} --check"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert int(service["TimeoutStopSec"]) > Bounds().stop_within
    assert service["Environment"].partition("=")[0] in VARIABLES


def test_the_image_installs_extras_that_there_are() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    words = {line.split(maxsplit=1)[0] for line in text.splitlines() if line and not line.startswith("#")}
    assert words <= {"FROM", "COPY", "RUN", "USER", "VOLUME", "ENV", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (named,) = re.findall(r'"/src\[([a-z,]+)\]"', text)
    assert set(named.split(",")) <= set(extras)
    assert set(re.findall(r"CAPLINE_\w+", text)) <= set(VARIABLES)


def test_the_cluster_runs_a_configuration_that_capline_takes(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    files = of_kind("ConfigMap")["data"]
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert loads(files["policies.yaml"]).policies
    settings = read_settings(tmp_path / "capline.yaml", {}, {})
    assert settings.policies == f"{tmp_path}/policies.yaml"
    TokenFile(tmp_path / "tokens.json", create=True).create("a", ["read"])
    monkeypatch.setenv("CAPLINE_TOKENS", str(tmp_path / "tokens.json"))
    monkeypatch.setenv("CAPLINE_STORE", "redis+cluster://127.0.0.1:1")
    done = CommandLine(tmp_path, monkeypatch, capsys)("serve", "--config", "capline.yaml", "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_cluster_asks_where_it_listens_and_waits_for_the_end() -> None:
    pod = of_kind("Deployment")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    settings = yaml.safe_load(of_kind("ConfigMap")["data"]["capline.yaml"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {name: int(settings[name]["listen"].rpartition(":")[2]) for name in ports} == ports
    assert (container["readinessProbe"]["httpGet"]["path"], container["livenessProbe"]["httpGet"]["path"]) == (
        *("/readyz", "/healthz"),
    )
    pause_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["spec"]["terminationGracePeriodSeconds"] > pause_s + Bounds().stop_within
    assert {one["name"] for one in container["env"]} <= set(VARIABLES)
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod["spec"]["volumes"]}
    labels = of_kind("Deployment")["spec"]["selector"]["matchLabels"]
    assert labels == pod["metadata"]["labels"] == of_kind("Service")["spec"]["selector"]
