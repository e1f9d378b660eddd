"""Long logs on a server do not grow without end."""

import secrets
from contextlib import closing
from typing import Any, cast

import redis
from tests.kit.servers import shared

from capline import Limiter, ManualClock, Policy

QUOTA = 200
GAP_US = 5_000


def test_a_long_log_is_trimmed_on_the_way() -> None:
    """The window holds the quota, and no more than twice that is stored, and some 64 until the next trim."""
    clock, namespace = ManualClock(1_700_000_000_000_000), f"t{secrets.token_hex(8)}"
    policy, server = Policy("p", [f"{QUOTA}/{QUOTA * GAP_US}us"]), shared("redis")
    longest_bytes, client = 0, cast("Any", redis.Redis).from_url(server.url)
    with Limiter(f"{server.url}?deadline=20s", [policy], clock=clock, namespace=namespace) as limiter, closing(client):
        for number in range(10 * QUOTA):
            clock.advance_us(GAP_US)
            assert limiter.decide("p", "s"), number
            if number % 50 == 0:
                (key,) = client.scan_iter(f"{namespace}*", count=1000)
                longest_bytes = max(longest_bytes, client.strlen(key))
    # It is a long log, of entries of 14 bytes.
    assert QUOTA * 14 <= longest_bytes <= 22 + 14 * (2 * QUOTA + 64)
