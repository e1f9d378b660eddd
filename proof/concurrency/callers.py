"""Many callers on one key, at the same time: processes, threads or tasks, on one store under one limit.

Callers ask for a unit as fast as they can; now and then for more units, with an id, again with the same id, or they
give a hit back. Between making an attempt and sending it some sleep for a random time, so that attempts arrive in
another order than they were made in. Every call and the store's final content are recorded; proof.checker judges them.

In cases with slots nothing is given back, so that every slot can be judged to the microsecond: it is the first that is
free behind those taken. For a while callers ask and take slots, near ones and ones they want later; for twice as long
they only ask, so that the queue comes to an end and attempts are allowed again. Towards the end some take a slot
however far it is.

In joint cases there are three subjects, of which callers ask for one, two or all in one attempt, or one slot. They
share a slot of a cluster, so that this is one step there as well.

In cases with charges units are recorded now and then whatever the limit says, so that the quota is passed and everybody
waits for longer.

In cases with reservations every third attempt is one. Some are committed in time, some late, some given back; others
are left to end by themselves.

In cases with moves slots are taken as well. Some are given back at once, and others asked for an earlier instant.

In cases with settlements every fourth hit gets other units soon after, more or fewer, and some get them twice.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capline import AsyncLimiter, Limit, Limiter, Policy
from proof.checker import check, read
from proof.concurrency.calls import Caller
from proof.concurrency.cases import LIMITS, SUBJECTS
from proof.record import Recorder

if TYPE_CHECKING:
    from capline.limiter.explain import Explanation
    from proof.checker import Report
    from proof.concurrency.calls import Call
    from proof.concurrency.cases import Case
    from proof.record import Note

__all__ = ["run"]

KEEP = Limit.parse("1000000000/day")


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
    asked = Policy("p", [Limit(*LIMITS[case.limit])], reservations=case.reservations)
    return [asked, Policy("all", [KEEP], log="p", reservations=case.reservations)]


def _tell_final(case: Case, recorder: Recorder, limiter: Limiter) -> None:
    for subject in case.subjects:
        recorder.tell(recorder.final("p", subject), lambda subject=subject: _stored(limiter.explain("p", subject)))


def _stored(found: Explanation) -> list[tuple[int, int]]:
    return [(hit.stamp_us, hit.units) for hit in found.hits]


def _noted(recorder: Recorder, call: Call) -> Note:
    if call.is_joint:
        return recorder.joint(call.parts(), **call.record())
    return recorder.attempt("p", call.subjects[0], **call.record())


def _ask(case: Case, number: int, limiter: Limiter, recorder: Recorder) -> None:
    """One caller, until its time is over."""
    caller = Caller(case, number)
    for sleep_s, call in caller.calls():

        def sent(sleep_s: float = sleep_s, call: Call = call) -> Any:
            if sleep_s:
                time.sleep(sleep_s)
            return call.on(limiter)

        answer = recorder.tell(_noted(recorder, call), sent)
        then = caller.after(call.hits(answer))
        if then is not None:
            note = recorder.change(then.verb, "p", then.subject, then.hit, then.cost)
            caller.hear(then, recorder.tell(note, partial(then.on, limiter)))


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
        caller, recorder = Caller(case, number), recorders[number]
        for sleep_s, call in caller.calls():

            async def sent(sleep_s: float = sleep_s, call: Call = call) -> Any:
                await asyncio.sleep(sleep_s)
                return await call.on(on)

            answer = await recorder.tell_later(_noted(recorder, call), sent)
            then = caller.after(call.hits(answer))
            if then is not None:
                note = recorder.change(then.verb, "p", then.subject, then.hit, then.cost)
                caller.hear(then, await recorder.tell_later(note, partial(then.on, on)))

    async def whole() -> None:
        async with AsyncLimiter(url, _policies(case), namespace=limiter.namespace) as on:
            await asyncio.gather(*(work(number, on) for number in range(case.callers)))
            for subject in case.subjects if case.store == "memory" else ():

                async def stored(subject: str = subject) -> list[tuple[int, int]]:
                    return _stored(await on.explain("p", subject))

                await recorders[0].tell_later(recorders[0].final("p", subject), stored)

    asyncio.run(whole())
    return [line for recorder in recorders for line in recorder.lines]
