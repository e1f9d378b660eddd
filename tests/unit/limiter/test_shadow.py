"""A policy in shadow: its log is that of a twin that binds, and its answers refuse nobody."""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.kit.limiter import behind_a_door, close, gone, inner_of
from tests.kit.servers import shared
from tests.profiles import size, sized

from capline import (
    AsyncLimiter,
    Attempt,
    Configuration,
    Decision,
    Insurance,
    Limiter,
    ManualClock,
    Policy,
    StoreError,
    UnknownNameError,
)
from capline.model.limit import Limit
from capline.testing.conformance import Awaited

START_US = 10**15
DAY_US = 86_400_000_000
SHADOW, BINDS = Policy("s", ["2/day"], shadow=True), Policy("b", ["3/day"])
KINDS: dict[str, dict[str, Any]] = {
    "log": {"limits": ["4/10s", "9/min"], "channels": {"push": ["2/10s"]}},
    "segments": {"limits": ["1/10s"], "by_segment": {"vip": ["5/10s"]}, "reservations": True},
    "denied": {"limits": ["4/10s"], "count_denied": True},
    "sums": {"limits": ["9/10s"], "algorithm": "bucketed", "granularity": "1s"},
    "gcra": {"limits": ["4/10s"], "algorithm": "gcra"},
}


# --- the log is that of a twin that binds ---------------------------------------------------------------------------


class Twins:
    """The same history under a policy in shadow and under one that binds, on two stores of one kind."""

    def __init__(self, kind: dict[str, Any], url: str, asynchronous: bool) -> None:
        self.clock, mark = ManualClock(START_US), secrets.token_hex(4)
        make: Any = Awaited if asynchronous else Limiter
        self.twins: list[Any] = [
            make(url, [Policy("p", **kind, shadow=name == "shadow")], clock=self.clock, namespace=f"{name}{mark}")
            for name in ("shadow", "binds")
        ]
        self.kind, self.refused = kind, 0
        self.hits: list[tuple[str, int | None, int | None, int]] = []
        self.draw = Random(7)

    def step(self) -> None:
        draw, kind = self.draw, self.kind
        self.clock.advance_us(draw.choice((0, 1, 300_000, 2_000_000)))
        names: dict[str, Any] = {}
        if "channels" in kind and draw.random() < 0.4:
            names["channel"] = "push"
        if "by_segment" in kind and draw.random() < 0.5:
            names["segment"] = "vip"
        subject, cost = draw.choice("uv"), draw.choice((1, 1, 2))
        id = f"{subject}{cost}{draw.randrange(9)}" if draw.random() < 0.3 else None
        verbs = [self.decide] * 5 + [self.peek, self.charge, self.many, self.batch, self.one_of_all, self.change]
        if kind.get("algorithm", "sliding_log") == "sliding_log" and "count_denied" not in kind:
            verbs.append(self.slot)
        if "reservations" in kind:
            verbs.append(self.hold)
        draw.choice(verbs)(subject, cost, id, names)

    def decide(self, subject: str, cost: int, id: str | None, names: dict[str, Any]) -> None:
        hits = self.same([one.decide("p", subject, cost, id, **names) for one in self.twins])
        self.hits.append((subject, *hits, cost))

    def peek(self, subject: str, cost: int, id: str | None, names: dict[str, Any]) -> None:
        self.same([one.peek("p", subject, cost, id, **names) for one in self.twins])

    def charge(self, subject: str, _cost: int, _id: str | None, names: dict[str, Any]) -> None:
        self.same([one.charge("p", subject, 1, **names) for one in self.twins])

    def many(self, _subject: str, cost: int, _id: str | None, names: dict[str, Any]) -> None:
        for rows in zip(
            *(one.decide_many("p", ["u", "v", "u"], cost=cost, **names) for one in self.twins), strict=True
        ):
            self.same([*rows])

    def batch(self, _subject: str, cost: int, _id: str | None, names: dict[str, Any]) -> None:
        attempts = [Attempt("p", each, cost, **names) for each in "uvu"]
        for rows in zip(*(one.decide_batch(attempts) for one in self.twins), strict=True):
            self.same([*rows])

    def one_of_all(self, subject: str, cost: int, _id: str | None, names: dict[str, Any]) -> None:
        """Alone: of several that are in shadow each is by itself. Refusals of several are not counted."""
        if "count_denied" not in self.kind:
            shadow, binds = (one.decide_all([Attempt("p", subject, cost, **names)]) for one in self.twins)
            assert (shadow.hits, shadow.origin) == ((binds.hits, "store") if binds else ((None,), "shadow"))

    def slot(self, subject: str, cost: int, id: str | None, names: dict[str, Any]) -> None:
        """Nobody waits in shadow, so a slot is taken if it is now."""
        waits: list[dict[str, float]] = [{}, {"max_wait": 0.001}]
        self.same(
            [one.schedule("p", subject, cost, id, **names, **w) for one, w in zip(self.twins, waits, strict=True)]
        )

    def hold(self, subject: str, cost: int, id: str | None, names: dict[str, Any]) -> None:
        hits = self.same([one.reserve("p", subject, cost, id, ttl=3, **names) for one in self.twins])
        if self.draw.random() < 0.5:
            assert len({one.commit("p", subject, hit) for one, hit in zip(self.twins, hits, strict=True)}) == 1

    def change(self, *_: Any) -> None:
        if self.hits:
            subject, *hits, cost = self.draw.choice(self.hits)
            verb, units = self.draw.choice((("refund", cost), ("settle", self.draw.randrange(3))))
            done = {getattr(one, verb)("p", subject, hit, units) for one, hit in zip(self.twins, hits, strict=True)}
            assert len(done) == 1

    def same(self, answers: list[Decision]) -> tuple[int | None, int | None]:
        """In shadow as the twin says, but allowed; returns the hits."""
        shadow, binds = answers
        assert shadow.allowed
        assert (shadow.origin, shadow.hit) == ("store" if binds else "shadow", binds.hit)
        assert (shadow.limit, shadow.remaining, shadow.reset_after_us) == (
            binds.limit,
            binds.remaining,
            binds.reset_after_us,
        )
        assert (shadow.retry_after_us, shadow.headers(), shadow.headers("legacy")) == (0, {}, {})
        self.refused += not binds
        return shadow.hit, binds.hit

    def logs(self) -> list[Any]:
        return [[one.explain("p", subject).hits for subject in "uv"] for one in self.twins]


