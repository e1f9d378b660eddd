"""`capline decide | peek | refund | explain | erase | sweep`, typed as a person types them, in real processes."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.kit.forked import run

POLICIES = """
namespace: shop
policies:
  promo:
    limits: [1/day, 2/week]
    by_segment: {active: [3/day, 10/week]}
    channels: {push: [1/day]}
"""


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policies.yaml").write_text(POLICIES, encoding="utf-8")


def capline(*words: str) -> subprocess.CompletedProcess[str]:
    return run(*words, env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"})


def answer(*words: str) -> dict[str, object]:
    done = capline(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_subjects_day() -> None:
    first = answer("decide", "promo", "42", "--segment", "active")
    assert (first["allowed"], first["limit"], first["remaining"]) == (True, "3/day", 2)
    assert answer("peek", "promo", "42", "--segment", "active")["remaining"] == 1
    refused = capline("decide", "promo", "42")
    assert (refused.returncode, refused.stdout[:31]) == (0, "refused by 1/day: fits in 1 d, ")
    assert capline("decide", "promo", "42", "--exit-code").returncode == 1
    why = capline("explain", "promo", "42", "--segment", "active").stdout
    assert "│ promo " in why
    assert "shop:" not in why
    assert f"hit {first['hit']}" in why
    explained = answer("explain", "promo", "42")
    assert explained["hits"] == [{"stamp_us": first["hit"], "units": 1}]
    assert answer("refund", "promo", "42", str(first["hit"])) == {"refunded": True}
    assert capline("refund", "promo", "42", str(first["hit"])).stdout.startswith("nothing to refund")
    assert answer("decide", "promo", "42", "--channel", "push", "--id", "m1")["allowed"]
    assert answer("decide", "promo", "42", "--channel", "push", "--id", "m1")["allowed"]
    assert answer("erase", "42") == {"erased_logs": 2}
    assert capline("erase", "42").stdout == "nothing was held\n"
    assert answer("sweep") == {"removed_logs": 0}


@pytest.mark.parametrize(
    "words",
    [["peek", "promo", "42"], ["explain", "promo", "42"], ["refund", "promo", "42", "1"], ["erase", "42"], ["sweep"]],
    ids=lambda words: words[0],
)
def test_looking_makes_no_store(tmp_path: Path, words: list[str]) -> None:
    done = capline(*words, "--store", "lmdb://below/store")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("capline: there is no store at below/store")
    assert not (tmp_path / "below").exists()


def test_digits_are_an_integer_unless_said_to_be_text() -> None:
    assert answer("decide", "promo", "42")["allowed"]
    assert answer("decide", "promo", "42", "--text")["allowed"]
    assert not answer("decide", "promo", "42")["allowed"]
    assert not answer("decide", "promo", "i:42")["allowed"]
    assert not answer("decide", "promo", "s:42")["allowed"]


def test_the_store_and_the_policies_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "policies.yaml").rename(tmp_path / "other.yaml")
    monkeypatch.setenv("CAPLINE_POLICIES", "other.yaml")
    monkeypatch.setenv("CAPLINE_STORE", "lmdb://elsewhere")
    assert answer("decide", "promo", "user:1")["allowed"]
    assert (tmp_path / "elsewhere/data.mdb").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["decide", "nope", "1"], "no policy 'nope'; there are: promo"),
        (["decide", "promo", "1", "--segment", "actve"], "has no segment 'actve'; it has: active"),
        (["decide", "promo", "1", "--channel", "sms"], "has no channel 'sms'; it has: push"),
        (["decide", "promo", "1", "--cost", "0"], "a cost is 1 to"),
        (["decide", "promo", "1", "--cost", "x"], "Invalid value for '--cost'"),
        (["decide", "promo", "18446744073709551616"], "above 2^64-1; put s: before it"),
        (["decide", "promo", ""], "a subject is 1 to 512 bytes"),
        (["decide", "promo"], "Missing argument"),
        (["decide", "promo", "1", "-p", "none.yaml"], "none.yaml"),
        (["decide", "promo", "1", "-s", "redis"], "store URL 'redis'"),
        (["decide", "promo", "1", "-s", "lmdb://policies.yaml"], "name a directory"),
        (["frobnicate"], "No such command 'frobnicate'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(words: list[str], said: str) -> None:
    done = capline(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.startswith("capline: ")
    assert done.stderr.count("\n") == 1
