"""`capline campaign` by the real command: files in, parts or posts out, reports, errors, signals."""

import json
import select
import shutil
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit import forked
from tests.kit.campaign import (
    AT,
    AT_US,
    Receiver,
    Site,
    answer,
    capline,
    comparable,
    environment,
    mail_server,
    receiver,
)
from tests.kit.forked import Command
from tests.kit.server import soon
from tests.kit.serving import Serving

from capline.segment import IdSet

parquet: Any = import_module("pyarrow.parquet")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.seed()
    return site


def refusal(*args: str | Path) -> str:
    """The one line that a command refuses with."""
    done = capline(*args)
    assert (done.returncode, done.stdout) == (2, ""), (done.stdout, done.stderr)
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("capline: ")
    return done.stderr.strip()


# ---- the way through


def test_plan_then_run_then_status(site: Site) -> None:
    forecast = answer("campaign", "plan", site.file)
    assert forecast["state"] == "planned"
    assert not (site.path / "campaign.run").exists()
    report = answer("campaign", "run", site.file)
    assert report["state"] == "finished"
    assert comparable(report) == comparable(forecast)
    parts = sorted((site.path / "out").glob("part-*.parquet"))
    rows = [row for part in parts for row in parquet.read_table(part).to_pylist()]
    assert len(rows) == report["total"]["sent"] > 0
    assert {row["key"] for row in rows} == {f"summer-sale/{report['run']}/{row['id']}" for row in rows}
    assert {row["segment"] for row in rows} == {"", "active", "churned", "new"}
    for target in (site.file, site.path / "campaign.run"):
        assert answer("campaign", "status", target) == {**report, "store": None}
    again = capline("campaign", "run", site.file)
    assert (again.returncode, "finished before" in again.stderr) == (0, True)


def test_caps_do_not_vanish_with_cd(tmp_path: Path) -> None:
    directory = tmp_path / "shop"
    directory.mkdir()
    site = Site(directory)
    site.seed()
    site.write(store="lmdb://store")
    outside = answer("campaign", "plan", "shop/campaign.yaml", cwd=tmp_path)
    inside = answer("campaign", "plan", "campaign.yaml", cwd=directory)
    assert outside == inside
    assert inside["total"]["refused"] > 0
    assert answer("campaign", "run", "shop/campaign.yaml", cwd=tmp_path)["total"] == inside["total"]
    assert not (tmp_path / "store").exists()


def test_plan_and_run_say_what_the_store_holds_and_whether_it_is_new(tmp_path: Path) -> None:
    site = Site(tmp_path)
    planned = capline("campaign", "plan", site.file)
    assert "is new: nobody is counted in it yet" in planned.stderr
    assert f"store {site.store}: 0 logs, not there yet" in planned.stdout
    assert answer("campaign", "plan", site.file)["store"] == {
        "url": site.store,
        "logs": 0,
        "begun": None,
        "is_new": True,
    }
    assert not (tmp_path / "store").exists()
    ran = capline("campaign", "run", site.file)
    assert "is new: nobody is counted in it yet" in ran.stderr
    assert f"store {site.store}: 0 logs, begun 20" in ran.stdout
    planned = capline("campaign", "plan", site.file)
    assert planned.stderr == ""
    assert f"store {site.store}: 400 logs, begun 20" in planned.stdout, "of the subjects: a run has a log, too"


def test_for_people(site: Site) -> None:
    plan = capline("campaign", "plan", site.file)
    run = capline("campaign", "run", site.file)
    assert (plan.returncode, plan.stderr, run.returncode, run.stderr) == (0, "", 0, "")
    for text in ("would send", "refused by 1/day", "refused by 2/week", "churned", "day (UTC)", "2026-11-22"):
        assert text in plan.stdout
    for text in ("finished", "sent", "failed", "the refused fit again: earliest 2026-11-22T14:00:00Z", "subjects/s"):
        assert text in run.stdout


def test_progress_is_shown_when_asked_for(site: Site) -> None:
    quiet = capline("campaign", "plan", site.file)
    shown = capline("campaign", "plan", site.file, "--progress")
    assert "peeking" not in quiet.stderr
    assert "peeking" in shown.stderr
    assert "400/400" in shown.stderr


