"""`capline demo`, as a person types it, on the real data; then what it says to type next."""

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.kit import forked
from tests.kit.serving import Serving

ROOT = Path(__file__).parents[2]
CAPLINE = [sys.executable, "-m", "capline.cli"]


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments, cwd=cwd)


def purchases(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "purchases.csv"
    path.write_text("customer_id,date\n" + "".join(f"{row}\n" for row in rows))
    return path


@pytest.mark.deep
def test_the_whole_demo_and_every_command_that_it_names(tmp_path: Path) -> None:
    done = run("demo", cwd=tmp_path)  # its data comes with capline
    assert done.returncode == 0, done.stderr
    for said in ("1,892,385", "1,454,300", "438,085", "69,659 purchases by 23,570 customers", "16.8 MB"):
        assert said in done.stdout
    assert done.stdout.count("holds") >= 4
    assert "FAILS" not in done.stdout
    assert (tmp_path / "build/demo/report.html").stat().st_size < 1_000_000
    named = [line.strip() for line in done.stdout.splitlines() if line.startswith("  capline ")]
    assert [command.split()[1] for command in named] == ["campaign", "decide", "explain", "segments", "replay", "serve"]
    *named, serve = named
    answers = [run(*shlex.split(command)[1:], cwd=tmp_path) for command in named]
    assert [answer.returncode for answer in answers] == [0] * len(named), [answer.stderr for answer in answers]
    assert "14,444" in answers[0].stdout  # of 23,570, as the forecast of 2 July 1998
    assert "refused" in run(*shlex.split(named[1])[1:], cwd=tmp_path).stdout
    with Serving(tmp_path, *shlex.split(serve)[2:]) as service:
        answer = service.ask("/v1/decide", policy="promo", subject=42).json()
        assert (answer["allowed"], answer["segment"]) == (False, "churned")  # the command above took the last one
        assert service.stop() == 0


def test_json_is_one_document_and_nothing_else(tmp_path: Path) -> None:
    data = purchases(tmp_path, "1,1997-01-01", "1,1997-01-01", "2,1997-01-05", "1,1997-03-09")
    done = run("demo", "--data", str(data), "--out", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["holds"] is True
    assert answer["report"] == str(tmp_path / "out/report.html")
    total = answer["result"]["figures"]["total"]
    assert total["asked"] == total["sent"] + sum(total["refused"].values()) == answer["result"]["decisions"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.csv", None, "no such file"),
        ("cut.csv.gz", b"\x1f\x8b\x08\x00garbage", "not a whole gzip file"),
        ("empty.csv", b"", "empty"),
        ("bad.csv", b"customer_id,date\n1,1997-13-01\n", "row 1: time '1997-13-01'"),
    ],
)
def test_bad_data_is_one_line_and_exit_2(tmp_path: Path, name: str, content: bytes | None, says: str) -> None:
    data = tmp_path / name
    if content is not None:
        data.write_bytes(content)
    done = run("demo", "--data", str(data), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_ctrl_c_ends_it_cleanly_and_the_next_run_starts_anew(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [*CAPLINE, "demo", "--out", str(out)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        deadline = time.monotonic() + 60
        while not (out / "store/data.mdb").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)  # until it is at work, whenever that is
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "")
    assert stderr.strip() == "interrupted: no report was written; the next run starts again"
    assert not (out / "report.html").exists()
    data = purchases(tmp_path, "1,1997-01-01")
    assert run("demo", "--data", str(data), "--out", str(out)).returncode == 0


def test_replay_counts_by_segment_and_limit(tmp_path: Path) -> None:
    events = tmp_path / "events.csv"
    events.write_text("who,at,kind\nann,0,vip\nann,1,vip\nbob,1,\nbob,2,\nann,3,vip\n")
    policies = tmp_path / "policies.yaml"
    policies.write_text("policies: {psp: {limits: [1/10s], by_segment: {vip: [2/10s, 9/day]}}}")
    options = [
        "--policy",
        "psp",
        "-p",
        str(policies),
        "--subject-column",
        "who",
        "--time-column",
        "at",
        "--segment-column",
        "kind",
    ]
    done = run("replay", str(events), *options, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    of_policy = answer["policies"]["psp"]
    assert (of_policy["events"], of_policy["allowed"], of_policy["refused"]) == (5, 3, 2)
    assert answer["segments"]["psp"] == [
        {"segment": None, "asked": 2, "allowed": 1, "refused": {"1/10s": 1}},
        {"segment": "vip", "asked": 3, "allowed": 2, "refused": {"2/10s": 1}},
    ]
    shown = run("replay", str(events), *options)
    assert "5 events, 2 of them refused" in shown.stdout
