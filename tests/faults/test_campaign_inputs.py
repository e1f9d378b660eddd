"""A run killed between its first decision and its first row in the ledger goes on with what it was begun with.

From the first decision on, subjects are counted in a store: with another store, audience or policy they would stay
counted for nothing, and others be counted twice.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.kit.campaign import Far, Site, with_sender

from capline.campaign import Job, Ledger, Report, Stop, open_run, report_of, run
from capline.campaign.store.sqlite_store import SqliteCampaignStore
from capline.limiter.limiter import Limiter
from capline.model.errors import CampaignError, NoStoreError


class Killed(BaseException):
    """What kill -9 is to a process."""


def go(job: Job, directory: Path) -> Report:
    stop = Stop()
    try:
        with open_run(job, directory) as (limiter, ledger):
            run(with_sender(job, Far()), limiter, ledger, stop, pause=lambda _s: None)
            return report_of(ledger)
    finally:
        stop.close()


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A campaign whose first batch is decided and nowhere in the ledger."""
    site = Site(tmp_path)

    def die(*_args: Any, **_more: Any) -> None:
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(SqliteCampaignStore, "record", die)
        with pytest.raises(Killed):
            go(site.job(), tmp_path / "run")
    with Ledger.read(tmp_path / "run") as ledger:
        assert not list(ledger.batches())
    with site.limiter() as limiter:
        assert len(limiter.explain("promo", 50).hits) == 1
    return site


def refusal(site: Site, **settings: str) -> str:
    with pytest.raises(CampaignError) as refused:
        go(site.job(**settings), site.path / "run")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_with_the_same_inputs_it_goes_on(killed: Site) -> None:
    assert go(killed.job(), killed.path / "run").total.sent == 400


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"store": "lmdb://other"}, "another store"),
        ({"channel": "push"}, "another channel (was none, is push)"),
        ({"batch": "50"}, "another batch size (was 100, is 50)"),
        ({"sender": "{file: elsewhere}"}, "another sender"),
    ],
)
def test_other_settings_are_refused_by_name(killed: Site, settings: dict[str, str], named: str) -> None:
    assert named in refusal(killed, **settings)
    assert not (killed.path / "other").exists()


def test_another_audience_is_refused_by_name(killed: Site) -> None:
    killed.audience(range(399))
    assert "another audience (was 400 ids, is 399 ids)" in refusal(killed)


def test_a_store_that_was_made_anew_under_the_same_name_is_refused(killed: Site) -> None:
    shutil.move(killed.path / "store", killed.path / "moved")
    with pytest.raises(NoStoreError, match="there is no store at"):
        go(killed.job(), killed.path / "run")
    assert not (killed.path / "store").exists(), "looking makes no store"
    with killed.limiter() as limiter:
        limiter.decide("promo", 7, segment="active")
    assert "begun with another store identity (was made 20" in refusal(killed)
    shutil.rmtree(killed.path / "store")
    shutil.move(killed.path / "moved", killed.path / "store")
    assert go(killed.job(), killed.path / "run").total.sent == 400


def test_before_anything_was_decided_a_fixed_file_is_simply_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)

    def broken(*_args: Any) -> None:
        raise CampaignError("no such receiver")

    with monkeypatch.context() as at_first:
        at_first.setattr(Far, "open", broken)
        with pytest.raises(CampaignError, match="no such receiver"):
            go(site.job(), tmp_path / "run")
    assert go(site.job(channel="push"), tmp_path / "run").total.sent == 400


def test_the_inputs_are_in_the_ledger_before_the_first_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)

    def die(*_args: Any, **_more: Any) -> None:
        raise Killed

    monkeypatch.setattr(Limiter, "decide_many", die)
    with pytest.raises(Killed):
        go(site.job(), tmp_path / "run")
    assert "another store" in refusal(site, store="lmdb://other")
