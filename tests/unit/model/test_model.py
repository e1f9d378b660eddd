import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits import parse_many

import capline
from capline import CaplineError, InvalidValueError, Limit, ManualClock, Policy, PolicyError, SystemClock
from capline.model.clock import LATEST_US
from capline.model.limit import LARGEST_QUOTA, LONGEST_WINDOW_US, duration_text
from capline.model.subject import check_subject

DAY_US = 86_400_000_000


@pytest.mark.parametrize(
    ("text", "quota", "window_us", "shown"),
    [
        ("3/day", 3, DAY_US, "3/day"),
        ("100/minute", 100, 60_000_000, "100/minute"),
        ("5 per 10s", 5, 10_000_000, "5/10s"),
        ("1/250ms", 1, 250_000, "1/250ms"),
        ("10/7 days", 10, 7 * DAY_US, "10/week"),
        ("10 / 2 weeks", 10, 14 * DAY_US, "10/2 weeks"),
        ("1_000_000/2s", 1_000_000, 2_000_000, "1000000/2s"),
        ("4/90 minutes", 4, 5_400_000_000, "4/90min"),
        ("4/120 MIN", 4, 7_200_000_000, "4/2h"),
        ("1/1us", 1, 1, "1/1us"),
        ("7/µs", 7, 1, "7/1us"),
        ("0/day", 0, DAY_US, "0/day"),
    ],
)
def test_limits_are_read_and_shown(text: str, quota: int, window_us: int, shown: str) -> None:
    limit = Limit.parse(text)
    assert (limit.quota, limit.window_us, str(limit)) == (quota, window_us, shown)


@pytest.mark.parametrize(
    "text",
    [
        *("", "3", "3/", "/day", "3/fortnight", "3/month", "3/year", "-1/day", "1.5/day", "3/0s", "NaN/day", "inf/day"),
        *("3/day/day", "9007199254740992/day", "1/4000 days", "1/99999999999999999999s", "3 day", "x" * 100, "3//day"),
        *("3/-1s", "1e3/day"),
    ],
)
def test_text_that_is_no_limit_is_a_value_error_that_shows_it(text: str) -> None:
    with pytest.raises(CaplineError, match="limit") as caught:
        Limit.parse(text)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10 per minute", ["10/minute"]),
        ("10 per 1 minute", ["10/minute"]),
        ("100/day", ["100/day"]),
        ("5/15 minutes;100/hour", ["5/15min", "100/hour"]),
        ("10/hour, 100 per day |2000 per 7 days", ["10/hour", "100/day", "2000/week"]),
        ("1/day;not between 22:00 and 08:00", ["1/day", "not between 22:00 and 08:00"]),
    ],
)
def test_several_limits_are_read_from_one_text_as_the_package_limits_writes_them(text: str, shown: list[str]) -> None:
    assert [str(limit) for limit in Limit.parse_many(text)] == shown


def test_the_package_limits_reads_these_texts_the_same() -> None:
    for text in ("10 per minute", "5/15 minutes;100/hour", "3 per 2 hours|4/day,1 per second"):
        theirs = [(item.amount, item.get_expiry() * 1_000_000) for item in parse_many(text)]
        assert [(limit.quota, limit.window_us) for limit in Limit.parse_many(text)] == theirs


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10/month", "a month has no fixed length; write '30 days'"),
        ("5 per 2 years", "a year has no fixed length; write '730 days'"),
        ("", "limit ''"),
        ("3/day;", "limit ''"),
        ("3/day;;4/week", "limit ''"),
        ("3/day;often", "limit 'often'"),
        (";" * 1000, "more than 32 limits"),
        (3, "limits are text"),
    ],
)
def test_a_list_with_anything_else_in_it_is_refused_in_one_line(text: Any, says: str) -> None:
    with pytest.raises(CaplineError, match=says) as caught:
        Limit.parse_many(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, 3, b"3/day", ["3/day"]])
def test_a_limit_of_another_type_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError) as caught:
        Limit.parse(value)
    assert isinstance(caught.value, CaplineError)


@pytest.mark.parametrize(("quota", "window_us"), [(-1, 1), (1, 0), (LARGEST_QUOTA + 1, 1), (1, LONGEST_WINDOW_US + 1)])
def test_numbers_out_of_range_are_refused(quota: int, window_us: int) -> None:
    with pytest.raises(ValueError, match=r"quota|window"):
        Limit(quota, window_us)


@pytest.mark.parametrize("numbers", [(1.0, 1), (1, 1.0), (True, 1), ("1", 1), (float("nan"), 1)])
def test_numbers_of_another_type_are_refused(numbers: tuple[Any, Any]) -> None:
    with pytest.raises(TypeError):
        Limit(*numbers)


@given(st.integers(0, LARGEST_QUOTA), st.integers(1, LONGEST_WINDOW_US))
def test_the_shown_text_reads_back_as_an_equal_limit_with_the_same_hash(quota: int, window_us: int) -> None:
    limit = Limit(quota, window_us)
    again = Limit.parse(str(limit))
    assert again == limit
    assert hash(again) == hash(limit)


