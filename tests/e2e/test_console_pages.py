"""Every page of the console with data, in a browser: for who hears it, in both themes, and on paper."""

from pathlib import Path

from tests.e2e.test_console import AXE, NO_TABLE_SCROLLS, VIOLATIONS
from tests.kit.chromium import Chromium
from tools.console import PAGES, look, played

PAPER = 717
"""Pixels of a sheet of A4 between the margins of a browser."""
HIDDEN = "[...document.querySelectorAll('nav, button, .who, .skip')].every((each) => !each.checkVisibility())"
WORDS = """[...document.querySelectorAll("td .name, td code, td:not(.text)")].flatMap((each) => {
  const text = each.firstChild, range = document.createRange();
  if (text?.nodeType !== 3 || /[\\s-]/.test(text.data.trim()) || !each.checkVisibility()) return [];
  range.selectNodeContents(text);
  return new Set([...range.getClientRects()].map((rect) => rect.top)).size > 1 ? [text.data] : [];
})"""
"""Those of a table that go over two lines, though nothing in them may be broken."""
LEGENDS = (
    "[...document.querySelectorAll('.legend span')]"
    ".every((each) => getComputedStyle(each, '::before').printColorAdjust === 'exact')"
)
WHITE = "getComputedStyle(document.body).backgroundColor"


def test_each_page_is_heard_in_both_themes_and_printed(tmp_path: Path) -> None:
    with played(tmp_path) as (service, _, token), Chromium(tmp_path / "profile") as browser:
        look(browser, service, token)

        def media(kind: str, theme: str, width: int) -> None:
            schemes = [{"name": "prefers-color-scheme", "value": theme}]
            browser.ask("Emulation.setEmulatedMedia", media=kind, features=schemes)
            browser.ask(
                "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
            )

        for name, path in PAGES.items():
            media("screen", "dark", 1280)
            browser.go(f"{service.admin}/console{path}")
            browser.ask("Runtime.evaluate", expression=AXE)
            for theme in ("dark", "light"):
                media("screen", theme, 1280)
                assert (name, theme, browser.told(VIOLATIONS)) == (name, theme, [])
            assert browser.told("/as of \\d{4}-\\d\\d-\\d\\d \\d\\d:/.test(document.querySelector('footer').innerText)")
            media("print", "dark", PAPER)
            assert (name, browser.told(WHITE)) == (name, "rgb(255, 255, 255)")
            assert (name, browser.told(HIDDEN), browser.told(LEGENDS)) == (name, True, True)
            assert (name, browser.told("document.documentElement.scrollWidth") <= PAPER) == (name, True)
            assert (name, browser.told(NO_TABLE_SCROLLS), browser.told(WORDS)) == (name, True, [])
        browser.go(f"{service.admin}/console{PAGES['forecast']}")
        for field, typed in (("audience", "users.csv"), ("holdout", "5%"), ("priority", "60")):
            assert browser.told(f"document.querySelector('form.compose [name={field}]').checkVisibility()")
            assert browser.told(f"document.querySelector('form.compose [name={field}]').value") == typed
        assert browser.notes == []
