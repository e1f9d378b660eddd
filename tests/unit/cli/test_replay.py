"""`capline replay`: any file of events in, the same counts out; what is guessed is told, what is missing is named."""

import fcntl
import gzip
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.kit.cli import CommandLine

from capline.model.subject import short_subject

pa: Any = import_module("pyarrow")  # it brings no types along
pq: Any = import_module("pyarrow.parquet")

ROOT = Path(__file__).parents[3]
CDNOW = ROOT / "examples/data/cdnow_transactions.csv.gz"
ACCESS = ROOT.parent / "shared/data/access.log.gz"

ROWS = [("ann", 0), ("bob", 5), ("ann", 65), ("ann", 30), ("ann", 65), ("bob", 66), ("ann", 70)]
LIMITS = ("--limit", "1/minute", "--limit", "2/hour")
EXPECTED = {
    "events": 7,
    "allowed": 4,
    "refused": 3,
    "by_limit": {"1/minute": 3, "2/hour": 0},
    "by_binding": {"1/minute": 1, "2/hour": 2},
    "subjects": 2,
    "subjects_refused": 1,
    "top_refused": [["ann", 3]],
}


def access_line(subject: str, at: int) -> str:
    stamp = datetime.fromtimestamp(at - 3600 * 2, UTC)  # the clock of UTC-2
    return f'{subject} - - [{stamp:%d/%b/%Y:%H:%M:%S} -0200] "GET /{at} HTTP/1.1" 200 {at}'


LATER = 86_400 * 366
FORMS = {
    "events.csv": "user_id,order_id,ts\n" + "".join(f"{who},{n},{at}\n" for n, (who, at) in enumerate(ROWS)),
    "quoted.csv": "user_id,ts\n" + "".join(f'"{who}",{at}\n' for who, at in ROWS),
    "iso.csv": "user,when\n" + "".join(f"{who},{datetime.fromtimestamp(at, UTC).isoformat()}\n" for who, at in ROWS),
    "events.jsonl": "".join(f"{json.dumps({'client': who, 'ts': at})}\n" for who, at in ROWS),
    "common.log": "".join(f"{access_line(who, at + LATER)}\n" for who, at in ROWS),
    "combined.log": "".join(rf'{access_line(who, at + LATER)} "-" "a \"b\" c"' + "\n" for who, at in ROWS),
}


def packed(form: str, data: bytes) -> bytes:
    if form == "zst":
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(data)
        return sink.getvalue().to_pybytes()
    return gzip.compress(data) if form == "gz" else data


