"""What became of each recipient, asked for one and written for all."""

import csv
import json
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.kit.campaign import AT_US, HOUR_US, Far, Site, capline, ledger_of, with_sender

from capline.campaign import Ledger, Stop, report_of, run
from capline.campaign.outcomes import export_outcomes, outcome_of, tables_of
from capline.campaign.senders.protocol import DELIVERED, PERMANENT, UNKNOWN, Messages, Outcomes
from capline.model.errors import CampaignError

parquet: Any = import_module("pyarrow.parquet")


def said(subject: int, tries: int) -> int:
    """Of every 10 subjects one is always gone, one is gone at first, of one nothing is ever known."""
    if subject % 10 == 4:
        return UNKNOWN
    return PERMANENT if subject % 10 == 3 or (subject % 10 == 6 and tries == 1) else DELIVERED


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A run with every outcome, of which the failed were tried again once."""
    site = Site(tmp_path)
    site.seed()
    job = with_sender(site.job(), Far(said))
    stop = Stop()
    with site.limiter() as limiter, ledger_of(job, tmp_path / "campaign.run") as ledger:
        for retry in (False, True):
            run(job, limiter, ledger, stop, retry_failed=retry, pause=lambda _s: None)
    stop.close()
    return site


def test_each_recipient_has_one_outcome(site: Site) -> None:
    with Ledger.read(site.path / "campaign.run") as ledger:
        found = {subject: outcome_of(ledger, subject) for subject in range(400)}
        report = report_of(ledger)
        assert outcome_of(ledger, 400) is None
    total = report.total
    outcomes = [each for each in found.values() if each is not None]
    assert Counter(each.outcome for each in outcomes) == {
        "sent": total.sent,
        "refused": total.refused,
        "failed": total.failed,
        "not known": total.not_known,
    }
    assert min(total.sent, total.refused, total.failed, total.not_known) > 0
    for subject, each in found.items():
        assert each is not None
        assert (each.subject, each.key) == (subject, f"summer-sale/{report.run}/{subject}")
        assert each.segment == (None if subject >= 300 else ("active", "new", "churned")[subject // 100])
        if each.outcome == "refused":
            assert each.limit in total.refused_by
            assert each.until_us is not None
            assert each.until_us > AT_US
            assert (each.reason, each.hit_us, each.given_back) == (None, None, False)
        else:
            assert (each.limit, each.until) == (None, None)
            expected = {3: "failed", 4: "not known"}.get(subject % 10, "sent")
            assert each.outcome == expected
            assert (each.reason is None, each.given_back) == (expected == "sent", expected == "failed")
            assert each.hit_us is not None
    twelve = found[112]  # of 1/day: 112 = 7 * 16 had one two hours before
    assert twelve is not None
    assert (twelve.outcome, twelve.limit, twelve.until_us) == ("refused", "1/day", AT_US + 22 * HOUR_US)


@pytest.mark.parametrize("name", ["all.parquet", "all.csv"])
def test_the_file_says_the_same_as_each_alone(site: Site, name: str) -> None:
    path = site.path / name
    with Ledger.read(site.path / "campaign.run") as ledger:
        assert export_outcomes(tables_of(ledger.facts, ledger.batches()), path) == 400
        each = {subject: outcome_of(ledger, subject) for subject in range(400)}
    if name.endswith(".parquet"):
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        given = {"id": int, "attempts": int}
    else:
        with path.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        given = {"id": int, "attempts": int}
    assert len(rows) == 400
    assert path.stat().st_mode & 0o077 == 0
    assert [left.name for left in site.path.glob(".*.tmp")] == []
    for row in rows:
        one = each[given["id"](row["id"])]
        assert one is not None
        assert (row["outcome"], row["key"], row["segment"] or None) == (one.outcome, one.key, one.segment)
        assert ((row["limit"] or None), row["reason"] or None) == (one.limit, one.reason)
        assert int(row["attempts"]) == one.attempts
        assert (row["until"] in (None, "")) == (one.until_us is None)
        assert str(row["given_back"]).lower() == str(one.given_back).lower()


def test_before_it_is_decided_nobody_has_an_outcome(tmp_path: Path) -> None:
    job = with_sender(Site(tmp_path).job(), Far())
    with ledger_of(job, tmp_path / "campaign.run") as ledger:
        assert outcome_of(ledger, 1) is None
        assert export_outcomes(tables_of(ledger.facts, ledger.batches()), tmp_path / "all.csv") == 0


def test_a_name_that_says_no_format_is_refused(tmp_path: Path) -> None:
    job = with_sender(Site(tmp_path).job(), Far())
    with (
        ledger_of(job, tmp_path / "campaign.run") as ledger,
        pytest.raises(CampaignError, match=r"ends in \.parquet or \.csv"),
    ):
        export_outcomes(tables_of(ledger.facts, ledger.batches()), tmp_path / "all.txt")


def test_by_the_command(site: Site) -> None:
    for subject, words in ((113, "failed: gone; given back"), (112, "refused by 1/day, until 2026-11-22T14:00:00Z")):
        done = capline("campaign", "outcome", site.file, str(subject))
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{subject}: {words} (decided 2026-11-21T16:00:00Z, segment new, key ")
    found = json.loads(capline("campaign", "outcome", site.path / "campaign.run", "116", "--json").stdout)
    assert (found["outcome"], found["subject"], found["attempts"]) == ("sent", 116, 1)
    done = capline("campaign", "outcomes", site.file, "--to", site.path / "all.parquet")
    assert (done.returncode, "400 recipients" in done.stdout) == (0, True), done.stderr
    for recipient, words in (
        ("400", "400 is not in its audience"),
        ("ann", "whole numbers from 0 to 18446744073709551615"),
    ):
        done = capline("campaign", "outcome", site.file, recipient)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert words in done.stderr


TEXTS = ["=cmd@x", "042", "42", "Zoë Z", "ann%b@x.org", "+49 30 1"]


def test_ids_of_text_all_the_way(tmp_path: Path) -> None:
    site = Site(
        tmp_path, {"audience": "{csv: users.csv, ids: text}", "batch": "2", "sender": "{file: out, format: csv}"}
    )
    site.audience(TEXTS)
    done = capline("campaign", "run", site.write(segments=None, channel="push"))
    assert done.returncode == 0, done.stderr
    keys: dict[str, str] = {}
    for text in TEXTS:
        found = json.loads(capline("campaign", "outcome", site.file, "--json", "--", text).stdout)
        assert (found["subject"], found["outcome"]) == (text, "sent")
        keys[text] = found["key"]
    assert len(set(keys.values())) == len(TEXTS)
    assert {key.partition("/")[2].partition("/")[2] for key in keys.values()} == {
        *("=cmd@x", "042", "42", "Zo%C3%AB%20Z", "ann%25b@x.org", "+49%2030%201")
    }
    done = capline("campaign", "outcome", site.file, "7")
    assert (done.returncode, "7 is not in its audience" in done.stderr) == (2, True)
    for name in ("all.csv", "all.parquet"):
        capline("campaign", "outcomes", site.file, "--to", site.path / name)
    table = parquet.read_table(site.path / "all.parquet")
    assert dict(zip(table["id"].to_pylist(), table["key"].to_pylist(), strict=True)) == keys
    cells = {"'=cmd@x" if text == "=cmd@x" else text for text in TEXTS}
    for paths in ([site.path / "all.csv"], sorted((site.path / "out").glob("*.csv"))):
        rows = [row for path in paths for row in csv.DictReader(path.read_text().splitlines())]
        assert {row["id"] for row in rows} == cells
    with site.limiter() as limiter:
        assert [bool(limiter.peek("promo", subject, channel="push")) for subject in ("42", 42)] == [False, True]


def test_a_csv_file_of_outcomes_holds_no_formula(tmp_path: Path) -> None:
    class Hostile(Far):
        def send(self, messages: Messages) -> Outcomes:
            outcomes = Outcomes.delivered(len(messages))
            outcomes.fail(0, PERMANENT, '=HYPERLINK("http://evil.example")')
            return outcomes

    site = Site(tmp_path)
    site.audience([7])
    job = with_sender(site.job(), Hostile())
    stop = Stop()
    with site.limiter() as limiter, ledger_of(job, tmp_path / "campaign.run") as ledger:
        run(job, limiter, ledger, stop)
        for name in ("all.csv", "all.parquet"):
            export_outcomes(tables_of(ledger.facts, ledger.batches()), tmp_path / name)
    stop.close()
    with (tmp_path / "all.csv").open(newline="") as lines:
        assert [row["reason"] for row in csv.DictReader(lines)] == ['\'=HYPERLINK("http://evil.example")']
    assert parquet.read_table(tmp_path / "all.parquet")["reason"].to_pylist() == ['=HYPERLINK("http://evil.example")']
