"""Slow checks, one at a time in a thread, by whoever is in turn.

    addresses in turn   of each address its names in turn   of each name who came first

The rule: who waits is in a line by address and name, and each line has its turn, however long others are. Of a line
that is too long the newest is turned away at once. Who was turned away, or left, keeps the place of when it first came:
so it is checked when it asks again, however many others have come meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

_Line = tuple[str, ...]

_MOST_WAIT = 64, 128, 256
"""How many wait at once: of one address with one name, some five seconds long; of one address; of all, well below
`bounds.requests`."""
_MOST_PLACES = 4096


@dataclass(eq=False, slots=True)
class _Waiting:
    near: _Line
    named: _Line
    came: int
    check: Callable[[], bool]
    has_left: Callable[[], bool]
    answer: asyncio.Future[bool | None]

    @property
    def lines(self) -> set[_Line]:
        return {self.near, self.named}


class Turns:
    """Who waits to be checked. One event loop uses it."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._waiting: list[_Waiting] = []
        self._turn: dict[_Line, int] = {}
        """Of each line with somebody in it: the lowest is next."""
        self._places: dict[bytes, int] = {}
        self._work: asyncio.Task[None] | None = None

    async def checked(
        self, near: str, name: str, asked: bytes, check: Callable[[], bool], has_left: Callable[[], bool]
    ) -> bool | None:
        """What `check` says in its turn; None if it was not called: too many wait, or the client has left.

        `asked` stands for the question: the same one keeps its place.
        """
        came = self._places.pop(asked, None) or next(self._numbers)
        answer: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        waiting = _Waiting((near,), (near, name), came, check, has_left, answer)
        self._waiting.append(waiting)
        for line in (waiting.near, waiting.named):
            self._turn.setdefault(line, next(self._numbers))
        self._turn_away(waiting)
        if self._work is None:
            self._work = asyncio.create_task(self._check_all())
        found = None
        try:
            found = await answer
        finally:
            self._take_out(waiting)
            if found is None:
                self._places[asked] = came
                if len(self._places) > _MOST_PLACES:
                    del self._places[next(iter(self._places))]
        return found

    def _turn_away(self, newest: _Waiting) -> None:
        """Where too many wait beside this one: the newest of the longest line, or one that has left."""
        lines = (
            [each for each in self._waiting if each.named == newest.named],
            [each for each in self._waiting if each.near == newest.near],
            self._waiting,
        )
        for line, most in zip(lines, _MOST_WAIT, strict=True):
            if len(line) > most:
                size = Counter(name for each in line for name in each.lines)
                out = max(line, key=lambda each: (each.has_left(), size[each.near], size[each.named], each.came))
                self._take_out(out)
                _tell(out.answer, None)
                return

    def _take_out(self, waiting: _Waiting) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            for line in waiting.lines.difference(*(other.lines for other in self._waiting)):
                del self._turn[line]

    async def _check_all(self) -> None:
        while self._waiting:
            waiting = min(self._waiting, key=lambda each: (self._turn[each.near], self._turn[each.named], each.came))
            self._take_out(waiting)
            for line in waiting.lines & self._turn.keys():
                self._turn[line] = next(self._numbers)
            found = None
            if not waiting.answer.done() and not waiting.has_left():
                with suppress(MemoryError, ValueError):  # no memory for scrypt: to be asked again
                    found = await asyncio.to_thread(waiting.check)
            _tell(waiting.answer, found)
        self._work = None


def _tell(answer: asyncio.Future[bool | None], found: bool | None) -> None:
    if not answer.done():  # else its request was cancelled
        answer.set_result(found)
