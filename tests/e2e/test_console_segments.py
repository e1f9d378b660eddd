"""Segments in the console: what two share, the versions that a real publication has, and back to one of these."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.test_console import AXE, VIOLATIONS, Visitor, tokens
from tests.kit.chromium import Chromium
from tests.kit.segments import make
from tests.kit.serving import Serving

from capline import __version__
from capline.segment import Publisher

assert tokens is not None  # the fixture
PAGE, JSON = "/console/segments", {"Accept": "application/json"}
BAD = '<img src=x onerror=alert(1)>"v3'


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    """Three versions: the last has a name that is markup."""
    with Publisher(tmp_path / "published") as publisher:
        for number, name in enumerate(("v1", "v2", BAD), start=1):
            publisher.publish(
                make(tmp_path, f"{number}", new=range(10 * number), active=range(100, 130)),
                version=name,
                who=f"by {BAD}",
            )
        yield publisher


@pytest.fixture
def service(tmp_path: Path, publisher: Publisher, tokens: dict[str, str]) -> Iterator[Serving]:
    assert publisher.pointer().current == BAD
    (tmp_path / "policies.yaml").write_text("policies: {promo: {limits: [1/day]}}\n", encoding="utf-8")
    words = ("--tokens", "tokens.json", "--store", "memory://", "--segments", f"{tmp_path}/published")
    with Serving(tmp_path, *words) as service:
        service.client.headers["Authorization"] = f"Bearer {tokens['admin']}"
        yield service


@pytest.mark.parametrize("script", [True, False])
def test_in_a_browser_one_compares_two_and_rolls_back(
    tmp_path: Path, service: Serving, publisher: Publisher, tokens: dict[str, str], *, script: bool
) -> None:
    with Chromium(tmp_path / "profile", width=390, script=script) as browser:
        browser.go(f"{service.admin}{PAGE}")
        browser.fill("input[name=secret]", tokens["admin"])
        browser.press("main button")
        browser.press(f'form[action="{PAGE}"] button')
        assert "0 ids are in both: 0.0 % of new, 0.0 % of active." in browser.text
        if script:
            browser.ask("Runtime.evaluate", expression=AXE)
            assert browser.told(VIOLATIONS) == []
        assert browser.told("document.documentElement.scrollWidth") <= 390
        browser.press('form[action$="/rollback"] button')
        assert "It is served; other instances follow within seconds." in browser.text
        assert "Segments version v2" in browser.text
        assert browser.notes == []
    assert publisher.pointer().current == "v2"


def test_the_second_of_two_who_roll_back_sees_the_first(
    service: Serving, publisher: Publisher, tokens: dict[str, str]
) -> None:
    with Visitor(service) as visitor:
        visitor.sign_in(tokens["admin"])
        page = visitor.get(PAGE)
        assert f"<footer>capline {__version__}, as of " in page.text
        assert ("&lt;img src=x" in page.text, "<img" in page.text) == (True, False)
        form = {"forgery": visitor.forgery(PAGE), "version": "v1", "current": BAD}
        publisher.rollback("v2")
        assert visitor.post(f"{PAGE}/rollback", data=form).headers["Location"] == f"{PAGE}?done=conflict"
        assert publisher.pointer().current == "v2"
        assert visitor.post(f"{PAGE}/rollback", data=form | {"current": "v2", "version": "v9"}).status_code == 422
        assert visitor.post(f"{PAGE}/rollback", data=form | {"current": "v2"}).headers["Location"].endswith("rolled")
        told = visitor.get(PAGE, headers=JSON).json()
        assert (told["version"], told["published"]["current"], told["segments"][0]["count"]) == ("v1", "v1", 10)
        assert [one["version"] for one in told["published"]["versions"]] == [BAD, "v2", "v1"]
        assert {one["who"] for one in told["published"]["versions"]} == {f"by {BAD}"}
        assert '<td data-head="By" class="text"><bdi class="name">by &lt;img src=x' in visitor.get(PAGE).text
        told = visitor.get(PAGE, params={"left": "new", "right": "new"}, headers=JSON).json()["overlap"]
        assert (told["both"], told["of"]) == (10, [10, 10])
        for left, right in (("new", "none"), ("new | active", "new"), ("", "new")):
            assert visitor.get(PAGE, params={"left": left, "right": right}).status_code == 422
    assert service.ask("/v1/segments/rollback", to="v2", if_current="v3").status_code == 409
    assert service.ask("/v1/segments/rollback", to="v2").json()["current"] == "v2"


def test_who_only_reads_sees_them_and_changes_nothing(
    tmp_path: Path, service: Serving, publisher: Publisher, tokens: dict[str, str]
) -> None:
    with Visitor(service) as visitor:
        visitor.sign_in(tokens["steer"])
        assert f"{PAGE}/rollback" not in visitor.get(PAGE).text
        form = {"forgery": visitor.forgery(PAGE), "version": "v1", "current": BAD}
        assert visitor.post(f"{PAGE}/rollback", data=form).status_code == 403
        assert visitor.post(f"{PAGE}/rollback", data=form | {"forgery": "x"}).status_code == 403
    assert publisher.pointer().current == BAD
    words = ("--store", "memory://", "--segments", str(make(tmp_path, "one", new=[1])))
    with Serving(tmp_path, *words) as snapshot, Visitor(snapshot) as visitor:
        assert "A snapshot is served, which has no versions" in visitor.get(PAGE).text
        assert snapshot.ask("/v1/segments/rollback").status_code == 404
    with Serving(tmp_path, "--store", "memory://") as none:
        assert none.client.get("/v1/segments/versions").status_code == 404