@pytest.mark.parametrize(
    ("audience", "count"),
    [
        ("{segments: active | (churned - new)}", 200),
        ("{bitmap: some.roaring}", 3),
        ("{parquet: some.parquet, column: user}", 2),
        ("{csv: ['users.csv', 'users.csv'], duplicates: drop}", 400),
    ],
)
def test_audiences_of_every_kind(site: Site, audience: str, count: int) -> None:
    IdSet([1, 500, 4_294_967_295]).to_file(site.path / "some.roaring")
    pa: Any = import_module("pyarrow")
    parquet.write_table(pa.table({"user": pa.array([7, 8], pa.uint32())}), site.path / "some.parquet")
    site.write(audience=audience, sender="{file: {path: out, format: csv}}")
    assert answer("campaign", "run", site.file)["total"]["audience"] == count
    assert list((site.path / "out").glob("part-*.csv"))


def test_by_webhook_with_failures_of_both_kinds(site: Site) -> None:
    with receiver(
        lambda subject, tries: 410 if subject % 9 == 0 else 503 if subject % 11 == 0 and tries < 3 else 200
    ) as far:
        site.write(sender=f"{{webhook: '{far.url}', concurrency: 4}}", channel="push")
        report = answer("campaign", "run", site.file)
    assert report["failures"] == {"HTTP 410": report["total"]["failed"]}
    assert len(far.delivered()) == report["total"]["sent"]
    assert not [subject for subject in far.delivered() if subject % 9 == 0]
    assert [subject for subject in far.delivered() if subject % 11 == 0]
    with site.limiter() as limiter:
        refunded = next(iter(subject for subject in far.keys if subject % 9 == 0))
        hits = limiter.explain("promo", refunded, channel="push").hits
    assert hits[-1].units == 0


def test_by_mail_to_the_address_in_a_column(site: Site) -> None:
    rows = [f"{subject},u{subject}@example.org" for subject in range(1, 7)] + ["8,gone@example.org"]
    (site.path / "users.csv").write_text("id,email\n" + "\n".join(rows))
    with mail_server() as (box, port):
        options = {"server": f"127.0.0.1:{port}", "tls": "none", "from": "news@shop.example"}
        texts = {"to": "{email}", "subject": "Sale", "text": "Dear {segment} {id}"}
        site.write(audience="{csv: users.csv, columns: [email]}", sender=json.dumps({"smtp": {**options, **texts}}))
        report = answer("campaign", "run", site.file)
    assert report["failures"] == {"SMTP 550": 1}
    assert sorted(to for to, _ in box.mails) == [f"u{subject}@example.org" for subject in range(1, 7)]
    assert "Dear active 1" in dict(box.mails)["u1@example.org"]


# ---- what is refused


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


