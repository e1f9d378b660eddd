"""A part of `capline up`: a few requests a second, over HTTP, one after the other.

    python -m capline.up.traffic URL PER_SECOND

Bounded: at most so many requests a second, 1,000 users, 20 callers and one provider; logs go by themselves when their
windows end. Every ten seconds a line says how many were asked, allowed and not answered.
"""

import random
import sys
import time
from collections import Counter
from typing import Any

import httpx

SEED = 42
LINE_EVERY_S = 10.0
TIMEOUT_S = 10.0
_USERS, _CALLERS = 1000, 20
_SHARES = (("promo", 2), ("api", 6), ("psp", 2))


def requests(draw: random.Random) -> Any:
    """What is asked, without end."""
    policies = [name for name, share in _SHARES for _ in range(share)]
    while True:
        policy = draw.choice(policies)
        subjects = {"promo": draw.randint(301, _USERS), "api": f"caller:{draw.randint(1, _CALLERS)}", "psp": "provider"}
        yield {"policy": policy, "subject": subjects[policy]}


def main() -> None:
    """Ask until it is ended; a request without an answer is counted, and the next one comes a second later."""
    url, rate = sys.argv[1], float(sys.argv[2])
    counts: Counter[str] = Counter()
    told = time.monotonic()
    with httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False) as client:
        for number, form in enumerate(requests(random.Random(SEED))):  # noqa: S311 - load, nothing to guess
            begun = time.monotonic()
            said = _ask(client, form)
            counts[said] += 1
            if time.monotonic() - told >= LINE_EVERY_S:
                told = time.monotonic()
                facts = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
                sys.stderr.write(f"{number + 1:,} asked: {facts}\n")
            time.sleep(1.0 if said == "not answered" else max(0.0, 1 / rate - (time.monotonic() - begun)))


def _ask(client: httpx.Client, form: object) -> str:
    try:
        answer = client.post("/v1/decide", json=form)
    except httpx.HTTPError:
        return "not answered"
    if not answer.is_success:
        return "not answered"
    return "allowed" if answer.json()["allowed"] else "refused"


if __name__ == "__main__":
    main()
