"""What was found: faults by kind, each with the line of the record that shows it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["KINDS", "Fault", "Report"]

KINDS = {
    "over-quota-by-stamps": "a window, by the stamps, holds more than its quota",
    "over-quota-by-wall": "more than the quota was asked for and granted within one window, whatever the stamps say",
    "stamp-outside-call": "a hit is stamped with an instant that is not between its asking and its answer",
    "stamp-out-of-order": "an answer was there before another was asked for, and its stamp is the later one",
    "one-stamp-twice": "one hit is the answer to two attempts",
    "no-stamp": "an attempt was allowed and names no hit",
    "refused-with-stamp": "an attempt was refused and names a hit",
    "refusal-unjustified": "an attempt was refused, and at no instant of the call was the window full",
    "retry-after-wrong": "a refusal was due, and would have been allowed before its retry_after, or not at it",
    "remaining-wrong": "what an allowed attempt was told to remain does not",
    "slot-not-first": "a slot is not the first free instant behind those taken",
    "slot-too-far": "a slot is farther away than was asked for",
    "queue-jumped": "an instant was given before one that was given earlier",
    "joint-torn": "of one attempt over several subjects one part was allowed, and another refused",
    "charge-refused": "a charge was refused",
    "peek-wrong": "a peek said yes, and at no instant of the call was there room",
    "id-twice": "one id consumed twice",
    "id-forgotten": "a retry was refused, though its id was recorded",
    "id-other-cost": "a retry was answered by a hit of another cost",
    "id-stale": "a retry was answered by a hit that is out of every window, or was given back",
    "refund-twice": "a hit was given back twice",
    "refund-of-nothing": "a hit that nobody was given was given back",
    "refund-refused": "a hit was there, and was not given back",
    "commit-refused": "a reservation was there, and was not committed",
    "commit-too-late": "a reservation that had ended, or was given back, was committed",
    "settle-refused": "a hit was there, and was not settled",
    "settle-of-nothing": "a hit that nobody was given, or that counted no more, was settled",
    "move-refused": "a slot was there, and was said to be unknown or given back",
    "move-too-late": "a slot that was given back was moved",
    "final-lost": "the store has lost a hit",
    "final-extra": "the store holds a hit that nobody was granted",
    "final-units": "the store holds a hit with other units",
}
"""Every kind of fault, and what it means."""

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken promise; `line` is that of the record that shows it (0: none does)."""

    kind: str
    line: int
    detail: str


@dataclass(slots=True)
class Report:
    """What was checked and what was found. True where every promise was kept."""

    attempts: int = 0
    logs: int = 0
    hits: int = 0
    refused: int = 0
    unanswered: int = 0
    """Calls of which nobody knows whether they were recorded; `resolved` of them by what the store holds at the end."""
    resolved: int = 0
    excused: int = 0
    """Refusals that could not be judged, or not their retry_after: a call without an answer, or many refunds at the
    same time, may be the reason."""
    stood_in: int = 0
    finals: int = 0
    faults: list[Fault] = field(default_factory=list[Fault])

    def __bool__(self) -> bool:
        return not self.faults

    def add(self, kind: str, line: int, detail: str) -> None:
        """Note a fault of a known kind."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of fault")
        self.faults.append(Fault(kind, line, detail))

    def kinds(self) -> set[str]:
        """The kinds of fault that were found."""
        return {fault.kind for fault in self.faults}

    def text(self) -> str:
        """The report in words, a few examples of each kind."""
        compared = f"{self.finals} compared with the store"
        lines = [
            f"{self.attempts} attempts on {self.logs} logs ({compared}): {self.hits} hits, {self.refused} refusals"
        ]
        if self.unanswered or self.stood_in:
            lines += [
                f"{self.unanswered} calls without an answer, {self.resolved} of them found in the store",
                f"{self.excused} refusals that they or refunds may explain, {self.stood_in} answers not from the store",
            ]
        for kind, meaning in KINDS.items():
            found = [fault for fault in self.faults if fault.kind == kind]
            if found:
                lines.append(f"BROKEN {kind} ({len(found)}): {meaning}")
                lines += [f"  line {fault.line}: {fault.detail}" for fault in found[:SHOWN]]
        lines.append("every promise kept" if self else f"{len(self.faults)} faults")
        return "\n".join(lines)
