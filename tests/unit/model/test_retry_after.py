"""What `Retry-After` asks for; it is somebody else's text."""

import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capline.model.retry_after import LONGEST_SECONDS, retry_after, wait_asked


def said(header: str | None, date: str | None = None) -> dict[str, str]:
    fields = {"Retry-After": header, "Date": date}
    return {name: value for name, value in fields.items() if value is not None}


NOON = "Wed, 21 Oct 2015 12:00:00 GMT"


@pytest.mark.parametrize(
    ("header", "date", "seconds"),
    [
        ("7", None, 7),
        (" 7 ", None, 7),
        ("1.5", None, 1.5),
        ("0", None, 0),
        ("3601", None, 3600),
        ("999999999999", None, 3600),
        ("Wed, 21 Oct 2015 12:01:30 GMT", NOON, 90),
        ("Wednesday, 21-Oct-15 12:01:30 GMT", NOON, 90),
        ("Wed Oct 21 12:01:30 2015", NOON, 90),
        ("Wed, 21 Oct 2015 11:59:00 GMT", NOON, 0),
        ("Wed, 21 Oct 2099 12:00:00 GMT", NOON, 3600),
        ("Wed, 21 Oct 2099 12:00:00 GMT", None, 3600),
        ("Wed, 21 Oct 2015 12:00:00 GMT", "no date", 0),
    ],
)
def test_seconds_and_dates(header: str, date: str | None, seconds: float) -> None:
    assert retry_after(said(header, date)) == seconds
    assert wait_asked(429, said(header, date)) == wait_asked(503, said(header, date)) == seconds
    assert wait_asked(500, said(header, date)) is None


def test_names_are_of_any_case() -> None:
    assert retry_after({"retry-after": "7"}) == retry_after({"RETRY-AFTER": "7", "x": "y"}) == 7
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 12:01:30 GMT", "date": NOON}) == 90


def test_a_date_without_a_date_beside_it_is_taken_against_our_clock() -> None:
    asked = retry_after(said(formatdate(time.time() + 100, usegmt=True)))
    assert asked is not None
    assert 90 < asked <= 100


@pytest.mark.parametrize(
    "header",
    [None, "", "soon", "-1", "+1", "1e3", "nan", "inf", "0x10", "1_0", "\u0663", "9" * 5000, "1.", "Wed", "\ud800"],
)
def test_what_is_no_such_header_asks_for_nothing(header: str | None) -> None:
    assert retry_after(said(header)) is None


@given(header=st.text(), date=st.none() | st.text())
def test_no_text_at_all_breaks_it_or_asks_for_more_than_an_hour(header: str, date: str | None) -> None:
    asked = retry_after(said(header, date))
    assert asked is None or 0 <= asked <= LONGEST_SECONDS