@pytest.mark.parametrize("packing", ["", "gz", "zst", "-"])
@pytest.mark.parametrize("name", FORMS)
def test_the_same_events_in_any_file_have_the_same_counts(
    tmp_path: Path, capline: CommandLine, monkeypatch: pytest.MonkeyPatch, name: str, packing: str
) -> None:
    data = packed(packing, FORMS[name].encode())
    if packing == "-":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
        name = "-"
    else:
        name += f".{packing}" * bool(packing)
        (tmp_path / name).write_bytes(data)
    done = capline("replay", name, *LIMITS, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["policies"] == {"default": EXPECTED}
    assert "subjects are" in done.stderr


@pytest.mark.parametrize("kind", ["timestamp", "zoned", "date", "text", "seconds", "fractions"])
def test_parquet_in_all_types_of_time(tmp_path: Path, capline: CommandLine, kind: str) -> None:
    days = 86_400 if kind == "date" else 1
    times: dict[str, Any] = {
        "timestamp": pa.array([at * 1_000_000_000 for _, at in ROWS], pa.timestamp("ns")),
        "zoned": pa.array([at * 1000 for _, at in ROWS], pa.timestamp("ms", "Asia/Tokyo")),
        "date": pa.array([at for _, at in ROWS], pa.date32()),
        "text": pa.array([datetime.fromtimestamp(at, UTC).strftime("%Y%m%dT%H:%M:%SZ") for _, at in ROWS]),
        "seconds": pa.array([at for _, at in ROWS], pa.uint32()),
        "fractions": pa.array([at + 0.25 for _, at in ROWS], pa.float64()),
    }
    who = pa.array([name for name, _ in ROWS]).dictionary_encode()
    pq.write_table(pa.table({"time": times[kind], "amount": who, "subject": who}), tmp_path / "events.csv")
    limits = ("--limit", f"1/{60 * days}s", "--limit", f"2/{3600 * days}s")
    done = capline("replay", "events.csv", *limits, "--json")
    found = json.loads(done.stdout)["policies"]["default"]
    assert {**found, "by_limit": 0, "by_binding": 0} == {**EXPECTED, "by_limit": 0, "by_binding": 0}
    assert list(found["by_binding"].values()) == [1, 2]
    assert "events.csv: Parquet, whatever its name says" in done.stderr
    assert ("without a zone" in done.stderr) == (kind in {"timestamp", "date"})


def test_a_row_of_parquet_that_is_no_event_is_named(tmp_path: Path, capline: CommandLine) -> None:
    pq.write_table(pa.table({"time": [1, 2], "subject": ["a", None]}), tmp_path / "events.parquet")
    done = capline("replay", "events.parquet", *LIMITS)
    assert (done.returncode, "events.parquet, row 2: a subject is 1 to 512 bytes" in done.stderr) == (2, True)


def test_a_page_of_parquet_that_was_changed_is_refused(tmp_path: Path, capline: CommandLine) -> None:
    columns = pa.table({"time": range(1000), "subject": ["a"] * 1000})
    options: dict[str, Any] = {"write_page_checksum": True, "compression": "none", "use_dictionary": False}
    pq.write_table(columns, tmp_path / "e.parquet", **options)
    data = bytearray((tmp_path / "e.parquet").read_bytes())
    data[2000] ^= 1
    (tmp_path / "e.parquet").write_bytes(data)
    assert "could not verify page integrity" in capline.refused("replay", "e.parquet", *LIMITS)


@pytest.mark.parametrize("name", FORMS)
def test_subjects_of_more_than_512_bytes_are_counted_like_any_other(
    tmp_path: Path, capline: CommandLine, name: str
) -> None:
    """Each by its own history, by columns, by rows and by lines: a user agent may be as long."""
    text = FORMS[name].replace("ann", "Mozilla/5.0-" + "a" * 600).replace("bob", "Mozilla/5.0-" + "a" * 601)
    (tmp_path / name).write_text(text)
    found = capline.json("replay", name, *LIMITS)["policies"]["default"]
    assert {**found, "top_refused": 0} == {**EXPECTED, "top_refused": 0}
    assert found["top_refused"] == [[short_subject("Mozilla/5.0-" + "a" * 600), 3]]


def test_a_line_is_read_as_far_as_the_columns_need(tmp_path: Path, capline: CommandLine) -> None:
    """A server that stops in the middle of a user agent has written the referer."""
    text = FORMS["combined.log"]
    (tmp_path / "a.log").write_text(text + text.splitlines()[0][:-3])
    counts = {
        column: (found["policies"]["default"]["events"], found["broken_lines"])
        for column in ("address", "referer", "agent")
        if (found := capline.json("replay", "a.log", *LIMITS, "--subject-column", column))
    }
    assert counts == {"address": (8, 0), "referer": (8, 0), "agent": (7, 1)}


@pytest.mark.parametrize("name", ["events.jsonl", "combined.log"])
def test_broken_lines_are_counted_and_the_first_five_told(tmp_path: Path, capline: CommandLine, name: str) -> None:
    first, *lines = FORMS[name].splitlines(keepends=True)
    broken = ["{\n", "\n", "{\n", *["1.2.3.4 - - [oops\n"] * 5, first[:15] + "\xff"]
    (tmp_path / name).write_bytes("".join([first, *broken[:2], *lines, *broken[2:]]).encode("latin-1"))
    done = capline("replay", name, *LIMITS, "--json")
    found = json.loads(done.stdout)
    assert (found["policies"]["default"], found["broken_lines"]) == (EXPECTED, 8)
    assert f"{name}: 8 broken lines are left out (--strict refuses them):" in done.stderr
    told = [line.partition(":")[0] for line in done.stderr.splitlines() if line.startswith("line ")]
    assert told == [f"line {number}" for number in (2, 10, 11, 12, 13)]
    strict = capline("replay", name, *LIMITS, "--strict")
    assert (strict.returncode, strict.stdout) == (2, "")
    assert strict.stderr.splitlines()[-1] == f"capline: {name}, line 2: '{{' is broken; mend it, or leave --strict out"


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("a,b\n1,2\n", (), "say the limits (--limit 20/minute, or --policy NAME of a policy file), and the column of"),
        ("a,b\n1,2\n", LIMITS, "subjects (--subject-column NAME), and the column of times (--time-column NAME)"),
        (
            "user,client,ts\n1,2,3\n",
            LIMITS,
            "say the column of subjects (--subject-column NAME); its columns are: user,",
        ),
        ("user,a,b\n1,2024-05-06,2024-05-06\n", LIMITS, "say the column of times (--time-column NAME)"),
        ("user,ts\n1,2\n", (*LIMITS, "--zone-column", "tz"), "no column 'tz'; there are: 'user, ts'"),
        (FORMS["common.log"], (*LIMITS, "--subject-column", "who"), "no column 'who'; there are: 'address, ident"),
        ("user,ts\n1,2\n", ("--compare", "tight"), "--compare is name=limits, like tight=20/minute,100/hour"),
        ("user,ts\n1,2\n", ("--compare", "a=1/s", "--compare", "a=2/s"), "two sets of limits are named 'a'"),
        ("user,ts\n1,2\n", ("--limit", "soon"), "limit 'soon'"),
        ("user,ts\n1,2\n", ("--policy", "p"), "policies.yaml"),
        ("user,\0ts\n1,2\n", LIMITS, "not text in UTF-8"),
        ("user,ts\n1,2\n", (*LIMITS, "--report", "gone/out.html"), "gone/out.html: there is no folder gone; make it"),
    ],
)
def test_what_is_missing_is_named_in_one_line(
    tmp_path: Path, capline: CommandLine, text: str, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "events.csv").write_text(text)
    assert said in capline.refused("replay", "events.csv", *words)


