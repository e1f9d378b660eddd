"""Many callers on one key, at the same time: processes, threads or tasks, on one store under one limit.

Callers ask for a unit as fast as they can, and now and then for more, with an id, once more with the same id, or give
back what they got; and between making an attempt and sending it they sleep for a random time, so that attempts arrive
in another order than they were made in. Every call is recorded, and at the end what the store holds; proof.checker
decides.

In cases with slots nothing is given back, so that every slot can be judged to the microsecond: it is the first that is
free behind those taken. For a while callers ask and take slots, near ones and ones they want later; for twice as long
they only ask, so that the queue comes to an end and attempts are allowed again. Towards the end some take a slot
however far it is.

In joint cases there are three subjects, of which callers ask for one, two or all in one attempt, or one slot. They
share a slot of a cluster, so that this is one step there as well.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import secrets
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from capline import AsyncLimiter, Attempt, Limit, Limiter, Policy
from proof.checker import check, read
from proof.record import Part, Recorder, wall_us

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proof.checker import Report

__all__ = ["LIMITS", "Case", "cases", "run"]

LIMITS = {"1/50ms": (1, 50_000), "10/s": (10, 1_000_000), "1000/5s": (1000, 5_000_000)}
STORES = ("lmdb", "redis", "valkey", "redis cluster", "valkey cluster")
SUBJECTS: tuple[str, ...] = ("{s}:0", "{s}:1", "{s}:2")
"""Only the first, but in joint cases."""
KEEP = Limit.parse("1000000000/day")
MOST_CALLS = 240_000
"""Of all callers of one case together: what is recorded has to be checked as well."""
LONGEST_SLEEP_S = 0.01
SLEEPS = 0.2
"""Share of the attempts that are sent some time after they were made."""
NEAR = (0, 1, 8, 8, 4)
"""How far a slot may be: none, or the window by so much."""
LAST_SHARE = 0.2
"""Of a caller's time: then some slots may be however far."""


@dataclass(frozen=True)
class Case:
    """So many callers of one kind on one store under one limit, for a while."""

    store: str
    limit: str
    kind: str
    callers: int
    seconds: float
    slots: bool = False
    joint: bool = False

    @property
    def name(self) -> str:
        """For people."""
        more = (", slots" if self.slots else "") + (", joint" if self.joint else "")
        return f"{self.store}, {self.callers} {self.kind}, {self.limit}{more}"

    @property
    def subjects(self) -> tuple[str, ...]:
        """Who is asked for."""
        return SUBJECTS if self.joint else SUBJECTS[:1]


def cases() -> Iterator[Case]:
    """The long form."""
    for limit, (_, window_us) in LIMITS.items():
        seconds = max(2.0, 2.4 * window_us / 1e6)
        for store in STORES:
            for callers in (2, 8, 32):
                yield Case(store, limit, "processes", callers, seconds)
        for store in ("memory", "lmdb", "redis", "valkey cluster"):
            yield Case(store, limit, "threads", 64, seconds)
            yield Case(store, limit, "tasks", 64, seconds)
        for store in STORES:
            yield Case(store, limit, "processes", 8, seconds, slots=True)
        for store in ("memory", "redis"):
            yield Case(store, limit, "threads", 64, seconds, slots=True)
        for store in ("lmdb", "redis cluster"):
            yield Case(store, limit, "tasks", 64, seconds, slots=True)
        for store in STORES:
            yield Case(store, limit, "processes", 8, seconds, joint=True)
        for store, kind, slots in (
            ("memory", "threads", False),
            ("memory", "tasks", True),
            ("redis", "threads", False),
            ("lmdb", "threads", True),
            ("valkey cluster", "tasks", False),
            ("redis cluster", "tasks", True),
        ):
            yield Case(store, limit, kind, 64, seconds, slots=slots, joint=True)


def run(case: Case, url: str) -> tuple[Report, list[str]]:
    """Run one case on the store at this URL, in a namespace of its own; the report, and the records."""
    quota, window_us = LIMITS[case.limit]
    namespace, head = f"t{secrets.token_hex(6)}", Recorder()
    head.policy("p", [(quota, window_us)], retention_us=KEEP.window_us)
    with Limiter(url, _policies(case), namespace=namespace) as limiter:
        # Threads share this limiter: memory is a store of one process, and so of one limiter.
        lines = {"processes": _processes, "threads": _threads, "tasks": _tasks}[case.kind](case, url, limiter)
        if case.store != "memory" or case.kind != "tasks":
            _tell_final(case, head, limiter)
    lines = [*head.lines, *lines]
    return check(read(lines)), lines


