"""What services count, by minutes, joined over instances and restarts: compared with a plain count of each attempt."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.servers import single

from capline import Limiter, Policy
from capline.config.hours import Hours, open_hours
from capline.service.console.history import History
from capline.service.metrics.registry import Metrics
from capline.service.record.counted import HOUR, MOST_ROWS, SPANS, Key, joined, packed
from capline.service.record.instances import FOLLOWS_S, heard, told

MINUTE = 29_400_000
EVENTS = st.lists(
    st.tuples(st.integers(MINUTE - 11_000, MINUTE + 10), st.sampled_from("ab"), st.booleans()), max_size=60
)


def row_of(minutes: Counter[tuple[int, Key]], hour: int) -> bytes:
    counts: dict[Key, list[int]] = {}
    for (minute, key), count in minutes.items():
        if minute // HOUR == hour:
            counts.setdefault(key, [0] * HOUR)[minute % HOUR] += count
    return packed(counts)


@given(EVENTS, EVENTS, st.sampled_from([*SPANS]))
def test_rows_joined_are_what_one_counts(
    one: list[tuple[int, str, bool]], other: list[tuple[int, str, bool]], name: str
) -> None:
    span, rows, told = SPANS[name], list[tuple[int, bytes]](), list[tuple[int, Key]]()
    for events in (one, other):
        minutes = Counter((at, (policy, "", "allowed" if yes else "refused")) for at, policy, yes in events)
        rows += [(hour, row_of(minutes, hour)) for hour in {at // HOUR for at, _ in minutes}]
        told += minutes.elements()
    found = joined(rows, span, MINUTE)
    seen = [(at, key) for at, key in told if found.begin <= at <= MINUTE]
    assert MINUTE - span.minutes < found.begin <= MINUTE - span.minutes + span.step
    assert found.rows == Counter(key for _, key in seen)
    assert found.first == min((at for at, _ in seen), default=None)
    for verdict, series in found.series.items():
        steps = Counter((at - found.begin) // span.step for at, key in seen if key[2] == verdict)
        assert series == [steps[place] for place in range(len(series))]


def test_a_row_is_bounded_and_what_is_least_becomes_one() -> None:
    counts: dict[Key, list[int]] = {(f"p{number}", "", "refused"): [number] * HOUR for number in range(1000)}
    row = packed(counts)
    found = joined([(MINUTE // HOUR, row)], SPANS["hour"], MINUTE + HOUR - 1 - MINUTE % HOUR)
    assert (len(found.rows), sum(found.rows.values())) == (MOST_ROWS - 3, HOUR * sum(range(1000)))
    assert found.rows["p999", "", "refused"] == 999 * HOUR
    assert found.rows["other", "other", "refused"] == HOUR * sum(range(1000 - MOST_ROWS + 4))
    assert len(row) < 250 * MOST_ROWS


@pytest.mark.parametrize("damaged", [b"", b"\xc1", b"\x91\x00", b"x" * 999, packed({("p", "", "?"): [1] * HOUR})])
def test_what_is_not_a_row_is_left_out(damaged: bytes) -> None:
    good = packed({("p", "", "allowed"): [1] * HOUR})
    found = joined([(MINUTE // HOUR, damaged), (MINUTE // HOUR, good)], SPANS["day"], MINUTE + HOUR)
    assert found.rows == {("p", "", "allowed"): HOUR}


class Instance:
    """One process of a service, as far as history goes: its own metrics, and a clock and versions that are set."""

    def __init__(self, hours: Hours, now: list[float], versions: Mapping[str, tuple[str, int]] | None = None) -> None:
        metrics = Metrics()
        self.limiter = Limiter("memory://", [Policy("promo", ["1/day"])], observers=[metrics.observer])
        self.history = History(metrics, hours, lambda: now[0], lambda: versions or {})

    async def ask(self, many: int) -> None:
        """As often, of one subject: but for the first attempt all are refused."""
        await self.history.look()
        for _ in range(many):
            self.limiter.decide("promo", "u")
        await self.history.look()

    async def written(self) -> None:
        await self.history.look()
        await self.history.write()

    async def told(self, name: str = "hour") -> tuple[int, int]:
        rows = (await self.history.over(name)).rows
        return rows.get(("promo", "1/day", "allowed"), 0), rows.get(("promo", "1/day", "refused"), 0)


def test_instances_restarts_and_clocks_count_each_attempt_once(tmp_path: Path) -> None:
    now = [60.0 * MINUTE + 3500]

    async def lived() -> None:
        with closing(open_hours(f"lmdb://{tmp_path}", 604_800)) as hours:
            one, other = Instance(hours, now), Instance(hours, now)  # of one machine and one name
            await one.ask(3)
            await other.ask(5)
            assert (await one.told(), await other.told()) == ((1, 2), (1, 4))
            for _ in range(3):
                await one.history.write()
                await other.history.write()
            again = Instance(hours, now)
            assert await again.told() == (2, 6)
            await again.ask(2)
            for steps_s in (3600, -3600, -3600, 7200, 86_400):
                now[0] += steps_s
                await again.ask(1)
                await again.history.write()
            assert await again.told("hour") == (0, 1)
            assert await again.told("week") == (3, 12)
            assert await Instance(hours, now).told("week") == (3, 12)
            now[0] += 8 * 86_400
            assert await Instance(hours, now).told("week") == (0, 0)

    asyncio.run(lived())


def test_while_the_store_is_away_it_counts_on_and_writes_later() -> None:
    now = [60.0 * MINUTE]

    async def lived() -> None:
        with single("redis") as server, closing(open_hours(server.url, 604_800)) as hours:
            here = Instance(hours, now)
            await here.ask(4)
            server.kill()
            for _ in range(3):
                await here.history.write()
                now[0] += 3600
                await here.ask(10)
            assert await here.told("day") == (1, 33)
            assert "history in" in here.history.away("day")
            server.start()
            until = time.monotonic() + 60  # the circuit breaker leaves it alone for a moment
            while True:
                await here.history.write()
                there = Instance(hours, now)
                if await there.told("day") == (1, 33):
                    break
                assert time.monotonic() < until
            assert there.history.away("day") == ""

    asyncio.run(lived())


def test_each_instance_says_what_it_serves_and_who_lags_or_is_silent_is_told(tmp_path: Path) -> None:
    now = [60.0 * MINUTE + 3500]

    async def lived() -> None:
        with closing(open_hours(f"lmdb://{tmp_path}", 604_800)) as hours:
            one, two = (
                {"capline": ("1", 0), "policies": (text, at), "segments": ("b", sequence), "configuration": (text, 7)}
                for text, at, sequence in (("old", 10, 4), ("new", 20, 4))
            )
            first, second = Instance(hours, now, one), Instance(hours, now, two)

            async def heard() -> list[tuple[bool, list[str]]]:
                await first.written()
                there = await Instance(hours, now).history.instances()
                return [(each["is_silent"], each["lags"]) for each in sorted(there, key=by_policies)]

            def by_policies(each: dict[str, Any]) -> str:
                return each["versions"]["policies"]

            assert await heard() == [(False, [])], "alone nobody lags"
            await second.written()
            assert await heard() == [(False, []), (False, [])], "it may follow in a moment"
            now[0] += FOLLOWS_S - 1
            await second.written()
            there = await Instance(hours, now).history.instances()
            assert not any(each["lags"] for each in there), "its last word is older"
            now[0] += 1
            assert await heard() == [(False, []), (False, ["policies"])]
            one["policies"] = two["policies"]
            assert await heard() == [(False, []), (False, [])]
            two["segments"] = "c", 5
            await second.written()
            now[0] += FOLLOWS_S
            assert sorted(await heard()) == [(False, []), (False, ["segments"])]
            now[0] += 90  # in another hour
            assert (await heard()).count((False, [])) == 1
            now[0] += 20
            assert sorted(await heard()) == [(False, []), (True, [])], "nobody lags behind one that is silent"
            following = asyncio.create_task(second.history.follow())
            await asyncio.sleep(0.2)
            following.cancel()
            await asyncio.wait({following})
            assert await heard() == [(False, [])], "it ended, and said so"
            now[0] += 7200
            assert await heard() == [(False, [])]

    asyncio.run(lived())


def test_what_says_who_is_there_is_left_out_of_what_is_counted() -> None:
    row = packed({("p", "", "allowed"): [1] * HOUR}, told("host:1:aa", 60.0 * MINUTE, {"segments": ("b", 3)}, {}))
    assert joined([(MINUTE // HOUR, row)], SPANS["day"], MINUTE + HOUR).rows == {("p", "", "allowed"): HOUR}
    assert len(row) - len(packed({("p", "", "allowed"): [1] * HOUR})) < 45
    for said in (list[int](), [1], [1, 2, 3, 4]):
        assert heard([packed({}, [("a", "b", "segments", 0, said)]), b"\xc1", row], 60.0 * MINUTE + 100) == [
            {
                "instance": "host:1:aa",
                "heard": 60 * MINUTE,
                "is_silent": False,
                "is_gone": False,
                "versions": {"segments": "b"},
                "lags": [],
            }
        ]


def test_instances_of_the_release_before_which_say_no_second_since_when_are_heard() -> None:
    before = packed({}, [("a", "1", "policies", 0, [100, 1])])
    row = packed({}, told("b", 100.0 + FOLLOWS_S, {"policies": ("2", 2)}, {"policies": 90.0}))
    said = [(each["instance"], each["versions"], each["lags"]) for each in heard([before, row], 120.0)]
    assert said == [("a", {"policies": "1"}, ["policies"]), ("b", {"policies": "2"}, [])]


def test_a_silent_instance_is_gone_once_another_took_its_place_or_after_a_while() -> None:
    def said(name: str, began: float, last: float) -> bytes:
        return packed({}, told(name, last, {"capline": ("1", 0)}, {"capline": began}))

    def states(at: float, *rows: bytes) -> dict[str, tuple[bool, bool]]:
        return {one["instance"]: (one["is_silent"], one["is_gone"]) for one in heard(rows, at)}

    serves, silent, gone = (False, False), (True, False), (True, True)
    first, killed = said("a", 0, 500), said("b", 0, 400)
    assert states(500, first, killed) == {"a": serves, "b": serves}, "another may take its place before it is missed"
    assert states(501, first, killed) == {"a": serves, "b": silent}, "who was there before takes no place"
    assert states(501, first, killed, said("c", 430, 500)) == {"a": serves, "b": gone, "c": serves}
    assert states(501, killed, said("c", 30, 500)) == {"b": silent, "c": serves}, "it was there before"
    assert states(501, said("b", 390, 400), said("c", 430, 500)) == {"b": silent, "c": serves}, "both began together"
    both = killed, said("d", 0, 390)
    assert states(501, *both, said("c", 430, 500)) == {"b": silent, "c": serves, "d": gone}, "each takes one place"
    assert states(900, killed, said("c", 430, 500)) == {"b": gone, "c": silent}, "that one is missed in turn"
    assert states(1300, killed) == {"b": silent}
    assert states(1301, killed) == {"b": gone}, "nobody waits for it any more"
    before = packed({}, [("e", "1", "capline", 0, [500, 1])])
    assert states(501, killed, before) == {"b": silent, "e": serves}, "the release before does not say when it began"


def test_what_waits_is_bounded() -> None:
    now = [60.0 * MINUTE]

    async def lived() -> None:
        with closing(open_hours("redis://127.0.0.1:1", 604_800)) as hours:
            here = Instance(hours, now)
            for _ in range(200):
                await here.ask(1)
                now[0] += 3600
            await here.history.write()
            assert sum(await here.told("week")) == 167, "the last week, but for the hour under way"

    asyncio.run(lived())
