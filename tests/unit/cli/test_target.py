"""Whom an answer is about: segments looked up, a campaign's own way of asking, and the two subjects of one number."""

import json
from pathlib import Path

import pytest
from tests.kit.cli import CommandLine

from capline import segment as segments
from capline.campaign import Ledger

POLICIES = """
namespace: shop
policies:
  promo:
    limits: [1/day]
    by_segment: {active: [3/day], new: [2/day]}
    channels: {push: [2/day]}
  plain: {limits: [1/day]}
"""
CAMPAIGN = """
campaign: spring
policies: policies.yaml
policy: promo
channel: push
store: lmdb://store
segments: segments/today
audience: {csv: users.csv}
sender: {file: out/}
"""


@pytest.fixture
def capline(capline: CommandLine, tmp_path: Path) -> CommandLine:
    (tmp_path / "policies.yaml").write_text(POLICIES, encoding="utf-8")
    snapshot = segments.Snapshot(
        {name: segments.IdSet(ids) for name, ids in {"active": [42], "new": [7], "churned": [8]}.items()}
    )
    segments.write_snapshot(snapshot, tmp_path / "segments/today")
    assert capline("decide", "plain", "somebody").returncode == 0, "so that there is a store to look into"
    return capline


@pytest.fixture
def campaign(capline: CommandLine, tmp_path: Path) -> str:
    (tmp_path / "campaign.yaml").write_text(CAMPAIGN, encoding="utf-8")
    (tmp_path / "users.csv").write_text("id\n7\n8\n9\n42\n", encoding="utf-8")
    assert capline("campaign", "run", "campaign.yaml").returncode == 0
    with Ledger.read(Path("campaign.run")) as ledger:
        return ledger.facts.run_id


def test_the_segment_is_looked_up_in_a_snapshot(capline: CommandLine) -> None:
    done = capline("peek", "promo", "42", "--segments", "segments/today")
    assert done.stdout == "allowed: 2 left under 3/day\n"
    assert done.stderr == "42 is in segment active of segments/today\n"
    assert capline.json("explain", "promo", "7", "--segments", "segments/today")["segment"] == "new"
    done = capline("decide", "promo", "8", "--segments", "segments/today")
    assert done.stdout.startswith("allowed: 0 left under 1/day")
    assert "in segment churned of segments/today, for which policy promo has no limits of its own" in done.stderr
    assert (
        "9 is in no segment of segments/today" in capline("peek", "promo", "9", "--segments", "segments/today").stderr
    )


def test_the_segment_is_looked_up_in_a_publication(capline: CommandLine, tmp_path: Path) -> None:
    with segments.Publisher(tmp_path / "published") as publisher:
        publisher.publish(tmp_path / "segments/today")
    answer = capline.json("peek", "promo", "42", "--segments", str(tmp_path / "published"))
    assert (answer["limit"], answer["remaining"]) == ("3/day", 2)


def test_without_a_segment_the_answer_says_what_it_assumes(capline: CommandLine) -> None:
    for words in (["peek", "promo", "42"], ["explain", "promo", "42"], ["decide", "promo", "42"]):
        done = capline(*words)
        assert "shown are the limits of subjects in no segment" in done.stderr
    assert capline("peek", "promo", "42", "--segment", "active").stderr == ""
    assert capline("peek", "plain", "42").stderr == ""
    assert json.loads(capline("peek", "promo", "42", "--json").stdout)["limit"] == "1/day"


def test_a_campaigns_file_says_how_it_is_asked(capline: CommandLine, campaign: str) -> None:
    why = capline("explain", "promo", "42", "--campaign", "campaign.yaml").stdout
    assert why.startswith("allowed: ")
    assert "policy promo, subject 42, segment active" in why
    explained = capline.json("explain", "promo", "42", "--campaign", "campaign.yaml")
    assert [(each["log"], each["used"]) for each in explained["limits"]] == [("promo", 1), ("promo/push", 1)]
    assert capline("peek", "promo", "9", "--campaign", "campaign.yaml").stdout.startswith("refused by 1/day")
    assert (
        "10 is not in the audience of campaign.yaml"
        in capline("peek", "promo", "10", "--campaign", "campaign.yaml").stderr
    )
    # The plan of the same campaign refuses the same ones.
    (Path("again.yaml")).write_text(CAMPAIGN.replace("spring", "again"), encoding="utf-8")
    total = capline.json("campaign", "plan", "again.yaml")["total"]
    asked = [capline.json("peek", "promo", id, "--campaign", "again.yaml")["allowed"] for id in ("7", "8", "9", "42")]
    assert total["sent"] == sum(asked) == 2


