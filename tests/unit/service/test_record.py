"""The record of decisions: what it keeps, and within which bounds."""

import logging
import os
from pathlib import Path

import pytest

from capline import Policy
from capline.service.record.kept import Record
from capline.service.record.limiter import RecordingLimiter
from capline.service.settings import kept
from capline.service.settings.values import Record as Settings

KIND = ("promo", None, None, None, 1, 0, "shop")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of a service with workers."""
    monkeypatch.setenv(kept.KEPT, str(tmp_path))
    kept.make_key(str(tmp_path))
    return tmp_path


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("record-*"))


def test_it_keeps_the_last_ones_within_its_bytes(folder: Path) -> None:
    record = Record(Settings(bytes=1 << 16))
    for at_us in range(20_000):
        record.add((KIND, 2**51 + at_us, f"user:{at_us}", at_us % 2 == 0, None, None))
        if at_us % 50 == 0:
            record.flush()
    record.flush()
    assert 0.8 * (1 << 16) < size_of(folder) < 1.1 * (1 << 16)
    began_us, rows = record.rows("promo")
    assert began_us == rows[0].at_us
    assert [row.at_us for row in rows] == list(range(rows[0].at_us, 2**51 + 20_000))
    assert record.rows("other")[1] == []


def test_what_is_older_than_it_keeps_is_neither_read_nor_there(folder: Path) -> None:
    record = Record(Settings(keep=3600))
    for at_us in (1, 2**51):
        record.add((KIND, at_us, "u", True, None, None))
    record.flush()
    assert [row.at_us for row in record.rows("promo")[1]] == [2**51]
    for path in folder.glob("record-*"):
        os.utime(path, (1, 1))
    other = Record(Settings(keep=3600))
    other.flush()
    assert size_of(folder) == 0


def test_processes_read_each_other_but_not_what_is_half_written(folder: Path) -> None:
    records = [Record(Settings()), Record(Settings())]
    for name, record in zip("ab", records, strict=True):
        kind = name, "vip", "push", "UTC", 3, 1, "shop"
        record.add((kind, 2**51, 7, False, "id", "1/day"))
        record.flush()
        assert [one.rows(name)[1] for one in records] == [[(kind, 2**51, 7, False, "id", "1/day")]] * 2
    (path, *_) = folder.glob("record-*")
    path.write_bytes(path.read_bytes() + (100).to_bytes(4) + b"half")
    assert len(records[0].rows("b")[1]) == 1


def test_hashed_it_holds_no_subject(folder: Path) -> None:
    record = Record(Settings(hashed=True))
    for subject in ("somebody", "somebody", "s:1", 1):
        record.add((KIND, 2**51, subject, True, None, None))
    record.flush()
    assert b"somebody" not in b"".join(path.read_bytes() for path in folder.glob("record-*"))
    subjects = [row.subject for row in record.rows("promo")[1]]
    assert len(set(subjects)) == 3
    assert subjects[0] == subjects[1]


def test_without_room_decisions_go_on_and_the_log_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(kept.KEPT, str(tmp_path))
    kept.make_key(str(tmp_path))
    record = Record(Settings())
    monkeypatch.setenv(kept.KEPT, "/nowhere")
    for path in tmp_path.iterdir():
        path.unlink()
    tmp_path.rmdir()
    with caplog.at_level(logging.WARNING, "capline.service"):
        for _ in range(3):
            record.add((KIND, 2**51, "u", True, None, None))
            record.flush()
    assert [entry.message.startswith("decisions are not recorded: ") for entry in caplog.records] == [True]


async def test_a_limiter_records_what_its_limits_decided(folder: Path) -> None:
    assert folder
    policy = Policy("promo", ["1/day"], by_segment={"vip": ["2/day"]}, channels={"push": ["2/hour"]})
    async with RecordingLimiter("memory://", [policy]) as limiter:
        limiter.record = Record(Settings())
        assert (await limiter.decide("promo", "u", segment="vip", channel="push", keep_free=1)).allowed
        await limiter.decide("promo", "v", limits=None, keep_free=[1])
        await limiter.decide("other", "v", limits=["1/day"])
        await limiter.beside([Policy("promo", ["1/day"])]).decide("promo", "w")
        many = await limiter.decide_many("promo", ["a", "", 3], segment=["vip", None], codes=[0, 1, 1], receipt="r")
        limiter.record.flush()
        rows = limiter.record.rows("promo")[1]
        assert [(row.kind[1:], row.subject, row.id) for row in rows] == [
            (("vip", "push", None, 1, 1, ""), "u", None),
            (("vip", None, None, 1, 0, ""), "a", "r:0"),
            ((None, None, None, 1, 0, ""), 3, "r:2"),
        ]
        assert [row.at_us for row in rows[1:]] == [many.hit[0], many.hit[2]]
        limiter.use([Policy("promo", ["3/day"], by_segment={"new": ["1/day"]})])
        assert [hit.stamp_us for hit in await limiter.hits("promo", "a", "vip")] == [many.hit[0]]
        await limiter.erase("u")
        limiter.record.flush()
        assert [row.subject for row in limiter.record.rows("promo")[1]] == ["a", 3]
