"""While the store cannot answer: the caller's choice answers, and says so; it never looks like a limit's refusal."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kit.limiter import behind_a_door, close, gone

from capline import (
    Attempt,
    IdConflictError,
    Insurance,
    InvalidTypeError,
    InvalidValueError,
    Limiter,
    LimitExceeded,
    ManualClock,
    Policy,
    StoreError,
    UnknownNameError,
)
from capline.limiter.outage.outage import ASK_AGAIN_US
from capline.model.errors import (
    StoreDamagedError,
    StoreFullError,
    StoreUnavailableError,
    StoreUnknownError,
    StoreVersionError,
)

POLICY = Policy("p", ["8/day", "20/week"], by_segment={"new": ["2/day"]}, channels={"push": ["4/day"]})
START_US = 10**15


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    made: list[Any] = []

    def limiter(choice: Any, *policies: Policy, clock: ManualClock | None = None, **options: Any) -> Any:
        limiter, door = behind_a_door(
            *(policies or (POLICY,)),
            asynchronous=request.param,
            on_store_error=choice,
            clock=clock or ManualClock(START_US),
            **options,
        )
        made.append(limiter)
        return limiter, door

    yield limiter
    for one in made:
        close(one)


@pytest.mark.parametrize(("choice", "allowed"), [("allow", True), ("deny", False)])
def test_a_fixed_choice_answers_every_verb_that_decides(make: Any, choice: str, allowed: bool) -> None:
    limiter, door = make(choice)
    assert limiter.decide("p", "s").origin == "store"
    door.down = gone()
    answers = [
        limiter.decide("p", "s"),
        limiter.decide("p", "s", 2, id="x"),
        limiter.decide("p", "s", segment="new", channel="push"),
        limiter.peek("p", "s"),
        limiter.schedule("p", "s"),
        *limiter.decide_batch([Attempt("p", "s"), Attempt("p", "t", segment="new")]),
        *limiter.decide_many("p", [1, 2]),
        *limiter.peek_many("p", np.arange(2)),
    ]
    for answer in answers:
        assert (answer.allowed, answer.limit, answer.hit, answer.origin) == (allowed, None, None, "fallback")
        assert answer.retry_after_us == (0 if allowed else ASK_AGAIN_US), "None would be never"
    door.down = None
    assert limiter.decide("p", "s").origin == "store"


def test_a_wait_that_an_outage_refuses_says_so_and_when_to_ask_again(make: Any) -> None:
    limiter, door = make("deny")
    door.down = gone()
    refused = limiter.decide_all([Attempt("p", "s")])
    assert (refused.allowed, refused.retry_after, refused.origin) == (False, 1.0, "fallback")
    if isinstance(limiter, Limiter):
        with (
            pytest.raises(LimitExceeded, match=r"the store could not answer.*try again in 1 s"),
            limiter.acquire("p", "s"),
        ):
            pass


@pytest.mark.parametrize("choice", ["allow", Insurance(2)])
def test_names_that_are_first_met_in_an_outage_get_the_choice_too(make: Any, choice: Any) -> None:
    limiter, door = make(choice)
    door.down = gone()
    for answer in (
        limiter.decide("p", "s", channel="push"),
        *limiter.decide_batch([Attempt("p", "t", segment="new")]),
        *limiter.decide_many("p", ["u"], segment=["new"], codes=[0], channel="push"),
    ):
        assert answer.allowed
        assert answer.origin != "store"


def test_the_choice_to_raise_raises_in_every_verb(make: Any) -> None:
    limiter, door = make("raise")
    door.down = gone()
    for ask in (
        lambda: limiter.decide("p", "s"),
        lambda: limiter.decide("p", "s", 2),
        lambda: limiter.peek("p", "s"),
        lambda: limiter.schedule("p", "s"),
        lambda: limiter.decide_batch([Attempt("p", "s")]),
        lambda: limiter.decide_many("p", [1]),
        lambda: limiter.peek_many("p", [1]),
    ):
        with pytest.raises(StoreError, match="nobody is there"):
            ask()


@pytest.mark.parametrize("choice", ["raise", "allow", "deny", Insurance()])
def test_verbs_that_nothing_can_stand_in_for_raise_whatever_the_choice(make: Any, choice: Any) -> None:
    limiter, door = make(choice, POLICY, Policy("r", ["1/day"], reservations=True))
    hit, reserved = limiter.decide("p", "s").hit, limiter.reserve("r", "s").hit
    door.down = gone()
    for ask in (
        lambda: limiter.refund("p", "s", hit),
        lambda: limiter.charge("p", "s", 2),
        lambda: limiter.settle("p", "s", hit, 2),
        lambda: limiter.commit("r", "s", reserved),
        lambda: limiter.cancel("r", "s", reserved),
        lambda: limiter.usage("p", "s"),
        lambda: limiter.flush("p"),
        lambda: limiter.refund_many("p", ["s"], [hit]),
        lambda: limiter.erase("s"),
        lambda: limiter.explain("p", "s"),
        limiter.sweep,
    ):
        with pytest.raises(StoreError, match="nobody is there"):
            ask()


@pytest.mark.parametrize("choice", ["allow", "deny", Insurance()])
@pytest.mark.parametrize("asked", [{"policy": "?"}, {"segment": "?"}, {"subject": ""}, {"cost": -1}, {"id": ""}])
def test_what_the_caller_did_wrong_is_no_outage(make: Any, choice: Any, asked: dict[str, Any]) -> None:
    limiter, door = make(choice)
    door.down = gone()
    values: dict[str, Any] = {"policy": "p", "subject": "s"} | asked
    for verb in (limiter.decide, limiter.peek, limiter.schedule):
        with pytest.raises(ValueError):
            verb(**values)
    [answer] = limiter.decide_batch([Attempt(**values)])
    assert isinstance(answer, ValueError)


@pytest.mark.parametrize("error", [StoreUnavailableError("x"), StoreFullError("x"), StoreUnknownError("x")])
def test_a_store_that_cannot_answer_now_is_an_outage(make: Any, error: StoreError) -> None:
    limiter, door = make("deny")
    door.down = error
    assert limiter.decide("p", "s").origin == "fallback"


@pytest.mark.parametrize("choice", ["allow", "deny", Insurance()])
@pytest.mark.parametrize("error", [StoreDamagedError("x"), StoreVersionError("x")])
def test_nothing_is_admitted_on_a_log_that_is_damaged_whatever_the_choice(
    make: Any, choice: Any, error: StoreError
) -> None:
    limiter, door = make(choice)
    limiter.decide("p", "s")
    door.down = error
    for verb in (limiter.decide, limiter.peek, limiter.schedule):
        with pytest.raises(type(error)):
            verb("p", "s")


def test_items_that_the_store_could_not_answer_get_the_choice_and_no_other(make: Any) -> None:
    attempts = [Attempt("p", "a"), Attempt("p", "b"), Attempt("p", ""), Attempt("p", "c", 2, "x"), Attempt("p", "b")]
    for choice, told in (("allow", "fallback"), ("deny", "fallback"), (Insurance(2), "insurance")):
        limiter, door = make(choice)
        limiter.decide("p", "c", 1, "x")
        door.lost = {"b"}
        answers = limiter.decide_batch(attempts)
        assert [getattr(answer, "origin", type(answer).__name__) for answer in answers] == [
            "store",
            told,
            "InvalidValueError",
            "IdConflictError",
            told,
        ]
    limiter, door = make("raise")
    door.lost = {"b"}
    answers = limiter.decide_batch(attempts)
    assert [type(answer).__name__ for answer in answers] == [
        "Decision",
        "StoreUnknownError",
        "InvalidValueError",
        "Decision",
        "StoreUnknownError",
    ]


@pytest.mark.parametrize("array", [False, True])
def test_rows_that_the_store_could_not_answer_get_the_choice_and_their_origin(make: Any, array: bool) -> None:
    ids: Any = [5, -1, 6, 7, 6]
    subjects = np.array(ids) if array else ids
    codes, names = [0, 0, 1, 1, 0], [None, "new"]
    limiter, door = make("allow")
    door.lost = {6}
    many = limiter.decide_many("p", subjects, segment=names, codes=codes)
    assert many.allowed.tolist() == [True, False, True, True, True]
    assert sorted(many.errors) == [1]
    assert (many.origin, many.origins) == ("store", {2: "fallback", 4: "fallback"})
    assert [many[row].origin for row in (0, 2, 3, 4)] == ["store", "fallback", "store", "fallback"]
    assert (many[2].limit, many[2].hit) == (None, None)

    limiter, door = make(Insurance(2))
    door.lost = {6}
    many = limiter.decide_many("p", subjects, segment=names, codes=codes)
    assert many.origins == {2: "insurance", 4: "insurance"}
    assert (str(many[2].limit), many[2].remaining, many[2].hit) == ("1/day", 0, None)
    assert (str(many[4].limit), many[4].remaining) == ("4/day", 2)
    assert str(many[3].limit) == "2/day"
    peeked = limiter.peek_many("p", subjects, segment=names, codes=codes)
    assert (peeked[2].allowed, peeked[4].remaining) == (False, 1)
    assert limiter.peek_many("p", subjects, segment=names, codes=codes)[4].remaining == 1

    limiter, door = make("raise")
    door.lost = {6}
    many = limiter.decide_many("p", subjects, segment=names, codes=codes)
    assert (sorted(many.errors), many.origins) == ([1, 2, 4], {})
    assert isinstance(many.errors[4], StoreUnknownError)


def test_a_batch_of_names_that_were_never_met_raises_as_any_other(tmp_path: Path) -> None:
    for met in (True, False):
        limiter = Limiter(f"lmdb://{tmp_path}", [POLICY])
        if met:
            limiter.decide("p", "s")
        limiter.close()
        with pytest.raises(StoreError, match="closed"):
            limiter.decide_batch([Attempt("p", "s")])


# --- insurance --------------------------------------------------------------------------------------------------------


def test_insured_limits_are_the_quota_divided_by_the_hosts_rounded_down(make: Any) -> None:
    limiter, door = make(Insurance(hosts=3))
    door.down = gone()
    answers = [limiter.decide("p", "s") for _ in range(3)]
    assert [bool(answer) for answer in answers] == [True, True, False]
    assert [answer.origin for answer in answers] == ["insurance"] * 3
    assert [answer.hit for answer in answers] == [None] * 3
    assert str(answers[2].limit) == "2/day"
    refused = limiter.decide("p", "other", segment="new")
    assert (refused.allowed, refused.limit, refused.retry_after, refused.origin) == (False, None, 1.0, "fallback")
    assert limiter.decide("p", "third", channel="push")
    assert str(limiter.decide("p", "third", channel="push").limit) == "1/day"


def test_what_fits_no_share_is_refused_by_the_outage_and_not_for_ever(make: Any) -> None:
    """Its share of 3/day is nothing: that says when to ask again, and shows no client a quota of 0."""
    limiter, door = make(Insurance(hosts=8), Policy("p", ["3/day"]), Policy("wide", ["16/day"]))
    door.down = gone()
    many = limiter.decide_many("p", ["s"])
    assert (many.allowed[0], many.retry_after_us[0], many.limit_index[0]) == (False, 1_000_000, -1)
    parts = [Attempt("p", "s"), Attempt("wide", "s")]
    refused = [verb("p", "s") for verb in (limiter.decide, limiter.peek, limiter.schedule)]
    refused += [limiter.decide("wide", "s", 3), limiter.decide_all(parts), limiter.schedule_all(parts)]
    for answer in refused:
        assert (answer.allowed, answer.limit, answer.retry_after, answer.origin) == (False, None, 1.0, "fallback")
    assert refused[0].headers("draft-11") == refused[0].headers("legacy") == {"Retry-After": "1"}
    assert limiter.decide("wide", "s").headers("draft-11")["RateLimit"].startswith('"wide-day";r=1;')


@pytest.mark.parametrize("hosts", [1, 2, 3, 5, 8])
def test_all_hosts_together_never_admit_more_than_the_quota_in_an_outage(hosts: int) -> None:
    clock = ManualClock(START_US)
    limiters = [behind_a_door(POLICY, on_store_error=Insurance(hosts), clock=clock) for _ in range(hosts)]
    for _, door in limiters:
        door.down = gone()
    allowed = sum(bool(limiter.decide("p", "s")) for _ in range(9) for limiter, _ in limiters)
    assert allowed == 8 // hosts * hosts <= 8
    for limiter, _ in limiters:
        limiter.close()


def test_insurance_keeps_time_ids_and_slots(make: Any) -> None:
    clock = ManualClock(START_US)
    limiter, door = make(Insurance(8), Policy("p", ["8/day"]), clock=clock)
    door.down = gone()
    assert limiter.peek("p", "s")
    assert limiter.decide("p", "s", 1, "x")
    assert limiter.decide("p", "s", 1, "x")
    assert not limiter.decide("p", "s")
    with pytest.raises(IdConflictError):
        limiter.decide("p", "s", 2, "x")
    [conflict] = limiter.decide_batch([Attempt("p", "s", 2, "x")])
    assert isinstance(conflict, IdConflictError)
    slot = limiter.schedule("p", "s")
    assert (slot.wait, slot.hit, slot.origin) == (86_400.0, None, "insurance")
    assert not limiter.schedule("p", "s", max_wait=1)
    assert limiter.schedule("p", "another", not_before=60).wait == 60.0
    clock.advance_us(2 * 86_400_000_000)
    assert limiter.decide("p", "s")


def test_insured_answers_come_from_the_policies_in_force(make: Any) -> None:
    limiter, door = make(Insurance(2))
    door.down = gone()
    assert [bool(limiter.decide("p", "s")) for _ in range(5)] == [True] * 4 + [False]
    limiter.use([Policy("p", ["12/day"]), Policy("q", ["2/day"], channels={"sms": ["2/day"]})])
    assert [bool(limiter.decide("p", "s")) for _ in range(3)] == [True, True, False]
    assert limiter.decide("q", "s", channel="sms")
    with pytest.raises(UnknownNameError):
        limiter.decide("p", "s", channel="push")


def test_a_subject_that_is_erased_is_erased_from_the_insurance_too(make: Any) -> None:
    limiter, door = make(Insurance(8))
    door.down = gone()
    limiter.decide("p", "s")
    assert not limiter.decide("p", "s")
    with pytest.raises(StoreError):
        limiter.erase("s")
    assert limiter.decide("p", "s")


def test_a_batch_that_is_repeated_under_its_receipt_errs_towards_refusing(make: Any) -> None:
    limiter, door = make(Insurance(8))
    door.down = gone()
    assert limiter.decide_many("p", [1, 2], receipt="r").allowed.tolist() == [True, True]
    assert limiter.decide_many("p", [1, 2], receipt="r").allowed.tolist() == [False, False]


def test_nothing_of_an_outage_is_left_in_the_store(make: Any) -> None:
    limiter, door = make(Insurance(1))
    door.down = gone()
    assert limiter.decide("p", "s")
    door.down = None
    answer = limiter.decide("p", "s")
    assert (answer.origin, answer.remaining) == ("store", 7)


def test_policies_for_a_server_alone_are_insured_too(make: Any) -> None:
    shared: dict[str, Any] = {"wait_replicas": 2, "layout": "bucket", "population": 50, "log": "l"}
    limiter, door = make(Insurance(8), Policy("a", ["8/day"], **shared), Policy("b", ["16/day"], **shared))
    door.down = gone()
    assert limiter.decide("a", "s")
    assert [bool(limiter.decide("b", "s")) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("hosts", [0, -1, 1_000_001, True, 1.0, "8", None])
def test_a_number_of_hosts_that_cannot_be_one(hosts: Any) -> None:
    with pytest.raises((InvalidValueError, InvalidTypeError), match="hosts"):
        Insurance(hosts)


@pytest.mark.parametrize("choice", ["shrug", None, ["raise"], 5, Insurance])
def test_a_choice_that_there_is_not(choice: Any) -> None:
    with pytest.raises(InvalidValueError, match="on_store_error is one of raise, allow, deny, or Insurance"):
        Limiter("memory://", [POLICY], on_store_error=choice)


# --- calendars, quiet hours, other algorithms, several subjects ---------------------------------------------------

MIDNIGHT_US = START_US - START_US % 86_400_000_000


def test_insured_quiet_hours_stay_and_calendar_quotas_are_divided(make: Any) -> None:
    policy = Policy("p", ["8/calendar-day", "20/calendar-week", "not between 01:00 and 08:00"], zone="Asia/Tokyo")
    clock = ManualClock(MIDNIGHT_US + 2 * 3_600_000_000)
    limiter, door = make(Insurance(4), policy, clock=clock)
    door.down = gone()
    answers = [limiter.decide("p", "s") for _ in range(3)]
    assert [bool(one) for one in answers] == [True, True, False]
    assert {(str(one.limit), one.origin) for one in answers} == {("2/calendar-day", "insurance")}
    quiet = limiter.decide("p", "t", zone="UTC")
    assert (quiet.allowed, str(quiet.limit), quiet.retry_after) == (False, "not between 01:00 and 08:00", 6 * 3600.0)
    many = limiter.decide_many("p", ["a", "b"], zone=[None, "UTC"], codes=[0, 1])
    assert (many.allowed.tolist(), many.origin) == ([True, False], "insurance")
    clock.advance_us(13 * 3_600_000_000 - 1)
    assert not limiter.decide("p", "s")
    clock.advance_us(1)  # midnight in Tokyo
    assert limiter.decide("p", "s")


@pytest.mark.parametrize("algorithm", ["bucketed", "sliding_counter", "gcra"])
def test_insured_limits_are_of_the_policys_algorithm(make: Any, algorithm: str) -> None:
    clock = ManualClock(MIDNIGHT_US)
    policy = Policy("p", ["40/h"], algorithm=algorithm)
    limiter, door = make(Insurance(10), policy, clock=clock)
    with Limiter("memory://", [policy.having(limits=["4/h"])], clock=clock) as alone:
        door.down = gone()
        for step in range(30):
            insured, own = limiter.decide("p", "s"), alone.decide("p", "s")
            assert (insured.allowed, insured.retry_after_us) == (own.allowed, own.retry_after_us)
            clock.advance_us(300_000_007 + step)


def test_insured_refusals_count_where_refusals_do(make: Any) -> None:
    clock = ManualClock(MIDNIGHT_US)
    limiter, door = make(Insurance(2), Policy("p", ["2/10s"], count_denied=True), clock=clock)
    door.down = gone()
    assert limiter.decide("p", "s")
    for _ in range(3):
        clock.advance_us(9_000_000)
        assert not limiter.decide("p", "s")


@pytest.mark.parametrize("hosts", [1, 2, 3, 7, 11, 64, 999_983])
@pytest.mark.parametrize(
    ("limits", "options"),
    [
        (["10000000/day"], {"algorithm": "gcra"}),
        (["1000000/h", "7/11us", "1/3660 days"], {"algorithm": "gcra"}),
        (["9007199254740991/us"], {"algorithm": "gcra"}),
        (["86400000000/day"], {"algorithm": "gcra"}),
        (["5/2 weeks"], {"algorithm": "bucketed", "granularity": "1 week"}),
        (["5/week", "not between 22:00 and 08:00"], {"algorithm": "bucketed", "granularity": "3 days"}),
    ],
)
def test_every_policy_can_be_insured_by_any_number_of_hosts(
    limits: list[str], options: dict[str, Any], hosts: int
) -> None:
    policy = Policy("p", limits, **options)
    limiter, door = behind_a_door(policy, on_store_error=Insurance(hosts), clock=ManualClock(START_US))
    door.down = gone()
    shares = limiter._outage._insurer._rules.policy("p").limits
    for limit in shares:
        whole = next(one.quota for one in policy.limits if one.window_us == limit.window_us)
        assert limit.quota * hosts <= whole
        if policy.algorithm == "gcra":
            assert limit.quota * hosts >= whole * 0.9 - hosts * 10 or whole < hosts * 100
    least = min(limit.quota for limit in shares)
    assert limiter.decide("p", "s").origin in (("insurance",) if least else ("insurance", "fallback"))
    limiter.close()


@pytest.mark.parametrize("choice", ["allow", "deny", Insurance(2)])
@pytest.mark.parametrize("met", [False, True])
def test_a_joint_attempt_gets_the_choice_too(make: Any, choice: Any, met: bool) -> None:
    parts = [Attempt("p", "s"), Attempt("q", "t", segment="new")]
    limiter, door = make(choice, POLICY, Policy("q", ["9/day"], by_segment={"new": ["2/day"]}))
    if met:
        assert limiter.peek_all(parts).origin == "store"
    door.down = gone()
    answers = [limiter.peek_all(parts), limiter.decide_all(parts), limiter.decide_all(parts)]
    if isinstance(choice, Insurance):
        assert [bool(one) for one in answers] == [True, True, False]
        assert (answers[2].binds, str(answers[2].limit)) == (1, "1/day")
    else:
        assert {one.allowed for one in answers} == {choice == "allow"}
        assert {one.limit for one in answers} == {None}
    assert {(one.hits, one.origin) for one in answers} == {
        ((), "insurance" if isinstance(choice, Insurance) else "fallback")
    }
    door.down = None
    assert limiter.decide_all(parts).remaining == 1, "nothing of the outage is in the store"


def test_a_joint_attempt_raises_where_that_is_the_choice(make: Any) -> None:
    limiter, door = make("raise")
    door.down = gone()
    for verb in (limiter.decide_all, limiter.peek_all):
        with pytest.raises(StoreError, match="nobody is there"):
            verb([Attempt("p", "s")])


def test_limits_that_come_with_an_attempt_are_insured_with_the_others(make: Any) -> None:
    parts = [Attempt("p", "s"), Attempt("free", "s", limits=["4/day"])]
    limiter, door = make(Insurance(2))
    door.down = gone()
    answers = [limiter.decide_all(parts), *limiter.decide_batch(parts[1:]), limiter.decide_all(parts)]
    assert [bool(one) for one in answers] == [True, True, False]
    assert (str(answers[2].limit), answers[2].binds, answers[2].origin) == ("2/day", 1, "insurance")
    assert not limiter.decide("free", "s", limits=["4/day"]), "it counts what the parts of an attempt consumed"


@pytest.mark.parametrize(("choice", "allowed"), [("allow", True), ("deny", False), (Insurance(hosts=4), True)])
def test_a_reservation_is_answered_by_the_choice_with_nothing_to_commit(make: Any, choice: Any, allowed: bool) -> None:
    limiter, door = make(choice, Policy("r", ["8/day"], reservations=True))
    door.down = gone()
    answer = limiter.reserve("r", "s", ttl=5)
    assert (answer.allowed, answer.origin) == (allowed, "insurance" if isinstance(choice, Insurance) else "fallback")
    door.down = None
    assert limiter.commit("r", "s", answer.hit) is False
    assert limiter.usage("r", "s")[0].used == 0
