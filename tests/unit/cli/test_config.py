"""`capline config`: what it prints, what it changes, what it refuses."""

from pathlib import Path

import pytest
from tests.kit.cli import CommandLine

from capline import Limiter

FILE = "policies:\n  promo: {limits: [3/day]}\n  psp: {limits: [10/s], by_segment: {big: [50/s]}}\n"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policies.yaml").write_text(FILE, encoding="ascii")
    monkeypatch.delenv("CAPLINE_CONFIG_STORE", raising=False)


def test_the_other_commands_see_its_overrides(capline: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    capline.json("config", "set", "policies.yaml")
    capline.json("config", "override", "promo", "u", "10/day")
    subject = ("promo", "u", "--store", "lmdb://log")
    given = ("--config-store", "lmdb://.capline/store")
    assert capline.json("decide", *subject, *given)["remaining"] == 9
    for option in (given, ()):
        if not option:
            monkeypatch.setenv("CAPLINE_CONFIG_STORE", "lmdb://.capline/store")
        assert capline.json("peek", *subject, *option)["remaining"] == 8
        (limit,) = capline.json("explain", *subject, *option)["limits"]
        assert (limit["limit"], limit["binds"], limit["used"], limit["remaining"]) == ("10/day", True, 1, 9)
        assert capline.json("usage", *subject, *option)[0]["remaining"] == 9
    Path("policies.yaml").unlink()
    assert capline.json("explain", *subject)["decision"]["limit"] == "10/day"
    assert capline.json("erase", "u", "--store", "lmdb://log") == {"erased_logs": 1}


def test_a_rollback_to_what_it_is_makes_no_version(capline: CommandLine) -> None:
    capline.json("config", "set", "policies.yaml")
    assert capline.json("config", "rollback", "promo", "1") == {"version": 1}


def test_it_sets_shows_and_rolls_back(capline: CommandLine) -> None:
    assert capline.json("config", "set", "policies.yaml", "--who", "ann") == {"version": 1}
    assert capline.json("config", "set", "policies.yaml") == {"version": 1}  # as it was
    assert capline.json("config", "override", "promo", "user:42", "10/day", "--who", "bob") == {"version": 2}
    assert capline.json("config", "override", "promo", "42", "9/day", "--at", "2040-01-01T00:00Z") == {"version": 3}
    (told,) = capline.json("config", "get", "promo", "--subject", "user:42")["entries"]
    assert (told["who"], told["in_force"], told["version"]) == ("bob", ["10/day"], 2)
    (told,) = capline.json("config", "get", "promo", "--subject", "i:42")["entries"]
    assert (told["value"], told["in_force"], told["effective_at"]) == (["9/day"], None, "2040-01-01T00:00:00.000Z")
    assert len(capline.json("config", "get", "promo", "--overrides")["entries"]) == 2
    assert capline.json("config", "override", "promo", "user:42", "--none") == {"version": 4}
    versions = capline.json("config", "history", "promo", "--subject", "user:42")
    assert [(one["version"], one["value"]) for one in versions] == [(4, None), (2, ["10/day"])]
    assert capline.json("config", "rollback", "promo", "2", "--subject", "user:42") == {"version": 5}
    assert capline.json("config", "delete", "psp", "--if-version", "1") == {"version": 6}
    assert capline.json("config", "rollback", "psp", "1") == {"version": 7}
    assert [one["verb"] for one in capline.json("config", "history")] == [
        *("rollback", "delete", "rollback", "override", "override", "override", "set")
    ]
    with Limiter.from_config("lmdb://.capline/store", "memory://") as limiter:
        assert limiter.decide("promo", "user:42").remaining == 9
        assert limiter.decide("psp", "x", segment="big").remaining == 49


def test_limits_for_a_while_are_shown_with_their_end(capline: CommandLine) -> None:
    until = "2040-01-01T00:00:00.000Z"
    capline.json("config", "set", "policies.yaml")
    assert capline.json("config", "override", "promo", "u", "9/day", "--until", until) == {"version": 2}
    (told,) = capline.json("config", "get", "promo", "--overrides")["entries"]
    assert (told["in_force"], told["effective_at"], told["value"]) == (["9/day"], until, None)
    (version,) = capline.json("config", "history", "promo", "--subject", "u")
    assert (version["before"], version["effective_at"], version["value"]) == (["9/day"], until, None)
    assert "none (before: 9/day)" in capline("config", "history", "promo", "--subject", "u").stdout


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fast.csv", "subject,limits,granularity\nu,5/s,100ms\nv,9/hour,\nw,,\n"),
        (
            "fast.jsonl",
            '{"subject": "u", "limits": ["5/s"], "granularity": "100ms"}\n{"subject": "v", "limits": ["9/hour"]}\n',
        ),
    ],
)
def test_an_override_has_a_granularity_of_its_own(capline: CommandLine, tmp_path: Path, name: str, text: str) -> None:
    policies = "policies: {sums: {limits: [600/hour], algorithm: bucketed, granularity: 1min}}"
    (tmp_path / "sums.yaml").write_text(policies, encoding="ascii")
    capline("config", "set", "sums.yaml")
    assert "granularity" in capline("config", "override", "sums", "x", "5/s").stderr
    assert capline.json("config", "override", "sums", "x", "5/s", "--granularity", "100ms") == {"version": 2}
    assert "limits 5/second; granularity 100000us" in capline("config", "get", "sums", "--subject", "x").stdout
    (tmp_path / name).write_text(text, encoding="ascii")
    assert capline.json("config", "overrides", "sums", name) == {"version": 3}
    own = {"limits": ["5/second"], "granularity": "100000us"}
    told = capline.json("config", "get", "sums", "--overrides")["entries"]
    assert {one["name"]: one["in_force"] for one in told} == {"sums u": own, "sums v": ["9/hour"], "sums x": own}
    (tmp_path / name).write_text(text.replace("100ms", "1s"), encoding="ascii")
    assert "granularity '1s'" in capline("config", "overrides", "sums", name).stderr


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vips.csv", "limits,subject\n10/day;50/week,user:42\n,user:43\n"),
        (
            "vips.jsonl",
            '{"subject": "user:42", "limits": ["10/day", "50/week"]}\n{"subject": "user:43", "limits": null}\n',
        ),
    ],
)
def test_overrides_of_a_file(capline: CommandLine, tmp_path: Path, name: str, text: str) -> None:
    capline("config", "set", "policies.yaml")
    capline("config", "override", "promo", "user:43", "9/day")
    (tmp_path / name).write_text(text, encoding="ascii")
    assert capline.json("config", "overrides", "promo", name, "--who", "ann") == {"version": 3}
    (told,) = capline.json("config", "get", "promo", "--overrides")["entries"]
    assert (told["name"], told["in_force"], told["who"]) == ("promo user:42", ["10/day", "50/week"], "ann")