@sized
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("store", ["memory", "awaited", "lmdb", "redis"])
def test_the_log_is_that_of_a_twin_that_binds(tmp_path: Path, store: str, kind: str) -> None:
    urls = {
        "lmdb": f"lmdb://{tmp_path}/logs",
        "redis": f"{shared('redis').url}?deadline=20s" if store == "redis" else "",
    }
    twins = Twins(KINDS[kind], urls.get(store, "memory://"), store == "awaited")
    try:
        for step in range(size(120, 1_000)):
            twins.step()
            if step % 20 == 0:
                shadow, binds = twins.logs()
                assert shadow == binds
        assert twins.logs()[0] == twins.logs()[1]
        assert twins.refused > 10
    finally:
        for one in twins.twins:
            close(one)


# --- what each verb says, of a limiter that blocks and of one that is awaited ---------------------------------------


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    made: list[Any] = []

    def limiter(*policies: Policy, **options: Any) -> Any:
        limiter, door = behind_a_door(
            *(policies or (SHADOW, BINDS)), asynchronous=request.param, clock=ManualClock(START_US), **options
        )
        made.append(limiter)
        return limiter, door

    yield limiter
    for one in made:
        close(one)


def full(limiter: Any, subject: str = "u") -> None:
    for _ in range(2):
        assert limiter.decide("s", subject).hit is not None


def test_what_would_be_refused_is_allowed_and_says_by_which_limit(make: Any) -> None:
    limiter, _ = make()
    full(limiter)
    answer = limiter.decide("s", "u")
    assert answer == Decision(True, Limit.parse("2/day"), 0, 0, DAY_US + 1, None, "shadow")
    assert [(state.remaining, state.shadow) for state in answer.limits] == [(0, True)]
    assert limiter.peek("s", "u") == answer
    assert limiter.decide("s", "u", 9).origin == "shadow"
    why = limiter.explain("s", "u")
    assert (why.shadow, why.decision.origin, len(why.hits)) == (True, "shadow", 2)
    assert (limiter.explain("b", "u").shadow, limiter.explain("b", "u").as_dict()["shadow"]) == (False, False)