def _policies(case: Case) -> list[Policy]:
    """The policy that is asked; and one that nobody asks, for which the log keeps every hit until the end."""
    return [Policy("p", [Limit(*LIMITS[case.limit])]), Policy("all", [KEEP], log="p")]


def _tell_final(case: Case, recorder: Recorder, limiter: Limiter) -> None:
    for subject in case.subjects:
        hits = limiter.explain("p", subject).hits
        recorder.final("p", subject, lambda hits=hits: [(hit.stamp_us, hit.units) for hit in hits])


class _Call(NamedTuple):
    """One call; of a slot where `wish` says how near and how far. Several subjects are asked for in one attempt."""

    cost: int = 1
    id: str | None = None
    wish: tuple[int | None, int] | None = None
    subjects: tuple[str, ...] = SUBJECTS[:1]

    @property
    def is_joint(self) -> bool:
        """Whether it is one attempt over several subjects."""
        return len(self.subjects) > 1

    def on(self, limiter: Any) -> Any:
        """Make it; what an `AsyncLimiter` returns is to be awaited."""
        parts = [Attempt(*part) for part in self.parts()]
        if self.wish is None:
            if self.is_joint:
                return limiter.decide_all(parts)
            return limiter.decide("p", self.subjects[0], self.cost, self.id)
        max_wait_us, not_before_us = self.wish
        bounds = {"max_wait": None if max_wait_us is None else max_wait_us / 1e6, "not_before": not_before_us / 1e6}
        if self.is_joint:
            return limiter.schedule_all(parts, **bounds)
        return limiter.schedule("p", self.subjects[0], self.cost, self.id, **bounds)

    def parts(self) -> list[Part]:
        """What is asked for in one attempt."""
        return [("p", subject, self.cost, self.id) for subject in self.subjects]

    def hits(self, answer: Any) -> list[tuple[str, int]]:
        """Whose hits an answer names."""
        hits = answer.hits if self.is_joint else () if answer.hit is None else (answer.hit,)
        return [*zip(self.subjects, hits, strict=False)]

    def record(self) -> dict[str, Any]:
        """What its record says."""
        row: dict[str, Any] = {} if self.is_joint else {"cost": self.cost, "id": self.id}
        if self.wish is not None:
            row |= {"verb": "schedule", "max_wait_us": self.wish[0], "not_before_us": self.wish[1]}
        return row


