"""What the package `limits` reads, capline reads alike; months and years only where that is asked for."""

import pytest
from limits import parse_many

from capline import Limit
from capline.model.errors import InvalidValueError

TEXTS = [
    "1/second",
    "1 per second",
    "1per second",
    "1persecond",
    "10/minute",
    "10 per minute",
    "10/2 minutes",
    "10/2minutes",
    "5/15 minutes;100/hour",
    "5/minute, 100/hour",
    "5/minute|100/hour",
    "10 per 5 minutes ; 3/day",
    "1/DAY",
    "2 PER HOUR",
    "10/hours",
    "100/7 days",
    " 3 / hour ",
    "1/minute;2/minute",
]
USUAL = ["1/month", "2 per 3 months", "10/year", "5/minute;100/month", "1per year"]


def as_limits_reads(text: str) -> list[tuple[int, float]]:
    return [(item.amount, item.get_expiry() * 1_000_000) for item in parse_many(text)]


@pytest.mark.parametrize("text", TEXTS)
def test_it_means_the_same(text: str) -> None:
    assert [(limit.quota, limit.window_us) for limit in Limit.parse_many(text)] == as_limits_reads(text)


@pytest.mark.parametrize("text", USUAL)
def test_months_and_years_are_taken_only_as_approximate(text: str) -> None:
    with pytest.raises(
        InvalidValueError, match=r"has no fixed length; write '\d+ days', or parse it with approximate=True"
    ):
        Limit.parse_many(text)
    taken = [(limit.quota, limit.window_us) for limit in Limit.parse_many(text, approximate=True)]
    # limits takes 30 days for a month, and 360 for a year.
    days = {"year": 365 / 360}.get(text.rsplit(maxsplit=1)[-1].rpartition("/")[2], 1)
    assert taken == [(quota, window_us * days) for quota, window_us in as_limits_reads(text)]


@pytest.mark.parametrize("text", ["", ";", "1/second;", "1/fortnight", "1 per", "per second", "1percent", "1//s"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        Limit.parse_many(text, approximate=True)


def test_one_limit_may_be_approximate_too() -> None:
    assert Limit.parse("10/month", approximate=True) == Limit.parse("10/30 days")
    with pytest.raises(InvalidValueError, match="3,660 days"):
        Limit.parse("10/11 years", approximate=True)
