"""One writer: asks without end, and records every call before it is made and after it was answered, until it is killed.

Each record is one `write` to a file, so whatever it was told before it was killed is there. A kill may cut a write
between two pages: a line without its end counts as never written, since then either the call was not made yet, or its
answer was not recorded. Its successor, under the same number, first repeats its last attempt if that had an id, or what
it did last with a hit.
"""

from __future__ import annotations

import json
import os
import random
import time
from typing import TYPE_CHECKING, Any

from capline import Limit, Limiter, Policy
from proof.record import Recorder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["KEEPING", "SUBJECTS", "cut_torn_line", "heads", "policies", "write"]

KEEP_US = 86_400_000_000
POLICIES = {"tight": (20, 500_000), "open": (1_000_000_000, KEEP_US), "reserving": (1_000_000_000, KEEP_US)}
"""(quota, window_us): one that is full at once, and one that never is, both over one log; and one with reservations."""
KEEPING = ("open", "reserving")
"""Those whose log keeps everything."""
TTLS_S = (0.005, 0.1, 10.0)
SUBJECTS = ("a", "b", "c")
LONGEST_S = 120


def policies() -> list[Policy]:
    """As capline has them."""
    return [
        Policy(name, [Limit(*limit)], log=_log(name), reservations=name == "reserving")
        for name, limit in POLICIES.items()
    ]


def heads() -> list[str]:
    """As the checker has them."""
    recorder = Recorder()
    for name, limit in POLICIES.items():
        recorder.policy(name, [limit], log=_log(name))
    return recorder.lines


def _log(policy: str) -> str:
    return "reserved" if policy == "reserving" else "log"


def write(url: str, directory: Path, number: int, life: int, pause_s: float) -> None:
    """Ask until killed, until whoever forked this is gone, or for two minutes; pause up to so long between calls."""
    parent, end = os.getppid(), time.monotonic() + LONGEST_S
    path = directory / f"records-{number}"
    cut_torn_line(path)
    last = _last(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    recorder = Recorder(write=lambda line: os.write(fd, line.encode()), name=f"{number}.{life}")
    draw = random.Random(f"{number}.{life}")
    held: list[tuple[str, str, int]] = []
    with Limiter(url, policies()) as limiter:

        def ask(policy: str, subject: str, cost: int, attempt_id: str | None, ttl_us: int | None = None) -> Any:
            def sent() -> Any:
                if ttl_us is not None:
                    return limiter.reserve(policy, subject, cost, attempt_id, ttl=ttl_us / 1e6)
                return limiter.decide(policy, subject, cost, attempt_id)

            more = {} if ttl_us is None else {"verb": "reserve", "ttl_us": ttl_us}
            return recorder.tell(recorder.attempt(policy, subject, cost=cost, id=attempt_id, **more), sent)

        def change(verb: str, policy: str, subject: str, hit: int, units: int) -> None:
            more = (units,) if verb == "settle" else ()
            note = recorder.change(verb, policy, subject, hit, units)
            recorder.tell(note, lambda: getattr(limiter, verb)(policy, subject, hit, *more))

        if "hit" in last:
            change(last["verb"], last["policy"], last["subject"], last["hit"], last["cost"])
        elif last.get("id"):
            ask(last["policy"], last["subject"], last["cost"], last["id"], last.get("ttl_us"))
        made = 0
        while time.monotonic() < end and os.getppid() == parent:
            made += 1
            time.sleep(draw.random() * pause_s)
            subject, chance = draw.choice(SUBJECTS), draw.random()
            if chance < 0.15 and held:
                policy, subject, stamp_us = draw.choice(held[-3:])
                verb = draw.choice(("refund", "settle", "commit" if policy == "reserving" else "settle"))
                change(verb, policy, subject, stamp_us, draw.choice((1, 2, 3)) if verb == "settle" else 0)
                continue
            policy = "open" if chance < 0.5 else "tight" if chance < 0.8 else "reserving"
            ttl_us = round(draw.choice(TTLS_S) * 1e6) if policy == "reserving" else None
            attempt_id = f"{number}.{life}.{made}" if draw.random() < 0.5 else None
            hit = ask(policy, subject, draw.choice((1, 1, 1, 2)), attempt_id, ttl_us).hit
            if hit is not None:
                held.append((policy, subject, hit))


def cut_torn_line(path: Path) -> None:
    """Cut off the incomplete last line of a killed writer."""
    if path.exists():
        with path.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def _last(path: Path) -> dict[str, Any]:
    """The call that was never answered, if there is one."""
    if not path.exists():
        return {}
    lines = path.read_bytes().splitlines()
    row: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return row if row.get("event") == "asked" else {}
