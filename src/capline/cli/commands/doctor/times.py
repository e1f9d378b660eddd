"""`--time`: what the store of this URL takes from here. It decides in a namespace of its own, and erases that."""

import asyncio
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from statistics import median
from typing import Any

from capline.cli.commands.doctor.finding import Finding, wrong
from capline.limiter.aio import AsyncLimiter
from capline.limiter.limiter import Limiter
from capline.model.errors import NoStoreError, StoreError
from capline.model.policy import Policy
from capline.store.redis.io.url import server_schemes

NAMESPACE = "capline-doctor"
TIMES, WITHIN_S = 2_000, 1.0
"""Each figure is of so many calls at most, and of so long."""
TASKS, SUBJECTS = 100, 1_000
QUOTA = 50
"""Of the one subject for which all tasks ask at once: a store whose steps are not atomic allows more."""
_POLICY = Policy("doctor", [f"{QUOTA}/minute"])
_PAGE = "docs/reference/stores.md#when-it-does-not-answer"


def times(url: str) -> Iterator[Finding]:
    """SET, GET, a decision, the same from many tasks, and a batch."""
    try:
        with Limiter(url, [_POLICY], namespace=NAMESPACE, create=False) as limiter:
            try:
                yield from _measured(url, limiter)
            finally:
                for subject in range(SUBJECTS + 1):
                    limiter.erase(subject)
    except NoStoreError:
        yield Finding("time", "there is no store yet to measure", ok=True)
    except StoreError as error:
        yield wrong("time", str(error), _PAGE)


def _measured(url: str, limiter: Limiter) -> Iterator[Finding]:
    if url.partition("://")[0].lower() in server_schemes():
        for name, ask in _bare(limiter):
            yield _each(name, lambda _, ask=ask: ask())
    yield _each("decision", lambda i: limiter.decide("doctor", i % SUBJECTS))
    rate, allowed = asyncio.run(_tasks(url))
    yield Finding(f"{TASKS} tasks", f"{rate:,.0f} decisions/s", ok=True)
    said = f"{allowed} of {QUOTA} allowed to {TASKS} tasks that asked at once"
    if allowed > QUOTA:
        yield wrong("isolation", f"{said}: its scripts do not run alone; use Redis or Valkey", _PAGE)
    else:
        yield Finding("isolation", said, ok=True)
    if find_spec("numpy") is not None:
        batch = range(SUBJECTS)
        took = _took(lambda _: limiter.decide_many("doctor", batch), 20)
        yield Finding("batch", f"{SUBJECTS / median(took):,.0f} decisions/s, {SUBJECTS:,} a call", ok=True)


def _bare(limiter: Limiter) -> Iterator[tuple[str, Callable[[], Any]]]:
    """SET and GET of a small value under a key that expires."""
    from capline.store.redis.io.wire import pack  # noqa: PLC0415 - as the store
    from capline.store.redis.scripting.keys import slot_of  # noqa: PLC0415 - as the store
    from capline.store.redis.scripting.scripts import Call  # noqa: PLC0415 - as the store
    from capline.store.redis.session import unwrap  # noqa: PLC0415 - as the store
    from capline.store.redis.steps import alone  # noqa: PLC0415 - as the store

    store: Any = limiter._store  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    key = b"%b:bare:{0}" % NAMESPACE.encode()
    for name, words in (("SET", (b"SET", key, b"x" * 16, b"PX", b"60000")), ("GET", (b"GET", key))):
        call = Call(slot_of(b"0"), pack(*words), repeatable=True)
        yield name, lambda call=call: unwrap(store.drive(alone(store.session, call)))


def _each(name: str, ask: Callable[[int], object]) -> Finding:
    took = sorted(_took(ask, TIMES))
    late = took[len(took) * 99 // 100]
    return Finding(name, f"{median(took) * 1e6:,.0f} us, 99 of 100 within {late * 1e6:,.0f} us", ok=True)


def _took(ask: Callable[[int], object], times: int) -> list[float]:
    took: list[float] = []
    end = time.perf_counter() + WITHIN_S
    ask(0)
    while len(took) < times and (begun := time.perf_counter()) < end:
        ask(len(took))
        took.append(time.perf_counter() - begun)
    return took or [WITHIN_S]


async def _tasks(url: str) -> tuple[float, int]:
    """Decisions a second of so many tasks, each on subjects of its own; and how many were allowed to one subject."""
    async with AsyncLimiter(url, [_POLICY], namespace=NAMESPACE, create=False) as limiter:

        async def task(number: int) -> int:
            done = 0
            while time.perf_counter() < end and done < TIMES // TASKS:
                await limiter.decide("doctor", (number + TASKS * done) % SUBJECTS)
                done += 1
            return done

        begun = time.perf_counter()
        end = begun + WITHIN_S
        done = sum(await asyncio.gather(*map(task, range(TASKS))))
        rate = done / (time.perf_counter() - begun)
        decisions = await asyncio.gather(*(limiter.decide("doctor", SUBJECTS) for _ in range(TASKS)))
        return rate, sum(decision.allowed for decision in decisions)
