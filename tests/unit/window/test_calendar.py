"""Days where a clock is set back over midnight, by a table that is written out."""

from capline.model.limit import DAY_US
from capline.window.calendar import closes_us, ends_us, open_us, starts_us

HOUR_US = 3_600_000_000
MIDNIGHT_US = 20_000 * DAY_US - HOUR_US
"""Of a clock that is an hour ahead."""
SET_BACK_US = MIDNIGHT_US + HOUR_US // 2
TABLE = (0, HOUR_US, SET_BACK_US, 0)
"""Half an hour into the day, the clock shows half past eleven again."""


def test_a_day_that_had_begun_goes_on_when_the_clock_is_set_back_over_midnight() -> None:
    for at_us in (MIDNIGHT_US, SET_BACK_US - 1, SET_BACK_US, SET_BACK_US + HOUR_US, SET_BACK_US + 10 * HOUR_US):
        assert starts_us(TABLE, DAY_US, at_us) == MIDNIGHT_US
        assert ends_us(TABLE, DAY_US, at_us) == MIDNIGHT_US + DAY_US + HOUR_US
    assert starts_us(TABLE, DAY_US, MIDNIGHT_US - 1) == MIDNIGHT_US - DAY_US
    assert ends_us(TABLE, DAY_US, MIDNIGHT_US - 1) == MIDNIGHT_US


def test_it_is_open_until_the_clock_shows_the_hours_or_is_set() -> None:
    span, minute_us = (22 * HOUR_US, 23 * HOUR_US + HOUR_US // 2), HOUR_US // 60
    for at_us in range(MIDNIGHT_US - 3 * HOUR_US, MIDNIGHT_US + 25 * HOUR_US, 7 * minute_us):
        until_us = closes_us(TABLE, *span, at_us)
        assert (until_us > at_us) == (open_us(TABLE, *span, at_us) == at_us)
        assert all(open_us(TABLE, *span, us) == us for us in range(at_us, until_us, minute_us))
        assert until_us == SET_BACK_US or open_us(TABLE, *span, until_us) > until_us
