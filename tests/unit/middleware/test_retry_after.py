"""What `Retry-After` asks for; it is somebody else's text."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from capline.middleware.retry_after import LONGEST_SECONDS, retry_after

NOON = "Wed, 21 Oct 2015 12:00:00 GMT"


def fields(header: str | None, date: str | None = None) -> dict[str, str]:
    return {name: text for name, text in (("Retry-After", header), ("Date", date)) if text is not None}


@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after": "7"},
        {"RETRY-AFTER": "7"},
        httpx.Headers({"retry-after": "7"}),
        CIMultiDict({"retry-after": "7"}),
    ],
)
def test_the_headers_of_any_client_will_do(headers: Any) -> None:
    assert retry_after(headers) == retry_after(headers, 503) == 7
    assert retry_after(headers, 200) is None


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
    assert retry_after(fields(header, date), 429) == seconds
    assert retry_after(fields(header, date), 503) == seconds
    assert retry_after(fields(header, date), 500) is None


def test_a_date_without_a_date_beside_it_is_taken_against_our_clock() -> None:
    asked = retry_after(fields(formatdate(time.time() + 100, usegmt=True)))
    assert asked is not None
    assert 90 < asked <= 100


@pytest.mark.parametrize(
    "header",
    [None, "", "soon", "-1", "+1", "1e3", "nan", "inf", "0x10", "1_0", "\u0663", "9" * 5000, "1.", "Wed", "\ud800"],
)
def test_what_is_no_such_header_asks_for_nothing(header: str | None) -> None:
    assert retry_after(fields(header)) is None


@given(header=st.text(), date=st.none() | st.text())
def test_no_text_at_all_breaks_it_or_asks_for_more_than_an_hour(header: str, date: str | None) -> None:
    asked = retry_after(fields(header, date), 429)
    assert asked is None or 0 <= asked <= LONGEST_SECONDS
