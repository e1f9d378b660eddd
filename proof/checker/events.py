"""The records: one JSON object a line, of any number of callers in any order.

    {"event": "policy",  "policy": "p", "limits": [[quota, window_us], ...], "log": "p",
                         "retention_us": 604800000000}
    {"event": "asked",   "call": "w1-17", "policy": "p", "subject": "s", "cost": 1, "id": null, "asked_us": 5}
    {"event": "attempt", "call": "w1-17", "policy": "p", "subject": "s", "cost": 1, "id": null, "asked_us": 5,
                         "answered_us": 9, "allowed": true, "hit": 7, "retry_after_us": 0, "joint": "w1-4"}
    {"event": "refund",  "policy": "p", "subject": "s", "hit": 7, "asked_us": 11, "answered_us": 12, "done": true}
    {"event": "commit",  "policy": "p", "subject": "s", "hit": 7, "asked_us": 10, "answered_us": 11, "done": true}
    {"event": "settle",  "policy": "p", "subject": "s", "hit": 7, "cost": 3, "asked_us": 10, "answered_us": 11,
                         "done": true}
    {"event": "move",    "policy": "p", "subject": "s", "hit": 99, "asked_us": 10, "answered_us": 11, "done": true,
                         "moved": 50, "wait_us": 40}
    {"event": "final",   "policy": "p", "subject": "s", "asked_us": 20, "answered_us": 21, "hits": [[7, 1], ...]}

`log`      the log that the policy's hits are in (default: its own name); policies may share one
`retention_us`  how long an id is honoured and a hit can be given back (default: the widest window on that log)
`asked`    written before the call by a caller that may be killed: without an answer of the same `call` nobody knows;
           before a call about a hit it has that as its verb, and the hit
`allowed`  true, false, or null: an error that leaves open whether it was recorded
`done`     of a call about a hit: true, false, or null likewise
`moved`    of a slot that was asked to move: its stamp since then, `wait_us` behind the instant of the move
`cost`     of a settlement: the units that the hit has from then on; 0 is a refund
`verb`     of an attempt: "decide" (default), "peek" (consumes nothing), "schedule" (with `wait_us`, `max_wait_us`,
           `not_before_us`), "charge" (recorded whatever the limits say; not in a log with slots in the future, as it
           is stamped before them), "reserve" (with `ttl_us`: gives itself back so long after its stamp, unless it
           was committed by then)
`joint`    of an attempt: the name of the one attempt over several subjects that it is a part of: each part is a row
           with the answer to all, allowed in every row or in none, and the `retry_after_us` of all
`origin`   "store" (default), or what answered in its place: then the answer is counted, and not judged
`final`    what the store holds of this log when everybody has finished; a hit of 0 units was given back

Times are microseconds of one clock, the callers' and the stamps' alike, up to the tolerance. `retry_after_us` may be
left out where a limiter tells none; null means never. What a line holds beyond these is left alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FOREVER_US", "UNTOLD", "Attempt", "Final", "HitCall", "Limits", "Policy", "Records", "RecordsError", "read"]

FOREVER_US = 1 << 62
"""When a call that was never answered was answered."""
UNTOLD = -1
"""The `retry_after_us` of a limiter that tells none."""
LONGEST_LINE = 64 << 20
LARGEST_NUMBER = 1 << 62
VERBS = ("decide", "peek", "schedule", "charge", "reserve")
ABOUT_HITS = ("refund", "commit", "settle", "move")

Limits = tuple[tuple[int, int], ...]
"""(quota, window_us) of each limit."""


class RecordsError(ValueError):
    """A line that is no record; says which, and what is wrong with it."""


@dataclass(slots=True)
class Policy:
    """What a policy's name stands for."""

    limits: Limits
    log: str
    retention_us: int


@dataclass(slots=True, eq=False)
class Attempt:
    """One call, and its answer. `line` is where it was read."""

    line: int
    limits: Limits
    cost: int
    id: str | None
    asked_us: int
    answered_us: int
    allowed: bool | None
    hit: int | None
    retry_after_us: int | None
    verb: str = "decide"
    wait_us: int = 0
    max_wait_us: int | None = None
    not_before_us: int = 0
    remaining: int | None = None
    joint: str | None = None
    ttl_us: int | None = None


@dataclass(slots=True, eq=False)
class HitCall:
    """One of `ABOUT_HITS`: it was done, or not, or (`done` None) nobody knows."""

    line: int
    hit: int
    asked_us: int
    answered_us: int
    done: bool | None
    units: int = 0
    moved_us: int = 0
    wait_us: int = 0


@dataclass(slots=True, eq=False)
class Final:
    """What the store holds of one log at the end."""

    line: int
    asked_us: int
    answered_us: int
    hits: list[tuple[int, int]]


@dataclass(slots=True, eq=False)
class LogRecords:
    """All that is known of one subject's log."""

    name: str
    subject: str | int
    retention_us: int = 0
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    about_hits: dict[str, list[HitCall]] = field(default_factory=lambda: {verb: [] for verb in ABOUT_HITS})
    """By verb; a settlement for nothing is a refund."""
    final: Final | None = None

    def finish(self, final: Final) -> None:
        """Take what the store holds; once."""
        if self.final is not None:
            raise ValueError("the final content of this log is told twice")
        self.final = final


@dataclass(slots=True)
class Records:
    """All records, by log."""

    logs: dict[tuple[str, str | int], LogRecords] = field(default_factory=dict[tuple[str, str | int], LogRecords])
    attempts: int = 0
    unanswered: int = 0
    stood_in: int = 0
    """Answers that did not come from the store."""