BAD: dict[str, tuple[dict[str, str], Callable[[Site], object], str]] = {
    "negative": ({}, lambda site: site.audience([1, -3]), "users.csv, row 2: id -3 is negative"),
    "too large": (
        {},
        lambda site: site.audience([2**64]),
        "row 1: id 18446744073709551616 is above 18446744073709551615",
    ),
    "no number": ({}, lambda site: site.audience([1, "0x10"]), "row 2: id '0x10' is not a number"),
    "twice": ({}, lambda site: site.audience([5, 1, 5]), "1 id comes more than once (1 row too many): 5"),
    "nobody": ({}, lambda site: site.audience([]), "an empty audience"),
    "no audience": ({}, lambda site: (site.path / "users.csv").unlink(), "users.csv: no such file"),
    "no column": ({"audience": "{csv: users.csv, column: user}"}, lambda _: None, "no column 'user'"),
    "no policy": ({"policy": "promotion"}, lambda _: None, "no policy 'promotion'; there are: promo"),
    "no channel": ({"channel": "fax"}, lambda _: None, "no channel 'fax'; it has: email, push"),
    "no segment": ({"audience": "{segments: active - old}"}, lambda _: None, "no segment 'old'"),
    "no policies": ({"policies": "no.yaml"}, lambda _: None, "no.yaml: cannot be read"),
    "no snapshot": ({"segments": "no"}, lambda _: None, "no: cannot open it"),
    "flipped snapshot": (
        {},
        lambda site: flip(next(site.path.glob("segments/active-*.roaring"))),
        "does not match the SHA-256",
    ),
    "flipped manifest": ({}, lambda site: flip(site.path / "segments/manifest.json"), "manifest.json"),
    "no parquet": ({"audience": "{parquet: none.parquet}"}, lambda _: None, "none.parquet: no such file"),
    "not parquet": (
        {"audience": "{parquet: users.parquet}"},
        lambda site: shutil.copy(site.path / "users.csv", site.path / "users.parquet"),
        "users.parquet: cannot be read",
    ),
    "no sender": ({"sender": "{pigeon: {}}"}, lambda _: None, "no such sender; there are: file, kafka"),
    "bad options": ({"sender": "{webhook: {url: nowhere}}"}, lambda _: None, "it is not a URL like"),
    "no file": ({}, lambda site: site.file.unlink(), "campaign.yaml: cannot read it"),
    "bad store": ({"store": "lmdb:///dev/null/x"}, lambda _: None, "/dev/null/x/data.mdb: Not a directory"),
    "unknown store": ({"store": "sqlite:///x"}, lambda _: None, "unknown kind 'sqlite'"),
    "unknown key": ({"sendr": "x"}, lambda _: None, "unknown key 'sendr'; did you mean sender?"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_consumes_nothing(site: Site, case: str) -> None:
    settings, damage, said = BAD[case]
    before = site.content()
    site.write(**settings)
    damage(site)
    assert said in refusal("campaign", "run", site.file)
    assert site.content() == before
    assert not (site.path / "campaign.run").exists()
    assert not (site.path / "out").exists()


def test_a_truncated_parquet_is_refused(site: Site) -> None:
    pa: Any = import_module("pyarrow")
    parquet.write_table(pa.table({"id": pa.array(range(1000), pa.uint32())}), site.path / "users.parquet")
    cut(site.path / "users.parquet")
    site.write(audience="{parquet: users.parquet}")
    assert "users.parquet: cannot be read" in refusal("campaign", "run", site.file)
    assert "users.parquet: cannot be read" in refusal("campaign", "plan", site.file)


def test_a_run_that_was_begun_otherwise_is_not_gone_on_with(site: Site) -> None:
    answer("campaign", "run", site.file)
    changes: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "another audience (was 400 ids, is 399 ids)": (
            lambda: site.audience(range(399)),
            lambda: site.audience(range(400)),
        ),
        "another cost (was 1, is 2)": (lambda: site.write(cost="2"), site.write),
        "another sender": (lambda: site.write(sender="{file: elsewhere}"), site.write),
        "another store": (lambda: site.write(store=f"lmdb://{site.path}/elsewhere"), site.write),
    }
    for said, (change, put_back) in changes.items():
        change()
        assert said in refusal("campaign", "run", site.file)
        put_back()
    assert not (site.path / "elsewhere").exists()
    site.write(retry="{attempts: 9}")
    assert answer("campaign", "run", site.file)["state"] == "finished"


def test_every_fault_of_the_file_is_named(site: Site) -> None:
    site.write(cost="-1", batch="many", as_of="yesterday")
    done = capline("campaign", "run", site.file)
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(": ")[1] for line in done.stderr.splitlines()[1:]]
    assert all(f"{key}: " in done.stderr for key in ("cost", "batch")), done.stderr
    assert "'yesterday' is not an instant" in done.stderr
    assert len(done.stderr.splitlines()) == 3


def test_every_fault_of_the_files_that_it_names_is_named(site: Site) -> None:
    """In whichever way the campaign is begun; each line of the answer is a fault."""
    queue = f"sqlite://{site.path}/queue.sqlite"
    form: dict[str, Any] = {key: msgspec.yaml.decode(value) for key, value in site.settings.items()}
    form |= {"as_of": AT, "audience": {"csv": "users.csv", "columns": ["key"]}}
    site.write(audience="{csv: users.csv, columns: [key]}")
    with Serving(site.path, "--queue", queue) as serving:
        (site.path / "policies.yaml").write_text("polices: 1\npolicies: {promo: {limits: [3/dya]}}\n")
        (site.path / "users.csv").write_text("id,key\n1,a\nx,b\n")
        shutil.rmtree(site.path / "segments")
        posted = [serving.ask(f"/v1/campaigns{path}", **form) for path in ("", "/plan")]
    assert [each.status_code for each in posted] == [422, 422]
    ways = [
        capline("campaign", *words).stderr
        for words in (("run", site.file), ("plan", site.file), ("enqueue", site.file, "--queue", queue))
    ]
    begun, planned = (each.json()["detail"] for each in posted)
    for said in (*ways, planned, begun):
        for fault in ("unknown key 'polices'", "3/dya", "segments", "column 'key'"):
            assert fault in said, said
        assert ("users.csv" in said) == (said != begun), "a worker reads it"
    for said in ways:
        assert len(said.splitlines()) == 5, said
    assert not (site.path / "campaign.run").exists()


