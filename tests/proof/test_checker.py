"""The checker itself: it shares no code with what it judges, it accuses where a promise is broken, and only there."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from proof.checker import RecordsError, check, read
from proof.checker.report import KINDS

ROOT = Path(__file__).parents[2]
CHECKER = ROOT / "proof" / "checker"
LIMITS = [[2, 100]]


def attempt(at: int, *, allowed: bool | None, to: int | None = None, **more: Any) -> dict[str, Any]:
    return {
        "event": "attempt",
        "policy": "p",
        "subject": "s",
        "asked_us": at,
        "answered_us": at if to is None else to,
        "allowed": allowed,
        **more,
    }


def hit(at: int, **more: Any) -> dict[str, Any]:
    return attempt(at, allowed=True, **{"hit": at, "retry_after_us": 0} | more)


def refused(at: int, retry_after_us: int | None, **more: Any) -> dict[str, Any]:
    return attempt(at, allowed=False, **{"hit": None, "retry_after_us": retry_after_us} | more)


def refund(at: int, stamp: int, *, done: bool | None, to: int | None = None) -> dict[str, Any]:
    row = {"event": "refund", "policy": "p", "subject": "s", "hit": stamp, "done": done}
    return row | {"asked_us": at, "answered_us": at if to is None else to}


def reserved(at: int, ttl: int, **more: Any) -> dict[str, Any]:
    return hit(at, verb="reserve", ttl_us=ttl, **more)


def commit(at: int, stamp: int, *, done: bool | None, to: int | None = None) -> dict[str, Any]:
    return refund(at, stamp, done=done, to=to) | {"event": "commit"}


def settled(at: int, stamp: int, cost: int, *, done: bool | None = True, to: int | None = None) -> dict[str, Any]:
    return refund(at, stamp, done=done, to=to) | {"event": "settle", "cost": cost}


def moved(at: int, stamp: int, to: int, **more: Any) -> dict[str, Any]:
    row = refund(at, stamp, done=True) | {"event": "move", "moved": to, "wait_us": max(0, to - at)}
    return row | more


def slot(at: int, stamp: int, **more: Any) -> dict[str, Any]:
    return hit(at, hit=stamp, verb="schedule", wait_us=stamp - at, **more)


def final(at: int, *hits: tuple[int, int]) -> dict[str, Any]:
    return {"event": "final", "policy": "p", "subject": "s", "asked_us": at, "answered_us": at, "hits": hits}


def kinds(*rows: dict[str, Any], limits: list[list[int]] = LIMITS) -> set[str]:
    lines = [json.dumps(row) for row in ({"event": "policy", "policy": "p", "limits": limits}, *rows)]
    return check(read(lines), 0).kinds()


FULL = hit(1000), hit(1010)
QUEUE = *FULL, slot(1020, 1100), slot(1021, 1110), slot(1022, 1200)
LEFT = *QUEUE, refund(1030, 1100, done=True), moved(1040, 1110, 1101)
MORE = hit(1000), settled(1010, 1000, 2)
LESS = hit(1000, cost=2), settled(1010, 1000, 1)
OPEN, SLOW = (hit(1000), settled(1010, 1000, 2, done=None)), (hit(1000), settled(1010, 1000, 2, to=1020))
HELD = reserved(1000, 20), settled(1010, 1000, 2)

KEPT = {
    "nothing": (),
    "a full window": (*FULL, refused(1050, 50)),
    "the last microsecond of it": (*FULL, refused(1099, 1), hit(1100)),
    "hits of one instant": (hit(1000), hit(1000, hit=1001), refused(1000, 100)),
    "a refusal on the way of a hit": (hit(1000), hit(1005, to=1015, hit=1010), refused(1005, 90, to=1020)),
    "a cost that never fits": (refused(1000, None, cost=3),),
    "a cost of two": (hit(1000), refused(1050, 50, cost=2), hit(1050), refused(1100, 50, cost=2), hit(1150, cost=2)),
    "what remains": (hit(1000, remaining=1), hit(1010, remaining=0), hit(1100, remaining=0)),
    "a retry": (hit(1000, id="x"), hit(1020, hit=1000, id="x"), hit(1030), refused(1040, 60)),
    "a retry after the window": (hit(1000, id="x"), hit(1100, id="x")),
    "an id that was given back": (hit(1000, id="x"), refund(1010, 1000, done=True), hit(1020, id="x")),
    "a refund": (*FULL, refund(1020, 1000, done=True), refund(1021, 1000, done=False), hit(1030), refused(1040, 70)),
    "a refund at the time of a refusal": (*FULL, refund(1020, 1000, done=True, to=1030), refused(1025, 75)),
    "a refund at the time of a hit": (*FULL, refund(1020, 1000, done=True, to=1030), hit(1025)),
    "a refund after the window": (hit(1000), refund(1100, 1000, done=False)),
    "the store holds what was granted": (hit(1000), hit(1001, cost=1), final(1050, (1000, 1), (1001, 1))),
    "and not what was given back": (*FULL, refund(1020, 1000, done=True), final(1050, (1000, 0), (1010, 1))),
    "nor what is old": (*FULL, final(1105, (1010, 1))),
    "a call without an answer that was recorded": (
        attempt(1000, allowed=None, to=1005),
        hit(1010),
        refused(1050, 53),
        final(1060, (1003, 1), (1010, 1)),
    ),
    "one that was not": (attempt(1000, allowed=None, to=1005), *FULL[1:], hit(1050), final(1060, (1010, 1), (1050, 1))),
    "one that explains a refusal, perhaps": (attempt(1000, allowed=None, to=1005), hit(1010), refused(1050, 53)),
    "one that was asked again": (attempt(1000, allowed=None, to=1005, id="x"), hit(1020, hit=1003, id="x")),
    "slots": (
        *FULL,
        hit(1050, hit=1100, verb="schedule", wait_us=50),
        hit(1051, hit=1110, verb="schedule", wait_us=59),
        refused(1060, 140, verb="schedule", max_wait_us=139),
        refused(1070, 130),
        refused(1105, 95),
    ),
    "a slot moves where another left": (
        *QUEUE,
        refused(1025, 185),
        refund(1030, 1100, done=True),
        refused(1031, 179),
        moved(1040, 1110, 1101),
        refused(1045, 155),
        moved(1050, 1200, 1111),
        moved(1055, 1200, 0, done=False),
        refused(1060, 141),
        moved(1060, 1111, 1111),
        final(1070, (1000, 1), (1010, 1), (1101, 1), (1111, 1)),
    ),
    "an id is free again once its slot has moved and was given back": (
        *FULL,
        slot(1020, 1100),
        slot(1021, 1110, id="x"),
        refund(1030, 1100, done=True),
        moved(1040, 1110, 1101),
        refund(1045, 1101, done=True),
        slot(1050, 1102, id="x"),
    ),
    "a slot moves, or perhaps not": (
        *QUEUE,
        refund(1030, 1100, done=True),
        moved(1040, 1110, 0, done=None),
        final(1070, (1000, 1), (1010, 1), (1101, 1), (1200, 1)),
    ),
    "before a slot everybody waits": (
        hit(1000, hit=1050, verb="schedule", wait_us=50, not_before_us=50),
        refused(1010, 40),
    ),
    "a slot with a wait of its own": (refused(1000, 90, verb="schedule", max_wait_us=80, not_before_us=90),),
    "a slot behind one": (
        hit(1000, hit=1050, verb="schedule", wait_us=50, not_before_us=50),
        hit(1000, hit=1051, verb="schedule", wait_us=51),
    ),
    "a slot in the instant of a hit holds nobody up": (
        hit(1000),
        hit(1000, hit=1001, verb="schedule", wait_us=1, max_wait_us=1),
        refused(1000, 100),
        refused(1001, 99),
        hit(1100),
    ),
    "nor do those who come in that instant": (
        hit(1000, cost=0),
        hit(1000, hit=1001, verb="schedule", wait_us=1, cost=0),
        hit(1000, hit=1002, verb="schedule", wait_us=2, cost=0),
        hit(1000, hit=1003),
        attempt(1000, allowed=True, verb="peek"),
        hit(1001, hit=1004),
        refused(1001, 102),
    ),
    "an attempt in the instant of a slot": (
        hit(1000, hit=1050, verb="schedule", wait_us=50, not_before_us=50),
        refused(1049, 1),
        hit(1050, hit=1051),
    ),
    "a slot that is asked for again": (
        hit(1000, hit=1050, verb="schedule", wait_us=50, not_before_us=50, id="x"),
        hit(1020, hit=1050, verb="schedule", wait_us=30, not_before_us=50, id="x"),
        hit(1060, hit=1050, verb="schedule", wait_us=0, not_before_us=50, id="x"),
    ),
    "a peek": (
        hit(1000),
        attempt(1010, allowed=True, verb="peek"),
        hit(1011),
        attempt(1020, allowed=False, verb="peek"),
    ),
    "a window between two instants of one clock": (hit(1000), hit(1001), hit(1100), hit(1100, hit=1101)),
    "a retry that overtakes its first call": (
        hit(1010, to=1020, hit=1005, id="x"),
        hit(1000, to=1030, hit=1005, id="x"),
    ),
    "a joint attempt": (hit(1000, joint="j"), hit(1000, subject="t", joint="j")),
    "one slot of two logs, the first that is free in one of them": (
        *FULL,
        hit(1050, hit=1100, verb="schedule", wait_us=50, joint="j"),
        hit(1050, hit=1100, verb="schedule", wait_us=50, subject="t", joint="j"),
    ),
    "a joint attempt that is refused for one of its parts": (
        *FULL,
        refused(1050, 50, joint="j"),
        refused(1050, 50, subject="t", joint="j"),
        hit(1051, subject="t"),
    ),
    "a joint attempt, a part of which was known": (
        hit(1000, id="x"),
        hit(1020, hit=1000, id="x", joint="j"),
        hit(1020, subject="t", joint="j"),
    ),
    "a joint attempt that is refused beside a known part": (
        hit(1000, subject="t", id="x"),
        *FULL,
        refused(1050, 50, joint="j"),
        refused(1050, 50, subject="t", id="x", joint="j"),
    ),
    "a charge past the quota": (
        *FULL,
        hit(1020, verb="charge", cost=5, remaining=0),
        refused(1030, 90),
        hit(1120),
        final(1130, (1000, 1), (1010, 1), (1020, 5), (1120, 1)),
    ),
    "a charge within it": (hit(1000, verb="charge", remaining=1), hit(1010), refused(1050, 50)),
    "a charge that was given back": (hit(1000, verb="charge", cost=5), refund(1010, 1000, done=True), *FULL[1:]),
    "a reservation that ends": (reserved(1000, 20), hit(1010), refused(1019, 81), hit(1020), refused(1030, 80)),
    "one that is committed": (
        reserved(1000, 20),
        commit(1019, 1000, done=True),
        commit(1040, 1000, done=True),
        hit(1041),
        refused(1050, 50),
        final(1060, (1000, 1), (1041, 1)),
    ),
    "one that is committed too late": (reserved(1000, 20), commit(1021, 1000, done=False), *FULL[1:], hit(1022)),
    "one that is committed at its end": (
        reserved(1000, 20),
        hit(1010),
        commit(1019, 1000, done=False, to=1021),
        hit(1022),
    ),
    "one of which nobody knows whether it was committed": (
        reserved(1000, 20),
        commit(1019, 1000, done=None),
        hit(1030),
        hit(1040),
        refused(1041, 89),
    ),
    "one that may have been": (reserved(1000, 20), commit(1019, 1000, done=None), hit(1030), refused(1041, 59)),
    "one that may have been, and was given back": (
        reserved(1000, 20),
        commit(1019, 1000, done=None),
        refund(1030, 1000, done=True),
    ),
    "one that is cancelled": (
        reserved(1000, 20),
        hit(1001),
        refund(1002, 1000, done=True),
        commit(1003, 1000, done=False),
        hit(1004),
    ),
    "one that nobody was told of": (
        attempt(1000, allowed=None, to=1005, verb="reserve", ttl_us=20),
        hit(1010),
        refused(1015, 88),
        hit(1030),
        final(1040, (1010, 1), (1030, 1)),
    ),
    "an id whose reservation has ended": (reserved(1000, 20, id="x"), reserved(1030, 20, id="x")),
    "a hit that cost more": (*MORE, refused(1020, 80), hit(1100), final(1100, (1100, 1))),
    "and past the quota": (hit(1000), settled(1010, 1000, 9), hit(1100), hit(1110)),
    "a hit that cost less, twice": (*LESS, settled(1011, 1000, 1), hit(1020), refused(1030, 70)),
    "the last settlement counts": (*MORE, settled(1020, 1000, 1), hit(1030), final(1040, (1000, 1), (1030, 1))),
    "two at once, in either order": (*SLOW, settled(1011, 1000, 1, to=1019), hit(1030), refused(1040, 60)),
    "two at once, in the other order": (*SLOW, settled(1011, 1000, 1, to=1019), final(1040, (1000, 2))),
    "a settlement at the time of a refusal": (*SLOW, refused(1015, 85)),
    "a settlement at the time of a hit": (*SLOW, hit(1015), final(1030, (1000, 2), (1015, 1))),
    "a settlement down at the time of a hit": (hit(1000, cost=2), settled(1010, 1000, 1, to=1020), hit(1015)),
    "a settlement that nobody answered": (*OPEN, refused(1020, 80), hit(1030), final(1050, (1000, 2), (1030, 1))),
    "one that was not done": (*OPEN, hit(1030), final(1050, (1000, 1), (1030, 1))),
    "one that comes after the next one": (*OPEN, settled(1020, 1000, 1), hit(1030), refused(1040, 60)),
    "a settlement at nothing": (*FULL, settled(1020, 1000, 0), settled(1021, 1000, 1, done=False), hit(1030)),
    "a settlement after the window": (hit(1000), settled(1100, 1000, 2, done=False)),
    "a settlement of what is not told": (attempt(1000, allowed=None, to=1005), settled(1010, 1003, 2)),
    "a settlement of nothing": (hit(1000), settled(1010, 1005, 2, done=False)),
    "a settled reservation ends": (*HELD, refused(1015, 85), hit(1021), settled(1025, 1000, 1, done=False)),
    "a settled reservation that is committed": (*HELD, commit(1015, 1000, done=True), refused(1025, 75)),
    "an answer of another": (attempt(1000, allowed=True, origin="fallback"), hit(1001), hit(1002)),
}

BROKEN: dict[str, tuple[str, tuple[dict[str, Any], ...]]] = {
    "a charge that is refused": ("charge-refused", (*FULL, refused(1050, 50, verb="charge"))),
    "a charge that is not counted": ("over-quota-by-stamps", (hit(1000, verb="charge", cost=2), hit(1050))),
    "a charge that is counted in part": ("final-units", (hit(1000, verb="charge", cost=5), final(1050, (1000, 2)))),
    "a refusal past the end of a charge": ("retry-after-wrong", (hit(1000, verb="charge", cost=5), refused(1050, 51))),
    "what a charge is told to remain": ("remaining-wrong", (hit(1000, verb="charge", cost=5, remaining=1),)),
    "three of two": ("over-quota-by-stamps", (*FULL, hit(1050))),
    "a microsecond too early": ("over-quota-by-stamps", (*FULL, hit(1099))),
    "more than any quota": ("over-quota-by-stamps", (hit(1000, cost=3),)),
    "with stamps out of the calls": ("over-quota-by-wall", (hit(1000), hit(1010, hit=1100), hit(1020, hit=1200))),
    "a stamp before the call": ("stamp-outside-call", (hit(1000, hit=999),)),
    "a stamp after it": ("stamp-outside-call", (hit(1000, hit=1001),)),
    "a stamp behind a slot is no stamp of now": (
        "stamp-outside-call",
        (hit(1000, hit=1050, verb="schedule", wait_us=50, not_before_us=50), hit(1000, hit=1051)),
    ),
    "the earlier call has the later stamp": (
        "stamp-out-of-order",
        (hit(1000, hit=1020, to=1021), attempt(1018, allowed=True, hit=1019, to=1030), hit(1022, to=1040, hit=1018)),
    ),
    "one stamp for two": ("one-stamp-twice", (hit(1000), hit(1000))),
    "one stamp for two ids": ("one-stamp-twice", (hit(1000, id="x"), hit(1000, id="y"))),
    "no stamp": ("no-stamp", (hit(1000, hit=None),)),
    "a refusal with a stamp": ("refused-with-stamp", (*FULL, refused(1050, 50, hit=1050))),
    "an empty window": ("refusal-unjustified", (hit(1000), refused(1050, 50))),
    "an empty log": ("refusal-unjustified", (refused(1050, 50),)),
    "at the edge": ("refusal-unjustified", (*FULL, refused(1100, 10))),
    "full, but of what was given back": (
        "refusal-unjustified",
        (*FULL, refund(1020, 1000, done=True), refused(1040, 60)),
    ),
    "full, but after the call": ("refusal-unjustified", (hit(1000), refused(1005, 95), hit(1010))),
    "told a microsecond too little": ("retry-after-wrong", (*FULL, refused(1050, 49))),
    "told a microsecond too much": ("retry-after-wrong", (*FULL, refused(1050, 51))),
    "told never": ("retry-after-wrong", (*FULL, refused(1050, None))),
    "told some time, and it never fits": ("retry-after-wrong", (refused(1000, 100, cost=3),)),
    "told the time of another cost": ("retry-after-wrong", (*FULL, refused(1050, 50, cost=2))),
    "what does not remain": ("remaining-wrong", (hit(1000, remaining=2),)),
    "a slot too late": ("slot-not-first", (*FULL, hit(1050, hit=1101, verb="schedule", wait_us=51))),
    "a slot too early": ("over-quota-by-stamps", (*FULL, hit(1050, hit=1099, verb="schedule", wait_us=49))),
    "one slot of two logs, and both have a sooner one": (
        "slot-not-first",
        (
            *FULL,
            hit(1050, hit=1101, verb="schedule", wait_us=51, joint="j"),
            hit(1050, hit=1101, verb="schedule", wait_us=51, subject="t", joint="j"),
        ),
    ),
    "one slot of two instants": (
        "joint-torn",
        (
            *FULL,
            hit(1050, hit=1100, verb="schedule", wait_us=50, joint="j"),
            hit(1050, hit=1090, verb="schedule", wait_us=40, subject="t", joint="j"),
        ),
    ),
    "a slot before it is wanted": (
        "slot-not-first",
        (hit(1000, hit=1040, verb="schedule", wait_us=40, not_before_us=50),),
    ),
    "a slot at once, and it is wanted later": ("slot-not-first", (hit(1000, verb="schedule", not_before_us=50),)),
    "a slot too far away": ("slot-too-far", (*FULL, hit(1050, hit=1100, verb="schedule", wait_us=50, max_wait_us=49))),
    "an attempt before a slot": (
        "queue-jumped",
        (hit(1000, hit=1050, verb="schedule", wait_us=50, not_before_us=50), hit(1040)),
    ),
    "an attempt in the instant of a slot, as if it were not there": (
        "one-stamp-twice",
        (hit(1000, hit=1050, verb="schedule", wait_us=50, not_before_us=50), hit(1050)),
    ),
    "a slot before another": (
        "queue-jumped",
        (
            hit(1000, hit=1050, verb="schedule", wait_us=50, not_before_us=50),
            hit(1001, hit=1040, verb="schedule", wait_us=39),
        ),
    ),
    "a slot refused that is near enough": (
        "refusal-unjustified",
        (*FULL, refused(1050, 50, verb="schedule", max_wait_us=50)),
    ),
    "a peek that says yes": ("peek-wrong", (*FULL, attempt(1050, allowed=True, verb="peek"))),
    "a peek that says no": ("refusal-unjustified", (hit(1000), refused(1050, 50, verb="peek"))),
    "a part of what was refused": ("joint-torn", (hit(1000, joint="j"), refused(1000, 10, subject="t", joint="j"))),
    "refused together, with room in each": (
        "refusal-unjustified",
        (hit(1000), refused(1050, 50, joint="j"), refused(1050, 50, subject="t", joint="j")),
    ),
    "refused together, and told too little": (
        "retry-after-wrong",
        (*FULL, refused(1050, 49, joint="j"), refused(1050, 49, subject="t", joint="j")),
    ),
    "a part that is one too many": (
        "over-quota-by-stamps",
        (*FULL, hit(1050, joint="j"), hit(1050, subject="t", joint="j")),
    ),
    "a known part consumes again": (
        "id-twice",
        (hit(1000, id="x"), hit(1020, id="x", joint="j"), hit(1020, subject="t", joint="j")),
    ),
    "an id twice": ("id-twice", (hit(1000, id="x"), hit(1010, id="x"))),
    "an id forgotten": ("id-forgotten", (hit(1000, id="x"), hit(1010), refused(1020, 80, id="x"))),
    "an id with another cost": ("id-other-cost", (hit(1000, id="x"), hit(1010, hit=1000, id="x", cost=2))),
    "an id for good": ("id-stale", (hit(1000, id="x"), hit(1100, hit=1000, id="x"))),
    "an id that was given back": (
        "id-stale",
        (hit(1000, id="x"), refund(1010, 1000, done=True), hit(1020, hit=1000, id="x")),
    ),
    "a refund twice": ("refund-twice", (*FULL, refund(1020, 1000, done=True), refund(1021, 1000, done=True))),
    "a refund of nothing": ("refund-of-nothing", (*FULL, refund(1020, 1005, done=True))),
    "a refund refused": ("refund-refused", (*FULL, refund(1020, 1000, done=False))),
    "a refund that gives back two": (
        "over-quota-by-stamps",
        (*FULL, refund(1020, 1000, done=True), hit(1021), hit(1022)),
    ),
    "a settlement up that is not counted": ("over-quota-by-stamps", (*MORE, hit(1020))),
    "a settlement down that counts for less": ("over-quota-by-stamps", (*LESS, hit(1020), hit(1021))),
    "less by a settlement that nobody made": (
        "over-quota-by-stamps",
        (*FULL, settled(1020, 1000, 2, done=None), hit(1030)),
    ),
    "less before it was asked for": ("over-quota-by-stamps", (*FULL, hit(1015), settled(1020, 1000, 0))),
    "a settlement down that is not counted": ("refusal-unjustified", (*LESS, refused(1020, 80))),
    "full, but of a settlement before the last": (
        "refusal-unjustified",
        (*MORE, settled(1020, 1000, 1), refused(1030, 70)),
    ),
    "full, but of one that comes later": ("refusal-unjustified", (hit(1000), refused(1005, 95), MORE[1])),
    "told the time before it was settled": ("retry-after-wrong", (*FULL, settled(1020, 1010, 2), refused(1030, 70))),
    "peeked past a settlement": ("peek-wrong", (*MORE, attempt(1050, allowed=True, verb="peek"))),
    "a settlement lost": ("final-units", (*MORE, final(1050, (1000, 1)))),
    "the former of two settlements": ("final-units", (*MORE, settled(1020, 1000, 3), final(1050, (1000, 2)))),
    "a settled hit lost": ("final-lost", (*MORE, final(1050))),
    "a hit that was settled at nothing": ("final-extra", (hit(1000), settled(1010, 1000, 0), final(1050, (1000, 1)))),
    "a slot that is said to be gone": ("move-refused", (*QUEUE, moved(1030, 1110, 0, done=False))),
    "a slot that moves though it was given back": (
        "move-too-late",
        (*QUEUE, refund(1030, 1200, done=True), moved(1040, 1200, 1200)),
    ),
    "a slot that moves where none is free": ("over-quota-by-stamps", (*QUEUE, moved(1030, 1110, 1099))),
    "a slot that passes another": (
        "queue-jumped",
        (hit(1000), slot(1020, 1150, not_before_us=130), slot(1021, 1160, not_before_us=139), moved(1040, 1160, 1140)),
    ),
    "a slot that moves back": ("slot-not-first", (*QUEUE, moved(1030, 1110, 1190))),
    "a slot that moves onto another": ("one-stamp-twice", (*QUEUE, moved(1030, 1110, 1100))),
    "a slot at both places": ("final-extra", (*LEFT, final(1070, *((at, 1) for at in (1000, 1010, 1101, 1110, 1200))))),
    "a slot at neither place": ("final-lost", (*LEFT, final(1070, (1000, 1), (1010, 1), (1200, 1)))),
    "a refusal until where a slot was": ("retry-after-wrong", (*LEFT, refused(1060, 150))),
    "a settlement refused": ("settle-refused", (hit(1000), settled(1010, 1000, 2, done=False))),
    "a settlement of what was given back": (
        "settle-of-nothing",
        (*FULL, refund(1020, 1000, done=True), settled(1021, 1000, 2)),
    ),
    "a settlement of a reservation that has ended": ("settle-of-nothing", (*HELD, settled(1021, 1000, 2))),
    "a settlement of nobody's hit": ("settle-of-nothing", (hit(1000), settled(1010, 1005, 2))),
    "a reservation that ends too early": ("over-quota-by-stamps", (reserved(1000, 20), *FULL[1:], hit(1019))),
    "a reservation that never ends": ("refusal-unjustified", (reserved(1000, 20), hit(1010), refused(1030, 70))),
    "a reservation that the store keeps": ("final-extra", (reserved(1000, 20), final(1030, (1000, 1)))),
    "a committed reservation that ends": (
        "final-lost",
        (reserved(1000, 20), commit(1010, 1000, done=True), final(1030)),
    ),
    "a reservation that is not committed": ("commit-refused", (reserved(1000, 20), commit(1010, 1000, done=False))),
    "a reservation that is committed when it has ended": (
        "commit-too-late",
        (reserved(1000, 20), commit(1021, 1000, done=True)),
    ),
    "a reservation that is committed when it was given back": (
        "commit-too-late",
        (reserved(1000, 20), refund(1010, 1000, done=True), commit(1011, 1000, done=True)),
    ),
    "a reservation that is given back when it has ended": (
        "refund-twice",
        (reserved(1000, 20), refund(1021, 1000, done=True)),
    ),
    "a hit lost": ("final-lost", (*FULL, final(1050, (1000, 1)))),
    "a hit of nobody": ("final-extra", (*FULL, final(1050, (1000, 1), (1010, 1), (1050, 1)))),
    "a hit that was given back": (
        "final-extra",
        (*FULL, refund(1020, 1000, done=True), final(1050, (1000, 1), (1010, 1))),
    ),
    "a hit of other units": ("final-units", (*FULL, final(1050, (1000, 1), (1010, 2)))),
    "a hit stored twice": ("one-stamp-twice", (*FULL, final(1050, (1000, 1), (1010, 1), (1010, 1)))),
    "a hit that no unanswered call explains": (
        "final-extra",
        (attempt(1000, allowed=None, to=1005), final(1050, (1006, 1))),
    ),
    "nor one of another cost": ("final-extra", (attempt(1000, allowed=None, to=1005, cost=2), final(1060, (1003, 1)))),
    "full, but of a call that left nothing": (
        "refusal-unjustified",
        (attempt(1000, allowed=None, to=1005), hit(1010), refused(1050, 53), final(1060, (1010, 1))),
    ),
    "told as if before a hit that was there": ("retry-after-wrong", (*FULL, hit(1100), refused(1095, 12, to=1105))),
    "told as if without a hit that was there": (
        "retry-after-wrong",
        (*FULL, hit(1100), refused(1095, 3, cost=2, to=1109)),
    ),
    "a slot told for before it is wanted": (
        "retry-after-wrong",
        (*FULL, refused(1050, 50, verb="schedule", max_wait_us=40, not_before_us=60)),
    ),
    "two hits for one unanswered call": (
        "final-extra",
        (attempt(1000, allowed=None, to=1005), final(1050, (1003, 1), (1004, 1))),
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_where_every_promise_is_kept_it_accuses_nobody(name: str) -> None:
    assert kinds(*KEPT[name]) == set()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_named(name: str) -> None:
    kind, rows = BROKEN[name]
    assert kind in kinds(*rows)


def test_every_kind_of_fault_is_shown_above() -> None:
    assert {kind for kind, _ in BROKEN.values()} == set(KINDS)


def test_two_limits_and_two_policies_on_one_log() -> None:
    two = [[2, 100], [3, 1000]]
    rows = hit(1000), hit(1010), refused(1050, 50), hit(1100)
    assert kinds(*rows, refused(1150, 850), limits=two) == set()
    assert kinds(*rows, refused(1150, 50), limits=two) == {"retry-after-wrong"}
    assert kinds(*rows, hit(1200), limits=two) == {"over-quota-by-stamps", "over-quota-by-wall"}
    wide = {"event": "policy", "policy": "wide", "log": "p", "limits": [[5, 1000]]}
    assert kinds(wide, *FULL, hit(1020, policy="wide"), refused(1050, 60)) == set()
    assert kinds(wide, hit(1000, policy="wide"), hit(1010), hit(1020)) == {"over-quota-by-stamps"}


def test_of_more_settlements_than_can_be_told_apart_only_the_bounds_are_judged() -> None:
    rows = [row for at in range(1000, 1010) for row in (hit(at), settled(at, at, 2, done=None))]
    for many in (10, 20):
        assert kinds(*rows, refused(1050, 1), limits=[[many, 100]]) == set()
    assert kinds(*rows, refused(1050, 1), limits=[[21, 100]]) == {"refusal-unjustified"}
    for many, wrong in ((11, set[str]()), (10, {"peek-wrong"})):
        assert kinds(*rows, attempt(1050, allowed=True, verb="peek"), limits=[[many, 100]]) == wrong


def test_a_hit_that_calls_under_several_limits_may_have_left_accuses_nobody() -> None:
    wide = {"event": "policy", "policy": "wide", "log": "p", "limits": [[5, 1000]]}
    open_calls = attempt(1015, allowed=None, to=1030), attempt(1014, allowed=None, to=1040, policy="wide")
    stored = final(1060, (1000, 1), (1010, 1), (1020, 1))
    assert kinds(wide, *FULL, *open_calls, stored) == set()
    assert kinds(wide, *FULL, open_calls[0], stored) == {"over-quota-by-stamps", "over-quota-by-wall"}


def test_clocks_that_differ_are_forgiven_up_to_the_tolerance() -> None:
    lines = [json.dumps(row) for row in ({"event": "policy", "policy": "p", "limits": LIMITS}, hit(1000, hit=1030))]
    assert check(read(lines), 30)
    assert not check(read(lines), 29)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2: no JSON"),
        ("[]", "line 2: an object"),
        ("{}", "'event' is missing"),
        ('{"event": "x"}', "'x' is not known"),
        ('{"event": "policy", "policy": "p", "limits": [[3, 100]]}', "told twice"),
        ('{"event": "policy", "policy": "q", "limits": [[3, -1]]}', "whole number"),
        (json.dumps(hit(1000) | {"policy": "q"}), "'q'"),
        (json.dumps(hit(1000, to=999)), "line 2: answered before"),
        (json.dumps(hit(1000) | {"allowed": 2}), "true, false or null"),
        (json.dumps(hit(1000) | {"cost": 1.5}), "whole number"),
        (json.dumps(hit(1000) | {"verb": "ask"}), "'ask'"),
        (json.dumps(hit(1000) | {"verb": "reserve"}), "'ttl_us' is missing"),
        (json.dumps(refund(1000, 900, done=True) | {"event": "settle"}), "'cost' is missing"),
    ],
)
def test_a_line_that_is_no_record_is_named(line: str, says: str) -> None:
    with pytest.raises(RecordsError, match=says):
        read(['{"event": "policy", "policy": "p", "limits": [[2, 100]]}', line])


def test_it_imports_nothing_of_what_it_judges() -> None:
    allowed = {"proof.checker", "proof.options", *(f"proof.checker.{path.stem}" for path in CHECKER.glob("*.py"))}
    for path in (*CHECKER.glob("*.py"), CHECKER.parent / "options.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name in allowed or name.split(".")[0] in sys.stdlib_module_names, (path, name)
    loaded = "import sys, proof.checker, proof.checker.__main__; print([m for m in sys.modules if 'capline' in m])"
    ran = subprocess.run([sys.executable, "-S", "-c", loaded], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(("rows", "code"), [(FULL, 0), ((*FULL, hit(1050)), 1), (None, 2), ((), 2)])
def test_the_command_tells_by_its_exit_code(tmp_path: Path, rows: tuple[dict[str, Any], ...] | None, code: int) -> None:
    path = tmp_path / "records"
    lines = ["{"] if rows is None else [json.dumps(row) for row in rows]
    path.write_text("\n".join([json.dumps({"event": "policy", "policy": "p", "limits": LIMITS}), *lines]))
    ran = subprocess.run(
        [sys.executable, "-m", "proof.checker", str(path), "--tolerance-us", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code
    assert ("BROKEN over-quota-by-stamps" in ran.stdout) == (code == 1)
