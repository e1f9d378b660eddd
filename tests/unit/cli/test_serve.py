"""`capline serve` where it does not serve: what it refuses to start with, and `--check`."""

import socket
from pathlib import Path

import pytest
from tests.kit.cli import CommandLine


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    text = "policies:\n  promo: {limits: [3/day]}\n  wide: {limits: [50/day]}\n"
    (tmp_path / "policies.yaml").write_text(text, encoding="utf-8")
    text = "policies: {promo: {limits: [3/day], wait_replicas: 1}}"
    (tmp_path / "waits.yaml").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "0.0.0.0:8080"], "--listen: without tokens it listens on loopback only"),
        (["--admin", "8081"], "--admin: '8081' is not an address; write host:port"),
        (["--policies", "nope.yaml"], "nope.yaml: cannot be read"),
        (["--store", "ftp://x"], "unknown kind 'ftp'"),
        (["--workers", "0"], "--workers: expected a whole number from 1 to 256"),
        (["--workers", "2", "--store", "memory://"], "--store: memory:// is one process's own"),
        (["--tokens", "nope.json"], "`capline token create NAME --file nope.json` writes one"),
        (["--config", "nope.yaml"], "nope.yaml: cannot read it"),
        (["--segments", "nowhere"], "nowhere: cannot open it as a directory"),
        (["--config-store", "http://x"], "unknown kind; use lmdb:///path"),
        (["--grpc", "127.0.0.1:0"], "--grpc: which limits? name files of envoyproxy/ratelimit"),
        (["--merge-domains"], "--merge-domains: which limits? name files of envoyproxy/ratelimit"),
        (["--grpc", "0.0.0.0:8082", "--envoy", "limits"], "--grpc: without tokens and TLS it listens on loopback only"),
        (["--spoe", "0.0.0.0:8083"], "--spoe: its protocol has no tokens, so it listens on loopback only"),
        (
            ["--listen", "127.0.0.1:81", "--admin", "127.0.0.1:81"],
            "--admin: 127.0.0.1:81 is the address of http and of",
        ),
        (["--listen", "127.0.0.1:8083", "--spoe", "127.0.0.1:8083"], "--spoe: 127.0.0.1:8083 is the address of http"),
        (["--listen", "[::1]:8082", "--grpc", "[::1]:8082", "--envoy", "x"], "--grpc: [::1]:8082 is the address of"),
        (["--envoy", "nowhere"], "nowhere: cannot be read"),
        (["--policies", "waits.yaml"], "policy 'promo': wait_replicas needs a redis store"),
        (["--policies", "waits.yaml", "--store", "memory://"], "policy 'promo': wait_replicas needs a redis store"),
        (["--on-store-error", "perhaps"], "--on-store-error: 'perhaps' is not known; use raise or allow or deny"),
    ],
)
@pytest.mark.parametrize("check", [["--check"], []], ids=["check", "serve"])
def test_what_it_does_not_start_with(
    capline: CommandLine, tmp_path: Path, words: list[str], said: str, check: list[str]
) -> None:
    assert said in capline.refused("serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *check, *words)
    assert not (tmp_path / ".capline").exists()


def test_an_address_in_use(capline: CommandLine, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = capline("serve", "--listen", "127.0.0.1:0", "--admin", address)
    assert done.returncode == 2
    assert f"admin.listen {address}: address already in use; name another port" in done.stderr
    assert not (tmp_path / ".capline").exists()


@pytest.mark.parametrize("store", ["lmdb://.capline/store", "redis://127.0.0.1:1/0", "memory://"])
def test_a_check_makes_no_store_and_asks_no_server(capline: CommandLine, tmp_path: Path, store: str) -> None:
    done = capline("serve", "--check", "--store", store)
    assert (done.returncode, done.stdout) == (0, "good: 2 policies of policies.yaml\n"), done.stderr
    told = capline.json("serve", "--check", "--store", store)
    assert told == {"good": True, "policies": "policies.yaml", "count": 2}
    assert not (tmp_path / ".capline").exists()


def test_a_check_of_envoys_limits_alone(capline: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policies.yaml").unlink()
    (tmp_path / "edge.yaml").write_text("domain: edge", encoding="utf-8")
    words = ("serve", "--check", "--store", "memory://", "--envoy", "edge.yaml")
    done = capline(*words)
    assert (done.returncode, done.stdout) == (0, "good: the limits are those for Envoy; there are no policies\n")
    assert capline.json(*words) == {"good": True, "policies": None, "count": 0}
    monkeypatch.setenv("SHADOW_MODE", "perhaps")
    assert "SHADOW_MODE: expected true or false" in capline(*words).stderr
    assert "policies.yaml: cannot be read" in capline("serve", "--check").stderr


def test_an_address_for_others_without_tls_is_good_with_a_warning(capline: CommandLine, tmp_path: Path) -> None:
    capline("token", "create", "shop", "--file", "t.json")
    words = ("serve", "--check", "--tokens", "t.json", "--listen", "0.0.0.0:8080", "--admin", "127.0.0.1:8081")
    done = capline(*words)
    assert (done.returncode, done.stdout) == (0, "good: 2 policies of policies.yaml\n")
    assert done.stderr.startswith("warning: http.listen 0.0.0.0:8080: without TLS"), done.stderr
    assert done.stderr.count("\n") == 1
    (warning,) = capline.json(*words)["warnings"]
    assert "http: tls: {certificate: cert.pem, key: key.pem}" in warning
    assert capline("serve", "--check", "--policies", "waits.yaml", "--store", "redis://127.0.0.1:1").returncode == 0
    assert not (tmp_path / ".capline").exists()


@pytest.mark.parametrize("options", [{"--listen": "0.0.0.0:81", "--admin": "127.0.0.1:81"}, {"--listen": "[::]:8081"}])
def test_an_address_that_another_contains(capline: CommandLine, options: dict[str, str]) -> None:
    capline("token", "create", "shop", "--file", "t.json")
    done = capline("serve", "--check", "--tokens", "t.json", *(word for option in options.items() for word in option))
    assert (done.returncode, "is the address of http and of admin; give each" in done.stderr) == (2, True), done.stderr
