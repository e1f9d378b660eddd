"""Every command of docs/reference/service.md, typed into a shell as it stands there; every answer that it shows."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.kit.cli import CommandLine
from tests.kit.serving import WITHIN_S, Serving

from capline.service.run.file import KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "service.md").read_text(encoding="utf-8")
BEFORE, HEADING, SECTION = PAGE.partition("\n## Segments\n")
SEGMENTS, _, AFTER = SECTION.partition("\n## ")


def blocks(text: str) -> list[tuple[str, str]]:
    return re.findall(r"```(sh|json)\n(.*?)```", text, re.DOTALL)


def typed(text: str, folder: Path) -> str:
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "capline").write_text(f'#!/bin/sh\nexec {sys.executable} -m capline.cli "$@"\n', encoding="ascii")
    (programs / "capline").chmod(0o755)
    done = subprocess.run(
        ["bash", "-euc", text],  # noqa: S607 - whichever bash is there
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1", "no_proxy": "*"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_instants(answer: dict[str, Any]) -> dict[str, Any]:
    """Stamps differ from run to run, and a span by what a batch took."""
    spans = ("retry_after", "reset_after", "wait")
    told = re.sub(r"\b\d{16}\b", "0", json.dumps(answer))
    return {key: value for key, value in json.loads(told).items() if key not in spans}


def test_what_the_page_shows_is_what_it_answers(tmp_path: Path) -> None:
    (_, prepare), (_, start), *rest = blocks(BEFORE + AFTER)
    assert typed(prepare, tmp_path) == "good: 2 policies of policies.yaml\n"
    assert start == "capline serve\n"
    shown = 0
    with Serving(tmp_path) as service:
        said = ""
        for kind, text in rest:
            if kind == "sh":
                said = typed(text.replace("http://127.0.0.1:8080", service.url), tmp_path)
                assert "allowed" in said or "refunded" in said or "status" in said
                continue
            assert without_instants(json.loads(said)) == without_instants(json.loads(text))
            shown += 1
        assert service.stop() == 0
    assert shown == 6


@pytest.mark.deep
def test_what_the_page_shows_of_segments_is_what_it_answers(tmp_path: Path) -> None:
    (_, prepare), *_ = blocks(BEFORE)
    (_, build), (_, start), *rest = blocks(SEGMENTS)
    typed(prepare, tmp_path)
    typed(build, tmp_path)
    with Serving(tmp_path, *start.split()[2:]) as service:
        for (_, asked), (_, shown) in zip(rest[::2], rest[1::2], strict=True):
            said = typed(asked.replace("http://127.0.0.1:8080", service.url), tmp_path)
            assert without_instants(json.loads(said)) == without_instants(json.loads(shown))
        assert service.stop() == 0
    assert HEADING


def test_what_the_page_configures_is_good(
    capline: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policies.yaml").write_text("policies: {promo: {limits: [3/day]}}", encoding="utf-8")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    (commands,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    said: list[str] = []
    for line in commands.splitlines():
        echoed, _, command = line.rpartition(" | ")
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(shlex.split(echoed)[1:]) + "\n"))
        done = capline(*shlex.split(command)[1:])
        assert done.returncode == 0, done.stderr
        said += [word.split()[0].partition("_")[0] for word in done.stdout.splitlines()]
    assert said == ["cap", "cap", "ann:", "billing", "prometheus", "ann", "prometheus:", "good:"]
    shown = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) == 2
    for text in shown:
        (tmp_path / "capline.yaml").write_text(text, encoding="utf-8")
        done = capline("serve", "--check", "--config", "capline.yaml")
        assert done.stdout.startswith("good: 1 policy of "), done.stderr


def test_the_page_has_every_key() -> None:
    named = set(re.findall(r"\w+", PAGE))
    missing = [key for key in KEYS if not set(key.split(".")) <= named]
    assert [key for key in missing if not key.startswith(("grpc", "segments", "config"))] == []
