"""Reading events: every row is an event, or the file is refused at the row that is not."""

import gzip
from pathlib import Path

import pytest
from tests.kit.rows import Event, read_events

from capline import CaplineError
from capline.replay.events import ReplayError, subject_of
from capline.tables.times import read_time_us


def written(tmp_path: Path, text: str | bytes, name: str = "events.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(path: Path, segment_column: str | None = None) -> list[Event]:
    return list(read_events(path, "id", "ts", segment_column))


@pytest.mark.parametrize(
    ("text", "at_us"),
    [
        ("1970-01-02", 86_400_000_000),
        ("1970-01-01T00:00:01", 1_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01 00:00:00.000007Z", 7),
        ("0", 0),
        ("1740830400", 1_740_830_400_000_000),
        ("1740830400.25", 1_740_830_400_250_000),
        ("12.0000010", 12_000_001),
        (" 12 ", 12_000_000),
    ],
)
def test_times_are_iso_8601_or_seconds(text: str, at_us: int) -> None:
    assert read_time_us(text) == at_us


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "neither ISO 8601"),
        ("yesterday", "neither ISO 8601"),
        ("-5", "neither ISO 8601"),
        ("nan", "neither ISO 8601"),
        ("1e9", "neither ISO 8601"),
        ("1.00000001", "neither ISO 8601"),
        ("1740830400000", "not milliseconds"),
        ("1969-12-31T23:59:59", "1970"),
        ("2999-01-01", "2255"),
        ("1997-02-30", "neither ISO 8601"),
    ],
)
def test_a_time_that_is_none_says_what_one_looks_like(text: str, says: str) -> None:
    with pytest.raises(CaplineError, match=says):
        read_time_us(text)


def test_rows_become_events_digits_become_integers_and_an_empty_segment_none(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeffts,id,kind\r\n3,007,new\r\n\r\n4,user:1,\r\n")
    assert read(path, "kind") == [Event(1, 7, 3_000_000, "new"), Event(2, "user:1", 4_000_000, None)]


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("000", 0),
        ("0" * 5000 + "7", 7),
        (str(2**64 - 1), 2**64 - 1),
        ("0" * 40 + str(2**64 - 1), 2**64 - 1),
        (str(2**64), str(2**64)),
        ("0" * 40 + str(2**64), "0" * 40 + str(2**64)),
        ("0" * 40 + "9" * 40, "0" * 40 + "9" * 40),
        ("\u0664\u0662", "\u0664\u0662"),
    ],
)
def test_digits_are_the_integer_where_it_is_an_id_however_many_zeros_come_first(text: str, subject: str | int) -> None:
    assert subject_of(text) == subject


@pytest.mark.parametrize("text", ["9" * 5000, "0" * 40 + "9" * 5000, "\u00e9" * 257])
def test_a_subject_of_more_than_512_bytes_is_its_hash_as_before_an_application(text: str) -> None:
    assert str(subject_of(text)).startswith("long:")
    assert len({subject_of(text), subject_of(text + "x"), subject_of("\u00e9" * 256)}) == 3


def test_an_empty_subject_is_refused() -> None:
    with pytest.raises(CaplineError, match="a subject is 1 to 512 bytes"):
        subject_of("")


@pytest.mark.parametrize("name", ["events.csv.gz", "events.csv"])
def test_gzip_is_read_whatever_its_name(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, gzip.compress(b"id,ts\n1,2\n"), name)
    assert read(path) == [Event(1, 1, 2_000_000, None)]


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("e.csv", b"", "empty"),
        ("e.csv", b"id,ts\n", "no rows"),
        ("e.csv", b"user,ts\n1,2\n", "no column 'id'"),
        ("e.csv", b"id,id,ts\n1,2,3\n", "2 columns are called 'id'"),
        ("e.csv", b"id,ts\n1,2\n3\n", "row 2: 1 values where the header has 2"),
        ("e.csv", b"id,ts\n,2\n", "row 1: "),
        ("e.csv", b"id,ts\n1,soon\n", "row 1: time 'soon'"),
        ("e.csv", b"id,ts\n\xff\xfe,2\n", "not UTF-8"),
        ("e.csv", b'id,ts\n"1,2\n', "CSV"),
        ("e.csv.gz", gzip.compress(b"id,ts\n" + b"1,2\n" * 9999, mtime=0)[:-20], "gzip"),
        ("e.csv.gz", gzip.compress(b"id,ts\n1,2\n", mtime=0)[:9] + b"\xff" * 30, "gzip"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_that_names_it(
    tmp_path: Path, name: str, data: bytes, says: str
) -> None:
    path = written(tmp_path, data, name)
    with pytest.raises(ReplayError) as caught:
        read(path)
    message = str(caught.value)
    assert says in message
    assert str(path) in message
    assert "\n" not in message


def test_a_file_that_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="no such file"):
        read(tmp_path / "none.csv")
    with pytest.raises(ReplayError, match="cannot be read"):
        read(tmp_path)


def test_a_column_of_zones_is_read_and_an_unknown_one_names_its_row(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("id,ts,tz\n1,1,Asia/Tokyo\n2,2,\n")
    assert [event.zone for event in read_events(path, "id", "ts", None, "tz")] == ["Asia/Tokyo", None]
    path.write_text("id,ts,tz\n1,1,Asia/Tokyo\n2,2,Tokyo\n")
    with pytest.raises(ReplayError, match=r"events.csv, row 2: no time zone 'Tokyo'; use a name of the IANA database"):
        list(read_events(path, "id", "ts", None, "tz"))
    with pytest.raises(ReplayError, match="no column 'zone'; there are: 'id, ts, tz'"):
        list(read_events(path, "id", "ts", None, "zone"))