class _Caller:
    """What one caller does next, by chance; sync and async callers do the same."""

    def __init__(self, case: Case, number: int) -> None:
        self._draw = random.Random(secrets.randbits(64))
        self._quota, self._window_us = LIMITS[case.limit]
        self._slots = case.slots
        self._subjects = case.subjects
        self._number = number
        self._made = 0
        self._last = _Call()
        self._held: list[tuple[str, int]] = []
        self._most = MOST_CALLS // case.callers
        self._end = time.monotonic() + case.seconds
        self._last_from = self._end - LAST_SHARE * case.seconds

    def calls(self) -> Iterator[tuple[float, _Call]]:
        """How long to sleep before sending, and what; until the time is over."""
        while self._made < self._most and time.monotonic() < self._end:
            self._made += 1
            sleep_s = self._draw.random() * LONGEST_SLEEP_S if self._draw.random() < SLEEPS else 0
            yield sleep_s, self._next()

    def _next(self) -> _Call:
        chance = self._draw.random()
        if chance < 0.04 and self._last.id is not None:
            return self._last
        cost = self._draw.choice((1, 1, 2, 3)) if chance > 0.9 and self._quota > 1 else 1
        attempt_id = f"{self._number}-{self._made}" if 0.04 <= chance < 0.12 else None
        many = self._draw.randint(1, len(self._subjects))
        call = _Call(cost, attempt_id, self._wish(), tuple(self._draw.sample(self._subjects, many)))
        if attempt_id is not None:
            self._last = call
        return call

    def _wish(self) -> tuple[int | None, int] | None:
        """How near and how far a slot is wanted; None: no slot, an answer now."""
        draw, window_us = self._draw, self._window_us
        if not self._slots:
            return None
        if time.monotonic() > self._last_from and draw.random() < 0.01:
            return draw.choice((None, 3 * window_us)), 0
        # No whole number of windows, or what is free would always be found in the same part.
        if wall_us() * 10 // (7 * window_us) % 3 or draw.random() < 0.5:
            return None
        part = draw.choice(NEAR)
        max_wait_us = window_us // part if part > 1 else part
        return max_wait_us, draw.randrange(window_us // 8) if draw.random() < 0.1 else 0

    def back(self, hits: list[tuple[str, int]]) -> tuple[str, int] | None:
        """The hit to give back after this answer, if any, and whose it is."""
        if not hits or self._slots:
            return None
        self._held += hits
        return self._draw.choice(self._held[-3:]) if self._draw.random() < 0.05 else None


def _ask(case: Case, number: int, limiter: Limiter, recorder: Recorder) -> None:
    """One caller, until its time is over."""
    caller = _Caller(case, number)
    for sleep_s, call in caller.calls():

        def sent(sleep_s: float = sleep_s, call: _Call = call) -> Any:
            if sleep_s:
                time.sleep(sleep_s)
            return call.on(limiter)

        if call.is_joint:
            answer = recorder.joint(call.parts(), sent, **call.record())
        else:
            answer = recorder.attempt("p", call.subjects[0], sent, **call.record())
        back = caller.back(call.hits(answer))
        if back is not None:
            recorder.refund("p", *back, lambda back=back: limiter.refund("p", *back))


def _process(case: Case, number: int, url: str, namespace: str, begin: Any, directory: str) -> None:
    recorder = Recorder()
    with Limiter(url, _policies(case), namespace=namespace) as limiter:
        limiter.peek("p", SUBJECTS[0])
        begin.wait()
        _ask(case, number, limiter, recorder)
    (Path(directory) / str(number)).write_text("\n".join(recorder.lines), encoding="utf-8")


def _processes(case: Case, url: str, limiter: Limiter) -> list[str]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["capline", "capline.store.local.lmdb.store", "capline.store.redis.store", "proof.concurrency.callers"]
    )
    begin = context.Barrier(case.callers)
    with tempfile.TemporaryDirectory(prefix="capline-proof-") as directory:
        workers = [
            context.Process(target=_process, args=(case, number, url, limiter.namespace, begin, directory), daemon=True)
            for number in range(case.callers)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(case.seconds + 120)
            if worker.exitcode != 0:
                raise RuntimeError(f"{case.name}: a caller ended with {worker.exitcode}")
        return [
            line
            for number in range(case.callers)
            for line in (Path(directory) / str(number)).read_text(encoding="utf-8").splitlines()
        ]


def _threads(case: Case, _url: str, limiter: Limiter) -> list[str]:
    begin, recorders = threading.Barrier(case.callers), [Recorder() for _ in range(case.callers)]
    failed: list[BaseException] = []

    def work(number: int) -> None:
        begin.wait()
        try:
            _ask(case, number, limiter, recorders[number])
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(case.callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return [line for recorder in recorders for line in recorder.lines]


def _tasks(case: Case, url: str, limiter: Limiter) -> list[str]:
    recorders = [Recorder() for _ in range(case.callers)]

    async def work(number: int, on: AsyncLimiter) -> None:
        caller, recorder = _Caller(case, number), recorders[number]
        for sleep_s, call in caller.calls():

            async def sent(sleep_s: float = sleep_s, call: _Call = call) -> Any:
                await asyncio.sleep(sleep_s)
                return await call.on(on)

            if call.is_joint:
                answer = await recorder.joint_later(call.parts(), sent, **call.record())
            else:
                answer = await recorder.attempt_later("p", call.subjects[0], sent, **call.record())
            back = caller.back(call.hits(answer))
            if back is not None:
                await recorder.refund_later("p", *back, lambda back=back: on.refund("p", *back))

    async def whole() -> None:
        async with AsyncLimiter(url, _policies(case), namespace=limiter.namespace) as on:
            await asyncio.gather(*(work(number, on) for number in range(case.callers)))
            for subject in case.subjects if case.store == "memory" else ():
                hits = (await on.explain("p", subject)).hits
                recorders[0].final("p", subject, lambda hits=hits: [(hit.stamp_us, hit.units) for hit in hits])

    asyncio.run(whole())
    return [line for recorder in recorders for line in recorder.lines]
