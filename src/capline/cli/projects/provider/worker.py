"""Calls a provider that allows 5 calls a second, and never hears "too many": each call waits for a slot of its own.

Start it in two terminals at once: they share the provider's quota through the store. With --free it calls without
waiting, and hears 429.
"""

import fcntl
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from capline import Limit, Limiter, Policy

CALLS, QUOTA, WINDOW = 15, 5, 1.0

# `margin` leaves room for calls that reach the provider later than they were sent, by up to `jitter`.
policy = Policy("toy", Limit.margin(f"{QUOTA}/s", jitter="100ms"))
limiter = Limiter("lmdb://store", [policy])  # redis://… for workers on many hosts


def work(number: int) -> int:
    """Call the provider once it is this call's turn."""
    if "--free" in sys.argv:
        return call_provider(number)
    with limiter.acquire("toy", "account-1", timeout=60):  # raises LimitExceeded where the wait would be longer
        return call_provider(number)


def call_provider(number: int) -> int:
    """Stand for a provider on the network: it answers 429 where the calls of all processes fill the window."""
    with Path("calls.log").open("a+", encoding="ascii") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        log.seek(0)
        now = time.time()
        status = 429 if sum(float(line) > now - WINDOW for line in log) >= QUOTA else 200
        if status != 429:
            log.write(f"{now!r}\n")
    print(f"call {number:2}: {status}")
    return status


began = time.monotonic()
with ThreadPoolExecutor(4) as threads:
    answers = list(threads.map(work, range(CALLS)))
limiter.close()
print(f"{CALLS} calls in {time.monotonic() - began:.1f} s: {answers.count(200)} answered, {answers.count(429)} refused")
