"""Times of an access log, read by the hour and what is past it, beside `strptime`."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capline.replay.formats import log_instant_us


@given(st.datetimes(datetime(1970, 1, 3), datetime(9999, 12, 30)), st.integers(-1439, 1439))  # noqa: DTZ001 - local
def test_a_time_is_the_instant_that_strptime_reads(local: datetime, east: int) -> None:
    at = local.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=east)))
    text = f"{at:%d/%b/%Y:%H:%M:%S %z}"
    expected = datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z") - datetime(1970, 1, 1, tzinfo=UTC)
    assert log_instant_us(text.encode()) == expected // timedelta(microseconds=1)


def test_an_hour_that_begins_before_1970_ends_after_it() -> None:
    assert log_instant_us(b"01/Jan/1970:00:20:00 +0030") == -1
    assert log_instant_us(b"01/Jan/1970:00:31:00 +0030") == 60_000_000


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "17/May/2015", "17/May/2015:10:05:03", "17/May/2015:10:05:03 +0000 ", "17/Mai/2015:10:05:03 +0000"),
        *("32/May/2015:10:05:03 +0000", "17/May/2015:24:05:03 +0000", "17/May/2015:10:60:03 +0000"),
        "17/May/2015:10:05:60 +0000",
    ],
)
def test_what_is_no_time(text: str) -> None:
    assert log_instant_us(text.encode()) == -1
