"""Attempts over two subjects, all or nothing, in every order with single ones, a stepping clock and lost answers.

Two logs under the same limits; callers ask for a unit of the first, of the second, or of both, each time new or once
more with the same id. What was told is kept for each log apart, and every answer is judged by that alone: a joint
attempt has to be what an attempt for each part would be at the same now, and is allowed only where all of them are.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from capline.window.joint import joint
from capline.window.log import Draft, Log
from proof.model.explore import START_US, Result
from proof.model.promises import BrokenPromiseError, Tolds, check_content
from proof.model.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["FAULTS", "JOINT_LONG", "JOINT_SHORT", "JointRule", "JointScope", "explore_joint"]

Pair = tuple[Log, Log]


class JointScope(NamedTuple):
    """How far the exploration goes: so many calls, and steps of the clock, of which some are back by one window."""

    limits: tuple[tuple[int, int], ...] = ((2, 3),)
    calls: int = 4
    moves: int = 3
    back: int = 1


JOINT_SHORT = JointScope(calls=3, moves=2)
"""Enough to find every fault."""
JOINT_LONG = JointScope()


class JointRule(Rule):
    """`capline.window` for attempts over two logs."""

    def decide_all(self, logs: Pair, parts: Sequence[int], ids: Sequence[str], now_us: int) -> tuple[Pair, list[int]]:
        """One unit of each of these logs, or of none; the hits, empty if refused."""
        opened = {part: self._bound_logs(logs[part], 1) for part in parts}
        marks = [int(one[2:]) + 1 if one else 0 for one in ids]
        _, hits = joint([opened[part][1] for part in parts], now_us, marks)
        first, second = (opened[part][0].log if part in opened else logs[part] for part in (0, 1))
        return (first, second), hits


class TrimsByTheLatest(JointRule):
    """Each log loses what is out of the window at the latest time of any part."""

    def decide_all(self, logs: Pair, parts: Sequence[int], ids: Sequence[str], now_us: int) -> tuple[Pair, list[int]]:
        latest_us = max([now_us, *(logs[part].high_water_us for part in parts)])
        drafts = [Draft(log) for log in logs]
        for part in parts:
            drafts[part].trim(latest_us - self.retention_us)
        after, hits = super().decide_all((drafts[0].log, drafts[1].log), parts, ids, now_us)
        return (after if hits else logs), hits


class OneTimeForAll(JointRule):
    """Every part is decided at the latest time of any: trimmed, stamped, and its id looked up."""

    def decide_all(self, logs: Pair, parts: Sequence[int], ids: Sequence[str], now_us: int) -> tuple[Pair, list[int]]:
        return super().decide_all(logs, parts, ids, max([now_us, *(logs[part].high_water_us for part in parts)]))


class PartByPart(JointRule):
    """What the first part consumed stays consumed when the second refuses."""

    def decide_all(self, logs: Pair, parts: Sequence[int], ids: Sequence[str], now_us: int) -> tuple[Pair, list[int]]:
        given: list[int] = []
        for part, one in zip(parts, ids, strict=True):
            logs, hits = super().decide_all(logs, [part], [one], now_us)
            if not hits:
                return logs, []
            given += hits
        return logs, given


class KnownPartConsumes(JointRule):
    """A part that was allowed before is recorded once more beside a new one."""

    def decide_all(self, logs: Pair, parts: Sequence[int], ids: Sequence[str], now_us: int) -> tuple[Pair, list[int]]:
        return super().decide_all(logs, parts, ids if len(parts) == 1 else [""] * len(parts), now_us)


FAULTS: dict[type[JointRule], set[int]] = {
    TrimsByTheLatest: {0, 1, 5},
    OneTimeForAll: {0, 1, 4},
    PartByPart: {3},
    KnownPartConsumes: {4},
}
"""What the model has to find, by the numbers of the promises broken."""


class State(NamedTuple):
    """One state."""

    now_us: int
    logs: Pair
    tolds: tuple[Tolds, Tolds]
    calls: int
    moves: int
    back: int


def explore_joint(rule: JointRule, scope: JointScope) -> Result:
    """Go through every state within the scope, breadth first."""
    first = State(START_US, (Log(), Log()), (Tolds(), Tolds()), scope.calls, scope.moves, scope.back)
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    waiting, steps = deque([first]), 0
    while waiting:
        state = waiting.popleft()
        try:
            for what, after in _moves(rule, state):
                steps += 1
                if after not in came_from:
                    came_from[after] = state, what
                    waiting.append(after)
        except BrokenPromiseError as error:
            story, step = [str(error)], came_from[state]
            while step is not None:
                story.append(step[1])
                step = came_from[step[0]]
            return Result(len(came_from), steps, error.promise, tuple(story[::-1]))
    return Result(len(came_from), steps)


def _moves(rule: JointRule, state: State) -> Iterator[tuple[str, State]]:
    """Everything that may happen next."""
    now_us, retention_us = state.now_us, rule.retention_us
    if state.moves:
        for step_us in (1, retention_us - 1, retention_us):
            yield f"time + {step_us}", state._replace(now_us=now_us + step_us, moves=state.moves - 1)
        if state.back:
            yield (
                f"time - {retention_us - 1}",
                state._replace(now_us=now_us - retention_us + 1, moves=state.moves - 1, back=state.back - 1),
            )
    if state.calls:
        names = [("", f"id{part}") for part in (0, 1)]
        for parts in ((0,), (1,), (0, 1)):
            for first in names[parts[0]]:
                for second in names[1] if len(parts) > 1 else ("",):
                    yield _call(rule, state, parts, (first, second)[: len(parts)])


def _call(rule: JointRule, state: State, parts: tuple[int, ...], ids: tuple[str, ...]) -> tuple[str, State]:
    now_us = state.now_us
    after, hits = rule.decide_all(state.logs, parts, ids, now_us)
    tolds = list(state.tolds)
    known = [tolds[part].known(rule, one, now_us) for part, one in zip(parts, ids, strict=True)]
    what = f"a unit of {parts} as {ids} at {now_us}: {hits or 'refused'}"
    new = [part for part, hit in zip(parts, known, strict=True) if hit is None]
    may = all(_may(rule, tolds[part], now_us) for part in new)
    if not hits:
        if may:
            raise BrokenPromiseError(2, f"{what}, beside {tolds}")
        if after != state.logs:
            raise BrokenPromiseError(3, f"{what}, and the logs are {after}")
    for part, one, hit, stamp_us in zip(parts, ids, known, hits, strict=False):
        if hit is not None:
            if stamp_us != hit.stamp_us or after[part] != state.logs[part]:
                raise BrokenPromiseError(4, f"{what}, and {hit} was told before")
            continue
        if not _may(rule, tolds[part], now_us):
            raise BrokenPromiseError(1, f"{what}, beside {tolds[part]}")
        if stamp_us != tolds[part].first_us(now_us):
            raise BrokenPromiseError(0, f"{what}, and {part} had to be {tolds[part].first_us(now_us)}")
        tolds[part] = tolds[part].with_stamp(stamp_us, 1, one, now_us)
    for part in (0, 1):
        check_content(rule, after[part], tolds[part], now_us)
    return what, state._replace(logs=after, tolds=(tolds[0], tolds[1]), calls=state.calls - 1)


def _may(rule: Rule, tolds: Tolds, now_us: int) -> bool:
    return tolds.fits(rule, 1, tolds.first_us(now_us))
