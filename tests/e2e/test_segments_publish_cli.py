"""`capline segments publish`, `list`, `rollback`, `pin`, `gc` and `watch` by real processes, also on real S3."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kit.forked import run
from tests.kit.program import answer_in_json, refusal_of
from tests.kit.s3 import S3
from tests.kit.segments import Site, make, make_text, s3_site


class Shell:
    """Runs `capline segments` in a directory, with an S3 server or without."""

    def __init__(self, directory: Path, url: str, environment: dict[str, str]) -> None:
        self.directory = directory
        self.url = url
        self.environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", **environment}

    def words(self, *arguments: str) -> list[str]:
        return ["segments", *(self.url if word == "URL" else word for word in arguments)]

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "capline.cli", *self.words(*arguments)]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(*self.words(*arguments), cwd=self.directory, env=self.environment)

    def answer(self, *arguments: str) -> Any:
        return answer_in_json(self.run(*arguments, "--json"))

    def refusal(self, *arguments: str, code: int = 2) -> str:
        return refusal_of(self.run(*arguments), code)


@pytest.fixture(params=["directory", "s3"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    if request.param == "directory":
        return Shell(tmp_path, "published", {})
    server: S3 = request.getfixturevalue("s3")
    return Shell(tmp_path, s3_site(server).url, server.environment)


def test_a_publication_and_its_life(shell: Shell, tmp_path: Path) -> None:
    first = make(tmp_path, "v1", new=[1], old=[2, 3])
    second = make(tmp_path, "v2", new=[1, 4], old=[2, 3])
    assert "nothing is published there" in (
        shell.refusal("list", "URL") if "://" in shell.url else shell.refusal("rollback", "URL")
    )
    assert "who ' ann' is not" in shell.refusal("publish", str(first), "URL", "--who", " ann")
    told = shell.answer("publish", str(first), "URL", "--who", "ann of ops")
    assert (told["version"], told["flipped"], told["sent_files"], told["cardinality"]) == ("v1", True, 2, 3)
    shell.environment["CAPLINE_WHO"] = "airflow"
    told = shell.answer("publish", str(second), "URL", "--expect", "v1")
    assert (told["sent_files"], told["reused_files"], told["sequence"]) == (1, 1, 2)
    assert shell.run("publish", str(second), "URL").stdout == f"{shell.url}: version v2 is current already\n"
    assert "is current, not 'v1'" in shell.refusal("publish", str(first), "URL", "--expect", "v1", code=3)
    assert "published already, with other content" in shell.refusal("publish", str(first), "URL", "--version", "v2")

    assert shell.answer("pin", "URL", "v1")["pinned"] == ["v1"]
    listed = shell.answer("list", "URL")
    assert (listed["current"], [each["version"] for each in listed["versions"]]) == ("v2", ["v1", "v2"])
    assert [(each["current"], each["pinned"]) for each in listed["versions"]] == [(False, True), (True, False)]
    assert [each["who"] for each in listed["versions"]] == ["ann of ops", "airflow"]
    rows = [line.split() for line in shell.run("list", "URL").stdout.splitlines()]
    assert [(row[0], row[2]) for row in rows[1:]] == [("v1", "pinned"), ("v2", "current")]

    assert shell.answer("gc", "URL", "--keep", "1", "--grace-hours", "0", "--dry-run")["retired"] == []
    assert shell.answer("pin", "URL", "v1", "--remove")["pinned"] == []
    assert shell.answer("gc", "URL", "--keep", "1", "--grace-hours", "0", "--dry-run")["retired"] == ["v1"]
    assert shell.answer("rollback", "URL")["current"] == "v1"
    assert "no version before 'v1'" in shell.refusal("rollback", "URL")
    assert "no version 'v7'" in shell.refusal("rollback", "URL", "--to", "v7")
    assert shell.answer("rollback", "URL", "--to", "v2")["current"] == "v2"
    told = shell.answer("gc", "URL", "--keep", "1", "--grace-hours", "0")
    assert (told["retired"], told["kept"], told["deleted_objects"]) == (["v1"], ["v2"], 2)

    told = shell.answer("watch", "URL", "--cache", "cache", "--once")
    assert (told["version"], told["error"]) == ("v2", None)
    assert "no version 'v1' any more" in shell.refusal("watch", "URL", "--cache", "cache", "--once", "--version", "v1")


def test_a_dictionary_that_does_not_go_on(shell: Shell, tmp_path: Path) -> None:
    first = make_text(tmp_path, tmp_path / "ids", "v1", new=["ann", "bob"])
    lost = make_text(tmp_path, tmp_path / "lost", "v2", new=["bob"])
    shell.answer("publish", str(first), "URL")
    told = shell.refusal("publish", str(lost), "URL")
    assert told.startswith(f"capline: {lost}: its id dictionary does not extend that of version 'v1', which is served")
    assert shell.answer("list", "URL")["current"] == "v1"
    assert shell.answer("publish", str(lost), "URL", "--new-dictionary")["version"] == "v2"


def test_a_watch_tells_of_each_change(shell: Shell, tmp_path: Path, s3: S3) -> None:
    def publish(version: str) -> None:
        shell.answer("publish", str(make(tmp_path, version, new=[1])), "URL")

    publish("v1")
    with subprocess.Popen(
        shell.command("watch", "URL", "--cache", "cache", "--interval", "0.05", "--json"),
        cwd=tmp_path,
        env=shell.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert json.loads(process.stdout.readline())["version"] == "v1"
            publish("v2")
            assert json.loads(process.stdout.readline())["version"] == "v2"
            site = Site(
                shell.url if "://" in shell.url else str(tmp_path / shell.url), s3.options if "://" in shell.url else {}
            )
            site.write("pointer.json", b"torn")
            told = json.loads(process.stdout.readline())
            assert (told["version"], told["error"].endswith("publish again with --resend")) == ("v2", True)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()  # of a test that failed above: it would run for ever


def test_what_cannot_be(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "http://somewhere/x", {})
    assert "not an address to publish to" in shell.refusal("list", "URL")
    assert "cannot open it as a directory" in shell.refusal("publish", "none", "published")
    assert "nothing is published there" in shell.refusal("watch", "published", "--cache", "cache", "--once")
    for hours in ("nan", "inf", "-1"):
        assert f"--grace-hours is 0 to 876,000 hours, not {hours}" in shell.refusal(
            "gc", "published", f"--grace-hours={hours}"
        )
    assert "86400" in shell.refusal("watch", "published", "--cache", "cache", "--interval", "nan")
