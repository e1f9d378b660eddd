"""The report in a real browser: charts are drawn, nothing goes wrong, nothing is fetched."""

import gzip
import re
import subprocess
from collections.abc import Sequence
from html import unescape
from pathlib import Path

import pytest
from tests.kit.chromium import Chromium, browser
from tests.unit.campaign.test_page import example

from capline.campaign.page import render as campaign_page
from capline.replay.demo.report import write_report
from capline.replay.demo.run import run_demo

DATA = Path(__file__).parents[2] / "examples/data/cdnow_transactions.csv.gz"

# Put into a copy of the page: notes every error, every forbidden request and every resource where --dump-dom shows it.
PROBE = """<script>
const notes = [];
const note = (text) => { notes.push(text); document.documentElement.setAttribute("data-notes", notes.join(" | ")); };
addEventListener("error", (event) => note("error: " + event.message), true);
addEventListener("unhandledrejection", (event) => note("rejection: " + event.reason));
document.addEventListener("securitypolicyviolation", (event) => note("forbidden: " + event.blockedURI));
for (const level of ["error", "warn"]) console[level] = (...words) => note("console: " + words.join(" "));
const fetched = (list) => list.getEntries().forEach((entry) => note("fetched: " + entry.name));
new PerformanceObserver(fetched).observe({ type: "resource", buffered: true });
</script>"""


def dom_of(page: Path, tmp_path: Path, options: Sequence[str] = (), query: str = "") -> str:
    """What the page has become once its scripts ran; the browser itself is kept off the network."""
    command = [
        browser(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-sync",
    ]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--window-size=1280,2400", "--virtual-time-budget=10000", *options, "--dump-dom", page.as_uri() + query]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def notes_of(dom: str) -> str:
    found = re.search(r'<html[^>]* data-notes="([^"]*)"', dom)
    return unescape(found[1]) if found else ""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report over every tenth customer, with the probe in it."""
    place: Path = tmp_path_factory.mktemp("report")
    with gzip.open(DATA, "rt") as file:
        header, *rows = file.read().splitlines()
    data = place / "slice.csv"
    data.write_text("\n".join((header, *(row for row in rows if row.partition(",")[0].endswith("4")))))
    page = place / "report.html"
    write_report(run_demo(data, place / "out"), page)
    text = page.read_text(encoding="utf-8").replace("<head>", "<head>" + PROBE, 1)
    # The probe is a script, which the page itself forbids.
    page.write_text(text.replace("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';", 1), "utf-8")
    return page


@pytest.mark.deep
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_charts_are_drawn_and_nothing_goes_wrong(report: Path, tmp_path: Path, scheme: str) -> None:
    probe = (
        'onload = () => { const shown = [...document.querySelectorAll(".wide-drawing .mark")];'
        "const seen = shown.filter((mark) => mark.getBoundingClientRect().width > 1).length;"
        'const fill = getComputedStyle(document.querySelector(".wide-drawing path[style]")).fill;'
        'document.documentElement.dataset.marks = seen + " of " + shown.length + " " + fill; };</script>'
    )
    page = tmp_path / "probed.html"
    page.write_text(report.read_text(encoding="utf-8").replace("</script>", probe, 1), encoding="utf-8")
    dom = dom_of(page, tmp_path, [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"])
    assert notes_of(dom) == ""
    marks = re.search(r'data-marks="(\d+) of (\d+) ([^"]+)"', dom)
    assert marks is not None
    assert int(marks[1]) == int(marks[2]) >= 78 * 2 + 10
    assert marks[3] == ("rgb(86, 180, 233)" if scheme == "dark" else "rgb(0, 114, 178)")


@pytest.mark.deep
def test_on_a_phone_nothing_is_wider_than_the_page(report: Path, tmp_path: Path) -> None:
    # A headless window is 500 pixels wide at the least, so the page is put into a frame of a phone's width.
    narrow = report.with_name("phone.html")
    narrow.write_text(
        f'<iframe src="{report.name}" style="width:390px;height:5000px;border:0"></iframe><script>'
        'onload = () => { const page = document.querySelector("iframe").contentDocument.documentElement;'
        'document.body.dataset.widths = page.clientWidth + " " + page.scrollWidth;'
        'const boxes = [...page.querySelectorAll(".wide")];'
        "const seen = (box) => { const cells = [...box.querySelectorAll('tbody tr:first-child td:not(.text, .wrap)')];"
        "return cells.slice(1).filter((cell) => cell.getBoundingClientRect().right <= "
        "box.getBoundingClientRect().right).length; };"
        "document.body.dataset.tables = boxes.map((box) => [box.scrollWidth > box.clientWidth,"
        'box.tabIndex === 0, seen(box)].join(" ")).join(";"); };</script>'
    )
    dom = dom_of(narrow, tmp_path, ["--allow-file-access-from-files"])
    found = re.search(r'data-widths="(\d+) (\d+)"', dom)
    assert found is not None
    page_width, content_width = map(int, found.groups())
    assert 350 < page_width <= 390
    assert content_width == page_width
    tables = re.search(r'data-tables="([^"]*)"', dom)
    assert tables is not None
    spread, segments, messages, *_ = states = [state.split() for state in tables[1].split(";")]
    assert all(reached == "true" for _, reached, _ in states)
    assert segments[0] == messages[0] == "true"
    # Figures are seen before anybody scrolls.
    assert all(int(seen) >= 2 for _, _, seen in (spread, segments, messages)), states


@pytest.mark.deep
def test_the_report_of_a_campaign_is_read_on_a_phone_too(tmp_path: Path) -> None:
    page = tmp_path / "campaign.html"
    text = campaign_page(example()).replace("<head>", "<head>" + PROBE, 1)
    page.write_text(text.replace("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';", 1), "utf-8")
    assert notes_of(dom_of(page, tmp_path)) == ""
    narrow = tmp_path / "phone.html"
    narrow.write_text(
        f'<iframe src="{page.name}" style="width:390px;height:5000px;border:0"></iframe><script>onload = () => '
        '{ const page = document.querySelector("iframe").contentDocument.documentElement;'
        'document.body.dataset.widths = page.clientWidth + " " + page.scrollWidth; };</script>'
    )
    found = re.search(r'data-widths="(\d+) (\d+)"', dom_of(narrow, tmp_path, ["--allow-file-access-from-files"]))
    assert found is not None
    assert found[1] == found[2]


@pytest.mark.deep
def test_a_printed_report_is_dark_on_light_and_goes_on_where_a_page_has_room(report: Path, tmp_path: Path) -> None:
    with Chromium(tmp_path, dark=True) as page:
        page.go(report.as_uri())
        assert page.told("getComputedStyle(document.body).color") == "rgb(230, 234, 237)"
        scheme = {"name": "prefers-color-scheme", "value": "dark"}
        page.ask("Emulation.setEmulatedMedia", media="print", features=[scheme])
        assert page.told("getComputedStyle(document.body).color") == "rgb(29, 35, 41)"
        assert page.told("getComputedStyle(document.querySelector('section')).breakInside") == "auto"


@pytest.mark.deep
def test_the_probe_sees_a_request_and_the_page_forbids_it(report: Path, tmp_path: Path) -> None:
    slipped = report.with_name("slipped.html")
    text = report.read_text(encoding="utf-8")
    slipped.write_text(
        text.replace("<footer>", '<img src="https://example.org/pixel.png"><footer>', 1), encoding="utf-8"
    )
    assert "forbidden: https://example.org/pixel.png" in notes_of(dom_of(slipped, tmp_path))
