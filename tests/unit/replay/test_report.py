"""The report: nothing unescaped, nothing from elsewhere, and charts whose every colour is defined."""

import re
from pathlib import Path

import msgspec
import pytest

from capline.replay.demo.report import render, write_report
from capline.replay.demo.run import DemoResult, run_demo
from capline.replay.page import Html, share


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    place: Path = tmp_path_factory.mktemp("report")
    data = place / "purchases.csv"
    rows = [
        f"{customer},1997-{month:02}-{day:02}"
        for customer in range(9)
        for month in (1, 6)
        for day in (1, 2, 3 + customer)
    ]
    data.write_text("customer_id,date\n" + "\n".join(rows) + "\n")
    return run_demo(data, place / "out")


def test_every_colour_role_is_defined_for_light_and_dark_and_every_drawing_has_a_label(result: DemoResult) -> None:
    text = render(result)
    for role in set(re.findall(r"var\(--(\w+)\)", text)):
        assert text.count(f"--{role}:") == 2, role
    assert len(re.findall(r'<svg class="(?:wide|narrow)-drawing" [^>]*aria-label="[^"]{9,}"', text)) == 6
    for title in ("week beginning", "messages a week", "customer-weeks (logarithmic)", "customers"):
        assert text.count(f">{title}</text>") >= 2
    assert len(text) < 1_000_000


def test_what_is_not_html_is_escaped(result: DemoResult) -> None:
    nasty = "</script><b title='x'>&$title"
    limits = dict.fromkeys(result.limits_by_segment, (nasty,))
    page = render(msgspec.structs.replace(result, policy_text=nasty, first_day=nasty, limits_by_segment=limits))
    assert nasty not in page
    assert page.count("&lt;/script&gt;&lt;b title=&#x27;x&#x27;&gt;&amp;$title") >= 1 + 1 + len(limits)


def test_a_name_in_a_chart_is_escaped(result: DemoResult) -> None:
    nasty = "</svg><b>"
    weeks = tuple(msgspec.structs.replace(week, refused={nasty: 1}) for week in result.figures.weeks)
    figures = msgspec.structs.replace(result.figures, windows=(nasty,), weeks=weeks)
    text = render(msgspec.structs.replace(result, figures=figures))
    assert nasty not in text
    assert "refused by the &lt;/svg&gt;&lt;b&gt; limit: 1" in text


def test_the_page_forbids_every_request_and_every_script_and_names_no_address(result: DemoResult) -> None:
    text = render(result)
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert not re.search(r"https?://|src=|href=|@import|url\(|<script", text)


def test_a_failed_check_is_said_first_and_marked(result: DemoResult) -> None:
    checks = (msgspec.structs.replace(result.checks[0], holds=False), *result.checks[1:])
    page = render(msgspec.structs.replace(result, checks=checks))
    assert "these figures are wrong" in page
    assert '<b class="fails">FAILS</b>' in page
    assert "these figures are wrong" not in render(result)


def test_a_policy_that_refuses_nobody_has_titles_that_say_so(tmp_path: Path) -> None:
    data = tmp_path / "one.csv"
    data.write_text("customer_id,date\n1,1997-01-01\n")
    policies = tmp_path / "mine.yaml"
    policies.write_text("policies: {promo: {limits: [99/day]}}")
    page = render(run_demo(data, tmp_path / "out", policies))
    assert "The caps held back 0.0% of 1 simulated messages" in page
    assert "No message was refused" in page
    assert "Nobody had a segment yet" in page


def test_the_title_and_the_lead_say_that_messages_are_simulated_and_how_many_come_from_what(result: DemoResult) -> None:
    page = render(result)
    title, lead = re.search(r"<title>(.*?)</title>", page), re.search(r'<p class="lead">(.*?)</p>', page)
    assert title is not None
    assert lead is not None
    assert "simulated" in title[1]
    assert "The purchases are real, the messages are simulated." in lead[1]
    numbers = [int(number.replace(",", "")) for number in re.findall(r"\b[0-9][0-9,]*\b", lead[1])]
    purchases, customers, _, follow_ups, each, blasts, asked, sent, refused = numbers
    assert (purchases, customers, each) == (result.purchases, result.customers, 3)
    assert purchases < follow_ups <= purchases * each
    assert follow_ups + blasts == asked == sent + refused == result.decisions


def test_every_share_says_of_what(result: DemoResult) -> None:
    headings = re.findall(r"<th[^>]*>(.*?)</th>", render(result))
    assert "share" not in headings
    assert headings.count("share of weeks") == 2
    assert headings.count("refused of asked") == 2


def test_writing_replaces_the_page_whole(result: DemoResult, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    assert write_report(result, path) == path.stat().st_size
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")


def test_small_parts() -> None:
    assert (share(1, 3), share(0, 0)) == ("33.3%", "-")
    assert isinstance(Html("x"), str)