def test_a_directory_is_meant_whatever_queue_the_environment_names(site: Site) -> None:
    answer("campaign", "run", site.file)
    done = capline("campaign", "outcome", site.path / "campaign.run", "1", CAPLINE_QUEUE="redis://127.0.0.1:1/0")
    assert (done.returncode, done.stdout.split()[0]) == (0, "1:"), done.stderr


def test_a_queued_campaign_is_meant_beside_a_folder_of_its_name(site: Site) -> None:
    queue = f"sqlite://{site.path}/queue.sqlite"
    answer("campaign", "enqueue", site.file, "--queue", queue)
    (site.path / "summer-sale").mkdir()
    found = capline("campaign", "status", "summer-sale", "--queue", queue, "--json", cwd=site.path)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["queue"]["waiting"] == 4


def test_status_of_nothing(site: Site) -> None:
    assert "no ledger here" in refusal("campaign", "status", site.file)
    assert "no such file" in refusal("campaign", "status", site.path / "none.yaml")


# ---- signals, and two at once


@contextmanager
def stuck(site: Site, answered: int = 150) -> Generator[tuple[Command, Receiver, threading.Event]]:
    """A campaign whose far side holds back its answers after so many, until the event is set."""
    go_on, holds = threading.Event(), threading.Event()

    def hold(count: int) -> None:
        if count > answered and not go_on.is_set():
            holds.set()
            go_on.wait(120)

    with receiver(on_request=hold) as far:
        site.write(sender=f"{{webhook: '{far.url}', concurrency: 2}}")
        process = forked.start("campaign", "run", site.file, "--json", env=environment())
        try:
            assert holds.wait(120)
            yield process, far, go_on
        finally:
            go_on.set()
            process.kill()
            process.communicate()


def heard(process: Command) -> str:
    """The next line on standard error."""
    assert process.stderr is not None
    assert select.select([process.stderr], [], [], 30)[0]
    return process.stderr.readline()


def heard_of(process: Command, what: str) -> None:
    """Read standard error up to a line that has this."""
    assert process.stderr is not None
    assert any(what in line for line in process.stderr)