def test_several_limits_are_set_side_by_side_and_times_without_a_zone_are_told(
    tmp_path: Path, capline: CommandLine
) -> None:
    (tmp_path / "policies.yaml").write_text("policies: {p: {limits: [1/hour]}, q: {limits: [1/calendar-day]}}")
    (tmp_path / "e.csv").write_text("id,subject,time\n1,ann,2024-05-06T23:30:00\n2,ann,2024-05-07T00:15:00\n")
    words = ("replay", "e.csv", "--policy", "p", "--policy", "q", "--compare", "loose=2/hour,9/day", "--sort")
    found = capline.json(*words)["policies"]
    assert {name: counts["allowed"] for name, counts in found.items()} == {"loose": 2, "p": 1, "q": 2}
    done = capline(*words)
    assert "e.csv: times without a zone, like 2024-05-06T23:30:00, are read as UTC" in done.stderr
    assert "policy p: 2 events, 1 of them refused" in done.stdout
    assert "1 of 1 subjects were refused, most of all ann (1)" in done.stdout


def test_what_real_purchases_and_a_real_access_log_come_to(capline: CommandLine) -> None:
    found = capline.json("replay", str(CDNOW), "--limit", "1/7 days")["policies"]["default"]
    assert (found["allowed"], found["events"], found["top_refused"][0]) == (61_915, 69_659, [14_048, 151])
    assert found["by_limit"] == found["by_binding"] == {"1/week": 7_744}
    assert len(found["top_refused"]) == 10
    if not ACCESS.exists():
        pytest.skip("the access log is not part of the project")
    found = capline.json("replay", str(ACCESS), "--limit", "10/minute")["policies"]["default"]
    assert (found["allowed"], found["events"]) == (8_271, 10_000)


