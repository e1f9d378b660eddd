"""docs/howto/limits.md, walked from nothing on the purchases that it names: each step is one command."""

import re
from pathlib import Path

from tests.kit.cli import CommandLine

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/howto/limits.md").read_text(encoding="utf-8")
STEPS = re.findall(r"^    capline (.+)$", PAGE, re.MULTILINE)


def test_each_step_is_one_command_that_does_what_the_page_says(tmp_path: Path, capline: CommandLine) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    rules = re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    for name, text in rules:
        (tmp_path / name).write_text(text)
    said: dict[str, str] = {}
    for step in STEPS:
        words = [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', step)]
        done = capline(*words)
        assert done.returncode == 0, (step, done.stderr)
        said[" ".join(words[:2])] = done.stdout
    assert [step.split()[0] for step in said] == ["suggest", "replay", "segments", "decide"]
    for shown in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL):
        for line in shown.splitlines():
            assert any(line in text for text in said.values()), line
    sizes = dict(re.findall(r"^ (\w+) +([\d,]+) ", said["segments build"], re.MULTILINE))
    assert all(f"{size} {name}" in PAGE for name, size in sizes.items() if name != "all"), sizes
