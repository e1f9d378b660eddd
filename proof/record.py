"""What a caller saw, as lines of JSON for the checker: proof/checker/events.py tells their form.

The recorder stands around each call and knows nothing of what answers: an answer is anything with `allowed`, `hit` and
`retry_after_us`. Times are the machine's wall clock, or whatever `now_us` gives.
"""

from __future__ import annotations

import json
import secrets
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence

__all__ = ["Answer", "JointAnswer", "Part", "Recorder", "wall_us"]


class Answer(Protocol):
    """What is recorded of an answer."""

    @property
    def allowed(self) -> bool:
        """Whether the units were granted."""
        ...

    @property
    def hit(self) -> int | None:
        """The stamp of the hit."""
        ...

    @property
    def retry_after_us(self) -> int | None:
        """When this cost would fit."""
        ...


class JointAnswer(Protocol):
    """What is recorded of an answer to an attempt over several subjects."""

    @property
    def allowed(self) -> bool:
        """Whether all of the units were granted."""
        ...

    @property
    def hits(self) -> Sequence[int]:
        """The stamp of each part's hit; none where it was refused."""
        ...

    @property
    def retry_after_us(self) -> int | None:
        """When all of it would fit."""
        ...


Part = tuple[str, Any, int, "str | None"]
"""A part of such an attempt: policy, subject, cost, id."""


class _Part(NamedTuple):
    allowed: bool
    hit: int | None
    retry_after_us: int | None
    wait_us: int = 0


@contextmanager
def _told(note: Callable[[Any | None, BaseException | None], None]) -> Generator[Callable[[Any], Any]]:
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

    def attempt(
        self,
        policy: str,
        subject: str | int,
        ask: Callable[[], Answer],
        *,
        cost: int = 1,
        id: str | None = None,
        **more: object,
    ) -> Any:
        """Ask, and record the answer, which is returned. An exception is recorded as "nobody knows", and raised."""
        row, asked_us = self._begin(policy, subject, cost, id, more)
        with _told(lambda answer, error: self.outcome(row, asked_us, self._now_us(), answer, error)) as told:
            return told(ask())

    async def attempt_later(
        self,
        policy: str,
        subject: str | int,
        ask: Callable[[], Awaitable[Answer]],
        *,
        cost: int = 1,
        id: str | None = None,
        **more: object,
    ) -> Any:
        """`attempt` for an answer that is awaited."""
        row, asked_us = self._begin(policy, subject, cost, id, more)
        with _told(lambda answer, error: self.outcome(row, asked_us, self._now_us(), answer, error)) as told:
            return told(await ask())

    def joint(self, parts: Sequence[Part], ask: Callable[[], JointAnswer], **more: object) -> Any:
        """Ask for several subjects in one attempt; each part is recorded with the answer."""
        rows = self._begin_joint(parts, more)
        with _told(partial(self._together, rows)) as told:
            return told(ask())

    async def joint_later(
        self, parts: Sequence[Part], ask: Callable[[], Awaitable[JointAnswer]], **more: object
    ) -> Any:
        """`joint` for an answer that is awaited."""
        rows = self._begin_joint(parts, more)
        with _told(partial(self._together, rows)) as told:
            return told(await ask())

    def batch(self, rows: Sequence[tuple[str, str | int, int]], ask: Callable[[], Iterable[Any]]) -> list[Any]:
        """Ask for many (policy, subject, cost) in one call, and record each; a row without an answer is unknown."""
        asked_us = self._now_us()
        answers = list(ask())
        answered_us = self._now_us()
        for i, (policy, subject, cost) in enumerate(rows):
            row: dict[str, Any] = {"event": "attempt", "policy": policy, "subject": subject, "cost": cost, "id": None}
            self.outcome(row, asked_us, answered_us, answers[i] if i < len(answers) else None)
        return answers

    def refund(
        self, policy: str, subject: str | int, hit: int, ask: Callable[[], bool], verb: str = "refund", cost: int = 0
    ) -> bool:
        """Give a hit back, `commit` it, or `settle` it at this cost, and record whether it was done."""
        row, asked_us = self._begin(policy, subject, cost, None, {"verb": verb, "hit": hit})
        with _told(partial(self._was_done, row, asked_us)) as told:
            return told(ask())

    async def refund_later(
        self,
        policy: str,
        subject: str | int,
        hit: int,
        ask: Callable[[], Awaitable[bool]],
        verb: str = "refund",
        cost: int = 0,
    ) -> bool:
        """`refund` for an answer that is awaited."""
        row, asked_us = self._begin(policy, subject, cost, None, {"verb": verb, "hit": hit})
        with _told(partial(self._was_done, row, asked_us)) as told:
            return told(await ask())

    def final(self, policy: str, subject: str | int, ask: Callable[[], Iterable[tuple[int, int]]]) -> None:
        """What the store holds of this log: the stamp and the units of each hit."""
        asked_us = self._now_us()
        self._stored(policy, subject, asked_us, ask())

    async def final_later(
        self, policy: str, subject: str | int, ask: Callable[[], Awaitable[Iterable[tuple[int, int]]]]
    ) -> None:
        """`final` for an answer that is awaited."""
        asked_us = self._now_us()
        self._stored(policy, subject, asked_us, await ask())

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

    def _stored(self, policy: str, subject: str | int, asked_us: int, found: Iterable[tuple[int, int]]) -> None:
        hits = [list(hit) for hit in found]
        row = {"event": "final", "policy": policy, "subject": subject, "hits": hits}
        self._tell(row | {"asked_us": asked_us, "answered_us": self._now_us()})

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
                hit = answer.hits[number] if number < len(answer.hits) else None
                part = _Part(answer.allowed, hit, answer.retry_after_us, getattr(answer, "wait_us", 0))
            self.outcome(row, asked_us, answered_us, part, error)

    def _was_done(self, row: dict[str, Any], asked_us: int, answer: Any | None, _: BaseException | None) -> None:
        done = None if answer is None else bool(answer)
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
