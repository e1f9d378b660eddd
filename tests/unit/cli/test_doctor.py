"""`capline doctor`: what it finds here, and on real stores."""

import json
import shutil
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.kit.cli import CommandLine
from tests.kit.server import each_kind
from tests.kit.servers import HOST, KINDS, free_port, shared, single

from capline import Configuration, Limiter, Policy
from capline.cli.commands.doctor import here, stores, times

ROOT = Path(__file__).parents[3]
POLICIES = "policies: {promo: {limits: [3/day]}}\n"
WAITS = "policies: {promo: {limits: [3/day], wait_replicas: 1}}\n"


def found(capline: CommandLine, *words: str, exits: int = 0) -> dict[str, Any]:
    """The findings by what they are about; on a cluster the last of each."""
    done = capline("doctor", *words, "--json")
    assert done.returncode == exits, done.stdout + done.stderr
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    assert answer["ok"] == (exits == 0) == all(finding["ok"] for finding in answer["findings"])
    assert all(finding.get("page", "").startswith("docs/") for finding in answer["findings"] if not finding["ok"])
    return {finding["about"]: finding for finding in answer["findings"]}


def test_one_line_for_each_finding(capline: CommandLine) -> None:
    done = capline("doctor", "--store", "memory://")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert {"capline", "python", "core", "redis", "store", "memory"} <= {line.split()[1] for line in lines}
    assert "policies" not in {line.split()[1] for line in lines}  # none are here, and none were named


def test_every_extra_has_its_line(capline: CommandLine) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert extras.keys() - {"all", "dev"} <= found(capline, "--store", "memory://").keys()


