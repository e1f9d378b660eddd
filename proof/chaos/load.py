"""One process of the load: attempts at random instants, without waiting for earlier answers, each recorded.

    python -m proof.chaos.load '{"limiter": ..., ...}'

What is asked and when is drawn before any answer is known, so that every limiter gets the same load from the same seed.
An attempt with an id is made twice, and retried where it has no answer, as callers with ids do. The records are written
to a file at the end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from proof.chaos.callers import POLICY, Place
from proof.chaos.named import caller
from proof.record import Recorder, wall_us

if TYPE_CHECKING:
    from proof.chaos.callers import Caller

__all__ = ["COLD", "HOT", "READY", "Load"]

READY = "ready"
HOT, COLD = 30, 10_000
HOT_SHARE = 0.6
TWICE_SHARE = 0.05
REFUND_SHARE = 0.05
TWICE_WITHIN_S = 1.0
REFUND_WITHIN_S = 1.0
RETRIES, RETRY_S = 3, 0.5
WAIT_FOR_ANSWERS_S = 30


@dataclass(frozen=True)
class Load:
    """What one process is to do."""

    limiter: str
    addresses: str
    namespace: str
    quota: int
    deadline_s: float
    seed: str
    number: int
    rate: float
    seconds: float
    path: str

    def words(self) -> str:
        """As the argument of the program."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Intent:
    """One attempt, before anything is known of its answer."""

    subject: str
    id: str | None
    refund_after_s: float | None


async def run(load: Load) -> list[str]:
    """Make one process's calls; returns the records. It prints READY once connected, then reads when to begin."""
    draw = random.Random(f"{load.seed} {load.number}")
    asked = caller(load.limiter)(Place(load.addresses, load.namespace, load.quota, load.deadline_s))
    recorder = Recorder()
    for number in range(6):
        await _meet(asked, number)
    print(READY, flush=True)
    begin_us = int(sys.stdin.readline())
    tasks, due_s = set[asyncio.Task[None]](), 0.0
    while (due_s := due_s + draw.expovariate(load.rate)) < load.seconds:
        subject = f"hot {draw.randrange(HOT)}" if draw.random() < HOT_SHARE else f"cold {draw.randrange(COLD)}"
        twice_s = draw.random() * TWICE_WITHIN_S if draw.random() < TWICE_SHARE else None
        refund_s = draw.random() * REFUND_WITHIN_S if draw.random() < REFUND_SHARE else None
        intent = Intent(subject, None if twice_s is None else f"{load.number}-{due_s:.6f}", refund_s)
        due_us = begin_us + int(due_s * 1e6)
        await asyncio.sleep(max(0.0, (due_us - wall_us()) / 1e6))
        for after_s in (0.0, twice_s):
            if after_s is not None:
                tasks.add(asyncio.create_task(_attempt(asked, recorder, intent, due_us, after_s)))
        tasks = {task for task in tasks if not task.done()}
    if tasks:
        await asyncio.wait(tasks, timeout=WAIT_FOR_ANSWERS_S)
    await asked.close()
    return recorder.lines


async def _meet(caller: Caller, number: int) -> None:
    """Connect to every server before anything is measured, by a few subjects that nobody else uses."""
    until = time.monotonic() + WAIT_FOR_ANSWERS_S
    while True:
        try:
            await caller.decide(f"meet {number}", None)
        except Exception:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)
        else:
            return


async def _attempt(caller: Caller, recorder: Recorder, intent: Intent, due_us: int, after_s: float) -> None:
    """One attempt and its refund; retried where it has an id and no answer came."""
    for retry in range(1 + RETRIES if intent.id else 1):
        wait_s = after_s if not retry else RETRY_S
        await asyncio.sleep(wait_s)
        due_us = due_us + int(after_s * 1e6) if not retry else wall_us()
        try:
            note = recorder.attempt(POLICY, intent.subject, id=intent.id, due_us=due_us)
            answer = await recorder.tell_later(note, lambda: caller.decide(intent.subject, intent.id))
        except Exception:  # noqa: BLE001, S112 - recorded as no answer # nosec B112
            continue
        if answer.hit is not None and intent.refund_after_s is not None:
            await asyncio.sleep(intent.refund_after_s)
            await _give_back(caller, recorder, intent.subject, answer.hit)
        return


async def _give_back(caller: Caller, recorder: Recorder, subject: str, hit: int) -> None:
    async def ask() -> bool:
        return bool(await caller.refund(subject, hit))

    try:
        await recorder.tell_later(recorder.change("refund", POLICY, subject, hit), ask)
    except Exception:  # noqa: BLE001 - recorded as no answer
        return


def main() -> None:
    """Run, and write the records."""
    # The warning about missing persistence is logged once, by the parent.
    logging.disable(logging.WARNING)
    load = Load(**json.loads(sys.argv[1]))
    lines = asyncio.run(run(load))
    Path(load.path).write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
