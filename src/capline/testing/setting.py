"""What a conformance suite runs on: a store, a clock set by hand, and limiters, synchronous or awaited."""

import asyncio
import inspect
import secrets
from collections.abc import AsyncIterable, Callable, Coroutine, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from capline.limiter.aio import AsyncLimiter
from capline.limiter.limiter import Limiter
from capline.model.clock import ManualClock
from capline.model.policy import ALGORITHMS, Policy

SECOND = 1_000_000
DAY = 86_400 * SECOND
START_US = 1_700_000_000 * SECOND
POPULATION = 500
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def begins_next(url: str) -> bool:
    """Whether the store at this URL keeps all numbers of a policy in one value."""
    return url.startswith("memory:") or "forms=next" in url


class StoreSetting:
    """What each check finds: `one` and `limiter` make limiters on the store, `at` sets their clock."""

    store_url: Callable[[], str] = staticmethod(lambda: "")
    asynchronous = False
    layout = "subject"

    @pytest.fixture(autouse=True)
    def _setting(self, tmp_path: Path) -> Iterator[None]:
        self.url, self.tmp = self.store_url().format(tmp=tmp_path), tmp_path
        self.namespace = f"t{secrets.token_hex(8)}"
        self.clock = ManualClock(START_US)
        self._open: list[Any] = []
        yield
        for limiter in self._open:
            limiter.close()
            if self.asynchronous:
                limiter.runner.close()

    def limiter(self, *policies: Policy, clock: Any = None, namespace: str = "", **options: Any) -> Any:
        """A limiter on the store; further ones share its logs where the store is shared at all."""
        kind = Awaited if self.asynchronous else Limiter
        limiter = kind(
            self.url, policies=policies, clock=clock or self.clock, namespace=namespace or self.namespace, **options
        )
        self._open.append(limiter)
        return limiter

    def policy(self, name: str, limits: list[str], **options: Any) -> Policy:
        """A policy in the layout that is tested; of few subjects, so that in buckets they meet."""
        return Policy(name, limits, layout=self.layout, population=POPULATION, **options)

    def one(self, *limits: str, **options: Any) -> Any:
        """A limiter of one policy, "p"."""
        return self.limiter(self.policy("p", list(limits), **options))

    def subject(self, number: int) -> str | int:
        """Subjects of these are in one place, and so decided in one step on every store."""
        return number if self.layout == "bucket" else f"{{s}}:{number}"

    def used(self, limiter: Any, subject: str | int = "s", **names: str) -> list[int]:
        """What each limit of "p" has used."""
        return [state.used for state in limiter.usage("p", subject, **names)]

    def opens(self, limiter: Any, policy: str, subject: str | int, cost: int = 1, **names: Any) -> None:
        """Refused until `retry_after` to the microsecond, and allowed then."""
        refused = limiter.peek(policy, subject, cost, **names)
        assert not refused, refused
        self.clock.advance_us(refused.retry_after_us - 1)
        assert not limiter.peek(policy, subject, cost, **names)
        self.clock.advance_us(1)
        assert limiter.peek(policy, subject, cost, **names)

    def at(self, seconds: float) -> None:
        """Set the clock to so many seconds after the start."""
        self.clock.advance_us(START_US + round(seconds * SECOND) - self.clock.now_us())

    def when(self, local: str, zone: str) -> None:
        """Set the clock to this local time, the earlier one where it comes twice."""
        at = datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone))
        self.clock.advance_us(round(at.timestamp()) * SECOND - self.clock.now_us())


class Awaited:
    """An `AsyncLimiter` asked from synchronous checks: each call runs to its end on a loop of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.inner = AsyncLimiter(*args, **options)
        self.runner = asyncio.Runner()

    def run(self, awaitable: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(awaitable)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        verb = getattr(self.inner, name)

        def call(*args: Any, **options: Any) -> Any:
            answer = verb(*args, **options)
            if inspect.isasyncgen(answer):
                return iter(self.run(_listed(answer)))
            return self.run(answer) if inspect.iscoroutine(answer) else answer

        return call

    def close(self) -> None:
        self.run(self.inner.close())
        # A connection that failed half-way is let go of by asyncio in the loop's next turns.
        for _ in range(3):
            self.run(asyncio.sleep(0))


async def _listed(answers: AsyncIterable[Any]) -> list[Any]:
    return [answer async for answer in answers]
