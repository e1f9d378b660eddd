"""The report: nothing unescaped, nothing from elsewhere, and charts that Plotly itself finds valid."""

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any, cast

import msgspec
import plotly.graph_objects  # pyright: ignore[reportMissingTypeStubs] - it ships none
import pytest

from capline.replay.demo.report import Html, render, share, write_report
from capline.replay.demo.run import DemoResult, run_demo

TEMPLATE = (resources.files("capline.replay.demo") / "report.html").read_text(encoding="utf-8")


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


def charts_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def coloured(value: Any, roles: set[str]) -> Any:
    """The chart with one colour for every role, as the page does it."""
    if isinstance(value, str) and value.startswith("@"):
        roles.add(value[1:])
        return "#123456"
    if isinstance(value, list):
        return [coloured(item, roles) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: coloured(item, roles) for key, item in cast("dict[str, Any]", value).items()}
    return value


def test_every_chart_is_valid_to_plotly_and_every_colour_role_is_defined_for_light_and_dark(result: DemoResult) -> None:
    roles: set[str] = set()
    charts = charts_of(render(result))
    assert set(charts) == set(re.findall(r'class="chart" id="(\w+)"', TEMPLATE))
    for chart in charts.values():
        plotly.graph_objects.Figure(coloured(chart, roles))  # raises for a property that Plotly does not know
    for role in roles:
        assert TEMPLATE.count(f"--{role}:") == 2, role


def test_every_axis_has_a_title(result: DemoResult) -> None:
    for chart in charts_of(render(result)).values():
        assert chart["layout"]["xaxis"]["title"]["text"]
        assert chart["layout"]["yaxis"]["title"]["text"]


def test_what_is_not_html_is_escaped(result: DemoResult) -> None:
    nasty = "</script><b title='x'>&$title"
    limits = dict.fromkeys(result.limits_by_segment, (nasty,))
    page = render(msgspec.structs.replace(result, policy_text=nasty, first_day=nasty, limits_by_segment=limits))
    assert nasty not in page
    assert page.count("&lt;/script&gt;&lt;b title=&#x27;x&#x27;&gt;&amp;$title") >= 1 + 1 + len(limits)


def test_a_name_in_a_chart_cannot_end_the_script_that_it_stands_in(result: DemoResult) -> None:
    nasty = "</script>"
    weeks = tuple(msgspec.structs.replace(week, refused={nasty: 1}) for week in result.figures.weeks)
    figures = msgspec.structs.replace(result.figures, windows=(nasty,), weeks=weeks)
    page = render(msgspec.structs.replace(result, figures=figures))
    assert charts_of(page)["weeks"]["data"][1]["name"] == "refused by the </script> limit"


def test_the_page_forbids_every_request_and_names_no_address() -> None:
    assert "default-src 'none'" in TEMPLATE
    assert not re.search(r"https?://|src=|href=|@import|url\(", TEMPLATE)


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
