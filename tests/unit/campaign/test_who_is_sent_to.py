"""Who of an audience is sent to: transactional messages, holdouts, exclusions."""

import hashlib
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from tests.kit.campaign import AT_US, Far, Site, ledger_of, with_sender

from capline.campaign import Job, Report, Stop, load_campaign, plan, report_of, run
from capline.campaign.exclusion import Holdout
from capline.campaign.outcomes import Outcome, outcome_of
from capline.campaign.response.opt_outs import add_opt_outs
from capline.campaign.senders.protocol import DELIVERED, PERMANENT, TRANSIENT, UNKNOWN
from capline.campaign.store.rows import FATES, BatchRows
from capline.model.errors import CampaignError, CaplineError
from capline.segment import IdSet, Publisher, Snapshot, write_snapshot


def go(job: Job, directory: Path) -> tuple[Report, dict[int, Outcome]]:
    stop = Stop()
    with job.open_limiter() as limiter, ledger_of(job, directory) as ledger:
        run(job, limiter, ledger, stop, pause=lambda _s: None, jitter=lambda: 0.0)
        stop.close()
        found = {subject: outcome_of(ledger, subject) for subject in range(400)}
        return report_of(ledger), {subject: each for subject, each in found.items() if each is not None}


def units(site: Site, subject: int) -> int:
    with site.limiter() as limiter:
        return sum(hit.units for hit in limiter.explain("promo", subject, channel="push").hits)


def of(outcomes: dict[int, Outcome], word: str) -> set[int]:
    return {subject for subject, each in outcomes.items() if each.outcome == word}


def opt_out(site: Site, *ids: object) -> None:
    (site.path / "new.csv").write_text("id\n" + "".join(f"{each}\n" for each in ids))
    (site.path / "new.csv").replace(site.path / "optouts.csv")


def test_a_transactional_message_is_counted_past_caps_and_quiet_hours(tmp_path: Path) -> None:
    site = Site(tmp_path)
    (tmp_path / "policies.yaml").write_text(
        "namespace: marketing\n"
        "policies: {promo: {limits: [1/day, not between 15:00 and 17:00], channels: {push: [1/day]}}}"
    )
    site.settings.pop("segments")
    job = with_sender(site.job(transactional="true", channel="push"), far := Far(lambda i, _: PERMANENT * (i == 7)))
    assert plan(job).total.sent == 400
    report, _ = go(job, tmp_path / "run")
    assert (report.total.sent, report.total.refused, report.total.failed) == (399, 0, 1)
    assert far.delivered() == [i for i in range(400) if i != 7]
    again = with_sender(site.job(transactional="true", channel="push", campaign="second"), Far())
    assert go(again, tmp_path / "second")[0].total.sent == 400
    assert [units(site, subject) for subject in (7, 8)] == [1, 2], "the failed one was given back"
    promotion = with_sender(site.job(channel="push", campaign="third"), Far())
    assert go(promotion, tmp_path / "third")[0].total.sent == 0


def test_whoever_is_decided_first_takes_the_place(tmp_path: Path) -> None:
    """The example of docs/howto/winning.md."""
    site = Site(tmp_path)
    (tmp_path / "policies.yaml").write_text("namespace: marketing\npolicies: {promo: {limits: [3/24h]}}")
    site.settings.pop("segments")
    sends = ("21T09:00", "21T13:00", "21T17:00", "22T08:00", "22T09:01", "22T10:00", "22T11:00", "22T14:00")

    def sent(name: str, **settings: str) -> list[int]:
        counts: list[int] = []
        for number, at in enumerate(sends):
            more = settings if number == 3 else {}
            job = site.job(
                campaign=f"{name}{number}", as_of=f"2025-11-{at}:00Z", store=f"lmdb://{tmp_path}/{name}", **more
            )
            counts.append(go(with_sender(job, Far()), tmp_path / f"{name}{number}")[0].total.sent)
        return counts

    assert sent("plain") == [400, 400, 400, 0, 400, 0, 0, 400]
    assert sent("charged", transactional="true") == [400, 400, 400, 400, 0, 0, 0, 400]


