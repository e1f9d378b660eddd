"""The recount must find what is wrong with a record, and nothing in one that is right."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from tests.profiles import first

from capline import Limit, Limiter, ManualClock, Policy
from capline.model.limit import DAY_US
from capline.model.zone import zone_table
from capline.replay.demo.record import Record
from capline.replay.demo.recount import midnights_us, recount
from capline.window.calendar import starts_us

TWO = Limit.parse("2/10s")
WEEK = Limit.parse("3/60s")
SECOND = 1_000_000


def record(*rows: tuple[int, float, Limit | None], origin_us: int = 0) -> Record:
    """Rows of (subject, second, who refused): a send is stamped as the rule says."""
    newest: dict[int, int] = {}
    hits: list[int] = []
    for subject, second, refused in rows:
        at_us = origin_us + int(second * SECOND)
        stamp = max(at_us, newest.get(subject, -1) + 1)
        if refused is None:
            newest[subject] = stamp
        hits.append(-1 if refused else stamp)
    limits = (TWO, WEEK)
    return Record(
        np.array([subject for subject, _, _ in rows], np.uint32),
        np.array([origin_us + int(second * SECOND) for _, second, _ in rows], np.int64),
        np.zeros(len(rows), np.uint8),
        np.zeros(len(rows), np.uint8),
        np.array(hits, np.int64),
        np.array([-1 if refused is None else limits.index(refused) for _, _, refused in rows], np.int16),
        limits,
    )


@pytest.mark.parametrize("origin_us", [0, 850_000_000_000_000])
def test_a_right_record_holds_and_says_how_full_it_was(origin_us: int) -> None:
    right = record(
        (1, 0, None),
        (2, 1, None),
        (1, 9, None),
        (1, 9.999999, TWO),
        (1, 10, None),  # the first hit is exactly 10 s old: out
        (1, 59.999999, WEEK),
        (1, 60, None),
        origin_us=origin_us,
    )
    found = recount(right, [(TWO, WEEK)])
    assert found.holds
    assert (found.over, found.unjustified) == (0, 0)
    assert found.fullest == {"2/10s": 2, "3/minute": 3}
    assert found.windows == 5 * 2 + 2


def test_one_send_too_many_is_found() -> None:
    found = recount(record((1, 0, None), (1, 5, None), (1, 9.999999, None)), [(TWO, WEEK)])
    assert (found.holds, found.over, found.unjustified) == (False, 1, 0)
    assert found.fullest["2/10s"] == 3


def test_a_refusal_without_cause_is_found() -> None:
    found = recount(record((1, 0, None), (1, 5, TWO)), [(TWO, WEEK)])
    assert (found.holds, found.over, found.unjustified) == (False, 0, 1)


def test_a_refusal_by_the_wrong_limit_is_found() -> None:
    found = recount(record((1, 0, None), (1, 5, None), (1, 6, WEEK)), [(TWO, WEEK)])
    assert found.unjustified == 1


def test_a_refusal_is_not_excused_by_sends_after_it() -> None:
    found = recount(record((1, 0, None), (1, 5, TWO), (1, 5, None)), [(TWO, WEEK)])
    assert found.unjustified == 1


def test_sends_of_one_instant_are_counted_each() -> None:
    assert recount(record((1, 0, None), (1, 0, None), (1, 0, TWO)), [(TWO, WEEK)]).holds
    assert recount(record((1, 0, None), (1, 0, None), (1, 0, None)), [(TWO, WEEK)]).over == 1


def test_subjects_do_not_see_each_other_even_in_the_longest_window() -> None:
    long = Limit.parse("1/3660 days")
    found = recount(record(*((subject, 0, None) for subject in (1, 2, 3, 1 << 31))), [(long,)])
    assert found.holds
    assert found.fullest == {str(long): 1}


def test_each_send_is_held_to_the_limits_of_its_segment_then() -> None:
    given = record((1, 0, None), (1, 1, None))
    given.codes[1] = 1
    assert recount(given, [(TWO,), (Limit.parse("1/10s"),)]).over == 1
    assert recount(given, [(Limit.parse("1/10s"),), (TWO,)]).over == 0


# --- calendars and quiet hours --------------------------------------------------------------------------------

HOUR = 3600 * SECOND
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/Sao_Paulo",
    "America/Havana",
    "Pacific/Apia",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Africa/Cairo",
    "America/Nuuk",
)
IN_ZONES = Policy(
    "p",
    ["2/calendar-day", "7/calendar-week", "not between 03:00 and 09:00"],
    by_segment={"new": ["3/calendar-week", "gap 3 hours"], "old": ["4/20h", "not between 23:30 and 02:30"]},
)
SEGMENTS = (None, "new", "old")


def limiters_record(zone: str, seed: int, first_us: int) -> Record:
    """Some weeks of a limiter, over instants that crowd at midnights and changes of clocks."""
    random = Random(seed)
    clock = ManualClock(first_us)
    rows: list[tuple[int, int, int, int, int]] = []
    limits: list[Limit] = []
    with Limiter("memory://", [IN_ZONES.having(zone=zone)], clock=clock) as limiter:
        for _ in range(1500):
            clock.advance_us(random.choice((0, 1, HOUR // 2, HOUR - 1, HOUR, 2 * HOUR)))
            subject, code = random.randrange(3), random.randrange(3)
            decision = limiter.decide("p", subject, segment=SEGMENTS[code])
            if decision.limit not in limits and decision.limit is not None and not decision:
                limits.append(decision.limit)
            limit = -1 if decision or decision.limit is None else limits.index(decision.limit)
            rows.append((subject, clock.now_us(), code, -1 if decision.hit is None else decision.hit, limit))
    subjects, at_us, codes, hit, limit = (np.array(column) for column in zip(*rows, strict=True))
    return Record(
        subjects.astype(np.uint32),
        at_us.astype(np.int64),
        codes.astype(np.uint8),
        np.zeros(len(rows), np.uint8),
        hit.astype(np.int64),
        limit.astype(np.int16),
        tuple(limits),
    )


@pytest.mark.parametrize("zone", ZONES)
def test_what_a_limiter_decides_in_a_zone_holds_and_in_another_does_not(zone: str) -> None:
    limits_of: Sequence[Sequence[Limit]] = [IN_ZONES.limits_for(name) for name in SEGMENTS]
    at_us = 1_553_000_000 * SECOND  # March 2019
    given = limiters_record(zone, 5, at_us)
    found = recount(given, limits_of, zone)
    assert (found.over, found.unjustified) == (0, 0)
    assert {str(limit) for limit in given.limits} == {str(limit) for limits in limits_of for limit in limits}
    assert found.fullest["2/calendar-day"] == 2
    other = recount(given, limits_of, "Asia/Tokyo")
    assert other.over
    assert other.unjustified


def test_the_instants_at_which_a_day_and_quiet_hours_begin_and_end() -> None:
    day, night = Limit.parse("1/calendar-day"), Limit.parse("not between 22:00 and 08:00")
    berlin = 1_715_032_800  # 7 May 2024, midnight in Berlin

    def counted(limits: tuple[Limit, ...], *rows: tuple[float, int]) -> tuple[int, int]:
        """Sends (-1) and refusals (by limit), at seconds from that midnight on."""
        made = record(*((1, berlin + second, None) for second, _ in rows))
        limit = np.array([refused for _, refused in rows], np.int16)
        hit = np.where(limit < 0, made.at_us, -1)
        found = recount(replace(made, hit=hit, limit=limit, limits=limits), [limits], "Europe/Berlin")
        return found.over, found.unjustified

    assert counted((day,), (-1, -1), (0, -1), (86_399.999999, 0), (86_400, -1)) == (0, 0)
    assert counted((day,), (0, -1), (86_399.999999, -1)) == (1, 0)
    assert counted((day,), (-0.000001, -1), (0, 0)) == (0, 1)
    hour = 3600
    assert counted((night,), (8 * hour, -1), (22 * hour - 0.000001, -1), (22 * hour, 0), (32 * hour - 1e-6, 0)) == (
        0,
        0,
    )
    assert counted((night,), (8 * hour - 0.000001, -1), (22 * hour, -1)) == (2, 0)
    assert counted((night,), (8 * hour, 0), (22 * hour - 0.000001, 0)) == (0, 2)


@pytest.mark.parametrize("row", range(0, 1500, 97))
def test_a_send_made_a_refusal_or_a_refusal_a_send_is_found(row: int) -> None:
    zone = "Europe/Berlin"
    limits_of = [IN_ZONES.limits_for(name) for name in SEGMENTS]
    given = limiters_record(zone, 6, 1_553_000_000 * SECOND)
    hit, limit = given.hit.copy(), given.limit.copy()
    sent = np.flatnonzero(given.allowed)[row // 8]
    code = int(given.codes[sent])
    hit[sent], limit[sent] = -1, given.limits.index(limits_of[code][-1])
    assert recount(replace(given, hit=hit, limit=limit), limits_of, zone).unjustified
    hit, limit = given.hit.copy(), given.limit.copy()
    refused = np.flatnonzero(~given.allowed)[row // 3]
    hit[refused], limit[refused] = given.at_us[refused] + 1, -1
    assert recount(replace(given, hit=hit, limit=limit), limits_of, zone).over


@pytest.mark.parametrize("zone", first(4, ZONES))
@pytest.mark.parametrize("mondays", [False, True])
def test_midnights_by_the_standard_library_are_those_of_the_rule(zone: str, mondays: bool) -> None:
    where = ZoneInfo(zone)
    period_us = 7 * DAY_US if mondays else DAY_US
    for year in range(1975, 2037, 3):
        first_us = (year - 1970) * 365 * DAY_US
        found = midnights_us(zone, first_us, first_us + 400 * DAY_US, mondays=mondays)
        table = zone_table(zone, first_us)
        for at_us in range(first_us, first_us + 400 * DAY_US, 7 * HOUR + 1):
            expected = starts_us(table, period_us, at_us)
            assert found[np.searchsorted(found, at_us, side="right") - 1] == expected, (year, at_us, where)