def test_of_such_an_answer_nothing_is_given_back(make: Any) -> None:
    limiter, _ = make(Policy("s", ["2/day"], shadow=True, reservations=True))
    full(limiter)
    held = limiter.reserve("s", "u")
    assert (held.allowed, held.hit, held.origin) == (True, None, "shadow")
    assert not limiter.commit("s", "u", held.hit)
    assert not limiter.cancel("s", "u", held.hit)
    assert not limiter.refund("s", "u", held.hit)
    assert not limiter.settle("s", "u", held.hit, 3)
    assert limiter.usage("s", "u")[0].used == 2


def test_nobody_waits_but_for_as_long_as_one_wants_to(make: Any) -> None:
    limiter, _ = make()
    full(limiter)
    slot = limiter.schedule("s", "u")
    assert (slot.allowed, slot.wait_us, slot.hit, slot.origin) == (True, 0, None, "shadow")
    assert limiter.schedule("s", "u", max_wait=0).allowed
    assert limiter.schedule("s", "u", not_before=5).wait == 5
    later = limiter.schedule("s", "v", not_before=5)
    assert (later.wait, later.origin, later.hit) == (5, "store", START_US + 5_000_000)
    assert limiter.usage("s", "u")[0].used == 2, "a queue that nobody waits in would only grow"


def test_a_slot_from_before_it_was_in_shadow_is_not_waited_for() -> None:
    with Limiter("memory://", [Policy("s", ["1/day"])], clock=ManualClock(START_US)) as limiter:
        assert limiter.decide("s", "u")
        first = limiter.schedule("s", "u", id="m")
        limiter.use([Policy("s", ["1/day"], shadow=True)])
        again = limiter.schedule("s", "u", id="m")
        assert (first.wait_us, again.wait_us, again.hit, again.origin) == (DAY_US, 0, first.hit, "shadow")
        assert limiter.refund("s", "u", again.hit)


def test_acquire_does_not_wait() -> None:
    async def awaited() -> list[Decision]:
        slots: list[Decision] = []
        async with AsyncLimiter("memory://", [SHADOW]) as limiter:
            for _ in range(3):
                async with limiter.acquire("s", "u", timeout=0) as slot:
                    slots.append(slot)
        return slots

    with Limiter("memory://", [SHADOW]) as limiter:
        slots: list[Decision] = []
        for _ in range(3):
            with limiter.acquire("s", "u", timeout=0) as slot:
                slots.append(slot)
        with limiter.acquire_all([Attempt("s", "u")]) as joint:
            assert (joint.hits, joint.origin) == ((None,), "shadow")
    for of in (slots, asyncio.run(awaited())):
        assert [(slot.origin, slot.hit is None) for slot in of] == [("store", False)] * 2 + [("shadow", True)]


def test_columns_and_rows_name_those_that_would_be_refused(make: Any) -> None:
    limiter, _ = make(deny_cache=100)
    full(limiter)
    for _ in range(2):  # the second time from the cache of refusals
        answers = limiter.decide_many("s", ["u", "", "u"])
        assert (answers.allowed.tolist(), answers.origins, [*answers.errors]) == (
            [True, False, True],
            {0: "shadow", 2: "shadow"},
            [1],
        )
        assert (answers.retry_after_us.tolist(), answers.hit.tolist()) == ([0, -1, 0], [-1, -1, -1])
        rows = limiter.decide_batch([Attempt("s", "u"), Attempt("b", "u"), Attempt("none", "u")])
        assert [row.origin for row in rows[:2]] == ["shadow", "store"]
        assert isinstance(rows[2], UnknownNameError)
    assert limiter.peek_many("s", ["u"]).origins == {0: "shadow"}
    assert not any(limiter.refund_many("s", ["u", "u"], [-1, -1]))