def test_a_holdout_is_the_stated_share_exactly() -> None:
    assert Holdout.parse("5%", "g").below == -(-(1 << 64) * 5 // 100)
    assert Holdout.parse("0.7%", "g").below == math.ceil(Fraction(7, 1000) * (1 << 64)) != math.ceil(0.007 * (1 << 64))
    texts = np.array(["42", "zoë"], object)
    for subject, text in ((42, "42"), ("zoë", "zoë")):
        number = int.from_bytes(hashlib.sha256(f"spring\0{text}".encode()).digest()[:8], "big")
        ids = np.array([subject], np.uint64) if isinstance(subject, int) else texts[1:]
        assert [Holdout("spring", number + more).among(ids).tolist() for more in (0, 1)] == [[False], [True]]
    shares = [Holdout.parse("20%", group).among(np.arange(10_000, dtype=np.uint32)) for group in ("a", "b")]
    assert all(1800 < share.sum() < 2200 for share in shares)
    assert (shares[0] != shares[1]).any()


def test_the_held_out_are_neither_sent_nor_counted_and_say_what_would_have_been(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.seed()
    site.settings |= {"holdout": "20%", "holdout_group": "spring"}
    held = set(np.flatnonzero(Holdout.parse("20%", "spring").among(np.arange(400, dtype=np.uint32))).tolist())
    with site.limiter() as limiter:
        names = ["active"] * 100 + ["new"] * 100 + [None] * 200
        peeked = [limiter.peek("promo", subject, segment=name) for subject, name in enumerate(names)]
    before = {subject: units(site, subject) for subject in held}
    job = with_sender(site.job(), far := Far())
    forecast = plan(job)
    report, outcomes = go(job, tmp_path / "run")
    assert report.total == forecast.total
    assert of(outcomes, "held out") == held
    assert not held & {*far.delivered()}
    assert {subject: units(site, subject) for subject in held} == before
    for subject in held:
        until_us = None if peeked[subject] else AT_US + (peeked[subject].retry_after_us or 0)
        assert outcomes[subject].until_us == until_us
        assert (outcomes[subject].limit is None) == bool(peeked[subject])
    capped = sum(not peeked[subject] for subject in held)
    assert (report.total.held_out, report.total.would_be_refused) == (len(held), capped)
    assert 0 < capped < len(held)
    assert report.total.audience == report.total.sent + report.total.refused + len(held)
    other = with_sender(site.job(campaign="autumn"), Far())
    assert of(go(other, tmp_path / "autumn")[1], "held out") == held, "the same group, the same people"
    named = with_sender(site.job(campaign="autumn2", holdout_group=None), Far())
    assert of(go(named, tmp_path / "autumn2")[1], "held out") != held


def test_who_is_excluded_is_never_asked_about(tmp_path: Path) -> None:
    site = Site(tmp_path)
    opt_out(site, 5, 6, 6, 999)
    (tmp_path / "blocked.roaring").write_bytes(IdSet([7]).to_bytes())
    site.settings |= {"exclude": "{csv: optouts.csv, bitmap: blocked.roaring, segments: churned}", "holdout": "50%"}
    job = with_sender(site.job(), far := Far())
    out = {5, 6, 7, *range(200, 300)}
    assert plan(job).total.excluded == len(out)
    report, outcomes = go(job, tmp_path / "run")
    assert of(outcomes, "excluded") == out
    assert report.total.excluded == len(out)
    assert not out & {*far.delivered()}
    assert {units(site, subject) for subject in out} == {0}
    assert all(each.hit_us is None and not each.given_back for each in outcomes.values() if each.outcome == "excluded")


@pytest.mark.parametrize("way", ["file", "response", "segments", "published"])
def test_who_opts_out_before_it_is_sent_is_not_sent_to_and_given_back(tmp_path: Path, way: str) -> None:
    site = Site(tmp_path)
    opt_out(site)

    def now_out(*ids: int) -> None:
        if way == "file":
            opt_out(site, *ids)
            return
        if way == "response":
            add_opt_outs(tmp_path / "optouts.csv", map(str, ids))
            return
        sets = {"active": IdSet.from_range(0, 99), "new": IdSet.from_range(100, 199), "churned": IdSet(ids)}
        snapshot = Snapshot(sets, f"day-{len(ids)}", overlapping=["churned"])
        write_snapshot(snapshot, tmp_path / "segments", replace=True)
        if way == "published":
            Publisher(tmp_path / "published").publish(tmp_path / "segments")

    if way in ("segments", "published"):
        now_out()
        site.settings["segments"] = "published" if way == "published" else "segments"
    site.settings |= {"exclude": "{segments: churned}" if way in ("segments", "published") else "{csv: optouts.csv}"}

    def said(subject: int, tries: int) -> int:
        if subject == 9:
            now_out(8, 7, 15, 150)
        codes: dict[int, Callable[[], int]] = {8: lambda: UNKNOWN, 7: lambda: TRANSIENT}
        return codes.get(subject, lambda: DELIVERED)()

    job = with_sender(site.job(), far := Far(said, most=5))
    report, outcomes = go(job, tmp_path / "run")
    assert of(outcomes, "excluded") == {7, 15, 150}
    assert of(outcomes, "not known") == {8}
    assert not {8, 7, 15, 150} & {*far.delivered()}
    assert (far.tries[8], far.tries[7], far.tries[15]) == (1, 1, 0)
    assert [units(site, subject) for subject in (8, 7, 15, 150, 16)] == [1, 0, 0, 0, 1]
    assert [outcomes[subject].given_back for subject in (7, 15, 150)] == [True, True, False]
    assert report.total.sent == 396


def test_who_opts_out_between_a_kill_and_its_resumption_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed after the decision, before it is recorded."""
    site = Site(tmp_path)
    opt_out(site, 3)
    site.settings["exclude"] = "{csv: optouts.csv}"
    take, killed = BatchRows.take_decisions, iter([True])

    def dies(rows: BatchRows, *given: object) -> None:
        take(rows, *given)  # type: ignore[arg-type]
        if next(killed, False):
            raise KeyboardInterrupt

    job = with_sender(site.job(), far := Far())
    monkeypatch.setattr(BatchRows, "take_decisions", dies)
    with pytest.raises(KeyboardInterrupt):
        go(job, tmp_path / "run")
    opt_out(site, 3, 4)
    report, outcomes = go(with_sender(site.job(), far), tmp_path / "run")
    assert of(outcomes, "excluded") == {3, 4}
    assert (outcomes[3].given_back, outcomes[4].given_back) == (False, True)
    assert far.delivered() == [i for i in range(400) if i not in (3, 4)]
    assert [units(site, subject) for subject in range(400)] == [int(i not in (3, 4)) for i in range(400)]
    assert report.total.sent == 398


def test_nobody_is_sent_to_while_the_excluded_cannot_be_read(tmp_path: Path) -> None:
    site = Site(tmp_path)
    opt_out(site, 3)
    site.settings["exclude"] = "{csv: optouts.csv}"
    job = with_sender(site.job(), far := Far())
    (tmp_path / "optouts.csv").unlink()
    with pytest.raises(CaplineError, match="no such file"):
        go(job, tmp_path / "run")
    with pytest.raises(CaplineError, match="no such file"):
        site.job()
    assert far.delivered() == []
    opt_out(site, "u:1")
    with pytest.raises(CaplineError, match="u:1"):
        site.job()
    opt_out(site, 4)
    assert go(job, tmp_path / "run")[0].total.sent == 399


def test_a_run_keeps_to_who_is_sent_to(tmp_path: Path) -> None:
    site = Site(tmp_path)
    opt_out(site)
    kept = {"exclude": "{csv: optouts.csv}", "holdout": "5%"}
    go(with_sender(site.job(**kept), Far()), tmp_path / "run")
    for changed in (
        {"holdout": "6%"},
        {"holdout": None},
        {"exclude": None},
        {"holdout": None, "transactional": "true"},
    ):
        with pytest.raises(CampaignError, match="begun with another"):
            go(with_sender(site.job(**{**kept, **changed}), Far()), tmp_path / "run")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("transactional: true\nholdout: 5%", "a transactional message goes to everyone"),
        ("transactional: maybe", "expected true or false"),
        ("holdout: 0.05", "'0.05' is not a share above 0% and below 100%; write it like 5%"),
        ("holdout: 0%", "is not a share"),
        ("holdout: 100%", "is not a share"),
        ("holdout_group: spring", "it needs a 'holdout:', like 5%"),
        ("holdout: 5%\nholdout_group: a b", "is not 1 to 64"),
        ("exclude: optouts.csv", "expected a mapping, like {csv: optouts.csv, column: id}"),
        ("exclude: {column: id}", "name csv, parquet, bitmap, segments or several"),
        ("exclude: {csv: 's3://bucket/a.csv'}", "name a file; what changes far away is published as segments"),
        ("exclude: {csv: optouts.txt}", "the name of a csv file ends in .csv or .csv.gz"),
        ("exclude: {cvs: optouts.csv, csv: a.csv}", "unknown key 'cvs'; did you mean csv?"),
    ],
)
def test_what_is_refused(tmp_path: Path, line: str, said: str) -> None:
    site = Site(tmp_path)
    site.file.write_text(f"{site.file.read_text()}{line}\n")
    with pytest.raises(CampaignError) as refused:
        load_campaign(site.file)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_each_state_says_what_is_next() -> None:
    """What a ledger holds is read as it was written, and each state that something is to be done with leads on."""
    rows = BatchRows.undecided(0, 5, np.arange(len(FATES), dtype=np.uint32), np.zeros(len(FATES), np.uint16))
    rows.state[:] = np.arange(len(FATES))
    again = BatchRows.unpack(0, *rows.pack(decided=True))
    assert again.state.tolist() == rows.state.tolist()
    for done in ("decide", "refund"):
        again.mark_done(again.todo(done))
        assert not again.todo(done).size
    assert not again.is_done
