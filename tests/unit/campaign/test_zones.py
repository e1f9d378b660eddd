"""Campaigns in the time zones of their subjects: a column of the audience, from the file to the decision."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.campaign import AT_US, HOUR_US, Far, Site, ledger_of, with_sender

from capline import Limiter, ManualClock, Policy
from capline.campaign import audience as audiences
from capline.campaign import plan, report_of, run
from capline.campaign.audience import AudienceSource, read
from capline.campaign.part import Part
from capline.campaign.prepare import limiter_kinds, local_instant_us
from capline.campaign.senders.protocol import DELIVERED
from capline.campaign.stop import Stop
from capline.model.clock import SystemClock
from capline.model.errors import CampaignError, CaplineError, IdConflictError
from capline.tables import csv_file

pa: Any = import_module("pyarrow")
parquet: Any = import_module("pyarrow.parquet")

DAY_US = 24 * HOUR_US
ZONES = ("", "Asia/Singapore", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati")
POLICIES = """\
namespace: marketing
policies:
  promo:
    limits: [2/calendar-day, not between 22:00 and 08:00]
    by_segment: {active: [3/calendar-day, 10/calendar-week], new: [5/day]}
    channels: {push: [1/calendar-day]}
    zone: Asia/Kolkata
"""


def zoned(text: str, path: Path, **more: Any) -> Any:
    path.write_text(text)
    return read(AudienceSource("csv", (str(path),), zone_column="zone", **more), None)


def named(audience: Any) -> list[str | None]:
    return [audience.zones[code] for code in audience.zone_codes]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    (tmp_path / "policies.yaml").write_text(POLICIES)
    rows = "".join(f"{number},{ZONES[number % len(ZONES)]}\n" for number in range(400))
    (tmp_path / "users.csv").write_text(f"id,zone\n{rows}")
    site.settings["audience"] = "{csv: users.csv, zone_column: zone}"
    site.write()
    return site


# --- reading --------------------------------------------------------------------------------------------------


def test_a_zone_follows_its_id_and_an_empty_one_is_the_policys(tmp_path: Path) -> None:
    found = zoned("id,zone\n9,UTC\n1,\n5,Asia/Tokyo\n3,UTC\n", tmp_path / "a.csv")
    assert (found.ids.tolist(), named(found)) == ([1, 3, 5, 9], [None, "UTC", "Asia/Tokyo", "UTC"])
    assert found.zones == (None, "Asia/Tokyo", "UTC")
    assert found.texts == {}


def test_without_a_column_there_are_no_zones(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,zone\n1,nowhere\n")
    found = read(AudienceSource("csv", (str(tmp_path / "a.csv"),)), None)
    assert (found.zones, found.zone_codes) == ((None,), None)


def test_a_column_may_be_both_the_zone_and_a_text_for_the_sender(tmp_path: Path) -> None:
    found = zoned("id,zone,name\n2,UTC,b\n1,,a\n", tmp_path / "a.csv", columns=("name", "zone"))
    assert named(found) == [None, "UTC"]
    assert found.columns(np.arange(0, 2)) == {"name": ["a", "b"], "zone": ["", "UTC"]}


def test_of_a_duplicate_the_first_rows_zone_counts(tmp_path: Path) -> None:
    text = "id,zone\n7,UTC\n1,\n7,Asia/Tokyo\n"
    assert named(zoned(text, tmp_path / "a.csv", drop_duplicates=True)) == [None, "UTC"]


@pytest.mark.parametrize("kind", ["text", "large", "encoded", "small codes"])
def test_zones_of_parquet_may_be_text_of_any_kind_and_null(tmp_path: Path, kind: str) -> None:
    zones: Any = pa.array(["Asia/Tokyo", None, "", "UTC"], pa.large_string() if kind == "large" else pa.string())
    if "code" in kind:
        index = pa.int8() if kind == "small codes" else pa.int32()
        zones = zones.dictionary_encode().cast(pa.dictionary(index, pa.string()))
    parquet.write_table(pa.table({"id": pa.array([4, 3, 2, 1]), "zone": zones}), tmp_path / "a.parquet")
    source = AudienceSource("parquet", (str(tmp_path / "a.parquet"),), zone_column="zone")
    assert named(read(source, None)) == ["UTC", None, None, "Asia/Tokyo"]


def test_several_files_and_many_batches_have_one_list_of_zones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_file, "BLOCK_BYTES", 200)
    for number in range(2):
        rows = "".join(f"{2 * i + number},{ZONES[(i + number) % 5]}\n" for i in range(100))
        (tmp_path / f"{number}.csv").write_text(f"id,zone\n{rows}")
    found = read(AudienceSource("csv", (str(tmp_path / "*.csv"),), zone_column="zone"), None)
    assert named(found) == [ZONES[(row // 2 + row % 2) % 5] or None for row in range(200)]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("Asia/Singapur", "no time zone 'Asia/Singapur'; use a name of the IANA database, like 'Asia/Singapore'"),
        (" UTC", "no time zone ' UTC'"),
        ("+08:00", "no time zone"),
        ("../UTC", "no time zone"),
        ("/etc/passwd", "no time zone"),
        ("x" * 5000, "no time zone 'x{64}'"),
    ],
)
def test_an_unknown_zone_names_its_row_and_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str, said: str
) -> None:
    monkeypatch.setattr(csv_file, "BLOCK_BYTES", 10_000)
    rows = "".join(f"{number},Asia/Tokyo\n" for number in range(5000))
    with pytest.raises(CampaignError, match=rf"a.csv, row 5001: zone: {said}.*; leave it empty for the policy's zone"):
        zoned(f"id,zone\n{rows}9999,{bad}\n", tmp_path / "a.csv")


def test_a_text_of_a_dictionary_that_no_row_has_is_no_rows_fault(tmp_path: Path) -> None:
    zones = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int32()), pa.array(["UTC", "Mars/Olympus"]))
    gathered = audiences._Zones("zone")  # pyright: ignore[reportPrivateUsage] - no reader makes such a file
    gathered.add(zones.indices.to_numpy(), zones.dictionary.to_pylist(), tmp_path, 1)
    assert gathered.done(np.arange(2))[0] == (None, "UTC")


def test_the_number_of_zones_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audiences, "MOST_ZONES", 2)
    assert len(zoned("id,zone\n1,UTC\n2,Asia/Tokyo\n3,\n", tmp_path / "a.csv").zones) == 3
    with pytest.raises(CampaignError, match="column 'zone' has more than 2 different zones"):
        zoned("id,zone\n1,UTC\n2,Asia/Tokyo\n3,Asia/Seoul\n", tmp_path / "a.csv")


def test_the_digest_sees_zones_and_not_the_order_of_rows(tmp_path: Path) -> None:
    texts = ("1,UTC\n2,Asia/Tokyo\n", "1,Asia/Tokyo\n2,UTC\n", "1,\n2,UTC\n", "1,UTC\n2,\n", "1,\n2,\n")
    digests = [zoned(f"id,zone\n{text}", tmp_path / "a.csv").digest() for text in texts]
    (tmp_path / "b.csv").write_text("id\n1\n2\n")
    digests.append(read(AudienceSource("csv", (str(tmp_path / "b.csv"),)), None).digest())
    assert len(set(digests)) == 6
    assert zoned("id,zone\n2,Asia/Tokyo\n1,UTC\n", tmp_path / "a.csv").digest() == digests[0]


# --- the campaign file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("audience", "said"),
    [
        ("{csv: users.csv, zone_column: tz}", "no column 'tz'; its columns are: id, zone"),
        ("{csv: users.csv, zone_column: id}", "zone_column: not 'id', which is the id; name the column of time zones"),
        ("{csv: users.csv, zone_column: []}", "zone_column: expected a text, like zone, found a list"),
        ("{csv: users.csv, zonecolumn: zone}", "unknown key 'zonecolumn'; did you mean zone_column"),
        ("{segments: active, zone_column: zone}", "unknown key 'zone_column'"),
    ],
)
def test_a_column_of_zones_that_cannot_be(site: Site, audience: str, said: str) -> None:
    with pytest.raises(CaplineError, match=said):
        site.job(audience=audience)


def test_more_kinds_than_a_batch_can_tell_apart_are_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("capline.campaign.prepare"), "MOST_CODES", 14)
    with pytest.raises(CampaignError, match=r"2 segments in 5 zones are too many for a batch; write 'batch: 14' or"):
        site.job()
    assert site.job(batch="14").batches == 29


@pytest.mark.parametrize("algorithm", ["bucketed", "sliding_counter", "gcra"])
def test_a_policy_that_keeps_no_single_hits_is_refused(site: Site, algorithm: str) -> None:
    (site.path / "policies.yaml").write_text(f"policies: {{promo: {{limits: [3/day], algorithm: {algorithm}}}}}")
    with pytest.raises(CampaignError, match=rf"'promo' is {algorithm}, which keeps no single hits.* need sliding_log"):
        site.job(segments=None)


# --- on the way -----------------------------------------------------------------------------------------------

ids_of_a_batch = st.sets(st.integers(0, 2**32 - 1), min_size=1, max_size=50).map(sorted)


@given(ids_of_a_batch, st.data())
def test_a_part_carries_its_zones(ids: list[int], data: st.DataObject) -> None:
    codes = np.array(data.draw(st.lists(st.integers(0, 1024), min_size=len(ids), max_size=len(ids))), np.uint16)
    given_part = Part(7, np.array(ids, np.uint32), np.zeros(len(ids), np.uint8), {"n": ["x"] * len(ids)}, codes)
    packed = given_part.pack()
    found = Part.unpack(7, len(ids), packed, ("n",), 1, 1025)
    assert found.zone_codes is not None
    assert (found.ids.tolist(), found.zone_codes.tolist()) == (ids, codes.tolist())
    assert found.columns == {"n": ["x"] * len(ids)}
    for zones in (0, int(codes.max())):
        with pytest.raises(CampaignError, match="is damaged"):
            Part.unpack(7, len(ids), packed, ("n",), 1, zones)


def test_the_limiter_is_given_only_the_pairs_that_there_are(site: Site) -> None:
    job = site.job()
    part = job.part(1)  # subjects 100 to 199, all of segment new
    segments, zones, codes = limiter_kinds(job.policy, part, job.audience.segments, job.audience.zones)
    assert set(segments) == {"new"}
    assert zones is not None
    assert [zones[code] or "" for code in codes] == [ZONES[number % 5] for number in range(100, 200)]
    assert len(zones) == 5


def test_a_policy_that_asks_for_no_zone_is_given_none(site: Site) -> None:
    (site.path / "policies.yaml").write_text("policies: {promo: {limits: [2/day]}}")
    job = site.job(segments=None)
    assert limiter_kinds(job.policy, job.part(0), job.audience.segments, job.audience.zones)[1] is None


def one_by_one(site: Site, subjects: Sequence[int], channel: str | None) -> list[Any]:
    segment = {0: "active", 1: "new"}
    with site.limiter() as limiter:
        return [
            limiter.peek(
                "promo", number, segment=segment.get(number // 100), channel=channel, zone=ZONES[number % 5] or None
            )
            for number in subjects
        ]


@pytest.mark.parametrize("channel", [None, "push"])
def test_a_campaign_decides_as_one_would_ask_one_by_one(site: Site, channel: str | None) -> None:
    with site.limiter(AT_US - 10 * HOUR_US) as limiter:
        limiter.decide_many("promo", list(range(0, 400, 3)), segment="active", channel=channel)
        limiter.decide_many("promo", list(range(0, 400, 6)), segment="active")
    expected = one_by_one(site, range(400), channel)
    job = with_sender(site.job(channel=channel), far := Far())
    planned = plan(job)
    stop = Stop()
    with job.open_limiter() as limiter, ledger_of(job, site.path / "run") as ledger:
        run(job, limiter, ledger, stop)
        rows = [row for batch in ledger.batches() for row in zip(batch.ids, batch.limit, batch.retry_us, strict=True)]
        limits = {batch.number: batch.limits for batch in ledger.batches()}
        report = report_of(ledger)
    stop.close()
    assert far.delivered() == [number for number, one in enumerate(expected) if one]
    for (number, limit, retry_us), one in zip(rows, expected, strict=True):
        assert limits[number // 100][limit] == str(one.limit)
        assert retry_us == one.retry_after_us
    assert report.total.refused_by == planned.total.refused_by
    assert (report.segments, report.next_eligible) == (planned.segments, planned.next_eligible)
    assert report.total.refused_by["not between 22:00 and 08:00"] > 20
    assert sum(report.total.refused_by.values()) == sum(not one for one in expected)


def test_a_run_goes_on_only_in_the_zones_it_was_begun_in(site: Site) -> None:
    begun = site.job()
    stop = Stop()
    with begun.open_limiter() as limiter, ledger_of(begun, site.path / "run") as ledger:

        def once(done: int) -> None:
            if done >= 300:  # three batches
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(begun, limiter, ledger, stop, progress=once)
    stop.close()
    text = (site.path / "users.csv").read_text()
    (site.path / "users.csv").write_text(text.replace("Europe/Berlin", "Europe/Paris", 1))
    with pytest.raises(CampaignError, match="begun with another audience"), ledger_of(site.job(), site.path / "run"):
        pass
    (site.path / "users.csv").write_text(text)
    (site.path / "policies.yaml").write_text(POLICIES.replace("Kolkata", "Tokyo"))
    with pytest.raises(CampaignError, match="begun with another policy"), ledger_of(site.job(), site.path / "run"):
        pass
    (site.path / "policies.yaml").write_text(POLICIES)
    with ledger_of(site.job(), site.path / "run") as ledger:
        assert ledger.state().settled == 3


@pytest.mark.parametrize("store", ["memory", "lmdb"])
def test_a_receipt_answers_no_batch_in_other_zones(tmp_path: Path, store: str) -> None:
    policy, clock = Policy("p", ["1/calendar-day"]), ManualClock(AT_US)
    with Limiter("memory://" if store == "memory" else f"lmdb://{tmp_path}/store", [policy], clock=clock) as limiter:

        def ask(*zones: str | None) -> Any:
            return limiter.decide_many("p", [1, 2], zone=zones, codes=[0, 1], receipt="r")

        first = ask(None, "Asia/Tokyo")
        assert ask(None, "Asia/Tokyo").hit.tolist() == first.hit.tolist()
        with pytest.raises(IdConflictError):
            ask(None, "Asia/Seoul")


# --- a local time ---------------------------------------------------------------------------------------------


def us(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)


@pytest.mark.parametrize(
    ("zone", "begins", "minute", "due"),
    [
        ("UTC", "2026-11-21T16:00:00Z", 960, "2026-11-21T16:00:00Z"),
        ("UTC", "2026-11-21T16:00:00.000001Z", 960, "2026-11-22T16:00:00Z"),
        ("Asia/Tokyo", "2026-11-21T08:00:00Z", 960, "2026-11-22T07:00:00Z"),
        ("Pacific/Kiritimati", "2026-11-21T08:00:00Z", 0, "2026-11-21T10:00:00Z"),
        ("Europe/Berlin", "2026-03-28T16:00:00Z", 150, "2026-03-29T01:30:00Z"),  # there is no 02:30 that day
        ("Europe/Berlin", "2026-10-24T16:00:00Z", 150, "2026-10-25T00:30:00Z"),  # 02:30 comes twice
        ("Europe/Berlin", "2026-10-25T00:30:00.5Z", 150, "2026-10-26T01:30:00Z"),
        ("Australia/Lord_Howe", "2026-10-03T00:00:00Z", 135, "2026-10-03T15:45:00Z"),  # half an hour is skipped
    ],
)
def test_a_minute_of_the_day_is_one_instant(zone: str, begins: str, minute: int, due: str) -> None:
    assert local_instant_us(us(begins), minute, zone) == us(due)


def test_batches_that_wait_for_a_local_time_are_of_one_zone_and_due_then(site: Site) -> None:
    job = site.job(as_of=None, batch="50", send_at="2026-01-01T00:00:00Z", send_at_local="16:00")
    assert job.batches == 10
    seen: list[int] = []
    for number in range(job.batches):
        part = job.part(number)
        assert part.zone_codes is not None
        (code,) = {int(code) for code in np.unique(part.zone_codes)}
        at = datetime.fromtimestamp(job.due_us(number) / 1e6, UTC)
        zone: str = job.audience.zones[code] or "Asia/Kolkata"
        assert f"{at.astimezone(ZoneInfo(zone)):%H:%M}" == "16:00"
        assert part.ids.tolist() == sorted(part.ids.tolist())
        seen += part.ids.tolist()
    assert sorted(seen) == list(range(400))


@pytest.mark.parametrize(
    ("eve", "berlin"),
    [("2026-03-28T12:00:00Z", "2026-03-29T01:30:00Z"), ("2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z")],
)
def test_in_the_night_of_a_change_of_the_clocks_each_gets_one_at_the_minute(
    site: Site, monkeypatch: pytest.MonkeyPatch, eve: str, berlin: str
) -> None:
    """02:30, which Berlin does not have that night, or has twice."""
    clock = ManualClock(start_us=us(eve))
    monkeypatch.setattr(SystemClock, "now_us", lambda _self: clock.now_us())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    (site.path / "policies.yaml").write_text("policies: {promo: {limits: [1/day]}}")
    rows = "".join(f"{number},{('Europe/Berlin', 'UTC', 'Asia/Tokyo')[number % 3]}\n" for number in range(60))
    (site.path / "users.csv").write_text(f"id,zone\n{rows}")
    arrived: dict[int, list[int]] = defaultdict(list)

    def noted(subject: int, _tries: int) -> int:
        arrived[subject].append(clock.now_us())
        return DELIVERED

    class Waiting(Stop):
        def wait(self, seconds: float) -> None:
            clock.advance_us(max(round(seconds * 1e6), 300_000_000))

    settings = {"as_of": None, "segments": None, "send_at": eve, "send_at_local": "02:30"}
    job = with_sender(site.job(**settings), Far(noted))
    with (
        closing(Waiting()) as stop,
        Limiter("memory://", job.policies.policies, clock=clock) as limiter,
        ledger_of(job, site.path / "run") as ledger,
    ):
        run(job, limiter, ledger, stop)
        assert report_of(ledger).total.sent == 60
    night = us(berlin) // DAY_US * DAY_US
    due = (us(berlin), night + 150 * 60_000_000, night - 390 * 60_000_000)
    for subject, instants in arrived.items():
        assert len(instants) == 1
        assert 0 <= instants[0] - due[subject % 3] <= 600_000_000, (subject, instants)