@pytest.mark.parametrize(("signum", "code", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")])
def test_a_signal_finishes_the_step_and_says_how_to_go_on(site: Site, signum: int, code: int, name: str) -> None:
    with stuck(site) as (process, far, go_on):
        assert answer("campaign", "status", site.file)["state"] == "running"
        process.send_signal(signum)
        assert heard(process) == f"{name}: finishing the step under way; again to end at once\n"
        go_on.set()
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (code, "")
        assert "subjects are done, nothing is lost. Resume with: capline campaign run" in err
        status = answer("campaign", "status", site.file)
        assert status["state"] == "stopped"
        # The hand-over that was under way came to its end and is written down: nothing is sent a second time.
        assert status["total"]["sent"] == len(far.taken) == far.requests
        report = answer("campaign", "run", site.file)
        assert report["state"] == "finished"
        assert far.requests == len(far.taken) == report["total"]["sent"]


def test_a_second_signal_ends_at_once_and_the_run_still_goes_on(site: Site) -> None:
    with stuck(site) as (process, far, go_on):
        process.send_signal(signal.SIGINT)
        heard(process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "ended at once" in err
        go_on.set()
        report = answer("campaign", "run", site.file)
        assert len(far.taken) == report["total"]["sent"]
        assert {len(keys) for keys in far.keys.values()} == {1}


def test_a_second_process_on_the_same_run_is_refused(site: Site) -> None:
    with stuck(site, answered=150) as (_, far, _go_on):
        assert "another process is in this run" in refusal("campaign", "run", site.file)
        assert far.requests <= 150 + 2  # those that the first one has under way


def test_killed_while_it_is_paused_it_stays_paused_and_then_goes_on(site: Site) -> None:
    with stuck(site) as (process, far, go_on):
        assert capline("campaign", "pause", site.file).stdout == "summer-sale: paused\n"
        go_on.set()
        assert answer("campaign", "status", site.file)["state"] == "paused"
        process.kill()
        process.wait()
        again = forked.start("campaign", "run", site.file, env=environment())
        try:
            heard_of(again, "paused; go on with: capline campaign resume")
            assert answer("campaign", "status", site.file)["state"] == "paused"
            capline("campaign", "resume", site.file)
            again.communicate(timeout=60)
        finally:
            again.kill()
            again.communicate()
        report = answer("campaign", "run", site.file)
        assert far.delivered() == sorted(set(far.delivered()))
        assert len(far.taken) == report["total"]["sent"]
        assert "is finished" in refusal("campaign", "pause", site.file)


def test_killed_and_cancelled_what_is_decided_is_given_back_by_the_next_run(site: Site) -> None:
    with stuck(site) as (process, far, go_on):
        process.kill()
        process.wait()
        assert "add --yes" in refusal("campaign", "cancel", site.file)
        assert capline("campaign", "cancel", site.file, "--yes").stdout == "summer-sale: cancelled\n"
        go_on.set()
        done = capline("campaign", "run", site.file, "--json")
        assert "cancelled; what was not sent is given back" in done.stderr
        report = json.loads(done.stdout)
        assert (done.returncode, report["state"]) == (0, "cancelled")
        assert report["total"]["undecided"] == 200
        assert report["total"]["sent"] <= len(far.taken)
        assert report["total"]["failed"] > 0
        with site.limiter() as limiter:
            hits = {subject: limiter.explain("promo", subject).hits for subject in range(400)}
        kept = {
            subject for subject, of_one in hits.items() if any(hit.units for hit in of_one if hit.stamp_us >= AT_US)
        }
        assert len(kept) == report["total"]["sent"] + report["total"]["not_known"]
        assert set(far.delivered()) <= kept
        assert "was cancelled" in refusal("campaign", "cancel", site.file, "--yes")


def test_killed_before_it_is_due_the_instant_may_still_be_changed(site: Site) -> None:
    file = site.write(as_of=None, send_at="2254-01-01T00:00:00+08:00")
    waiting = forked.start("campaign", "run", file, env=environment())
    try:
        heard_of(waiting, "waits until 2253-12-31T16:00:00Z")
        assert soon(lambda: answer("campaign", "status", file)["state"] == "scheduled"), "a moment later"
    finally:
        waiting.kill()
        waiting.communicate()
    report = answer("campaign", "run", site.write(as_of=None, send_at="2026-01-01T00:00:00Z"))
    assert (report["state"], report["total"]["undecided"]) == ("finished", 0)


def test_progress_of_a_killed_run(site: Site) -> None:
    with stuck(site) as (process, _far, _go_on):
        process.kill()
        process.wait()
        status = json.loads(capline("campaign", "status", site.file, "--json").stdout)
        assert status["state"] == "stopped"
        total = status["total"]
        assert total["audience"] == 400
        assert 0 < total["sent"] < 400
        assert total["undecided"] > 0
        assert sum(total[key] for key in ("sent", "refused", "failed", "pending", "undecided")) == 400


def test_a_dead_receiver_is_exit_1_and_the_failed_are_tried_again(site: Site) -> None:
    site.write(sender="{webhook: 'http://127.0.0.1:9/push', breaker: 100000}", retry="{attempts: 1}")
    again = ["campaign", "run", site.file, "--retry-failed"]
    assert "no run here; name its directory" in refusal(*again)
    done = capline("campaign", "run", site.file)
    assert done.returncode == 1
    assert "failed; try these again with: capline campaign run" in done.stderr
    assert "--retry-failed" in done.stderr
    report = answer("campaign", "run", site.file)
    assert (report["state"], report["total"]["sent"]) == ("finished", 0)
    assert report["total"]["failed"] > 0
    assert capline("campaign", "run", site.file).returncode == 1, "also where only the report is printed again"
    assert capline(*again).returncode == 1
    assert answer("campaign", "status", site.file)["total"] == report["total"]


def test_a_run_that_waits_says_so_until_its_receiver_is_there_or_ctrl_c(site: Site) -> None:
    site.write(sender="{webhook: 'http://127.0.0.1:9/push', breaker: 1}", retry="{attempts: 1}")
    assert capline("campaign", "run", site.file).returncode == 1, "without --wait it ends"
    process = forked.start("campaign", "run", site.file, "--wait", env=environment())
    try:
        heard_of(process, "it is tried again every 60 s")
        assert soon(lambda: answer("campaign", "status", site.file)["state"] == "running", 30)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert f"Resume with: capline campaign run {site.file} --wait" in " ".join(err.split())
