"""From answers to hits: whose stamp is whose, what one id consumed, and what the store holds when all is over.

A hit is known by its stamp. Each is given to one attempt, or to several of one id; a refund, a commit and a settlement
name it. Where calls overlap, or one has no answer, a hit may have had other units than the last ones told: `values`. A
call without an answer may have left a hit: a hit in the store at the end that nobody was granted is assigned to such a
call that fits it, and a call that gets none consumed nothing. Where the store's content is not given, or the hit would
have left it by then, it is unknown, and refusals that such a hit may explain are excused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from proof.checker.events import FOREVER_US

if TYPE_CHECKING:
    from proof.checker.events import Attempt, HitCall, LogRecords
    from proof.checker.report import Report

__all__ = ["Hit", "LogHistory", "Value", "gather"]


class Value(NamedTuple):
    """Units that a hit may have had: not before it may have got them, and not once it certainly had others."""

    units: int
    from_us: int
    until_us: int


@dataclass(slots=True, eq=False)
class Hit:
    """One hit. It was asked for, and known to somebody, at the earliest by any call of its id.

    `early_us` and `late_us` bound the instant of the decision; `timeline` sets them. It was given back at some time
    from `refund_from_us` on, and certainly by `refund_by_us`.
    """

    stamp_us: int
    units: int
    asked_us: int
    answered_us: int
    attempt: Attempt
    wait_us: int = 0
    early_us: int = 0
    late_us: int = 0
    refund_from_us: int = FOREVER_US
    refund_by_us: int = FOREVER_US
    ends_us: int = FOREVER_US
    """When a reservation gives itself back, unless it is committed by then."""
    ended_by_us: int = FOREVER_US
    """When it certainly had, as nobody committed it."""
    place_us: int = 0
    """Of a slot that was moved the instant of its first decision: in the order of decisions it stays there."""
    begins_us: tuple[int, int] | None = None
    """From when on it may have counted, and certainly did; None: from the beginning."""
    is_ahead: bool = False
    """A slot in the future, behind which everybody waits; `timeline` tells."""
    is_sure: bool = True
    """False where calls under other limits may have left it: then it counts, and is not judged."""
    values: list[Value] = field(default_factory=list[Value])
    """What it may have had; empty where it always had its `units`."""

    @property
    def first_units(self) -> int:
        """What it has in the beginning."""
        return self.values[0].units if self.values else self.units

    def may_have(self, from_us: int, to_us: int) -> set[int]:
        """The units that it may have had at some time between these."""
        if not self.values:
            return {self.units}
        return {value.units for value in self.values if value.from_us <= to_us and value.until_us >= from_us}


@dataclass(slots=True)
class LogHistory:
    """What the callers know of one log."""

    hits: list[Hit] = field(default_factory=list[Hit])
    refused: list[Attempt] = field(default_factory=list["Attempt"])
    peeked: list[Attempt] = field(default_factory=list["Attempt"])
    doubts_us: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """From when to when an unknown hit may have counted."""


def gather(log: LogRecords, tolerance_us: int, report: Report) -> LogHistory:
    """The hits of a log, with the faults that can be told without replay: ids, refunds, the final content."""
    return _Gatherer(log, tolerance_us, report).history()


class _Gatherer:
    def __init__(self, log: LogRecords, tolerance_us: int, report: Report) -> None:
        self._log = log
        self._tolerance_us = tolerance_us
        self._report = report
        self._by_stamp: dict[int, Hit] = {}
        self._unknown: list[Attempt] = []
        self._retries: list[tuple[Attempt, Hit]] = []
        self._moved: list[HitCall] = []
        self._moving: dict[Attempt, tuple[HitCall, Hit]] = {}
        """Moves without an answer, as attempts that may have left a hit."""
        self._history = LogHistory()

    def history(self) -> LogHistory:
        for attempt in self._log.attempts:
            self._take(attempt)
        self._hear_of_unknown_calls()
        self._move()
        self._commit()
        self._give_back()
        self._settle()
        self._compare_with_store()
        self._check_ids()
        self._history.hits = list(self._by_stamp.values())
        return self._history

    def _take(self, attempt: Attempt) -> None:
        history, report = self._history, self._report
        if attempt.allowed is None:
            if attempt.verb != "peek":
                self._unknown.append(attempt)
        elif not attempt.allowed:
            if attempt.verb == "charge":
                report.add("charge-refused", attempt.line, f"{attempt.cost} units")
            else:
                history.refused.append(attempt)
            if attempt.hit is not None:
                report.add("refused-with-stamp", attempt.line, f"it names {attempt.hit}")
        elif attempt.verb == "peek":
            history.peeked.append(attempt)
        elif attempt.hit is None:
            report.add("no-stamp", attempt.line, f"{attempt.cost} units were granted")
        else:
            self._grant(attempt, attempt.hit)

    def _grant(self, attempt: Attempt, stamp_us: int) -> None:
        known = self._by_stamp.get(stamp_us)
        if known is None:
            self._record(attempt, stamp_us)
            return
        if attempt.id is None or attempt.id != known.attempt.id:
            line = known.attempt.line
            self._report.add("one-stamp-twice", attempt.line, f"{stamp_us} was given to the attempt of line {line} too")
            return
        if attempt.cost != known.units:
            self._report.add(
                "id-other-cost", attempt.line, f"a cost of {attempt.cost}, the hit {stamp_us} has {known.units}"
            )
        known.asked_us = min(known.asked_us, attempt.asked_us)
        if attempt.answered_us < known.answered_us:
            attempt, known.attempt = known.attempt, attempt
            known.answered_us, known.wait_us = known.attempt.answered_us, known.attempt.wait_us
        self._retries.append((attempt, known))

    def _record(self, attempt: Attempt, stamp_us: int) -> Hit:
        times = attempt.asked_us, attempt.answered_us
        hit = self._by_stamp[stamp_us] = Hit(stamp_us, attempt.cost, *times, attempt, attempt.wait_us)
        if attempt.ttl_us is not None:
            hit.ends_us = stamp_us + attempt.ttl_us
        return hit

    def _hear_of_unknown_calls(self) -> None:
        """Match unanswered calls to known hits of their id: the hit may be theirs."""
        by_id: dict[str, list[Attempt]] = {}
        for attempt in self._unknown:
            if attempt.id is not None:
                by_id.setdefault(attempt.id, []).append(attempt)
        if not by_id:
            return
        heard: set[Attempt] = set()
        for hit in self._by_stamp.values():
            for attempt in by_id.get(hit.attempt.id or "", ()):
                if attempt.asked_us <= hit.stamp_us + self._tolerance_us:
                    hit.asked_us = min(hit.asked_us, attempt.asked_us)
                    heard.add(attempt)
        self._unknown = [attempt for attempt in self._unknown if attempt not in heard]

    def _move(self) -> None:
        """A slot that was moved has another stamp from then on, and is given back at the one before."""
        lost: dict[int, HitCall] = {}
        for move in sorted(self._log.about_hits["move"], key=lambda one: (one.asked_us, one.answered_us)):
            hit = self._by_stamp.get(move.hit)
            if hit is None or move.done is False:
                continue
            if move.done is None:
                lost.setdefault(move.hit, move)
                continue
            since = lost.pop(move.hit, move)
            if move.moved_us == move.hit:
                continue
            self._moved.append(replace(move, asked_us=since.asked_us))
            taken = self._by_stamp.get(move.moved_us)
            if taken is not None and (hit.attempt.id is None or taken.attempt.id != hit.attempt.id):
                self._report.add("one-stamp-twice", move.line, f"{move.hit} moved to {move.moved_us}, which is taken")
                continue
            if move.moved_us > move.hit:
                self._report.add("slot-not-first", move.line, f"{move.hit} moved back, to {move.moved_us}")
            self._record_moved(self._moved[-1], hit, move.moved_us, move.wait_us)
        for move in lost.values():
            hit = self._by_stamp[move.hit]
            attempt = replace(hit.attempt, verb="schedule", asked_us=move.asked_us, answered_us=FOREVER_US)
            self._unknown.append(attempt)
            self._moved.append(move)
            self._moving[attempt] = move, hit

    def _record_moved(self, move: HitCall, before: Hit, stamp_us: int, wait_us: int) -> Hit:
        hit = self._record(replace(before.attempt, line=move.line, remaining=None, not_before_us=0), stamp_us)
        hit.asked_us, hit.answered_us, hit.wait_us = move.asked_us, move.answered_us, wait_us
        hit.place_us = before.place_us or before.stamp_us - before.wait_us
        hit.begins_us = move.asked_us, move.answered_us
        hit.values = _values(hit, [])
        return hit

    def _commit(self) -> None:
        """A reservation that was not committed before its end gave itself back then, by the clock of the stamps."""
        certainly, perhaps = set[int](), set[int]()
        for commit in self._log.about_hits["commit"]:
            hit = self._by_stamp.get(commit.hit)
            if hit is None or commit.done is False or commit.asked_us - self._tolerance_us >= hit.ends_us:
                continue
            (certainly if commit.done else perhaps).add(commit.hit)
        for stamp_us, hit in self._by_stamp.items():
            if hit.ends_us == FOREVER_US or stamp_us in certainly:
                continue
            hit.refund_from_us = hit.ends_us - self._tolerance_us
            if stamp_us not in perhaps:
                hit.refund_by_us = hit.ended_by_us = hit.ends_us + self._tolerance_us

    def _give_back(self) -> None:
        """What the refunds say, in the order of their answers."""
        done: dict[int, HitCall] = {}
        stored = {} if self._log.final is None else dict(self._log.final.hits)
        for refund in (*self._log.about_hits["refund"], *self._moved):
            # A refund without an answer did not happen where the hit is there at the end.
            if refund.done is False or (refund.done is None and stored.get(refund.hit)):
                continue
            hit = self._by_stamp.get(refund.hit)
            if hit is not None:
                hit.refund_from_us = min(hit.refund_from_us, refund.asked_us)
            if refund.done is None:
                continue
            if refund.hit in done:
                line = done[refund.hit].line
                self._report.add("refund-twice", refund.line, f"{refund.hit} was given back at line {line} already")
            done[refund.hit] = refund
            if hit is not None:
                hit.refund_by_us = min(hit.refund_by_us, refund.answered_us)
            elif not self._unknown:
                self._report.add("refund-of-nothing", refund.line, f"no attempt was answered by {refund.hit}")
        self._check_what_was_told()

    def _check_what_was_told(self) -> None:
        """False of a hit that was there, True of one that counted no more."""
        for verb, calls in self._log.about_hits.items():
            for call in calls:
                hit = self._by_stamp.get(call.hit)
                if self._was_there(call):
                    self._report.add(f"{verb}-refused", call.line, f"{call.hit} was granted, and there")
                elif not call.done or hit is None:
                    continue
                elif verb == "refund" and hit.ended_by_us < call.asked_us:
                    self._report.add("refund-twice", call.line, f"{call.hit} had given itself back")
                elif verb in ("commit", "move") and hit.refund_by_us < call.asked_us:
                    self._report.add(f"{verb}-too-late", call.line, f"{call.hit} counted no more")

    def _settle(self) -> None:
        """What the settlements say, and what each hit may have had when."""
        settled: dict[int, list[HitCall]] = {}
        for settle in self._log.about_hits["settle"]:
            hit = self._by_stamp.get(settle.hit)
            gone = not self._unknown if hit is None else hit.refund_by_us < settle.asked_us
            if settle.done is not False:
                settled.setdefault(settle.hit, []).append(settle)
            if settle.done and gone:
                self._report.add("settle-of-nothing", settle.line, f"{settle.hit} counted no more, if it ever did")
        for stamp_us, hit in self._by_stamp.items():
            hit.values = _values(hit, settled.get(stamp_us, []))

    def _was_there(self, call: HitCall) -> bool:
        """Whether the call was told False, and the hit was there all the time."""
        hit = self._by_stamp.get(call.hit)
        if call.done is not False or hit is None or hit.answered_us >= call.asked_us:
            return False
        kept = hit.stamp_us > call.answered_us + self._tolerance_us - self._log.retention_us
        return kept and hit.refund_from_us > call.answered_us

    def _compare_with_store(self) -> None:
        final = self._log.final
        if final is None:
            self._doubt(self._unknown)
            return
        self._report.finals += 1
        oldest_us = final.answered_us + self._tolerance_us - self._log.retention_us
        stored = dict(final.hits)
        if len(stored) < len(final.hits):
            self._report.add("one-stamp-twice", final.line, "the store holds two hits of one stamp")
        self._match_unknown(sorted((stamp_us, units) for stamp_us, units in stored.items() if units), final.line)
        # A reservation may have ended before the store was asked.
        self._doubt([one for one in self._unknown if one.asked_us <= oldest_us or one.ttl_us is not None])
        for hit in self._by_stamp.values():
            units, possible = stored.get(hit.stamp_us), hit.may_have(final.asked_us, final.answered_us)
            if units and not any(possible):
                self._report.add("final-extra", final.line, f"{hit.stamp_us} was given back, and has {units} units")
            elif units and units not in possible:
                told = " or ".join(map(str, sorted(possible)))
                self._report.add("final-units", final.line, f"{hit.stamp_us} has {units} units, and was told {told}")
            elif not units and hit.stamp_us > oldest_us and 0 not in possible:
                self._report.add(
                    "final-lost", final.line, f"{hit.stamp_us}, granted at line {hit.attempt.line}, is not in the store"
                )

    def _match_unknown(self, stored: list[tuple[int, int]], line: int) -> None:
        """Assign each hit that nobody was granted to a call that fits: the one that ended first, or began last."""
        unknown = sorted(self._unknown, key=lambda one: (one.answered_us, -one.asked_us))
        for stamp_us, units in stored:
            if stamp_us in self._by_stamp:
                continue
            fitting = [one for one in unknown if one.cost == units and self._may_be(one, stamp_us)]
            if not fitting:
                self._report.add("final-extra", line, f"{stamp_us} of {units} units was granted to nobody")
                continue
            attempt = fitting[0]
            unknown.remove(attempt)
            self._report.resolved += 1
            moving = self._moving.get(attempt)
            if moving is None:
                self._record(attempt, stamp_us).is_sure = len({one.limits for one in fitting}) == 1
            else:
                self._record_moved(*moving, stamp_us, stamp_us - attempt.asked_us).is_sure = len(fitting) == 1
        self._unknown = unknown

    def _may_be(self, attempt: Attempt, stamp_us: int) -> bool:
        """Whether this call may have left a hit of this stamp."""
        begun = attempt.asked_us - self._tolerance_us <= stamp_us
        return begun and (stamp_us <= attempt.answered_us + self._tolerance_us or attempt.verb == "schedule")

    def _doubt(self, unknown: list[Attempt]) -> None:
        self._history.doubts_us = [
            (one.asked_us - self._tolerance_us, one.answered_us + self._tolerance_us + self._log.retention_us)
            for one in unknown
        ]

    def _check_ids(self) -> None:
        tolerance_us, retention_us = self._tolerance_us, self._log.retention_us
        for attempt, hit in self._retries:
            if hit.stamp_us <= attempt.asked_us - tolerance_us - retention_us or hit.refund_by_us < attempt.asked_us:
                self._report.add("id-stale", attempt.line, f"the answer was {hit.stamp_us}, which counts no more")
        by_id = self._by_id()
        for hits in by_id.values():
            for first, second in pairwise(hits):
                over = second.answered_us + tolerance_us >= first.stamp_us + retention_us
                if not over and first.refund_from_us > second.answered_us:
                    detail = f"id {first.attempt.id!r} has {first.stamp_us} and {second.stamp_us}"
                    self._report.add("id-twice", second.attempt.line, detail)
        for attempt in self._history.refused:
            if attempt.joint is not None:  # refused for another part
                continue
            for hit in by_id.get(attempt.id or "", ()):
                known = hit.answered_us < attempt.asked_us and hit.refund_from_us > attempt.answered_us
                if known and hit.stamp_us > attempt.answered_us + tolerance_us - retention_us:
                    self._report.add("id-forgotten", attempt.line, f"id {attempt.id!r} was granted {hit.stamp_us}")

    def _by_id(self) -> dict[str, list[Hit]]:
        """The hits of each id, in the order of their decisions and moves."""

        def made(hit: Hit) -> tuple[int, int]:
            return hit.stamp_us - hit.wait_us if hit.begins_us is None else hit.begins_us[0], hit.stamp_us

        found: dict[str, list[Hit]] = {}
        for hit in sorted(self._by_stamp.values(), key=made):
            if hit.attempt.id is not None:
                found.setdefault(hit.attempt.id, []).append(hit)
        return found


def _values(hit: Hit, settled: list[HitCall]) -> list[Value]:
    """The units that it may have had, by these settlements and by its end."""
    ends = hit.refund_from_us < FOREVER_US
    if not settled and not ends and hit.begins_us is None:
        return []
    done = [call for call in settled if call.done]

    def until_us(from_us: int) -> int:
        """Until these units were certainly replaced by others that were asked for after this time."""
        return min([hit.refund_by_us, *(call.answered_us for call in done if call.asked_us > from_us)])

    values = [
        Value(call.units, call.asked_us, until_us(call.answered_us if call.done else FOREVER_US)) for call in settled
    ]
    end = [Value(0, hit.refund_from_us, FOREVER_US)] if ends else []
    begin, from_us = ([], 0) if hit.begins_us is None else ([Value(0, 0, hit.begins_us[1])], hit.begins_us[0])
    return [*begin, Value(hit.units, from_us, until_us(-1)), *values, *end]
