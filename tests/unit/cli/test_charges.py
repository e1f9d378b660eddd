"""`capline charge | settle | usage`, and `peek --cost 0`."""

from pathlib import Path

import pytest
from tests.kit.cli import CommandLine

POLICIES = "namespace: llm\npolicies:\n  tokens: {limits: [1000/min, 9000/day]}\n"


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(POLICIES, encoding="utf-8")


def test_an_estimate_a_call_and_its_settlement(capline: CommandLine) -> None:
    hit = capline.json("decide", "tokens", "key:7", "--cost", "400")["hit"]
    assert capline.json("settle", "tokens", "key:7", str(hit), "250") == {"settled": True}
    assert [one["used"] for one in capline.json("usage", "tokens", "key:7")] == [250, 250]
    assert capline.json("peek", "tokens", "key:7", "--cost", "0")["remaining"] == 750
    charged = [capline.json("charge", "tokens", "key:7", "1100", "--id", "call-1") for _ in range(2)]
    assert [one["hit"] for one in charged] == [charged[0]["hit"]] * 2
    assert capline("peek", "tokens", "key:7", "--cost", "0", "--exit-code").returncode == 1
    shown = capline("usage", "tokens", "key:7").stdout
    assert "1000/minute" in shown
    assert "1350" in shown
    assert capline("charge", "tokens", "key:7", "1").stdout.startswith("charged: 0 left under 1000/minute, hit ")
    assert capline("settle", "tokens", "key:7", str(hit), "0").stdout == "settled\n"
    assert capline("settle", "tokens", "key:7", str(hit), "9").stdout.startswith("nothing to settle")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["charge", "tokens", "key:7", "0"], "a cost is 1 to"),
        (["peek", "tokens", "key:7", "--cost", "0", "--id", "x"], "takes no id"),
        (["charge", "nobody", "key:7", "1"], "no policy 'nobody'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capline: CommandLine, words: list[str], said: str) -> None:
    assert capline("decide", "tokens", "key:7").returncode == 0
    assert said in capline.refused(*words)