def test_a_limit_in_shadow_refuses_none_of_the_others(make: Any) -> None:
    limiter, door = make()
    parts = [Attempt("s", "u"), Attempt("b", "k")]
    assert [limiter.decide_all(parts).origin for _ in range(2)] == ["store"] * 2
    assert limiter.peek_all(parts).origin == "shadow"
    joint = limiter.decide_all(parts)
    assert (joint.allowed, joint.origin, str(joint.limit), joint.binds) == (True, "shadow", "2/day", 0)
    assert (joint.hits[0], joint.hits[1] is None, joint.remaining, joint.retry_after_us) == (None, False, 0, 0)
    assert [[state.shadow for state in part] for part in joint.limits] == [[True], [False]]
    assert joint.headers() == {"RateLimit-Policy": '"b-day";q=3;w=86400', "RateLimit": '"b-day";r=0;t=86400'}
    assert limiter.refund_all(parts, joint.hits) == 1
    assert limiter.decide_all(parts)
    refused = limiter.decide_all([Attempt("s", "fresh"), Attempt("b", "k")])
    assert (refused.allowed, str(refused.limit), refused.binds, refused.hits) == (False, "3/day", 1, ())
    assert limiter.usage("s", "fresh")[0].used == 0, "nothing is recorded of what is refused"
    alone = limiter.decide_all([Attempt("s", "u"), Attempt("s", "fresh")])
    assert (alone.origin, alone.hits[0], alone.hits[1]) == ("shadow", None, START_US)
    before = len(door.calls)
    limiter.decide_all([Attempt("b", "x"), Attempt("b", "y")])
    assert len(door.calls) == before + 1, "without shadows it is one call, as ever"


def test_a_slot_of_several_is_where_those_that_bind_have_theirs(make: Any) -> None:
    limiter, _ = make(SHADOW, Policy("b", ["1/10s"]))
    parts = [Attempt("s", "u"), Attempt("b", "k")]
    slots = [limiter.schedule_all(parts) for _ in range(4)]
    assert [slot.wait for slot in slots] == [0, 10, 20, 30]
    assert [slot.hits[0] for slot in slots] == [START_US, START_US + 10_000_000, None, None]
    assert [slot.origin for slot in slots] == ["store", "store", "shadow", "shadow"]
    assert limiter.refund_all(parts, slots[-1].hits) == 1


def test_in_an_outage_it_refuses_nobody_and_fails_none_of_the_others(make: Any) -> None:
    for choice in ("deny", "allow"):
        limiter, door = make(on_store_error=choice)
        door.down = gone()
        assert [limiter.decide("s", "u").origin, limiter.peek("s", "u").allowed] == ["fallback", True]
        assert (limiter.decide_many("s", ["u"]).allowed.tolist(), limiter.decide_many("s", ["u"]).origin) == (
            [True],
            "fallback",
        )
        assert limiter.decide_batch([Attempt("s", "u")])[0].allowed
        assert limiter.decide_all([Attempt("s", "u"), Attempt("b", "u")]).allowed == (choice == "allow")
    limiter, door = make(on_store_error=Insurance(hosts=1))
    door.down = gone()
    assert [limiter.decide("s", "u").origin for _ in range(3)] == ["insurance", "insurance", "shadow"]
    limiter, door = make()
    door.lost.add("lost")
    answers = limiter.decide_many("s", ["u", "lost"])
    assert (answers.allowed.tolist(), [*answers.errors], answers.origins) == ([True, False], [1], {})
    door.fails.add("decide")
    assert limiter.decide_all([Attempt("s", "v"), Attempt("b", "k")]).hits == (None, START_US)
    with pytest.raises(StoreError):
        limiter.decide("s", "u")


def test_overrides_are_in_shadow_as_their_policy_is_and_a_change_takes_effect(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/config"
    with closing(Configuration(url)) as config, Limiter.from_config(config, "memory://") as limiter:
        config.set_policies([SHADOW])
        limiter.reload()
        limiter.override("s", "v", ["1/day"])
        assert [limiter.decide("s", "v").origin for _ in range(2)] == ["store", "shadow"]
        assert limiter.decide_many("s", ["v", "u"]).origins == {0: "shadow"}
        config.set_policies([SHADOW.having(shadow=False)])
        limiter.reload()
        assert not limiter.decide("s", "v")
        assert limiter.decide("s", "u").remaining == 0, "what was counted in shadow counts"
        config.set_policies([SHADOW])
        limiter.reload()
        assert limiter.decide("s", "v").origin == "shadow"


def test_others_keep_their_fast_path(make: Any) -> None:
    limiter, _ = make()
    for policy in "sb":
        limiter.decide(policy, "u")
    assert set(inner_of(limiter)._units) == {"b", ("b", None, None, None)}
