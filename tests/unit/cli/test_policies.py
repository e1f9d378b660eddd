"""`capline policies check | show`."""

import json
from pathlib import Path

import pytest
from tests.kit.cli import CommandLine

GOOD = """namespace: shop
policies:
  promo:
    limits: [1/day, 14/7 days]
    by_segment: {active: [3/day]}
    channels: {push: [gap 30 minutes]}
  psp: {limits: [100/s], algorithm: bucketed, granularity: 100ms}
  calls: {limits: [3/calendar-day], zone: Asia/Tokyo, count_denied: true, layout: bucket, population: 5_000}
"""
BAD = """policies:
  promo: {limits: [1/day, 3/fortnight]}
  psp:
    limit: [1/s]
  api: {limits: [1_/day]}
"""
SHARED = "policies:\n  a: {limits: [1/day], log: x}\n  b: {limits: [1/day], log: x, algorithm: bucketed}\n"


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    for name, text in (("good", GOOD), ("bad", BAD), ("shared", SHARED)):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")


def test_good_files_are_good(capline: CommandLine) -> None:
    done = capline("policies", "check", "good.yaml", "good.yaml")
    assert done == (0, "good.yaml: good, 3 policies\n" * 2, "")
    assert capline.json("policies", "check", "good.yaml") == [
        {"file": "good.yaml", "ok": True, "namespace": "shop", "policies": 3}
    ]


def test_what_waits_for_replicas_is_good_for_stores_of_servers(capline: CommandLine, tmp_path: Path) -> None:
    text = "policies: {promo: {limits: [3/day], wait_replicas: 1}}"
    (tmp_path / "waits.yaml").write_text(text, encoding="utf-8")
    check = ("policies", "check", "waits.yaml")
    assert capline(*check) == (0, "waits.yaml: good, 1 policy; redis stores only, for wait_replicas\n", "")
    assert capline(*check, "--store", "redis://127.0.0.1:1").returncode == 0
    for store in ("memory://", "lmdb:///var/lib/capline"):
        assert "waits.yaml: policy 'promo': wait_replicas needs a redis store" in capline.refused(
            *check, "--store", store
        )


def test_every_fault_of_every_file_is_reported_with_its_line(capline: CommandLine) -> None:
    done = capline("policies", "check", "bad.yaml", "good.yaml", "shared.yaml", "none.yaml")
    assert (done.returncode, done.stdout) == (2, "good.yaml: good, 3 policies\n")
    told = done.stderr.splitlines()
    assert [line.split(": ", 1)[0] for line in told] == [
        "bad.yaml:2",
        "bad.yaml:3",
        "bad.yaml:4",
        "bad.yaml:5",
        "shared.yaml:3",
        "none.yaml",
    ][: len(told)] or told
    assert any(line.startswith("bad.yaml:2: ") and "3/fortnight" in line for line in told)
    assert any(line.startswith("bad.yaml:4: ") and "did you mean limits?" in line for line in told)
    assert any(line.startswith("bad.yaml:5: ") and "1_/day" in line for line in told)
    assert any(line.startswith("shared.yaml:3: ") and "not its algorithm" in line for line in told)
    assert told[-1].startswith("none.yaml: cannot be read")


def test_faults_in_json(capline: CommandLine) -> None:
    done = capline("policies", "check", "bad.yaml", "--json")
    (answer,) = json.loads(done.stdout)
    assert (done.returncode, answer["ok"], done.stderr) == (2, False, "")
    assert {2, 4, 5} <= {fault["line"] for fault in answer["faults"]}


def test_of_many_faults_the_first_are_printed(capline: CommandLine) -> None:
    Path("many.yaml").write_text("policies:\n" + "".join(f"  p{n}: &a{n} {{limits: [1/day]}}\n" for n in range(250)))
    printed = capline("policies", "check", "many.yaml").stderr.splitlines()
    assert (len(printed), printed[-1]) == (101, "many.yaml: 150 more")
    (answer,) = json.loads(capline("policies", "check", "many.yaml", "--json").stdout)
    assert len(answer["faults"]) == 250


def test_what_a_file_says_is_shown_with_its_defaults(capline: CommandLine) -> None:
    shown = capline("policies", "show", "good.yaml").stdout
    assert shown.startswith("namespace shop\n\npromo: log shop:promo, sliding_log, hits kept 7 d\n")
    assert "1/day, 14/week" in shown
    assert "1/30min" in shown
    assert "psp: log shop:psp, bucketed, hits kept 1 s, buckets of 0.1 s" in shown
    assert "refusals count, layout bucket for 5,000 text subjects, zone Asia/Tokyo" in shown
    (psp,) = capline.json("policies", "show", "good.yaml", "psp")["policies"]
    assert (psp["granularity_us"], psp["zone"], psp["layout"]) == (100_000, None, "subject")
    promo = capline.json("policies", "show", "good.yaml")["policies"][0]
    assert (promo["limits"], promo["by_segment"]) == (["1/day", "14/week"], {"active": ["3/day"]})
    assert promo["kept_us"] == 604_800_000_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "bad.yaml"], "bad.yaml:2: "),
        (["show", "good.yaml", "nope"], "good.yaml: no policy 'nope'; there are: calls, promo, psp"),
        (["show", "none.yaml"], "none.yaml: cannot be read"),
        (["check"], "Missing argument"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capline: CommandLine, words: list[str], said: str) -> None:
    assert said in capline.refused("policies", *words)