def test_an_extra_that_is_missing_is_no_fault(capline: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    version = here.version

    def without(*names: str) -> None:
        def of(package: str) -> str:
            if package in names:
                raise PackageNotFoundError(package)
            return version(package)

        monkeypatch.setattr(here, "version", of)

    without("pyarrow", "hiredis")
    shown = found(capline, "--store", "memory://")
    for extra in ("segments", "campaign", "report", "redis"):
        assert f'pip install "capline[{extra}]"' in shown[extra]["said"]
    assert "not installed" not in shown["http"]["said"]
    without("msgspec")
    assert "msgspec is missing" in found(capline, "--store", "memory://", exits=1)["core"]["said"]


@pytest.mark.parametrize("url", ["nowhere://x", "redis://host:port", "lmdb:x", "memory://path"])
def test_a_url_that_names_no_store_is_bad_input(capline: CommandLine, url: str) -> None:
    assert capline.refused("doctor", "--store", url)


def test_files(capline: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(POLICIES)
    assert capline("token", "create", "billing").returncode == 0
    shown = found(capline, "--store", "memory://", "--tokens", "tokens.json")
    assert shown["policies"]["said"] == "policies.yaml: 1 policy"
    assert shown["tokens"]["said"] == "tokens.json: 1 token"
    (tmp_path / "policies.yaml").write_text("policies: [")
    words = ("--policies", "policies.yaml", "--tokens", "gone.json", "--segments", "gone")
    shown = found(capline, "--store", "memory://", *words, exits=1)
    assert not any(shown[about]["ok"] for about in ("policies", "tokens", "segments"))


def test_an_embedded_store(capline: CommandLine, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/store"
    assert "not there yet" in found(capline, "--store", url, "--time")["store"]["said"]
    assert not (tmp_path / "store").exists()
    with Limiter(url, [Policy("promo", ["3/day"])]) as limiter:
        limiter.decide("promo", 1)
        shown = found(capline, "--store", url)
        assert shown["map"]["said"].endswith("1 log(s), grows without a bound")
        assert {"store", "disk", "lock", "map"} <= shown.keys()
        assert limiter.usage("promo", 1)[0].used == 1
    (tmp_path / "store" / "data.mdb").write_bytes(b"something else" * 1000)
    assert not found(capline, "--store", url, exits=1)["store"]["ok"]


def test_little_room(capline: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"lmdb://{tmp_path}/store?max_bytes=16777216"
    Limiter(url, [Policy("promo", ["3/day"])]).close()
    monkeypatch.setattr(stores, "FULL", 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    shown = found(capline, "--store", url, exits=1)
    assert "raise max_bytes" in shown["map"]["said"]
    assert "make room" in shown["disk"]["said"]


@pytest.mark.parametrize("place", ["memory", "lmdb", *KINDS])
def test_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr(times, "WITHIN_S", 0.05)
    monkeypatch.setattr(times, "SUBJECTS", 100)
    url = f"lmdb://{tmp_path}/store" if place == "lmdb" else "memory://" if place == "memory" else shared(place).url
    with Limiter(url, [Policy("doctor", ["50/minute"])], namespace="capline-doctor") as limiter:
        shown = {finding.about: finding for finding in times.times(url)}
        assert [*limiter.export()] == []
    assert {"decision", "100 tasks", "isolation", "batch"} <= shown.keys()
    assert ({"SET", "GET"} <= shown.keys()) == (place in KINDS)
    assert shown["isolation"].ok
    assert shown["isolation"].said.startswith("50 of 50 allowed")


@each_kind
def test_a_server(capline: CommandLine, tmp_path: Path, kind: str) -> None:
    (tmp_path / "policies.yaml").write_text(WAITS)
    with single(kind, "appendonly yes") as server:
        shown = found(capline, "--store", server.url, exits=1)
        assert [about for about, finding in shown.items() if not finding["ok"]] == ["replicas"]
        assert "lower it" in shown["replicas"]["said"]
        assert kind in shown["version"]["said"].lower()
        assert {"eviction", "persistence", "memory", "clock", "scripts"} <= shown.keys()


@each_kind
def test_a_server_that_is_set_wrongly(capline: CommandLine, kind: str) -> None:
    with single(kind, "maxmemory 100mb", "maxmemory-policy allkeys-lru") as server:
        shown = found(capline, "--store", server.url, exits=1)
    assert [about for about, finding in shown.items() if not finding["ok"]] == ["eviction", "persistence"]


@pytest.mark.deep
@each_kind
def test_a_cluster(capline: CommandLine, kind: str) -> None:
    nodes = shared(kind, "cluster")
    done = capline("doctor", "--store", nodes.url, "--json")
    assert "3 server(s) with logs" in done.stdout
    assert done.stdout.count('"about":"replicas"') == 3


def test_a_server_that_is_not_there(capline: CommandLine) -> None:
    shown = found(capline, "--store", f"redis://{HOST}:{free_port()}", "--time", exits=1)
    assert "is it started" in shown["store"]["said"]


def test_a_store_whose_extra_is_missing(capline: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("redis", "capline.store.redis."))]:
        if name not in ("capline.store.redis.io", "capline.store.redis.io.url"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    shown = found(capline, "--store", "redis://localhost", exits=1)
    assert 'pip install "capline[redis]"' in shown["store"]["said"]


def test_a_configuration_store(capline: CommandLine, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/settings"
    words = ("--store", "memory://", "--config-store", url)
    assert "not there yet" in found(capline, *words)["config"]["said"]
    assert not (tmp_path / "settings").exists()
    with Configuration(url) as configuration:
        configuration.set_policies([Policy("promo", ["3/day"], by_segment={"active": ["5/day"], "lapsed": ["1/day"]})])
        configuration.override("promo", "user:42", ["10/day"])
        shown = found(capline, *words)
        assert shown["config"]["said"] == f"{url}: version 2, 1 policy, overrides of 1 subject(s); takes changes"
        (tmp_path / "users.csv").write_text("id,segment\n1,active\n")
        assert capline("segments", "build", "users.csv", "--out", "today").returncode == 0
        shown = found(capline, *words, "--segments", "today", exits=1)
        assert shown["segments"]["said"].startswith("policy promo lists 'lapsed', ")
        assert configuration.version == 2
    (data,) = (tmp_path / "settings").rglob("data.mdb")
    data.write_bytes(b"something else" * 1000)
    assert not found(capline, *words, exits=1)["config"]["ok"]


@each_kind
def test_a_configuration_on_a_server(capline: CommandLine, kind: str) -> None:
    reader = "user reader on nopass ~* resetchannels -@all +@read +eval +time"
    with single(kind, "appendonly yes", reader) as server:
        with Configuration(server.url) as configuration:
            configuration.set_policies([Policy("promo", ["3/day"], wait_replicas=1)])
        shown = found(capline, "--store", server.url, "--config-store", server.url, exits=1)
        assert shown["config"]["said"].endswith(": version 1, 1 policy, overrides of 0 subject(s); takes changes")
        assert [about for about, finding in shown.items() if not finding["ok"]] == ["replicas"]
        url = server.url.replace("://", "://reader:secret@")
        shown = found(capline, "--store", "memory://", "--config-store", url, exits=1)
        assert "can be read, not changed: " in shown["config"]["said"]
        assert "the ACL line" in shown["config"]["said"]
        assert "secret" not in shown["config"]["said"]
    assert not found(capline, "--store", "memory://", "--config-store", server.url, exits=1)["config"]["ok"]


@pytest.mark.parametrize("url", ["nowhere://x", "lmdb:x", "lmdb:///tmp/x?max_bytes=1"])
def test_a_url_that_names_no_configuration_store_is_bad_input(capline: CommandLine, url: str) -> None:
    done = capline("doctor", "--store", "memory://", "--config-store", url)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
