"""Plays the pages of docs/tutorial, writes what the terminal shows into them, and tells what each takes a newcomer:

    python tools/tutorial.py

A block of code under a line that names a file in backticks is that file. Each line of a `console` block that begins
with `$` is typed into one shell, in an empty folder. A test plays the pages too, and compares without times and dates.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGES = sorted((Path(__file__).parents[1] / "docs" / "tutorial").glob("*.md"))
HOME = "/home/ann/"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
COMMAND, END = "\x1e", "\x1f"
VARIES = (
    (r"\d{4}-?\d\d-?\d\d[T ]\d\d:?\d\d:?\d\d(\.\d+)?(Z| UTC)", "DATE"),
    (r"[\d.]+ s, [\d,]+ subjects/s", "RATE"),
    (r"hit \d+", "hit N"),
    (r"\b\d+(\.\d+)? (ms|s)\b", "TIME"),
    (r"(?i)(date|server|retry-after|ratelimit): .*", r"\1: VARIES"),
    (r";[tr]=\d+", ";N"),
)


def masked(text: str) -> str:
    """Leave out what differs from run to run."""
    for pattern, name in VARIES:
        text = re.sub(pattern, name, text)
    return text


def played(text: str, folder: Path) -> str:
    """Give the page with what its commands show when they are typed in this folder."""
    script = ["set -m; exec 2>&1"]
    for block in BLOCK.finditer(text):
        kind, content = block[1], block[2]
        named = re.findall(r"`([\w.]+\.\w+)`", text[: block.start()].rstrip("\n").rpartition("\n\n")[2])
        if kind == "console":
            for line in content.splitlines():
                if line.startswith("$ "):
                    script += [f"printf '{COMMAND}'", line[2:]]
            script.append(f"printf '{END}'")
        elif kind != "sh" and named:
            script += [f"cat > {named[0]} <<'END-OF-FILE'\n{content}END-OF-FILE"]
    # What a page leaves running ends with its shell.
    script.append("jobs -p | xargs -r kill 2>/dev/null")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "NO_COLOR": "1",
        "TERM": "dumb",
        "COLUMNS": "100",
        "PYTHONUNBUFFERED": "1",
    }
    done = subprocess.run(  # noqa: S603 - our own pages
        ["/usr/bin/env", "bash", "-c", "\n".join(script)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # The shell tells when a job ends, at no fixed place.
    said = re.sub(r"\[\d\].*(Done|Terminated).*\n", "", done.stdout)
    shown = iter(said.replace(f"{folder}/", HOME).split(END))

    def filled(block: re.Match[str]) -> str:
        if block[1] != "console":
            return block[0]
        typed = [line for line in block[2].splitlines() if line.startswith("$ ")]
        outputs = next(shown, "").partition(COMMAND)[2].split(COMMAND)
        lines = "".join(f"{line}\n{output}" for line, output in zip(typed, outputs, strict=True))
        return f"```console\n{lines}```\n"

    return BLOCK.sub(filled, text)


def minutes(text: str) -> float:
    """What it takes to read the page with all that it shows, 200 words a minute, and to type its commands, 40 words."""
    typed = sum(len(line) - len("$ ") for line in text.splitlines() if line.startswith("$ "))
    return len(re.findall(r"\w+", text)) / 200 + typed / (5 * 40)


def main() -> None:
    """Write the pages anew."""
    for page in PAGES:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(text := played(page.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")
        took = time.monotonic() - begun
        print(f"{page.stem}: {minutes(text):.1f} min to read and type, {took:.1f} s for its commands")


if __name__ == "__main__":
    main()
