"""Every way of the store in memory waits for its lock, also those that take it without `with`."""

from threading import Thread
from typing import Any

import pytest

from capline import Attempt, Limiter, Policy

NAMES = {"log": "sliding_log", "sums": "bucketed", "numbers": "gcra"}


def ask(limiter: Limiter, verb: str, name: str) -> object:
    match verb:
        case "decide 2":
            return limiter.decide(name, "u", 2)
        case "decide_all":
            return limiter.decide_all([Attempt(name, "u"), Attempt(name, "v")])
        case "decide_many":
            return limiter.decide_many(name, ["u", "v"])
        case _:
            return getattr(limiter, verb)(name, "u")


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        *((verb, name) for verb in ("decide", "decide 2", "peek") for name in NAMES),
        *((verb, "log") for verb in ("schedule", "decide_all", "decide_many")),
    ],
)
def test_it_waits_for_the_lock(verb: str, name: str) -> None:
    policies = [Policy(of, ["100/day"], algorithm=algorithm) for of, algorithm in NAMES.items()]
    limiter: Any
    with Limiter("memory://", policies) as limiter:
        for subject in "uv":
            limiter.decide(name, subject)  # a peek at a new subject needs no lock
        ask(limiter, verb, name)  # from the second call on it takes the fast path
        answers: list[object] = []
        asking = Thread(target=lambda: answers.append(ask(limiter, verb, name)))
        with limiter._store._lock:
            asking.start()
            asking.join(0.05)
            assert answers == []
        asking.join()
        assert answers
