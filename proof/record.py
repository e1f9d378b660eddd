"""What a caller saw, as lines of JSON for the checker: proof/checker/events.py tells their form.

The recorder stands around each call and knows nothing of what answers: an answer is anything with `allowed`, `hit` and
`retry_after_us`. Times are the machine's wall clock, or whatever `now_us` gives.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, Iterable, Sequence

__all__ = ["Part", "Recorder", "part_of", "wall_us"]


Note = Callable[[Any, "BaseException | None"], None]
"""Takes the answer, or the error instead of it, and records it."""

Part = tuple[str, Any, int, "str | None"]
"""A part of such an attempt: policy, subject, cost, id."""


class _Part(NamedTuple):
    allowed: bool
    hit: int | None
    retry_after_us: int | None
    wait_us: int = 0


def part_of(answer: Any, number: int) -> _Part:
    """The answer to one of several subjects."""
    hit = answer.hits[number] if number < len(answer.hits) else None
    return _Part(answer.allowed, hit, answer.retry_after_us, getattr(answer, "wait_us", 0))


@contextmanager
def _told(note: Note) -> Generator[Callable[[Any], Any]]:
    """Note the answer that is given to what this yields, or the error instead of it."""
    got: list[Any] = []

    def told(answer: Any) -> Any:
        got.append(answer)
        return answer

    try:
        yield told
    except BaseException as error:
        note(None, error)
        raise
    note(got[0], None)


def wall_us() -> int:
    """This machine's wall clock."""
    return time.time_ns() // 1000


class Recorder:
    """Collects the lines of one caller; `write` gets each as it is made, or they are kept in `lines`.

    With `write` a call is also recorded before it is made, so that the records of a killed caller say what it was
    doing.
    """

    def __init__(
        self, now_us: Callable[[], int] = wall_us, write: Callable[[str], object] | None = None, name: str = ""
    ) -> None:
        self.lines: list[str] = []
        self._now_us = now_us
        self._write = write
        self._name = name
        self._calls = 0

    def policy(self, name: str, limits: Iterable[tuple[int, int]], **more: object) -> None:
        """What a policy's name stands for: (quota, window_us) of each limit."""
        self._tell({"event": "policy", "policy": name, "limits": list(limits), **more})

    def tell(self, note: Note, ask: Callable[[], Any]) -> Any:
        """Ask, and note the answer, which is returned. An exception is noted as "nobody knows", and raised."""
        with _told(note) as told:
            return told(ask())

    async def tell_later(self, note: Note, ask: Callable[[], Awaitable[Any]]) -> Any:
        """`tell` for an answer that is awaited."""
        with _told(note) as told:
            return told(await ask())

    def attempt(self, policy: str, subject: str | int, *, cost: int = 1, id: str | None = None, **more: object) -> Note:
        """An attempt that is asked for now."""
        row, asked_us = self._begin(policy, subject, cost, id, more)
        return lambda answer, error: self.outcome(row, asked_us, self._now_us(), answer, error)

    def joint(self, parts: Sequence[Part], **more: object) -> Note:
        """One attempt over several subjects; each part is recorded with the answer."""
        return partial(self._together, self._begin_joint(parts, more))

    def batch(self, rows: Sequence[tuple[str, str | int, int]], ask: Callable[[], Iterable[Any]]) -> list[Any]:
        """Ask for many (policy, subject, cost) in one call, and record each; a row without an answer is unknown."""
        asked_us = self._now_us()
        answers = list(ask())
        answered_us = self._now_us()
        for i, (policy, subject, cost) in enumerate(rows):
            row: dict[str, Any] = {"event": "attempt", "policy": policy, "subject": subject, "cost": cost, "id": None}
            self.outcome(row, asked_us, answered_us, answers[i] if i < len(answers) else None)
        return answers

    def change(self, verb: str, policy: str, subject: str | int, hit: int, cost: int = 0) -> Note:
        """A hit that is given back or moved, committed, or settled at this cost; whether it was done is recorded."""
        return partial(self._was_done, *self._begin(policy, subject, cost, None, {"verb": verb, "hit": hit}))

    def final(self, policy: str, subject: str | int) -> Note:
        """What the store holds of this log: the stamp and the units of each hit."""
        row = {"event": "final", "policy": policy, "subject": subject, "asked_us": self._now_us()}
        return partial(self._stored, row)

    def outcome(
        self,
        row: dict[str, Any],
        asked_us: int,
        answered_us: int,
        answer: Any | None,
        error: BaseException | None = None,
    ) -> None:
        """Record one answer; None for one that never came."""
        row |= {"event": "attempt", "asked_us": asked_us, "answered_us": answered_us}
        if answer is None:
            row |= {"allowed": None, "error": repr(error)[:200]}
        else:
            row |= {"allowed": bool(answer.allowed), "hit": answer.hit, "retry_after_us": answer.retry_after_us}
            for name, usual in (("origin", "store"), ("wait_us", 0), ("remaining", None)):
                value = getattr(answer, name, usual)
                if value != usual:
                    row[name] = value
            # A refusal's `remaining` is for another cost.
            if not answer.allowed:
                row.pop("remaining", None)
        self._tell(row)

    def _stored(self, row: dict[str, Any], hits: Iterable[tuple[int, int]] | None, _: BaseException | None) -> None:
        if hits is not None:
            self._tell(row | {"hits": [list(hit) for hit in hits], "answered_us": self._now_us()})

    def _begin_joint(self, parts: Sequence[Part], more: dict[str, object]) -> list[tuple[dict[str, Any], int]]:
        named = {"joint": secrets.token_hex(8), **more}
        return [self._begin(policy, subject, cost, one, named) for policy, subject, cost, one in parts]

    def _together(
        self, rows: list[tuple[dict[str, Any], int]], answer: Any | None, error: BaseException | None
    ) -> None:
        """Record each part. `remaining` is left out, as it may be that of another part."""
        answered_us = self._now_us()
        for number, (row, asked_us) in enumerate(rows):
            part = None
            if answer is not None:
                part = part_of(answer, number)
            self.outcome(row, asked_us, answered_us, part, error)

    def _was_done(self, row: dict[str, Any], asked_us: int, answer: Any | None, _: BaseException | None) -> None:
        done = None if answer is None else bool(answer)
        if answer and row["verb"] == "move":
            row |= {"moved": answer.hit, "wait_us": answer.wait_us}
        self._tell(row | {"event": row["verb"], "asked_us": asked_us, "answered_us": self._now_us(), "done": done})

    def _begin(
        self, policy: str, subject: str | int, cost: int, attempt_id: str | None, more: dict[str, object]
    ) -> tuple[dict[str, Any], int]:
        row: dict[str, Any] = {"policy": policy, "subject": subject, "cost": cost, "id": attempt_id, **more}
        asked_us = self._now_us()
        if self._write is not None:
            self._calls += 1
            row["call"] = f"{self._name}-{self._calls}"
            self._tell(row | {"event": "asked", "asked_us": asked_us})
        return row, asked_us

    def _tell(self, row: dict[str, Any]) -> None:
        line = json.dumps(row, separators=(",", ":"))
        if self._write is None:
            self.lines.append(line)
        else:
            self._write(line + "\n")
