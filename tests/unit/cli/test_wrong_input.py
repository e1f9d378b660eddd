"""Names and texts that no file has: each command says so in one line, and ends with 2."""

import sys
import time
from pathlib import Path

import pytest
from tests.kit.cli import CommandLine
from tests.kit.server_process import free_port

from capline.campaign.store.server import PATIENCE_S

LONG = "x" * 300
CAMPAIGN = """\
campaign: c
policies: policies.yaml
policy: promo
audience: {csv: ids.csv}
sender: {file: {path: sent/}}
"""


@pytest.fixture(autouse=True)
def _project(tmp_path: Path) -> None:  # pyright: ignore[reportUnusedFunction] - pytest uses it
    (tmp_path / "policies.yaml").write_text(
        "policies: {promo: {limits: [2/day], by_segment: {active: [3/day]}}}\n", encoding="utf-8"
    )
    (tmp_path / "ids.csv").write_text("id\n1\n", encoding="utf-8")
    (tmp_path / "events.csv").write_text("id,time\n1,2026-01-01T00:00:00Z\n", encoding="utf-8")


@pytest.mark.parametrize(
    "typed",
    [
        f"replay {LONG} --limit 1/minute",
        f"suggest {LONG}",
        f"suggest events.csv --output {LONG}",
        f"decide promo 1 --segments {LONG}",
        f"campaign status {LONG}",
        f"campaign list {LONG}",
        "campaign list missing",
        f"campaign outcome {LONG} 1",
        f"response {LONG} --events events.csv",
        f"segments list {LONG}",
        f"segments members {LONG} a",
        f"token create a --file {LONG}",
        f"demo --data {LONG}",
    ],
)
def test_a_name_that_no_file_can_have(capline: CommandLine, typed: str) -> None:
    assert capline.refused(*typed.split()).startswith("capline: ")


def test_an_empty_name_of_a_campaign(capline: CommandLine) -> None:
    assert "cannot read it" in capline.refused("decide", "promo", "1", "--campaign", "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("policies.yaml", '"a\\0b"'),
        ("sent/", '"a\\0b"'),
        ("promo\n", 'promo\nsegments: "a\\0b"\n'),
        ("promo\n", 'promo\nstore: "lmdb://a\\0b"\n'),
    ],
)
def test_a_name_with_a_nul_in_a_campaign(tmp_path: Path, capline: CommandLine, old: str, new: str) -> None:
    (tmp_path / "c.yaml").write_text(CAMPAIGN.replace(old, new, 1), encoding="utf-8")
    for typed in ("campaign plan c.yaml", "campaign run c.yaml", "decide promo 1 --campaign c.yaml"):
        assert "c.yaml:" in capline.refused(*typed.split())


def test_a_store_with_a_nul_in_its_path(tmp_path: Path, capline: CommandLine) -> None:
    (tmp_path / "c.yaml").write_text(CAMPAIGN + "store: lmdb:///a%00b\n", encoding="utf-8")
    for typed in ("campaign plan c.yaml", "campaign enqueue c.yaml --queue sqlite:///queue"):
        assert "a path holds no NUL" in capline.refused(*typed.split())


@pytest.mark.parametrize("key", ["tokens", "segments", "policies"])
def test_a_name_with_a_nul_in_the_settings_of_a_service(tmp_path: Path, capline: CommandLine, key: str) -> None:
    (tmp_path / "s.yaml").write_text(f'{key}: "a\\0b"\n', encoding="utf-8")
    assert "s.yaml:1: 'a\\x00b' has a NUL character; remove it" in capline.refused("serve", "--check", "-c", "s.yaml")


def test_workers_find_a_store_below_the_home_directory(
    tmp_path: Path, capline: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "c.yaml").write_text(CAMPAIGN + "store: lmdb://~/caps\n", encoding="utf-8")
    assert capline("campaign", "enqueue", "c.yaml", "--queue", "sqlite:///" + str(tmp_path / "queue")).returncode == 0
    done = capline("worker", "--queue", "sqlite:///" + str(tmp_path / "queue"), "--until-idle", "--quiet")
    assert done.returncode == 0, done
    for store in ("lmdb://~/caps", f"lmdb://{tmp_path}/home/caps"):
        assert capline.json("usage", "promo", "1", "--store", store)[0]["used"] == 1


