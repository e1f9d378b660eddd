"""The report of a campaign as a page: each figure of it, whatever the names are."""

import re
from html import unescape

import pytest

from capline.campaign.page import render
from capline.campaign.report import Eligible, Report, SegmentReport, Steering

HOSTILE = "<script>alert(1)</script>&"


def segment(name: str | None, sent: int, refused: int) -> SegmentReport:
    counts = {"failed": 3, "not_known": 2, "pending": 4, "undecided": 5, "excluded": 6, "held_out": 7}
    delays = {"1 s": sent - 1, "15 s": 1}
    return SegmentReport(
        name, sent + refused + 27, sent, refused, {"1/day": refused - 1, HOSTILE: 1}, **counts, delays=delays
    )


def example(state: str = "running") -> Report:
    """A report in which nothing is 0."""
    eligible = Eligible(
        1, 2, 3, "2026-11-22T14:00:00Z", None, "2026-11-22T15:00:00Z", 7, "hour", [("2026-11-22T14:00:00Z", 41)]
    )
    steering = Steering("2026-11-21T16:00:00Z", "2026-11-23T00:00:00Z", 2, "2026-11-21T17:00:00Z", HOSTILE)
    segments = [segment("active", 1000, 20), segment(HOSTILE, 500, 31)]
    counts = {"failed": 6, "not_known": 4, "pending": 8, "undecided": 10, "excluded": 12, "held_out": 14}
    total = SegmentReport(None, 1605, 1500, 51, {"1/day": 49, HOSTILE: 2}, **counts, delays={"1 s": 1498, "15 s": 2})
    head = ("summer-sale", "4f0c6a1b22d3e4f5", state, "promo", "push", 1, total, segments)
    return Report(*head, {f"410 {HOSTILE}": 6}, {"no answer": 4}, eligible, 12.5, 126.3, None, steering, test=True)


@pytest.mark.parametrize("state", ["running", "planned", "finished"])
def test_it_says_everything_and_runs_nothing(state: str) -> None:
    page = render(example(state))
    assert HOSTILE not in page
    assert not re.search(r"<script|https?://|@import|url\(", page)
    text = unescape(re.sub(r"<[^>]+>", " ", page.partition("</style>")[2]))
    for figure in (
        "1,500 of 1,605",
        "held out",
        "excluded",
        "51 refused",
        "1,498",
        "96.1%",
        "410 ",
        "no answer",
        "41",
        "a test send",
        "in none",
    ):
        assert (figure in text) == (figure != "in none"), figure
    assert ("12.5 s" in text) == (state != "planned")
    assert page.count("<section>") == 6


def test_a_campaign_that_nobody_was_decided_of() -> None:
    nobody = SegmentReport(None, 3, 0, 0, {}, 0, 0, 0, 3)
    report = Report("a", None, "scheduled", "promo", None, 1, nobody, [nobody], {}, {}, None, 0.0, 0.0)
    page = render(report)
    assert (page.count("<section>"), "0.0% of the audience" in page, "in none" in page) == (1, True, True)
