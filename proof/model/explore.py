"""The states of the model, and the way through them, breadth first: the first broken promise has the shortest story.

A state is the time, the log, what was told, what is left to happen, and what each caller has left and holds. Callers
are alike, so states that differ by who is who are one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from capline.window.log import Log
from proof.model.promises import (
    BrokenPromiseError,
    Tolds,
    check_charge,
    check_content,
    check_decide,
    check_refund,
    check_settle,
    check_slot,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proof.model.rule import Rule

__all__ = ["DEBITS", "LONG", "SHORT", "START_US", "Result", "Scope", "explore"]

START_US = 100


@dataclass(frozen=True)
class Scope:
    """How far the exploration goes: it is whole within this.

    `calls` are those of each caller; `moves` are steps of the clock, of which `back` may be by one microsecond back.
    `charges` and `settled` are the units that are charged, and that hits without an id are settled at.
    """

    limits: tuple[tuple[int, int], ...]
    calls: tuple[int, ...] = (2, 2, 2)
    moves: int = 3
    back: int = 1
    costs: tuple[int, ...] = (1,)
    max_waits_us: tuple[int | None, ...] = (None,)
    charges: tuple[int, ...] = ()
    settled: tuple[int, ...] = ()


ONE, TWO = ((2, 3),), ((1, 2), (2, 5))
SHORT = (
    Scope(ONE, (1, 1, 2), moves=2),
    Scope(ONE, (1, 1, 1), moves=2, costs=(1, 2)),
    Scope(TWO, (1, 1, 2), moves=2, costs=(1, 2), max_waits_us=(1,)),
)
"""Enough to find every fault of `faults.py`."""
DEBITS = Scope(ONE, (1, 2), moves=1, charges=(3,), settled=(0, 3))
"""The same for the faults in charges and settlements."""
LONG = (
    Scope(ONE, (1, 1, 3), moves=2, back=2),
    Scope(ONE, (2, 2, 2), moves=2, max_waits_us=(None, 2)),
    Scope(TWO, (1, 2, 2), moves=2, costs=(1, 2), max_waits_us=(1,)),
    Scope(((3, 4),), (1, 1, 2), moves=2, costs=(1, 3)),
    Scope(ONE, (1, 3), moves=2, charges=(3,), settled=(0, 3)),
    Scope(TWO, (1, 1, 2), moves=2, max_waits_us=(1,), charges=(1, 6), settled=(0, 3)),
)


class Caller(NamedTuple):
    """Calls left; hits held, each given back perhaps more than once; the id of an attempt that may be asked again."""

    calls: int
    held: tuple[int, ...] = ()
    id: str = ""
    cost: int = 0


class State(NamedTuple):
    """One state."""

    now_us: int
    log: Log
    tolds: Tolds
    callers: tuple[Caller, ...]
    moves: int
    back: int
    ids: int = 0


class Result(NamedTuple):
    """Whether every promise is kept in every state; where not, the number of the first one broken, and the story."""

    states: int
    steps: int
    promise: int | None = None
    story: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.promise is None


def explore(rule: Rule, scope: Scope) -> Result:
    """Go through every state within the scope."""
    callers = tuple(Caller(calls) for calls in sorted(scope.calls))
    first = State(START_US, Log(), Tolds(), callers, scope.moves, scope.back)
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    waiting, steps = deque([first]), 0
    while waiting:
        state = waiting.popleft()
        moves = _moves(rule, scope, state)
        try:
            for what, after in moves:
                steps += 1
                if after not in came_from:
                    came_from[after] = state, what
                    waiting.append(after)
        except BrokenPromiseError as error:
            return Result(len(came_from), steps, error.promise, (*_story(came_from, state), str(error)))
    return Result(len(came_from), steps)


def _story(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    story: list[str] = []
    step = came_from[state]
    while step is not None:
        story.append(step[1])
        step = came_from[step[0]]
    return story[::-1]


def _moves(rule: Rule, scope: Scope, state: State) -> Iterator[tuple[str, State]]:
    """Everything that may happen next."""
    now_us, log = state.now_us, state.log
    if state.moves:
        for step_us in (1, rule.retention_us - 1, 2 * rule.retention_us):
            yield f"time + {step_us}", state._replace(now_us=now_us + step_us, moves=state.moves - 1)
        if state.back:
            yield "time - 1", state._replace(now_us=now_us - 1, moves=state.moves - 1, back=state.back - 1)
    swept = rule.sweep(log, now_us)
    if swept != log:
        check_content(rule, swept, state.tolds, now_us)
        yield "sweep", state._replace(log=swept)
    seen: set[Caller] = set()
    for number, caller in enumerate(state.callers):
        if caller.calls and caller not in seen:  # callers that are alike do alike
            seen.add(caller)
            yield from _calls(rule, scope, state, number)


def _calls(rule: Rule, scope: Scope, state: State, number: int) -> Iterator[tuple[str, State]]:
    now_us, log, tolds, caller = state.now_us, state.log, state.tolds, state.callers[number]
    for cost in scope.costs:
        after, decision = rule.decide(log, cost, now_us)
        told = check_decide(rule, log, after, tolds, cost, "", now_us, decision)
        yield f"{cost} at {now_us}: {_said(decision)}", _next(rule, state, number, after, told, decision.hit)
        for max_wait_us in scope.max_waits_us:
            after, decision = rule.slot(log, cost, now_us, max_wait_us)
            told = check_slot(rule, log, after, tolds, cost, max_wait_us, now_us, decision)
            yield (
                f"slot of {cost} at {now_us}: {_said(decision)}",
                _next(rule, state, number, after, told, decision.hit),
            )
        if not caller.id:
            yield from _with_id(rule, state, number, f"id{state.ids}", cost)
    if caller.id:
        yield from _with_id(rule, state, number, caller.id, caller.cost)
    for stamp_us in caller.held:
        if any(hit.stamp_us == stamp_us for hit in tolds.hits):
            after, done = rule.refund(log, stamp_us, now_us)
            told = check_refund(rule, tolds, stamp_us, now_us, done=done)
            yield f"refund of {stamp_us} at {now_us}: {done}", _next(rule, state, number, after, told, None)
            for cost in scope.settled if _is_anonymous(tolds, stamp_us) else ():
                after, done = rule.settle(log, stamp_us, cost, now_us)
                told = check_settle(rule, tolds, stamp_us, cost, now_us, done=done)
                yield f"{stamp_us} settled at {cost} at {now_us}: {done}", _next(rule, state, number, after, told, None)
    for cost in scope.charges:
        after, decision = rule.charge(log, cost, now_us)
        told = check_charge(tolds, cost, now_us, decision)
        yield f"charge of {cost} at {now_us}: {_said(decision)}", _next(rule, state, number, after, told, decision.hit)
    _check_batch(rule, state)


def _is_anonymous(tolds: Tolds, stamp_us: int) -> bool:
    return any(hit.stamp_us == stamp_us and not hit.id for hit in tolds.hits)


def _with_id(rule: Rule, state: State, number: int, attempt_id: str, cost: int) -> Iterator[tuple[str, State]]:
    """An attempt with an id, or one more time; the caller may ask again as long as it has calls."""
    now_us, log = state.now_us, state.log
    after, decision = rule.decide(log, cost, now_us, attempt_id)
    told = check_decide(rule, log, after, state.tolds, cost, attempt_id, now_us, decision)
    new = attempt_id != state.callers[number].id
    reached = _next(rule, state, number, after, told, decision.hit, attempt_id, cost)
    yield f"{cost} at {now_us} as {attempt_id}: {_said(decision)}", reached._replace(ids=state.ids + new)


def _next(
    rule: Rule, state: State, number: int, log: Log, tolds: Tolds, hit: int | None, attempt_id: str = "", cost: int = 0
) -> State:
    check_content(rule, log, tolds, state.now_us)
    caller = state.callers[number]
    held = caller.held if hit is None or hit in caller.held else (*caller.held, hit)
    caller = Caller(caller.calls - 1, held, attempt_id or caller.id, cost or caller.cost)
    callers = (*state.callers[:number], caller, *state.callers[number + 1 :])
    return state._replace(log=log, tolds=tolds, callers=tuple(sorted(callers)))


def _check_batch(rule: Rule, state: State) -> None:
    """Two attempts in one step are the two, one after the other."""
    after, decisions = rule.batch(state.log, (1, 1), state.now_us)
    once, first = rule.decide(state.log, 1, state.now_us)
    twice, second = rule.decide(once, 1, state.now_us)
    if after != twice or decisions != [first, second]:
        raise BrokenPromiseError(6, f"a batch of two at {state.now_us} is not the two: {decisions}")


def _said(decision: object) -> str:
    hit, after_us = getattr(decision, "hit", None), getattr(decision, "retry_after_us", None)
    return f"granted {hit}" if hit is not None else f"refused for {after_us}"
