"""`capline segments` by a real process: what it prints, what it exits with, and that errors are one line."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.kit import forked
from tests.kit.program import answer_in_json, refusal_of


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run("segments", *arguments, cwd=directory, env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"})


def answer(directory: Path, *arguments: str) -> Any:
    return answer_in_json(run(directory, *arguments, "--json"))


def refusal(directory: Path, *arguments: str) -> str:
    return refusal_of(run(directory, *arguments))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "users.csv").write_text("id,segment\n1,new\n2,new\n4294967295,active\n7,active\n7,active\n")
    (tmp_path / "both.csv").write_text("id,segment\n1,new\n1,active\n2,active\n")
    return tmp_path


@pytest.fixture
def built(here: Path) -> Path:
    answer(here, "build", "users.csv", "--out", "snapshots/one", "--version", "v1")
    return here


def test_build_and_show(here: Path) -> None:
    told = answer(here, "build", "users.csv", "--out", "snapshots/one", "--version", "v1")
    assert (told["path"], told["version"], told["cardinality"], told["exclusive"]) == ("snapshots/one", "v1", 4, True)
    assert [(each["name"], each["cardinality"]) for each in told["segments"]] == [("active", 2), ("new", 2)]
    shown = answer(here, "show", "snapshots/one")
    assert shown == {**told, "verified": True}
    text = run(here, "show", "snapshots/one").stdout
    assert "snapshots/one: version v1, created " in text
    assert ["active", "2"] in [line.split()[:2] for line in text.splitlines()]


def test_build_by_an_order_and_not_without(here: Path) -> None:
    told = refusal(here, "build", "both.csv", "--out", "x")
    assert told.startswith("capline: 1 id is in two segments or more: 1 (active and new); fix the rows")
    assert not (here / "x").exists()
    built = answer(here, "build", "both.csv", "--out", "x", "--first-wins", "new, active")
    assert [(each["name"], each["cardinality"]) for each in built["segments"]] == [("new", 1), ("active", 1)]
    assert "segment 'active' is not in the order new" in refusal(
        here, "build", "both.csv", "--out", "y", "--first-wins", "new"
    )


def test_build_from_other_columns_and_globs(here: Path) -> None:
    for name in ("a", "b"):
        (here / f"part-{name}.csv").write_text(f"user,tier\n{ord(name)},new\n")
    told = answer(here, "build", "part-*.csv", "--out", "x", "--id-column", "user", "--segment-column", "tier")
    assert told["cardinality"] == 2


def test_build_refuses_bad_input_and_taken_names(built: Path) -> None:
    (built / "bad.csv").write_text("id,segment\n1,new\n-2,new\n")
    assert refusal(built, "build", "bad.csv", "--out", "x") == (
        "capline: bad.csv, row 2: id -2 is negative; ids are 0 to 4294967295"
    )
    assert "none.csv: no such file" in refusal(built, "build", "none.csv", "--out", "x")
    assert "there is a snapshot already" in refusal(built, "build", "users.csv", "--out", "snapshots/one")
    told = answer(built, "build", "both.csv", "--out", "snapshots/one", "--first-wins", "new,active", "--replace")
    assert answer(built, "show", "snapshots/one")["version"] == told["version"]


def test_a_damaged_snapshot_is_one_line(built: Path) -> None:
    path = next((built / "snapshots/one").glob("new-*.roaring"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for command in (["show"], ["contains"], ["members"]):
        rest = {"contains": ["1"], "members": ["new"]}.get(command[0], [])
        assert "does not match the SHA-256" in refusal(built, *command, "snapshots/one", *rest)


def test_list(built: Path) -> None:
    answer(built, "build", "users.csv", "--out", "snapshots/a-later-one", "--version", "v2")
    (built / "snapshots/broken").mkdir()
    (built / "snapshots/broken/manifest.json").write_text("{")
    (built / "snapshots/.hidden.tmp").mkdir()
    (built / "snapshots/something-else").mkdir()
    told = answer(built, "list", "snapshots")
    assert [each.get("version") for each in told] == ["v1", "v2", None]
    assert "broken/manifest.json: not a segment manifest" in told[2]["error"]
    text = run(built, "list", "snapshots")
    assert [line.split()[0] for line in text.stdout.splitlines()] == ["snapshot", "one", "a-later-one", "broken"]
    assert "not a segment manifest" in text.stderr
    assert answer(built, "list", "snapshots/something-else") == []
    assert "none: cannot list it: No such file" in refusal(built, "list", "none")


def test_contains(built: Path) -> None:
    assert run(built, "contains", "snapshots/one", "1", "4294967295", "3").stdout == (
        "1\tnew\n4294967295\tactive\n3\t-\n"
    )
    assert answer(built, "contains", "snapshots/one", "7", "3") == {
        "version": "v1",
        "ids": [{"id": 7, "segment": "active"}, {"id": 3, "segment": None}],
    }
    assert "id 4294967296 is not 0 to 4294967295" in refusal(built, "contains", "snapshots/one", "4294967296")
    for bad in ("x", "1.0", "9" * 5000, "٣"):
        assert "is not a number from 0 to 4294967295" in refusal(built, "contains", "snapshots/one", bad)
    assert "id '-1' is not a number" in refusal(built, "contains", "snapshots/one", "--", "-1")


def test_members(built: Path) -> None:
    page = run(built, "members", "snapshots/one", "active", "--limit", "1")
    assert (page.stdout, page.stderr) == ("7\n", "2 in all; the next page: --after 7\n")
    page = run(built, "members", "snapshots/one", "active", "--after", "7")
    assert (page.stdout, page.stderr) == ("4294967295\n", "")
    told = answer(built, "members", "snapshots/one", "--expression", "(active | new) - new", "--limit", "1")
    assert told == {"version": "v1", "cardinality": 2, "ids": [7], "next": 7}
    assert answer(built, "members", "snapshots/one", "new")["next"] is None
    assert "no segment 'old'; there are: active, new" in refusal(built, "members", "snapshots/one", "old")
    assert "column 8" in refusal(built, "members", "snapshots/one", "--expression", "new &  |")
    for arguments in ([], ["new", "--expression", "new"]):
        assert "one of the two" in refusal(built, "members", "snapshots/one", *arguments)


def test_text_ids(here: Path) -> None:
    (here / "texts.csv").write_text("id,segment\nu-1,new\nx y,active\nu-1,vip\n")
    build = ("build", "texts.csv", "--kind", "text", "--overlapping", "vip", "--out")
    assert "say where it is kept: --ids DIR" in refusal(here, *build, "one")
    told = answer(here, *build, "one", "--ids", "ids")
    assert (told["ids"], told["exclusive"], told["cardinality"]) == ("text", False, 3)
    assert answer(here, "contains", "one", "u-1", "x y", "?")["ids"] == [
        {"id": "u-1", "segment": "new", "sets": ["new", "vip"]},
        {"id": "x y", "segment": "active", "sets": ["active"]},
        {"id": "?", "segment": None, "sets": []},
    ]
    assert run(here, "contains", "one", "u-1", "?").stdout == "u-1\tnew\tnew,vip\n?\t-\n"
    assert answer(here, "members", "one", "--expression", "new | active")["ids"] == ["u-1", "x y"]
    assert run(here, "classify", "one", "texts.csv").stdout == "active\t1\nnew\t1\n-\t0\n"
    # The next build: who is known keeps the number, so the bitmaps of the same rows are the same files.
    (here / "texts.csv").write_text("id,segment\na new one,new\nu-1,new\nx y,active\nu-1,vip\n")
    answer(here, *build, "two", "--ids", "ids")
    kept = {path.name for path in (here / "one").glob("[av]*.roaring")}
    assert kept == {path.name for path in (here / "two").glob("[av]*.roaring")}


def test_wide_ids_and_counts(here: Path) -> None:
    (here / "wide.csv").write_text("id,segment\n18446744073709551615,a\n7,b\n7,vip\n")
    assert "is above 4294967295" in refusal(here, "build", "wide.csv", "--out", "x")
    answer(here, "build", "wide.csv", "--kind", "uint64", "--overlapping", "vip", "--out", "x")
    assert answer(here, "contains", "x", "18446744073709551615")["ids"][0]["segment"] == "a"
    assert "is not a number from 0 to 18446744073709551615" in refusal(here, "contains", "x", "u-1")
    told = answer(here, "counts", "x")
    assert told["cardinalities"] == {"a": 1, "b": 1, "vip": 1}
    assert told["shared"] == [{"sets": ["a", "vip"], "cardinality": 0}, {"sets": ["b", "vip"], "cardinality": 1}]
    assert run(here, "counts", "x", "--expression", "(a | b) - vip").stdout == "1\n"


def test_partial_builds_are_merged(here: Path) -> None:
    for name in ("users", "both"):
        answer(here, "build", f"{name}.csv", "--partial", "--out", f"parts/{name}")
    assert "a partial build cannot be served" in refusal(here, "contains", "parts/users", "1")
    assert answer(here, "show", "parts/users")["partial"]
    told = refusal(here, "merge", "parts/users", "parts/both", "--out", "x")
    assert told.startswith("capline: 2 ids are in two segments or more: 1 (active and new), 2 (active and new)")
    merged = answer(here, "merge", "parts/users", "parts/both", "--out", "x", "--first-wins", "new,active")
    whole = answer(here, "build", "users.csv", "both.csv", "--out", "y", "--first-wins", "new,active")
    assert merged["segments"] == whole["segments"]
    assert "give --first-wins to 'merge'" in refusal(
        here, "build", "users.csv", "--partial", "--first-wins", "new,active", "--out", "z"
    )


def test_classify(built: Path) -> None:
    (built / "audience.csv").write_text("id\n1\n7\n3\n7\n")
    assert run(built, "classify", "snapshots/one", "audience.csv").stdout == "active\t1\nnew\t1\n-\t1\n"
    told = answer(built, "classify", "snapshots/one", "audience.csv", "--out", "parts")
    assert told == {"version": "v1", "audience": 3, "segments": {"active": 1, "new": 1}, "in_none": 1}
    assert sorted(path.name for path in (built / "parts").iterdir()) == [
        "active.roaring",
        "new.roaring",
        "none.roaring",
    ]
    assert answer(built, "classify", "snapshots/one", "parts/none.roaring")["in_none"] == 1


def test_classify_does_not_write_over_a_segment_called_none(built: Path) -> None:
    (built / "both.csv").write_text("id,segment\n1,none\n2,new\n")
    (built / "audience.csv").write_text("id\n1\n9\n")
    run(built, "build", "both.csv", "--out", "snapshots/odd")
    assert answer(built, "classify", "snapshots/odd", "audience.csv")["segments"]["none"] == 1
    assert "called 'none'" in refusal(built, "classify", "snapshots/odd", "audience.csv", "--out", "parts")
    assert not (built / "parts").exists()