def test_the_report_says_its_findings_and_holds_them_in_one_small_file(tmp_path: Path, capline: CommandLine) -> None:
    words = ("--compare", "loose=1/week", "--compare", "wide=9/day", "--report", "out.html")
    (tmp_path / "<b>.csv").write_text(FORMS["events.csv"].replace("ann", "<i>ann"))
    done = capline("replay", "<b>.csv", *LIMITS, *words)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    assert not re.search(r"https?://|src=|href=|@import|url\(|<script|<b>|<i>ann", text)
    for title in (
        "Of 7 events policy default refuses 42.9%, loose refuses 71.4%, wide refuses 0.0%",
        "Policy loose refuses 71.4% of the events, wide 0.0%",
        "Policy default refuses 42.9% of the events, the most in the second from 1970-01-01 00:00:30: 1",
        "1/minute is the first to refuse in 100.0% of the refusals of policy default",
        "1 of 2 subjects are refused by policy default; the 1 most refused have 100.0% of all refusals",
        "Policy wide refuses nothing",
    ):
        assert f">{title}</h" in text, title
    assert text.count("<details>") == text.count("<h2>") == 7


def waits_for_input(pid: int, pipe: int) -> bool:
    """Whether this process has read what is in the pipe, and sleeps."""
    unread = int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
    return not unread and Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("lines", [5_000, pytest.param(500_000, marks=pytest.mark.deep)])
def test_who_interrupts_it_gets_130_and_no_file(tmp_path: Path, lines: int) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = [sys.executable, "-m", "capline.cli", "replay", "-", *LIMITS, "--report", str(tmp_path / "out.html")]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, cwd=tmp_path) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        # More than a pipe holds, so it is reading by then; the end does not come, so it waits for more.
        running.stdin.write(b'1.2.3.4 - - [26/Nov/2026:11:00:00 +0000] "GET / HTTP/1.1" 200 5\n' * lines)
        running.stdin.flush()
        while not waits_for_input(running.pid, running.stdin.fileno()):
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
        assert running.stdout.read() == b""
    assert list(tmp_path.rglob("*")) == [temporary]


ON_A_TERMINAL = """
import fcntl, termios
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
from capline.cli.start import main
main()
"""


@pytest.mark.parametrize("interrupted", [False, True])
def test_on_a_terminal_a_bar_is_shown_and_taken_away(tmp_path: Path, interrupted: bool) -> None:
    terminal, its_end = pty.openpty()
    words = [sys.executable, "-c", ON_A_TERMINAL, "replay", "-", *LIMITS]
    pipe = subprocess.PIPE
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        words, env=environment, stdin=pipe, stdout=pipe, stderr=its_end, cwd=tmp_path, start_new_session=True
    ) as running:
        os.close(its_end)
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(b'1.2.3.4 - - [26/Nov/2026:11:00:00 +0000] "GET / HTTP/1.1" 200 5\n' * 5)
        running.stdin.flush()
        shown = b""
        while b"reading" not in shown:
            shown += os.read(terminal, 4096)
        if interrupted:
            os.write(terminal, b"\x03")  # Ctrl-C, as it is typed
        else:
            running.stdin.close()
        with suppress(OSError):  # how a terminal ends
            while more := os.read(terminal, 4096):
                shown += more
        assert running.wait(60) == (130 if interrupted else 0)
        answer = running.stdout.read()
    os.close(terminal)
    assert (b"5 events" in answer) != interrupted
    assert (b"deciding" in shown) != interrupted
    assert b"Traceback" not in shown
    # The cursor is there again, and the bar is not.
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
    assert shown.endswith(b"\x1b[2K")
