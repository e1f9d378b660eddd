"""What services counted is kept for a while, and whole, beside the logs of every store."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.kit.servers import shared, single

from capline import Limiter, Policy
from capline.config.hours import Hours, open_hours
from capline.model.errors import StoreUnavailableError

KEEP_S = 7 * 86_400


@pytest.fixture(params=["memory", "lmdb", "redis", "valkey", "sentinel", "cluster"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory://"
        case "lmdb":
            return f"lmdb://{tmp_path}?durability=full"
        case "sentinel":
            return shared("redis", "sentinel").url + "?deadline=20s"
        case "cluster":
            return shared("redis", "cluster").url + "?deadline=20s"
        case kind:
            return shared(kind).url + "?deadline=20s"


@pytest.fixture
def hours(url: str) -> Iterator[Hours]:
    with closing(open_hours(url, KEEP_S)) as opened:
        yield opened


def test_rows_are_read_by_hour_and_written_again_as_often_as_one_likes(hours: Hours) -> None:
    begin = 490_000
    assert hours.get([begin, begin + 1]) == [{}, {}]
    for row in (b"1", b"2", b"2"):
        hours.put(begin, b"a", row)
    hours.put(begin, b"b\0", bytes(range(256)))
    hours.put(begin + 2, b"a", b"late")
    hours.put(begin + 1, b"a", b"later")
    assert hours.get([*range(begin, begin + 3)]) == [
        {b"a": b"2", b"b\0": bytes(range(256))},
        {b"a": b"later"},
        {b"a": b"late"},
    ]
    assert hours.get([begin + 2, begin]) == [{b"a": b"late"}, {b"a": b"2", b"b\0": bytes(range(256))}]


@pytest.mark.parametrize("url", ["memory", "lmdb"], indirect=True)
def test_here_old_hours_go_a_few_at_a_time_so_that_a_wrong_clock_costs_little(hours: Hours) -> None:
    for hour in range(100):
        hours.put(hour, b"a", b"row")
    hours.put(50_000, b"a", b"the clock was ahead")
    assert sum(map(bool, hours.get([*range(100)]))) == 98
    for _ in range(60):
        hours.put(99 + KEEP_S // 3600, b"a", b"row")
    assert [bool(row) for row in hours.get([98, 99, 50_000])] == [False, True, True]


def test_on_a_server_an_hour_expires_and_is_no_log() -> None:
    with single("redis") as server, closing(open_hours(server.url, 3600)) as hours:
        hours.put(490_000, b"a", b"row")
        assert 3_500_000 < server.command("PTTL", "capline:/history:{490000}") <= 3_600_000
        with Limiter(server.url, [Policy("promo", ["3/day"])]) as limiter:
            assert limiter.decide("promo", "u")
            assert (limiter.sweep(), len([*limiter.export()])) == (0, 1)
        assert hours.get([490_000]) == [{b"a": b"row"}]


def test_a_server_that_is_away_is_an_outage_named_for_what_it_is() -> None:
    with closing(open_hours("redis://127.0.0.1:1", KEEP_S)) as hours:
        with pytest.raises(StoreUnavailableError, match=r"history in 'redis://127\.0\.0\.1:1'"):
            hours.put(1, b"a", b"row")
        with pytest.raises(StoreUnavailableError):
            hours.get([1])
