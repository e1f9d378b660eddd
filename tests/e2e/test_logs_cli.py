"""`capline export | import` and `explain --id`, typed as a person types them, in real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.kit.forked import run

from capline.limiter.arguments.records import MOST_LINE_BYTES

POLICIES = """
namespace: shop
policies:
  promo:
    limits: [2/day, 5/week]
    channels: {push: [1/day]}
  other:
    limits: [9/day]
"""


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policies.yaml").write_text(POLICIES, encoding="utf-8")


ENVIRONMENT = {"COLUMNS": "200", "NO_COLOR": "1"}


def capline(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return run(*words, env={**os.environ, **ENVIRONMENT}, stdin=stdin)


def answer(*words: str, stdin: str | None = None, status: int = 0) -> dict[str, object]:
    done = capline(*words, "--json", stdin=stdin)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def past(subject: object = 42, ago: float = 60, **more: object) -> str:
    return json.dumps({"policy": "promo", "subject": subject, "at": time.time() - ago, **more}) + "\n"


def test_past_sends_count_and_may_be_imported_again(tmp_path: Path) -> None:
    sent = past(42, id="m1") + past(42, 3600, channel="push", id="m2") + past("user:1") + past(7, 8 * 86_400)
    (tmp_path / "past.jsonl").write_text(sent, encoding="utf-8")
    first = answer("import", "past.jsonl")
    assert [first[name] for name in ("records", "added", "known", "old", "ahead", "failed")] == [4, 3, 0, 1, 0, 0]
    assert [answer("import", "past.jsonl")[name] for name in ("added", "known")] == [0, 3]
    refused = answer("decide", "promo", "42")
    assert (refused["allowed"], refused["limit"]) == (False, "2/day")
    assert answer("decide", "promo", "user:1")["remaining"] == 0
    told = capline("import", "past.jsonl").stdout
    left_out = "3 known, 1 out of every window, 0 in the future, 0 ambiguous"
    assert told == f"imported 0 hit(s) from 4 line(s); left out: {left_out}\n"
    why = answer("explain", "promo", "42", "--id", "m1", "--id", "m2")
    assert [hit.get("id") for hit in why["hits"]] == ["m2", "m1"]  # pyright: ignore[reportIndexIssue, reportGeneralTypeIssues, reportUnknownVariableType, reportUnknownMemberType, reportAttributeAccessIssue, reportOptionalIterable]
    shown = capline("explain", "promo", "42", "--id", "m1").stdout
    assert shown.count(", id m1") == 1
    assert "2/day (binds)" in shown


def test_a_send_that_cannot_be_told_from_another_is_left_out_and_one_line_says_what_helps(tmp_path: Path) -> None:
    at = time.time() - 60
    sends = [json.dumps({"policy": "promo", "subject": 42, "at": at, "cost": cost}) + "\n" for cost in (1, 2)]
    (tmp_path / "past.jsonl").write_text("".join(sends), encoding="utf-8")
    for known in (0, 1):
        told = capline("import", "past.jsonl")
        assert told.returncode == 0
        assert f"{known} known, 0 out of every window, 0 in the future, 1 ambiguous" in told.stdout
        assert told.stderr.count("give each hit an id") == 1


def test_an_export_goes_into_another_store_by_a_file_or_a_pipe(tmp_path: Path) -> None:
    answer("import", "-", stdin=past(42) + past("é\n", cost=2) + past(42, 30, channel="push"))
    assert answer("export", "logs.jsonl") == {"lines": 3, "hits": 4, "damaged": 0}
    assert [path.name for path in tmp_path.glob("logs*")] == ["logs.jsonl"]
    lines = [json.loads(line) for line in (tmp_path / "logs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {(line["log"], line["subject"]) for line in lines} == {("promo", 42), ("promo", "é\n"), ("promo/push", 42)}
    assert answer("import", "logs.jsonl", "--store", "lmdb://other")["added"] == 4
    piped = capline("export", "--store", "lmdb://other", "--policy", "promo")
    assert sorted(piped.stdout.splitlines()) == sorted((tmp_path / "logs.jsonl").read_text("utf-8").splitlines())
    assert piped.stderr == "exported 4 hit(s) in 3 line(s)\n"
    assert capline("export", "--policy", "other").stdout == ""
    assert answer("import", "-", stdin=piped.stdout)["known"] == 4


def test_a_hit_in_the_future_is_refused_and_the_rest_taken() -> None:
    done = capline("import", "-", stdin=past(1) + past(2, -3600) + past(3))
    assert done.returncode == 2
    assert "1 in the future" in done.stdout
    assert done.stderr.startswith("-, line 2: 1 hit(s) later than the store's time")
    assert answer("peek", "promo", "3")["remaining"] == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "a line is one JSON object"),
        ("", "a line is one JSON object"),
        ("[]", "a line is one JSON object"),
        ('{"policy": "promo", "subject": 1}', "either log, subject and hits, or policy, subject and at"),
        ('{"policy": "promo", "at": 1}', "missing required field `subject`"),
        ('{"policy": "promo", "subject": 1, "at": 1, "segment": "x"}', "unknown field `segment`"),
        ('{"policy": "promo", "subject": 1.5, "at": 1}', "$.subject"),
        ('{"policy": "promo", "subject": -1, "at": 1}', "an integer subject is 0 to 2^64-1"),
        ('{"policy": "promo", "subject": 1, "at": 1700000000000}', "milliseconds"),
        ('{"policy": "promo", "subject": 1, "at": NaN}', "a line is one JSON object"),
        ('{"policy": "promo", "subject": 1, "at": "2026-01-31T16:00:00"}', "in which time zone"),
        ('{"policy": "promo", "subject": 1, "at": "yesterday"}', "is not an instant"),
        ('{"policy": "promo", "subject": 1, "at": "9999-12-31T23:59:59Z"}', "at '9999-12-31T23:59:59Z' is not between"),
        ('{"policy": "promo", "subject": 1, "at": 1, "cost": 0}', "a cost is 1 to"),
        ('{"policy": "promo", "subject": 1, "at": 1, "channel": "sms"}', "has no channel 'sms'; it has: push"),
        ('{"policy": "nope", "subject": 1, "at": 1}', "no policy 'nope'; there are: "),
        ('{"log": "nope", "subject": 1, "hits": [[1, 1]]}', "no policy has a log 'nope'; there are: "),
        ('{"log": "promo", "subject": 1, "hits": [[1]]}', "a hit is [stamp in microseconds, units]"),
        ('{"log": "promo", "subject": 1, "hits": [[1, 1, "xyz"]]}', "16 hexadecimal digits"),
        ('{"log": "promo", "subject": 1, "hits": [[-1, 1]]}', "no hit has this stamp"),
        ('{"log": "promo", "subject": 1, "hits": []}', "1 to 1000 hits, not 0"),
        ('{"log": "promo", "subject": "' + "x" * MOST_LINE_BYTES + '", "hits": []}', f"longer than {MOST_LINE_BYTES}"),
    ],
)
def test_a_line_that_is_wrong_is_named_with_exit_2(line: str, said: str) -> None:
    done = capline("import", "-", stdin=past() + past() + line + "\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("capline: -, line 3: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_files_that_cannot_be_used_are_one_line_with_exit_2() -> None:
    for words, said in (
        (("import", "none.jsonl"), "none.jsonl: No such file"),
        (("export", "no/where.jsonl"), "no/where.jsonl: No such file"),
        (("export", "--json"), "name a file for them"),
        (("export", "out.jsonl", "--policy", "nope"), "no policy 'nope'"),
        (("import",), "Missing argument"),
    ):
        done = capline(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def test_an_export_takes_the_place_of_no_device(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "stdout"
    os.mkfifo(pipe)
    link.symlink_to("/dev/stdout")
    answer("import", "-", stdin=past())
    for name in (pipe, link):
        done = capline("export", str(name))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "not a regular file" in done.stderr
    assert pipe.is_fifo()
    assert link.is_symlink()


def is_full(subject: str) -> bool:
    """Whether it was imported; before the first one there is no store."""
    done = capline("peek", "promo", subject, "--json")
    return done.returncode == 0 and json.loads(done.stdout)["remaining"] == 0


def test_ctrl_c_ends_an_import_that_may_be_run_again() -> None:
    command = [sys.executable, "-m", "capline.cli", "import", "-", "--progress"]
    environment = {**os.environ, **ENVIRONMENT}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        sent = "".join(past(subject) for subject in range(1500))
        process.stdin.write(sent)
        process.stdin.flush()
        deadline = time.monotonic() + 30
        while not is_full("1"):
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        status = process.wait(30)
        said = process.stderr.read()
    assert status == 130
    assert "run the same command again" in said
    assert "Traceback" not in said
    again = answer("import", "-", stdin=sent)
    added, known = again["added"], again["known"]
    assert isinstance(added, int)
    assert isinstance(known, int)
    assert added + known == 1500
    assert known > 0


def test_help_shows_examples() -> None:
    for command in ("export", "import"):
        done = capline(command, "--help")
        assert done.returncode == 0
        assert f"capline {command}" in done.stdout
