"""What `capline up` starts with what is installed; what is missing is named and the rest starts."""

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from capline.campaign.file import loads_campaign
from capline.policy.file import loads
from capline.service.envoy.files import load
from capline.service.run.file import read_settings
from capline.up import files
from capline.up.plan import PORTS, Part, Plan, Programs, find_programs, plan
from capline.up.ports import BUS, free_ports

ALL = {
    "redis": "redis-server",
    "redis_cli": "redis-cli",
    "nginx": "nginx",
    "prometheus": "prometheus",
    "s3": ("s3",),
    "examples": "/examples",
}
FOLDER = Path("/run/up")
WHOLE = [
    *(f"cluster-{number}" for number in range(1, 7)),
    *("campaigns", "s3", "receiver", "acme-pay", "minipay"),
    *("cluster-slots", "cluster-replicas", "publisher", "policies", "service-1", "service-2", "worker-1", "worker-2"),
    *("payments-1", "payments-2", "employees", "nginx", "prometheus", "traffic"),
]
CLUSTER = {name for name in WHOLE if name.startswith("cluster")} | {"campaigns"}
PAYMENTS = {"acme-pay", "minipay", "payments-1", "payments-2", "employees"}


def planned(*without: str, scale: files.Scale = files.SMALL) -> Plan:
    found: dict[str, Any] = {name: path for name, path in ALL.items() if name not in without}
    return plan(Programs(**found), FOLDER, range(20_000, 20_000 + PORTS), scale)


def names(parts: Iterable[Part]) -> list[str]:
    return [part.name for part in parts]


def test_all_of_it_starts_in_order() -> None:
    whole = planned()
    assert names(whole.parts) == WHOLE
    assert whole.missing == ()
    assert names(part for part in whole.parts if part.once) == ["cluster-slots", "cluster-replicas", "policies"]
    stages = [part.stage for part in whole.parts]
    assert stages == sorted(stages)
    ports = [part.ready.split(":")[-1] for part in whole.parts if part.ready.startswith("tcp")]
    assert len(ports) == len(set(ports)) == 13


@pytest.mark.parametrize(
    ("program", "install", "gone"),
    [
        ("redis", "redis-server", CLUSTER),
        ("redis_cli", "redis-server", CLUSTER),
        ("nginx", "nginx-light", {"nginx"}),
        ("prometheus", "apt-get install prometheus", {"prometheus"}),
        ("s3", "ministack", {"s3"}),
        ("examples", "clone", PAYMENTS),
    ],
)
def test_what_is_missing_is_named_and_the_rest_starts(program: str, install: str, gone: set[str]) -> None:
    whole = planned(program)
    assert names(whole.parts) == [name for name in WHOLE if name not in gone]
    (missing,) = whole.missing
    assert install in missing.install


def test_with_nothing_installed_two_services_share_an_embedded_store(tmp_path: Path) -> None:
    whole = planned(*ALL)
    kept = ["receiver", "publisher", "policies", "service-1", "service-2", "worker-1", "worker-2", "traffic"]
    assert names(whole.parts) == kept
    assert len(whole.missing) == 5
    settings = settings_of(whole, tmp_path)
    assert settings.store == settings.config == f"lmdb://{FOLDER}/store"
    assert settings.segments == f"{FOLDER}/segments"
    assert settings.queue == f"sqlite://{FOLDER}/campaigns.sqlite"
    assert "wait_replicas" not in whole.files["policies.yaml"]


@pytest.mark.parametrize("without", [(), ("redis",), ("nginx",), ("s3",), tuple(ALL)])
def test_the_files_are_what_the_parts_take(without: tuple[str, ...], tmp_path: Path) -> None:
    whole = planned(*without, scale=files.BIG)
    settings = settings_of(whole, tmp_path)
    assert settings.http.trusted_proxies == int("nginx" not in without)
    policies = {policy.name for policy in loads(whole.files["policies.yaml"]).policies}
    assert policies == {"promo", "api", "employees", *files.PROVIDERS}
    (tmp_path / "edge.yaml").write_text(whole.files["ratelimit/edge.yaml"], encoding="utf-8")
    assert list(load(tmp_path / "edge.yaml").domains) == ["edge"]
    begun = json.loads(whole.files["campaigns.json"])
    assert list(begun) == ["hello", "blast"]
    for name, form in begun.items():
        text = json.dumps(form | {"campaign": name})
        assert loads_campaign(text, FOLDER / "campaign.json").campaign == name
    if "prometheus.yml" in whole.files:
        services, workers = yaml.safe_load(whole.files["prometheus.yml"])["scrape_configs"]
        assert len(services["static_configs"][0]["targets"]) == 2
        assert len(workers["static_configs"][0]["targets"]) == 2


@pytest.mark.parametrize("without", [(), tuple(ALL)])
def test_there_are_five_things_to_try_by_curl(without: tuple[str, ...]) -> None:
    tries = planned(*without).tries
    assert [shlex.split(command)[0] for _, command in tries] == ["curl"] * 5


def test_every_server_listens_on_loopback_alone() -> None:
    whole = planned()
    for name in (*(f"cluster-{number}" for number in range(1, 7)), "campaigns"):
        assert "bind 127.0.0.1\n" in whole.files[f"{name}/redis.conf"]
    assert "listen 127.0.0.1:" in whole.files["nginx/nginx.conf"]
    (s3,) = (part for part in whole.parts if part.name == "s3")
    assert s3.environment["BIND_HOST"] == "127.0.0.1"
    for name in ("service-1", "prometheus"):
        (part,) = (part for part in whole.parts if part.name == name)
        assert "127.0.0.1:" in " ".join(part.words)


def test_the_ports_are_free_with_their_buses_and_differ() -> None:
    ports = free_ports(PORTS)
    assert len({*ports, *(port + BUS for port in ports)}) == 2 * PORTS


def test_a_port_whose_bus_is_taken_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_free(port: int) -> bool:
        return port < 2 * BUS or port % 2 == 0

    monkeypatch.setattr("capline.up.ports._is_free", is_free)
    assert all(port % 2 == 0 for port in free_ports(PORTS))


def test_the_programs_of_path_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("redis-server", "redis-cli"):
        (tmp_path / name).write_text("#!/bin/sh\n", encoding="ascii")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("capline.up.plan._SYSTEM", str(tmp_path))
    assert find_programs(tmp_path) == Programs(str(tmp_path / "redis-server"), str(tmp_path / "redis-cli"))


def settings_of(whole: Plan, folder: Path) -> Any:
    file = folder / "capline.yaml"
    file.write_text(whole.files["capline.yaml"], encoding="utf-8")
    return read_settings(file, {}, {})
