"""The specification itself, held to the sentence that defines it: sum the units in the window, add the cost."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.profiles import size

from capline import Decision, Limit
from capline.model.policy import BoundPolicy, LogLimits
from capline.window.bound_log import draft_logs
from capline.window.log import Hit, Log, give_back
from capline.window.rule import Slot, move, step

stamps = st.lists(st.integers(0, 60), max_size=12, unique=True).map(sorted)
limits = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 40)), min_size=1, max_size=3, unique_by=lambda pair: pair[1]
).map(lambda pairs: tuple(Limit(*pair) for pair in pairs))


@st.composite
def logs(draw: st.DrawFn) -> Log:
    hits = tuple(Hit(stamp, draw(st.integers(0, 4))) for stamp in draw(stamps))
    return Log(hits, hits[-1].stamp_us if hits else 0)


def rule_of(bounds: tuple[Limit, ...]) -> BoundPolicy:
    return BoundPolicy("p", (LogLimits("log", bounds, max(limit.window_us for limit in bounds)),))


def judge(log: Log, bounds: tuple[Limit, ...], cost: int, now_us: int) -> Decision:
    return step((log,), rule_of(bounds), cost, now_us)[1]


def fits(log: Log, bounds: tuple[Limit, ...], cost: int, at_us: int) -> bool:
    """The rule, word for word."""
    return all(
        sum(hit.units for hit in log.hits if at_us - limit.window_us < hit.stamp_us <= at_us) + cost <= limit.quota
        for limit in bounds
    )


@settings(max_examples=size(60, 600))
@given(logs(), limits, st.integers(1, 6), st.integers(0, 40))
def test_a_verdict_is_the_rule_word_for_word_and_retry_after_is_the_first_instant_it_holds(
    log: Log, bounds: tuple[Limit, ...], cost: int, later_us: int
) -> None:
    now_us = log.high_water_us + later_us
    stamp_us = now_us if now_us > log.newest_us() and log.free_stamp(now_us) == now_us else now_us + 1
    decision = judge(log, bounds, cost, now_us)
    assert decision.allowed == fits(log, bounds, cost, stamp_us)
    if decision.allowed:
        assert decision.hit == stamp_us
        assert decision.remaining == min(
            limit.quota - cost - sum(hit.units for hit in log.hits if hit.stamp_us > stamp_us - limit.window_us)
            for limit in bounds
        )
    elif any(cost > limit.quota for limit in bounds):
        assert decision.retry_after_us is None
    else:
        first_us = next(at for at in range(stamp_us, 1000) if fits(log, bounds, cost, at))
        assert decision.retry_after_us == first_us - now_us
        assert not judge(log, bounds, cost, first_us - 1)
        assert judge(log, bounds, cost, first_us)
        assert decision.limit in bounds
        assert not fits(log, (decision.limit,), cost, first_us - 1)


@settings(max_examples=size(60, 600))
@given(logs(), limits, st.integers(0, 60), st.integers(0, 40))
def test_a_look_of_no_cost_is_told_the_first_instant_that_it_is_allowed_behind_slots_too(
    log: Log, bounds: tuple[Limit, ...], ahead_us: int, later_us: int
) -> None:
    now_us = max(0, log.high_water_us - ahead_us) + later_us
    log = Log(log.hits, min(log.high_water_us, now_us))
    decision = judge(log, bounds, 0, now_us)
    first_us = next(at for at in range(now_us, 1000) if at >= log.newest_us() and fits(log, bounds, 0, at))
    assert (decision.allowed, decision.retry_after_us) == (first_us == now_us, first_us - now_us)


@settings(max_examples=size(60, 600))
@given(logs(), limits, st.integers(0, 3), st.integers(0, 20), st.integers(0, 4), st.integers(0, 12))
def test_retry_after_is_the_first_instant_that_is_allowed_behind_slots_kept_or_given_back(
    log: Log, bounds: tuple[Limit, ...], cost: int, later_us: int, kept: int, given_back: int
) -> None:
    now_us = log.high_water_us + later_us
    slots = [Hit(now_us + at_us, 1) for at_us in range(1, kept + 1)]
    slots += [Hit(now_us + kept + at_us, 0) for at_us in range(1, given_back + 1)]
    log = Log((*log.hits, *slots), log.high_water_us)
    decision = judge(log, bounds, cost, now_us)
    if all(cost <= limit.quota for limit in bounds):
        first_us = next(at for at in range(now_us, 1000) if judge(log, bounds, cost, at))
        assert decision.retry_after_us == first_us - now_us


attempts = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), min_size=1, max_size=40)


@settings(max_examples=size(60, 600))
@given(logs(), limits, st.integers(0, 3), st.lists(st.integers(0, 9), min_size=3, max_size=3), st.integers(0, 40))
def test_what_must_stay_free_is_judged_with_the_cost_and_neither_recorded_nor_left_out(
    log: Log, bounds: tuple[Limit, ...], cost: int, kept: list[int], later_us: int
) -> None:
    now_us = log.high_water_us + later_us
    rule = rule_of(bounds).keeping(kept[: len(bounds)])
    less = tuple(
        Limit(limit.quota - units, limit.window_us)
        for limit, units in zip(bounds, kept, strict=False)
        if units <= limit.quota
    )
    (after,), decision = step((log,), rule, cost, now_us)
    if len(less) < len(bounds):
        assert (decision.allowed, decision.retry_after_us, after) == (False, None, log)
        return
    plain = judge(log, less, cost, now_us)
    assert (decision.allowed, decision.retry_after_us, decision.hit) == (
        plain.allowed,
        plain.retry_after_us,
        plain.hit,
    )
    if decision.allowed:
        assert step((log,), rule_of(bounds), cost, now_us) == ((after,), decision), "nothing but the verdict differs"
    else:
        assert after == log
        at_us = max(now_us, log.newest_us() + 1) if cost else now_us
        assert decision.remaining == max(
            0,
            min(
                limit.quota - sum(hit.units for hit in log.hits if hit.stamp_us > at_us - limit.window_us)
                for limit in bounds
            ),
        )


@settings(max_examples=size(40, 300))
@given(limits, attempts)
def test_no_window_ever_holds_more_than_its_quota_and_every_refusal_was_due(
    bounds: tuple[Limit, ...], script: list[tuple[int, int]]
) -> None:
    rule = rule_of(bounds)
    (log,), now_us, admitted = (Log(),), 100, list[Hit]()
    for gap_us, cost in script:
        now_us += gap_us
        (log,), decision = step((log,), rule, cost, now_us)
        whole = Log(tuple(admitted))
        at_us = decision.hit if decision.hit is not None else max(now_us, whole.newest_us() + 1)
        assert decision.allowed == fits(whole, bounds, cost, at_us)
        if decision.hit is not None:
            admitted.append(Hit(decision.hit, cost))
    for limit in bounds:
        for end in admitted:
            inside = [hit.units for hit in admitted if end.stamp_us - limit.window_us < hit.stamp_us <= end.stamp_us]
            assert sum(inside) <= limit.quota


@settings(max_examples=size(40, 300))
@given(limits.filter(lambda bounds: all(limit.quota for limit in bounds)), attempts)
def test_slots_never_overfill_a_window_and_come_in_order_of_arrival(
    bounds: tuple[Limit, ...], script: list[tuple[int, int]]
) -> None:
    rule = rule_of(bounds)
    (log,), now_us, taken = (Log(),), 100, list[Hit]()
    for gap_us, cost in script:
        now_us += gap_us
        (log,), slot = step((log,), rule, cost, now_us, slot=Slot())
        if slot.hit is None:
            assert any(cost > limit.quota for limit in bounds)
            continue
        assert slot.hit >= now_us
        assert not taken or slot.hit > taken[-1].stamp_us
        assert fits(Log(tuple(taken)), bounds, cost, slot.hit)
        taken.append(Hit(slot.hit, cost))


turns = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 3), st.integers(0, 20)), min_size=4, max_size=40)


@settings(max_examples=size(60, 600))
@given(limits.filter(lambda bounds: all(limit.quota for limit in bounds)), turns)
def test_a_slot_moves_to_the_first_free_instant_behind_all_who_wait_in_front_of_it(
    bounds: tuple[Limit, ...], script: list[tuple[int, int, int]]
) -> None:
    rule = rule_of(bounds)
    log, now_us, queue = Log(), 100, list[Hit]()
    for gap_us, cost, pick in script:
        now_us += gap_us
        place = pick // 3 % len(queue) if queue else 0
        if not queue or pick % 3 == 0:
            (log,), slot = step((log,), rule, cost, now_us, slot=Slot())
            queue += [] if slot.hit is None else [Hit(slot.hit, cost)]
        elif pick % 3 == 1:
            log, done = give_back(log, queue[place].stamp_us, queue[place].units)
            del queue[place : place + done]
        else:
            front, asked = Log(tuple(queue[:place])), queue[place]
            time_us, taken = max(now_us, log.high_water_us), {hit.stamp_us for hit in log.hits}
            free = (
                at
                for at in range(max(time_us, front.newest_us() + 1), asked.stamp_us)
                if at not in taken and fits(front, bounds, asked.units, at)
            )
            expected_us = next(free, asked.stamp_us)
            [draft], bound_logs = draft_logs((log,), rule, 1, now_us)
            slot, log = move(bound_logs, asked.stamp_us, now_us), draft.log
            gone = asked.stamp_us <= time_us - rule.logs[0].retention_us
            assert slot.hit == (None if gone else expected_us)
            queue[place] = Hit(expected_us, asked.units)
        assert sorted(queue, key=lambda hit: hit.stamp_us) == queue
        assert all(fits(Log(tuple(queue[:end])), bounds, hit.units, hit.stamp_us) for end, hit in enumerate(queue))
    assert len({hit.stamp_us for hit in log.hits}) == len(log.hits)