def test_lines_of_an_editor_of_windows_are_read(tmp_path: Path, capline: CommandLine) -> None:
    """A mark of UTF-8 at the beginning, and line ends of two characters."""
    sent = b'{"policy": "promo", "subject": 7, "at": "2026-01-31T16:00:00Z"}'
    for file, line in {"sent.jsonl": sent, "users.jsonl": b'{"id": 7, "segment": "active"}'}.items():
        (tmp_path / file).write_bytes(b"\xef\xbb\xbf" + line + b"\r\n")
    (tmp_path / "vips.csv").write_bytes(b"\xef\xbb\xbfsubject,limits\r\n7,9/day\r\n")
    for typed in (
        "import sent.jsonl",
        "segments build users.jsonl --out s",
        "config set policies.yaml -s lmdb://config",
    ):
        assert capline(*typed.split()).returncode == 0, typed
    assert capline("config", "overrides", "promo", "vips.csv", "-s", "lmdb://config").returncode == 0


def test_what_is_not_utf_8_is_said_in_words(tmp_path: Path, capline: CommandLine) -> None:
    (tmp_path / "vips.csv").write_bytes(b"subject,limits\n\xff,9/day\n")
    said = capline.refused("config", "overrides", "promo", "vips.csv", "-s", "lmdb://config")
    assert said == "capline: vips.csv, a byte is not UTF-8; save it as UTF-8\n"


def test_a_service_in_place_of_a_store(capline: CommandLine) -> None:
    for typed in ("decide promo 1", "erase 1", "usage promo 1", "top --once"):
        assert "--store: a command asks a store itself" in capline.refused(
            *typed.split(), "--store", "http://localhost"
        )


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("http://127.0.0.1:{port}", "no connection to http://127.0.0.1:{port} (nothing answers there: is it running?)"),
        ("127.0.0.1:{port}", "AWS_ENDPOINT_URL '127.0.0.1:{port}': write it like http://host:port"),
    ],
)
def test_a_bucket_whose_store_is_not_there(
    capline: CommandLine, monkeypatch: pytest.MonkeyPatch, endpoint: str, said: str
) -> None:
    port = str(free_port())
    stated = {"ENDPOINT_URL": endpoint.replace("{port}", port), "ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "y"}
    for name, value in {**stated, "REGION": "eu-west-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    assert said.replace("{port}", port) in capline.refused("segments", "list", "s3://bucket/segments")


def test_a_queue_that_is_not_there_is_said_at_once(capline: CommandLine) -> None:
    """Half a minute of patience is for a server that has answered before."""
    port = free_port()
    started = time.monotonic()
    for typed in ("campaign list", "campaign conflicts", "campaign pause c"):
        assert "no connection" in capline.refused(*typed.split(), "--queue", f"redis://127.0.0.1:{port}/0")
    assert time.monotonic() - started < PATIENCE_S


@pytest.mark.parametrize(
    ("typed", "where"),
    [
        ("nope", "capline"),
        ("--nope", "capline"),
        ("decide --nope", "capline decide"),
        ("campaign nope", "capline campaign"),
        ("campaign outcomes c.yaml", "capline campaign outcomes"),
    ],
)
def test_the_help_of_the_command_that_was_typed_is_named(capline: CommandLine, typed: str, where: str) -> None:
    assert capline.refused(*typed.split()).endswith(f"({where} --help tells more)\n")


def test_a_number_that_python_does_not_read(capline: CommandLine) -> None:
    assert "write units, like 2" in capline.refused("decide", "promo", "1", "--keep-free", "9" * 5000)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("token create a --chosen", "chosen secret"),
        ("replay - --limit 1/day", "-: "),
        ("suggest -", "-: "),
        ("import -", ""),
    ],
)
def test_a_closed_input_is_an_empty_one(
    capline: CommandLine, monkeypatch: pytest.MonkeyPatch, typed: str, said: str
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    done = capline(*typed.split())
    assert done.returncode == (2 if said else 0)
    assert said in done.stderr
