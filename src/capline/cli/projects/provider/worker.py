"""Calls a provider that allows 5 calls a second, and never hears "too many": each call waits for a slot of its own.

Start it in two terminals at once: they share the provider's quota through the store. With --free it calls without
waiting, and hears 429.
"""

import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

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
    with closing(sqlite3.connect("calls.sqlite", timeout=60)) as calls, calls:
        calls.execute("BEGIN IMMEDIATE")  # a call at a time, of all processes
        calls.execute("CREATE TABLE IF NOT EXISTS answered (at REAL)")
        now = time.time()
        (count,) = calls.execute("SELECT count(*) FROM answered WHERE at > ?", [now - WINDOW]).fetchone()
        status = 429 if count >= QUOTA else 200
        if status == 200:
            calls.execute("INSERT INTO answered VALUES (?)", [now])
    print(f"call {number:2}: {status}")
    return status


began = time.monotonic()
with ThreadPoolExecutor(4) as threads:
    answers = list(threads.map(work, range(CALLS)))
limiter.close()
print(f"{CALLS} calls in {time.monotonic() - began:.1f} s: {answers.count(200)} answered, {answers.count(429)} refused")