def read(lines: Iterable[str]) -> Records:
    """Read the records; raises `RecordsError`. About 6 µs a line. Policies may come after what names them."""
    reader = _Reader()
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_LINE:
            raise RecordsError(f"line {number}: longer than {LONGEST_LINE} characters")
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RecordsError(f"line {number}: no JSON ({error})") from None
        if not isinstance(row, dict):
            raise RecordsError(f"line {number}: an object is expected, not {line[:40]!r}")
        try:
            reader.take(number, row)  # pyright: ignore[reportUnknownArgumentType] - JSON
        except KeyError as error:
            raise RecordsError(f"line {number}: {error} is missing") from None
        except (TypeError, ValueError) as error:
            raise RecordsError(f"line {number}: {error}") from None
    return reader.whole()


class _Reader:
    def __init__(self) -> None:
        self._policies: dict[str, Policy] = {}
        self._attempts: list[tuple[int, dict[str, Any]]] = []
        self._rest: list[tuple[int, dict[str, Any]]] = []
        self._open: dict[str, tuple[int, dict[str, Any]]] = {}
        self._answered: set[str] = set()

    def take(self, line: int, row: dict[str, Any]) -> None:
        """One line, kept until all policies are known."""
        kind = row["event"]
        if kind == "attempt":
            self._attempts.append((line, row))
            if "call" in row:
                self._answered.add(row["call"])
        elif kind == "asked":
            self._open[row["call"]] = line, row
        elif kind in (*ABOUT_HITS, "final"):
            self._rest.append((line, row))
            if "call" in row:
                self._answered.add(row["call"])
        elif kind == "policy":
            limits = tuple((_number(quota), _number(window_us)) for quota, window_us in row["limits"])
            policy = Policy(limits, row.get("log", row["policy"]), row.get("retention_us", 0))
            if self._policies.setdefault(row["policy"], policy) != policy:
                raise ValueError(f"policy {row['policy']!r} is told twice, differently")
        else:
            raise ValueError(f"event {kind!r} is not known")

    def whole(self) -> Records:
        """Everything, by log."""
        records, line = Records(), 0
        widest: dict[str, int] = {}
        for policy in self._policies.values():
            retention_us = policy.retention_us or max((window_us for _, window_us in policy.limits), default=0)
            widest[policy.log] = max(widest.get(policy.log, 0), retention_us)
        never = [(row, line) for call, (line, row) in self._open.items() if call not in self._answered]
        records.unanswered = len(never)
        attempts = list(self._attempts)
        for row, line in never:
            if row.get("verb") in ABOUT_HITS:
                self._rest.append((line, row | _NEVER | {"event": row["verb"]}))
            else:
                attempts.append((line, row | _NEVER))
        records.attempts = len(attempts)
        try:
            for line, row in attempts:
                if row.get("origin", "store") != "store":
                    records.stood_in += 1
                    continue
                policy = self._policies[row["policy"]]
                self._log(records, widest, row).attempts.append(_attempt(line, row, policy.limits))
            for line, row in self._rest:
                log, times = self._log(records, widest, row), (_number(row["asked_us"]), _number(row["answered_us"]))
                if row["event"] == "final":
                    hits = [(_number(stamp_us), _number(units)) for stamp_us, units in row["hits"]]
                    log.finish(Final(line, *times, hits))
                else:
                    verb, units = row["event"], _number(row["cost"]) if row["event"] == "settle" else 0
                    where = _number(row.get("moved") or 0), _number(row.get("wait_us", 0))
                    call = HitCall(line, _number(row["hit"]), *times, row["done"], units, *where)
                    log.about_hits["refund" if verb == "settle" and not units else verb].append(call)
        except KeyError as error:
            raise RecordsError(f"line {line}: {error} is missing, or no policy") from None
        except (TypeError, ValueError) as error:
            raise RecordsError(f"line {line}: {error}") from None
        return records

    def _log(self, records: Records, widest: dict[str, int], row: dict[str, Any]) -> LogRecords:
        name, subject = self._policies[row["policy"]].log, row["subject"]
        log = records.logs.get((name, subject))
        if log is None:
            log = records.logs[name, subject] = LogRecords(name, subject, widest[name])
        return log


_NEVER: dict[str, Any] = {"answered_us": FOREVER_US, "allowed": None, "done": None}


def _attempt(line: int, row: dict[str, Any], limits: Limits) -> Attempt:
    allowed, hit = row["allowed"], row.get("hit")
    if allowed not in (True, False, None):
        raise ValueError(f"allowed is true, false or null, not {allowed!r}")
    verb = row.get("verb", "decide")
    if verb not in VERBS:
        raise ValueError(f"verb {verb!r} is not known")
    ttl_us = _number(row["ttl_us"]) if verb == "reserve" else None
    asked_us, answered_us = _number(row["asked_us"]), _number(row["answered_us"])
    if answered_us < asked_us:
        raise ValueError("answered before it was asked: the caller's clock went back, and nothing can be told")
    retry_after_us = row.get("retry_after_us", UNTOLD)
    return Attempt(
        line,
        limits,
        _number(row.get("cost", 1)),
        row.get("id"),
        asked_us,
        answered_us,
        allowed,
        None if hit is None else _number(hit),
        None if retry_after_us is None else int(retry_after_us),
        verb,
        row.get("wait_us", 0),
        row.get("max_wait_us"),
        row.get("not_before_us", 0),
        row.get("remaining"),
        row.get("joint"),
        ttl_us,
    )


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST_NUMBER:
        raise ValueError(f"a whole number from 0 on is expected, not {value!r}")
    return value
