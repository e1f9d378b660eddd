"""Overrides: what each takes in the store, and what a decision with one costs beside a decision without.

    python -m bench.overrides [--overrides 100000] [--store lmdb:///path | redis://…] [--seconds 2]

`--overrides 5000000` is the figure of docs/benchmarks.md. Decisions are on a memory store; rounds take turns,
so that all meet the same machine, and the ratio is of their medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capline import Limiter, Policy
from capline.config.configuration import Configuration

if TYPE_CHECKING:
    from collections.abc import Callable

LOT = 50_000
CALLS = 20_000
LIMITS = ["1000000000/day"]


def file_bytes(directory: str) -> int:
    """The size of all files below."""
    return sum(path.stat().st_size for path in Path(directory).rglob("data.mdb"))


def server_bytes(url: str) -> int:
    """The memory that a server uses for its data."""
    import redis  # noqa: PLC0415 - an extra

    client: Any = redis.Redis.from_url(url)  # pyright: ignore[reportUnknownMemberType] - untyped
    used: int = client.info("memory")["used_memory"]
    client.close()
    return used


def load(configuration: Configuration, overrides: int) -> float:
    """Set so many; seconds."""
    begun = time.perf_counter()
    for first in range(0, overrides, LOT):
        configuration.override_many(
            "promo", {f"user:{number}": LIMITS for number in range(first, min(first + LOT, overrides))}, who="bench"
        )
    return time.perf_counter() - begun


def cost(decide: Callable[[str, str], object], policy: str, subject: str) -> float:
    """Microseconds a decision."""
    begun = time.perf_counter()
    for _ in range(CALLS):
        decide(policy, subject)
    return (time.perf_counter() - begun) / CALLS * 1e6


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overrides", type=int, default=100_000)
    parser.add_argument("--store", default=None, help="the configuration store; a new LMDB file unless said")
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        url = asked.store or f"lmdb://{directory}"
        with Configuration(url, namespace="bench") as configuration:
            configuration.set_policies([Policy("promo", LIMITS), Policy("plain", LIMITS)], who="bench")
            server = url.startswith(("redis", "valkey"))
            before = server_bytes(url) if server else 0
            took_s = load(configuration, asked.overrides)
            size = server_bytes(url) - before if server else file_bytes(url.removeprefix("lmdb://"))
            print(f"{asked.overrides:,} overrides in {took_s:.1f} s, {size / asked.overrides:.0f} bytes each")
        with (
            Limiter("memory://", policies=[Policy("plain", LIMITS)]) as without,
            Limiter.from_config(url, "memory://", namespace="bench") as limiter,
        ):
            kinds: dict[str, tuple[Callable[[str, str], object], str, str]] = {
                "no configuration": (without.decide, "plain", "user:1"),
                "a policy without overrides": (limiter.decide, "plain", "user:1"),
                "with overrides, none of its own": (limiter.decide, "promo", "another"),
                "a cached override": (limiter.decide, "promo", "user:1"),
            }
            found: dict[str, list[float]] = {name: [] for name in kinds}
            until = time.perf_counter() + asked.seconds * len(kinds)
            while time.perf_counter() < until or not found["a cached override"]:
                for name, kind in kinds.items():
                    found[name].append(cost(*kind))
            base = statistics.median(found["no configuration"])
            for name, rounds in found.items():
                median = statistics.median(rounds)
                print(f"  {name:<34} {median:6.2f} us a decision, {median / base:.2f}x")


if __name__ == "__main__":
    main()