def test_values_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Limit.parse("3/day").quota = 4  # pyright: ignore[reportAttributeAccessIssue] - what is tested
    with pytest.raises(AttributeError):
        Policy("p", ["3/day"]).name = "q"  # pyright: ignore[reportAttributeAccessIssue] - what is tested


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "-x"},
        {"name": "x" * 65},
        {"name": None},
        {"limits": []},
        {"limits": "3/day"},
        {"limits": ["3/day", "4/24h"]},
        {"limits": ["3/dy"]},
        {"limits": [3]},
        {"limits": None},
        {"limits": [f"1/{n}s" for n in range(1, 18)]},
        {"by_segment": {"new": []}},
        {"by_segment": {"n w": ["1/day"]}},
        {"by_segment": ["new"]},
        {"channels": {"push": ["?"]}},
        {"algorithm": "token_bucket"},
        {"layout": "row"},
        {"log": "a/b"},
        {"count_denied": 1},
        {"reservations": 1},
        {"reservations": True, "count_denied": True},
        {"reservations": True, "algorithm": "bucketed"},
        {"reservations": True, "algorithm": "gcra"},
        {"count_denied": True, "algorithm": "gcra"},
        {"count_denied": True, "algorithm": "sliding_counter"},
        {"count_denied": True, "limits": [f"{2**40 + 1}/day"]},
        {"algorithm": "gcra", "by_segment": {"new": ["1/day"]}},
        {"algorithm": "sliding_counter", "channels": {"push": ["1/day"]}},
        {"algorithm": "bucketed", "channels": {"push": ["1/day"]}},
        {"algorithm": "gcra", "limits": ["3/calendar-day"]},
        {"algorithm": "gcra", "limits": ["99991/week"]},
        {"algorithm": "sliding_counter", "limits": [f"{2**32 + 1}/week"]},
        {"algorithm": "bucketed", "granularity": "soon"},
        {"algorithm": "bucketed", "granularity": "13 hours"},
        {"granularity": "1min"},
        {"limits": ["3/calendar-day", "4/calendar-day"]},
        {"zone": "Europe/Atlantis"},
        {"zone": None},
        {"wait_replicas": -1},
        {"wait_replicas": 17},
        {"wait_replicas": True},
        {"wait_replicas": 1.0},
        {"population": 0},
        {"population": 10**12 + 1},
        {"population": "10"},
        {"population": None},
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(wrong: dict[str, Any]) -> None:
    values: dict[str, Any] = {"name": "p", "limits": ["3/day"]} | wrong
    with pytest.raises(CaplineError) as caught:
        Policy(**values)
    assert isinstance(caught.value, ValueError | TypeError)


def test_equal_policies_are_equal_and_hash_alike() -> None:
    one, other = Policy("p", ["1/week"]), Policy("p", [Limit.parse("1/7 days")])
    assert one == other
    assert hash(one) == hash(other)


def test_a_policy_may_limit_channels_only_and_then_wants_one() -> None:
    policy = Policy("p", [], channels={"push": ["1/day"]})
    with capline.Limiter("memory://", [policy]) as limiter:
        assert limiter.decide("p", "s", channel="push")
        assert not limiter.decide("p", "s", channel="push")
        with pytest.raises(CaplineError, match="name one: push"):
            limiter.decide("p", "s")


def test_policies_of_one_limiter_have_different_names() -> None:
    with pytest.raises(PolicyError, match="two policies"):
        capline.Limiter("memory://", [Policy("p", ["1/day"]), Policy("p", ["2/day"])])


@pytest.mark.parametrize("options", [{"layout": "bucket"}, {"population": 5}])
def test_policies_on_one_log_agree_where_it_lies(options: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=f"'a' and 'b' share log 'l' but not its {next(iter(options))}"):
        capline.Limiter("memory://", [Policy("a", ["1/day"], log="l"), Policy("b", ["1/day"], log="l", **options)])
    with capline.Limiter("memory://", [Policy("a", ["1/day"]), Policy("b", ["1/day"], **options)]) as limiter:
        assert limiter.decide("b", "s")


@pytest.mark.parametrize("url", ["memory://", "lmdb://{tmp}"])
def test_a_policy_that_waits_for_replicas_is_refused_where_there_are_none(url: str, tmp_path: Path) -> None:
    policies = [Policy("p", ["1/day"], wait_replicas=1), Policy("q", ["1/day"])]
    with capline.Limiter(url.format(tmp=tmp_path), policies) as limiter:
        with pytest.raises(InvalidValueError, match="'p': wait_replicas needs a redis store"):
            limiter.decide("p", "s")
        assert limiter.decide("q", "s")


def test_a_segment_is_taken_by_a_policy_that_does_not_differ_by_segment() -> None:
    with capline.Limiter("memory://", [Policy("p", ["1/day"])]) as limiter:
        assert limiter.decide("p", "s", segment="anything")
        assert not limiter.decide("p", "s", segment="else")