def test_usage_is_asked_as_a_campaign_asks(capline: CommandLine, campaign: str) -> None:
    for id, active in (("42", "3/day"), ("7", "2/day"), ("9", "1/day")):
        used = capline.json("usage", "promo", id, "--campaign", "campaign.yaml")
        assert [(one["limit"], one["name"], one["used"]) for one in used] == [
            (active, "promo", 1),
            ("2/day", "promo/push", 1),
        ]
        explained = capline.json("explain", "promo", id, "--campaign", "campaign.yaml")["limits"]
        assert [(one["used"], one["remaining"]) for one in used] == [
            (one["used"], one["remaining"]) for one in explained
        ]
    assert "10 is not in the audience" in capline("usage", "promo", "10", "--campaign", "campaign.yaml").stderr
    assert "leave out --channel" in capline.refused(
        "usage", "promo", "42", "--campaign", "campaign.yaml", "--channel", "push"
    )


def test_a_campaign_is_found_from_elsewhere(
    capline: CommandLine, campaign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    text = CAMPAIGN.replace("lmdb://store", f"lmdb://{tmp_path}/store")
    (tmp_path / "campaign.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = capline("peek", "promo", "9", "--campaign", "../campaign.yaml")
    assert done.stdout.startswith("refused by 1/day")


def test_a_messages_key_finds_its_hit(capline: CommandLine, campaign: str) -> None:
    key = f"spring/{campaign}/42"
    explained = capline.json("explain", "promo", "42", "--campaign", "campaign.yaml", "--id", key)
    assert [hit["id"] for hit in explained["hits"]] == [key]
    assert "id" not in capline.json("explain", "promo", "7", "--campaign", "campaign.yaml", "--id", key)["hits"][0]
    assert capline.json("refund", "promo", "42", str(explained["hits"][0]["stamp_us"]), "--store", "lmdb://store")


def test_a_message_without_a_hit_says_why(capline: CommandLine, campaign: str, tmp_path: Path) -> None:
    (tmp_path / "again.yaml").write_text(CAMPAIGN.replace("spring", "again").replace("out/", "out2/"))
    assert capline("campaign", "run", "again.yaml").returncode == 0
    with Ledger.read(tmp_path / "again.run") as ledger:
        key = f"again/{ledger.facts.run_id}/9"
    done = capline("explain", "promo", "9", "--campaign", "again.yaml", "--id", key)
    assert f"message {key} has no hit: it was refused" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--campaign", "campaign.yaml", "--store", "memory://"], "leave out --store"),
        (["--campaign", "campaign.yaml", "--segment", "new"], "leave out --segment"),
        (["--campaign", "none.yaml"], "none.yaml"),
        (["--segments", "segments/today", "--segment", "new"], "give one of them"),
        (["--segments", "nowhere"], "nowhere"),
        (["--segments", "ftp://x/y"], "ftp://…: not an address to publish to"),
    ],
)
def test_what_cannot_be_looked_up_is_one_line(capline: CommandLine, campaign: str, words: list[str], said: str) -> None:
    for command in ("explain", "peek", "decide"):
        assert said in capline.refused(command, "promo", "42", *words)


def test_a_subject_that_cannot_be_among_the_ids_is_refused(capline: CommandLine, campaign: str) -> None:
    assert "the ids there are numbers" in capline("peek", "promo", "s:42", "--segments", "segments/today").stderr
    assert "campaign's ids are uint32" in capline("peek", "promo", "s:42", "--campaign", "campaign.yaml").stderr
    assert "under policy 'promo', not 'plain'" in capline("peek", "plain", "42", "--campaign", "campaign.yaml").stderr


def test_two_subjects_of_one_number(capline: CommandLine) -> None:
    assert "neither has a hit here" in capline("explain", "plain", "42").stderr
    assert capline("explain", "plain", "user:42").stderr == ""
    assert capline.json("decide", "plain", "s:42", "--id", "m1")["allowed"]
    done = capline("explain", "plain", "42")
    assert "nothing is held for i:42 (the integer); s:42 (the text) is another subject" in done.stderr
    assert "s:42 (the text) has hits here" in done.stderr
    assert done.stdout.count("policy plain, subject 42") == 1
    assert done.stdout.count("policy plain, subject s:42") == 1
    assert done.stdout.count("  hit ") == 1
    assert capline.json("explain", "plain", "42")["hits"] == []
    assert "s:42 (the text) has hits here" in capline("refund", "plain", "42", "7").stderr
    assert "s:42 (the text) has hits here" in capline("erase", "42").stderr
    assert capline.json("erase", "42", "--text") == {"erased_logs": 1}
    assert capline.json("decide", "plain", "42")["allowed"]
    assert "i:42 (the integer) has hits here" in capline("explain", "plain", "42", "--text").stderr
    assert capline("explain", "plain", "042").stderr.startswith("nothing is held for s:042") is False
