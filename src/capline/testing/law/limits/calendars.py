"""Calendar limits in the subject's zone, minimum gaps and quiet hours."""

from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from capline.model.attempt import Attempt
from capline.model.errors import UnknownNameError
from capline.testing.examples import examples
from capline.testing.setting import DAY, SECOND, StoreSetting

HOUR = 3600 * SECOND


class CalendarLaw(StoreSetting):
    """The checks."""

    vars().update(
        examples("""
        test_a_calendar_day_begins_at_midnight_where_the_subject_is: 3/calendar-day | zone=Asia/Singapore
            when 2024-05-06T23:59:59 Asia/Singapore; decide -> yes yes yes no
            decide -> no, after 1, empty 1, left 0, by 3/calendar-day; decide of=other zone=Europe/Berlin -> empty 21601
            later 0.999999; decide -> no; later 0.000001; decide -> yes yes yes no, left 2 1 0 0
        test_a_segment_may_have_a_calendar_limit_over_the_history_of_a_rolling_one: 5/24h | zone=UTC
            | by_segment.new=2/calendar-day
            when 2024-05-06T23:00 UTC; decide -> yes yes; decide segment=new -> after 3600; decide -> left 2
        test_a_minimum_gap: gap 30 minutes, 3/day
            decide -> yes; 1740: decide -> after 60; 1800: decide -> yes
        test_quiet_hours_refuse_with_the_instant_when_it_may_go: not between 22:00 and 08:00, 3/day
            | zone=Asia/Singapore
            when 2024-05-06T21:59:59 Asia/Singapore; decide -> yes; later 1
            decide -> no, after 36000, left 0, by not between 22:00 and 08:00; decide zone=Europe/Berlin -> yes
            later 35999.999999; peek -> after 0.000001; later 0.000001; decide -> yes
        test_quiet_hours_where_clocks_change: not between 01:30 and 02:30 | zone=Europe/Berlin
            when 2024-03-31T01:30 Europe/Berlin; decide -> after 1800; when 2024-10-27T01:30 Europe/Berlin
            decide -> after 3600; later 3600; decide -> yes; later 1800; decide -> after 1800
        test_quiet_hours_that_leave_no_room_refuse_for_ever: not between 08:00 and 20:00, not between 19:00 and 09:00
            , 9/day
            decide -> no, after never; schedule -> no, after never
        test_slots_of_a_calendar_limit_are_taken_on_days_to_come: 2/calendar-day | zone=Europe/Berlin
            when 2024-03-30T12:00 Europe/Berlin; schedule -> wait 0 0.000001 43200 43200.000001 126000 126000.000001
            decide -> no
        """)
    )

    # --- calendar limits --------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("zone", "local", "hours"),
        [
            ("Europe/Berlin", "2024-03-31 00:00", 23),
            ("Europe/Berlin", "2024-10-27 00:00", 25),
            ("America/Sao_Paulo", "2018-11-04 01:00", 23),  # midnight itself is skipped
            ("America/Sao_Paulo", "2018-02-17 00:00", 25),  # the hour before midnight comes twice
            ("Pacific/Apia", "2011-12-29 00:00", 24),  # the next day is skipped
            ("Australia/Lord_Howe", "2024-04-07 00:00", 24.5),
            ("Asia/Kathmandu", "2024-04-07 00:00", 24),
            ("America/Havana", "2024-11-03 00:00", 25),  # midnight strikes twice
        ],
    )
    def test_a_calendar_day_is_as_long_as_it_is(self, zone: str, local: str, hours: float) -> None:
        limiter = self.one("2/calendar-day", zone=zone)
        self.when(local, zone)
        assert limiter.decide("p", "s").reset_after == hours * 3600
        self.clock.advance_us(round(hours * HOUR) - 1000)
        assert limiter.decide("p", "s")
        assert limiter.decide("p", "s").retry_after_us == 1000
        self.clock.advance_us(1000)
        assert limiter.decide("p", "s", 2)

    def test_a_calendar_week_begins_on_monday_beside_a_rolling_limit_on_the_same_log(self) -> None:
        limiter = self.one("4/calendar-week", "2/24h", zone="Europe/Berlin")
        self.when("2024-05-03 12:00", "Europe/Berlin")  # a Friday
        assert [bool(limiter.decide("p", "s")) for _ in range(3)] == [True, True, False]
        self.clock.advance_us(DAY)
        assert [bool(limiter.decide("p", "s")) for _ in range(2)] == [True, True]
        refused = limiter.decide("p", "s")
        assert str(refused.limit) == "4/calendar-week"
        self.clock.advance_us(refused.retry_after_us - 1)
        assert not limiter.peek("p", "s")
        self.clock.advance_us(1)
        assert self.clock.now_us() == datetime(2024, 5, 6, tzinfo=ZoneInfo("Europe/Berlin")).timestamp() * SECOND
        assert [bool(limiter.decide("p", "s")) for _ in range(3)] == [True, True, False]

    def test_rows_of_a_batch_have_zones(self) -> None:
        limiter = self.one("1/calendar-day", zone="UTC", by_segment={"vip": ["2/calendar-day"]})
        self.when("2024-05-06 20:00", "UTC")
        zones, segments = [None, "Asia/Tokyo", "America/New_York"], [None, "vip", None]
        subjects, codes = [f"s{i}" for i in range(6)], np.array([0, 1, 2, 0, 1, 2])
        answers = limiter.decide_many("p", subjects, segment=segments, zone=zones, codes=codes)
        assert answers.allowed.all()
        hours = (answers.reset_after_us / HOUR).tolist()
        assert hours == [4.0, 19.0, 8.0, 4.0, 19.0, 8.0]
        assert answers.remaining.tolist() == [0, 1, 0, 0, 1, 0]
        again = limiter.peek_many("p", subjects, zone="Asia/Tokyo")
        assert again.retry_after_us.tolist() == [19 * HOUR] * 6
        one_by_one = limiter.decide_batch([Attempt("p", subject, zone="Asia/Tokyo") for subject in subjects])
        assert [answer.retry_after_us for answer in one_by_one] == [19 * HOUR] * 6

    def test_a_zone_that_nobody_knows_is_an_error_that_says_so(self) -> None:
        limiter = self.one("1/calendar-day")
        with pytest.raises(UnknownNameError, match="no time zone 'Mars/Olympus'; use a name of the IANA database"):
            limiter.decide("p", "s", zone="Mars/Olympus")
        assert isinstance(limiter.decide_batch([Attempt("p", "s", zone="Mars/Olympus")])[0], UnknownNameError)
        assert limiter.peek("p", "s")

    # --- gaps and quiet hours ---------------------------------------------------------------------------------

    def test_what_frees_in_quiet_hours_is_put_off_until_they_end(self) -> None:
        limiter = self.one("not between 22:00 and 08:00", "1/24h", zone="UTC")
        self.when("2024-05-06 08:00", "UTC")
        assert limiter.decide("p", "s")
        self.when("2024-05-06 12:00", "UTC")
        refused = limiter.decide("p", "s")
        assert (refused.retry_after, str(refused.limit)) == (20 * 3600.0, "1/day")
        later = self.one("not between 22:00 and 08:00", "1/12h", zone="UTC")
        assert later.decide("p", "t")
        refused = later.decide("p", "t")
        assert (refused.retry_after, str(refused.limit)) == (20 * 3600.0, "1/12h"), (
            "it is put off, but not refused by them"
        )
        assert later.schedule("p", "t").wait == 20 * 3600.0
        assert later.schedule("p", "t", max_wait=3600).retry_after == 32 * 3600.0 - 12 * 3600.0 + 12 * 3600.0

    def test_quiet_hours_alone_leave_the_rest_of_the_day(self) -> None:
        limiter = self.one("not between 22:00 and 08:00")
        self.when("2024-05-06 12:00", "UTC")
        assert limiter.decide("p", "s").remaining > 1 << 50
        assert len(limiter.explain("p", "s").hits) == 1
