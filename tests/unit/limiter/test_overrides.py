"""Limits of single subjects, in every verb of both limiters; and what a policy without any pays for them: nothing."""

# pyright: reportPrivateUsage=false
# Whether the fast path is taken is seen from inside only.

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kit.limiter import behind_a_door, close, gone

from capline import AsyncLimiter, Attempt, CaplineError, Insurance, Limit, Limiter, ManualClock, Policy
from capline.config.configuration import Configuration
from capline.limiter.policies import overrides
from capline.limiter.policies.rules import Rules
from capline.model.errors import PolicyError, StoreUnavailableError, UnknownNameError

NOW_US = 1_800_000_000_000_000
DAY_US = 86_400_000_000
POLICIES = [
    Policy("promo", ["2/day"], by_segment={"vip": ["4/day"]}, channels={"push": ["1/day"]}),
    Policy("plain", ["2/day"]),
    Policy("counter", ["2/day"], algorithm="sliding_counter"),
    Policy("strict", ["2/day"], count_denied=True),
    Policy("shared", ["2/day"], log="promo"),
]
ALGORITHMS = ["sliding_log", "bucketed", "sliding_counter", "fixed_window", "gcra"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_US)


@pytest.fixture
def limiter(clock: ManualClock) -> Iterator[Limiter]:
    with Limiter("memory://", policies=POLICIES, clock=clock) as made:
        yield made


def test_an_override_takes_the_place_of_the_limits_in_every_verb(limiter: Limiter) -> None:
    limiter.override("promo", "u", ["5/day", "9/week"])
    assert limiter.peek("promo", "u").remaining == 4
    assert limiter.decide("promo", "u").remaining == 4
    assert limiter.decide("promo", "u", 1, "an id").remaining == 3
    assert limiter.schedule("promo", "u").remaining == 2
    mine, theirs = limiter.decide_batch([Attempt("promo", "u"), Attempt("promo", "v")])
    assert not isinstance(mine, CaplineError)
    assert not isinstance(theirs, CaplineError)
    assert (mine.remaining, theirs.remaining) == (1, 1)
    assert limiter.peek_all([Attempt("promo", "u")]).remaining == 0
    assert limiter.decide_all([Attempt("promo", "u")]).allowed
    assert not limiter.decide("promo", "u")
    assert not limiter.peek_many("promo", ["u"]).allowed[0]
    assert [str(state.limit) for state in limiter.explain("promo", "u").limits] == ["5/day", "9/week"]
    assert limiter.decide("promo", "v").remaining == 0  # of its batch above


def test_it_holds_in_every_segment_and_beside_a_channel(limiter: Limiter) -> None:
    limiter.override("promo", "u", ["9/day"])
    assert limiter.peek("promo", "u", segment="vip").remaining == 8
    assert limiter.peek("promo", "v", segment="vip").remaining == 3
    assert str(limiter.peek("promo", "u", channel="push").limit) == "1/day"
    with pytest.raises(UnknownNameError, match="no segment 'nope'"):
        limiter.peek("promo", "u", segment="nope")


def test_columns_have_it_row_by_row(limiter: Limiter) -> None:
    limiter.override("promo", "u", ["9/day"])
    limiter.override("promo", 7, ["6/day"])
    many = limiter.peek_many("promo", ["u", "v", "u", "w"], segment=[None, "vip", "vip", None])
    assert many.remaining.tolist() == [8, 3, 8, 1]
    assert limiter.decide_many("promo", np.array([6, 7, 8])).remaining.tolist() == [1, 5, 1]
    assert limiter.decide_many("plain", ["u"]).remaining.tolist() == [1]


def test_history_stays_when_it_comes_and_goes(limiter: Limiter) -> None:
    limiter.decide("promo", "u")
    limiter.override("promo", "u", ["3/day"])
    assert limiter.decide("promo", "u").remaining == 1
    limiter.override("promo", "u", None)
    assert not limiter.decide("promo", "u")