def test_clocks() -> None:
    clock = ManualClock(start_us=5)
    clock.advance_us(10)
    clock.advance_us(-3)
    assert clock.now_us() == 12
    with pytest.raises(ValueError, match="clock"):
        clock.advance_us(-13)
    for wrong in (1.5, "1", True):
        with pytest.raises(TypeError):
            ManualClock(wrong)  # pyright: ignore[reportArgumentType] - what is tested
    assert 1_600_000_000_000_000 < SystemClock().now_us() < LATEST_US


@pytest.mark.parametrize(
    "start", ["2026-11-21T16:00Z", "2026-11-21T17:00+01:00", datetime(2026, 11, 21, 16, tzinfo=UTC)]
)
def test_a_manual_clock_begins_at_an_instant_and_goes_on_by_seconds(start: str | datetime) -> None:
    clock = ManualClock(start=start)
    assert clock.now_us() == 1_795_276_800_000_000
    clock.advance(seconds=0.514871)
    assert clock.now_us() == 1_795_276_800_514_871
    clock.advance(-1)
    assert clock.now_us() == 1_795_276_799_514_871


@pytest.mark.parametrize(
    "start",
    ["2026-11-21T16:00", "soon", "", 5, True, b"2026", datetime(2026, 1, 1), "1960-01-01T00:00Z", "9999-01-01Z"],  # noqa: DTZ001 - without a zone, as tested
)
def test_a_manual_clock_begins_at_no_other(start: Any) -> None:
    with pytest.raises(CaplineError) as caught:
        ManualClock(start=start)
    assert isinstance(caught.value, ValueError if isinstance(start, (str, datetime)) else TypeError)


def test_a_manual_clock_stays_where_it_is_after_a_wrong_move() -> None:
    clock = ManualClock(start_us=LATEST_US - 1)
    wrong: list[Any] = ["1", None, float("nan"), float("inf"), 1e-6, 1e30]
    for seconds in wrong:
        with pytest.raises(CaplineError):
            clock.advance(seconds=seconds)
    for by_us in (1.0, "1", True, 1, -LATEST_US):
        with pytest.raises(CaplineError):
            clock.advance_us(by_us)  # pyright: ignore[reportArgumentType] - what is tested
    assert clock.now_us() == LATEST_US - 1
    with pytest.raises(TypeError, match="give one of them"):
        ManualClock(5, start="2026-11-21T16:00Z")
    with pytest.raises(ValueError, match="microseconds since 1970"):
        ManualClock(LATEST_US)


@pytest.mark.parametrize(
    ("algorithm", "instead"),
    [
        ("leaky_bucket", "take 'gcra' for a meter; for a queue 'sliding_log', with slots by `schedule` or `acquire`"),
        ("Leaky Bucket", "'gcra'"),
        ("token_bucket", "take 'gcra'"),
        ("token-bucket", "take 'gcra'"),
        ("sliding_window", "take 'sliding_log'"),
        ("fixed_window_counter", "take 'fixed_window'"),
        ("fixed-window", "take 'fixed_window'"),
        ("leaky", "use sliding_log or bucketed or sliding_counter or fixed_window or gcra"),
    ],
)
def test_an_algorithm_by_another_name_says_what_to_take(algorithm: str, instead: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(instead)) as caught:
        Policy("p", ["1/day"], algorithm=algorithm)
    assert f"policy 'p': algorithm '{algorithm}'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numpy_integers_are_subjects_and_booleans_are_not() -> None:
    assert check_subject(np.uint64(2**64 - 1)) == 2**64 - 1  # pyright: ignore[reportArgumentType] - what is tested
    assert type(check_subject(np.int8(3))) is int  # pyright: ignore[reportArgumentType] - what is tested
    for wrong in (True, np.bool_(True), np.float64(3)):
        with pytest.raises(TypeError):
            check_subject(wrong)  # pyright: ignore[reportArgumentType] - what is tested


def test_every_error_is_a_capline_error() -> None:
    errors = [getattr(capline, name) for name in dir(capline) if name.endswith(("Error", "Exceeded"))]
    assert len(errors) > 8
    assert all(issubclass(error, CaplineError) for error in errors)


def test_importing_capline_pulls_in_none_of_the_optional_parts() -> None:

    code = "import sys, capline; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    extras = {"pyroaring", "pyarrow", "typer", "rich", "httpx", "lmdb", "hypothesis"}
    assert not (extras | {"prometheus_client", "opentelemetry"}) & set(loaded)


def test_sweeping_on_the_way_never_takes_a_log_that_was_just_begun() -> None:
    with capline.Limiter("memory://", [Policy("p", ["1/hour"])]) as limiter:
        assert all(limiter.decide("p", f"user:{n}") for n in range(1000))
        assert not any(limiter.decide("p", f"user:{n}") for n in range(1000))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.25, "0.25 s"), (119, "119 s"), (120, "2 min"), (8040, "2 h 14 min"), (8040.1, "2 h 15 min")),
        *((3_600, "1 h"), (86_400, "1 d"), (1_141_200, "13 d 5 h"), (1_144_800, "13 d 6 h")),
    ],
)
def test_spans_for_people(seconds: float, text: str) -> None:
    assert duration_text(round(seconds * 1_000_000)) == text
