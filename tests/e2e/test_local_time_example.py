"""The example of caps in local time, run as its README says, against the standard library's idea of time."""

import json
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from tests.kit.campaign import capline

HERE = Path(__file__).parents[2] / "examples" / "local_time"


def run(*options: str) -> str:
    command = [sys.executable, str(HERE / "run.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_each_reader_has_one_a_day_and_three_a_week_and_none_at_night() -> None:
    sent = json.loads(run("--json"))
    local = [(one["reader"], datetime.fromisoformat(one["at"]).astimezone(ZoneInfo(one["zone"]))) for one in sent]
    assert len({reader for reader, _ in local}) == len({at.tzinfo for _, at in local}) == 5
    days = Counter((reader, at.date()) for reader, at in local)
    weeks = Counter((reader, at.date() - timedelta(days=at.weekday())) for reader, at in local)
    assert set(days.values()) == {1}
    assert max(weeks.values()) == 3
    assert all(8 <= at.hour < 22 for _, at in local)
    first = dict(reversed(local))
    assert (first["ann"].hour, first["bob"].hour, first["chi"].hour) == (13, 8, 21)
    later = [at for reader, at in local if at != first[reader]]
    assert {(at.hour, at.minute, at.second) for at in later} == {(8, 0, 0)}, "each as soon as it may go"
    in_berlin = [at for reader, at in local if reader == "ann"]
    assert {at.utcoffset() for at in in_berlin} == {timedelta(hours=1), timedelta(hours=2)}, "across the change"


def test_it_prints_a_line_for_each_and_its_commands_run(tmp_path: Path) -> None:
    lines = run().splitlines()
    assert lines[0] == "Thu 12:00 UTC   ann   Thu 2024-03-28 13:00 CET"
    assert len(lines) == len(json.loads(run("--json")))
    shutil.copy(HERE / "policies.yaml", tmp_path)
    commands = [
        line.strip() for line in (HERE / "README.md").read_text().splitlines() if line.startswith("    capline")
    ]
    assert len(commands) == 2
    answers = [capline(*shlex.split(command)[1:], cwd=tmp_path) for command in commands]
    assert [(done.returncode, done.stderr) for done in answers] == [(0, "")] * 2
    assert "in America/New_York" in answers[1].stdout