def test_a_log_is_kept_for_the_widest_override(limiter: Limiter, clock: ManualClock) -> None:
    limiter.override("promo", "u", ["5/30 days"])
    for _ in range(2):
        assert limiter.decide("promo", "u")
        clock.advance_us(3 * DAY_US)
    # A policy that shares the log, and has no override, must not trim what the other one counts.
    assert limiter.decide("shared", "u").allowed
    assert len(limiter.explain("shared", "u").hits) == 3
    assert limiter.peek("promo", "u").remaining == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm(clock: ManualClock, algorithm: str) -> None:
    with Limiter("memory://", policies=[Policy("p", ["2/day"], algorithm=algorithm)], clock=clock) as limiter:
        limiter.override("p", "u", ["4/day"])
        decided = [limiter.decide("p", "u") for _ in range(5)]
        if algorithm != "gcra":
            assert [one.allowed for one in decided] == [True] * 4 + [False]
            assert limiter.refund("p", "u", decided[0].hit)
            assert limiter.refund_many("p", ["u"], [decided[1].hit or 0]).tolist() == [True]
            assert [limiter.decide("p", "u").allowed for _ in range(3)] == [True, True, False]
        assert limiter.erase("u") >= 1
        assert limiter.peek("p", "u").remaining == 3


def test_refusals_that_count_are_counted_by_the_override(limiter: Limiter) -> None:
    limiter.override("strict", "u", ["3/day"])
    assert [limiter.decide("strict", "u").allowed for _ in range(5)] == [True] * 3 + [False] * 2
    limiter.override("strict", "v", ["50/day"])
    limiter.decide("strict", "v")
    assert limiter._overrides is not None
    rule = limiter._overrides.rule(("strict", None, None, None), "v")
    assert rule is not None
    assert rule.denied_units == 100  # twice the largest quota on the log


def test_a_policy_without_overrides_keeps_its_fast_path(limiter: Limiter) -> None:
    limiter.override("promo", "u", ["9/day"])
    limiter.decide("plain", "u")
    compiled = limiter._bound(("plain", None, None, None))
    assert limiter._units["plain"] == compiled.decide_one  # the store's own, with nothing around it
    limiter.decide("promo", "v")
    assert limiter._units["promo"] != limiter._bound(("promo", None, None, None)).decide_one
    limiter.override("promo", "u", None)
    limiter.decide("promo", "v")
    assert limiter._units["promo"] == limiter._bound(("promo", None, None, None)).decide_one