def test_overrides_are_listed_page_by_page(capline: CommandLine, tmp_path: Path) -> None:
    capline("config", "set", "policies.yaml")
    subjects = ["user:42", "s:42", "42", "7", "b"]
    rows = "".join(f"{one},10/day\n" for one in subjects)
    (tmp_path / "vips.csv").write_text(f"subject,limits\n{rows}", encoding="ascii")
    capline("config", "overrides", "promo", "vips.csv")
    every = capline.json("config", "get", "promo", "--overrides")
    assert (len(every["entries"]), every["next"]) == (len(subjects), None)
    words, paged, sizes = ["--limit", "2"], list[object](), list[int]()
    while True:
        page = capline.json("config", "get", "promo", "--overrides", *words)
        paged += page["entries"]
        sizes.append(len(page["entries"]))
        if page["next"] is None:
            break
        shown = capline("config", "get", "promo", "--overrides", *words).stdout
        assert f"there are more: --after {page['next']}" in shown
        words = ["--limit", "2", "--after", page["next"]]
    assert (paged, sizes) == (every["entries"], [2, 2, 1])
    assert "give --overrides" in capline.refused("config", "get", "promo", "--limit", "2")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "subject\nu\n", "a.csv, line 1: the header names the columns subject and limits"),
        ("a.csv", "subject,limits\nu,10/day\nv,soon\n", "a.csv, line 3: limit 'soon'"),
        ("a.csv", "subject,limits\nu,10/day\nu,\n", "a.csv, line 3: u is there twice; give it once"),
        ("a.csv", "subject,limits\nu\n", "a.csv, line 2: a row has a subject and limits, which may be empty"),
        ("a.jsonl", '{"subject": "u", "limit": []}\n', "a.jsonl, line 1: Object"),
        ("a.jsonl", '{"subject": "u", "limits": ["1/day"]}\n\n', "a.jsonl, line 2: "),
        ("a.jsonl", '{"subject": "u", "subject": "v", "limits": []}\n', "a.jsonl, line 1: a key twice"),
        ("none.csv", None, "none.csv: No such file or directory"),
    ],
)
def test_a_file_of_overrides_that_is_wrong_changes_nothing(
    capline: CommandLine, tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    capline("config", "set", "policies.yaml")
    if text is not None:
        (tmp_path / name).write_text(text, encoding="ascii")
    assert said in capline.refused("config", "overrides", "promo", name)
    assert capline.json("config", "get")["version"] == 1


def test_it_prints_tables_for_people(capline: CommandLine) -> None:
    capline("config", "set", "policies.yaml", "--who", "ann")
    capline("config", "override", "promo", "user:42", "10/day", "50/week")
    shown = capline("config", "get").stdout
    assert "psp    1        ann  limits 10/second; by_segment big: 50/second" in shown
    assert "version 2; overrides: promo 1" in shown
    assert "10/day, 50/week" in capline("config", "get", "promo", "--overrides").stdout
    assert "promo user:42" in capline("config", "history").stdout
    assert "limits 3/day" in capline("config", "history", "promo").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["get", "nobody"], "no policy 'nobody' in the configuration; there are: promo, psp"),
        (["get", "--overrides"], "name the policy as well"),
        (["get", "promo", "--subject", "x"], "x has no override under policy 'promo'"),
        (["get", "--store", "lmdb://elsewhere"], "there is no configuration; capline config set makes one"),
        (["get", "--store", "http://x"], "unknown kind; use lmdb:///path"),
        (["set", "missing.yaml"], "cannot be read"),
        (["set", "policies.yaml", "--only", "x"], "policies.yaml has no policy 'x'"),
        (["set", "policies.yaml", "--if-version", "0"], "is of version 1, not 0; read it again"),
        (["override", "promo", "u"], "give the limits of the subject"),
        (["override", "promo", "u", "1/day", "--none"], "give the limits of the subject"),
        (["override", "promo", "u", "x"], "policy 'promo': limit 'x'"),
        (["override", "promo", "u", "1/day", "--at", "2020-01-01T00:00Z"], "is too soon"),
        (["override", "promo", "u", "1/day", "--at", "soon"], "is not an instant"),
        (["override", "nobody", "u", "1/day"], "no policy 'nobody' in the configuration"),
        (["history", "nobody"], "nothing was ever set for 'nobody'"),
        (["rollback", "promo", "9"], "policy 'promo' has no version 9; it has: 1"),
        (["delete", "nobody"], "no policy 'nobody' in the configuration"),
    ],
)
def test_what_is_wrong_is_one_line(capline: CommandLine, words: list[str], said: str) -> None:
    capline("config", "set", "policies.yaml")
    assert said in capline.refused("config", *words)
    assert capline.json("config", "get")["version"] == 1
