"""Every example of docs/reference/configuration.md, as it stands there; its curl asks the service in this process."""

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.kit.cli import CommandLine
from tests.kit.service import Service

from capline import ManualClock

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(sh|json|python)\n(.*?)```", PAGE, re.DOTALL)


def test_the_commands_run(capline: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAPLINE_CONFIG_STORE", raising=False)
    block = next(text for kind, text in BLOCKS if kind == "sh")
    files = r"cat > (\S+) <<'END'\n(.*?)END\n"
    for name, text in re.findall(files, block, re.DOTALL):
        (tmp_path / name).write_text(text, encoding="utf-8")
    lines = re.sub(files, "", block, flags=re.DOTALL).splitlines()
    for line in lines:
        name, *words = shlex.split(line)
        done = capline(*words)
        assert (name, done.returncode) == ("capline", 0), done.stderr
    assert len(lines) == 8


def test_the_python_runs(tmp_path: Path) -> None:
    (code,) = [text for kind, text in BLOCKS if kind == "python"]
    exec(code.replace("/tmp/capline-readme", str(tmp_path)), {})  # noqa: S102, S108 - the page's own example and path


def test_the_service_answers_as_shown() -> None:
    asked = [text for kind, text in BLOCKS if kind == "sh" and text.startswith("curl")]
    shown = [text for kind, text in BLOCKS if kind == "json"]
    with Service([], clock=ManualClock(1_800_000_000_000_000), config="memory://") as service:
        for line, answer in zip(asked, shown, strict=True):
            words = shlex.split(line)
            method = words[words.index("-X") + 1] if "-X" in words else "GET"
            path = next(word for word in words if word.startswith("http")).removeprefix("http://127.0.0.1:8080")
            body = json.loads(words[words.index("--json") + 1]) if "--json" in words else None
            assert service(method, path, json=body).json() == json.loads(answer)
    assert len(shown) == 4