def test_thousands_of_sets_of_limits_are_compiled_once_each(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    limiter.override("promo", 0, ["20/day"])
    made, compiled = limiter._overrides, list[object]()
    assert made is not None
    assert limiter.configuration is not None
    limiter.configuration.override_many("promo", {subject: [f"{subject + 20}/day"] for subject in range(5_000)})
    compile_rule = made._compile

    def counted(rule: Any) -> Any:
        compiled.append(rule)
        return compile_rule(rule)

    monkeypatch.setattr(made, "_compile", counted)
    for subject in (*range(5_000), *range(5_000)):
        limiter.decide("promo", subject)
    assert len(compiled) == 5_000
    monkeypatch.setattr(overrides, "MOST_COMPILED", 5_004)
    limiter.configuration.override_many("promo", {subject: [f"{subject + 20}/week"] for subject in range(6)})
    assert [limiter.decide("promo", subject).remaining for subject in range(6)] == list(range(17, 23))
    assert [sum(map(len, tables)) for tables in zip(*made._kept.values(), strict=True)] == [2, 2], "more were kept"


def test_the_fast_path_of_a_policy_with_overrides_asks_once(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    limiter.override("promo", "u", ["1000/day"])
    for subject in ("u", "v"):
        limiter.decide("promo", subject)
        limiter.decide("promo", subject)
    assert limiter.configuration is not None
    monkeypatch.setattr(limiter.configuration.view, "own", None)  # a call would raise
    assert limiter.decide("promo", "u").remaining == 997
    assert not limiter.decide("promo", "v")
    wrongs: list[Any] = [True, 1.0, [], None, ""]
    for wrong in wrongs:
        with pytest.raises(CaplineError):
            limiter.decide("promo", wrong)


def test_no_refusal_is_cached_where_limits_may_rise(clock: ManualClock) -> None:
    with Limiter("memory://", policies=POLICIES, clock=clock, deny_cache=100) as limiter:
        for _ in range(3):
            limiter.decide("plain", "u")
        assert limiter.decide("plain", "u").origin == "deny-cache"
        limiter.override("plain", "u", ["5/day"])
        assert limiter.decide("plain", "u").allowed
        for _ in range(3):
            limiter.decide("plain", "v")
        limiter.override("plain", "v", ["5/day"])
        assert limiter.decide("plain", "v").allowed


def test_hashed_subjects_have_overrides_too(clock: ManualClock) -> None:
    with Limiter("memory://", policies=POLICIES, clock=clock, subject_key=b"k" * 16) as limiter:
        limiter.override("promo", "u", ["9/day"])
        assert limiter.decide("promo", "u").remaining == 8
        assert limiter.configuration is not None
        assert [subject for subject, _ in limiter.configuration.overrides("promo")] != ["u"]


def test_an_override_in_a_zone(limiter: Limiter) -> None:
    limiter.override("plain", "u", ["5/calendar day"])
    assert limiter.explain("plain", "u", zone="Asia/Tokyo").zone == "Asia/Tokyo"


def test_what_is_wrong_is_said(limiter: Limiter, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError):
        limiter.override("nobody", "u", ["1/day"])
    with pytest.raises(PolicyError, match="needs a log"):
        limiter.override("counter", "u", ["1/calendar day"])
    with (
        Limiter(f"lmdb://{tmp_path}", policies=POLICIES) as durable,
        pytest.raises(PolicyError, match="no configuration store"),
    ):
        durable.override("promo", "u", ["1/day"])


def test_overrides_beside_policies_of_code(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}"
    with Limiter(url, policies=POLICIES, config=url) as limiter:
        limiter.override("promo", "u", ["9/day"])
    with Limiter(url, policies=POLICIES, config=url) as limiter:
        assert limiter.decide("promo", "u").remaining == 8
        limiter.use([Policy("promo", ["1/day"])])
        assert limiter.decide("promo", "u").remaining == 7


def test_policies_of_a_configuration(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}"
    with Configuration(url) as configuration, Limiter.from_config(url, "memory://") as limiter:
        with pytest.raises(UnknownNameError):
            limiter.decide("promo", "u")
        configuration.set_policies([Policy("promo", ["3/day"])])
        limiter.reload()
        assert limiter.decide("promo", "u").remaining == 2
        configuration.set_policies([Policy("promo", ["9/day"])])
        limiter.reload()
        assert limiter.decide("promo", "u").remaining == 7
        configuration.delete_policy("promo")
        limiter.reload()
        with pytest.raises(UnknownNameError):
            limiter.decide("promo", "u")
        with pytest.raises(PolicyError, match="change them there"):
            limiter.use(POLICIES)


def test_what_a_change_does_not_touch_stays_compiled(clock: ManualClock) -> None:
    configuration = Configuration("memory://", clock=clock)
    log: dict[str, Any] = {"channels": {"push": ["1/day"]}, "log": "both"}
    named = [
        Policy("promo", ["3/day"]),
        Policy("plain", ["1/s"]),
        Policy("a", ["2/s"], **log),
        Policy("b", ["2/s"], **log),
    ]
    configuration.set_policies(named)
    changes: dict[str, tuple[Policy | None, set[str]]] = {
        "a limit": (Policy("promo", ["4/day"]), {"promo"}),
        "the log's retention": (Policy("a", ["2/week"], **log), {"a", "b"}),
        "another log": (Policy("plain", ["1/s"], **log), {"plain", "a", "b"}),
        "a log that is left": (Policy("plain", ["1/s"]), {"plain", "a", "b"}),
        "nothing": (Policy("promo", ["4/day"]), set()),
        "a channel is gone": (Policy("b", ["2/s"], log="both"), {"a", "b"}),
        "a policy is gone": (None, {"a", "b"}),
        "one more": (Policy("new", ["1/s"]), set()),
    }
    with (
        configuration,
        Limiter.from_config(configuration, "memory://", clock=clock, on_store_error=Insurance(1)) as limiter,
    ):
        for what, (policy, touched) in changes.items():
            before = {name: limiter._bound((name, None, None, None)) for name in limiter.policies}
            if policy is None:
                configuration.delete_policy("b")
            else:
                configuration.set_policies([policy])
            names = set(limiter.policies)
            kept = {name for name in names & before.keys() if limiter._bound((name, None, None, None)) is before[name]}
            assert kept == (names & before.keys()) - touched, what
            whole = Rules(limiter.policies.values(), before=limiter._rules)
            for name in names:
                assert limiter._rules.rule(name, None, None) == whole.rule(name, None, None), (what, name)
        logs = ["capline:both", "capline:both/push", "capline:new", "capline:plain", "capline:promo"]
        assert sorted(limiter._rules.logs()) == logs


def test_limits_for_a_while_end_by_themselves(limiter: Limiter, clock: ManualClock) -> None:
    limiter.override("promo", "u", ["5/day"])
    limiter.override("promo", "u", ["9/day"], until="2027-01-15T08:00:10Z")
    assert limiter.decide("promo", "u").remaining == 8
    clock.advance_us(9_999_999)
    assert limiter.peek("promo", "u").remaining == 7
    clock.advance_us(1)
    assert [limiter.peek("promo", who).remaining for who in ("u", "v")] == [3, 1]


def test_at_an_instant_all_change_at_once(clock: ManualClock) -> None:
    configuration = Configuration("memory://", clock=clock)
    configuration.set_policies([Policy("promo", ["3/day"]), Policy("plain", ["1/s"])])
    made = [Limiter.from_config(configuration, "memory://", clock=clock, deny_cache=n) for n in (0, 100)]
    configuration.set_policies([Policy("promo", ["5/day"])], effective_at="2027-01-15T08:00:10Z")
    configuration.set_policies([Policy("late", ["5/day"])], effective_at="2027-01-15T08:00:20Z")
    for limiter in made:
        assert limiter.decide("promo", "u").remaining == 2
        assert "promo" not in limiter._units
    clock.advance_us(9_999_999)
    assert [limiter.peek("promo", "u").remaining for limiter in made] == [1, 1]
    clock.advance_us(1)
    assert [limiter.decide("promo", "u").remaining for limiter in made] == [3, 3]
    assert [limiter.peek_many("promo", ["u"]).remaining.tolist() for limiter in made] == [[2], [2]]
    assert [list(limiter.policies) for limiter in made] == [["plain", "promo"]] * 2
    clock.advance_us(10_000_000)
    assert [limiter.peek_many("late", ["u"]).remaining.tolist() for limiter in made] == [[4], [4]]
    made[0].decide("promo", "u")
    assert "promo" in made[0]._units
    for limiter in made:
        limiter.close()
    configuration.close()


def test_in_an_outage_the_last_known_serves(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    with Configuration("memory://", clock=clock) as configuration:
        configuration.set_policies([Policy("promo", ["3/day"])])
        configuration.override_many("promo", {"u": ["9/day"], "v": ["9/day"]})
        with Limiter.from_config(configuration, "memory://", clock=clock) as limiter:
            limiter.decide("promo", "u")

            def away(*_: Any) -> Any:
                raise StoreUnavailableError("away")

            for verb in ("head", "get"):
                monkeypatch.setattr(configuration._backend, verb, away)
            assert limiter.decide("promo", "u").remaining == 7
            assert limiter.decide("promo", "v").remaining == 2  # never asked for: the policy's limits
            with pytest.raises(StoreUnavailableError):
                limiter.override("promo", "u", ["1/day"])
            assert configuration.stats()["up"] == 0
            assert configuration.stats()["unknown"] == 1
            monkeypatch.undo()
            limiter.reload()
            assert configuration.stats()["up"] == 1
            assert limiter.decide("promo", "v").remaining == 7


def test_it_does_not_start_without_its_configuration() -> None:
    with pytest.raises(StoreUnavailableError, match=r"configuration store 'redis://127\.0\.0\.1:1/0'"):
        Limiter.from_config("redis://127.0.0.1:1/0", "memory://")


async def test_awaited() -> None:
    clock = ManualClock(NOW_US)
    async with AsyncLimiter("memory://", policies=POLICIES, clock=clock) as limiter:
        await limiter.override("promo", "u", ["9/day", "20/week"])
        await limiter.override("counter", "u", ["9/day"])
        assert (await limiter.decide("promo", "u")).remaining == 8
        assert (await limiter.peek("promo", "u")).remaining == 7
        slot = await limiter.schedule("promo", "u")
        assert slot.remaining == 7
        assert await limiter.refund("promo", "u", slot.hit)
        assert (await limiter.decide_all([Attempt("promo", "u")])).remaining == 7
        assert (await limiter.peek_all([Attempt("promo", "u")])).remaining == 6
        (one,) = await limiter.decide_batch([Attempt("promo", "u")])
        assert not isinstance(one, CaplineError)
        assert one.remaining == 6
        assert (await limiter.decide_many("promo", ["u", "v"])).remaining.tolist() == [5, 1]
        assert (await limiter.peek_many("promo", ["u", "v"])).remaining.tolist() == [4, 0]
        assert len((await limiter.explain("promo", "u")).limits) == 2
        hit = (await limiter.decide("counter", "u")).hit
        assert (await limiter.refund_many("counter", ["u"], [hit or 0])).tolist() == [True]
        assert await limiter.erase("u") >= 2
        assert (await limiter.decide("plain", "u")).remaining == 1
        assert {"plain", "promo"} <= set(limiter._units)


async def test_an_awaited_decision_under_a_policy_with_overrides_has_a_fast_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with AsyncLimiter("memory://", policies=POLICIES, clock=ManualClock(10**15)) as limiter:
        await limiter.override("promo", "u", ["9/day", "20/week"])
        assert [(await limiter.decide("promo", one)).remaining for one in ("u", "v")] == [8, 1]
        slow = limiter._checked
        monkeypatch.setattr(limiter, "_checked", None)  # what is not on the fast path
        assert [(await limiter.decide("promo", one)).remaining for one in ("u", "v")] == [7, 0]
        monkeypatch.setattr(limiter, "_checked", slow)
        await limiter.override("promo", "v", ["4/day"])
        assert (await limiter.decide("promo", "v")).remaining == 1
        await limiter.override("promo", "u", None)
        assert (await limiter.decide("promo", "u")).remaining == 0


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_holds_in_an_outage_that_is_insured_divided_by_the_hosts(
    clock: ManualClock, algorithm: str, asynchronous: bool
) -> None:
    with Configuration("memory://", clock=clock) as configuration:
        configuration.override_many("p", {"u": ["8/day", "30/week"], "low": ["1/day"]})
        limiter, door = behind_a_door(
            Policy("p", ["4/day"], algorithm=algorithm),
            asynchronous=asynchronous,
            on_store_error=Insurance(2),
            config=configuration,
            clock=clock,
        )
        door.down = gone()
        assert limiter.peek("p", "u").remaining == 3
        many = limiter.peek_many("p", ["u", "v", "low"])
        assert (many.remaining.tolist(), many.origin) == ([3, 1, 0], "insurance")
        assert limiter.decide_many("p", ["u", "v", "low"]).allowed.tolist() == [True, True, False]
        assert limiter.decide("p", "u").allowed
        assert limiter.decide_batch([Attempt("p", "u")])[0].allowed
        assert limiter.decide_all([Attempt("p", "u"), Attempt("p", "v")]).allowed
        over = limiter.decide("p", "u")
        assert (over.allowed, over.limit, over.origin) == (False, Limit.parse("4/day"), "insurance")
        assert not limiter.decide("p", "v")
        assert not limiter.schedule("p", "low", max_wait=0)
        door.down = None
        limiter.erase("u")
        configuration.override("p", "low", ["8/day"])
        door.down = gone()
        assert limiter.peek("p", "u").remaining == 3
        assert limiter.peek("p", "low").remaining == 3
        close(limiter)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_flush_forgets_who_has_limits_of_their_own(
    clock: ManualClock, algorithm: str, asynchronous: bool
) -> None:
    policies = [Policy("p", ["2/day"], algorithm=algorithm), Policy("q", ["2/day"], algorithm=algorithm)]
    limiter = (AsyncLimiter if asynchronous else Limiter)("memory://", policies, clock=clock)

    async def said(answer: Any) -> Any:
        return await answer if asynchronous else answer

    await said(limiter.override("p", "u", ["4/day"]))
    for name in ("p", "q"):
        for subject in ("u", "v"):
            assert await said(limiter.decide(name, subject))
    assert await said(limiter.flush("p")) == 2
    left = [(await said(limiter.peek(name, "u"))).remaining for name in ("p", "q")]
    assert left == [3, 0]
    assert await said(limiter.flush("p")) == 0
    await said(limiter.close())
